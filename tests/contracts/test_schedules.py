"""What every schedule must satisfy; a schedule listed in its folder is tested here at once."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.federation import schedules
from fedvi.federation.progress import Progress, StageEnd
from fedvi.federation.script import Stage, from_generator, scripted

CLIENTS = ("a", "b", "c")
START = Progress(CLIENTS, (0, 0, 0), (0, 0, 0), (), (), 0, float("inf"))


def one_stage_a_round(rounds, **settings):
    kinds = [getattr(schedules, kind) for kind in schedules.__all__]
    return [Stage(kinds[index % len(kinds)](1, **settings)) for index in range(rounds)]


def generated(rounds, **settings):
    stages = one_stage_a_round(rounds, **settings)

    def script(progress):
        for stage in stages:
            _ = yield stage  # a list, as of `yield from`, can be sent nothing

    return from_generator(script, rounds)


MADE = {kind: getattr(schedules, kind) for kind in schedules.__all__} | {
    "scripted": lambda rounds, **settings: scripted(one_stage_a_round(rounds, **settings)),
    "from_generator": generated,
}

# Made once: their functions are pure, and type checks of functions within functions take their time.
pytestmark = pytest.mark.parametrize(
    "make", [functools.cache(make) for make in MADE.values()], ids=list(MADE)
)


def is_over(schedule, progress) -> bool:
    """Whether a run, or the stage that it is at, is complete."""
    return schedule.finished(progress) or schedule.ending(progress) is not None


def counted(counts, names):
    return tuple(n + (c in names) for c, n in zip(CLIENTS, counts, strict=True))


def settled(schedule, progress):
    """Folds, and goes on to the next stage, as long as there is something to do."""
    while not schedule.finished(progress):
        if schedule.ready(progress):
            progress = progress._replace(
                visits=counted(progress.visits, progress.waiting),
                turns=counted(progress.turns, progress.waiting),
                waiting=(),
                version=progress.version + 1,
            )
        elif (holding := schedule.ending(progress)) is not None:
            turns = counted(progress.turns, holding)
            end = StageEnd(progress.visits, turns, progress.version, progress.gap, progress.away)
            progress = progress._replace(turns=turns, stages=(*progress.stages, end))
        else:
            break
    return progress


def play(schedule, seed: int):
    """Lets clients take and answer tasks in random order; yields every progress, then ends."""
    generator = np.random.default_rng(seed)
    progress = settled(schedule, START)
    for _ in range(1_000):
        yield progress
        if schedule.finished(progress):
            return
        offered, held = schedule.select(progress), progress.open
        assert offered or held, "nobody may work and nobody does"
        if held and (not offered or generator.uniform() < 0.5):
            name = held[generator.integers(len(held))]
            rest = tuple(other for other in held if other != name)
            progress = progress._replace(open=rest, waiting=(*progress.waiting, name))
        else:
            name = offered[generator.integers(len(offered))]
            started = {**progress.started, name: progress.version}
            progress = progress._replace(open=(*held, name), started=started)
        progress = settled(schedule, progress)
    raise AssertionError("the schedule does not end")


@given(rounds=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_every_client_is_folded_as_often_as_planned(make, rounds, seed):
    schedule = make(rounds)
    *_, last = play(schedule, seed)
    assert last.visits == (rounds,) * 3
    assert schedule.rounds == rounds


@given(seed=st.integers(0, 2**32))
def test_a_client_that_is_busy_is_offered_nothing(make, seed):
    schedule = make(2)
    for progress in play(schedule, seed):
        assert all(progress.idle(name) for name in schedule.select(progress))


def test_the_public_gap_ends_a_run_early(make):
    schedule = make(10, tolerance=0.1)
    still = Progress(CLIENTS, (2, 2, 2), (0, 0, 0), (), (), 6, 0.2)
    assert not is_over(schedule, still)
    assert is_over(schedule, still._replace(gap=0.05))


def test_nothing_is_ready_before_an_answer_came(make):
    schedule = make(2)
    assert not schedule.ready(START._replace(open=CLIENTS, started=dict.fromkeys(CLIENTS, 0)))


@given(rounds=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_somebody_is_awaited_until_the_end_and_nobody_whose_answer_is_there(make, rounds, seed):
    schedule = make(rounds)
    for progress in play(schedule, seed):
        awaited = schedule.awaited(progress)
        assert not set(awaited) & set(progress.waiting)
        assert bool(awaited) != schedule.finished(progress)


@given(rounds=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_who_holds_a_task_and_lost_no_turn_is_awaited(make, rounds, seed):
    """That is how an answer in its turn is told from a late one."""
    schedule = make(rounds)
    for progress in play(schedule, seed):
        assert set(progress.open) <= set(schedule.awaited(progress))


@given(rounds=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_a_run_goes_on_if_turns_are_skipped_as_soon_as_they_are_awaited(make, rounds, seed):
    """One client is away throughout; the others have all their turns, and so the run ends."""
    schedule = make(rounds)
    generator = np.random.default_rng(seed)
    away = CLIENTS[generator.integers(3)]
    progress = START._replace(away=(away,))
    for _ in range(1_000):
        progress = settled(schedule, progress)
        if schedule.finished(progress):
            break
        if away in schedule.awaited(progress):
            progress = progress._replace(turns=counted(progress.turns, (away,)))
        else:
            offered = [name for name in schedule.select(progress) if name != away]
            name = offered[generator.integers(len(offered))]
            progress = progress._replace(waiting=(*progress.waiting, name))
    assert progress.turns == (rounds,) * 3
    assert progress.visits == tuple(0 if name == away else rounds for name in CLIENTS)
