"""The zCDP accountant: exact ρ, the optimal conversion, and no credit for sampling."""

import math

import numpy as np
import pytest

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.accountants import pld, zcdp
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

ADD_REMOVE, SUBSTITUTE = zcdp("add_remove"), zcdp("substitute")


def test_rho_is_half_the_sum_of_squared_ratios():
    event = compose(Gaussian(2.0, 1.0, 1.5), repeat(DiscreteGaussian(4.0, 1.0, 2.0, 0.01), 3))
    assert ADD_REMOVE.rho(event) == pytest.approx(((1 / 2) ** 2 + 3 * (1 / 4 + 0.01) ** 2) / 2)
    assert SUBSTITUTE.rho(event) == pytest.approx(((1.5 / 2) ** 2 + 3 * (2 / 4 + 0.01) ** 2) / 2)


@pytest.mark.parametrize("rho", [1e-4, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_the_conversion_is_the_best_over_a_grid_of_orders(rho, delta):
    epsilon = ADD_REMOVE.epsilon(Gaussian(math.sqrt(1 / (2 * rho))), delta)
    orders = 1 + np.geomspace(1e-4, 1e6, 20_000)
    penalty = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    best = max(0.0, float(np.min(orders * rho + penalty)))
    # 1e-5: the grid's spacing; nowhere above the older conversion.
    assert best * (1 - 1e-5) <= epsilon <= best * (1 + 1e-9) + 1e-12
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.parametrize("noise", [0.5, 5.0, 100.0])
@pytest.mark.parametrize("relation", ["add_remove", "substitute"])
def test_it_is_never_below_the_exact_price_of_a_gaussian(noise, relation):
    for delta in (1e-3, 1e-9):
        exact = pld(relation).epsilon(Gaussian(noise), delta)
        found = zcdp(relation).epsilon(Gaussian(noise), delta)
        assert found >= exact
        assert zcdp(relation).delta(Gaussian(noise), found) <= delta


def test_sampling_is_not_credited():
    full = ADD_REMOVE.epsilon(repeat(Gaussian(5.0), 20), 1e-5)
    assert ADD_REMOVE.epsilon(repeat(PoissonSampled(0.01, Gaussian(5.0)), 20), 1e-5) == full
    full = SUBSTITUTE.epsilon(repeat(Gaussian(5.0), 20), 1e-5)
    fixed = repeat(WithoutReplacement(1, 100, Gaussian(5.0)), 20)
    assert SUBSTITUTE.epsilon(fixed, 1e-5) == full > pld("substitute").epsilon(fixed, 1e-5)


def test_overflow_is_paid_in_delta():
    event = repeat(PoissonSampled(0.01, Gaussian(10.0), 1e-9), 10)
    epsilon = ADD_REMOVE.epsilon(event, 1e-5)
    assert epsilon > ADD_REMOVE.epsilon(repeat(Gaussian(10.0), 10), 1e-5)
    assert ADD_REMOVE.delta(event, epsilon) <= 1e-5


@pytest.mark.parametrize("accountant", [ADD_REMOVE, SUBSTITUTE])
def test_the_edges_of_an_event_are_priced_by_name(accountant):
    assert accountant.epsilon(NOTHING, 1e-5) == accountant.delta(NOTHING, 0.0) == 0.0
    for bare in (Gaussian(0.0), Unprotected("a factor"), PoissonSampled(0.1, Gaussian(0.0))):
        assert accountant.epsilon(bare, 1e-5) == math.inf
        assert accountant.delta(bare, 5.0) == 1.0
    assert accountant.epsilon(Gaussian(1.0), 0.0) == math.inf


def test_what_it_does_not_know_is_refused():
    for accountant, event in (
        (ADD_REMOVE, WithoutReplacement(1, 10, Gaussian(1.0))),
        (SUBSTITUTE, PoissonSampled(0.1, Unprotected("a factor"))),
    ):
        assert not accountant.supports(event)
        with pytest.raises(UnsupportedEvent) as caught:
            accountant.rho(event)
        assert caught.value.hint
    with pytest.raises(ConfigError, match=r"delta is 1\.0"):
        ADD_REMOVE.epsilon(Gaussian(1.0), 1.0)
