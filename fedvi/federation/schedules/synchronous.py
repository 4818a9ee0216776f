"""All clients start from the same posterior; the round is folded once no client is awaited."""

from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.checks import check_settings

__all__ = ["synchronous"]


def synchronous(rounds: int, tolerance: float | int = 0.0) -> Schedule:
    """Returns the schedule with a barrier at the end of each round.

    Args:
      rounds: passes over all clients, at least 1.
      tolerance: the run ends after a round whose gap, in posterior sds, is below it; with 0 it never does.

    Raises:
      ConfigError: unless ``rounds`` ≥ 1 and ``tolerance`` is finite and not negative.
    """
    check_settings(rounds, tolerance)

    def in_turn(progress: Progress) -> tuple[str, ...]:
        # A client whose turn was skipped is one turn ahead of the others until the round is folded.
        over = progress.rounds
        return tuple(
            client
            for client, turns in zip(progress.clients, progress.turns, strict=True)
            if turns == over < rounds
        )

    def select(progress: Progress) -> tuple[str, ...]:
        busy = {*progress.open, *progress.waiting}
        return tuple(client for client in in_turn(progress) if client not in busy)

    def awaited(progress: Progress) -> tuple[str, ...]:
        answered = set(progress.waiting)
        return tuple(client for client in in_turn(progress) if client not in answered)

    def ready(progress: Progress) -> bool:
        return bool(progress.waiting) and not awaited(progress)

    def finished(progress: Progress) -> bool:
        return progress.rounds >= rounds or progress.gap < tolerance

    return Schedule("synchronous", rounds, select, ready, finished, awaited, barrier=True)
