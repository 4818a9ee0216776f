"""The lifetime filter: its cap holds for an adversary that stops and chooses at will."""

import math

import numpy as np
import pytest
from scipy import stats

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.accountants.rdp import ORDERS
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
from fedvi.privacy.filter import RdpFilter, rdp_filter


def test_it_admits_until_the_cap_and_no_further():
    cap = rdp_filter(3.0, 1e-5, "substitute")
    spent, count = NOTHING, 0
    while cap.admits(spent, Gaussian(20.0)):
        spent, count = compose(spent, Gaussian(20.0)), count + 1
    assert count == math.floor(cap.capacity / (cap.order * (2 / 20) ** 2 / 2))
    assert cap.epsilon_of(spent) <= 3.0 < cap.epsilon_of(repeat(Gaussian(20.0), count + 1))
    assert cap.left(spent) >= 0 > cap.left(repeat(Gaussian(20.0), count + 1))
    assert cap.admits(spent, Gaussian(1e6))
    assert cap.admits(spent, NOTHING)


def test_the_order_it_chooses_leaves_most_room():
    chosen = rdp_filter(1.0, 1e-6, "substitute")
    for order in ORDERS:
        try:
            other = RdpFilter(1.0, 1e-6, "substitute", order)
        except ConfigError:  # nothing to spend at that order
            continue
        assert other.capacity / order <= chosen.capacity / chosen.order


def test_a_typical_event_moves_the_order_to_where_it_fits_most_often():
    typical = PoissonSampled(0.01, Gaussian(1.0))
    plain = rdp_filter(2.0, 1e-5, "add_remove")
    chosen = rdp_filter(2.0, 1e-5, "add_remove", typical=typical)
    most = max(n for n in range(1, 3000, 10) if chosen.admits(NOTHING, repeat(typical, n)))
    assert chosen.admits(NOTHING, repeat(typical, most))
    assert not plain.admits(NOTHING, repeat(typical, most + 10))


def attained_delta(noise, epsilon, stop, rounds, trials=200_000):
    """δ attained at ``epsilon`` by N(1) against N(0), stopped by ``stop`` on the released losses."""
    generator = np.random.default_rng(3)
    running = np.ones(trials, bool)
    loss = np.zeros(trials)
    for _ in range(rounds):
        step = (1 + noise * generator.standard_normal(trials) - 0.5) / noise**2
        loss = np.where(running, loss + step, loss)
        running &= ~stop(loss)
    return float(np.maximum(-np.expm1(epsilon - loss), 0).mean())


def test_its_cap_holds_when_a_run_stops_where_the_loss_is_large():
    noise, delta = 5.0, 0.01
    cap = rdp_filter(1.0, delta, "add_remove")
    rounds = 1
    while cap.admits(repeat(Gaussian(noise), rounds), Gaussian(noise)):
        rounds += 1
    # Stops as soon as the cap is exceeded: the worst that an adversary can do with equal releases.
    found = attained_delta(noise, 1.0, lambda loss: loss > 1.0, rounds)
    assert found <= delta
    # The check has teeth: three times the admitted releases break the cap.
    assert attained_delta(noise, 1.0, lambda loss: loss > 1.0, 3 * rounds) > delta


def test_the_cost_of_a_stopped_run_is_an_ex_post_bound():
    noise, delta = 5.0, 0.05
    cap = rdp_filter(3.0, delta, "add_remove")
    generator = np.random.default_rng(5)
    trials, rounds = 100_000, 25
    costs = np.array([cap.epsilon_of(repeat(Gaussian(noise), n)) for n in range(1, rounds + 1)])
    steps = (0.5 + noise * generator.standard_normal((trials, rounds))) / noise**2
    losses = np.cumsum(steps, axis=1)
    # Stops where the loss exceeds the cost of that time by most so far, seen from the start.
    excess = losses - costs[None, :]
    stopped = np.where((excess > 0).any(axis=1), (excess > 0).argmax(axis=1), rounds - 1)
    at_stop = excess[np.arange(trials), stopped]
    assert float(np.maximum(-np.expm1(-at_stop), 0).mean()) <= delta


def test_overflow_is_charged_to_its_share_of_delta_and_refused_beyond():
    cap = rdp_filter(1.0, 1e-5, "add_remove", overflow_share=0.1)
    most = 1e-6 / (1 + math.e)
    event = PoissonSampled(0.01, Gaussian(5.0), overflow=most * 0.49)
    assert cap.admits(NOTHING, repeat(event, 2))
    assert not cap.admits(NOTHING, repeat(event, 3))
    assert not cap.admits(repeat(event, 2), event)
    assert cap.epsilon_of(repeat(event, 3)) == math.inf
    none = rdp_filter(1.0, 1e-5, "add_remove", overflow_share=0.0)
    assert not none.admits(NOTHING, event)
    assert none.admits(NOTHING, PoissonSampled(0.01, Gaussian(5.0)))
    assert none.capacity > cap.capacity


def test_the_capacity_is_the_exact_profile_at_worst_from_below():
    for epsilon in (0.1, 1.0, 10.0):
        cap = rdp_filter(epsilon, 1e-6, "add_remove")
        mu = math.sqrt(2 * cap.capacity / cap.order)
        exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert exact <= 1e-6


def test_unprotected_releases_and_unknown_ones_do_not_pass():
    cap = rdp_filter(3.0, 1e-5, "add_remove")
    assert not cap.admits(NOTHING, Unprotected("a factor"))
    assert cap.admits(NOTHING, DiscreteGaussian(100.0))
    with pytest.raises(UnsupportedEvent):
        cap.admits(NOTHING, WithoutReplacement(1, 10, Gaussian(2.0)))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0.0, 1e-5, "substitute"), r"epsilon is 0\.0"),
        ((math.inf, 1e-5, "substitute"), "epsilon is inf"),
        ((1.0, 0.0, "substitute"), r"delta is 0\.0"),
        ((1.0, 1.0, "substitute"), r"delta is 1\.0"),
        ((1.0, 1e-5, "substitute", 1.0), r"order is 1\.0"),
        ((1.0, 1e-5, "substitute", 2.0), "leaves nothing to spend"),
        ((1.0, 1e-5, "substitute", None, None, 1.0), r"overflow_share is 1\.0"),
    ],
)
def test_a_cap_that_means_nothing_is_refused(arguments, match):
    with pytest.raises(ConfigError, match=match):
        rdp_filter(*arguments)
