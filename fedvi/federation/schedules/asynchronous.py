"""Clients work at their own pace; each answer is folded on arrival, within a bound on staleness."""

import math

from fedvi import errors
from fedvi.federation.progress import Progress, Schedule
from fedvi.federation.schedules.checks import check_count, check_settings
from fedvi.typing import PRIOR

__all__ = ["asynchronous"]


def asynchronous(
    rounds: int | None = None,
    tolerance: float | int = 0.0,
    most_stale: int | None = None,
    updates: int | None = None,
) -> Schedule:
    """Returns the schedule without barriers.

    Every client answers exactly ``rounds`` times, or all clients together ``updates`` times, so that
    privacy costs are known in advance. Fast clients finish early, or do more of the work. An answer
    that was computed from an older posterior is applied as a change of that client's own factor.

    With ``most_stale``, the answer of a client that has not been away since it got its task is folded at
    most that many versions after the one it was computed from. While such a client holds a task of that
    age, nothing is folded: other answers wait for it, and are folded with it. Each fold ages a task by
    one version, so no task exceeds the bound, and a waiting answer is in the next fold. With 0, only
    answers that started from the same version are folded together. A late answer of a client that was
    away is folded at any age.

    Args:
      rounds: visits to each client, at least 1; by default only ``updates`` bounds them.
      tolerance: the run ends once every client has been folded once more and the gap, in posterior sds,
        is below it; with 0 it never does.
      most_stale: how many versions old an answer may be, at least 0; None sets no bound.
      updates: the run ends after this number of turns of all clients together, at least 1, and hands out
        no more tasks. Turns of the prior's worker, on average one per turn of each client, do not count.

    Raises:
      ConfigError: a setting is out of its range, or neither ``rounds`` nor ``updates`` is given.
    """
    if rounds is None and updates is None:
        raise errors.ConfigError(
            "schedule.rounds is missing, expected `rounds` or `updates`",
            "without either the schedule could run for ever: add `rounds = …`",
        )
    most = updates if rounds is None else rounds
    assert most is not None
    if updates is not None:
        check_count("updates", updates, 1, "it counts the answers of all clients together")
    check_settings(most, tolerance)
    if most_stale is not None:
        check_count("most_stale", most_stale, 0, "it counts versions; leave it out for no bound")

    def spent(progress: Progress) -> int:
        """How many of the turns that ``updates`` counts are over."""
        pairs = zip(progress.clients, progress.turns, strict=True)
        return sum(turns for client, turns in pairs if client != PRIOR)

    def room(progress: Progress) -> float | int:
        """How many more tasks ``updates`` allows."""
        if updates is None:
            return math.inf
        busy = {*progress.open, *progress.waiting} - {PRIOR}
        return updates - spent(progress) - len(busy)

    def unfinished(progress: Progress) -> tuple[str, ...]:
        busy, left = {*progress.open, *progress.waiting}, room(progress)
        found = []
        for client, turns in zip(progress.clients, progress.turns, strict=True):
            if updates is not None and client == PRIOR:
                has_work = turns * (len(progress.clients) - 1) <= spent(progress)
            else:
                has_work = left > 0 or client in busy
            if has_work and turns < most:
                found.append(client)
        return tuple(found)

    def select(progress: Progress) -> tuple[str, ...]:
        busy = {*progress.open, *progress.waiting}
        return tuple(client for client in unfinished(progress) if client not in busy)

    def awaited(progress: Progress) -> tuple[str, ...]:
        if finished(progress):
            return ()
        answered, away = set(progress.waiting), set(progress.away)
        missing = [client for client in unfinished(progress) if client not in answered]
        # Clients that are away are awaited only if no others are missing.
        return tuple([client for client in missing if client not in away] or missing)

    def holds_back(progress: Progress) -> bool:
        """Whether a fold would make an outstanding answer too stale."""
        if most_stale is None:
            return False
        oldest = progress.version - most_stale
        return any(
            client in progress.open and progress.started[client] <= oldest
            for client in unfinished(progress)
            if client not in progress.away
        )

    def ready(progress: Progress) -> bool:
        return bool(progress.waiting) and not holds_back(progress)

    def finished(progress: Progress) -> bool:
        if progress.gap < tolerance or (updates is not None and spent(progress) >= updates):
            return True
        pairs = zip(progress.clients, progress.turns, strict=True)
        return all(turns >= most or (updates and client == PRIOR) for client, turns in pairs)

    return Schedule("asynchronous", most, select, ready, finished, awaited)
