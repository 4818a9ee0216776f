"""Tests whether a server that may publish only sums reveals anything else.

Plays the study's own server twice with made-up answers that differ only in what must stay hidden: all that
it publishes or hands out must be equal, bit for bit. Reads no record and adds no noise.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.audit.findings import Finding, judged
from fedvi.audit.masked import check_masked
from fedvi.federation.messages import Hello, NextTask, Offer, Payload, Submit, Tensor
from fedvi.federation.progress import Patience, Schedule, StageEnd
from fedvi.privacy import events
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.transport import codec

__all__ = ["check_sums"]

_LARGEST = 2**20
_OVERDUE = 10.0


def check_sums(spec: ServerSpec, seed: int = 0) -> list[Finding]:
    """Plays rounds of a server with the view "aggregate"; returns a finding for each hidden property.

    With a script, plays the rounds at the beginning of every stage.

    Args:
      spec: of the study; ledgers and budget are dropped, since there are no real records.

    Raises:
      ConfigError: the server publishes more than sums.
    """
    if spec.gather is None:
        raise errors.ConfigError(
            "the server folds every answer by itself, expected one that publishes sums alone",
            'the study promises view = "message": there is nothing to look at here',
        )
    # A quorum of 1, so that the fold itself must handle too few answers. Answers are made up, of any size.
    gather = spec.gather
    spec = spec._replace(headers={}, budget=None, limits={}, patience=Patience(1.0, 1))
    masked = spec
    # Play without masks, which would hide differences between answers from this audit too.
    spec = spec._replace(gather=gather._replace(bits=None))
    stages = list(_beginnings(spec))
    checks = (_split, _too_few, _late)
    found = [_worst([check(spec, seed, begin) for begin in stages]) for check in checks]
    if gather.bits is None:
        return found
    generator = np.random.default_rng(seed)
    answers = {name: _payload(spec, name, _made_up(spec, generator)) for name in spec.clients}
    return [*found, *check_masked(masked, answers)]


def _beginnings(spec: ServerSpec) -> Iterator[ServerState]:
    """Yields the state at the beginning of each stage of a script, as if earlier stages had no round."""
    state = protocol.initial_state(spec)
    yield state
    if spec.schedule.ending is Schedule._field_defaults["ending"]:
        return  # no script
    nothing = (0,) * len(spec.clients)
    end = StageEnd(nothing, nothing, 0, float("inf"), ())
    while True:
        state = state._replace(stages=(*state.stages, end))
        if spec.schedule.finished(protocol.progress_of(spec, state)):
            return
        yield state


def _members(spec: ServerSpec, begin: ServerState) -> tuple[str, ...]:
    """Returns the clients of a script's stage, or all clients."""
    return spec.schedule.view(protocol.progress_of(spec, begin)).clients


def _worst(found: Sequence[Finding]) -> Finding:
    """Returns the first finding over several stages that is not passed, if there is one."""
    return next((finding for finding in found if not finding.passed), found[0])


def _split(spec: ServerSpec, seed: int, begin: ServerState) -> Finding:
    """Moves a part of one client's answer to another's, so that the sum stays the same."""
    members = _members(spec, begin)
    first, second = members[0], members[-1]

    def play(moved: int) -> list[Any]:
        generator = np.random.default_rng(seed)
        state, shown = begin, []
        for now in range(2):
            answers = {name: _made_up(spec, generator) for name in spec.clients}
            answers[first] = {name: part + moved for name, part in answers[first].items()}
            answers[second] = {name: part - moved for name, part in answers[second].items()}
            state = _round(spec, state, answers, float(now))
            shown.append(_shown(spec, state))
        return shown

    return _judged(
        "what is published is told by the sum",
        play(0),
        play(123_457),
        "two splits of the same sums are published alike, bit for bit",
        "the published values reveal the parts of a sum, and so more than the sum",
    )


def _too_few(spec: ServerSpec, seed: int, begin: ServerState) -> Finding:
    """Lets one client fewer answer than a published sum needs."""
    count = spec.gathering.sums.least_reporting - 1
    name = "a sum of too few answers is not published"
    if count == 0:
        return Finding("sums", name, True, "one answer is enough", "the study declares so")
    chosen = _members(spec, begin)[:count]

    def play(seed: int) -> list[Any]:
        generator = np.random.default_rng(seed)
        answers = {client: _made_up(spec, generator) for client in chosen}
        state = _round(spec, begin, answers, 0.0)
        return [_shown(spec, protocol.tick(spec, state, _OVERDUE))]

    found = play(seed)
    judged = _judged(
        name,
        found,
        play(seed + 1),
        f"{count} answers, one fewer than a sum must hold, change nothing that is published",
        f"a sum of {count} answers is published, and the noise in it is less than was priced",
    )
    if judged.passed and not _same(found[0]["posterior"], begin.posterior):
        return judged._replace(passed=False)
    return judged


def _late(spec: ServerSpec, seed: int, begin: ServerState) -> Finding:
    """Lets an answer arrive after the sum of its round is published."""
    name = "an answer that is late is not published alone"
    members = _members(spec, begin)
    if spec.gathering.sums.least_reporting == len(members):
        return Finding(
            "sums", name, True, "every client must answer", "no round goes on without one"
        )
    late, others = members[-1], members[:-1]

    def play(late_seed: int) -> list[Any]:
        generator = np.random.default_rng(seed)
        state = _asked(spec, begin, members, 0.0)
        first = {client: _made_up(spec, generator) for client in others}
        state = _submitted(spec, state, first, 0.0)
        state = protocol.tick(spec, state, _OVERDUE)
        shown = [_shown(spec, state)]
        answer = {late: _made_up(spec, np.random.default_rng(late_seed))}
        state = _submitted(spec, state, answer, _OVERDUE)
        shown.append(_shown(spec, state))
        second = {client: _made_up(spec, generator) for client in spec.clients}
        state = _round(spec, state, second, _OVERDUE)
        return [*shown, _shown(spec, protocol.tick(spec, state, 3 * _OVERDUE))]

    return _judged(
        name,
        play(seed + 1),
        play(seed + 2),
        "what a late answer says is in nothing that is published",
        "the difference of two sums shows what a late client answered",
    )


def _round(
    spec: ServerSpec, state: ServerState, answers: Mapping[str, Mapping[str, Any]], now: float
) -> ServerState:
    """Gives tasks to all clients that will answer, then submits their answers."""
    return _submitted(spec, _asked(spec, state, answers, now), answers, now)


def _asked(
    spec: ServerSpec, state: ServerState, clients: Collection[str], now: float
) -> ServerState:
    for client in clients:
        hello = Hello(client, spec.study_digest)
        state, _ = protocol.step(spec, state, hello, now)
        state, _ = protocol.step(spec, state, NextTask(client), now)
    return state


def _submitted(
    spec: ServerSpec, state: ServerState, answers: Mapping[str, Mapping[str, Any]], now: float
) -> ServerState:
    for client, answer in answers.items():
        task = state.tasks.get(client)
        if task is None:
            continue
        request = Submit(client, task.task_id, _payload(spec, client, answer))
        state, _ = protocol.step(spec, state, request, now)
    return state


def _made_up(spec: ServerSpec, generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: generator.integers(-_LARGEST, _LARGEST, shape)
        for name, shape in spec.gathering.shapes.items()
    }


def _payload(spec: ServerSpec, client: str, answer: Mapping[str, Any]) -> Payload:
    """Encodes made-up whole numbers as a client would send them."""
    tensors = tuple(
        Tensor(name, "<i4", part.shape, part.astype("<i4").tobytes(), spec.gathering.step)
        for name, part in sorted(answer.items())
    )
    cost = events.to_json(spec.costs[client])
    event = json.dumps(cost, sort_keys=True, separators=(",", ":"))
    return Payload(tensors, event, codec.digest(event, tensors))


def _shown(spec: ServerSpec, state: ServerState) -> dict[str, Any]:
    """Returns all that anybody but the server may see of a state."""
    offered = {}
    for client in spec.clients:
        _, reply = protocol.step(spec, state, NextTask(client), 0.0)
        offered[client] = reply.task if isinstance(reply, Offer) else str(reply)
    hidden = ("tasks", "answers", "accepted", "ledgers", "presence")
    rest = {name: value for name, value in state._asdict().items() if name not in hidden}
    return {
        **rest,
        "offered": offered,
        "reported": protocol.reported(spec, state),
        "served": protocol.served(spec, state),
    }


def _judged(name: str, left: Any, right: Any, good: str, bad: str) -> Finding:
    passed = _same(left, right)
    figure = "the same in every bit" if passed else "not the same"
    return judged("sums", name, passed, figure, good, bad)


def _same(left: Any, right: Any) -> bool:
    """Compares nested values; arrays bit for bit, since even the last bit may reveal something."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        one, other = np.asarray(left), np.asarray(right)
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, tuple | list) and isinstance(right, tuple | list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
