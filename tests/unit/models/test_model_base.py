"""Recognising Gaussian priors, against closed forms and against near misses."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from fedvi.models import logistic
from fedvi.models.base import Model, diagonal_prior, gaussian_prior
from fedvi.models.numpyro import numpyro_model

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@dataclasses.dataclass(frozen=True)
class OnlyPrior:
    """A model of which nothing but the prior is asked."""

    prior: Callable
    size: int = 1

    @property
    def names(self):
        return tuple(f"t{i}" for i in range(self.size))

    def log_prior(self, theta):
        return self.prior(theta)

    def log_likelihood(self, theta, record):
        raise AssertionError("a prior involves no record")

    def constrain(self, theta):
        return {"t": theta}


def written(prior):
    """A NumPyro model with this prior; ``prior`` returns a scalar predictor."""

    def model(x, y):
        predictor = prior()
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(predictor * x, 1.0), obs=y)

    return numpyro_model(model, {"x": np.zeros(()), "y": np.zeros(())})


def test_normal_sites_give_their_closed_form():
    def prior():
        a = numpyro.sample("a", dist.Normal(3.0, 0.5))
        with numpyro.plate("groups", 2):
            b = numpyro.sample("b", dist.Normal(-1.0, 4.0))
        return a + b.sum()

    h, J = gaussian_prior(written(prior))
    assert h.dtype == J.dtype == np.float64
    # rtol 1e-12: float64 algebra.
    np.testing.assert_allclose(J, np.diag([4.0, 1 / 16, 1 / 16]), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(h, [12.0, -1 / 16, -1 / 16], rtol=1e-12)


def test_a_correlated_normal_gives_its_closed_form():
    mean = np.array([1.0, -2.0, 0.5])
    covariance = np.array([[2.0, 0.9, 0.1], [0.9, 1.0, -0.2], [0.1, -0.2, 0.3]])

    def prior():
        # Made while tracing: an array made before would be rounded to float32.
        return numpyro.sample(
            "b", dist.MultivariateNormal(jnp.asarray(mean), jnp.asarray(covariance))
        ).sum()

    h, J = gaussian_prior(written(prior))
    precision = np.linalg.inv(covariance)
    # rtol 1e-11: float64, condition number 30.
    np.testing.assert_allclose(J, precision, rtol=1e-11)
    np.testing.assert_allclose(h, precision @ mean, rtol=1e-11)
    np.testing.assert_array_equal(J, J.T)


def test_a_normal_built_on_another_normal_is_jointly_gaussian():
    def prior():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        return numpyro.sample("b", dist.Normal(2.0 * a, 0.5))

    h, J = gaussian_prior(written(prior))
    np.testing.assert_allclose(J, [[1.0 + 16.0, -8.0], [-8.0, 4.0]], rtol=1e-12)
    np.testing.assert_allclose(h, [0.0, 0.0], atol=1e-12)


def test_a_scaled_normal_has_the_scaled_precision():
    def prior():
        with numpyro.handlers.scale(scale=0.25):
            return numpyro.sample("a", dist.Normal(0.0, 1.0))

    _, J = gaussian_prior(written(prior))
    np.testing.assert_allclose(J, [[0.25]], rtol=1e-12)


def test_units_that_differ_by_many_orders_do_not_hide_a_gaussian():
    scales = [1e-5, 1.0, 1e5]
    h, J = gaussian_prior(logistic(["a", "b", "c"], scales))
    np.testing.assert_allclose(np.diag(J), 1.0 / np.square(scales), rtol=1e-12)
    np.testing.assert_array_equal(J - np.diag(np.diag(J)), 0.0)
    np.testing.assert_array_equal(h, 0.0)


def test_equal_models_share_one_prior_that_nobody_can_change():
    found, again = (gaussian_prior(logistic(["a", "b"], 1.5)) for _ in range(2))
    assert again is found
    for shared in found:
        with pytest.raises(ValueError, match="read-only"):
            shared[...] = 0.0
    assert gaussian_prior(logistic(["a", "b"], 2.5)) is not found


def test_independent_normals_are_told_without_a_matrix():
    scales = [1e-5, 1.0, 1e5]
    h, precision = diagonal_prior(logistic(["a", "b", "c"], scales))
    np.testing.assert_allclose(precision, 1.0 / np.square(scales), rtol=1e-12)
    np.testing.assert_array_equal(h, 0.0)

    def prior():
        return numpyro.sample("a", dist.Normal(3.0, 0.5)) + numpyro.sample(
            "b", dist.Normal(-1.0, 4.0)
        )

    h, precision = diagonal_prior(written(prior))
    np.testing.assert_allclose(precision, [4.0, 1 / 16], rtol=1e-12)
    np.testing.assert_allclose(h, [12.0, -1 / 16], rtol=1e-12)


def test_normals_that_correlate_are_no_independent_ones():
    def prior():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        return numpyro.sample("b", dist.Normal(1e-3 * a, 0.5))

    assert gaussian_prior(written(prior)) is not None
    assert diagonal_prior(written(prior)) is None


NOT_GAUSSIAN = {
    "half normal": lambda: numpyro.sample("s", dist.HalfNormal(1.0)),
    "gamma": lambda: numpyro.sample("s", dist.Gamma(2.0, 1.0)),
    "student t": lambda: numpyro.sample("b", dist.StudentT(4.0, 0.0, 1.0)),
    "wide student t": lambda: numpyro.sample("b", dist.StudentT(4.0, 0.0, 1e7)),
    "narrow student t": lambda: numpyro.sample("b", dist.StudentT(4.0, 0.0, 1e-7)),
    "far student t": lambda: numpyro.sample("b", dist.StudentT(1e5, 1e3, 1.0)),
    "laplace": lambda: numpyro.sample("b", dist.Laplace(0.0, 1.0)),
    "improper": lambda: numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (), ())),
    "simplex": lambda: numpyro.sample("p", dist.Dirichlet(jnp.ones(3))).sum(),
    "hierarchical": lambda: numpyro.sample(
        "b", dist.Normal(0.0, numpyro.sample("s", dist.HalfNormal(1.0)))
    ),
}


@pytest.mark.nightly(only=("simplex", "hierarchical", "wide student t"))
@pytest.mark.parametrize("prior", NOT_GAUSSIAN.values(), ids=NOT_GAUSSIAN.keys())
def test_other_priors_are_not_taken_for_gaussian(prior):
    assert gaussian_prior(written(prior)) is None
    assert diagonal_prior(written(prior)) is None


def test_a_log_normal_prior_is_gaussian_in_the_unconstrained_coordinate():
    model = written(lambda: numpyro.sample("s", dist.LogNormal(1.0, 0.5)))
    h, J = gaussian_prior(model)
    # The density of log s is N(1, 0.5^2) once the Jacobian is counted.
    np.testing.assert_allclose(J, [[4.0]], rtol=1e-12)
    np.testing.assert_allclose(h, [4.0], rtol=1e-12)


@pytest.mark.parametrize(
    "prior",
    [
        lambda t: -0.5 * jnp.sum(t**2) - jnp.sum(jnp.abs(t)),
        lambda t: -0.5 * jnp.sum(t**2) + jnp.sum(jnp.where(t > 0.0, 1.0, 0.0)),
        lambda t: 0.5 * jnp.sum(t**2),
        lambda t: -0.5 * jnp.sum(t) ** 2,
        lambda t: jnp.sum(jnp.log(t)),
        lambda t: -0.5 * jnp.sum(t**2) - 1e-6 * jnp.sum(t**4),
        # Next to a large constant only the gradient shows a kink.
        lambda t: -0.5 * jnp.sum(t**2) - 0.1 * jnp.sum(jnp.abs(t)) - 1e9,
        # Only the second derivative of a fine ripple is large, here 1e-4 away from the origin.
        lambda t: -0.5 * jnp.sum(t**2) + 1e-18 * jnp.sum(jnp.sin(1e7 * t)),
        lambda t: -0.5e10 * t[0] ** 2 - 0.5 * jnp.sum(t[1:] ** 2) + 1e-18 * jnp.sin(1e7 * t[1]),
    ],
    ids=[
        "kink",
        "jump",
        "convex",
        "singular",
        "nan",
        "quartic",
        "kink beside a constant",
        "ripple",
        "ripple beside a sharp coordinate",
    ],
)
def test_near_misses_are_not_taken_for_gaussian(prior):
    model = OnlyPrior(prior, size=3)
    assert isinstance(model, Model)
    assert gaussian_prior(model) is None
    assert diagonal_prior(model) is None


def test_float64_is_used_whatever_the_default_and_the_default_stays():
    def shifted(theta):
        assert theta.dtype == jnp.float64
        return -0.5 * jnp.sum((theta - 1.0 / 3.0) ** 2)

    before = jax.config.jax_enable_x64
    h, _ = gaussian_prior(OnlyPrior(shifted))
    np.testing.assert_allclose(h, [1.0 / 3.0], rtol=1e-14)
    assert jax.config.jax_enable_x64 == before
    assert jnp.ones(1).dtype == (jnp.float64 if before else jnp.float32)
