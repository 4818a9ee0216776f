"""Scripts: schedules in sequence, from a list of stages or from a generator that chooses each stage."""

import functools
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from fedvi import errors
from fedvi.federation.progress import Progress, Schedule, StageEnd, StagePlace
from fedvi.typing import PRIOR

__all__ = ["Stage", "from_generator", "scripted"]


class Stage(NamedTuple):
    """One schedule, for part of a run and for some of the clients.

    A stage counts visits, turns and the gap from its own beginning. Tasks that its clients still hold
    when it ends (it converged early, or a client was skipped) are answered later: in a turn of the next
    stage if the client has one, otherwise as a late answer, which is folded without a turn.

    Attributes:
      schedule: decides which clients work when; must not be a script.
      over: the clients that take part, in any order; None means all. The prior's worker always does.
    """

    schedule: Schedule
    over: tuple[str, ...] | None = None


def scripted(stages: Sequence[Stage]) -> Schedule:
    """Returns the schedule that goes through stages in order.

    The budget is planned for the turns that all stages of a client together allow.

    Raises:
      ConfigError: there is no stage, or a stage is a script or has no clients. A name in ``over`` that is
        not a client is detected when a run asks for its stage.

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
    # None stands for a client that no stage names.
    rounds = max(_planned(stages, name) for name in (*named, None))

    def stage_at(progress: Progress) -> Stage | None:
        done = len(progress.stages)
        return stages[done] if done < len(stages) else None

    return _script("scripted", rounds, stage_at, len(stages))


def _planned(stages: Sequence[Stage], client: str | None) -> int:
    """Returns the largest number of turns of a client; None stands for one that no stage names."""
    return sum(s.schedule.rounds for s in stages if s.over is None or client in s.over)


def from_generator(
    generate: Callable[[Progress], Generator[Stage, Progress, None]], rounds: int
) -> Schedule:
    """Returns the schedule whose stages a generator yields.

    ``generate`` is called with the progress before the first task. Each stage that it yields is run, and
    it is then sent the progress at that stage's end: public counts, the gap of the stage's last round,
    and which clients were away. Whenever the server asks for the stage, the generator is replayed from
    its beginning with the recorded stage ends, so that a restarted server continues correctly. So its
    stages must depend only on what it is sent, not on a clock, a file or a random number.

    Args:
      generate: a generator function. It must yield its stages one by one; ``yield from`` a list does not
        work, because a list cannot be sent anything.
      rounds: the largest number of turns of any client, at least 1, for which a budget is planned. A
        stage that could exceed it is not begun; the run is then complete.

    Raises:
      ConfigError: ``rounds`` is below 1. During a run: the generator fails, or yields something that is
        not a stage.

    Example, a plug-in of the group ``fedvi.schedules``, or a function that Python passes::

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

    # Cached, since one request asks for the stage several times.
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
        except Exception as error:  # user code can raise anything
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
        # After a stage without a turn the progress is unchanged, so a generator could loop forever.
        return None if too_many or len(ends) > sum(begun.turns) else stage

    # Includes clients removed since; otherwise a replay could differ from the run.
    return _script("from_generator", rounds, lambda now: replay(now.everybody, now.stages))


def _at(clients: tuple[str, ...], end: StageEnd) -> Progress:
    """Returns the progress that a generator is sent; without open tasks, which depend on timing."""
    return Progress(clients, end.visits, end.turns, (), (), end.version, end.gap, end.away)


def _script(
    name: str, rounds: int, stage_at: Callable[[Progress], Stage | None], count: int = 0
) -> Schedule:
    """Returns the schedule that delegates to the current stage; ``count`` stages, 0 if unknown."""

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
        # A stage's end folds its waiting answers, because they were checked against its state.
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
    """Returns the progress as a stage sees it: only its clients, and counts since it began."""
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
                # Not negative: a caller may undo skips since the last fold to look at the state then.
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
    """Lists the clients of a stage, in the order of the study."""
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
