"""The server's shell: what it saves and when, and whom it tells."""

import pytest

from fedvi import errors
from fedvi.federation.messages import Goodbye, Hello, NextTask, Offer, Submit
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol
from fedvi.store.memory import MemoryServerStore
from tests.states import frozen
from tests.unit.server.test_turns import answer, header, make_spec

TWO = ("a", "b")


class Store(MemoryServerStore):
    """Counts the saves, and fails while ``full``."""

    def __init__(self):
        super().__init__()
        self.saves, self.full = 0, False

    def save(self, state):
        if self.full:
            raise OSError("no space left on device")
        self.saves += 1
        return super().save(state)


def start(kind="sequential", store=None, **options):
    store = store or Store()
    fields = {"clients": TWO, "quorum": 1}
    return Coordinator(make_spec(kind, **fields), store, **options), store


def test_only_a_durable_change_is_saved_and_only_new_work_is_told():
    server, store = start()
    told = []
    server.add_listener(lambda: told.append(server.state.version))
    server.handle(Hello("a", "d"))
    server.handle(NextTask("b"))
    assert (store.saves, told) == (0, [])
    offer = server.handle(NextTask("a"))
    server.handle(NextTask("a"))
    assert (store.saves, told) == (1, [])
    server.handle(Submit("a", offer.task.task_id, answer(offer.task)))
    assert (store.saves, told) == (2, [1])
    server.control("stop")
    assert (store.saves, told) == (3, [1, 1])
    assert server.state.presence.seen.keys() == {"a", "b"}


def test_a_save_that_fails_changes_nothing_and_the_request_may_be_sent_again():
    server, store = start()
    offer = server.handle(NextTask("a"))
    submit = Submit("a", offer.task.task_id, answer(offer.task))
    before, store.full = server.state, True
    with pytest.raises(OSError, match="no space left"):
        server.handle(submit)
    assert server.state is before
    store.full = False
    receipt = server.handle(submit)
    assert (receipt.status, receipt.version) == ("accepted", 1)


def test_a_reply_goes_out_only_after_its_state_was_saved():
    server, store = start()
    store.full = True
    with pytest.raises(OSError, match="no space left"):
        server.handle(NextTask("a"))
    assert server.state.tasks == {}


def test_deadlines_pass_on_the_clock_that_was_given():
    clock = [100.0]
    updates = []
    server, _ = start("synchronous", on_update=updates.append, clock=lambda: clock[0])
    assert server.next_deadline == 110.0
    offer = server.handle(NextTask("a"))
    server.handle(Submit("a", offer.task.task_id, answer(offer.task)))
    clock[0] = 109.0
    server.tick()
    assert updates == []
    clock[0] = 110.0
    server.tick()
    assert [update.missing for update in updates] == [("b",)]


def test_after_a_restart_every_wait_begins_anew():
    clock = [0.0]
    server, store = start("synchronous", clock=lambda: clock[0])
    offer = server.handle(NextTask("a"))
    clock[0] = 1e6
    again, _ = start("synchronous", store=store, clock=lambda: clock[0])
    assert again.next_deadline == 1e6 + 10.0
    assert again.state.presence.seen == {}
    assert again.handle(NextTask("a")) == Offer(offer.task)


def test_who_was_away_is_away_after_a_restart():
    clock = [0.0]
    server, store = start("synchronous", clock=lambda: clock[0])
    clock[0] = 10.0
    server.tick()
    again, _ = start("synchronous", store=store, clock=lambda: clock[0])
    assert again.state.away == dict.fromkeys(TWO, protocol.OVERDUE)


def test_a_run_is_paused_and_stopped_durably():
    server, store = start()
    for action, status in (("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        server.control(action)
        assert store.load().status == status
    with pytest.raises(errors.RunFailed, match="cannot be paused"):
        server.control("pause")


def test_a_state_of_other_ledgers_is_refused():
    _, store = start()
    store.save(protocol.initial_state(make_spec(clients=TWO, headers={"a": header("a")})))
    with pytest.raises(errors.LedgerError, match="the stored ledger of 'a' has another header"):
        start(store=store)


def test_requests_that_wait_together_are_saved_once_and_come_to_what_they_would_alone():
    server, store = start("synchronous")
    alone, _ = start("synchronous")
    first = [NextTask("a"), NextTask("b"), NextTask("a")]
    offers = [step.reply for step in server.handle_all(first)]
    assert offers == [alone.handle(request) for request in first]
    assert store.saves == 1
    last = [Submit(o.task.client, o.task.task_id, answer(o.task)) for o in offers[:2]]
    # The fold that the second one brings is there for the third.
    steps = server.handle_all([*last, NextTask("a")])
    assert [step.reply for step in steps] == [alone.handle(r) for r in [*last, NextTask("a")]]
    assert (store.saves, steps[-1].reply.task.version) == (2, 1)
    assert [step.after.version for step in steps] == [0, 1, 1]
    assert frozen(server.state) == frozen(alone.state) == frozen(store.load())


@pytest.mark.parametrize("error", [errors.ProtocolError("no"), ZeroDivisionError("a mistake")])
def test_a_request_that_fails_affects_no_other_of_its_group(monkeypatch, error):
    server, store = start("synchronous")
    step = protocol.step

    def failing(spec, state, request, now):
        if isinstance(request, Goodbye):
            raise error
        return step(spec, state, request, now)

    monkeypatch.setattr(protocol, "step", failing)
    steps = server.handle_all([NextTask("a"), Goodbye("a"), NextTask("b")])
    assert [type(step.reply) for step in steps] == [Offer, type(error), Offer]
    assert steps[1].after is steps[1].before
    assert store.load().tasks.keys() == {"a", "b"}
    with pytest.raises(type(error)):
        server.handle(Goodbye("a"))


def test_of_a_group_that_cannot_be_saved_nothing_is_changed_and_nobody_is_told():
    server, store = start("synchronous")
    told = []
    server.add_listener(lambda: told.append(server.state.version))
    before, store.full = server.state, True
    with pytest.raises(OSError, match="no space left"):
        server.handle_all([NextTask("a"), NextTask("b")])
    assert server.state is before
    assert told == []


def test_who_is_told_to_wait_amid_a_group_hears_of_work_that_comes_later_in_it():
    server, _ = start("synchronous")
    tasks = [server.handle(NextTask(name)).task for name in TWO]
    one, two = (Submit(task.client, task.task_id, answer(task)) for task in tasks)
    told = []
    server.add_listener(lambda: told.append(server.state.version))
    steps = server.handle_all([one, NextTask("a"), two, NextTask("b")])
    assert [type(step.reply).__name__ for step in steps] == ["Receipt", "Wait", "Receipt", "Offer"]
    assert told == [1]


def test_who_could_work_at_both_ends_of_a_group_may_have_been_told_to_wait_within_it():
    spec = make_spec("synchronous", clients=TWO, quorum=1)
    free = protocol.initial_state(spec)
    busy, _ = protocol.step(spec, free, NextTask("a"), 0.0)
    assert not protocol.brings_work(spec, free, free)
    assert not protocol.brings_work(spec, free, busy)
    assert protocol.brings_work(spec, free, busy, free)
