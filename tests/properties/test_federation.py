"""What holds for every order of requests, duplicates, silences, deadlines and restarts."""

import contextlib
import json
import random as public_random

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors, expfam
from fedvi.client.worker import Worker
from fedvi.expfam import tree
from fedvi.federation import damping, schedules
from fedvi.federation.messages import (
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Receipt,
    Renew,
    Submit,
)
from fedvi.federation.progress import Patience
from fedvi.privacy import events, ledger, random
from fedvi.privacy.release import disclose
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.transport import codec
from fedvi.updates.base import LocalSolver, Shard, finish_natural

FAMILY = expfam.diagonal_gaussian(1)
CLIENTS = ("a", "b", "c", "d")
COST = events.Unprotected("q")
KINDS = st.sampled_from(schedules.__all__)


def header(client: str) -> ledger.Header:
    return ledger.Header("s", "d", client, "record", "substitute", "message", False)


def make_spec(kind, rounds, patience=None, rule=None) -> protocol.ServerSpec:
    return protocol.ServerSpec(
        study_digest="d",
        clients=CLIENTS,
        family=FAMILY,
        prior=FAMILY.isotropic(1.0),
        schedule=getattr(schedules, kind)(rounds),
        step_rule=rule or damping.fixed(1.0),
        finish=dict.fromkeys(CLIENTS, finish_natural),
        costs=dict.fromkeys(CLIENTS, COST),
        patience=patience or Patience(),
        headers={name: header(name) for name in CLIENTS},
    )


class Play:
    """A server, a clock, and clients that do as they are told; checks every state.

    The k-th task that is ever answered moves its factor by 2^k: the binary digits of a factor tell
    which answers are in it, and how often.
    """

    def __init__(self, spec: protocol.ServerSpec) -> None:
        self.spec = spec
        self.state = protocol.initial_state(spec)
        self.now = 0.0
        self.sent: list[Submit] = []
        self.beside: dict[str, set[tuple[str, str]]] = {}
        self.charged: set[tuple[str, str]] = set()
        self.before_the_end: set[str] = set()
        self.books = dict(self.state.ledgers)
        self.take(protocol.tick(spec, self.state, 0.0))

    def take(self, state: protocol.ServerState) -> None:
        before, self.state = self.state, state
        fresh = set(state.accepted) - set(before.accepted)
        if before.status not in protocol.OVER:
            self.before_the_end |= fresh
        self.check()

    def ask(self, request):
        """Returns the reply, or what was raised."""
        before = self.state
        try:
            state, reply = protocol.step(self.spec, self.state, request, self.now)
        except errors.FedviError as error:
            assert self.state is before
            return error
        self.take(state)
        return reply

    def act(self, what: str, name: str, amount: int) -> None:
        task = self.state.tasks.get(name)
        match what:
            case "hello":
                self.ask(Hello(name, "d", ledger.anchor(self.state.ledgers[name])))
            case "ask":
                self.ask(NextTask(name))
            case "answer" if task is not None:
                submit = Submit(name, task.task_id, self.payload(task, len(self.sent)))
                reply = self.ask(submit)
                if isinstance(reply, Receipt):
                    assert reply.status == "accepted"
                    self.sent.append(submit)
            case "again" if self.sent:
                before = self.state
                reply = self.ask(self.sent[amount % len(self.sent)])
                assert isinstance(reply, errors.HelloNeeded) or reply.status == "duplicate"
                assert self.state.factors is before.factors or self.state.version > before.version
            case "conflict" if self.sent and task is not None:
                old = self.sent[amount % len(self.sent)]
                other = old._replace(payload=self.payload(task, 60))
                known = (old.task_id, other.payload.sha256)
                charged = ledger.reservations(self.state.ledgers[old.client])
                # As many as there are other bytes for a task; the same ones are charged once.
                self.beside.setdefault(old.client, set()).add(known)
                assert self.ask(other).status == "conflict"
                more = ledger.reservations(self.state.ledgers[old.client]) - charged
                assert more == (known not in self.charged)
                self.charged.add(known)
            case "silence":
                self.now += float(amount)
                self.take(protocol.tick(self.spec, self.state, self.now))
            case "restart":
                self.now += 1e6
                self.take(protocol.take_up(self.spec, self.state))
            case "renew":
                self.ask(Renew(name, f"{name}/{amount % 3}"))
            case "leave":
                self.ask(Goodbye(name))
            case "fail" if task is not None:
                self.ask(Failure(name, task.task_id, ("solver", "data")[amount % 2]))
            case "pause" | "resume" if self.state.status in ("running", "paused"):
                self.take(protocol.control(self.spec, self.state, what, self.now))
            case "remove" if amount < 3:
                try:
                    state = protocol.remove(self.spec, self.state, name, self.now)
                except (errors.ConfigError, errors.RunFailed):
                    return  # too few would be left, or it is over
                self.take(state)
                assert protocol.is_removed(self.state, name)

    def payload(self, task, k: int):
        target = tree.add(task.posterior, FAMILY.zeros()._replace(h=np.array([2.0**k])))
        return codec.encode(disclose({"h": target.h, "J": np.asarray(target.J)}, "q"))

    def check(self) -> None:
        state, rounds = self.state, self.spec.schedule.rounds
        progress = protocol.progress_of(self.spec, state)
        total = tree.total((state.factors[name] for name in sorted(CLIENTS)), self.spec.prior)
        assert tree.equal(state.posterior, tree.to_numpy(total))
        waiting = {answer.task.task_id for answer in state.answers}
        for name in CLIENTS:
            assert 0 <= state.visits[name] <= state.turns[name] <= rounds
            folded = [
                2.0**k
                for k, submit in enumerate(self.sent)
                if submit.client == name and submit.task_id in self.before_the_end - waiting
            ]
            if protocol.is_removed(state, name):
                folded = []
                assert not tree.leaves(state.factors[name])[0].any()
                assert name not in progress.clients
            # The newest answer is noted in `sent` only after its receipt.
            assert state.factors[name].h[0] in (sum(folded), sum(folded) + 2.0 ** len(self.sent))
            book = state.ledgers[name]
            assert ledger.reservations(book) <= rounds + len(self.beside.get(name, ()))
            ledger.check_anchor(book, ledger.anchor(self.books[name]))
            self.books[name] = book
        assert sum(len(update.clients) for update in state.history) == sum(state.visits.values())


ACTIONS = (
    *("ask", "answer", "hello") * 3,
    *("again", "conflict", "silence", "silence", "restart", "renew"),
    *("leave", "fail", "pause", "resume", "resume", "remove"),
)


@settings(max_examples=60)
@given(
    kind=KINDS,
    rounds=st.integers(1, 3),
    deadline=st.sampled_from([None, 10.0]),
    quorum=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_whatever_happens_every_answer_is_folded_once_and_no_turn_is_had_twice(
    kind, rounds, deadline, quorum, seed
):
    play = Play(make_spec(kind, rounds, Patience(deadline, quorum)))
    for name in CLIENTS:
        play.act("hello", name, 0)
    dice = public_random.Random(seed)
    for _ in range(100):
        play.act(dice.choice(ACTIONS), dice.choice(CLIENTS), dice.randrange(20))
    # Once everybody is back and works, the run ends.
    if play.state.status == "paused":
        play.act("resume", "a", 0)
    for _ in range(4 * (rounds + 2)):
        for name in CLIENTS:
            for what in ("hello", "ask", "answer"):
                play.act(what, name, 0)
    assert play.state.status in ("completed", "failed")
    if play.state.status == "completed":
        assert set(protocol.progress_of(play.spec, play.state).turns) == {rounds}
    for book in play.state.ledgers.values():
        ledger.verify(book)


class Dead(Exception):
    """A process was killed, or its connection lost."""


class Chaos:
    """A link that loses, repeats and reorders, to a server that is killed and whose disk fills up."""

    def __init__(self, spec, seed: int, trouble: float) -> None:
        self.spec = spec
        self.now = 0.0
        self.store = MemoryServerStore()
        self.dice = public_random.Random(seed)
        self.trouble = trouble
        self.old: list = []
        self.digests: dict[str, set[str]] = {}
        self.start()
        self.store.save = self.save

    def start(self) -> None:
        self.coordinator = Coordinator(self.spec, self.store, clock=lambda: self.now)

    def happens(self) -> bool:
        return self.dice.random() < self.trouble

    def save(self, state) -> None:
        if self.happens():
            raise Dead("the disk is full")
        return MemoryServerStore.save(self.store, state)

    def handle(self, request):
        if isinstance(request, Submit):
            self.digests.setdefault(request.task_id, set()).add(request.payload.sha256)
        self.old.append(request)
        if self.happens():
            with contextlib.suppress(Dead):
                self.start()
        if self.happens():
            raise Dead("the request was lost")
        reply = self.coordinator.handle(request)
        while self.happens():
            try:
                self.coordinator.handle(self.dice.choice(self.old))
            except (errors.FedviError, Dead):
                continue
        if self.happens():
            raise Dead("the reply was lost")
        return reply


def noisy_solver(client: str, chaos: Chaos) -> LocalSolver:
    """Proposes where it was before, its own shift, and noise."""

    def update(key_of, state, task, shard):
        noise = float(jax.random.bits(key_of("noise"), dtype=np.uint32)) / 2.0**32
        target = {
            "h": np.asarray(task.posterior.h) + CLIENTS.index(client) + noise,
            "J": np.asarray(task.posterior.J) + 1.0,
        }
        if chaos.happens():
            raise Dead("killed while it solved")
        return state, disclose(target, "q"), {}

    return LocalSolver("noisy", lambda eta: (), update, finish_natural, COST, 2)


def run_workers(kind: str, seed: int, trouble: float, root=None, patience=None):
    """Runs four workers to the end; a worker that dies starts again on what it stored.

    A tick takes up to two seconds.
    """
    chaos = Chaos(make_spec(kind, 2, patience, damping.adaptive()), seed, trouble)
    stores = {name: MemoryClientStore(ledger.open_ledger(header(name))) for name in CLIENTS}

    def shard():
        if chaos.happens():
            raise Dead("killed while it read")
        return Shard({"x": np.ones((1, 1), np.float32)}, np.ones(1, bool))

    def start(name):
        return Worker(
            client=name,
            study_digest="d",
            link=chaos,
            solver=noisy_solver(name, chaos),
            shard=shard,
            root=root or random.insecure_root(0),
            store=stores[name],
            budget=None,
        )

    workers = {name: start(name) for name in CLIENTS}
    at_work = list(CLIENTS)
    for _ in range(5_000):
        if not at_work:
            break
        name = chaos.dice.choice(at_work)
        chaos.now += chaos.dice.uniform(0.0, 2.0)
        try:
            if workers[name].tick() == "done":
                at_work.remove(name)
        except Dead:
            workers[name] = start(name)
    assert not at_work, "the run does not end"
    return chaos, stores


@settings(max_examples=15)
@given(kind=KINDS, seed=st.integers(0, 2**32))
def test_under_any_trouble_both_ledgers_are_the_same_chain_and_no_noise_is_redrawn(kind, seed):
    chaos, stores = run_workers(kind, seed, 0.1, random.secure_root())
    state = chaos.coordinator.state
    assert state.status == "completed"
    assert set(state.visits.values()) == {2}
    assert all(len(digests) == 1 for digests in chaos.digests.values())
    for name, store in stores.items():
        assert store.ledger == state.ledgers[name]
        assert ledger.reservations(store.ledger) == 2
        ledger.verify(store.ledger)


@settings(max_examples=15)
@given(kind=KINDS, seed=st.integers(0, 2**32), quorum=st.integers(1, 4))
def test_with_deadlines_both_ledgers_differ_at_most_by_what_is_on_its_way(kind, seed, quorum):
    chaos, stores = run_workers(kind, seed, 0.1, random.secure_root(), Patience(20.0, quorum))
    state = chaos.coordinator.state
    assert state.status == "completed"
    assert set(state.turns.values()) == {2}
    assert all(len(digests) == 1 for digests in chaos.digests.values())
    for name, store in stores.items():
        ledger.check_counterpart(store.ledger, ledger.anchor(state.ledgers[name]), "client")
        ledger.check_counterpart(state.ledgers[name], ledger.anchor(store.ledger), "server")
        assert ledger.reservations(store.ledger) <= 2


@settings(max_examples=8)
@given(kind=st.sampled_from(["sequential", "synchronous"]), seed=st.integers(0, 2**32))
def test_a_troubled_run_ends_in_the_very_bits_of_an_undisturbed_one(kind, seed):
    calm, _ = run_workers(kind, 0, 0.0)
    troubled, _ = run_workers(kind, seed, 0.15)
    for field in ("posterior", "factors", "ledgers", "visits", "version"):
        left, right = (
            getattr(calm.coordinator.state, field),
            getattr(troubled.coordinator.state, field),
        )
        assert json.dumps(left, default=_bits) == json.dumps(right, default=_bits), field


def _bits(value):
    return value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)


@pytest.mark.parametrize("kind", schedules.__all__)
@pytest.mark.parametrize("keep", range(5))
def test_a_server_that_was_rolled_back_is_found_out_by_the_client_s_next_hello(kind, keep):
    """``keep`` folds are all that the restored server knows of eight."""
    spec, saved = make_spec(kind, 2), []
    store = MemoryServerStore()
    server = Coordinator(spec, store, lambda _: saved.append(None))
    books = {name: MemoryClientStore(ledger.open_ledger(header(name))) for name in CLIENTS}
    link = Switch(server)
    workers = {name: plain_worker(name, link, books[name]) for name in CLIENTS}
    snapshots = [server.state]
    for _ in range(200):
        for name in CLIENTS:
            workers[name].tick()
            snapshots.append(server.state)
        if server.state.status == "completed":
            break
    final = server.state
    behind = next(
        snapshot for snapshot in snapshots if snapshot.version == min(keep, final.version - 1)
    )
    restored = MemoryServerStore()
    restored.save(behind)
    link.server = Coordinator(spec, restored)
    found = 0
    for name in CLIENTS:
        fresh = plain_worker(name, link, books[name])
        missing = len(final.ledgers[name].entries) - len(behind.ledgers[name].entries)
        if missing:
            found += 1
            for worker in (workers[name], fresh):
                with pytest.raises(errors.LedgerError, match=r"the server's ledger .* rolled back"):
                    worker.tick()
    assert found


@pytest.mark.parametrize("entries", range(5))
def test_a_client_that_was_rolled_back_is_found_out_at_its_hello(entries):
    spec = make_spec("asynchronous", 2)
    link = Switch(Coordinator(spec, MemoryServerStore()))
    store = MemoryClientStore(ledger.open_ledger(header("a")))
    worker = plain_worker("a", link, store)
    while worker.tick() != "idle":
        pass
    assert len(store.ledger.entries) == 6
    cut = ledger.Ledger(store.ledger.header, store.ledger.entries[:entries])
    restored = plain_worker("a", link, MemoryClientStore(cut))
    with pytest.raises(errors.LedgerError, match="the client's ledger of 'a' was rolled back"):
        restored.tick()
    # The server goes on, and so does the client whose ledger is whole.
    assert worker.tick() == "idle"


class Switch:
    """A link to whichever server stands behind it."""

    def __init__(self, server: Coordinator) -> None:
        self.server = server

    def handle(self, request):
        return self.server.handle(request)


def plain_worker(name: str, link, store) -> Worker:
    def update(key_of, state, task, shard):
        value = {"h": np.asarray(task.posterior.h), "J": np.asarray(task.posterior.J) + 1.0}
        return state, disclose(value, "q"), {}

    return Worker(
        client=name,
        study_digest="d",
        link=link,
        solver=LocalSolver("plain", lambda eta: (), update, finish_natural, COST, 2),
        shard=lambda: Shard({"x": np.ones((1, 1), np.float32)}, np.ones(1, bool)),
        root=random.secure_root(),
        store=store,
        budget=None,
    )
