"""The mixture with its assignments summed out, against sums over assignments and its own draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from mixtures import gaussian_mixture
from numpyro import handlers
from numpyro.infer import Predictive, Trace_ELBO, autoguide, log_likelihood
from scipy import stats

import fedvi
from fedvi.errors import ModelError

pytestmark = pytest.mark.numpyro

LATENTS = {
    "weights": np.array([0.5, 0.3, 0.2]),
    "locations": np.array([[0.0, 1.0], [2.0, -1.0], [-3.0, 0.5]]),
    "variances": np.array([0.5, 1.5, 0.2]),
}
POINTS = np.array([[0.3, 0.2], [2.0, -2.0], [-3.1, 0.4], [40.0, 40.0]])


def density(point, component):
    """N(x; m, v·I) of one component, by SciPy."""
    centre, variance = LATENTS["locations"][component], LATENTS["variances"][component]
    return stats.multivariate_normal(centre, variance * np.eye(2)).pdf(point)


def test_a_tables_likelihood_is_the_sum_over_all_assignments_of_its_records():
    table = POINTS[:3]
    expected = 0.0
    for assignment in itertools.product(range(3), repeat=len(table)):
        term = 1.0
        for point, component in zip(table, assignment, strict=True):
            term *= LATENTS["weights"][component] * density(point, component)
        expected += term
    with jax.enable_x64(True):
        samples = {name: jnp.asarray(value)[None] for name, value in LATENTS.items()}
        found = log_likelihood(gaussian_mixture(3), samples, jnp.asarray(table))["x"]
        # Float64 on both sides, over 27 terms.
        np.testing.assert_allclose(found.sum(), np.log(expected), rtol=1e-12)


@pytest.mark.nightly
def test_a_point_far_from_all_components_has_a_finite_likelihood_and_gradient():
    model = gaussian_mixture(3)

    def term(locations):
        latents = {**LATENTS, "locations": locations}
        samples = {name: jnp.asarray(value, jnp.float32)[None] for name, value in latents.items()}
        return log_likelihood(model, samples, jnp.asarray(POINTS[3:], jnp.float32))["x"].sum()

    value, gradient = jax.value_and_grad(term)(jnp.asarray(LATENTS["locations"], jnp.float32))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_priors_are_those_that_the_docstring_says():
    model = gaussian_mixture(
        3, concentration=2.0, location_scale=1.5, variance_shape=3.0, variance_scale=0.7
    )
    with jax.enable_x64(True):
        latents = {name: jnp.asarray(value) for name, value in LATENTS.items()}
        trace = handlers.trace(handlers.substitute(model, latents)).get_trace(jnp.asarray(POINTS))
        found = {name: trace[name]["fn"].log_prob(latents[name]).sum() for name in LATENTS}
    expected = {
        "weights": stats.dirichlet(np.full(3, 2.0)).logpdf(LATENTS["weights"]),
        "locations": stats.norm(0.0, 1.5).logpdf(LATENTS["locations"]).sum(),
        "variances": stats.invgamma(3.0, scale=0.7).logpdf(LATENTS["variances"]).sum(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10)


@pytest.mark.nightly
def test_draws_of_the_prior_are_shaped_as_said_and_the_data_have_a_plate():
    model = gaussian_mixture(4)
    x = np.zeros((6, 3), np.float32)
    draws = Predictive(model, num_samples=5)(jax.random.key(0), x)
    assert draws["weights"].shape == (5, 4)
    assert draws["locations"].shape == (5, 4, 3)
    assert draws["variances"].shape == (5, 4)
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(x)
    assert [frame.name for frame in trace["x"]["cond_indep_stack"]] == ["records"]


@pytest.mark.nightly
@pytest.mark.parametrize("gradients", ["full", "aligned"])
def test_dpsvi_takes_it_with_an_automatic_guide(gradients):
    model = gaussian_mixture(2)
    x = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    plan = fedvi.privacy.sgd(
        noise_multiplier=3.0, delta=1e-3, steps=2, max_records=30, rate=0.3, insecure_seed=0
    )
    svi = fedvi.DPSVI(
        model,
        autoguide.AutoDiagonalNormal(model),
        numpyro.optim.Adam(0.1),
        Trace_ELBO(),
        plan,
        gradients=gradients,
    )
    params = svi.run(jax.random.key(0), 2, x, progress_bar=False).params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"components": 1}, "components is 1, expected an integer of at least 2"),
        ({"components": True}, "components is True, expected an integer of at least 2"),
        ({"components": 2, "concentration": 0.0}, "concentration is 0.0, expected a number above"),
        ({"components": 2, "location_scale": -1.0}, "location_scale is -1.0"),
        ({"components": 2, "variance_shape": float("nan")}, "variance_shape is nan"),
        ({"components": 2, "variance_scale": 0.0}, "variance_scale is 0.0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        gaussian_mixture(**arguments)


def test_a_column_without_an_axis_for_dimensions_is_refused():
    with pytest.raises(ModelError, match=r"x has shape \(7,\), expected \[n, D\]"):
        handlers.seed(gaussian_mixture(2), 0)(np.zeros(7, np.float32))
