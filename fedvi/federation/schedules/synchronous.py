"""All clients at once from the same posterior; the round is folded when the last answer is there."""

from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.checks import check_settings

__all__ = ["synchronous"]


def synchronous(rounds: int, tolerance: float = 0.0) -> Schedule:
    """Returns the schedule with a barrier at the end of each round.

    Args:
      rounds: passes over all clients, at least 1.
      tolerance: ends after a round whose gap, in posterior sds, is below it; 0 never does.

    Raises:
      ConfigError: unless ``rounds`` ≥ 1 and ``tolerance`` is finite and not negative.
    """
    check_settings(rounds, tolerance)

    def select(progress: Progress) -> tuple[str, ...]:
        return tuple(client for client in progress.clients if progress.idle(client))

    def ready(progress: Progress) -> bool:
        return len(progress.waiting) == len(progress.clients)

    def finished(progress: Progress) -> bool:
        return progress.rounds >= rounds or progress.gap < tolerance

    return Schedule("synchronous", rounds, select, ready, finished)
