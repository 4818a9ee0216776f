"""Two tables that differ in one record are told apart by a release no better than its ε and δ allow."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi.privacy import random

pytestmark = [pytest.mark.numpyro, pytest.mark.nightly]

# Sizes at which jaxlib 0.10.2 let one record fill up to 30 rows: 409 × 210 numbers of a triangle.
ROWS, SIZE, RUNS = 409, 20, 10_000
EPSILON, DELTA = 1.0, 1e-6


def regression(x, y):
    b = numpyro.sample("b", dist.Normal(0, 2.5).expand([SIZE]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def releases(outcome):
    """``RUNS`` releases of a first step, each with its own noise, [RUNS, numbers]; and the noise's sd.

    And one more release, whose noise is the same for every outcome.
    """
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, SIZE)).astype(np.float32)
    y = generator.normal(size=ROWS).astype(np.float32)
    x[0], y[0] = 1.0, outcome
    plan = fedvi.privacy.sgd(
        epsilon=EPSILON, delta=DELTA, steps=1, max_records=ROWS, sampler="full", insecure_seed=1
    )
    guide = autoguide.AutoMultivariateNormal(regression)
    svi = fedvi.DPSVI(regression, guide, numpyro.optim.SGD(1.0), Trace_ELBO(), plan)
    columns = [jnp.asarray(x), jnp.asarray(y)]
    state = svi.init(jax.random.key(0), *columns)
    steps = svi._known_steps(state, columns)
    params = svi.optim.get_params(state.optim_state)

    def one(secret):
        drawn = steps.drawn(secret, columns)
        found = steps.released(params, state.rng_key, columns, *drawn).value[0]
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found)])

    secrets = jax.random.split(random.insecure_root(7).key(f"{outcome}"), RUNS)
    shared = random.insecure_root(8).key("shared")[None]
    made = jax.jit(lambda secrets: jax.lax.map(one, secrets))(jnp.concatenate([shared, secrets]))
    made = np.asarray(made, np.float64)
    return made[1:], svi.privacy.mechanism.noise_multiplier, made[0]


def along(one, other, way):
    """Both in sds of their noise, along what an attacker who knows both tables looks at."""
    a, b = one @ way, other @ way
    return a / a.std(), b / a.std()


def told_apart(a, b):
    """The largest ε that is certain at 99.9 % for the best threshold.

    Each of the thresholds has its share of the error (Clopper–Pearson).
    """
    cuts = np.quantile(np.concatenate([a, b]), np.linspace(0.01, 0.99, 50))
    share, count, found = 1e-3 / (4 * len(cuts)), len(a), 0.0
    for cut in cuts:
        for more, less in ((a > cut, b > cut), (b <= cut, a <= cut)):
            hits, misses = int(more.sum()), int(less.sum())
            low = scipy.stats.beta.ppf(share, hits, count - hits + 1) if hits else 0.0
            high = (
                scipy.stats.beta.ppf(1.0 - share, misses + 1, count - misses)
                if misses < count
                else 1.0
            )
            if low > DELTA:
                found = max(found, float(np.log((low - DELTA) / high)))
    return found


def test_ten_thousand_releases_on_either_side_are_told_apart_no_further_than_epsilon():
    """False alarms: 1e-3 by the bounds of ``told_apart``, and 4 standard errors of the means' distance."""
    (one, noise, shared), (other, _, again) = releases(1e4), releases(-1e4)
    a, b = along(one, other, shared - again)
    apart, allowed, error = a.mean() - b.mean(), 2.0 / noise, np.sqrt(2.0 / len(a))
    sure = told_apart(a, b)
    print(f"{apart:.3f} sds, {allowed:.3f} allowed, error {error:.3f}; epsilon {sure:.3f}")  # noqa: T201
    assert apart <= allowed + 4.0 * error
    # Not because nothing shows: the charge is nearly used up.
    assert apart >= 0.8 * allowed
    assert sure <= EPSILON
