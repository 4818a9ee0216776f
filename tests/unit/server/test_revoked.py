"""A site that is shut out by the roster: nobody waits for it, and it may come back."""

import asyncio

import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation import schedules
from fedvi.federation.fold import posterior_of
from fedvi.federation.messages import Goodbye, Hello, NextTask
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol
from fedvi.server.core.run_events import between
from fedvi.server.rpc.dispatcher import Dispatcher
from fedvi.store.memory import MemoryServerStore
from tests.unit.server.test_turns import EIGHT, Run, make_spec


def revoke(run: Run, *names: str) -> list[str]:
    """Returns what was told of it."""
    before = run.state
    run.state = protocol.revoke(run.spec, before, frozenset(names), run.now)
    return [event.text for event in between(run.spec, before, run.state, None)]


@pytest.mark.parametrize("deadline", [None, 10.0])
@pytest.mark.parametrize("taken", [False, True])
def test_a_revoked_client_is_waited_for_by_nobody_and_its_factor_stays(deadline, taken):
    run = Run(make_spec(deadline=deadline))
    run.work(*EIGHT)
    factor = run.state.factors["h"]
    if taken:
        run.ask(NextTask("h"))
    run.work(*EIGHT[:7])
    assert run.state.version == 1
    revoke(run, "h")
    assert run.state.version == 2
    run.work(*EIGHT[:7])
    assert run.state.status == "completed"
    assert run.missing == [(), ("h",), ("h",)]
    assert run.state.factors["h"] is factor
    assert tree.equal(run.state.posterior, posterior_of(run.spec.prior, run.state.factors))


@pytest.mark.parametrize("kind", schedules.__all__)
def test_the_others_go_on_to_the_end_under_each_schedule(kind):
    run = Run(make_spec(kind, clients=("a", "b", "c"), rounds=2, deadline=None, quorum=2))
    revoke(run, "b")
    for _ in range(2):
        run.work("a", "c")
    assert run.state.status == "completed"
    assert run.state.visits == {"a": 2, "b": 0, "c": 2}


def test_with_too_few_left_for_a_quorum_the_run_has_failed_and_is_not_awaited_for_ever():
    run = Run(make_spec(clients=("a", "b"), deadline=None, quorum=2))
    run.work("a")
    revoke(run, "b")
    assert run.state.status == "failed"


def test_a_client_that_is_enrolled_again_is_back_by_its_next_call():
    run = Run(make_spec(deadline=None))
    revoke(run, "h")
    run.work(*EIGHT[:7])
    run.ask(Hello("h", "d"))
    assert run.state.away == {}
    run.work(*EIGHT[:7])
    run.work(*EIGHT)
    assert run.missing == [("h",), ("h",), ()]


def test_a_roster_that_says_nothing_new_changes_nothing():
    run = Run(make_spec())
    revoke(run, "h")
    before = run.state
    assert revoke(run, "h", "operator") == []
    assert run.state is before


def test_it_is_told_that_a_client_was_revoked_also_of_one_that_was_away_and_beside_each_fold():
    run = Run(make_spec(deadline=None))
    run.ask(Goodbye("g"))
    run.work(*EIGHT[:6])
    before = run.state
    told = revoke(run, "g", "h")
    assert told[:2] == ["g is away: revoked", "h is away: revoked"]
    assert "MISSING: g (revoked), h (revoked)" in told[2]
    assert run.state.version == before.version + 1


def desk_of(store, revoked, work):
    """Runs ``work`` beside a dispatcher that keeps time."""

    async def main():
        spec = make_spec(deadline=0.05, quorum=1)
        dispatcher = Dispatcher(spec, Coordinator(spec, store), lambda _: None, revoked)
        keeping = asyncio.create_task(dispatcher.keep_time())
        try:
            await work(dispatcher, keeping)
            return dispatcher.state
        finally:
            dispatcher.closing = True
            dispatcher.ring()
            await asyncio.gather(keeping, return_exceptions=True)
            dispatcher.close()

    return asyncio.run(main())


def test_while_the_roster_cannot_be_read_time_is_kept_and_nobody_is_shut_out():
    def revoked():
        raise errors.TransportError("the server's roster cannot be read")

    async def work(dispatcher, keeping):
        await dispatcher.handle(NextTask("a"))
        async with asyncio.timeout(10.0):
            while not dispatcher.state.away:
                await asyncio.sleep(0.01)

    state = desk_of(MemoryServerStore(), revoked, work)
    assert set(state.away.values()) == {protocol.OVERDUE}


def test_a_store_that_is_full_for_a_while_does_not_end_the_keeping_of_time():
    class Full(MemoryServerStore):
        failures = 1

        def save(self, state):
            if self.failures:
                self.failures -= 1
                raise errors.LedgerError("no space left")
            return super().save(state)

    async def work(dispatcher, keeping):
        async with asyncio.timeout(10.0):
            while not dispatcher.state.away:
                await asyncio.sleep(0.01)
        assert not keeping.done()

    state = desk_of(Full(), lambda: frozenset({"a"}), work)
    assert state.away["a"] == protocol.REVOKED


def test_what_nobody_foresaw_ends_the_keeping_of_time():
    def revoked():
        raise KeyError("h")

    async def work(dispatcher, keeping):
        with pytest.raises(KeyError):
            await keeping

    desk_of(MemoryServerStore(), revoked, work)
