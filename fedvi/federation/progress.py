"""The state of a run that a schedule may see (counts, versions, the public gap), and `Schedule` itself."""

import bisect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["Patience", "Progress", "Schedule", "StageEnd", "StagePlace"]

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Patience(NamedTuple):
    """How long a run waits for a client, and how many clients it needs to continue.

    Attributes:
      deadline_seconds: for one turn of one client: one number for all, or client → number; None, or no
        entry, means no deadline.
      quorum: how many clients must be present before turns of the others may be skipped.
    """

    deadline_seconds: float | Mapping[str, float] | None = None
    quorum: int = 1

    def deadline_of(self, client: str) -> float | None:
        """Returns how many seconds to wait for one turn of a client; None means no deadline."""
        if isinstance(self.deadline_seconds, Mapping):
            return self.deadline_seconds.get(client)
        return self.deadline_seconds


class StageEnd(NamedTuple):
    """The state of a run when a stage of its script ended; a script may read it.

    Attributes:
      visits, turns: of each client, in the order of the study.
      version: of the server.
      gap: of the last round that was completed within the stage; infinite if none was.
      away: clients that were not expected to answer.
    """

    visits: tuple[int, ...]
    turns: tuple[int, ...]
    version: int
    gap: float
    away: tuple[str, ...]


class StagePlace(NamedTuple):
    """The position of a script, for display.

    Attributes:
      number: of the stage, from 1.
      stages: how many there are; 0 if unknown, as for a generator.
      schedule: name of the stage's schedule.
      round: complete rounds of its clients since it began.
      rounds: the largest number of its rounds.
    """

    number: int
    stages: int
    schedule: str
    round: int
    rounds: int

    @property
    def words(self) -> str:
        """The position in words.

        >>> StagePlace(2, 3, "buffered_asynchronous", 4, 10).words
        'stage 2 of 3, buffered asynchronous, round 4 of 10'
        """
        of = f" of {self.stages}" if self.stages else ""
        kind = self.schedule.replace("_", " ")
        return f"stage {self.number}{of}, {kind}, round {self.round} of {self.rounds}"


class Progress(NamedTuple):
    """The state of a run, as a function of the public transcript.

    Attributes:
      clients: all clients that take part, in the order of the study.
      visits: how many answers of each client were folded, in the same order.
      turns: how many turns of each client are over, answered or skipped; never below ``visits``.
      open: clients that hold a task.
      waiting: clients whose answer has arrived but is not folded yet, in order of arrival.
      version: the server's version: the number of folds.
      gap: the largest move of a posterior mean over the last completed round, or by how much steps
        missed their aim where that is more, in posterior sds;
        infinite before the first round (of the run, or of a stage of its script) is complete.
      away: clients that are not expected to answer until they are heard from again.
      started: client of ``open`` → the version that its task was computed from.
      stages: the ends of a script's completed stages, in order.
      declared: all clients of the study, including those removed from the run, which appear in no other
        field but ``stages``; empty if equal to ``clients``.
    """

    clients: tuple[str, ...]
    visits: tuple[int, ...]
    turns: tuple[int, ...]
    open: tuple[str, ...]
    waiting: tuple[str, ...]
    version: int
    gap: float
    away: tuple[str, ...] = ()
    started: Mapping[str, int] = _NOTHING
    stages: tuple[StageEnd, ...] = ()
    declared: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """The number of complete rounds: the least number of turns of any client."""
        return min(self.turns, default=0)

    @property
    def everybody(self) -> tuple[str, ...]:
        """All clients of the study, in its order; ``stages`` holds counts for all of these."""
        return self.declared or self.clients

    def idle(self, client: str) -> bool:
        """Whether a client neither holds a task nor has an answer waiting to be folded."""
        return client not in self.open and client not in self.waiting

    def turns_of(self, client: str) -> int:
        """Returns how many turns of one client are over."""
        return self.turns[self.clients.index(client)]


def _whole(progress: Progress) -> Progress:
    return progress


class Schedule(NamedTuple):
    """A schedule decides which clients work when, by pure functions of ``Progress``.

    A client may be selected only while fewer than ``rounds`` of its turns are over. A client that holds
    a task and has not lost its turn must be awaited, unless it is away. So no client gets more than
    ``rounds`` tasks: between two tasks one of its turns ends, by an answer or a skip.

    Attributes:
      name: the function that made it.
      rounds: the largest number of turns of any client, for which a budget is planned. The prior's
        worker, which reads no record, may have more.
      select: progress → clients that may be given a task now.
      ready: progress → whether to fold all waiting answers now.
      finished: progress → whether the run is complete.
      awaited: progress → clients whose turn it is and that have not answered. Their deadlines run, and
        the turn of a client that is away is skipped as soon as it is awaited.
      view: progress → the progress as the current stage of a script sees it; unchanged without a script.
      ending: progress → None, or once a script's stage is over, the clients whose turns end with it
        because they hold a task.
      place: progress → the current stage of a script; None without a script, or once it is over.
      barrier: whether it awaits the clients with the fewest turns (below ``rounds``) that have not
        answered; selects the idle ones among them; is ready once none is left; and finishes by complete
        rounds and the gap alone. A server can then count, without asking the schedule at each request.
    """

    name: str
    rounds: int
    select: Callable[[Progress], tuple[str, ...]]
    ready: Callable[[Progress], bool]
    finished: Callable[[Progress], bool]
    awaited: Callable[[Progress], tuple[str, ...]]
    view: Callable[[Progress], Progress] = _whole
    ending: Callable[[Progress], tuple[str, ...] | None] = lambda progress: None
    place: Callable[[Progress], StagePlace | None] = lambda progress: None
    barrier: bool = False

    def first_fold(self, clients: tuple[str, ...]) -> int:
        """Returns how many answers the first fold holds, if the selected clients answer in order.

        >>> from fedvi.federation.schedules import sequential, synchronous
        >>> synchronous(rounds=5).first_fold(("north", "south"))
        2
        >>> sequential(rounds=5).first_fold(("north", "south"))
        1
        """
        none = (0,) * len(clients)
        start = Progress(clients, none, none, (), (), 0, math.inf)
        asked = self.select(start)
        started = dict.fromkeys(asked, 0)

        def is_folded(count: int) -> bool:
            waiting, left = asked[:count], asked[count:]
            return self.ready(start._replace(open=left, waiting=waiting, started=started))

        # If a fold waits at some count it waits at any smaller one, so bisection works.
        return 1 + bisect.bisect_left(range(1, max(1, len(asked))), True, key=is_folded)
