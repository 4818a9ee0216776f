"""The Rényi accountant against closed forms, 40-digit sums and certified lower bounds."""

import importlib
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from fedvi.errors import ConfigError, PrivacyError, UnsupportedEvent
from fedvi.privacy.accountants import pld, rdp
from fedvi.privacy.accountants.rdp import ORDERS, delta_at_order, epsilon_at_order
from fedvi.privacy.events import (
    NOTHING,
    DiscreteGaussian,
    Gaussian,
    PoissonSampled,
    Unprotected,
    WithoutReplacement,
    compose,
    repeat,
)

ADD_REMOVE, SUBSTITUTE = rdp("add_remove"), rdp("substitute")


def binomial_divergence(rate, noise, order):
    """Mironov, Talwar and Zhang (2019), equation 30, at an integer order."""
    with mpmath.workdps(40):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        terms = (
            mpmath.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mpmath.exp((k * k - k) / (2 * s * s))
            for k in range(order + 1)
        )
        return float(mpmath.log(sum(terms)) / (order - 1))


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.01, 1.0), (0.5, 0.3), (1e-4, 2.0), (0.1, 0.1), (0.9, 5.0), (0.001, 50.0)]
)
def test_poisson_removal_meets_the_binomial_sum_from_above(rate, noise):
    for order in (2, 3, 8, 32, 128):
        exact = binomial_divergence(rate, noise, order)
        found = ADD_REMOVE.divergence(PoissonSampled(rate, Gaussian(noise)), float(order))
        assert exact <= found <= exact * (1 + 1e-8)


def quadrature(upper, lower, order, low, high):
    value, _ = integrate.quad(
        lambda x: math.exp(order * upper(x) + (1 - order) * lower(x)),
        low,
        high,
        epsabs=0,
        epsrel=1e-11,
        limit=2000,
    )
    return math.log(value) / (order - 1)


def log_mixture(rate, centre, noise):
    def log_density(x):
        parts = stats.norm.logpdf(x, 0, noise), stats.norm.logpdf(x, centre, noise)
        return float(np.logaddexp(math.log1p(-rate) + parts[0], math.log(rate) + parts[1]))

    return log_density


@pytest.mark.parametrize("order", [1.3, 2.5, 6.0])
@pytest.mark.parametrize(("rate", "noise"), [(0.3, 1.0), (0.05, 0.6)])
def test_fractional_orders_and_substitution_meet_an_adaptive_quadrature(rate, noise, order):
    event, high = PoissonSampled(rate, Gaussian(noise)), 2 * order + 8
    right, left = log_mixture(rate, 1.0, noise), log_mixture(rate, -1.0, noise)
    removal = quadrature(right, lambda x: float(stats.norm.logpdf(x, 0, noise)), order, -8, high)
    substitution = quadrature(right, left, order, -8, high)
    assert removal <= ADD_REMOVE.divergence(event, order) * (1 + 1e-10)
    assert ADD_REMOVE.divergence(event, order) <= removal * (1 + 1e-7)
    assert SUBSTITUTE.divergence(event, order) == pytest.approx(substitution, rel=1e-7)


@pytest.mark.parametrize("order", [1.3, 2.0, 6.0])
def test_a_fixed_size_costs_more_than_what_one_pair_attains_and_less_than_everybody(order):
    event = WithoutReplacement(1, 10, Gaussian(2.0))
    # All others at −C: the removal pair at half the noise, a lower bound.
    attained = ADD_REMOVE.divergence(PoissonSampled(0.1, Gaussian(1.0)), order)
    found = SUBSTITUTE.divergence(event, order)
    assert attained <= found * (1 + 1e-8)
    assert found <= 2 * attained
    assert found < SUBSTITUTE.divergence(Gaussian(2.0), order)


def test_unsampled_releases_cost_the_order_times_half_the_squared_ratio():
    event = compose(Gaussian(2.0, 1.0, 1.5), repeat(DiscreteGaussian(4.0, 1.0, 2.0, 0.01), 3))
    for order, found in zip(ORDERS, SUBSTITUTE.curve(event), strict=True):
        expected = order * ((1.5 / 2) ** 2 + 3 * (2 / 4 + 0.01) ** 2) / 2
        assert found == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("order", [1.1, 2.0, 17.0, 1024.0])
def test_the_conversion_and_its_inverse_certify_each_other(order):
    for divergence, delta in itertools.product((1e-3, 0.5, 40.0), (1e-9, 1e-5, 0.1)):
        epsilon = epsilon_at_order(order, divergence, delta)
        assert delta_at_order(order, divergence, epsilon) <= delta
        if epsilon > 1e-3:
            assert delta_at_order(order, divergence, epsilon * (1 - 1e-6)) > delta


SETTINGS = [
    ("add_remove", repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000)),
    ("add_remove", repeat(PoissonSampled(0.2, Gaussian(3.0)), 40)),
    ("substitute", repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000)),
    ("substitute", repeat(WithoutReplacement(10, 1000, Gaussian(2.0)), 1000)),
    ("substitute", compose(Gaussian(8.0), WithoutReplacement(1, 10, Gaussian(4.0)))),
]


@pytest.mark.parametrize(("relation", "event"), SETTINGS)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_it_is_never_below_the_loss_distributions_and_not_far_above(relation, event, delta):
    exact, found = pld(relation).epsilon(event, delta), rdp(relation).epsilon(event, delta)
    assert exact <= found <= 1.6 * exact
    assert rdp(relation).delta(event, found) <= delta
    assert rdp(relation).delta(event, found * (1 - 1e-6)) > delta


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta"), [(0.01, 1.0, 1000, 1e-5), (0.05, 2.0, 200, 1e-6)]
)
def test_it_is_never_below_a_certified_lower_bound(rate, noise, count, delta):
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    oracle = PRVAccountant(
        prvs=[
            PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)
        ],
        max_self_compositions=[count],
        eps_error=0.02,
        delta_error=delta * 1e-3,
    )
    low, _, _ = oracle.compute_epsilon(delta, [count])
    event = repeat(PoissonSampled(rate, Gaussian(noise)), count)
    assert ADD_REMOVE.epsilon(event, delta) >= low


@pytest.mark.parametrize(("rate", "noise"), [(0.5, 0.02), (0.01, 1e-8), (1e-12, 0.05), (0.01, 1e8)])
def test_extreme_settings_are_priced_below_everybody(rate, noise):
    for accountant in (ADD_REMOVE, SUBSTITUTE):
        found = accountant.epsilon(PoissonSampled(rate, Gaussian(noise)), 1e-5)
        assert 0 <= found <= accountant.epsilon(Gaussian(noise), 1e-5)


@pytest.mark.parametrize("accountant", [ADD_REMOVE, SUBSTITUTE])
def test_the_edges_of_an_event_are_priced_by_name(accountant):
    assert accountant.epsilon(NOTHING, 1e-5) == accountant.epsilon(NOTHING, 0.0) == 0.0
    assert accountant.delta(NOTHING, 0.0) == 0.0
    for bare in (Gaussian(0.0), DiscreteGaussian(0.0), PoissonSampled(0.1, Gaussian(0.0))):
        assert accountant.epsilon(bare, 1e-5) == math.inf
        assert accountant.delta(bare, 5.0) == 1.0
    assert accountant.epsilon(Unprotected("a factor"), 0.5) == math.inf
    assert accountant.epsilon(Gaussian(1.0), 0.0) == math.inf
    everybody = accountant.epsilon(PoissonSampled(1.0, Gaussian(7.0)), 1e-5)
    assert everybody == accountant.epsilon(Gaussian(7.0), 1e-5)


def test_overflow_is_paid_in_delta():
    clean = repeat(PoissonSampled(0.05, Gaussian(1.0)), 100)
    event = repeat(PoissonSampled(0.05, Gaussian(1.0), 1e-10), 100)
    epsilon = ADD_REMOVE.epsilon(event, 1e-5)
    assert epsilon > ADD_REMOVE.epsilon(clean, 1e-5)
    assert ADD_REMOVE.delta(clean, epsilon) + (1 + math.exp(epsilon)) * 1e-8 <= 1e-5 * (1 + 1e-9)
    assert ADD_REMOVE.delta(event, epsilon) <= 1e-5
    with pytest.raises(PrivacyError, match="no finite epsilon") as caught:
        ADD_REMOVE.epsilon(repeat(PoissonSampled(0.05, Gaussian(1.0), 1e-6), 100), 1e-5)
    assert not isinstance(caught.value, UnsupportedEvent)


@pytest.mark.parametrize(
    ("accountant", "event"),
    [
        (ADD_REMOVE, WithoutReplacement(1, 10, Gaussian(1.0))),
        (SUBSTITUTE, PoissonSampled(0.1, DiscreteGaussian(1.0))),
        (SUBSTITUTE, PoissonSampled(0.1, Gaussian(1.0, add_remove=2.0))),
    ],
)
def test_an_event_without_a_proof_is_refused(accountant, event):
    assert not accountant.supports(event)
    with pytest.raises(UnsupportedEvent) as caught:
        accountant.epsilon(compose(Gaussian(1.0), event), 1e-5)
    assert caught.value.hint


def test_arguments_outside_their_range_are_refused():
    with pytest.raises(ConfigError, match=r"delta is 1\.0"):
        ADD_REMOVE.epsilon(Gaussian(1.0), 1.0)
    with pytest.raises(ConfigError, match=r"epsilon is -1\.0"):
        ADD_REMOVE.delta(Gaussian(1.0), -1.0)
    with pytest.raises(ConfigError, match=r"order is 1\.0"):
        ADD_REMOVE.divergence(Gaussian(1.0), 1.0)


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [
        (1e-12, 1e6, 2),
        (1e-12, 1e3, 1024),
        (1e-8, 10.0, 2),
        (1e-4, 1e6, 2),
        (1e-6, 1.0, 16),
        (1e-10, 1.0, 8),
    ],
)
def test_tiny_losses_are_not_lost_to_cancellation(rate, noise, order):
    with mpmath.workdps(120):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        total = mpmath.fsum(
            mpmath.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mpmath.exp(mpmath.mpf(k * k - k) / (2 * s * s))
            for k in range(order + 1)
        )
        exact = float(mpmath.log(total) / (order - 1))
    found = ADD_REMOVE.divergence(PoissonSampled(rate, Gaussian(noise)), float(order))
    assert exact <= found <= exact * (1 + 2e-9)


@pytest.mark.parametrize("order", [1.1, 2.0, 1024.0])
def test_the_series_and_the_difference_are_the_same_function(order):
    u = np.array([-2.0, -0.11, -0.09, -0.01, 1e-9, 0.09, 0.11, 2.0]) / order
    with mpmath.workdps(60):
        exact = [
            float(mpmath.log(mpmath.expm1(mpmath.mpf(order) * x) - order * mpmath.expm1(x)))
            for x in map(mpmath.mpf, u.tolist())
        ]
    np.testing.assert_allclose(
        importlib.import_module("fedvi.privacy.accountants.rdp")._log_convex(u, order),
        exact,
        rtol=0,
        atol=2e-11,
    )


def test_the_delta_at_an_order_is_rounded_up():
    for order, divergence, epsilon in [(2.0, 0.5, 10.0), (1024.0, 3.0, 3.02), (1.1, 1e-3, 50.0)]:
        with mpmath.workdps(40):
            a, d, e = map(mpmath.mpf, (order, divergence, epsilon))
            exact = mpmath.exp((a - 1) * (d - e + mpmath.log(1 - 1 / a))) / a
        found = delta_at_order(order, divergence, epsilon)
        assert exact <= found <= exact * (1 + 1e-10)
