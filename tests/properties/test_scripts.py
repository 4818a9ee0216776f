"""Scripts, bounded staleness and counted updates hold under every order of requests and silences."""

import functools
import random as public_random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi.federation.progress import Patience
from fedvi.federation.schedules import (
    asynchronous,
    buffered_asynchronous,
    sequential,
    synchronous,
)
from fedvi.federation.script import Stage, from_generator, scripted
from fedvi.privacy import ledger
from fedvi.server.core import protocol
from tests.properties.test_federation import ACTIONS, CLIENTS, Play, make_spec


@functools.cache
def halves():
    return scripted(
        [
            Stage(sequential(1), ("a", "b")),
            Stage(synchronous(2), ("b", "c", "d")),
            Stage(asynchronous(1)),
            Stage(buffered_asynchronous(2, buffer=3, most_stale=1)),
        ]
    )


@functools.cache
def reading():
    """Goes on with those who are there, one round after the other."""

    def script(progress):
        while sum(progress.turns) < 12:
            there = tuple(name for name in progress.clients if name not in progress.away)
            kind = (sequential_once, together_once)[progress.version % 2]
            progress = yield Stage(kind, there or None)

    sequential_once, together_once = sequential(1), synchronous(1)
    return from_generator(script, rounds=5)


@functools.cache
def counted():
    return asynchronous(updates=9, rounds=4, most_stale=2)


# The most tasks that each client may be given, by hand from the stages.
MOST = {
    halves: {"a": 1 + 1 + 2, "b": 1 + 2 + 1 + 2, "c": 2 + 1 + 2, "d": 2 + 1 + 2},
    reading: dict.fromkeys(CLIENTS, 5),
    counted: dict.fromkeys(CLIENTS, 4),
}


class StrictPlay(Play):
    """Notes who was away while it held a task; lets time pass before each request."""

    def __init__(self, spec):
        self.excused = set()
        super().__init__(spec)

    def ask(self, request):
        # Otherwise who is overdue could be away and back within one step.
        self.take(protocol.tick(self.spec, self.state, self.now))
        return super().ask(request)

    def take(self, state):
        self.excused |= {t.task_id for name, t in state.tasks.items() if name in state.away}
        super().take(state)

    def ages(self):
        """Yields the task and the staleness of every answer that was folded."""
        visits = dict.fromkeys(CLIENTS, 0)
        for update in self.state.history:
            for name, age in zip(update.clients, update.staleness, strict=True):
                yield f"{name}/{visits[name]}", age
                visits[name] += 1


def played(schedule, seed, deadline, quorum, actions=100):
    """Plays at random, then lets everybody work to the end."""
    spec = make_spec("sequential", 1, Patience(deadline, quorum))._replace(schedule=schedule)
    play, dice = StrictPlay(spec), public_random.Random(seed)
    for name in CLIENTS:
        play.act("hello", name, 0)
    for _ in range(actions):
        play.act(dice.choice(ACTIONS), dice.choice(CLIENTS), dice.randrange(20))
    if play.state.status == "paused":
        play.act("resume", "a", 0)
    for _ in range(80):
        if play.state.status in protocol.OVER:
            break
        for name in CLIENTS:
            for what in ("hello", "ask", "answer"):
                play.act(what, name, 0)
    return play


@pytest.mark.parametrize("make", MOST)
@settings(max_examples=15)
@given(
    deadline=st.sampled_from([None, 10.0, {"a": 5.0, "c": 30.0}]),
    quorum=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_a_script_ends_and_nobody_is_charged_more_than_was_planned(make, deadline, quorum, seed):
    schedule = make()
    play = played(schedule, seed, deadline, quorum)
    assert play.state.status in ("completed", "failed")
    assert schedule.rounds == max(MOST[make].values())
    for name, most in MOST[make].items():
        # Other bytes for an old task are charged beyond every plan, see `conflict`.
        beside = len(play.beside.get(name, ()))
        assert ledger.reservations(play.state.ledgers[name]) - beside <= most
        assert play.state.visits[name] <= play.state.turns[name] <= most
    if make is halves and play.state.status == "completed":
        left = protocol.present(play.spec, play.state)
        assert {n: play.state.turns[n] for n in left} == {n: MOST[make][n] for n in left}


@pytest.mark.parametrize("buffer", [1, 3])
@settings(max_examples=15)
@given(
    most_stale=st.integers(0, 3),
    deadline=st.sampled_from([None, 10.0]),
    quorum=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_no_answer_of_a_client_that_was_there_is_staler_than_the_bound(
    buffer, most_stale, deadline, quorum, seed
):
    play = played(stale(buffer, most_stale), seed, deadline, quorum, 60)
    assert play.state.status in ("completed", "failed")
    # A removal makes a version, and waits for no answer.
    bound = most_stale + sum(bool(update.removed) for update in play.state.history)
    assert all(age <= bound for task, age in play.ages() if task not in play.excused)


@functools.cache
def stale(buffer, most_stale):
    return buffered_asynchronous(4, buffer=buffer, most_stale=most_stale)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_without_absences_as_many_answers_are_folded_as_were_asked_for(seed):
    spec = make_spec("sequential", 1)._replace(schedule=counted())
    play, dice = StrictPlay(spec), public_random.Random(seed)
    for name in CLIENTS:
        play.act("hello", name, 0)
    while play.state.status == "running":
        play.act(dice.choice(("ask", "answer")), dice.choice(CLIENTS), 0)
        assert sum(play.state.visits.values()) + len(play.state.tasks) <= 9
    assert sum(play.state.visits.values()) == 9
    assert max(play.state.visits.values()) <= 4
