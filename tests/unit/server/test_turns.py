"""When a run waits, whom it skips, who comes back, and how it ends."""

import jax
import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.federation import damping, schedules
from fedvi.federation.messages import (
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Noted,
    Offer,
    Receipt,
    Renew,
    Renewed,
    Submit,
    Wait,
)
from fedvi.federation.progress import Patience
from fedvi.privacy import accountants, events, ledger, mechanisms, release, sampling
from fedvi.privacy import bounded as bounds
from fedvi.privacy.release import disclose
from fedvi.server.core import protocol
from fedvi.transport import codec
from fedvi.updates.base import finish_natural

FAMILY = expfam.diagonal_gaussian(1)
EIGHT = tuple("abcdefgh")
COST = events.Unprotected("q")


def make_spec(kind="synchronous", clients=EIGHT, rounds=3, deadline=10.0, quorum=4, **fields):
    return protocol.ServerSpec(
        study_digest="d",
        clients=clients,
        family=FAMILY,
        prior=FAMILY.isotropic(1.0),
        schedule=getattr(schedules, kind)(rounds),
        step_rule=damping.fixed(1.0),
        finish=dict.fromkeys(clients, finish_natural),
        costs=dict.fromkeys(clients, COST),
        patience=Patience(deadline, quorum),
        **fields,
    )


def answer(task, shift=0.0):
    """Proposes the posterior that it was given, one record sharper."""
    value = {"h": np.asarray(task.posterior.h) + shift, "J": np.asarray(task.posterior.J) + 1.0}
    return codec.encode(disclose(value, "q"))


class Run:
    """A server and a clock, and clients that answer at once when told to work."""

    def __init__(self, spec):
        self.spec = spec
        self.state = protocol.initial_state(spec)
        self.now = 0.0
        self.tick(0.0)

    def tick(self, now):
        self.now = now
        self.state = protocol.tick(self.spec, self.state, now)

    def ask(self, request):
        self.state, reply = protocol.step(self.spec, self.state, request, self.now)
        return reply

    def work(self, *names):
        """Lets each client take its task and answer it."""
        for name in names:
            offer = self.ask(NextTask(name))
            assert isinstance(offer, Offer), (name, offer)
            assert self.ask(Submit(name, offer.task.task_id, answer(offer.task))).status == (
                "accepted"
            )

    @property
    def missing(self):
        return [update.missing for update in self.state.history]


@pytest.mark.parametrize("taken", [False, True])
def test_with_one_of_eight_dead_the_round_ends_at_its_deadline_and_later_ones_wait_no_more(taken):
    run = Run(make_spec())
    if taken:
        run.ask(NextTask("h"))
    run.work(*EIGHT[:7])
    run.tick(9.99)
    assert run.state.version == 0
    assert protocol.next_deadline(run.spec, run.state) == 10.0
    run.tick(10.0)
    assert run.state.version == 1
    assert run.state.away == {"h": protocol.OVERDUE}
    run.work(*EIGHT[:7])
    assert run.state.version == 2
    run.work(*EIGHT[:7])
    assert run.state.status == "completed"
    assert run.now == 10.0
    assert run.missing == [("h",)] * 3
    assert run.state.visits == {**dict.fromkeys(EIGHT, 3), "h": 0}


@pytest.mark.parametrize("request_", [Hello("h", "d"), NextTask("h")])
def test_a_client_that_is_heard_of_again_is_back_in_the_next_round(request_):
    run = Run(make_spec())
    run.work(*EIGHT[:7])
    run.tick(10.0)
    run.ask(request_)
    assert run.state.away == {}
    run.work(*EIGHT[:7])
    # Its turn of this round was skipped when the round began.
    assert run.state.version == 2
    run.work(*EIGHT)
    assert run.missing == [("h",), ("h",), ()]


def test_a_renewal_alone_brings_nobody_back():
    run = Run(make_spec())
    task = run.ask(NextTask("h")).task
    run.work(*EIGHT[:7])
    run.tick(10.0)
    assert run.ask(Renew("h", task.task_id)) == Renewed(True)
    assert run.ask(Renew("h", "h/7")) == Renewed(False)
    assert "h" in run.state.away


def test_a_late_answer_joins_the_next_fold_and_counts_as_no_turn():
    run = Run(make_spec(rounds=3))
    late = run.ask(NextTask("h")).task
    run.work(*EIGHT[:7])
    run.tick(10.0)
    run.work("a")
    assert run.ask(Submit("h", late.task_id, answer(late, 0.5))).status == "accepted"
    assert run.ask(NextTask("h")) == Wait()
    run.work(*EIGHT[1:7])
    update = run.state.history[-1]
    assert (update.version, update.clients) == (2, ("a", "h", *EIGHT[1:7]))
    assert update.staleness == (0, 1, *[0] * 6)
    assert (run.state.visits["h"], run.state.turns["h"]) == (1, 2)
    assert run.state.factors["h"].h.tolist() == [0.5]
    run.work(*EIGHT)
    assert run.state.status == "completed"
    assert run.state.visits["h"] == 2


def test_an_answer_to_an_old_task_takes_the_turn_that_its_client_is_in():
    run = Run(make_spec(rounds=3))
    old = run.ask(NextTask("h")).task
    run.work(*EIGHT[:7])
    run.tick(10.0)
    assert run.ask(NextTask("h")) == Offer(old)
    run.work(*EIGHT[:7])
    assert run.ask(NextTask("h")) == Offer(old)
    run.work(*EIGHT[:7])
    assert run.state.version == 2
    run.ask(Submit("h", old.task_id, answer(old)))
    assert run.state.status == "completed"
    assert (run.state.visits["h"], run.state.turns["h"]) == (1, 3)


def test_a_sequential_turn_passes_on_at_the_deadline():
    run = Run(make_spec("sequential", clients=("a", "b", "c"), rounds=2, quorum=1))
    run.work("a")
    task = run.ask(NextTask("b")).task
    assert run.ask(NextTask("c")) == Wait()
    run.tick(10.0)
    third = run.ask(NextTask("c")).task
    assert run.ask(Submit("b", task.task_id, answer(task))).version == 2
    # b is back; its turn is over, and c's goes on.
    assert run.state.turns == {"a": 1, "b": 1, "c": 0}
    run.ask(Submit("c", third.task_id, answer(third)))
    run.work("a", "b", "c")
    assert run.state.status == "completed"
    assert run.state.visits == {"a": 2, "b": 2, "c": 2}
    assert run.missing[1] == ("b",)


def test_asynchronous_clients_are_skipped_only_when_all_others_are_done():
    run = Run(make_spec("asynchronous", clients=("a", "b", "c"), rounds=2, quorum=1))
    run.tick(5.0)
    run.work("a", "b")
    run.tick(10.0)
    assert set(run.state.away) == {"c"}
    assert run.state.turns == {"a": 1, "b": 1, "c": 0}
    run.work("a", "b")
    assert run.state.status == "completed"
    assert run.state.turns == {"a": 2, "b": 2, "c": 2}
    assert run.state.visits["c"] == 0


def test_nobody_is_skipped_below_the_quorum():
    run = Run(make_spec(clients=("a", "b", "c"), quorum=2))
    run.work("a")
    run.tick(10.0)
    assert set(run.state.away) == {"b", "c"}
    run.tick(1e6)
    assert (run.state.version, run.state.turns) == (0, {"a": 0, "b": 0, "c": 0})
    assert protocol.next_deadline(run.spec, run.state) is None
    # With b there are two again: it is awaited anew, and c is skipped.
    run.ask(Hello("b", "d"))
    assert run.state.turns["c"] == 1
    assert protocol.next_deadline(run.spec, run.state) == 1e6 + 10.0
    run.work("b")
    assert run.missing == [("c",)]


def test_an_answer_is_taken_before_its_client_s_return_lets_the_run_end():
    run = Run(make_spec(clients=("a", "b"), rounds=1, quorum=1))
    old = run.ask(NextTask("b")).task
    run.tick(10.0)
    task = run.ask(NextTask("a")).task
    run.ask(Failure("a", task.task_id, "solver"))
    # Nobody is there; b's turn is over, and with b back a's is skipped.
    assert run.state.turns == {"a": 0, "b": 1}
    run.ask(Submit("b", old.task_id, answer(old)))
    assert run.state.status == "completed"
    assert run.state.visits == {"a": 0, "b": 1}


def test_an_answer_is_in_its_turn_though_its_client_would_be_given_no_task_now():
    inner = schedules.asynchronous(2)
    spec = make_spec(clients=("a", "b"), quorum=1)._replace(
        # A schedule may hand out nothing while somebody is at work on an old task.
        schedule=inner._replace(select=lambda p: () if "b" in p.open else inner.select(p))
    )
    run = Run(spec)
    task = run.ask(NextTask("a")).task
    run.ask(NextTask("b"))
    run.ask(Submit("a", task.task_id, answer(task)))
    assert run.state.turns == run.state.visits == {"a": 1, "b": 0}


def test_each_client_is_skipped_at_its_own_deadline_and_one_without_at_none():
    run = Run(make_spec(clients=("a", "b", "c"), deadline={"a": 5.0, "b": 20.0}, quorum=1))
    assert protocol.next_deadline(run.spec, run.state) == 5.0
    run.tick(5.0)
    assert run.state.away == {"a": protocol.OVERDUE}
    assert run.state.turns == {"a": 1, "b": 0, "c": 0}
    assert protocol.next_deadline(run.spec, run.state) == 20.0
    run.tick(1e6)
    assert set(run.state.away) == {"a", "b"}
    assert protocol.next_deadline(run.spec, run.state) is None
    run.work("c")
    assert run.missing == [("a", "b")]
    # Who left is waited for if it has no deadline, and skipped if it has one.
    run.ask(Goodbye("c"))
    assert run.state.turns == {"a": 2, "b": 2, "c": 1}


def test_without_a_deadline_everybody_is_waited_for():
    run = Run(make_spec(clients=("a", "b"), deadline=None, quorum=1))
    run.work("a")
    assert run.ask(Goodbye("b")) == Noted()
    run.tick(1e9)
    assert run.state.turns["b"] == 0
    run.work("b")
    assert run.missing == [()]


def test_who_leaves_is_not_waited_for_until_the_deadline():
    run = Run(make_spec())
    run.ask(Goodbye("h"))
    run.work(*EIGHT[:7])
    assert run.state.version == 1
    assert run.state.away == {"h": protocol.LEFT}


@pytest.mark.parametrize("code", ["budget", "policy"])
@pytest.mark.parametrize("deadline", [None, 10.0])
def test_a_client_that_may_not_answer_is_waited_for_by_nobody(code, deadline):
    run = Run(make_spec(deadline=deadline))
    task = run.ask(NextTask("h")).task
    assert run.ask(Failure("h", task.task_id, code)) == Noted()
    run.work(*EIGHT[:7])
    assert run.state.version == 1


def test_a_client_that_failed_once_is_waited_for_where_there_is_no_deadline():
    run = Run(make_spec(deadline=None))
    task = run.ask(NextTask("h")).task
    run.ask(Failure("h", task.task_id, "solver"))
    run.work(*EIGHT[:7])
    assert run.state.version == 0
    assert run.state.away == {"h": "solver"}
    run.work("h")
    assert run.state.version == 1


def test_a_failure_that_arrives_after_the_answer_changes_nothing():
    run = Run(make_spec())
    task = run.ask(NextTask("h")).task
    run.work("h")
    run.ask(Failure("h", task.task_id, "solver"))
    assert run.state.away == {}


def test_an_unknown_reason_is_refused():
    run = Run(make_spec())
    with pytest.raises(errors.ProtocolError, match="expected one of budget, policy"):
        run.ask(Failure("h", "h/0", "patient 7 is dead"))


@pytest.mark.parametrize("kind", schedules.__all__)
def test_a_run_in_which_everybody_failed_has_failed(kind):
    run = Run(make_spec(kind, clients=("a", "b"), quorum=1))
    ends = []
    for name in ("a", "b"):
        task = run.ask(NextTask(name)).task
        run.ask(Failure(name, task.task_id, "data"))
        ends.append(run.state.status)
    assert ends == ["running", "failed"]
    assert isinstance(run.ask(NextTask("a")), Done)


def test_a_run_with_too_few_that_may_answer_has_failed_and_can_be_resumed():
    run = Run(make_spec(clients=("a", "b", "c"), quorum=2))
    for name in ("b", "c"):
        task = run.ask(NextTask(name)).task
        run.ask(Failure(name, task.task_id, "policy"))
    assert run.state.status == "running"
    run.work("a")
    assert run.state.status == "failed"
    # Whoever asks is told that it may go on, and so forgets nothing that it would need.
    assert run.ask(NextTask("a")).resumable
    # Nobody goes on with it once the operator has stopped it.
    stopped = protocol.control(run.spec, run.state, "stop", run.now)
    reply = protocol.step(run.spec, stopped, NextTask("a"), run.now)[1]
    assert reply == Done("the run was stopped")
    run.state = protocol.control(run.spec, run.state, "resume", run.now)
    run.work("b", "c")
    assert run.state.version == 1


class TestControl:
    def test_a_paused_run_offers_nothing_and_takes_answers(self):
        run = Run(make_spec("sequential", clients=("a", "b"), quorum=1))
        task = run.ask(NextTask("a")).task
        run.state = protocol.control(run.spec, run.state, "pause", run.now)
        assert run.ask(NextTask("a")) == Wait()
        assert run.ask(Submit("a", task.task_id, answer(task))) == Receipt("accepted", 1)
        run.tick(1e6)
        assert run.ask(NextTask("b")) == Wait()
        assert run.state.away == {}
        run.state = protocol.control(run.spec, run.state, "resume", run.now)
        assert protocol.next_deadline(run.spec, run.state) == 1e6 + 10.0
        run.work("b")

    def test_a_stopped_run_is_done_and_an_answer_to_it_moves_nothing(self):
        run = Run(make_spec(headers={"a": header("a")}, clients=("a", "b"), quorum=1))
        run.ask(Hello("a", "d", ledger.anchor(run.state.ledgers["a"])))
        task = run.ask(NextTask("a")).task
        run.state = protocol.control(run.spec, run.state, "stop", run.now)
        assert run.ask(NextTask("b")) == Done("the run was stopped")
        before = run.state.posterior
        assert run.ask(Submit("a", task.task_id, answer(task))).status == "accepted"
        assert tree.equal(run.state.posterior, before)
        # It left the client, and so it stands in the ledger.
        assert [entry.kind for entry in run.state.ledgers["a"].entries] == [
            "reserved",
            "sealed",
            "sent",
        ]

    def test_what_is_over_cannot_go_on(self):
        run = Run(make_spec())
        run.state = protocol.control(run.spec, run.state, "stop", run.now)
        assert protocol.control(run.spec, run.state, "stop", run.now) is run.state
        with pytest.raises(errors.RunFailed, match="the run is stopped and cannot be running"):
            protocol.control(run.spec, run.state, "resume", run.now)


def header(client, protected=False):
    return ledger.Header("s", "d", client, "record", "substitute", "message", protected)


def noised(task):
    """Answers with something that cost a noised release."""
    mechanism, key = mechanisms.gaussian(20.0), jax.random.key(0)
    batch = sampling.full(1).draw(key, np.ones(1, bool))
    bounded = bounds.clipped_sum(np.ones((batch.mask.size, 1), np.float32), 1.0, batch, mechanism)
    value = {"h": np.asarray(task.posterior.h), "J": np.asarray(task.posterior.J)}
    return codec.encode(
        release.post_process(lambda _: value, release.release(key, bounded, mechanism))
    )


class TestBudget:
    """Each answer costs σ = 20; the budget has room for two."""

    COST = events.Gaussian(20.0)

    def run(self, clients=("a", "b"), **patience):
        accountant = accountants.zcdp("substitute")
        epsilon = accountant.epsilon(events.repeat(self.COST, 2), 1e-5)
        spec = make_spec(clients=clients, rounds=5, **{"deadline": None, "quorum": 1, **patience})
        spec = spec._replace(
            headers={"a": header("a", protected=True)},
            costs=dict.fromkeys(clients, self.COST),
            budget=ledger.Budget(epsilon, 1e-5, accountant),
        )
        run = Run(spec)
        run.ask(Hello("a", "d", ledger.anchor(run.state.ledgers["a"])))
        return run

    def pay(self, run, name, attempt=0):
        task = run.ask(NextTask(name)).task
        return run.ask(Submit(name, task.task_id, noised(task), attempt))

    def test_a_task_is_charged_before_it_is_offered_and_only_once(self):
        run = self.run()
        first = run.ask(NextTask("a"))
        assert [entry.kind for entry in run.state.ledgers["a"].entries] == ["reserved"]
        before = run.state
        assert run.ask(NextTask("a")) == first
        assert protocol.is_durably_equal(before, run.state)

    def test_no_step_exceeds_the_budget_and_the_run_ends_with_it(self):
        run = self.run()
        for _ in range(2):
            self.pay(run, "a")
            self.pay(run, "b")
        reply = run.ask(NextTask("a"))
        assert reply == Done("the budget of client 'a' has no room for another release")
        assert run.ask(NextTask("a")) == reply
        assert ledger.reservations(run.state.ledgers["a"]) == 2
        assert run.state.status == "running"
        self.pay(run, "b")
        assert run.state.status == "budget_exhausted"

    def test_further_attempts_are_charged_or_refused(self):
        run = self.run()
        self.pay(run, "a", attempt=1)
        book = run.state.ledgers["a"]
        assert [(e.kind, e.release_id) for e in book.entries] == [
            ("reserved", "a/0#0"),
            ("reserved", "a/0#1"),
            ("sealed", "a/0#1"),
            ("sent", "a/0#1"),
        ]
        fresh = self.run()
        before = fresh.state
        with pytest.raises(errors.BudgetExceeded):
            self.pay(fresh, "a", attempt=2)
        assert fresh.state.posterior is before.posterior
        with pytest.raises(
            errors.ProtocolError, match="attempt is 1000, expected at least 0 and below"
        ):
            self.pay(fresh, "a", attempt=1000)

    def test_who_did_not_greet_gets_no_task(self):
        run = self.run()
        restarted = protocol.take_up(run.spec, run.state)
        with pytest.raises(errors.HelloNeeded, match="'a' did not greet"):
            protocol.step(run.spec, restarted, NextTask("a"), 0.0)
        with pytest.raises(errors.ProtocolError, match="expected an anchor in Hello"):
            protocol.step(run.spec, restarted, Hello("a", "d"), 0.0)


def test_a_run_in_which_nobody_ever_answered_is_no_success():
    # A deadline shorter than the work: one is there while the other is skipped, and so on.
    run = Run(make_spec(clients=("a", "b"), rounds=2, deadline=10.0, quorum=1))
    run.ask(NextTask("a"))
    late = run.ask(NextTask("b")).task
    for turn in range(20):
        run.tick(10.0 * turn)
        if run.state.status == "running":
            run.ask(NextTask("ab"[turn % 2]))
    assert run.state.visits == {"a": 0, "b": 0}
    assert run.state.status == "failed"
    # An answer that comes after all is kept for whoever resumes.
    assert run.ask(Submit("b", late.task_id, answer(late))).status == "accepted"
    run.state = protocol.control(run.spec, run.state, "resume", run.now)
    assert (run.state.status, run.state.version) == ("completed", 1)
