"""What a schedule may see: counts, versions and the public gap, and nothing computed from data."""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Patience", "Progress", "Schedule"]


class Patience(NamedTuple):
    """How long a run waits for a client, and how many clients it goes on with.

    Attributes:
      deadline_seconds: for one turn of one client; None waits for ever.
      quorum: how many clients must be there for the turns of the others to be skipped.
    """

    deadline_seconds: float | None = None
    quorum: int = 1


class Progress(NamedTuple):
    """Where a run stands; a function of the public transcript.

    Attributes:
      clients: all clients, in the order of the study.
      visits: how many answers of each client were folded, in the same order.
      turns: how many turns of each client are over, answered or skipped; never below ``visits``.
      open: clients that hold a task.
      waiting: clients whose answer has arrived and is not folded yet, in order of arrival.
      version: the server's version: the number of folds.
      gap: the largest change of a posterior mean over the last completed round, in posterior sds;
        infinite before the first round is complete.
      away: clients that nobody expects an answer of until they are heard of again.
    """

    clients: tuple[str, ...]
    visits: tuple[int, ...]
    turns: tuple[int, ...]
    open: tuple[str, ...]
    waiting: tuple[str, ...]
    version: int
    gap: float
    away: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds are complete: every client had its turn that often."""
        return min(self.turns)

    def idle(self, client: str) -> bool:
        """Says whether a client neither holds a task nor waits to be folded."""
        return client not in self.open and client not in self.waiting

    def turns_of(self, client: str) -> int:
        """Returns how many turns of one client are over."""
        return self.turns[self.clients.index(client)]


class Schedule(NamedTuple):
    """Who works when: four pure functions of ``Progress``.

    Attributes:
      name: the function that made it.
      rounds: the largest number of turns of any client: what a budget is planned for.
      select: progress → clients that may be given a task now.
      ready: progress → whether the waiting answers are to be folded now, all together.
      finished: progress → whether the run is complete.
      awaited: progress → clients whose turn it is and who did not answer: theirs are the clocks
        that run, and the turn of one that is away is skipped as soon as it is among them.
    """

    name: str
    rounds: int
    select: Callable[[Progress], tuple[str, ...]]
    ready: Callable[[Progress], bool]
    finished: Callable[[Progress], bool]
    awaited: Callable[[Progress], tuple[str, ...]]
