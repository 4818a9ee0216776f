"""The built-in generalised linear models, against SciPy, closed forms and NumPyro."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats

from fedvi.errors import ModelError
from fedvi.models import linear, logistic
from fedvi.models.base import Model
from fedvi.models.numpyro import numpyro_model

pytestmark = pytest.mark.filterwarnings("error")

NAMES = ["(Intercept)", "age", "dose"]
THETA = np.array([0.3, -1.2, 0.7])


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def draws(count=9):
    random = np.random.default_rng(5)
    return random.normal(size=(count, 3)), random.integers(0, 2, size=count)


@pytest.mark.nightly
def test_built_in_logistic_equals_the_same_model_written_in_numpyro():
    def written(x, y):
        scale = jnp.array([10.0, 2.5, 2.5])
        coefficients = numpyro.sample("coefficients", dist.Normal(0.0, scale).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ coefficients), obs=y)

    built_in = logistic(NAMES, intercept_scale=10.0)
    other = numpyro_model(written, {"x": np.zeros(3), "y": 0})
    x, y = draws()
    with jax.enable_x64(True):
        for theta in (THETA, 10.0 * THETA):
            # rtol 1e-12: float64 algebra over nine records.
            np.testing.assert_allclose(
                built_in.log_prior(theta), other.log_prior(theta), rtol=1e-12
            )
            for mine, theirs in zip(
                per_record(built_in, theta, x, y), per_record(other, theta, x, y), strict=True
            ):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def per_record(model, theta, x, y):
    evaluate = jax.vmap(jax.value_and_grad(model.log_likelihood), in_axes=(None, 0))
    return evaluate(jnp.asarray(theta), {"x": jnp.asarray(x), "y": jnp.asarray(y)})


def test_priors_are_the_normal_densities_of_scipy():
    model = logistic(NAMES, prior_scale=[0.1, 2.5, 40.0], intercept_scale=7)
    assert model.prior_scales == (7.0, 2.5, 40.0)
    with jax.enable_x64(True):
        expected = scipy.stats.norm.logpdf(THETA, 0.0, [7.0, 2.5, 40.0]).sum()
        np.testing.assert_allclose(model.log_prior(THETA), expected, rtol=1e-12)


def test_linear_likelihood_is_the_normal_density_of_scipy():
    model = linear(NAMES, noise_scale=0.3)
    x, _ = draws()
    y = np.linspace(-2.0, 2.0, len(x))
    with jax.enable_x64(True):
        found, _ = per_record(model, THETA, x, y)
        np.testing.assert_allclose(found, scipy.stats.norm.logpdf(y, x @ THETA, 0.3), rtol=1e-12)


def test_a_fractional_outcome_is_a_share_of_a_success_and_a_failure():
    model = logistic(["a"])
    with jax.enable_x64(True):
        success, failure, mixed = (model.log_density(0.7, y) for y in (1, 0, 0.25))
        np.testing.assert_allclose(mixed, 0.25 * success + 0.75 * failure, rtol=1e-14)


@pytest.mark.nightly(only=("0-False",))
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("y", [0, 1, 0.0, 1.0, False, True])
def test_logistic_density_and_its_derivatives_are_finite_far_out(x64, y):
    model = logistic(["a"])
    with jax.enable_x64(x64):
        a = jnp.array([-1e6, -1e3, -30.0, 0.0, 30.0, 1e3, 1e6])
        functions = [lambda a: model.log_density(a, y)]
        for _ in range(3):
            functions.append(jax.grad(functions[-1]))
        for function in functions:
            assert np.all(np.isfinite(jax.vmap(function)(a)))
        # The wrong answer at 1e6 costs exactly the log odds.
        np.testing.assert_allclose(model.log_density(1e6, 0), -1e6, rtol=1e-7)
        np.testing.assert_allclose(model.log_density(-1e6, 1), -1e6, rtol=1e-7)


@pytest.mark.parametrize("x64", [False, True])
def test_small_logistic_terms_keep_their_relative_accuracy(x64):
    model = logistic(["a"])
    with jax.enable_x64(x64):
        a = np.array([5.0, 20.0, 40.0, 80.0])
        expected = scipy.special.log_expit(a)
        # Two roundings of exp and log1p; y a - softplus(a) would give 0 at 40 in float64.
        found = model.log_density(jnp.asarray(a), jnp.ones(4))
        np.testing.assert_allclose(found, expected, rtol=1e-14 if x64 else 1e-6)


def test_log_density_is_elementwise_over_quadrature_nodes():
    model = logistic(["a"])
    a = jnp.linspace(-2.0, 2.0, 5)
    together = model.log_density(a, 1)
    np.testing.assert_array_equal(together, jnp.stack([model.log_density(each, 1) for each in a]))


@pytest.mark.parametrize("model", [logistic(NAMES), linear(NAMES)], ids=["logistic", "linear"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_answers_come_in_the_dtype_of_theta(model, dtype):
    with jax.enable_x64(True):
        theta = jnp.asarray(THETA, dtype)
        record = {"x": np.ones(3), "y": np.int64(1)}
        assert model.log_prior(theta).dtype == dtype
        assert model.log_likelihood(theta, record).dtype == dtype
        assert jax.grad(model.log_likelihood)(theta, record).dtype == dtype
        assert model.constrain(theta)["coefficients"].dtype == dtype


def test_equal_settings_share_one_compilation():
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def prior(model, theta):
        traces.append(model)
        return model.log_prior(theta)

    prior(logistic(NAMES), jnp.zeros(3))
    prior(logistic(tuple(NAMES), prior_scale=2.5), jnp.zeros(3))
    assert len(traces) == 1
    prior(logistic(NAMES, prior_scale=2.0), jnp.zeros(3))
    assert len(traces) == 2
    assert logistic(NAMES) != linear(NAMES)
    assert linear(NAMES, noise_scale=1.0) != linear(NAMES, noise_scale=2.0)


def test_only_the_linear_model_is_conjugate_and_tells_its_noise():
    assert linear(NAMES, noise_scale=2).conjugate
    assert linear(NAMES, noise_scale=2).noise_scale == 2.0
    assert not logistic(NAMES).conjugate
    assert logistic(NAMES).noise_scale is None


def test_a_built_in_is_a_model_with_its_names_and_its_coefficients():
    model = logistic(NAMES)
    assert isinstance(model, Model)
    assert model.size == 3
    assert model.names == tuple(NAMES)
    np.testing.assert_array_equal(model.constrain(THETA)["coefficients"], jnp.asarray(THETA))


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: logistic([]), "names is empty", "Intercept"),
        (lambda: logistic("age"), "names is 'age', expected a list", r'\["\(Intercept\)", "age"\]'),
        (lambda: linear(["a", "b", "a"]), "`a` more than once, expected 3 different", "rename"),
        (lambda: logistic(["a"], 0.0), "prior_scale is 0.0, expected a positive", "2.5"),
        (lambda: logistic(["a"], -1), "prior_scale is -1, expected a positive", "2.5"),
        (lambda: logistic(["a"], float("nan")), "prior_scale is nan", "2.5"),
        (lambda: logistic(["a"], float("inf")), "prior_scale is inf", "2.5"),
        (lambda: logistic(["a"], True), "prior_scale is True", "2.5"),
        (lambda: logistic(["a"], [1.0, 2.0]), "2 numbers, expected 1", "one number for all"),
        (lambda: logistic(["a", "b"], [1.0, 0.0]), r"prior_scale\[1\] is .*0.0", "2.5"),
        (lambda: logistic(["a"], 1.0, 5.0), "no coefficient is named `\\(Intercept\\)`", "leave"),
        (lambda: linear(NAMES, intercept_scale=0.0), "intercept_scale is 0.0", "2.5"),
        (lambda: linear(["a"], noise_scale=0.0), "noise_scale is 0.0, expected a positive", "2.5"),
        (lambda: linear(["a"], noise_scale=-0.5), "noise_scale is -0.5", "2.5"),
    ],
)
def test_wrong_arguments_are_named_with_what_was_expected(make, message, hint):
    with pytest.raises(ModelError, match=message) as found:
        make()
    assert re.search(hint, found.value.hint)
