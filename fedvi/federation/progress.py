"""What a schedule may see: counts, versions and the public gap, and nothing computed from data."""

import bisect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["Patience", "Progress", "Schedule", "StageEnd", "StagePlace"]

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Patience(NamedTuple):
    """How long a run waits for a client, and how many clients it goes on with.

    Attributes:
      deadline_seconds: for one turn of one client, the same for all, or client → its own; None, or
        no entry, waits for ever.
      quorum: how many clients must be there for the turns of the others to be skipped.
    """

    deadline_seconds: float | Mapping[str, float] | None = None
    quorum: int = 1

    def deadline_of(self, client: str) -> float | None:
        """Returns for how many seconds one turn of a client is waited for; None: for ever."""
        if isinstance(self.deadline_seconds, Mapping):
            return self.deadline_seconds.get(client)
        return self.deadline_seconds


class StageEnd(NamedTuple):
    """Where a run stood when a stage of its script ended: the cursor, and what a script may read.

    Attributes:
      visits, turns: of each client, in the order of the study.
      version: of the server.
      gap: of the last round that was completed within the stage; infinite if none was.
      away: clients that nobody expected an answer of.
    """

    visits: tuple[int, ...]
    turns: tuple[int, ...]
    version: int
    gap: float
    away: tuple[str, ...]


class StagePlace(NamedTuple):
    """Where a script is, to be shown.

    Attributes:
      number: of the stage, from 1.
      stages: how many there are; 0 if nobody knows, as of a generator's.
      schedule: of the stage, by name.
      round: complete rounds of its clients since it began.
      rounds: the largest number of them.
    """

    number: int
    stages: int
    schedule: str
    round: int
    rounds: int

    @property
    def words(self) -> str:
        """Says it in words.

        >>> StagePlace(2, 3, "buffered_asynchronous", 4, 10).words
        'stage 2 of 3, buffered asynchronous, round 4 of 10'
        """
        of = f" of {self.stages}" if self.stages else ""
        kind = self.schedule.replace("_", " ")
        return f"stage {self.number}{of}, {kind}, round {self.round} of {self.rounds}"


class Progress(NamedTuple):
    """Where a run stands; a function of the public transcript.

    Attributes:
      clients: all clients that take part, in the order of the study.
      visits: how many answers of each client were folded, in the same order.
      turns: how many turns of each client are over, answered or skipped; never below ``visits``.
      open: clients that hold a task.
      waiting: clients whose answer has arrived and is not folded yet, in order of arrival.
      version: the server's version: the number of folds.
      gap: the largest change of a posterior mean over the last completed round, in posterior sds;
        infinite before the first round is complete, of the run or of a stage of its script.
      away: clients that nobody expects an answer of until they are heard of again.
      started: client of ``open`` → the version that its task was computed from.
      stages: the ends of a script's stages that are over, in order.
      declared: all clients of the study, also those that were removed from the run, who are in no other
        field but ``stages``; empty if that is ``clients``.
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
        """How many rounds are complete: every client had its turn that often."""
        return min(self.turns, default=0)

    @property
    def everybody(self) -> tuple[str, ...]:
        """All clients of the study, in its order; the counts of ``stages`` are of these."""
        return self.declared or self.clients

    def idle(self, client: str) -> bool:
        """Says whether a client neither holds a task nor waits to be folded."""
        return client not in self.open and client not in self.waiting

    def turns_of(self, client: str) -> int:
        """Returns how many turns of one client are over."""
        return self.turns[self.clients.index(client)]


def _whole(progress: Progress) -> Progress:
    return progress


def _never(progress: Progress) -> tuple[str, ...] | None:
    return None


def _nowhere(progress: Progress) -> StagePlace | None:
    return None


class Schedule(NamedTuple):
    """Who works when: pure functions of ``Progress``.

    A client may be selected only while fewer than ``rounds`` of its turns are over, and whoever
    holds a task without having lost its turn is awaited, were it not away. So no client is given
    more than ``rounds`` tasks: between two of them a turn of its ends, by an answer or a skip.

    Attributes:
      name: the function that made it.
      rounds: the largest number of turns of any client: what a budget is planned for. The prior's
        worker, which reads no record, may have more.
      select: progress → clients that may be given a task now.
      ready: progress → whether the waiting answers are to be folded now, all together.
      finished: progress → whether the run is complete.
      awaited: progress → clients whose turn it is and who did not answer: theirs are the clocks
        that run, and the turn of one that is away is skipped as soon as it is among them.
      view: progress → what the stage that a script is at sees of it; everything without a script.
      ending: progress → None, or once a script's stage is over, the clients whose turns end with
        it, for they hold a task.
      place: progress → the stage that a script is at; None without a script, or once it is over.
      barrier: whether it awaits those clients with the fewest turns that did not answer, while that is
        below ``rounds``; selects those of them that are idle; is ready once none is left; and is finished
        by complete rounds and the gap alone. A server counts then, and does not ask at each request.
    """

    name: str
    rounds: int
    select: Callable[[Progress], tuple[str, ...]]
    ready: Callable[[Progress], bool]
    finished: Callable[[Progress], bool]
    awaited: Callable[[Progress], tuple[str, ...]]
    view: Callable[[Progress], Progress] = _whole
    ending: Callable[[Progress], tuple[str, ...] | None] = _never
    place: Callable[[Progress], StagePlace | None] = _nowhere
    barrier: bool = False

    def first_fold(self, clients: tuple[str, ...]) -> int:
        """Returns how many clients the first fold holds, if those that are asked answer in turn.

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

        # Who waits for some waits for fewer, too: halved, since there may be many clients.
        return 1 + bisect.bisect_left(range(1, max(1, len(asked))), True, key=is_folded)
