"""One client after the other, in the order of the study; each sees the answers of all before it."""

from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.checks import check_settings

__all__ = ["sequential"]


def sequential(rounds: int, tolerance: float = 0.0) -> Schedule:
    """Returns the schedule that hands one token around.

    Args:
      rounds: passes over all clients, at least 1.
      tolerance: ends after a round whose gap, in posterior sds, is below it; 0 never does.

    Raises:
      ConfigError: unless ``rounds`` ≥ 1 and ``tolerance`` is finite and not negative.
    """
    check_settings(rounds, tolerance)

    def select(progress: Progress) -> tuple[str, ...]:
        turn = progress.clients[sum(progress.visits) % len(progress.clients)]
        busy = progress.open or progress.waiting
        return () if busy else (turn,)

    def ready(progress: Progress) -> bool:
        return bool(progress.waiting)

    def finished(progress: Progress) -> bool:
        complete = len(set(progress.visits)) == 1
        return complete and (progress.rounds >= rounds or progress.gap < tolerance)

    return Schedule("sequential", rounds, select, ready, finished)
