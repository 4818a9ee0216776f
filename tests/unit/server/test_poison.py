"""Answers that are well formed, and numbers that no arithmetic survives: refused when they arrive."""

import warnings

import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation import damping, schedules
from fedvi.federation.messages import Failure, Hello, NextTask, Offer, Submit, Wait
from fedvi.federation.progress import Patience
from fedvi.privacy import events, ledger
from fedvi.privacy.release import disclose
from fedvi.server.core import protocol
from fedvi.transport import codec
from fedvi.updates.base import finish_natural
from fedvi.updates.finish import finish_whitened

CLIENTS = ("a", "b", "c")
COST = events.Unprotected("q")
FULL, DIAGONAL = expfam.full_gaussian(2), expfam.diagonal_gaussian(2)


def make_spec(family=FULL, kind="synchronous", finish=finish_natural, rule=None, **fields):
    return protocol.ServerSpec(
        study_digest="d",
        clients=CLIENTS,
        family=family,
        prior=family.isotropic(1.0),
        schedule=getattr(schedules, kind)(3),
        step_rule=rule or damping.adaptive(),
        finish=dict.fromkeys(CLIENTS, finish),
        costs=dict.fromkeys(CLIENTS, COST),
        **fields,
    )


def submit(task, value):
    payload = codec.encode(disclose({k: np.array(v, float) for k, v in value.items()}, "q"))
    return Submit(task.client, task.task_id, payload)


def honest(task):
    one = np.eye(2) if task.posterior.J.ndim == 2 else np.ones(2)
    return {"h": task.posterior.h + 1.0, "J": task.posterior.J + one}


BIG = 1e308
HUGE = {
    "huge": {"h": [BIG, BIG], "J": [[BIG, 0], [0, BIG]]},
    "off the diagonal": {"h": [0, 0], "J": [[1, BIG], [BIG, 1]]},
    "overflowing": {"h": [0, 0], "J": [[BIG, -BIG], [-BIG, BIG]]},
    "far mean": {"h": [BIG, -BIG], "J": [[1, 0], [0, 1]]},
    "very negative": {"h": [1, 1], "J": [[-1e300, 0], [0, 1]]},
}
ODD = {
    "negative": {"h": [1, 1], "J": [[-5, 0], [0, -5]]},
    "no curvature": {"h": [1, 1], "J": [[0, 0], [0, 0]]},
    "denormal": {"h": [1, 1], "J": [[5e-324, 0], [0, 5e-324]]},
    "one direction": {"h": [1, 1], "J": [[1e20, 1e20], [1e20, 1e20]]},
    "lost in rounding": {"h": [1, 1], "J": [[-1e17, 0], [0, 1]]},
    "as large as may be": {"h": [1e30, -1e30], "J": [[1e30, 1e15], [1e15, 1e-30]]},
}


@pytest.mark.parametrize("rule", [damping.adaptive(), damping.fixed(1.0)], ids=lambda r: r.name)
@pytest.mark.parametrize("kind", schedules.__all__)
@pytest.mark.parametrize("family", [FULL, DIAGONAL], ids=["full", "diagonal"])
@pytest.mark.parametrize("value", [*HUGE.values(), *ODD.values()], ids=[*HUGE, *ODD])
def test_no_answer_breaks_the_folds_that_come_after_it(value, family, kind, rule):
    if family is DIAGONAL:
        value = {**value, "J": np.diagonal(value["J"])}
    spec = make_spec(family, kind, rule=rule)
    state = protocol.initial_state(spec)
    poison = [value]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while state.status == "running":
            for name in CLIENTS:
                state, reply = protocol.step(spec, state, NextTask(name), 0.0)
                if not isinstance(reply, Offer):
                    continue
                if name == "a" and poison:
                    try:
                        bad = submit(reply.task, poison.pop())
                        state, _ = protocol.step(spec, state, bad, 0.0)
                        continue
                    except errors.FedviError:
                        pass
                good = submit(reply.task, honest(reply.task))
                state, receipt = protocol.step(spec, state, good, 0.0)
                assert receipt.status == "accepted"
    assert state.status == "completed"
    assert tree.is_finite(state.posterior)
    assert family.is_proper(protocol.served(spec, state))
    assert all(np.isfinite(update.gap).all() for update in state.history if update.gap)


@pytest.mark.parametrize("value", HUGE.values(), ids=list(HUGE))
def test_a_huge_answer_is_refused_when_it_arrives_and_changes_nothing(value):
    spec = make_spec()
    state, reply = protocol.step(spec, protocol.initial_state(spec), NextTask("a"), 0.0)
    before = state
    with pytest.raises(errors.FedviError, match=r"answer to task .a/0.|not finite"):
        protocol.step(spec, state, submit(reply.task, value), 0.0)
    assert state is before
    state, receipt = protocol.step(spec, state, submit(reply.task, honest(reply.task)), 0.0)
    assert receipt.status == "accepted"


@pytest.mark.parametrize(
    "value",
    [
        {"location": [BIG, BIG], "scale": [[BIG, 0], [0, BIG]]},
        {"location": [0, 0], "scale": [[710, 0], [0, 710]]},
    ],
)
def test_a_guide_that_overflows_is_refused_by_name(value):
    spec = make_spec(finish=finish_whitened)
    state, reply = protocol.step(spec, protocol.initial_state(spec), NextTask("a"), 0.0)
    with pytest.raises(errors.FedviError, match="task 'a/0'"):
        protocol.step(spec, state, submit(reply.task, value), 0.0)


def test_a_matrix_that_is_singular_to_rounding_is_refused_where_it_would_wait():
    class Fragile(expfam.gaussian.FullGaussian):
        def project(self, eta, floor):
            if eta.J[0, 0] > 1e11:
                raise np.linalg.LinAlgError("Singular matrix")
            return super().project(eta, floor)

    spec = make_spec(Fragile(2), rule=damping.fixed(1.0))
    state, reply = protocol.step(spec, protocol.initial_state(spec), NextTask("a"), 0.0)
    with pytest.raises(errors.ProtocolError, match="cannot be folded"):
        protocol.step(spec, state, submit(reply.task, {"h": [0, 0], "J": np.eye(2) * 1e12}), 0.0)


def test_what_is_projected_beside_large_precisions_is_proper():
    generator = np.random.default_rng(0)
    for size in (2, 5, 30):
        family = expfam.full_gaussian(size)
        turned = np.linalg.qr(generator.normal(size=(size, size)))[0]
        values = np.r_[1e25, -np.ones(size - 1)]
        matrix = (turned * values) @ turned.T
        eta = GaussianEta(np.ones(size), (matrix + matrix.T) / 2.0)
        assert family.is_proper(family.project(eta, family.isotropic(1.0)))


def test_steps_are_measured_wherever_a_precision_counts_as_proper():
    # Rounding leaves the inverse of one in thirty of these without a Cholesky factor.
    family, generator = expfam.full_gaussian(4), np.random.default_rng(0)
    for _ in range(300):
        upper = 4.06e6 * np.eye(4)
        upper[2:, 2:] += 5.07601437e17
        upper[0, 2:] = 7.8e6 + 100.0 * generator.normal(size=2)
        upper[1, 2:] = 200.0 * generator.normal(size=2)
        eta = GaussianEta(np.ones(4), np.triu(upper) + np.triu(upper, 1).T)
        assert family.is_proper(eta)
        assert np.isfinite(family.whiten(eta, eta)).all()


def test_an_answer_that_reaches_a_failed_run_is_folded_once_that_is_resumed():
    # It used to be charged and dropped, and its client then asked for the same task for ever.
    header = {
        n: ledger.Header("s", "d", n, "record", "substitute", "message", False) for n in "abc"
    }
    spec = make_spec(kind="sequential", headers=header, patience=Patience(None, 3))
    state = protocol.initial_state(spec)

    def ask(request):
        nonlocal state
        state, reply = protocol.step(spec, state, request, 0.0)
        return reply

    for name in CLIENTS:
        ask(Hello(name, "d", ledger.anchor(ledger.open_ledger(header[name]))))
    task = ask(NextTask("a")).task
    for name in CLIENTS:
        # Only a has a task that it could say this of; the others cannot go on either.
        state = state._replace(away={**state.away, name: "other"})
    ask(Failure("a", "a/0", "solver"))
    assert state.status == "failed"
    assert ask(submit(task, honest(task))).status == "accepted"
    assert (state.status, state.version) == ("failed", 0)
    state = protocol.control(spec, state, "resume", 0.0)
    assert (state.status, state.version, state.visits["a"]) == ("running", 1, 1)
    assert isinstance(ask(NextTask("a")), Wait)
    assert ask(NextTask("b")).task.task_id == "b/0"


def test_a_seed_at_one_side_only_is_told_by_name():
    spec = make_spec(seeded_otherwise="e")
    with pytest.raises(errors.ProtocolError, match=r"simulation\.insecure_seed.*one side only"):
        protocol.step(spec, protocol.initial_state(spec), Hello("a", "e"), 0.0)
    with pytest.raises(errors.ProtocolError, match="another study"):
        protocol.step(make_spec(), protocol.initial_state(spec), Hello("a", ""), 0.0)
