"""What noised gradients tell of where they vanish: exact without noise, unsure with it."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
from fedvi.inference import response

PRIOR_SD = 2.0


def prior(at):
    return -at / PRIOR_SD**2, np.eye(len(at)) / PRIOR_SD**2


def regression(seed=0, records=400, size=3, columns=None):
    """Returns (x, y, truth) of a linear model with errors of sd 1, the truth drawn from the prior."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(records, size))
    if columns is not None:
        x = x @ columns
    truth = PRIOR_SD * random.normal(size=size)
    return x, x @ truth + random.normal(size=records), truth


def exact(x, y):
    precision = x.T @ x + np.eye(x.shape[1]) / PRIOR_SD**2
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y, covariance


def descent(x, y, sd, steps=300, seed=0, spread=0.1):
    """Returns sums over a noised descent, whose places depend on the noise before them."""
    random, size = np.random.default_rng(seed), x.shape[1]
    at, places, gradients = np.zeros(size), [], []
    rate = 0.3 / np.linalg.eigvalsh(x.T @ x)[-1]
    for _ in range(steps):
        place = at + spread * random.normal(size=size)
        gradient = x.T @ (y - x @ place) + sd * random.normal(size=size)
        places.append(place)
        gradients.append(gradient)
        at = at + rate * gradient
    return added(response.nothing(size), 0, places, gradients)


def added(sums, step, places, gradients):
    return response.added(
        sums, step, jnp.asarray(places, jnp.float32), jnp.asarray(gradients, jnp.float32)
    )


def test_without_noise_it_is_the_exact_posterior():
    x, y, _ = regression()
    mean, covariance = exact(x, y)
    found = response.told(descent(x, y, 0.0), 0.0, prior)
    # Sums are in float32, where gradients of 1e3 leave about 1e-4 of a curvature of 400.
    np.testing.assert_allclose(found.mean, mean, atol=1e-3)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-2, atol=1e-5)
    assert found.hidden == 0


def covered(simulations, sd, told=True):
    """Counts how many coefficients' 95 % intervals cover the pooled mean."""
    inside = []
    for seed in range(simulations):
        x, y, _ = regression(seed)
        mean, _ = exact(x, y)
        found = response.told(descent(x, y, sd, seed=seed), sd, prior)
        wide = np.sqrt(np.diagonal(found.covariance if told else exact(x, y)[1]))
        inside.append(np.abs(found.mean - mean) < 1.96 * wide)
    return np.mean(inside, axis=0).min()


def test_intervals_cover_the_pooled_means_where_noise_is_larger_than_what_records_leave_open():
    # Noise of sd 2,000 a step: 130 in the weighted mean of 225, 0.33 in a mean, pooled sd 0.05.
    # Of 20 a nominal 95 % misses 4 or more with probability 0.02; those of the pooled sd cover a fifth.
    assert covered(20, 2000.0) >= 0.8
    assert covered(20, 2000.0, told=False) < 0.6


@pytest.mark.nightly
@pytest.mark.parametrize("sd", [200.0, 1000.0, 4000.0])
def test_intervals_cover_the_pooled_means_in_many_simulations(sd):
    # The worst of 3 coefficients at 95 % is below 0.92 of 200 with probability 0.1; intervals are wider.
    assert covered(200, sd) >= 0.92


def test_where_columns_are_collinear_the_prior_remains():
    columns = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    x, y, _ = regression(columns=columns)
    found = response.told(descent(x, y, 300.0), 300.0, prior)
    along = np.array([1.0, -1.0, 0.0]) / np.sqrt(2.0)
    assert found.hidden
    assert along @ found.covariance @ along > 0.8 * PRIOR_SD**2


def test_steps_one_by_one_are_steps_together():
    random = np.random.default_rng(0)
    places, gradients = random.normal(size=(2, 30, 2))
    together = added(response.nothing(2), 0, places, 100.0 + gradients)
    apart = response.nothing(2)
    for step in range(30):
        one = slice(step, step + 1)
        apart = added(apart, step, places[one], 100.0 + gradients[one])
    for a, b in zip(apart, together, strict=True):
        # float32, and thirty additions.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2)


def test_a_step_that_was_not_finite_is_left_out():
    places, gradients = np.random.default_rng(0).normal(size=(2, 9, 2))
    some = added(response.nothing(2), 0, places[:8], gradients[:8])
    gradients[8] = np.nan
    for a, b in zip(added(some, 8, places[8:], gradients[8:]), some, strict=True):
        np.testing.assert_array_equal(a, b)


def test_too_few_steps_are_refused():
    x, y, _ = regression()
    with pytest.raises(errors.SolverError, match=r"steps count as 6, expected at least 10"):
        response.told(descent(x, y, 1.0, steps=8), 1.0, prior)


def test_a_log_likelihood_that_is_not_concave_is_refused():
    places, noise = np.random.default_rng(0).normal(size=(2, 100, 2))
    sums = added(response.nothing(2), 0, places, 50.0 * places + noise)
    with pytest.raises(errors.SolverError, match="log likelihood is not concave"):
        response.told(sums, 1.0, prior)


def test_a_prior_that_is_not_concave_is_refused():
    x, y, _ = regression()
    with pytest.raises(errors.SolverError, match="prior is not log-concave"):
        response.told(descent(x, y, 1.0), 1.0, lambda at: (at, -np.eye(3)))
