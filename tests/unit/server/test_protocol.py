"""The server's pure step: what it answers, what it refuses, what stays true after every fold."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation import damping, schedules
from fedvi.federation.messages import (
    Begin,
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Noted,
    Offer,
    Payload,
    Receipt,
    Renew,
    Submit,
    Wait,
    Welcome,
)
from fedvi.privacy import events
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.release import disclose
from fedvi.server.core import protocol
from fedvi.transport import codec
from fedvi.updates.base import finish_natural
from tests.studies import random_eta

FAMILY = expfam.full_gaussian(2)
CLIENTS = ("south", "north", "east")
COST = events.Unprotected("q")


def make_spec(kind="synchronous", rounds=2, rule=None) -> protocol.ServerSpec:
    return protocol.ServerSpec(
        study_digest="d",
        clients=CLIENTS,
        family=FAMILY,
        prior=FAMILY.isotropic(2.0),
        schedule=getattr(schedules, kind)(rounds),
        step_rule=rule or damping.adaptive(),
        finish=dict.fromkeys(CLIENTS, finish_natural),
        costs=dict.fromkeys(CLIENTS, COST),
    )


def step(spec, state, request, now: float = 0.0):
    return protocol.step(spec, state, request, now)


def answer(task, seed=0, what="q") -> Payload:
    target = tree.add(task.posterior, tree.scale(random_eta(FAMILY, seed), 0.5))
    return codec.encode(disclose({"h": target.h, "J": target.J}, what))


def play(spec, seed: int, steps: int = 60):
    """Random clients ask and answer in random order; yields every state."""
    generator = np.random.default_rng(seed)
    state, held = protocol.initial_state(spec), {}
    for index in range(steps):
        name = CLIENTS[generator.integers(3)]
        if name in held and generator.uniform() < 0.7:
            task = held.pop(name)
            state, _ = step(spec, state, Submit(name, task.task_id, answer(task, index)))
        else:
            state, reply = step(spec, state, NextTask(name))
            if isinstance(reply, Offer):
                held[name] = reply.task
        yield state


@given(kind=st.sampled_from(schedules.__all__), seed=st.integers(0, 2**32))
def test_the_posterior_is_the_prior_times_all_factors_after_every_fold(kind, seed):
    spec = make_spec(kind)
    for state in play(spec, seed):
        total = tree.total((state.factors[name] for name in sorted(CLIENTS)), spec.prior)
        assert tree.equal(state.posterior, tree.to_numpy(total))
        assert FAMILY.is_proper(protocol.served(spec, state))


@given(kind=st.sampled_from(schedules.__all__), seed=st.integers(0, 2**32))
def test_no_client_is_visited_more_often_than_was_planned(kind, seed):
    spec = make_spec(kind, rounds=2)
    for state in play(spec, seed, steps=100):
        assert max(state.visits.values()) <= spec.schedule.rounds


def test_a_task_is_offered_until_it_is_answered():
    spec, state = make_spec(), protocol.initial_state(make_spec())
    state, first = step(spec, state, NextTask("north"))
    again, second = step(spec, state, NextTask("north"))
    assert second == first
    assert protocol.is_durably_equal(again, state)


def test_a_repeated_answer_is_counted_once():
    spec, state = make_spec("asynchronous"), protocol.initial_state(make_spec())
    state, reply = step(spec, state, NextTask("north"))
    payload = answer(reply.task)
    state, receipt = step(spec, state, Submit("north", reply.task.task_id, payload))
    assert receipt == Receipt("accepted", 1)
    after, receipt = step(spec, state, Submit("north", reply.task.task_id, payload))
    assert receipt == Receipt("duplicate", 1)
    assert protocol.is_durably_equal(after, state)
    other = answer(reply.task, seed=9)
    after, receipt = step(spec, state, Submit("north", reply.task.task_id, other))
    assert receipt == Receipt("conflict", 1)
    assert protocol.is_durably_equal(after, state)


def test_synchronous_answers_are_folded_together_in_any_order():
    spec, posteriors = make_spec(rounds=1), []
    for order in (CLIENTS, CLIENTS[::-1]):
        state = protocol.initial_state(spec)
        for index, name in enumerate(order):
            state, reply = step(spec, state, NextTask(name))
            seed = CLIENTS.index(name)
            submit = Submit(name, reply.task.task_id, answer(reply.task, seed))
            state, receipt = step(spec, state, submit)
            assert receipt.version == (1 if index == 2 else 0)
        posteriors.append(state.posterior)
        assert isinstance(step(spec, state, NextTask("east"))[1], Done)
    assert tree.equal(*posteriors)


def test_sequential_clients_wait_for_their_turn():
    spec, state = make_spec("sequential"), protocol.initial_state(make_spec())
    assert isinstance(step(spec, state, NextTask("north"))[1], Wait)
    state, reply = step(spec, state, NextTask("south"))
    submit = Submit("south", reply.task.task_id, answer(reply.task))
    state, _ = step(spec, state, submit)
    state, reply = step(spec, state, NextTask("north"))
    assert reply.task.version == 1
    assert tree.equal(reply.task.posterior, state.posterior)


def test_a_stale_answer_changes_its_own_factor_only():
    spec, state = make_spec("asynchronous"), protocol.initial_state(make_spec())
    tasks = {}
    for name in CLIENTS:
        state, reply = step(spec, state, NextTask(name))
        tasks[name] = reply.task
    for name in CLIENTS:
        before = state.factors
        submit = Submit(name, tasks[name].task_id, answer(tasks[name]))
        state, _ = step(spec, state, submit)
        changed = [n for n in CLIENTS if not tree.equal(before[n], state.factors[n])]
        assert changed == [name]
    assert [update.staleness for update in state.history] == [(0,), (1,), (2,)]


def test_hello_compares_the_study():
    spec, state = make_spec(), protocol.initial_state(make_spec())
    assert step(spec, state, Hello("north", "d"))[1] == Welcome(0)
    with pytest.raises(errors.ProtocolError, match="another study"):
        step(spec, state, Hello("north", "e"))


def test_strangers_and_unasked_answers_are_refused():
    spec, state = make_spec(), protocol.initial_state(make_spec())
    with pytest.raises(errors.ProtocolError, match=r"'nroth' is not in the study[\s\S]*`north`"):
        step(spec, state, NextTask("nroth"))
    state, reply = step(spec, state, NextTask("north"))
    with pytest.raises(errors.ProtocolError, match="does not hold"):
        step(spec, state, Submit("south", reply.task.task_id, answer(reply.task)))


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda p: p._replace(sha256="0" * 64), errors.ProtocolError, "does not match"),
        (
            lambda p: codec.encode(disclose({"h": np.zeros(3), "J": np.eye(3)}, "q")),
            errors.ProtocolError,
            "holds arrays",
        ),
        (
            lambda p: codec.encode(disclose({"h": np.zeros(2), "J": np.eye(2)}, "r")),
            errors.ProtocolError,
            "cost",
        ),
    ],
)
def test_a_bad_answer_is_refused_and_changes_nothing(spoil, error, message):
    spec, state = make_spec(), protocol.initial_state(make_spec())
    state, reply = step(spec, state, NextTask("north"))
    payload = spoil(answer(reply.task))
    with pytest.raises(error, match=message):
        step(spec, state, Submit("north", reply.task.task_id, payload))
    assert "north" in state.tasks


def test_an_improper_prior_is_refused():
    spec = make_spec()._replace(prior=FAMILY.zeros())
    with pytest.raises(errors.FamilyError, match="improper"):
        protocol.initial_state(spec)


def test_a_prior_of_another_size_is_refused():
    spec = make_spec()._replace(prior=expfam.full_gaussian(3).isotropic(1.0))
    with pytest.raises(errors.FamilyError, match=r"prior\.h has shape \(3,\), expected \(2,\)"):
        protocol.initial_state(spec)


def test_an_improper_sum_is_served_as_a_projection_and_kept_as_it_is():
    spec = make_spec("asynchronous", rule=damping.fixed(1.0))
    state = protocol.initial_state(spec)
    state, reply = step(spec, state, NextTask("north"))
    target = GaussianEta(np.zeros(2), np.diag([5.0, -3.0]))
    payload = codec.encode(disclose({"h": target.h, "J": target.J}, "q"))
    state, _ = step(spec, state, Submit("north", reply.task.task_id, payload))
    assert not FAMILY.is_proper(state.posterior)
    assert FAMILY.is_proper(protocol.served(spec, state))


def test_the_adaptive_rule_keeps_the_posterior_proper_where_a_step_can():
    spec = make_spec("asynchronous")
    state = protocol.initial_state(spec)
    state, reply = step(spec, state, NextTask("north"))
    target = GaussianEta(np.zeros(2), np.diag([0.25, -0.1]))
    payload = codec.encode(disclose({"h": target.h, "J": target.J}, "q"))
    state, _ = step(spec, state, Submit("north", reply.task.task_id, payload))
    assert state.history[-1].damping == 0.5
    assert FAMILY.is_proper(state.posterior)


class TestStepRule:
    """The adaptive rule on e ← (1 − s k) e, whose proposals are u = k e."""

    @staticmethod
    def iterate(k: float, count: int = 12) -> list[float]:
        family, rule = expfam.diagonal_gaussian(1), damping.adaptive()
        posterior, memory, used = family.isotropic(1.0), damping.Memory(), []
        error = 1e-3
        for _ in range(count):
            update = GaussianEta(np.array([k * error]), np.array([0.0]))
            step = rule.choose(family, posterior, posterior, update, memory, 0.01)
            memory = damping.Memory(step, update)
            error -= step * k * error
            used.append(step)
        return [*used, abs(error)]

    def test_converging_updates_are_not_damped(self):
        for k in (1.0, 1.2, 0.7):
            assert self.iterate(k)[:-1] == [1.0] * 12

    def test_diverging_updates_are_halved_until_they_converge(self):
        for k in (2.5, 6.0, 20.0):
            *used, error = self.iterate(k)
            assert used[-1] < 1.0
            assert error < 1e-3

    def test_steps_grow_again_after_agreement(self):
        family, rule = expfam.diagonal_gaussian(1), damping.adaptive()
        update = GaussianEta(np.array([1e-3]), np.array([0.0]))
        memory = damping.Memory(0.25, update)
        prior = family.isotropic(1.0)
        assert rule.choose(family, prior, prior, update, memory, 0.01) == 0.5

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_news_of_who_joined_is_no_echo_of_the_last_update(self, sign):
        """Which side of 0 a settled client's last update was on is chance; it halved the next step."""
        family, rule = expfam.diagonal_gaussian(1), damping.adaptive()
        settled = GaussianEta(np.array([sign * 1e-5]), np.array([0.0]))
        news = GaussianEta(np.array([0.1]), np.array([0.0]))
        prior = family.isotropic(1.0)
        found = rule.choose(family, prior, prior, news, damping.Memory(0.5, settled), 1.0 / 3.0)
        assert found == 0.5

    def test_a_fixed_step_outside_its_range_is_refused(self):
        for value in (0.0, -1.0, 1.5):
            with pytest.raises(errors.ConfigError, match=r"schedule\.damping"):
                damping.fixed(value)


def test_only_a_released_encodes():
    for value in ({"h": np.zeros(2)}, np.zeros(2), None, 3.0):
        with pytest.raises(errors.PrivacyError, match="only a Released"):
            codec.encode(value)


def test_a_payload_survives_the_wire_bit_by_bit():
    value = {"h": np.array([1.5, -0.0, 1e-300]), "J": np.arange(6, dtype=np.float32).reshape(2, 3)}
    decoded, event = codec.decode(codec.encode(disclose(value, "q")))
    assert event == COST
    for name, array in value.items():
        assert decoded[name].tobytes() == array.tobytes()
        assert decoded[name].dtype == array.dtype


def test_numbers_that_are_not_finite_do_not_travel():
    with pytest.raises(errors.ProtocolError, match="h holds numbers that are not finite"):
        codec.encode(disclose({"h": np.array([np.nan])}, "q"))


def test_a_changed_byte_of_a_payload_is_noticed():
    payload = codec.encode(disclose({"h": np.zeros(2)}, "q"))
    (tensor,) = payload.tensors
    for spoiled in (
        payload._replace(tensors=(tensor._replace(data=b"\x01" + tensor.data[1:]),)),
        payload._replace(tensors=(tensor._replace(name="J"),)),
        payload._replace(tensors=(tensor._replace(shape=(1, 2)),)),
        payload._replace(event=json.dumps({"kind": "composed", "events": []})),
    ):
        with pytest.raises(errors.ProtocolError, match="sha256"):
            codec.decode(spoiled)


# Two processes that say that they are the same client.

OLD, NEW = "0a" * 16, "0b" * 16


def charging_spec(**fields) -> protocol.ServerSpec:
    headers = {
        name: ledgers.Header("s", "d", name, "record", "substitute", "message", False)
        for name in CLIENTS
    }
    return make_spec(rounds=3)._replace(headers=headers, **fields)


def greeted(spec, state, session, name="north"):
    anchor = ledgers.anchor(state.ledgers[name])
    return step(spec, state, Hello(name, "d", anchor, session))[0]


def with_task(spec, session=OLD):
    state = greeted(spec, protocol.initial_state(spec), session)
    state, reply = step(spec, state, NextTask("north", session))
    return state, reply.task


@pytest.mark.parametrize(
    "request_of",
    [
        lambda session: NextTask("north", session),
        lambda session: Renew("north", "north/0", session),
        lambda session: Failure("north", "north/0", "other", session),
        lambda session: Goodbye("north", session),
    ],
)
def test_whoever_greeted_last_supersedes_whoever_greeted_before(request_of):
    spec = charging_spec()
    state, _ = with_task(spec)
    step(spec, state, request_of(OLD))
    state = greeted(spec, state, NEW)
    with pytest.raises(errors.Superseded, match=r"another process greeted as 'north' since"):
        step(spec, state, request_of(OLD))
    step(spec, state, request_of(NEW))
    # A process that comes back is let in as well, and the other is the older one then.
    state = greeted(spec, state, OLD)
    with pytest.raises(errors.Superseded):
        step(spec, state, request_of(NEW))


def test_who_only_compares_ledgers_supersedes_nobody_and_greets_for_nobody():
    spec = charging_spec()
    state, _ = with_task(spec)
    state = greeted(spec, state, "")
    step(spec, state, NextTask("north", OLD))
    fresh = greeted(spec, protocol.initial_state(spec), "")
    with pytest.raises(errors.HelloNeeded):
        step(spec, fresh, NextTask("north", OLD))


def test_what_an_older_session_sent_is_taken_or_charged():
    spec = charging_spec()
    state, task = with_task(spec)
    state = greeted(spec, state, NEW)
    submit = Submit("north", task.task_id, answer(task), 0, OLD)
    state, receipt = step(spec, state, submit)
    assert receipt.status == "accepted"
    other = Submit("north", task.task_id, answer(task, seed=5), 0, NEW)
    state, receipt = step(spec, state, other)
    assert receipt == Receipt("conflict", 0, ledgers.anchor(state.ledgers["north"]))


def test_other_bytes_for_a_task_are_charged_once_each():
    """And to nobody else: version, factors, answers and tasks are those of before."""
    spec = charging_spec()
    state, task = with_task(spec)
    state, _ = step(spec, state, Submit("north", task.task_id, answer(task)))
    for seed in (5, 6, 5, 6):
        before = state
        submit = Submit("north", task.task_id, answer(task, seed))
        state, receipt = step(spec, state, submit)
        assert receipt.status == "conflict"
        keep = {"ledgers": None, "presence": None}
        assert state._replace(**keep) == before._replace(**keep)
    book = state.ledgers["north"]
    ledgers.verify(book)
    assert [ledgers.state(book, f"north/0#{k}") for k in range(4)] == ["sent"] * 3 + [None]
    assert ledgers.spent(book) == events.compose(COST, COST, COST)
    with pytest.raises(errors.ProtocolError, match=r"cost .*expected"):
        step(spec, state, Submit("north", task.task_id, answer(task, 7, what="other")))
    forged = answer(task, 7)._replace(sha256="ab" * 32)
    with pytest.raises(errors.ProtocolError, match=r"sha256"):
        step(spec, state, Submit("north", task.task_id, forged))


def test_bytes_on_their_way_are_the_only_answer_that_a_task_may_have():
    spec = charging_spec()
    state, task = with_task(spec)
    mine, other = answer(task), answer(task, seed=5)
    begin = Begin("north", task.task_id, mine.sha256, mine.event)
    state, reply = step(spec, state, begin)
    assert reply == Noted()
    assert protocol.answer_of(state, "north", task.task_id) == mine.sha256
    assert protocol.answer_of(state, "south", task.task_id) is None
    again, reply = step(spec, state, begin)
    assert reply == Noted()
    assert protocol.is_durably_equal(again, state)
    for request in (
        begin._replace(sha256=other.sha256),
        Submit("north", task.task_id, other),
    ):
        after, receipt = step(spec, state, request)
        assert receipt.status == "conflict"
        assert ledgers.state(after.ledgers["north"], "north/0#1") == "sent"
        # Also of a client that has not greeted: its bytes are here.
        assert step(spec, after, request)[1].status == "conflict"
    # No copy of the client may greet any more. But what had begun to arrive is the answer still.
    own = state.ledgers["north"]
    with pytest.raises(errors.LedgerError):
        step(spec, after, Hello("north", "d", ledgers.anchor(own), OLD))
    assert step(spec, after, begin)[1] == Noted()
    after, receipt = step(spec, after, Submit("north", task.task_id, mine))
    assert receipt.status == "accepted"
    arrived = ledgers.anchor(ledgers.mark_sent(own, "north/0#0"))
    with pytest.raises(errors.LedgerError):
        step(spec, after, Hello("north", "d", arrived, OLD))
    assert step(spec, after, begin)[1].status == "duplicate"
    for wrong, text in (
        (begin._replace(client="south"), "did not greet"),
        (begin._replace(event="{}"), "event of a payload"),
        (begin._replace(task_id="north/1"), "which it does not hold"),
        (begin._replace(task_id="north/1", event=answer(task, what="x").event), "not hold"),
    ):
        with pytest.raises(errors.ProtocolError, match=text):
            step(spec, again, wrong)


def test_attempts_that_the_server_did_not_hear_of_are_priced_together(monkeypatch):
    asked = []
    spend = ledgers.spend
    monkeypatch.setattr(ledgers, "spend", lambda *given: asked.append(given) or spend(*given))
    spec = charging_spec()
    state, task = with_task(spec)
    asked.clear()
    submit = Submit("north", task.task_id, answer(task), attempt=63)
    after, receipt = step(spec, state, submit)
    assert receipt.status == "accepted"
    assert len(asked) == 1
    assert ledgers.spent(after.ledgers["north"]) == events.repeat(COST, 64)
    for begins in (submit._replace(attempt=65), submit._replace(attempt=-1)):
        with pytest.raises(errors.ProtocolError, match=r"attempt is .* below 65"):
            step(spec, state, begins)


def test_more_copies_of_a_client_than_anybody_has_are_refused():
    spec = charging_spec()
    state, task = with_task(spec)
    state, _ = step(spec, state, Submit("north", task.task_id, answer(task)))
    for seed in range(1, 9):
        state, receipt = step(spec, state, Submit("north", task.task_id, answer(task, seed)))
        assert receipt.status == "conflict"
    with pytest.raises(errors.ProtocolError, match=r"was answered in 9 ways, expected one"):
        step(spec, state, Submit("north", task.task_id, answer(task, 9)))


def test_an_answer_that_begins_at_another_price_is_refused_before_its_bytes():
    spec = charging_spec()
    state, task = with_task(spec)
    dear = answer(task, what="other")
    with pytest.raises(errors.ProtocolError, match=r"cost .*expected"):
        step(spec, state, Begin("north", task.task_id, dear.sha256, dear.event))
