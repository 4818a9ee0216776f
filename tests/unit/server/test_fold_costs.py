"""Claims about which costs of a fold grow with the number of clients."""

import functools

import numpy as np
import pytest

from fedvi import expfam
from fedvi.expfam.gaussian import FullGaussian, GaussianEta
from fedvi.federation import damping
from fedvi.federation.messages import Hello, NextTask, Submit
from fedvi.federation.schedules import synchronous
from fedvi.privacy import events
from fedvi.privacy.release import disclose
from fedvi.server.core import protocol
from fedvi.transport import codec
from fedvi.updates.base import finish_natural
from fedvi.updates.noise_aware import of_sites

FAMILY = expfam.full_gaussian(2)
CLIENTS = tuple(f"c{index}" for index in range(12))


@pytest.fixture
def after_a_round():
    """A server of noisy answers, and its state after one round of all clients."""
    spec = protocol.ServerSpec(
        study_digest="d",
        clients=CLIENTS,
        family=FAMILY,
        prior=FAMILY.isotropic(2.0),
        schedule=synchronous(3),
        step_rule=damping.fixed(1.0),
        finish=dict.fromkeys(CLIENTS, finish_natural),
        costs=dict.fromkeys(CLIENTS, events.Unprotected("q")),
        stand=functools.partial(of_sites, gradient_sd=0.3, curvature_sd=0.2, rate=1.0, floor=1.0),
        renews=True,
    )
    return spec, round_of(spec, protocol.initial_state(spec))


def round_of(spec, state):
    tasks = []
    for name in CLIENTS:
        state, _ = protocol.step(spec, state, Hello(name, "d", None), 0.0)
        state, offer = protocol.step(spec, state, NextTask(name), 0.0)
        tasks.append(offer.task)
    for task in tasks:
        target = GaussianEta(task.posterior.h + 0.1, task.posterior.J + np.eye(2))
        payload = codec.encode(disclose({"h": target.h, "J": target.J}, "q"))
        state, _ = protocol.step(spec, state, Submit(task.client, task.task_id, payload), 0.0)
    return state


def test_all_tasks_share_the_memory_of_the_posterior_that_is_handed_out(after_a_round):
    spec, state = after_a_round
    assert state.version == 1
    posteriors = []
    for name in CLIENTS:
        state, offer = protocol.step(spec, state, NextTask(name), 0.0)
        posteriors.append(offer.task.posterior)
    first = posteriors[0]
    assert not first.J.flags.writeable
    assert all(eta.h is first.h and eta.J is first.J for eta in posteriors)


def test_a_trial_of_a_fold_takes_no_matrix_apart_for_each_answer(after_a_round, monkeypatch):
    """With 200 clients of 108 coefficients, half of a round was spent on 20,000 inverses."""
    spec, state = after_a_round
    whole, asked = FullGaussian.moments, []
    monkeypatch.setattr(FullGaussian, "moments", lambda *of: asked.append(of) or whole(*of))
    state = round_of(spec, state)
    assert state.version == 2
    assert len(asked) < 6 * (len(CLIENTS) + 1)
