"""Schedules one after the other: a list of stages, or a generator that decides on each when it begins."""

import functools
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from fedvi import errors
from fedvi.federation.progress import Progress, Schedule, StageEnd, StagePlace
from fedvi.typing import PRIOR

__all__ = ["Stage", "from_generator", "scripted"]


class Stage(NamedTuple):
    """One schedule, for a time and for some of the clients.

    A stage counts visits, turns and the gap from its own beginning. What its clients still hold when
    it is over (it converged early, or somebody was skipped) is answered later: in a turn of the next
    stage for those that have one, else as a late answer, folded without a turn.

    Attributes:
      schedule: who works when; no script itself.
      over: the clients that take part, in any order; None: all. The prior's worker always does.
    """

    schedule: Schedule
    over: tuple[str, ...] | None = None


def scripted(stages: Sequence[Stage]) -> Schedule:
    """Returns the schedule that goes through stages in order.

    No client has more turns than all of its stages together give it: that is what a budget is
    planned for.

    Raises:
      ConfigError: there is no stage, or one is a script, or for no clients. A name in ``over`` that
        is no client is found out when a run asks for its stage.

    >>> from fedvi.federation.schedules import asynchronous, sequential
    >>> first = Stage(sequential(rounds=2), over=("north", "south"))
    >>> scripted([first, Stage(asynchronous(updates=20))]).rounds
    22
    """
    if not stages:
        raise errors.ConfigError(
            "schedule.stages is empty, expected at least one stage",
            'write e.g. stages = [{ kind = "sequential", rounds = 2 }]',
        )
    for stage in stages:
        _check(stage)
    named = {name for stage in stages for name in stage.over or ()}
    # The second is what a client has that is in no list.
    rounds = max(_planned(stages, name) for name in (*named, None))

    def stage_at(progress: Progress) -> Stage | None:
        done = len(progress.stages)
        return stages[done] if done < len(stages) else None

    return _script("scripted", rounds, stage_at, len(stages))


def _planned(stages: Sequence[Stage], client: str | None) -> int:
    """Returns the largest number of turns of a client, or of any that no stage names."""
    return sum(s.schedule.rounds for s in stages if s.over is None or client in s.over)


def from_generator(
    generate: Callable[[Progress], Generator[Stage, Progress, None]], rounds: int
) -> Schedule:
    """Returns the schedule whose stages a generator yields.

    ``generate`` is called with the progress before the first task. Each stage that it yields is run,
    and it is sent the progress at that stage's end: public counts, the gap of the stage's last round,
    who was away. It is run from its beginning whenever the server asks for the stage, with what was
    recorded at the end of each stage, so that a server that was restarted goes on where it was: what
    it yields must follow from what it is sent, and from nothing else such as a clock, a file or a
    random number.

    Args:
      generate: a generator function. It yields its stages one by one, for a list, as in
        ``yield from``, can be sent nothing.
      rounds: the largest number of turns of any client, at least 1, for which a budget is planned.
        A stage that could take a client beyond it is not begun: the run is complete then.

    Raises:
      ConfigError: ``rounds`` is below 1. While a run goes on: the generator fails, or yields what
        is no stage.

    A file ``my_lab/schedules.py``, named by ``kind = "my_lab.schedules:mine"``::

        def mine():
            def script(progress):
                progress = yield Stage(sequential(rounds=2), over=("north", "south"))
                while progress.gap > 0.01:
                    progress = yield Stage(synchronous(rounds=1))

            return from_generator(script, rounds=12)
    """
    if rounds < 1:
        raise errors.ConfigError(
            f"rounds is {rounds}, expected at least 1",
            "it is the largest number of turns of any client over the whole script",
        )

    # A request asks for the stage several times.
    @functools.lru_cache(maxsize=2)
    def replay(clients: tuple[str, ...], ends: tuple[StageEnd, ...]) -> Stage | None:
        nothing = (0,) * len(clients)
        begun = StageEnd(nothing, nothing, 0, float("inf"), ())
        try:
            running = generate(_at(clients, begun))
            stage = next(running)
            for end in ends:
                begun, stage = end, running.send(_at(clients, end))
        except StopIteration:
            return None
        except errors.FedviError:
            raise
        except Exception as error:  # whatever a generator of the user's does
            raise errors.ConfigError(
                f"the script's generator failed at stage {len(ends)} with "
                f"{type(error).__name__}: {error}",
                "correct it, and start the server again: the run goes on where it is",
            ) from error
        if not isinstance(stage, Stage):
            raise errors.ConfigError(
                f"the script's generator yielded {type(stage).__name__}, expected a Stage",
                "write e.g. `yield Stage(sequential(rounds=1))`",
            )
        _check(stage)
        members = (name for name in _members(stage, clients) if name != PRIOR)
        had = max(begun.turns[clients.index(name)] for name in members)
        too_many = had + stage.schedule.rounds > rounds
        if too_many and not ends:
            raise errors.ConfigError(
                f"the script's first stage has {stage.schedule.rounds} turns for a client, expected at "
                f"most {rounds}, for which its budget is planned",
                "declare more rounds, or give the stage fewer (`rounds` beside `updates`)",
            )
        # A stage without a turn teaches a generator nothing: it could yield such stages for ever.
        return None if too_many or len(ends) > sum(begun.turns) else stage

    # Of all clients, also of those removed since: else a replay could take another way than the run did.
    return _script("from_generator", rounds, lambda now: replay(now.everybody, now.stages))


def _at(clients: tuple[str, ...], end: StageEnd) -> Progress:
    """Returns what a generator is sent: nobody's task, which may be open by chance of timing."""
    return Progress(clients, end.visits, end.turns, (), (), end.version, end.gap, end.away)


def _script(
    name: str, rounds: int, stage_at: Callable[[Progress], Stage | None], count: int = 0
) -> Schedule:
    """Returns the schedule that is, at any time, that of one stage of so many; 0: nobody knows."""

    def select(progress: Progress) -> tuple[str, ...]:
        stage = stage_at(progress)
        within = None if stage is None else _within(stage, progress)
        if stage is None or within is None or _is_deserted(within):
            return ()
        return stage.schedule.select(within)

    def ready(progress: Progress) -> bool:
        stage = stage_at(progress)
        if stage is None or not progress.waiting:
            return False
        within = _within(stage, progress)
        # With a stage ends what waits for it: an answer was tried against the state that it is in.
        return _is_over(stage, within) or stage.schedule.ready(within)

    def finished(progress: Progress) -> bool:
        return stage_at(progress) is None

    def awaited(progress: Progress) -> tuple[str, ...]:
        stage = stage_at(progress)
        within = None if stage is None else _within(stage, progress)
        if stage is None or within is None or _is_deserted(within):
            return ()
        return stage.schedule.awaited(within)

    def view(progress: Progress) -> Progress:
        stage = stage_at(progress)
        return progress if stage is None else _within(stage, progress)

    def ending(progress: Progress) -> tuple[str, ...] | None:
        stage = stage_at(progress)
        if stage is None:
            return None
        within = _within(stage, progress)
        if not _is_over(stage, within):
            return None
        return tuple(name for name in within.open if within.turns_of(name) < stage.schedule.rounds)

    def place(progress: Progress) -> StagePlace | None:
        stage = stage_at(progress)
        if stage is None:
            return None
        done, kind = _within(stage, progress).rounds, stage.schedule
        return StagePlace(len(progress.stages) + 1, count, kind.name, done, kind.rounds)

    return Schedule(name, rounds, select, ready, finished, awaited, view, ending, place)


def _is_deserted(within: Progress) -> bool:
    """Whether all clients of a stage were removed from the run."""
    return all(name == PRIOR for name in within.clients)


def _is_over(stage: Stage, within: Progress) -> bool:
    return _is_deserted(within) or stage.schedule.finished(within)


def _within(stage: Stage, progress: Progress) -> Progress:
    """Returns what a stage sees: its clients alone, and counts since it began."""
    members = tuple(
        name for name in _members(stage, progress.everybody) if name in progress.clients
    )
    visits = dict(zip(progress.clients, progress.visits, strict=True))
    turns = dict(zip(progress.clients, progress.turns, strict=True))
    if progress.stages:
        end = progress.stages[-1]
        for name, before, over in zip(progress.everybody, end.visits, end.turns, strict=True):
            if name in visits:
                visits[name] -= before
                # Skips since the last fold may be taken back, to see how it stood then.
                turns[name] = max(0, turns[name] - over)
    inside = set(members)
    return progress._replace(
        clients=members,
        visits=tuple(visits[name] for name in members),
        turns=tuple(turns[name] for name in members),
        open=tuple(name for name in progress.open if name in inside),
        waiting=tuple(name for name in progress.waiting if name in inside),
        away=tuple(name for name in progress.away if name in inside),
        stages=(),
        declared=(),
    )


def _members(stage: Stage, clients: tuple[str, ...]) -> tuple[str, ...]:
    """Lists who takes part, in the order of the study."""
    if stage.over is None:
        return clients
    over = set(stage.over)
    for name in over.difference(clients):
        raise errors.ConfigError(
            f"a stage is over {name!r}, which is no client of the study",
            errors.did_you_mean(name, clients),
        )
    return tuple(name for name in clients if name == PRIOR or name in over)


def _check(stage: Stage) -> None:
    if stage.schedule.ending is not Schedule._field_defaults["ending"]:
        raise errors.ConfigError(
            f"a stage's schedule is {stage.schedule.name!r}, a script, expected a single schedule",
            "write the stages of both in one list",
        )
    if stage.over is not None and not stage.over:
        raise errors.ConfigError(
            "a stage is over no clients, expected at least one name",
            "leave `over` out for a stage of all clients",
        )
