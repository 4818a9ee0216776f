"""Fixed-size batches: the dominating pair against enumeration, quadrature and published vectors."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from fedvi.errors import UnsupportedEvent
from fedvi.privacy.accountants import losses, pld
from fedvi.privacy.events import (
    DiscreteGaussian,
    Gaussian,
    PoissonSampled,
    Unprotected,
    WithoutReplacement,
    compose,
    repeat,
)

SUBSTITUTE, ADD_REMOVE = pld("substitute"), pld("add_remove")
VECTORS = ["fixed_wor_sub_P2", "fixed_wor_sub_P5", "fixed_wor_sub_W6"]


@pytest.fixture(scope="module")
def vectors(references):
    found = json.loads((references / "accounting.json").read_text(encoding="utf-8"))["vectors"]
    return {v["id"]: v for v in found if v["mechanism"] == "fixed_size_wor_subsampled_gaussian"}


def test_every_published_vector_is_checked(vectors):
    assert set(vectors) == set(VECTORS)


@pytest.mark.parametrize("name", VECTORS)
def test_meets_a_published_vector_and_exceeds_what_is_attained(vectors, name):
    """Circular: all three numbers came from dp-accounting, which `pld` wraps.

    ``tests/statistical/test_independent_prices.py`` confirms the first two by simulation.
    """
    vector = vectors[name]
    event = compose(
        *(
            repeat(WithoutReplacement(round(1000 * p["q"]), 1000, Gaussian(p["sigma"])), p["T"])
            for p in vector["parts"]
        )
    )
    found = SUBSTITUTE.epsilon(event, vector["delta"])
    assert found == pytest.approx(vector["reference_eps"], rel=vector["rel_tol"])
    assert found >= vector["must_not_be_below"]
    # An upper bound from the same tool, looser: the antipodal pair at half the noise.
    assert found <= vector["eps"]["dp_accounting_pld_REPLACE_at_sigma_half_upper"]


def profile(noise, rate, epsilon):
    """f of docs/proofs/fixed_size.md, from normal tails, at any real ε; units at distance 2."""
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * profile(noise, rate, -epsilon)
    inner = math.log1p(math.expm1(epsilon) / rate)
    x = 1 + inner * noise**2 / 2
    return rate * (stats.norm(2, noise).sf(x) - math.exp(inner) * stats.norm(0, noise).sf(x))


@pytest.mark.parametrize(("batch", "size"), [(1, 100), (3, 10), (9, 10)])
@pytest.mark.parametrize("noise", [0.5, 2.0, 8.0])
def test_one_release_meets_its_profile_from_above_on_both_sides_of_zero(batch, size, noise):
    event = WithoutReplacement(batch, size, Gaussian(noise))
    loss = losses._fixed_size_loss(noise / 2, event.rate, 1e-4)
    for epsilon in (-3.0, -0.2, -0.01, 0.0, 0.01, 0.3, 1.0, 3.0):
        exact = profile(noise, event.rate, epsilon)
        found = loss.delta(epsilon)
        assert found >= exact * (1 - 1e-12) - 1e-14
        # A chord over 1e-4 lies above the curve by less than this; its error is quadratic.
        assert found <= exact + 1e-6 * event.rate + 1e-10
        if epsilon >= 0:
            assert SUBSTITUTE.delta(event, epsilon) >= exact * (1 - 1e-12)


def enumerated(noise, others, unit, substitute, gammas):
    """E_γ between batches of 2 of 4 slots, all six drawn with the same probability."""
    line = np.arange(-2 - 9 * noise, 2 + 9 * noise, noise / 80)

    def density(value):
        slots = (value, *others)
        means = np.array([slots[i] + slots[j] for i, j in itertools.combinations(range(4), 2)])
        return np.exp(-((line[None, :] - means[:, None]) ** 2) / (2 * noise**2)).mean(axis=0)

    upper, lower = density(unit), density(substitute)
    scale = noise / 80 / (noise * math.sqrt(2 * math.pi))
    return [float(np.maximum(upper - gamma * lower, 0).sum() * scale) for gamma in gammas]


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_no_batch_of_two_out_of_four_exceeds_the_pair_and_the_worst_attains_it(noise):
    epsilons = (-1.0, -0.3, -0.05, 0.05, 0.3, 1.0)
    loss = losses._fixed_size_loss(noise / 2, 0.5, 1e-4)
    bounds = np.array([loss.delta(epsilon) for epsilon in epsilons])
    worst = np.zeros(len(epsilons))
    grid = (-1.0, 0.0, 1.0)
    for others in itertools.combinations_with_replacement(grid, 3):
        for unit, substitute in itertools.permutations(grid, 2):
            found = enumerated(noise, others, unit, substitute, np.exp(epsilons))
            worst = np.maximum(worst, found)
    assert np.all(worst <= bounds + 1e-5)  # the rectangle rule's error at the kink
    np.testing.assert_allclose(worst, bounds, rtol=1e-3)
    # The check has teeth: the price of Poisson batches at the same rate is exceeded.
    poisson = [SUBSTITUTE.delta(PoissonSampled(0.5, Gaussian(noise)), e) for e in epsilons[3:]]
    assert np.all(worst[3:] > np.array(poisson) * 1.02)


def test_the_mass_of_one_release_is_one_and_its_own_mirror_image():
    loss = losses._fixed_size_loss(1.0, 0.1, 1e-3).remove
    assert math.fsum(loss.at) + loss.infinite == pytest.approx(1.0, abs=1e-14)
    half = loss.at.size // 2
    points = (np.arange(loss.at.size) + loss.lowest) * 1e-3
    # Both laws have all their mass: Q's is Σ e^−ℓ·p, short of what P sends to infinity.
    assert math.fsum(np.exp(-points) * loss.at) == pytest.approx(1.0, abs=1e-12)
    assert points[half] == 0.0


def test_two_releases_cost_at_least_two_of_one_direction():
    # Both sides are composed by one library; tests/statistical/test_independent_prices.py has a
    # quadrature of both.
    event, rate, noise = WithoutReplacement(2, 10, Gaussian(2.0)), 0.2, 1.0
    one_way = PoissonSampled(rate, Gaussian(noise))  # the pair at half the noise: attained
    for epsilon in (0.1, 0.8):
        # 1e-6: each is a chord above its curve, on grids of their own.
        assert SUBSTITUTE.delta(repeat(event, 2), epsilon) >= ADD_REMOVE.delta(
            repeat(one_way, 2), epsilon
        ) * (1 - 1e-6)
        # Composing it is dearer than one direction: dropping the lower half would be seen.
    tight = SUBSTITUTE.epsilon(repeat(event, 100), 1e-5)
    assert tight > 1.02 * ADD_REMOVE.epsilon(repeat(one_way, 100), 1e-5)


def test_a_batch_of_everything_is_the_plain_gaussian():
    event = repeat(WithoutReplacement(20, 20, Gaussian(7.0)), 20)
    assert SUBSTITUTE.epsilon(event, 1e-5) == SUBSTITUTE.epsilon(repeat(Gaussian(7.0), 20), 1e-5)


def test_a_slot_that_may_be_empty_is_priced_by_the_larger_shift():
    inner = Gaussian(2.0, add_remove=2.0, substitute=1.0)
    same = Gaussian(2.0, add_remove=1.0, substitute=2.0)
    first = SUBSTITUTE.delta(WithoutReplacement(1, 10, inner), 0.5)
    assert first == SUBSTITUTE.delta(WithoutReplacement(1, 10, same), 0.5)
    free = WithoutReplacement(1, 10, Gaussian(0.0, 0.0, 0.0))
    assert SUBSTITUTE.epsilon(free, 1e-5) == 0.0
    assert SUBSTITUTE.epsilon(WithoutReplacement(1, 10, Gaussian(0.0)), 1e-5) == math.inf


def test_fixed_size_poisson_and_full_batches_mix():
    fixed = repeat(WithoutReplacement(10, 1000, Gaussian(2.0)), 300)
    poisson = repeat(PoissonSampled(0.01, Gaussian(1.0)), 100)
    full = repeat(Gaussian(40.0), 10)
    parts = [SUBSTITUTE.delta(part, 1.0) for part in (fixed, poisson, full)]
    mixed = SUBSTITUTE.epsilon(compose(fixed, poisson, full), 1e-5)
    assert SUBSTITUTE.delta(compose(full, poisson, fixed), 1.0) > sum(parts)
    assert mixed == SUBSTITUTE.epsilon(compose(poisson, full, fixed), 1e-5)
    assert mixed < sum(SUBSTITUTE.epsilon(part, 1e-5) for part in (fixed, poisson, full))


@pytest.mark.parametrize(
    ("batch", "size", "noise", "count"),
    [(1, 2, 0.02, 1000), (10, 1000, 1e-8, 10), (1, 10**9, 0.1, 10**6), (10, 1000, 1e8, 1000)],
)
def test_extreme_settings_are_priced_below_everybody(batch, size, noise, count):
    event = repeat(WithoutReplacement(batch, size, Gaussian(noise)), count)
    found = SUBSTITUTE.epsilon(event, 1e-5)
    assert 0 <= found <= SUBSTITUTE.epsilon(repeat(Gaussian(noise), count), 1e-5)
    assert found < math.inf


def test_a_fixed_size_is_refused_under_add_remove_with_what_would_be_right():
    event = WithoutReplacement(10, 1000, Gaussian(2.0))
    assert SUBSTITUTE.supports(event)
    assert not ADD_REMOVE.supports(event)
    with pytest.raises(UnsupportedEvent) as caught:
        ADD_REMOVE.epsilon(event, 1e-5)
    assert "substitute" in caught.value.hint
    assert "poisson" in caught.value.hint


@pytest.mark.parametrize("inner", [Unprotected("a factor"), DiscreteGaussian(2.0)])
def test_other_releases_of_a_fixed_size_batch_are_refused(inner):
    assert not SUBSTITUTE.supports(WithoutReplacement(1, 10, inner))
