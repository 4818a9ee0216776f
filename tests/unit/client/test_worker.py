"""The client's loop: charged before data is read, sealed before sent, the same bytes again."""

import jax
import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.client import inputs
from fedvi.client import worker as worker_module
from fedvi.client.worker import Worker
from fedvi.federation.messages import (
    Done,
    Failure,
    Hello,
    NextTask,
    Noted,
    Offer,
    Receipt,
    Submit,
    Wait,
    Welcome,
)
from fedvi.privacy import (
    accountants,
    events,
    ledger,
    mechanisms,
    metrics,
    random,
    release,
    sampling,
)
from fedvi.privacy import (
    bounded as bounds,
)
from fedvi.store.memory import MemoryClientStore
from fedvi.transport import codec
from fedvi.updates.base import LocalSolver, Shard, Task, finish_natural

FAMILY = expfam.diagonal_gaussian(2)
NOISE = events.Gaussian(20.0)
SECURE = random.secure_root()
SHARD = Shard({"x": np.ones((4, 2), np.float32)}, np.ones(4, bool))


def task(visit: int) -> Task:
    prior = FAMILY.isotropic(1.0)
    return Task(f"north/{visit}", "north", visit, visit, prior, FAMILY.zeros(), 1.0)


def noisy_solver(cost: events.Event = NOISE, event: events.Event | None = None) -> LocalSolver:
    """A solver that releases the noised sum of the records."""
    sampler = sampling.full(4)

    def update(key_of, state, job, shard):
        batch = sampler.draw(key_of("sampling"), shard.mask)
        bounded = bounds.clipped_sum(
            shard.records["x"][batch.indices], 1.0, batch, mechanisms.gaussian(20.0)
        )
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
        self.failures: list[Failure] = []
        self.lost = lost
        self.done = Done("finished")

    def handle(self, request):
        if isinstance(request, Hello):
            return Welcome(0, request.anchor)
        if isinstance(request, NextTask):
            return Offer(self.tasks[0]) if self.tasks else self.done
        if isinstance(request, Failure):
            self.failures.append(request)
            return Noted()
        self.received.append(request)
        if self.lost:
            self.lost -= 1
            raise ConnectionError("the reply was lost")
        self.tasks = [job for job in self.tasks if job.task_id != request.task_id]
        return Receipt("accepted", 1)


def header(protected: bool = True) -> ledger.Header:
    return ledger.Header("s", "d", "north", "record", "substitute", "message", protected)


def make_worker(
    server, *, budget="default", solver=None, shard=lambda: SHARD, root=None, store=None, **options
):
    book = ledger.open_ledger(header(protected=budget is not None))
    if budget == "default":
        budget = ledger.Budget(1.0, 1e-5, accountants.pld("substitute"))
    return Worker(
        client="north",
        study_digest="d",
        link=server,
        solver=solver or noisy_solver(),
        shard=shard,
        root=root or random.insecure_root(0),
        store=store or MemoryClientStore(book),
        budget=budget,
        **options,
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


@pytest.mark.parametrize(
    ("renews", "masked", "sends"),
    [(True, False, False), (True, False, True), (True, True, True), (False, False, True)],
)
def test_a_factor_on_which_no_answer_depends_is_not_asked_for(renews, masked, sends):
    seen, bare = [], renews and not masked
    noisy = noisy_solver()

    def update(key_of, state, job, shard):
        seen.append(job.factor)
        return noisy.update(key_of, state, job, shard)

    class Watched(Server):
        def handle(self, request):
            if isinstance(request, NextTask):
                seen.append(request.without_factor)
                if not sends:
                    return Offer(self.tasks[0]._replace(factor=None))
            return super().handle(request)

    mask = (lambda _, payload: payload) if masked else None
    worker = make_worker(Watched(1), solver=noisy._replace(update=update, renews=renews), mask=mask)
    worker.tick()
    assert seen[0] == bare
    assert (seen[1] is None) == bare


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


def test_the_slot_stays_charged_if_reading_fails_and_is_used_by_the_next_attempt():
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
    assert kinds(worker) == ["reserved"]
    assert [worker.tick(), worker.tick(), worker.tick()] == ["solved", "sent", "done"]
    assert kinds(worker) == ["reserved", "sealed", "sent"]
    assert [submit.task_id for submit in server.received] == ["north/0"]
    assert events.counts(ledger.spent(worker.ledger)) == {NOISE: 1}


def failing_once(solver: LocalSolver) -> LocalSolver:
    """A solver whose first answer is computed and lost."""
    answers = []

    def update(*arguments):
        answers.append(solver.update(*arguments))
        if len(answers) == 1:
            raise MemoryError
        return answers[-1]

    return solver._replace(update=update)


def test_a_lost_answer_is_computed_again_under_the_same_entry_and_secret():
    server, seen = Server(1), []
    solver = noisy_solver()

    def spying(*arguments):
        result = solver.update(*arguments)
        seen.append(result[1].value["h"])
        return result

    worker = make_worker(server, solver=failing_once(solver._replace(update=spying)), root=SECURE)
    with pytest.raises(MemoryError):
        worker.tick()
    while worker.tick() != "done":
        pass
    np.testing.assert_array_equal(seen[0], seen[1])
    assert kinds(worker) == ["reserved", "sealed", "sent"]


@pytest.mark.parametrize(
    "change",
    [
        {"posterior": FAMILY.isotropic(2.0)},
        {"factor": FAMILY.isotropic(2.0)},
        {"damping": 0.5},
        {"version": 7},
        {"visit": 7},
    ],
)
def test_a_task_that_changed_is_another_release_at_its_own_price(change):
    server, secrets = Server(1), []
    store = MemoryClientStore(ledger.open_ledger(header()))
    worker = make_worker(server, solver=failing_once(noisy_solver()), store=store, root=SECURE)
    with pytest.raises(MemoryError):
        worker.tick()
    secrets.append(store.pending().secret)
    server.tasks[0] = server.tasks[0]._replace(**change)
    reserve = store.reserve
    store.reserve = lambda *arguments: secrets.append(arguments[2]) or reserve(*arguments)
    while worker.tick() != "done":
        pass
    assert [(e.kind, e.release_id) for e in worker.ledger.entries] == [
        ("reserved", "north/0#0"),
        ("reserved", "north/0#1"),
        ("sealed", "north/0#1"),
        ("sent", "north/0#1"),
    ]
    assert len(set(secrets)) == 2
    assert events.counts(ledger.spent(worker.ledger)) == {NOISE: 2}


@pytest.mark.parametrize(
    "upgrade",
    [(random, "DRAWS", 3), (worker_module, "__version__", "9"), (jax, "__version__", "9")],
)
def test_an_interrupted_release_is_given_up_after_an_upgrade(monkeypatch, upgrade):
    """Else a copy of the store from that moment adds other noise of the secret that its original used."""
    server, secrets = Server(1), []
    store = MemoryClientStore(ledger.open_ledger(header()))
    with pytest.raises(MemoryError):
        make_worker(server, solver=failing_once(noisy_solver()), store=store, root=SECURE).tick()
    secrets.append(store.pending().secret)
    reserve = store.reserve
    store.reserve = lambda *arguments: secrets.append(arguments[2]) or reserve(*arguments)
    monkeypatch.setattr(*upgrade)
    worker = make_worker(server, store=store, root=SECURE)
    while worker.tick() != "done":
        pass
    assert [(e.kind, e.release_id) for e in worker.ledger.entries] == [
        ("reserved", "north/0#0"),
        ("reserved", "north/0#1"),
        ("sealed", "north/0#1"),
        ("sent", "north/0#1"),
    ]
    assert len(set(secrets)) == 2


def test_what_was_sealed_before_an_upgrade_is_sent_as_it_was(monkeypatch):
    server, store = Server(1, lost=1), MemoryClientStore(ledger.open_ledger(header()))
    worker = make_worker(server, store=store, root=SECURE)
    worker.tick()
    with pytest.raises(ConnectionError):
        worker.tick()
    monkeypatch.setattr(random, "DRAWS", 3)
    worker = make_worker(server, store=store, root=SECURE)
    while worker.tick() != "done":
        pass
    first, second = server.received
    assert first.payload == second.payload
    assert kinds(worker) == ["reserved", "sealed", "sent"]


def test_an_interrupted_release_is_given_up_for_another_task():
    server = Server(2)
    worker = make_worker(server, solver=failing_once(noisy_solver()))
    with pytest.raises(MemoryError):
        worker.tick()
    server.tasks.reverse()
    while worker.tick() != "done":
        pass
    sealed = [entry.release_id for entry in worker.ledger.entries if entry.kind == "sealed"]
    assert sealed == ["north/1#0", "north/0#1"]
    assert events.counts(ledger.spent(worker.ledger)) == {NOISE: 3}


def test_a_secret_that_met_no_record_is_drawn_anew_and_not_charged_again():
    # Else a copy of the store from that moment would noise changed records as its original did.
    shards = iter([OSError("disk"), SHARD])

    def flaky() -> Shard:
        shard = next(shards)
        if isinstance(shard, OSError):
            raise shard
        secrets.append(store.pending().secret)
        return shard

    store, secrets = MemoryClientStore(ledger.open_ledger(header())), []
    worker = make_worker(Server(1), store=store, shard=flaky, root=SECURE)
    with pytest.raises(OSError, match="disk"):
        worker.tick()
    secrets.append(store.pending().secret)
    worker.tick()
    assert len(set(secrets)) == 2
    assert kinds(worker) == ["reserved", "sealed"]


@pytest.mark.parametrize("frozen", [True, False], ids=["read-only", "writable"])
def test_records_that_changed_within_a_study_are_refused(frozen):
    held = {"x": np.ones((4, 2), np.float32), "mask": np.ones(4, bool)}

    def shard() -> Shard:
        for array in held.values():
            array.flags.writeable = not frozen
        return Shard({"x": held["x"]}, held["mask"])

    server = Server(3)
    worker = make_worker(server, shard=shard)
    while len(server.tasks) > 2:
        worker.tick()
    original = dict(held)
    held["x"] = held["x"].copy()
    held["x"][3, 1] = 2.0
    with pytest.raises(errors.PrivacyError, match="the data set of a study is frozen") as caught:
        worker.tick()
    assert "restore the file" in caught.value.hint
    assert "2.0" not in str(caught.value)
    held["mask"] = np.array([True, True, True, False])
    held["x"] = original["x"]
    with pytest.raises(errors.PrivacyError, match="the data set of a study is frozen"):
        worker.tick()
    held.update(original)
    while worker.tick() != "done":
        pass
    assert kinds(worker) == ["reserved", "sealed", "sent"] * 3


def test_the_same_array_written_to_is_noticed():
    held = Shard({"x": np.ones((4, 2), np.float32)}, np.ones(4, bool))
    worker = make_worker(Server(2), shard=lambda: held)
    worker.tick()
    worker.tick()
    held.records["x"][0, 0] = 0.5
    with pytest.raises(errors.PrivacyError, match="frozen"):
        worker.tick()


def test_a_task_that_is_not_admitted_costs_nothing():
    asked = []

    def admit(job: Task, cost: events.Event, others: events.Event) -> None:
        asked.append((job.task_id, cost))
        raise errors.PrivacyError("the policy says no")

    worker = make_worker(Server(1), admit=admit, shard=lambda: 1 / 0)
    with pytest.raises(errors.PrivacyError, match="says no"):
        worker.tick()
    assert asked == [("north/0", NOISE)]
    assert kinds(worker) == []


def test_what_the_budget_refuses_is_not_asked_to_be_admitted():
    asked = []
    budget = ledger.Budget(1e-3, 1e-5, accountants.pld("substitute"))
    worker = make_worker(
        Server(1), budget=budget, admit=lambda job, cost, others: asked.append(job.task_id)
    )
    with pytest.raises(errors.BudgetExceeded):
        worker.tick()
    assert asked == []


def test_an_admitted_slot_is_not_asked_for_again():
    asked = []
    worker = make_worker(
        Server(1),
        solver=failing_once(noisy_solver()),
        admit=lambda job, cost, others: asked.append(job.task_id),
    )
    with pytest.raises(MemoryError):
        worker.tick()
    while worker.tick() != "done":
        pass
    assert asked == ["north/0"]


def test_a_slot_that_draws_another_secret_is_asked_for_again():
    """Its store may be a copy, whose original sent an answer: a ledger for life must count both."""
    asked, read = [], iter([False, True])

    def shard():
        if not next(read):
            raise MemoryError
        return SHARD

    worker = make_worker(
        Server(1), shard=shard, admit=lambda job, cost, others: asked.append((cost, others))
    )
    with pytest.raises(MemoryError):
        worker.tick()
    assert worker.tick() == "solved"
    assert asked == [(NOISE, events.NOTHING)] * 2
    assert kinds(worker) == ["reserved", "sealed"]


def counting_solver() -> LocalSolver:
    """A solver with private state: how many answers it gave."""
    inner = noisy_solver()

    def update(key_of, state, job, shard):
        _, released, _ = inner.update(key_of, (), job, shard)
        told = {"bare": state["count"], "typed": metrics.Public(3)}
        return {"count": state["count"] + 1}, released, told

    return inner._replace(init=lambda eta: {"count": np.zeros((), np.int32)}, update=update)


def test_private_state_is_stored_with_the_seal_and_erased_when_the_study_is_done():
    server, store = Server(3), MemoryClientStore(ledger.open_ledger(header()))
    found = []
    for _ in range(3):
        # A new process each time.
        worker = make_worker(server, solver=counting_solver(), store=store)
        worker.tick()
        found.append(int(worker.info["bare"].reveal()))
        worker.tick()
        assert store.load_state() is not None
    assert found == [0, 1, 2]
    # What failed may be resumed: the private state is needed then.
    server.done = Done("the run failed", resumable=True)
    assert make_worker(server, solver=counting_solver(), store=store).tick() == "done"
    assert store.load_state() is not None
    server.done = Done("finished")
    assert make_worker(server, solver=counting_solver(), store=store).tick() == "done"
    assert store.load_state() is None


def test_a_release_begun_from_another_state_is_another_release():
    store, server = MemoryClientStore(ledger.open_ledger(header())), Server(2)
    worker = make_worker(server, solver=counting_solver(), store=store)
    worker.tick()
    worker.tick()
    worker = make_worker(server, solver=failing_once(counting_solver()), store=store)
    with pytest.raises(MemoryError):
        worker.tick()
    store._state = inputs.pack({"count": np.array(7, np.int32)})
    worker.tick()
    reserved = [e.release_id for e in worker.ledger.entries if e.kind == "reserved"]
    assert reserved == ["north/0#0", "north/1#0", "north/1#1"]


def test_what_a_solver_tells_is_private_unless_it_says_otherwise_and_logged_only_on_request():
    logged = {}
    server = Server(1)
    worker = make_worker(server, solver=counting_solver(), private_log=logged.__setitem__)
    worker.tick()
    assert kinds(worker) == ["reserved", "sealed"]
    ((release_id, told),) = logged.items()
    assert release_id == "north/0#0"
    assert isinstance(told["bare"], metrics.Private)
    assert isinstance(told["typed"], metrics.Public)
    worker.tick()
    names = [tensor.name for tensor in server.received[0].payload.tensors]
    assert names == ["J", "h"]


def test_what_is_sent_is_what_was_sealed():
    store = MemoryClientStore(ledger.open_ledger(header()))
    server = Server(1)
    worker = make_worker(server, store=store)
    worker.tick()
    payload = store._outbox["north/0#0"]
    tensor = payload.tensors[0]._replace(data=bytes(len(payload.tensors[0].data)))
    store._outbox["north/0#0"] = payload._replace(tensors=(tensor, *payload.tensors[1:]))
    with pytest.raises(errors.ProtocolError, match="sha256"):
        worker.tick()
    other = codec.encode(release.public({"h": np.zeros(2)}))
    store._outbox["north/0#0"] = other
    with pytest.raises(errors.LedgerError, match="sealed with digest"):
        worker.tick()
    assert server.received == []


def test_the_anchor_tells_a_ledger_that_was_cut():
    worker = make_worker(Server(2))
    worker.tick()
    seen = worker.anchor
    worker.tick()
    worker.tick()
    ledger.check_anchor(worker.ledger, seen)
    with pytest.raises(errors.LedgerError):
        ledger.check_anchor(worker.ledger, ledger.Anchor(99, seen.hash))
    assert seen.entries == 2


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


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BudgetExceeded("no more"), "budget"),
        (errors.PolicyRefused("the policy says no"), "policy"),
        (errors.DataError("patient 7 is dead"), "data"),
        (errors.SolverError("0.731 is no optimum"), "solver"),
        (errors.PrivacyError("the records changed"), "other"),
    ],
)
def test_a_task_that_cannot_be_answered_is_reported_by_one_word(error, code):
    def refuse(*_):
        raise error

    server = Server(1)
    place = {"admit": refuse} if code in ("budget", "policy") else {"shard": refuse}
    worker = make_worker(server, **place)
    with pytest.raises(type(error), match=error.message):
        worker.tick()
    assert server.failures == [Failure("north", "north/0", code)]
    assert server.received == []


def test_what_went_wrong_is_raised_also_if_nobody_can_be_told():
    class Deaf(Server):
        def handle(self, request):
            if isinstance(request, Failure):
                raise ConnectionError("the server is gone")
            return super().handle(request)

    def shard():
        raise errors.DataError("no such file")

    with pytest.raises(errors.DataError, match="no such file"):
        make_worker(Deaf(1), shard=shard).tick()


class Forgetful(Server):
    """Says, for the first ``times`` requests after each greeting, that it was not greeted."""

    def __init__(self, visits: int, times: int) -> None:
        super().__init__(visits)
        self.times = times
        self.hellos: list[Hello] = []

    def handle(self, request):
        if isinstance(request, Hello):
            self.hellos.append(request)
        elif self.times:
            self.times -= 1
            raise errors.HelloNeeded("who are you?")
        return super().handle(request)


def test_a_server_that_was_started_again_is_greeted_again():
    server = Forgetful(1, times=3)
    worker = make_worker(server)
    assert worker.tick() == "solved"
    server.times = 1
    assert worker.tick() == "sent"
    anchors = [hello.anchor for hello in server.hellos]
    assert [anchor.entries for anchor in anchors] == [0, 0, 0, 0, 2]
    assert anchors[-1].hash == worker.ledger.entries[1].hash
    assert [worker.tick(), worker.ended] == ["done", "finished"]


def test_a_server_that_knows_nobody_is_not_asked_for_ever():
    with pytest.raises(errors.HelloNeeded):
        make_worker(Forgetful(1, times=10**6)).tick()


def test_an_answer_names_the_attempt_that_it_is_of():
    server = Server(1)
    worker = make_worker(server, solver=failing_once(noisy_solver()))
    with pytest.raises(MemoryError):
        worker.tick()
    server.tasks[0] = server.tasks[0]._replace(damping=0.5)
    while worker.tick() != "done":
        pass
    assert [submit.attempt for submit in server.received] == [1]


def test_a_receipt_of_a_server_that_forgot_what_it_took_is_refused():
    class Liar(Server):
        def handle(self, request):
            reply = super().handle(request)
            if isinstance(reply, Receipt):
                return reply._replace(anchor=ledger.anchor(ledger.open_ledger(header())))
            return reply

    worker = make_worker(Liar(1))
    worker.tick()
    with pytest.raises(errors.LedgerError, match="the server's ledger of 'north' was rolled back"):
        worker.tick()
    assert kinds(worker) == ["reserved", "sealed"]


def test_the_server_hears_in_one_word_of_an_error_that_nobody_foresaw():
    # Else it would wait for this client for ever; the text may hold a record's values.
    def broken(key_of, state, job, shard):
        raise ValueError("could not convert 'Jane Doe'")

    server = Server(1)
    worker = make_worker(server, solver=noisy_solver()._replace(update=broken))
    with pytest.raises(ValueError, match="Jane Doe"):
        worker.tick()
    assert server.failures == [Failure("north", "north/0", "other")]


def test_a_stop_is_no_failure():
    class Stopped(BaseException):
        pass

    def stopped(key_of, state, job, shard):
        raise Stopped

    server = Server(1)
    worker = make_worker(server, solver=noisy_solver()._replace(update=stopped))
    with pytest.raises(Stopped):
        worker.tick()
    assert server.failures == []


def test_a_client_that_was_charged_does_not_go_on_with_a_server_that_has_no_ledger_of_it():
    class Forgetful(Server):
        def handle(self, request):
            return Welcome(0) if isinstance(request, Hello) else super().handle(request)

    store = MemoryClientStore(ledger.open_ledger(header()))
    # A client that has charged nothing has nothing that could be forgotten.
    make_worker(Forgetful(1), store=store).tick()
    assert store.ledger.entries
    server = Forgetful(1)
    with pytest.raises(errors.LedgerError, match="the server has no ledger of 'north'"):
        make_worker(server, store=store).tick()
    assert server.received == server.failures == []
