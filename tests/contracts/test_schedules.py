"""What every schedule must satisfy; a schedule listed in its folder is tested here at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.federation import schedules
from fedvi.federation.progress import Progress

CLIENTS = ("a", "b", "c")

pytestmark = pytest.mark.parametrize("kind", schedules.__all__)


def play(schedule, seed: int):
    """Lets clients take and answer tasks in random order; yields every progress, then ends."""
    generator = np.random.default_rng(seed)
    progress = Progress(CLIENTS, (0, 0, 0), (0, 0, 0), (), (), 0, float("inf"))
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
            progress = progress._replace(open=(*held, name))
        if schedule.ready(progress):
            visits = tuple(
                count + (client in progress.waiting)
                for client, count in zip(CLIENTS, progress.visits, strict=True)
            )
            progress = progress._replace(
                visits=visits, turns=visits, waiting=(), version=progress.version + 1
            )
    raise AssertionError("the schedule does not end")


@given(rounds=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_every_client_is_folded_as_often_as_planned(kind, rounds, seed):
    schedule = getattr(schedules, kind)(rounds)
    *_, last = play(schedule, seed)
    assert last.visits == (rounds,) * 3
    assert schedule.rounds == rounds


@given(seed=st.integers(0, 2**32))
def test_a_client_that_is_busy_is_offered_nothing(kind, seed):
    schedule = getattr(schedules, kind)(2)
    for progress in play(schedule, seed):
        assert all(progress.idle(name) for name in schedule.select(progress))


def test_the_public_gap_ends_a_run_early(kind):
    schedule = getattr(schedules, kind)(10, tolerance=0.1)
    still = Progress(CLIENTS, (2, 2, 2), (2, 2, 2), (), (), 6, 0.2)
    assert not schedule.finished(still)
    assert schedule.finished(still._replace(gap=0.05))


def test_nothing_is_ready_before_an_answer_came(kind):
    schedule = getattr(schedules, kind)(2)
    assert not schedule.ready(Progress(CLIENTS, (0, 0, 0), (0, 0, 0), CLIENTS, (), 0, float("inf")))


@given(rounds=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_somebody_is_awaited_until_the_end_and_nobody_whose_answer_is_there(kind, rounds, seed):
    schedule = getattr(schedules, kind)(rounds)
    for progress in play(schedule, seed):
        awaited = schedule.awaited(progress)
        assert not set(awaited) & set(progress.waiting)
        assert bool(awaited) != schedule.finished(progress)


@given(rounds=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_a_run_goes_on_if_turns_are_skipped_as_soon_as_they_are_awaited(kind, rounds, seed):
    """One client is away throughout; the others have all their turns, and so the run ends."""
    schedule = getattr(schedules, kind)(rounds)
    generator = np.random.default_rng(seed)
    away = CLIENTS[generator.integers(3)]
    progress = Progress(CLIENTS, (0, 0, 0), (0, 0, 0), (), (), 0, float("inf"), (away,))
    for _ in range(1_000):
        if schedule.ready(progress):
            visits = [
                n + (c in progress.waiting) for c, n in zip(CLIENTS, progress.visits, strict=True)
            ]
            turns = [
                n + (c in progress.waiting) for c, n in zip(CLIENTS, progress.turns, strict=True)
            ]
            progress = progress._replace(visits=tuple(visits), turns=tuple(turns), waiting=())
        elif schedule.finished(progress):
            break
        elif away in schedule.awaited(progress):
            turns = tuple(n + (c == away) for c, n in zip(CLIENTS, progress.turns, strict=True))
            progress = progress._replace(turns=turns)
        else:
            offered = [name for name in schedule.select(progress) if name != away]
            name = offered[generator.integers(len(offered))]
            progress = progress._replace(waiting=(*progress.waiting, name))
    assert progress.turns == (rounds,) * 3
    assert progress.visits == tuple(0 if name == away else rounds for name in CLIENTS)
