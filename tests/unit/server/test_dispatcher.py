"""The one thread that writes: what waits for it is answered together, and in order."""

import asyncio
import threading

import pytest

from fedvi import errors
from fedvi.federation.messages import NextTask, Submit
from fedvi.server.coordinator import Coordinator
from fedvi.server.rpc import dispatcher as desks
from fedvi.server.rpc.dispatcher import Dispatcher
from fedvi.store.memory import MemoryServerStore
from tests.states import frozen
from tests.unit.server.test_turns import answer, make_spec

CLIENTS = tuple("abcdefgh")


class Slow(MemoryServerStore):
    """Holds the first save until it is let go; keeps what was saved."""

    def __init__(self):
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.saved, self.full = [], False

    def save(self, state):
        self.begun.set()
        assert self.go.wait(10.0)
        if self.full:
            raise errors.LedgerError("no space left")
        self.saved.append(state)
        return super().save(state)


def run(work):
    """Runs ``work(dispatcher, store)`` while the first save is held, and lets it go when all are queued."""

    async def main():
        spec, store = make_spec("synchronous", clients=CLIENTS, quorum=1), Slow()
        told = []
        dispatcher = Dispatcher(spec, Coordinator(spec, store), told.append)
        try:
            return await work(dispatcher, store), store, dispatcher.state, told
        finally:
            store.go.set()
            dispatcher.close()

    return asyncio.run(main())


async def queued(dispatcher, store, *works):
    """Starts the first work, and the others in their order once its save has begun."""
    tasks = [asyncio.create_task(works[0])]
    await asyncio.to_thread(store.begun.wait, 10.0)
    for work in works[1:]:
        tasks.append(asyncio.create_task(work))
        await asyncio.sleep(0.01)
    store.go.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_requests_that_wait_for_a_save_are_saved_together():
    async def work(dispatcher, store):
        return await queued(
            dispatcher, store, *(dispatcher.handle(NextTask(name)) for name in CLIENTS)
        )

    replies, store, state, told = run(work)
    assert [reply.task.client for reply in replies] == list(CLIENTS)
    assert [len(saved.tasks) for saved in store.saved] == [1, len(CLIENTS)]
    assert frozen(state) == frozen(store.load())
    assert [h.client for h in told if h.kind == "offered"] == list(CLIENTS)


def test_all_that_one_change_wakes_are_answered_together():
    async def work(dispatcher, store):
        store.go.set()
        return await asyncio.gather(*(dispatcher.handle(NextTask(name)) for name in CLIENTS))

    _, store, _, _ = run(work)
    assert [len(saved.tasks) for saved in store.saved] == [len(CLIENTS)]


def test_no_reply_goes_out_before_its_group_is_saved():
    async def work(dispatcher, store):
        tasks = [asyncio.create_task(dispatcher.handle(NextTask(name))) for name in CLIENTS]
        await asyncio.to_thread(store.begun.wait, 10.0)
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        store.go.set()
        await asyncio.gather(*tasks)

    run(work)


def test_a_request_that_is_refused_fails_alone_and_is_told_of():
    async def work(dispatcher, store):
        wrong = dispatcher.handle(NextTask("nobody"))
        return await queued(
            dispatcher, store, dispatcher.handle(NextTask("a")), dispatcher.handle(NextTask("b")), wrong,
            dispatcher.handle(NextTask("c")),
        )  # fmt: skip

    replies, store, _, told = run(work)
    assert isinstance(replies[2], errors.ProtocolError)
    assert store.saved[-1].tasks.keys() == set("abc")
    assert [h.client for h in told if h.kind == "refused"] == ["nobody"]


def test_if_a_group_cannot_be_saved_all_of_it_hears_so_and_nothing_is_changed():
    async def work(dispatcher, store):
        store.go.set()
        store.full = True
        tasks = (dispatcher.handle(NextTask(name)) for name in CLIENTS)
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        store.full = False
        return replies, await dispatcher.handle(NextTask("a"))

    (replies, again), store, _, _ = run(work)
    assert [type(reply) for reply in replies] == [errors.LedgerError] * len(CLIENTS)
    assert again.task.client == "a"
    assert [saved.tasks.keys() for saved in store.saved] == [{"a"}]


def test_an_operator_comes_in_its_turn():
    async def work(dispatcher, store):
        return await queued(
            dispatcher, store, dispatcher.handle(NextTask("a")), dispatcher.handle(NextTask("b")),
            dispatcher.control("pause"), dispatcher.handle(NextTask("c")),
        )  # fmt: skip

    replies, _, state, _ = run(work)
    assert [type(reply).__name__ for reply in replies] == ["Offer", "Offer", "NoneType", "Wait"]
    assert state.status == "paused"


def test_large_answers_are_not_in_memory_together(monkeypatch):
    monkeypatch.setattr(desks, "_GROUP_BYTES", 20)

    async def work(dispatcher, store):
        store.go.set()
        offers = await asyncio.gather(*(dispatcher.handle(NextTask(name)) for name in CLIENTS))
        submits = [Submit(o.task.client, o.task.task_id, answer(o.task)) for o in offers]
        assert sum(len(t.data) for t in submits[0].payload.tensors) == 16
        store.saved.clear()
        return await asyncio.gather(*(dispatcher.handle(submit) for submit in submits))

    replies, store, _, _ = run(work)
    assert {reply.status for reply in replies} == {"accepted"}
    assert [saved.version for saved in store.saved] == [0] * (len(CLIENTS) - 1) + [1]


def test_a_call_that_was_given_up_before_its_turn_is_not_answered():
    async def work(dispatcher, store):
        first = asyncio.create_task(dispatcher.handle(NextTask("a")))
        await asyncio.to_thread(store.begun.wait, 10.0)
        second = asyncio.create_task(dispatcher.handle(NextTask("b")))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.sleep(0.01)
        store.go.set()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second

    _, store, _, _ = run(work)
    assert store.load().tasks.keys() == {"a"}


def test_after_the_end_a_request_is_told_that_the_server_stops():
    async def work(dispatcher, store):
        store.go.set()
        dispatcher.close()
        with pytest.raises(errors.TransportError, match="stopping"):
            await dispatcher.handle(NextTask("a"))

    run(work)


def test_who_falls_silent_is_told_of_once():
    async def work(dispatcher, store):
        store.go.set()
        await dispatcher.handle(NextTask("a"))
        now = dispatcher._coordinator.clock()
        dispatcher.calls.hear("a", now - 1000.0)
        dispatcher.calls.hear("b", now)
        keeper = asyncio.create_task(dispatcher.keep_time())
        for _ in range(100):
            await asyncio.sleep(0.02)
            if dispatcher.silent:
                break
        dispatcher.closing = True
        dispatcher.ring()
        await keeper
        return dispatcher.silent

    silent, _, _, told = run(work)
    assert silent == {"a"}
    assert [h.client for h in told if h.kind == "silent"] == ["a"]
