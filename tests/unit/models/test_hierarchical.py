"""The hierarchical logistic regression, against its formula written out in NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from hierarchies import hierarchical_logistic
from numpyro import handlers
from numpyro.infer import Predictive, Trace_ELBO, autoguide
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import expit

import fedvi
from fedvi.errors import ModelError

pytestmark = pytest.mark.numpyro

L, K, D, N = 4, 2, 3, 9


def table(seed=0):
    random = np.random.default_rng(seed)
    x, group = random.normal(size=(N, D)), random.integers(0, L, N)
    return x, group, (random.random(N) < 0.5).astype(float), random.normal(size=(L, K))


def test_the_density_is_that_of_the_formula():
    x, group, y, g = table()
    random = np.random.default_rng(1)
    effects, offsets = random.normal(size=(D, K)), random.normal(size=(L, D))
    expected = stats.norm(0.0, 4.0).logpdf(effects).sum() + stats.norm.logpdf(offsets).sum()
    for one, of, label in zip(x, group, y, strict=True):
        w = effects @ g[of] + 0.5 * offsets[of]
        expected += stats.bernoulli(expit(one @ w)).logpmf(label)
    with jax.enable_x64(True):
        model = hierarchical_logistic(g, effect_scale=4.0, group_scale=0.5)
        latents = {"effects": jnp.asarray(effects), "offsets": jnp.asarray(offsets)}
        found, _ = log_density(model, tuple(map(jnp.asarray, (x, group, y))), {}, latents)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_offsets_spread_coefficients_as_the_papers_conditional_prior_does():
    """Given M, wₗ ~ N(M gₗ, s²): mean and sd over draws, with false alarms below 1e-6 each."""
    x, group, _, g = table()
    model = hierarchical_logistic(g, group_scale=0.3)
    effects = np.random.default_rng(2).normal(size=(D, K)).astype(np.float32)
    draws = Predictive(
        handlers.substitute(model, {"effects": jnp.asarray(effects)}), num_samples=4_000
    )(jax.random.key(0), x.astype(np.float32), group)["coefficients"]
    # Five standard errors: 0.3 / √4000 for the mean, 0.3 / √8000 for the sd; 12 numbers each.
    np.testing.assert_allclose(draws.mean(axis=0), g @ effects.T, atol=5 * 0.3 / 4_000**0.5)
    np.testing.assert_allclose(draws.std(axis=0), 0.3, atol=5 * 0.3 / 8_000**0.5)


def test_a_record_touches_its_own_groups_offsets_alone():
    x, group, y, g = table()
    model = hierarchical_logistic(g)

    def likelihood(offsets, row):
        sites = handlers.trace(
            handlers.substitute(
                model, {"effects": jnp.ones((D, K), jnp.float32), "offsets": offsets}
            )
        ).get_trace(*(jnp.asarray(column[row : row + 1]) for column in (x, group, y)))
        return sites["y"]["fn"].log_prob(sites["y"]["value"]).sum()

    for row in range(N):
        gradient = np.asarray(jax.grad(likelihood)(jnp.zeros((L, D), jnp.float32), row))
        assert (gradient[group[row]] != 0.0).all()
        assert (np.delete(gradient, group[row], axis=0) == 0.0).all()


@pytest.mark.nightly
@pytest.mark.parametrize("gradients", ["full", "aligned"])
def test_dpsvi_takes_it_with_an_automatic_guide(gradients):
    x, group, y, g = table()
    model = hierarchical_logistic(g)
    plan = fedvi.privacy.sgd(
        noise_multiplier=3.0, delta=1e-3, steps=2, max_records=N, rate=0.3, insecure_seed=0
    )
    svi = fedvi.DPSVI(
        model,
        autoguide.AutoDiagonalNormal(model),
        numpyro.optim.Adam(0.1),
        Trace_ELBO(),
        plan,
        gradients=gradients,
    )
    columns = x.astype(np.float32), group, y.astype(np.float32)
    params = svi.run(jax.random.key(0), 2, *columns, progress_bar=False).params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"characteristics": np.ones(3)}, r"characteristics has shape \(3,\)"),
        ({"characteristics": np.array([[1.0, np.nan]])}, "matrix of finite numbers"),
        ({"characteristics": np.eye(2), "effect_scale": 0.0}, "effect_scale is 0.0"),
        ({"characteristics": np.eye(2), "group_scale": -1.0}, "group_scale is -1.0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        hierarchical_logistic(**arguments)
