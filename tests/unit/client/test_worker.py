"""The client's loop: charged before data is read, sealed before sent, the same bytes again."""

import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.client.worker import Worker
from fedvi.federation.messages import Done, Hello, NextTask, Offer, Receipt, Submit, Wait, Welcome
from fedvi.inference.base import LocalSolver, Shard, Task, finish_natural
from fedvi.privacy import accountants, events, ledger, mechanisms, random, release, sampling
from fedvi.store.memory import MemoryClientStore

FAMILY = expfam.diagonal_gaussian(2)
NOISE = events.Gaussian(20.0)
SHARD = Shard({"x": np.ones((4, 2), np.float32)}, np.ones(4, bool))


def task(visit: int) -> Task:
    prior = FAMILY.isotropic(1.0)
    return Task(f"north/{visit}", "north", visit, visit, prior, FAMILY.zeros(), 1.0)


def noisy_solver(cost: events.Event = NOISE, event: events.Event | None = None) -> LocalSolver:
    """A solver that releases the noised sum of the records."""
    sampler = sampling.full(4)

    def update(key_of, state, job, shard):
        batch = sampler.draw(key_of("sampling"), shard.mask)
        bounded = release.clipped_sum(shard.records["x"], 1.0, batch)
        noised = release.release(key_of("noise"), bounded, mechanisms.gaussian(20.0))
        if event is not None:
            noised = release.disclose(noised.value, event.what)
        return (
            state,
            release.post_process(lambda v: {"h": np.asarray(v), "J": np.ones(2)}, noised),
            {},
        )

    return LocalSolver("noisy", lambda eta: (), update, finish_natural, cost, 4)


class Server:
    """Offers a fixed list of tasks; forgets to answer ``lost`` submissions."""

    def __init__(self, visits: int, lost: int = 0) -> None:
        self.tasks = [task(visit) for visit in range(visits)]
        self.received: list[Submit] = []
        self.lost = lost

    def handle(self, request):
        if isinstance(request, Hello):
            return Welcome(0)
        if isinstance(request, NextTask):
            return Offer(self.tasks[0]) if self.tasks else Done("finished")
        self.received.append(request)
        if self.lost:
            self.lost -= 1
            raise ConnectionError("the reply was lost")
        self.tasks = [job for job in self.tasks if job.task_id != request.task_id]
        return Receipt("accepted", 1)


def make_worker(server, *, budget="default", solver=None, shard=lambda: SHARD, root=None):
    book = ledger.open_ledger(
        ledger.Header("s", "d", "north", "record", "substitute", "message", budget is not None, "")
    )
    if budget == "default":
        budget = ledger.Budget(1.0, 1e-5, accountants.pld("substitute"))
    return Worker(
        client="north",
        study_digest="d",
        link=server,
        solver=solver or noisy_solver(),
        shard=shard,
        root=root or random.insecure_root(0),
        store=MemoryClientStore(book),
        budget=budget,
    )


def kinds(worker) -> list[str]:
    return [entry.kind for entry in worker.ledger.entries]


def test_a_task_is_reserved_sealed_and_sent_in_this_order():
    server = Server(1)
    worker = make_worker(server)
    assert worker.tick() == "solved"
    assert kinds(worker) == ["reserved", "sealed"]
    assert server.received == []
    assert worker.tick() == "sent"
    assert kinds(worker) == ["reserved", "sealed", "sent"]
    assert worker.tick() == "done"
    ledger.verify(worker.ledger)


def test_a_lost_reply_is_answered_with_the_same_bytes_and_no_new_charge():
    server = Server(1, lost=2)
    worker = make_worker(server)
    worker.tick()
    for _ in range(2):
        with pytest.raises(ConnectionError):
            worker.tick()
    assert worker.tick() == "sent"
    assert len(server.received) == 3
    assert server.received[0] == server.received[1] == server.received[2]
    assert kinds(worker) == ["reserved", "sealed", "sent"]


def test_no_record_is_read_once_the_budget_is_exceeded():
    def forbidden() -> Shard:
        raise AssertionError("a record was read")

    server = Server(3)
    budget = ledger.Budget(1e-3, 1e-5, accountants.pld("substitute"))
    worker = make_worker(server, budget=budget, shard=forbidden)
    with pytest.raises(errors.BudgetExceeded):
        worker.tick()
    assert kinds(worker) == []
    assert server.received == []


def test_the_slot_stays_charged_if_solving_fails():
    def broken() -> Shard:
        raise OSError("disk")

    worker = make_worker(Server(1), shard=broken)
    with pytest.raises(OSError, match="disk"):
        worker.tick()
    assert kinds(worker) == ["reserved"]


def test_another_attempt_is_another_release_at_its_own_price():
    shards = iter([OSError("disk"), SHARD])

    def flaky() -> Shard:
        shard = next(shards)
        if isinstance(shard, OSError):
            raise shard
        return shard

    server = Server(1)
    worker = make_worker(server, shard=flaky)
    with pytest.raises(OSError, match="disk"):
        worker.tick()
    assert [worker.tick(), worker.tick(), worker.tick()] == ["solved", "sent", "done"]
    assert kinds(worker) == ["reserved", "reserved", "sealed", "sent"]
    assert [submit.task_id for submit in server.received] == ["north/0"]
    assert events.counts(ledger.spent(worker.ledger)) == {NOISE: 2}


def test_a_release_that_costs_more_than_was_reserved_does_not_leave():
    server = Server(1)
    solver = noisy_solver(event=events.Unprotected("a mean"))
    worker = make_worker(server, solver=solver)
    with pytest.raises(errors.PrivacyError, match="reserved"):
        worker.tick()
    assert kinds(worker) == ["reserved"]
    assert server.received == []


def test_a_solver_without_noise_is_refused_where_there_is_a_budget():
    worker = make_worker(Server(1), solver=noisy_solver(cost=events.Unprotected("a mean")))
    with pytest.raises(errors.PrivacyError):
        worker.tick()
    assert kinds(worker) == []


def test_every_visit_draws_fresh_noise_and_every_client_its_own():
    sent = []
    for seed in (0, 1):
        server = Server(2)
        worker = make_worker(server, root=random.insecure_root(seed))
        while worker.tick() != "done":
            pass
        sent += [submit.payload.tensors[1].data for submit in server.received]
    assert len(set(sent)) == 4


def test_an_answer_that_conflicts_is_reported():
    class Conflict(Server):
        def handle(self, request):
            reply = super().handle(request)
            return Receipt("conflict", 1) if isinstance(request, Submit) else reply

    worker = make_worker(Conflict(1))
    worker.tick()
    with pytest.raises(errors.ProtocolError, match="running twice"):
        worker.tick()


def test_a_client_without_work_is_idle():
    class Busy(Server):
        def handle(self, request):
            return Wait() if isinstance(request, NextTask) else super().handle(request)

    assert make_worker(Busy(1)).tick() == "idle"
