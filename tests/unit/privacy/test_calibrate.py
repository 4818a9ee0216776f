"""Calibration: on the safe side, tight, printable, and refused where no noise can do it."""

import inspect
import json
import math
import sys
import warnings

import pytest

from fedvi.errors import ConfigError, PrivacyError, UnsupportedEvent
from fedvi.privacy.accountants import pld
from fedvi.privacy.accountants.pld import Pld
from fedvi.privacy.advising import advice
from fedvi.privacy.calibrate import calibrate
from fedvi.privacy.descent import sgd
from fedvi.privacy.events import (
    NOTHING,
    Gaussian,
    PoissonSampled,
    Unprotected,
    compose,
    counts,
    repeat,
)
from fedvi.privacy.historical import moments

calibrate_module = sys.modules["fedvi.privacy.calibrate"]


class Counting:
    """An accountant that counts how often it is asked."""

    name = "counting"

    def __init__(self, inner):
        self.inner, self.asked = inner, 0
        self.relation = inner.relation

    def supports(self, event):
        return self.inner.supports(event)

    def epsilon(self, event, delta):
        self.asked += 1
        return self.inner.epsilon(event, delta)

    def delta(self, event, epsilon):
        self.asked += 1
        return self.inner.delta(event, epsilon)


class Wobbling(Counting):
    """An accountant whose upper bound jumps up by a percent on every second interval of noise."""

    def epsilon(self, event, delta):
        exact = super().epsilon(event, delta)
        return exact * (1.01 if math.floor(event.noise_multiplier * 700) % 2 else 1.0)


class Fickle(Counting):
    """An accountant that finds a noise sufficient when first asked about 2, and never again."""

    def epsilon(self, event, delta):
        self.asked += 1
        return 0.5 if self.asked == 2 else 2.0


@pytest.mark.nightly(but=("C3",))
@pytest.mark.parametrize("name", ["C1", "C2", "C3"])
def test_meets_the_published_calibrations_from_above(references, name):
    rows = json.loads((references / "accounting.json").read_text(encoding="utf-8"))["calibration"]
    row = next(row for row in rows if row["id"] == name)
    accountant = Counting(pld(row["relation"]))

    def event_of(noise):
        return repeat(PoissonSampled(row["q"], Gaussian(noise)), row["T"])

    found = calibrate(event_of, accountant, row["target_eps"], row["delta"])
    assert accountant.asked <= 12
    assert accountant.inner.epsilon(event_of(found), row["delta"]) <= row["target_eps"]
    # 2e-3 below: the search's tolerance and one unit in the fourth digit.
    assert accountant.inner.epsilon(event_of(found * (1 - 2e-3)), row["delta"]) > row["target_eps"]
    assert found == pytest.approx(row["sigma_upper"], rel=2e-3)


@pytest.mark.parametrize("relation", ["add_remove", "substitute"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 500.0])
def test_the_result_is_the_least_printable_noise_that_suffices(relation, epsilon):
    accountant = pld(relation)

    def event_of(noise):
        return repeat(Gaussian(noise), 10)

    found = calibrate(event_of, accountant, epsilon, 1e-5, tolerance=1e-7)
    assert float(f"{found:.4g}") == found
    assert accountant.epsilon(event_of(found), 1e-5) <= epsilon
    # Two units in the fourth digit: one of rounding up, and the tolerance may cross another.
    below = found - 2 * 10 ** (math.floor(math.log10(found)) - 3)
    assert accountant.epsilon(event_of(below), 1e-5) > epsilon


def test_overflow_is_part_of_the_price():
    accountant = pld("add_remove")

    def event_of(noise):
        return repeat(PoissonSampled(0.1, Gaussian(noise), overflow=2e-8), 50)

    found = calibrate(event_of, accountant, 1.0, 1e-5)
    assert accountant.epsilon(event_of(found), 1e-5) <= 1.0
    without = calibrate(
        lambda noise: repeat(PoissonSampled(0.1, Gaussian(noise)), 50), accountant, 1.0, 1e-5
    )
    assert found > without


def test_a_price_that_wobbles_upwards_is_checked_on_the_number_returned():
    accountant = Wobbling(pld("add_remove"))
    for epsilon in (0.5, 0.7, 0.9, 1.1, 1.3, 1.7, 2.1):
        found = calibrate(Gaussian, accountant, epsilon, 1e-5)
        assert accountant.epsilon(Gaussian(found), 1e-5) <= epsilon


def test_what_no_noise_can_reach_is_refused_with_what_was_reached():
    accountant = pld("add_remove")
    with pytest.raises(ConfigError, match="no noise reaches epsilon 1 at delta 1e-05") as caught:
        calibrate(lambda noise: compose(Gaussian(noise), Gaussian(1.0)), accountant, 1.0, 1e-5)
    assert f"epsilon {accountant.epsilon(Gaussian(1.0), 1e-5):.4g}" in caught.value.message
    with pytest.raises(ConfigError, match="epsilon inf, and delta 1 at"):
        calibrate(lambda noise: Unprotected("a factor"), accountant, 1.0, 1e-5)
    with pytest.raises(ConfigError, match="overflow"):
        calibrate(lambda noise: PoissonSampled(0.1, Gaussian(noise), 1e-5), accountant, 1.0, 1e-5)


def test_a_delta_below_what_overflowing_batches_take_is_refused_before_any_search():
    counting = Counting(pld("add_remove"))
    with pytest.raises(ConfigError, match=r"expected above 2e-12: no noise") as caught:
        calibrate(
            lambda noise: repeat(PoissonSampled(0.1, Gaussian(noise), 1e-14), 100),
            counting, 1.0, 1e-12,
        )  # fmt: skip
    assert counting.asked == 0
    assert 'sampler "feistel"' in caught.value.hint


def small(**budget):
    return sgd(steps=50, batch=20, max_records=1000, accountant="linear", **budget)


def test_a_plan_takes_the_capacity_that_its_epsilon_and_delta_need():
    """Usual ones keep theirs, so that plans and ledgers that there are stay the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usual, tiny, large = (
            small(epsilon=epsilon, delta=delta)
            for epsilon, delta in ((1.0, 1e-6), (1.0, 1e-12), (12.0, 1e-6))
        )
    assert usual.sampler == sgd(noise_multiplier=0.0, steps=1, batch=20, max_records=1000).sampler
    for plan in (tiny, large):
        assert plan.sampler.capacity > usual.sampler.capacity
        spent = plan.accountant.epsilon(plan.total, plan.delta)
        assert 0.95 * plan.epsilon < spent <= plan.epsilon
    given = small(noise_multiplier=tiny.mechanism.noise_multiplier, delta=1e-12)
    assert given.epsilon <= 1.0


def test_a_plan_that_cannot_spend_its_epsilon_says_why_and_what_would():
    with pytest.warns(
        UserWarning, match=r"of epsilon 50 only \d+.* is spent: a Poisson batch is cut"
    ) as said:
        plan = small(epsilon=50.0, delta=1e-6)
    assert len(said) == 1
    assert 'sampler="feistel"' in str(said[0].message)
    assert "NOTE: of epsilon 50 only" in " ".join(advice(plan).split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = small(epsilon=50.0, delta=1e-6, sampler="feistel")
    assert other.accountant.epsilon(other.total, other.delta) > 0.95 * 50.0


def test_a_price_that_is_not_met_again_is_refused_not_searched_for_ever():
    fickle = Fickle(pld("add_remove"))
    with pytest.raises(ConfigError, match="still costs epsilon 2, expected 1 or less"):
        calibrate(Gaussian, fickle, 1.0, 1e-5)
    assert fickle.asked < 200


def test_an_unknown_event_is_passed_on_as_unknown():
    with pytest.raises(UnsupportedEvent):
        calibrate(
            lambda noise: PoissonSampled(0.1, Gaussian(noise, 3.0)), pld("add_remove"), 1.0, 1e-5
        )


def test_where_no_noise_is_needed_little_is_returned():
    assert 0 < calibrate(lambda noise: NOTHING, pld("substitute"), 1.0, 1e-5) < 0.01


@pytest.mark.parametrize(
    ("epsilon", "delta", "tolerance", "field"),
    [
        (0.0, 1e-5, 1e-3, "epsilon"),
        (math.inf, 1e-5, 1e-3, "epsilon"),
        (math.nan, 1e-5, 1e-3, "epsilon"),
        (1.0, 0.0, 1e-3, "delta"),
        (1.0, 1.0, 1e-3, "delta"),
        (1.0, 1e-5, 0.0, "tolerance"),
    ],
)
def test_arguments_outside_their_range_are_refused(epsilon, delta, tolerance, field):
    with pytest.raises(ConfigError, match=f"{field} is"):
        calibrate(Gaussian, pld("add_remove"), epsilon, delta, tolerance)


# Speed: few full prices, and none when asked again.


def sampled_plan(noise):
    return repeat(PoissonSampled(0.01, Gaussian(noise)), 1000)


@pytest.fixture
def full_prices(monkeypatch):
    """The noise multipliers at which the accountant was asked on its own grid."""
    asked = []
    real = Pld.epsilon

    def epsilon(self, event, delta):
        if self.interval == pld("add_remove").interval:
            asked.append(next(iter(counts(event))))
        return real(self, event, delta)

    monkeypatch.setattr(Pld, "epsilon", epsilon)
    return asked


def test_the_number_returned_is_certified_on_the_full_grid(full_prices):
    calibrate_module._cache.clear()
    found = calibrate(sampled_plan, pld("add_remove"), 1.0, 1e-5)
    assert len(full_prices) <= 4  # of a third of a second each
    assert PoissonSampled(0.01, Gaussian(found)) in full_prices
    assert pld("add_remove").epsilon(sampled_plan(found), 1e-5) <= 1.0


@pytest.mark.nightly
def test_a_coarse_grid_that_says_too_little_is_not_believed(monkeypatch):
    calibrate_module._cache.clear()
    real = Pld.epsilon

    def epsilon(self, event, delta):
        price = real(self, event, delta)
        return price / 2 if self.interval == calibrate_module._COARSE else price

    monkeypatch.setattr(Pld, "epsilon", epsilon)
    found = calibrate(sampled_plan, pld("add_remove"), 1.0, 1e-5)
    assert pld("add_remove").epsilon(sampled_plan(found), 1e-5) <= 1.0
    assert found == pytest.approx(1.416, rel=2e-3)


@pytest.mark.nightly
def test_asked_again_it_prices_nothing(full_prices):
    accountant = pld("substitute")
    first = calibrate(sampled_plan, accountant, 2.0, 1e-5)
    full_prices.clear()
    assert calibrate(lambda noise: sampled_plan(noise), pld("substitute"), 2.0, 1e-5) == first
    assert full_prices == []
    calibrate(sampled_plan, accountant, 2.1, 1e-5)
    assert full_prices != []


def test_what_was_remembered_is_not_taken_for_another_plan():
    accountant = pld("add_remove")

    def twisted(noise):
        # The same events at the probes by which results are remembered, and costlier elsewhere.
        real = noise if noise in calibrate_module._PROBES else noise / 2
        return repeat(Gaussian(real), 10)

    plain = calibrate(lambda noise: repeat(Gaussian(noise), 10), accountant, 1.0, 1e-5)
    found = calibrate(twisted, accountant, 1.0, 1e-5)
    assert found > 1.9 * plain
    assert accountant.epsilon(twisted(found), 1e-5) <= 1.0


def test_a_method_that_bounds_nothing_is_refused():
    with pytest.raises(PrivacyError, match="is no accountant"):
        inspect.unwrap(calibrate)(Gaussian, moments("add_remove"), 1.0, 1e-5)


def test_a_price_above_the_budget_by_its_last_digit_is_not_met():
    budget = 1.0
    above = math.nextafter(budget, 2.0)

    class Stairs:
        name, relation = "stairs", "add_remove"

        def supports(self, event):
            return True

        def epsilon(self, event, delta):
            noise = event.noise_multiplier
            return 0.5 if noise >= 7.0 else above if noise >= 2.0 else 3.0

        def delta(self, event, epsilon):
            return 0.0

    noise = calibrate(Gaussian, Stairs(), budget, 1e-5)
    assert Stairs().epsilon(Gaussian(noise), 1e-5) <= budget
