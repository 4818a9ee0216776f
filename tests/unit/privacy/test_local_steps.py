"""The counterexample of docs/proofs/local_steps.md: noise of a sum does not cover steps in a visit."""

import itertools

import numpy as np
import pytest
from scipy import integrate
from scipy.special import expit
from scipy.stats import norm

STEEP = 1e6  # the covariate of the pairs


def second_gradient(u, records):
    """Returns the clipped gradients at u of pairs of logistic records, added up."""
    ones = np.minimum(1.0, STEEP * expit(-STEEP * u))
    zeros = np.minimum(1.0, STEEP * expit(STEEP * u))
    return records / 2 * (ones - zeros)


def positive(x, records, clients, sigma):
    """P[S > 0 | x]: the sum of two steps of one client, and the noise of all the others."""
    rest = np.sqrt(2 * clients - 1) * sigma

    def density(u):
        return norm.pdf(u, x, sigma) * norm.cdf((u + second_gradient(u, records)) / rest)

    # In parts, since the integrand jumps at 0; beyond 12 sd lies less than 1e-30.
    ends = (x - 12 * sigma, -1e-4, 1e-4, x + 12 * sigma)
    return sum(
        integrate.quad(density, low, high, epsabs=1e-10, limit=200)[0]
        for low, high in itertools.pairwise(ends)
    )


def promised(clients, sigma):
    """The distance that two Gaussian mechanisms with shift 2 and noise √M·σ allow."""
    return 2 * norm.cdf(np.sqrt(2) / (np.sqrt(clients) * sigma)) - 1


@pytest.mark.parametrize(
    ("clients", "records", "distance", "claimed"),
    [(10, 20, 0.646, 0.345), (100, 100, 0.682, 0.112), (1000, 100, 0.493, 0.036)],
)
def test_the_sum_tells_more_than_its_noise_allows(clients, records, distance, claimed):
    found = positive(-1.0, records, clients, 1.0) - positive(1.0, records, clients, 1.0)
    assert found == pytest.approx(distance, abs=1e-3)
    assert promised(clients, 1.0) == pytest.approx(claimed, abs=1e-3)
    assert found > 1.8 * promised(clients, 1.0)
    # What is charged, each step behind its own client's noise, holds.
    assert found < promised(1, 1.0)


def test_a_single_step_under_the_sum_keeps_the_promise():
    clients, sigma = 10, 1.0
    single = 2 * norm.cdf(1.0 / (np.sqrt(clients) * sigma)) - 1
    # The same other records, seen at θ_0 = 0, where nobody drew noise yet: they add what they add.
    assert second_gradient(0.0, 20) == 0.0
    assert single < promised(clients, sigma)


def test_a_simulation_of_two_steps_agrees():
    clients, records, trials = 10, 20, 40_000
    generator = np.random.default_rng(5)

    def told(x):
        u = x + generator.normal(size=trials)
        rest = generator.normal(scale=np.sqrt(2 * clients - 1), size=trials)
        return (u + second_gradient(u, records) + rest > 0).mean()

    expected = positive(-1.0, records, clients, 1.0) - positive(1.0, records, clients, 1.0)
    # 5 standard errors of a difference of two shares.
    assert told(-1.0) - told(1.0) == pytest.approx(expected, abs=5 * np.sqrt(0.5 / trials))
