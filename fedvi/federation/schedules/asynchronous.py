"""Every client at its own pace; each answer is folded when it arrives, within a bound on staleness."""

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

    Every client answers exactly ``rounds`` times, or all of them together ``updates`` times, so that
    its privacy cost is known beforehand; fast clients finish early, or do more of the work. An answer
    that was computed from an older posterior is applied as a change of that client's own factor.

    With ``most_stale``, the answer of a client that was not away since it was given its task is
    folded at most so many versions after the one that it was computed from. For nothing is folded
    while such a client holds a task of that age: others' answers wait for it, and are folded with
    it. A fold makes its task one version older, so it never gets older than that, and an answer that
    waits is in the next fold. With 0, answers are folded together that started from the same version.
    The late answer of a client that was away is folded whatever its age.

    Args:
      rounds: visits to each client, at least 1; left out, only ``updates`` bounds them.
      tolerance: ends once every client has been folded once more and the gap, in posterior sds, is
        below it; 0 never does.
      most_stale: how many versions old an answer may be, at least 0; None folds whatever arrives.
      updates: ends after so many turns of all clients together, at least 1, and hands out no more
        tasks than that. The prior's worker has a turn to every one of each client's, on average,
        which is not counted.

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
        """How many turns are over, of all that ``updates`` counts."""
        pairs = zip(progress.clients, progress.turns, strict=True)
        return sum(turns for client, turns in pairs if client != PRIOR)

    def room(progress: Progress) -> float | int:
        """How many more tasks ``updates`` leaves room for."""
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
        # Nobody waits for a client that is away, until those are all that are missing.
        return tuple([client for client in missing if client not in away] or missing)

    def holds_back(progress: Progress) -> bool:
        """Whether a fold would make somebody's answer staler than it may be."""
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
