"""Every client at its own pace; each answer is folded when it arrives, however stale."""

from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.checks import check_settings

__all__ = ["asynchronous"]


def asynchronous(rounds: int, tolerance: float = 0.0) -> Schedule:
    """Returns the schedule without barriers.

    Every client answers exactly ``rounds`` times, so that its privacy cost is known beforehand;
    fast clients finish early. An answer that was computed from an older posterior is applied as a
    change of that client's own factor.

    Args:
      rounds: visits to each client, at least 1.
      tolerance: ends once every client has been folded once more and the gap, in posterior sds, is
        below it; 0 never does.

    Raises:
      ConfigError: unless ``rounds`` ≥ 1 and ``tolerance`` is finite and not negative.
    """
    check_settings(rounds, tolerance)

    def unfinished(progress: Progress) -> tuple[str, ...]:
        return tuple(
            client
            for client, turns in zip(progress.clients, progress.turns, strict=True)
            if turns < rounds
        )

    def select(progress: Progress) -> tuple[str, ...]:
        busy = {*progress.open, *progress.waiting}
        return tuple(client for client in unfinished(progress) if client not in busy)

    def awaited(progress: Progress) -> tuple[str, ...]:
        answered, away = set(progress.waiting), set(progress.away)
        missing = [client for client in unfinished(progress) if client not in answered]
        # Nobody waits for a client that is away, until those are all that are missing.
        return tuple([client for client in missing if client not in away] or missing)

    def ready(progress: Progress) -> bool:
        return bool(progress.waiting)

    def finished(progress: Progress) -> bool:
        return progress.rounds >= rounds or progress.gap < tolerance

    return Schedule("asynchronous", rounds, select, ready, finished, awaited)
