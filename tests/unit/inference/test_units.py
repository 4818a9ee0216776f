"""Claims about the model of a unit: the rows' terms added up, and nothing of rows that are not there."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from fedvi import errors
from fedvi.inference.units import unit_model
from fedvi.models import linear, logistic, numpyro_model
from fedvi.models.base import Model, gaussian_prior
from fedvi.typing import ROWS

MODEL = logistic(["a", "b"], prior_scale=2.0)
THETA = jnp.array([0.3, -1.2])
X = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]], np.float32)
Y = np.array([1.0, 0.0, 1.0], np.float32)


def unit(count: int, filler: float = 0.0) -> dict[str, jnp.ndarray]:
    """A unit of ``count`` rows out of three, the rest filled with something."""
    stands = np.arange(3) < count
    x, y = X.copy(), Y.copy()
    x[~stands], y[~stands] = filler, filler
    return {"x": jnp.asarray(x), "y": jnp.asarray(y), ROWS: jnp.asarray(stands)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_likelihood_of_a_unit_is_the_sum_over_its_rows(count: int) -> None:
    apart = sum(
        float(MODEL.log_likelihood(THETA, {"x": X[row], "y": Y[row]})) for row in range(count)
    )
    # Three float32 terms of order 1.
    found = unit_model(MODEL).log_likelihood(THETA, unit(count))
    np.testing.assert_allclose(float(found), apart, rtol=1e-6)


@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e30])
def test_what_stands_where_no_row_is_reaches_neither_value_nor_gradient(filler: float) -> None:
    likelihood = jax.value_and_grad(unit_model(MODEL).log_likelihood)
    clean, soiled = likelihood(THETA, unit(2)), likelihood(THETA, unit(2, filler))
    np.testing.assert_array_equal(clean[0], soiled[0])
    np.testing.assert_array_equal(clean[1], soiled[1])


def test_a_single_row_is_refused_as_a_unit() -> None:
    with pytest.raises(errors.ModelError, match="expected all rows of one unit") as error:
        unit_model(MODEL).log_likelihood(THETA, {"x": X[0], "y": Y[0]})
    assert "by_unit" in error.value.hint


@pytest.mark.numpyro
def test_a_model_written_in_numpyro_gets_its_rows_one_by_one() -> None:
    def ward(x0, y):  # type: ignore[no-untyped-def]
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            # No mass at 0, so that a row of zeros would be impossible.
            numpyro.sample("y", dist.LogNormal(slope * x0, 1.0), obs=y)

    model = numpyro_model(ward, {"x0": np.zeros(()), "y": np.ones(())}, name="ward")
    record = {
        "x0": jnp.array([1.0, -2.0, 0.0]),
        "y": jnp.array([1.5, 0.3, 0.0]),
        ROWS: jnp.array([True, True, False]),
    }
    theta = jnp.array([0.4])

    def apart(theta: jnp.ndarray) -> jnp.ndarray:
        rows = [{"x0": record["x0"][row], "y": record["y"][row]} for row in range(2)]
        return model.log_likelihood(theta, rows[0]) + model.log_likelihood(theta, rows[1])

    found = jax.value_and_grad(unit_model(model).log_likelihood)(theta, record)
    for value, expected in zip(found, jax.value_and_grad(apart)(theta), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_everything_but_the_likelihood_is_the_model_s_own() -> None:
    wrapped = unit_model(MODEL)
    assert isinstance(wrapped, Model)
    assert (wrapped.size, wrapped.names) == (MODEL.size, MODEL.names)
    np.testing.assert_array_equal(wrapped.log_prior(THETA), MODEL.log_prior(THETA))
    assert wrapped.constrain(THETA).keys() == MODEL.constrain(THETA).keys()
    prior = gaussian_prior(wrapped)
    assert prior is not None
    np.testing.assert_allclose(prior[1], np.eye(2) / 4.0, rtol=1e-12)


def test_equal_models_make_equal_unit_models_so_that_a_second_study_compiles_nothing() -> None:
    assert unit_model(linear(["a"])) == unit_model(linear(["a"]))
    assert hash(unit_model(linear(["a"]))) == hash(unit_model(linear(["a"])))
