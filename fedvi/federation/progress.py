"""What a schedule may see: counts, versions and the public gap, and nothing computed from data."""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Progress", "Schedule"]


class Progress(NamedTuple):
    """Where a run stands; a function of the public transcript.

    Attributes:
      clients: all clients, in the order of the study.
      visits: how many answers of each client were folded, in the same order.
      open: clients that hold a task.
      waiting: clients whose answer has arrived and is not folded yet, in order of arrival.
      version: the server's version: the number of folds.
      gap: the largest change of a posterior mean over the last completed round, in posterior sds;
        infinite before the first round is complete.
    """

    clients: tuple[str, ...]
    visits: tuple[int, ...]
    open: tuple[str, ...]
    waiting: tuple[str, ...]
    version: int
    gap: float

    @property
    def rounds(self) -> int:
        """How many rounds are complete: every client was folded that often."""
        return min(self.visits)

    def idle(self, client: str) -> bool:
        """Says whether a client neither holds a task nor waits to be folded."""
        return client not in self.open and client not in self.waiting

    def visits_of(self, client: str) -> int:
        """Returns how many answers of one client were folded."""
        return self.visits[self.clients.index(client)]


class Schedule(NamedTuple):
    """Who works when: three pure functions of ``Progress``.

    Attributes:
      name: the function that made it.
      rounds: the largest number of visits to any client: what a budget is planned for.
      select: progress → clients that may be given a task now.
      ready: progress → whether the waiting answers are to be folded now, all together.
      finished: progress → whether the run is complete.
    """

    name: str
    rounds: int
    select: Callable[[Progress], tuple[str, ...]]
    ready: Callable[[Progress], bool]
    finished: Callable[[Progress], bool]
