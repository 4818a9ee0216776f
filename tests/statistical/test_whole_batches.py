"""Whole batches of `DPSVI` through its public calls: tables of n and n + 1 records cannot be told apart."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO

import fedvi
from fedvi import privacy

pytestmark = pytest.mark.numpyro

RECORDS, RUNS = 41_943, 60
PLAN = {
    "steps": 1,
    "max_records": 50_000,
    "sampler": "full",
    "relation": "add_remove",
    "delta": 1e-5,
}


def model(x):
    m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


def guide(x):
    numpyro.sample("m", dist.Normal(numpyro.param("at", 0.0), 1.0))


def released(rows: int, noise_multiplier: float) -> np.ndarray:
    """What a step of SGD by 1 releases, in many runs: the noised sum and a constant."""
    plan = privacy.sgd(**PLAN, noise_multiplier=noise_multiplier, runs=RUNS)
    svi = fedvi.DPSVI(model, guide, numpyro.optim.SGD(1.0), Trace_ELBO(), plan)
    # All gradients are clipped, and parallel.
    x, found = jnp.full(rows, 1e3), []
    for _ in range(RUNS):
        state, _ = svi.update(svi.init(jax.random.key(0), x), x)
        found.append(float(svi.get_params(state)["at"]))
    return np.array(found)


def test_one_record_more_is_hidden_by_the_noise_of_epsilon_1():
    """Where one record once moved the sum by 200 clip norms, and so by 54 sds of the noise.

    10,000 runs of each table bounded ε from below by 0.27 (97.5 %) as it is now.
    """
    noise = privacy.sgd(**PLAN, epsilon=1.0).mechanism.noise_multiplier
    few, more = released(RECORDS, noise), released(RECORDS + 1, noise)
    sd = np.concatenate([few - few.mean(), more - more.mean()]).std()
    # Noise of the operating system: the sd of 60 runs is within a half but for one time in 10⁶.
    assert 0.5 * noise < sd < 1.5 * noise
    # One clip norm, and 6 standard errors of a difference of means: a false alarm in 10⁸ runs.
    assert abs(more.mean() - few.mean()) <= 1.0 + 6.0 * noise * np.sqrt(2.0 / RUNS)
