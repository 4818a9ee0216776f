"""Clients work at their own pace; several answers are folded at a time."""

from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.asynchronous import asynchronous
from fedvi.federation.schedules.checks import check_count

__all__ = ["buffered_asynchronous"]


def buffered_asynchronous(
    rounds: int | None = None,
    buffer: int = 2,
    tolerance: float | int = 0.0,
    most_stale: int | None = None,
    updates: int | None = None,
) -> Schedule:
    """Returns the schedule that folds once ``buffer`` answers wait.

    Fewer are folded if no other client can still answer, because all others have finished or are away. A
    client whose answer waits gets no other task before the fold.

    Args:
      rounds: visits to each client, at least 1; by default only ``updates`` bounds them.
      buffer: how many answers are folded together, at least 1; 1 is the same as ``asynchronous``.
      tolerance, most_stale, updates: see ``asynchronous``.

    Raises:
      ConfigError: a setting is out of its range, or neither ``rounds`` nor ``updates`` is given.

    Source: Nguyen et al. (2022), arXiv:2106.06639, algorithm 1 (FedBuff). FedBuff's server does not
    record which client an answer came from; here each answer changes its client's own factor.
    """
    check_count("buffer", buffer, 1, "it counts the answers that are folded together")
    inner = asynchronous(rounds, tolerance, most_stale, updates)

    def ready(progress: Progress) -> bool:
        others = set(inner.awaited(progress)) - set(progress.away)
        return inner.ready(progress) and (len(progress.waiting) >= buffer or not others)

    return inner._replace(name="buffered_asynchronous", ready=ready)
