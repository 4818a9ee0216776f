"""Counts of a round that ends when all have answered, so that no request looks at all clients.

A schedule that says ``barrier`` waits for the clients with the fewest turns, and for nobody else. What
it would say of a request follows then from two counts, which change by one with each answer. They are
counted anew whenever a turn ends or somebody comes or goes: once a round. Other schedules are asked.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "REMOVED",
    "Round",
    "brings_nothing",
    "counted",
    "is_idle",
    "is_quiet",
    "is_turn_of",
    "noted",
]


REMOVED = "removed"
"""Why a client is away for ever: an operator had its factor divided out; the run goes on without it."""


class Round(NamedTuple):
    """Where a round stands, and of which state that was counted.

    Attributes:
      of: the turns, the absences, the history, the stages and the status; compared by identity.
      answers: those that waited.
      least: the fewest turns of any client that takes part.
      missing: how many clients with so few turns have not answered.
      settled: whether all was done that could be done then.
    """

    of: tuple[Any, ...]
    answers: tuple[Any, ...]
    least: int
    missing: int
    settled: bool


def counted(spec: Any, state: Any) -> Round | None:
    """Returns the counts of a state; None where the schedule must be asked.

    From the counts before, where at most one answer came since; else all clients are looked at.
    """
    if not spec.schedule.barrier:
        return None
    before, of = state.presence.round, _counted_of(state)
    if before is None or any(was is not now for was, now in zip(before.of, of, strict=True)):
        return _anew(state, of)
    if before.answers is state.answers:
        return before
    known, answers = before.answers, state.answers
    grown = len(answers) == len(known) + 1 and (not known or answers[-2] is known[-1])
    if not grown:
        return _anew(state, of)
    in_turn = state.turns[answers[-1].task.client] == before.least
    return before._replace(answers=answers, missing=before.missing - in_turn)


def is_quiet(spec: Any, state: Any, found: Round | None) -> bool:
    """Whether nothing is to be done: it was, and since then at most an answer came that is not the last."""
    return (
        found is not None
        and found.settled
        and found.missing > 0
        and not state.away
        and found.least < spec.schedule.rounds
        and state.status == "running"
    )


def noted(state: Any, found: Round | None) -> Any:
    """Returns the state with its counts, for the next request."""
    if found is None or state.presence.round is found:
        return state
    return state._replace(presence=state.presence._replace(round=found))


def is_turn_of(spec: Any, state: Any, found: Round, client: str) -> bool:
    """Whether it is a client's turn, of which no answer waits."""
    return bool(state.turns[client] == found.least < spec.schedule.rounds)


def is_idle(state: Any, client: str) -> bool:
    """Whether a client neither holds a task nor waits to be folded."""
    # Who answered its last task and was not folded: its visit is not over.
    asked = f"{client}/{state.visits[client]}"
    return client not in state.tasks and asked not in state.accepted


def brings_nothing(spec: Any, *states: Any) -> bool:
    """Whether no turn ended and nobody came or went in successive states, so that no work is new."""
    if not spec.schedule.barrier:
        return False
    first = states[0]
    # A task that ends is answered, and its client waits to be folded.
    given = [len(state.tasks) + len(state.accepted) for state in states]
    return given == sorted(given) and all(
        getattr(state, field) is getattr(first, field)
        for state in states
        for field in ("turns", "visits", "away", "status", "stages")
    )


def _counted_of(state: Any) -> tuple[Any, ...]:
    return state.turns, state.away, state.history, state.stages, state.status


def _anew(state: Any, of: tuple[Any, ...]) -> Round:
    turns: Mapping[str, int] = state.turns
    removed = {name for name, reason in state.away.items() if reason == REMOVED}
    counts = [count for name, count in turns.items() if name not in removed]
    least = min(counts, default=0)
    waiting = {answer.task.client for answer in state.answers} - removed
    answered = sum(turns[name] == least for name in waiting)
    return Round(of, state.answers, least, sum(n == least for n in counts) - answered, False)
