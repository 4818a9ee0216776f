"""Keeps running counts for schedules with a barrier, so that a request need not scan all clients.

A schedule with ``barrier`` waits only for the clients with the fewest turns. Two counts then decide
every request, and each answer changes them by one. They are recomputed whenever a turn ends or a client
joins or leaves, about once a round. Other schedules are asked directly.
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
"""Why a client is away for good: an operator had its factor divided out. The run continues without it."""


class Round(NamedTuple):
    """The counts of a round, and the parts of the state that they were computed from.

    Attributes:
      of: the turns, the absences, the history, the stages and the status; compared by identity.
      answers: the answers that were waiting.
      least: the fewest turns of any client that takes part.
      missing: how many clients with ``least`` turns have not answered.
      settled: whether ``settle`` had done all it could.
    """

    of: tuple[Any, ...]
    answers: tuple[Any, ...]
    least: int
    missing: int
    settled: bool


def counted(spec: Any, state: Any) -> Round | None:
    """Returns the counts of a state; None where the schedule must be asked.

    If at most one answer came since the last counts, those are updated; otherwise all clients are counted.
    """
    if not spec.schedule.barrier:
        return None
    before = state.presence.round
    of = state.turns, state.away, state.history, state.stages, state.status
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
    """Whether there is nothing to do: the state was settled, and the round's last answer is still out."""
    return (
        found is not None
        and found.settled
        and found.missing > 0
        and not state.away
        and found.least < spec.schedule.rounds
        and state.status == "running"
    )


def noted(state: Any, found: Round | None) -> Any:
    """Stores the counts in the state, for the next request."""
    if found is None or state.presence.round is found:
        return state
    return state._replace(presence=state.presence._replace(round=found))


def is_turn_of(spec: Any, state: Any, found: Round, client: str) -> bool:
    """Whether it is a client's turn; ``is_idle`` says whether its answer already waits."""
    return bool(state.turns[client] == found.least < spec.schedule.rounds)


def is_idle(state: Any, client: str) -> bool:
    """Whether a client holds no task, and has no answer that waits to be folded."""
    # A visit counts as over only after the fold, so an accepted answer to it is one that still waits.
    asked = f"{client}/{state.visits[client]}"
    return client not in state.tasks and asked not in state.accepted


def brings_nothing(spec: Any, *states: Any) -> bool:
    """Whether no turn ended and no client joined or left across successive states: there is no new work."""
    if not spec.schedule.barrier:
        return False
    first = states[0]
    # An answered task moves from ``tasks`` to ``accepted``; its client then waits for the fold.
    given = [len(state.tasks) + len(state.accepted) for state in states]
    return given == sorted(given) and all(
        getattr(state, field) is getattr(first, field)
        for state in states
        for field in ("turns", "visits", "away", "status", "stages")
    )


def _anew(state: Any, of: tuple[Any, ...]) -> Round:
    turns: Mapping[str, int] = state.turns
    removed = {name for name, reason in state.away.items() if reason == REMOVED}
    counts = [count for name, count in turns.items() if name not in removed]
    least = min(counts, default=0)
    waiting = {answer.task.client for answer in state.answers} - removed
    answered = sum(turns[name] == least for name in waiting)
    return Round(of, state.answers, least, sum(n == least for n in counts) - answered, False)
