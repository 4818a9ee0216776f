"""Clients work one after the other, in the order of the study; each sees all earlier answers."""

from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.checks import check_settings

__all__ = ["sequential"]


def sequential(rounds: int, tolerance: float | int = 0.0) -> Schedule:
    """Returns the schedule in which one client at a time holds a task.

    Args:
      rounds: passes over all clients, at least 1.
      tolerance: the run ends after a round whose gap, in posterior sds, is below it; with 0 it never does.

    Raises:
      ConfigError: unless ``rounds`` ≥ 1 and ``tolerance`` is finite and not negative.
    """
    check_settings(rounds, tolerance)

    def in_turn(progress: Progress) -> str:
        return progress.clients[sum(progress.turns) % len(progress.clients)]

    def select(progress: Progress) -> tuple[str, ...]:
        turn = in_turn(progress)
        return (turn,) if progress.idle(turn) and progress.turns_of(turn) < rounds else ()

    def awaited(progress: Progress) -> tuple[str, ...]:
        turn = in_turn(progress)
        return (turn,) if turn not in progress.waiting and not finished(progress) else ()

    def ready(progress: Progress) -> bool:
        return bool(progress.waiting)

    def finished(progress: Progress) -> bool:
        complete = len(set(progress.turns)) == 1
        return complete and (progress.rounds >= rounds or progress.gap < tolerance)

    return Schedule("sequential", rounds, select, ready, finished, awaited)
