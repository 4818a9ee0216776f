"""Advances a run: folds answers, skips turns, applies deadlines and ends stages and the run."""

import collections
import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam import stacked, tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation import damping as damping_rules
from fedvi.federation import fold as folding
from fedvi.federation.messages import KeyPart, Wait
from fedvi.federation.progress import Progress, StageEnd
from fedvi.server.core import barrier, kept, key_board, openings, sum_rounds
from fedvi.server.core.fold_sizes import check_size, strictly
from fedvi.server.core.state import (
    EXHAUSTED,
    OVER,
    OVERDUE,
    ServerSpec,
    ServerState,
    Update,
    Waiting,
    has_failed,
    has_failed_for_good,
    is_removed,
    present,
    progress_of,
    reported,
    served,
)
from fedvi.typing import Eta
from fedvi.updates import foretold, limits
from fedvi.updates.base import Fold, Standing

__all__ = [
    "brings_work",
    "check_fold",
    "check_folded",
    "committed",
    "given_up",
    "is_in_turn",
    "is_selected",
    "keyed",
    "moved_on",
    "next_deadline",
    "noted",
    "rounds_at_last_fold",
    "settle",
    "stand",
    "sum_folded",
    "tick",
]


def tick(spec: ServerSpec, state: ServerState, now: float) -> ServerState:
    """Applies the passing of time: a client that exceeds its deadline is away, and its turn is skipped."""
    if state.status == "running" and now >= state.presence.due:
        overdue = {name: OVERDUE for name, due in _deadlines(spec, state) if now >= due}
        state = _with_due(spec, state)
        if overdue:
            state = state._replace(away=kept.put_all(state.away, overdue))
    return settle(spec, state, now)


def next_deadline(spec: ServerSpec, state: ServerState) -> float | None:
    """Returns when to call ``tick`` at the latest; None if time alone changes nothing."""
    if state.status != "running":
        return None
    due = state.presence.due
    if due == -math.inf:  # nobody looked yet
        due = _with_due(spec, state).presence.due
    return None if due == math.inf else due


def _with_due(spec: ServerSpec, state: ServerState) -> ServerState:
    """Stores the earliest deadline of the awaited clients. Answers can only postpone it."""
    due = min((due for _, due in _deadlines(spec, state)), default=math.inf)
    if due == state.presence.due:
        return state
    return state._replace(presence=state.presence._replace(due=due))


def _deadlines(spec: ServerSpec, state: ServerState) -> Iterator[tuple[str, float]]:
    """Yields each awaited client with its deadline; clients without a deadline are left out."""
    for name, waiting in state.presence.awaited.items():
        limit = spec.patience.deadline_of(name)
        if limit is not None:
            yield name, waiting.since + limit


def settle(spec: ServerSpec, state: ServerState, now: float) -> ServerState:
    """Takes every step that needs no further message, then notes who is awaited since when."""
    found = None if state.status in OVER else barrier.counted(spec, state)
    if barrier.is_quiet(spec, state, found):
        return _without_clock(barrier.noted(state, found))
    if found is not None and found.settled and openings.is_waiting(state):
        # Since the state was settled, at most a signature or opening came, and others are still missing.
        return state
    state = _with_clocks(spec, moved_on(spec, state), now)
    if state.status in OVER or (found := barrier.counted(spec, state)) is None:
        return state
    return barrier.noted(state, found._replace(settled=True))


def moved_on(spec: ServerSpec, state: ServerState) -> ServerState:
    """Takes every step that needs no further message, without a note of who is awaited."""
    while (moved := _move(spec, state)) is not state:
        state = moved
    return state


def keyed(
    spec: ServerSpec, state: ServerState, name: str, part: KeyPart, now: float
) -> tuple[ServerState, Wait]:
    """Takes a part of the keys, as ``key_board.post``; with the last one the time of a round begins."""
    after, reply = key_board.post(spec, state, name, part)
    if key_board.is_ready(spec, after) and not key_board.is_ready(spec, state):
        presence = after.presence._replace(round=None)
        after = settle(spec, after._replace(presence=presence), now)
    return after, reply


def check_fold(spec: ServerSpec, state: ServerState, what: str) -> None:
    """Makes a trial fold of the waiting answers, and discards the result.

    Matrices of moderate numbers may still be singular to float64. So where there are matrices, and
    ``fold_sizes`` cannot exclude failure, each answer is tried when it arrives. The real fold then cannot
    fail: it takes all waiting answers, and its other inputs (factors, memory, the last round's posterior)
    change only by folds, so it was tried when the last of its answers arrived. Where coordinates are
    independent (a family with ``blocks``), a fold of answers that pass ``check_size`` cannot fail.

    Args:
      state: with the answers.
      what: names the last answer in the message.

    Raises:
      ProtocolError: it cannot be folded.
    """
    if hasattr(spec.family, "blocks"):
        return
    with strictly(f"{what} cannot be folded"):
        check_folded(spec, state, _fold(spec._replace(keep=lambda eta: eta), state))


def check_folded(spec: ServerSpec, before: ServerState, after: ServerState) -> None:
    """Checks that a fold led to numbers which the next fold can begin with; call it within ``strictly``.

    Raises:
      FloatingPointError: it did not.
    """
    family = spec.family
    handed_out = served(spec, after)
    gap = folding.gap(family, before.round_start, reported(spec, after))
    # The next fold begins with this computation.
    whitened = family.whiten(handed_out, family.zeros())
    if not (np.isfinite([*gap, *whitened]).all() and family.is_proper(handed_out)):
        raise FloatingPointError


def brings_work(spec: ServerSpec, *states: ServerState) -> bool:
    """Whether, across successive states, some waiting client would get another reply than before."""

    def told(state: ServerState) -> tuple[Any, ...]:
        return state.status, present(spec, state), *key_board.standing(state)

    def chosen(state: ServerState) -> set[str]:
        return set(spec.schedule.select(progress_of(spec, state)))

    # Most requests bring nothing, and to ask the schedule after each would look at all clients each time.
    pairs = [
        pair
        for pair in itertools.pairwise(states)
        if not (barrier.brings_nothing(spec, *pair) and _stand_alike(*pair))
    ]
    return any(told(before) != told(after) for before, after in pairs) or any(
        not chosen(after) <= chosen(before) for before, after in pairs
    )


def _stand_alike(first: ServerState, *others: ServerState) -> bool:
    """Whether successive states are at the same stage of key exchange and of opening a sum."""
    return all(
        state.keys is first.keys or key_board.standing(state) == key_board.standing(first)
        for state in others
    )


def is_in_turn(spec: ServerSpec, state: ServerState, client: str) -> bool:
    """Whether an answer by this client would count for its turn, which was not skipped."""
    found = barrier.counted(spec, state)
    if found is not None and not is_removed(state, client):
        return barrier.is_turn_of(spec, state, found, client)
    progress = progress_of(spec, state)
    held = progress._replace(open=(*progress.open, client), away=())
    return client in spec.schedule.awaited(held)


def is_selected(spec: ServerSpec, state: ServerState, client: str) -> bool:
    """Whether a client may be given a task now."""
    found = barrier.counted(spec, state)
    if found is None:
        return client in spec.schedule.select(progress_of(spec, state))
    return barrier.is_turn_of(spec, state, found, client) and barrier.is_idle(state, client)


def _move(spec: ServerSpec, state: ServerState) -> ServerState:
    """Takes one step if one is possible; otherwise returns the very same state."""
    if state.status in OVER:
        return state
    progress = progress_of(spec, state)
    if state.answers and spec.schedule.ready(progress):
        return _fold(spec, state) if spec.gather is None else _gathered(spec, spec.gather, state)
    if spec.schedule.finished(progress):
        # If every turn was skipped, or every round given up, the posterior is the prior: no result.
        folded = any(progress.visits) if spec.gather is None else state.version > 0
        return state._replace(status="completed" if folded else "failed")
    if (joined := key_board.joined(spec, state)) is not state:
        return joined
    ending = spec.schedule.ending(progress)
    if ending is not None:
        return _end_stage(spec, state, progress, ending)
    if state.status == "paused" or not state.away:
        return state
    return _skip(spec, state, spec.schedule.awaited(progress))


def _skip(spec: ServerSpec, state: ServerState, awaited: tuple[str, ...]) -> ServerState:
    """Skips the turns of absent clients; ends the run if waiting is hopeless."""
    if _is_hopeless(spec, state, awaited):
        reasons = {state.away[name] for name in awaited}
        ended = "budget_exhausted" if reasons <= {"budget", EXHAUSTED} else "failed"
        return state._replace(status=ended)
    if not key_board.is_ready(spec, state):
        return state
    absent = [
        name
        for name in awaited
        if name in state.away
        and (spec.patience.deadline_of(name) is not None or has_failed_for_good(state, name))
    ]
    members, quorum = _quorum(spec, state)
    there = sum(name not in state.away for name in members)
    if not absent or there < quorum:
        return state
    turns = kept.put_all(state.turns, {name: state.turns[name] + 1 for name in absent})
    before, after = (min(kept.in_order(t, present(spec, state))) for t in (state.turns, turns))
    if spec.gather is not None and not state.answers and after > before:
        # All were skipped, one after another.
        spec.record(state, False)
    return state._replace(turns=turns, skipped=(*state.skipped, *absent))


def _end_stage(
    spec: ServerSpec, state: ServerState, progress: Progress, holding: tuple[str, ...]
) -> ServerState:
    """Notes where a script's stage ended; the next stage counts from there.

    No answer waits: all were folded before. A client that holds a task keeps it, since it was charged;
    its answer then counts for the next stage, or is late.
    """
    turns = kept.put_all(state.turns, {name: state.turns[name] + 1 for name in holding})
    end = StageEnd(
        visits=tuple(map(state.visits.__getitem__, spec.clients)),
        turns=tuple(map(turns.__getitem__, spec.clients)),
        version=state.version,
        gap=progress.gap,
        away=tuple(filter(state.away.__contains__, spec.clients)),
    )
    return state._replace(
        turns=turns, stages=(*state.stages, end), round_start=reported(spec, state)
    )


def _is_hopeless(spec: ServerSpec, state: ServerState, awaited: tuple[str, ...]) -> bool:
    """Whether all awaited clients failed, and too few clients are left for a quorum."""
    if not awaited or not all(has_failed(state, name) for name in awaited):
        return False
    members, quorum = _quorum(spec, state)
    left = sum(not has_failed_for_good(state, name) for name in members)
    return left < quorum or all(has_failed(state, name) for name in members)


def _quorum(spec: ServerSpec, state: ServerState) -> tuple[tuple[str, ...], int]:
    """Returns the clients that a quorum counts, and how many of them must be present.

    If only sums are published, only clients of the script's stage count: a round of too few of them
    would be given up after it was charged.
    """
    if spec.gather is None:
        return spec.members, spec.patience.quorum
    inside = spec.schedule.view(progress_of(spec, state)).clients
    members = tuple(name for name in spec.members if name in inside)
    return members, min(spec.patience.quorum, len(members))


def _without_clock(state: ServerState) -> ServerState:
    """Stops the clock of the client that answered last; no other clock changed since the last settling."""
    presence = state.presence
    if not presence.awaited or not state.answers:
        return state
    awaited = kept.without(presence.awaited, state.answers[-1].task.client)
    return state._replace(presence=presence._replace(awaited=awaited))


def _with_clocks(spec: ServerSpec, state: ServerState, now: float) -> ServerState:
    before = state.presence.awaited
    found: dict[str, Waiting] = {}
    since_now = functools.cache(lambda turn: Waiting(turn, now))
    # Before keys are agreed on nobody can answer: the time of a round has not begun.
    if state.status == "running" and key_board.is_ready(spec, state):
        for name in spec.schedule.awaited(progress_of(spec, state)):
            if name in state.away:
                continue
            clock, turn = before.get(name), state.turns[name]
            found[name] = clock if clock and clock.turn == turn else since_now(turn)
        for name in openings.owing(state):
            # A negative turn is none of the schedule's. Signing and opening each have their own deadline.
            turn = -openings.phase(state)
            clock = before.get(name)
            if name not in state.away:
                found[name] = clock if clock and clock.turn == turn else Waiting(turn, now)
    if found == before:
        return state
    clocks = kept.ByClient.of(found, spec.clients)
    return _with_due(spec, state._replace(presence=state.presence._replace(awaited=clocks)))


def rounds_at_last_fold(spec: ServerSpec, state: ServerState) -> int:
    """Returns how many rounds of the stage were complete at the last fold."""
    progress = progress_of(spec, state)
    if state.skipped:
        skips = collections.Counter(state.skipped)
        pairs = zip(progress.clients, progress.turns, strict=True)
        progress = progress._replace(turns=tuple(count - skips[name] for name, count in pairs))
    return spec.schedule.view(progress).rounds


def _fold(spec: ServerSpec, state: ServerState) -> ServerState:
    changes = {answer.task.client: answer.change for answer in state.answers}
    return committed(
        spec,
        state,
        deltas={name: change.delta for name, change in changes.items()},
        asked={answer.task.client: answer.task.posterior for answer in state.answers},
        staleness=tuple(state.version - answer.task.version for answer in state.answers),
        late={answer.task.client for answer in state.answers if answer.late},
        surveys={name: c.survey for name, c in changes.items() if c.survey is not None},
        sized={n: change.sized for n, change in changes.items() if change.sized is not None},
    )


def committed(
    spec: ServerSpec,
    state: ServerState,
    deltas: Mapping[str, Eta],
    asked: Mapping[str, Eta],
    staleness: tuple[int, ...],
    late: Collection[str] = (),
    surveys: Mapping[str, GaussianEta] = MappingProxyType({}),
    arrived: tuple[str, ...] | None = None,
    sized: Mapping[str, float] = MappingProxyType({}),
) -> ServerState:
    """Folds answers into the factors and the posterior, and writes an entry of the history.

    Args:
      state: before; its waiting answers are cleared.
      deltas: client → the change of its factor, before it is multiplied by the step.
      asked: client → the η that its task carried.
      staleness: how many versions old that η was, in order of arrival.
      late: clients whose turn was skipped before they answered.
      surveys: of the clients whose answer was a survey.
      arrived: the clients in order of arrival; None: the order of ``deltas``.
      sized: see ``Fold``.
    """
    arrived = tuple(deltas) if arrived is None else arrived
    group = tuple(sorted(arrived))
    in_time = [name for name in arrived if name not in late]
    total = spec.keep(tree.freeze(stacked.total(deltas, spec.family.zeros())))
    memory = state.memory.get(group, damping_rules.Memory())
    floor = 1.0 / len(present(spec, state))
    damping = 1.0
    if not spec.renews:
        damping = spec.step_rule.choose(
            spec.family, served(spec, state), state.posterior, total, memory, floor
        )
    moved = folding.fold(state.factors, deltas, damping, spec.keep)
    factors = moved if stacked.is_stacked(moved) else kept.put_all(state.factors, moved)
    visits, turns = kept.raised(state.visits, arrived), kept.raised(state.turns, in_time)
    rounds_before = rounds_at_last_fold(spec, state)
    state = state._replace(
        version=state.version + 1,
        posterior=spec.keep(tree.freeze(folding.posterior_of(spec.prior, factors))),
        factors=factors,
        visits=visits,
        turns=turns,
        answers=(),
        memory={**state.memory, group: damping_rules.Memory(damping, total)},
    )
    if spec.stand is not None:
        state = state._replace(standing=stand(spec, state, asked, damping, surveys, sized))
    update = Update(state.version, arrived, staleness, damping, 0, None)
    return noted(spec, state, rounds_before, update)


def _gathered(spec: ServerSpec, gather: sum_rounds.Gather, state: ServerState) -> ServerState:
    """Folds the sum of a round's answers; gives the round up if too few came, or the sum cannot be folded.

    Guarantee: with ``answers`` of one version, the state after is a function of the state before, of who
    answered, and of the exact sum of the answers alone.
    """
    if len({answer.task.client for answer in state.answers}) < gather.sums.least_reporting:
        return _given_up(spec, state)
    try:
        if openings.opens(spec) and (moved := openings.moved(spec, state)) is not None:
            return moved
        folded = sum_folded(spec, gather, state)
    except errors.ProtocolError:
        return _given_up(spec, state)
    spec.record(state, True)
    return folded


def _given_up(spec: ServerSpec, state: ServerState) -> ServerState:
    spec.record(state, False)
    return given_up(spec, state)


def sum_folded(spec: ServerSpec, gather: sum_rounds.Gather, state: ServerState) -> ServerState:
    """Folds the sum of all answers of a round.

    Raises:
      ProtocolError: it cannot be read, or folded.
    """
    with strictly("the sum of a round"):
        return openings.cleared(_sum_folded(spec, gather, key_board.means_kept(spec, state)))


def _sum_folded(spec: ServerSpec, gather: sum_rounds.Gather, state: ServerState) -> ServerState:
    members = spec.clients
    # The step rule compares successive updates of the same stage's clients.
    group = spec.schedule.view(progress_of(spec, state)).clients
    whole = tree.total((state.factors[name] for name in members), spec.family.zeros())
    # The task of one client that holds everybody's records and has answered once per sum.
    task = state.answers[0].task._replace(factor=whole, visit=state.version)
    left = openings.streams(spec, state) if openings.opens(spec) else ()
    told = sum_rounds.totals(gather, [answer.change for answer in state.answers], *left)
    louder = gather.top_up.louder(len(members), len(state.answers))
    if (limit := spec.limits.get(task.client)) is not None:
        limits.check(limit, told, "the sum of a round", len(members), max(1.0, louder))
    finished = spec.finish[task.client](told, task)
    change = finished.delta
    check_size(change, "the sum of a round")
    if finished.survey is not None:
        check_size(finished.survey, "the sum of a round")
    damping, memory = 1.0, state.memory
    if not spec.renews:
        before = memory.get(group, damping_rules.Memory())
        damping = spec.step_rule.choose(
            spec.family, served(spec, state), state.posterior, change, before, 1.0 / len(members)
        )
        held = spec.keep(tree.freeze(change))
        memory = {**memory, group: damping_rules.Memory(damping, held)}
    moved = tree.add_scaled(whole, change, damping)
    check_size(moved, "the sum of a round")
    part = spec.keep(tree.freeze(tree.scale(moved, 1.0 / len(members))))
    factors = kept.put_all(state.factors, dict.fromkeys(members, part))
    rounds_before = rounds_at_last_fold(spec, state)
    clients = tuple(answer.task.client for answer in state.answers)
    after = _turned(state)._replace(
        version=state.version + 1,
        posterior=spec.keep(tree.freeze(folding.posterior_of(spec.prior, factors))),
        factors=factors,
        memory=memory,
    )
    if spec.stand is not None:
        # Assume the noise of all clients even if some did not answer: never less than the actual noise.
        asked = dict.fromkeys(members, task.posterior)
        before_it = 1.0 if state.standing is None else state.standing.noise
        louder = max(before_it, louder)
        fold = Fold(spec.prior, spec.prior, after.posterior, factors, asked, damping)
        fold = fold._replace(noise=louder)
        if finished.survey is not None:
            # As if each client had sent an equal part of the sum and of its noise.
            equal: GaussianEta = tree.scale(finished.survey, 1.0 / len(members))
            fold = fold._replace(surveys=dict.fromkeys(members, equal))
            if finished.sized is not None:
                fold = fold._replace(sized=dict.fromkeys(members, finished.sized))
        standing = spec.stand(spec.family, fold, state.standing)
        after = after._replace(
            standing=standing._replace(handed_out=tree.freeze(standing.handed_out), noise=louder)
        )
    handed_out = served(spec, after)
    if not (tree.is_finite(handed_out) and spec.family.is_proper(handed_out)):
        raise FloatingPointError
    update = Update(after.version, clients, (0,) * len(clients), damping, 0, None)
    return noted(spec, after, rounds_before, update)


def given_up(spec: ServerSpec, state: ServerState) -> ServerState:
    """Drops the answers of a round; they stay charged, and nothing about them is published."""
    update = _without_fold(spec, _turned(state))._replace(
        missing=tuple(filter(state.skipped.__contains__, spec.clients)) if state.skipped else (),
        given_up=tuple(answer.task.client for answer in state.answers),
    )
    after = _turned(state)._replace(history=(*state.history, update), skipped=())
    return openings.cleared(after)


def dropped(spec: ServerSpec, state: ServerState, client: str) -> ServerState:
    """Drops an answer that is too late for its sum; it stays charged, and is not published."""
    update = _without_fold(spec, state)._replace(dropped=(client,))
    visits = kept.put(state.visits, client, state.visits[client] + 1)
    return state._replace(visits=visits, history=(*state.history, update))


def _without_fold(spec: ServerSpec, state: ServerState) -> Update:
    """Returns a history entry without a fold: version and posterior are unchanged."""
    return Update(
        state.version,
        clients=(),
        staleness=(),
        damping=1.0,
        rounds=_rounds_of_stage(spec, state),
        gap=None,
        stage=spec.schedule.place(progress_of(spec, state)),
    )


def _rounds_of_stage(spec: ServerSpec, state: ServerState) -> int:
    """Returns the complete rounds of the clients of the script's stage, or of all clients."""
    stage = spec.schedule.view(progress_of(spec, state))
    return min(kept.in_order(state.turns, stage.clients), default=0)


def _turned(state: ServerState) -> ServerState:
    """Clears the answers of a round, and counts their visits and turns."""
    answered = [answer.task.client for answer in state.answers]
    in_time = [answer.task.client for answer in state.answers if not answer.late]
    return state._replace(
        visits=kept.raised(state.visits, answered),
        turns=kept.raised(state.turns, in_time),
        answers=(),
    )


def noted(spec: ServerSpec, state: ServerState, rounds_before: int, update: Update) -> ServerState:
    """Writes an entry of the history; if it completes a round, measures how far the posterior moved.

    Args:
      state: after all other changes.
      rounds_before: from ``rounds_at_last_fold``, before any change.
      update: the entry; ``rounds``, ``gap``, ``missing`` and ``stage`` are filled in here.
    """
    gap, stage = None, spec.schedule.view(progress_of(spec, state))
    surveyed = state.standing is not None and not state.standing.folds
    if stage.rounds > rounds_before and not surveyed:
        now = reported(spec, state)
        gap = folding.gap(spec.family, state.round_start, now)
        if state.standing is not None:
            standing = state.standing
            known = _known(spec, state)
            if standing.prior is not None:
                known = tree.add(known, tree.subtract(standing.prior, spec.prior))
            missed = foretold.missed(spec.family, spec.stand, known, standing)
            gap = gap._replace(
                surprise=max(standing.surprise, missed),
                jitter=standing.jitter,
            )
        state = state._replace(round_start=now)
    update = update._replace(
        rounds=_rounds_of_stage(spec, state),
        gap=gap,
        missing=tuple(filter(state.skipped.__contains__, spec.clients)) if state.skipped else (),
        stage=spec.schedule.place(progress_of(spec, state)),
    )
    return state._replace(history=(*state.history, update), skipped=())


def _known(spec: ServerSpec, state: ServerState) -> Eta:
    """Returns the prior plus the factors of clients without records, which have no noise."""
    exact = (state.factors[name] for name in sorted(set(spec.clients) - set(spec.members)))
    return tree.total(exact, spec.prior)


def stand(
    spec: ServerSpec,
    state: ServerState,
    asked: Mapping[str, Eta],
    damping: float,
    surveys: Mapping[str, GaussianEta] = MappingProxyType({}),
    sized: Mapping[str, float] = MappingProxyType({}),
) -> Standing | None:
    """Computes the standing from noisy factors; factors of clients without records are exact."""
    assert spec.stand is not None
    holders = spec.members
    visited = itertools.compress(holders, kept.in_order(state.visits, holders))
    members = tuple(name for name in visited if not (state.away and is_removed(state, name)))
    if not members:
        return state.standing
    known = _known(spec, state)
    if stacked.is_stacked(state.factors) and state.factors.names == members:
        factors: Mapping[str, Eta] = state.factors
    else:
        factors = {name: state.factors[name] for name in members}
    if stacked.is_alike(asked) and asked.names == members:
        new: Mapping[str, Eta] = asked
    else:
        new = {name: asked[name] for name in members if name in asked}
    fold = Fold(spec.prior, known, state.posterior, factors, new, damping, surveys, sized=sized)
    standing = spec.stand(spec.family, fold, state.standing)
    # Frozen: all tasks share its memory, and results computed from it are cached.
    return standing._replace(handed_out=tree.freeze(standing.handed_out))
