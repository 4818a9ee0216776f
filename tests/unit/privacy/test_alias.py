"""The alias tables: exact integers against the law, and the file against its digest."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.privacy import random
from fedvi.privacy.mechanisms import _alias, _tables

LAWS = tuple(_tables.LAWS)


def weights_of(table: np.ndarray) -> list[int]:
    """Adds up what each magnitude gets from its own column and as an alias, in whole numbers."""
    capacity = 2**63
    whole = [0] * table.shape[1]
    for column, (alias, high, low) in enumerate(table.T.tolist()):
        threshold = (high << 32) | low
        whole[column] += threshold
        whole[alias] += capacity - threshold
    return whole


def law_of(name: str, k: int) -> mpmath.mpf:
    """The law of |N| at k, by formulas other than the generator's."""
    with mpmath.workprec(300):
        if name == "rounded_gaussian":
            upper = mpmath.erfc((k + mpmath.mpf("0.5")) / 4096 / mpmath.sqrt(2))
            lower = mpmath.erfc((k - mpmath.mpf("0.5")) / 4096 / mpmath.sqrt(2))
            return 1 - upper if k == 0 else lower - upper
        whole = mpmath.jtheta(3, 0, mpmath.exp(-mpmath.mpf(1) / (2 * 256**2))) * 16
        # Σ exp(−k²/2σ²) is σ√(2π) up to exp(−2π²σ²): the theta function of σ = 256, times 16.
        return (1 if k == 0 else 2) * mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * 4096**2)) / whole


@pytest.mark.parametrize("name", LAWS)
def test_each_weight_is_within_one_unit_of_the_law_and_they_sum_to_one(name):
    weights = weights_of(_alias.table(name))
    assert sum(weights) == 2**79
    for k in [*range(40), *range(40, 65536, 331), 65535]:
        with mpmath.workprec(300):
            assert abs(weights[k] - law_of(name, k) * 2**79) <= 1, k


def test_the_distance_that_is_stated_covers_rounding_and_tail():
    tail = mpmath.erfc(mpmath.mpf("65535.5") / 4096 / mpmath.sqrt(2))
    assert 65536 * mpmath.mpf(2) ** -79 / 2 + tail < _alias.TABLE_DISTANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_the_table_in_the_package_is_what_its_generator_makes(name):
    law = _tables.LAWS[name]()
    weights = _tables.weights(law)
    np.testing.assert_array_equal(_tables.make(weights), _alias.table(name))
    with mpmath.workprec(300):
        scale = mpmath.mpf(2) ** 79
        distance = mpmath.fsum(abs(w / scale - p) for w, p in zip(weights, law, strict=True)) / 2
    assert distance < _alias.TABLE_DISTANCE


def test_a_damaged_table_is_refused(monkeypatch):
    monkeypatch.setitem(_alias._DIGESTS, "rounded_gaussian", "0" * 64)
    _alias.table.cache_clear()
    try:
        with pytest.raises(errors.PrivacyError, match="SHA-256"):
            _alias.table("rounded_gaussian")
    finally:
        _alias.table.cache_clear()


def test_a_draw_uses_its_bits_as_the_proof_says(monkeypatch):
    """Known words give known integers: column, threshold in 63 bits, sign."""
    name = "rounded_gaussian"
    table = _alias.table(name)
    column = next(i for i in range(60_000) if table[0][i] != i and 0 < table[2][i] < 2**32 - 1)
    alias, high, low = (int(row[column]) for row in table)
    sign = 1 << 31
    cases = [
        (high, low - 1, column),
        (high, low, alias),
        (high | sign, low - 1, -column),
        (high | sign, low, -alias),
    ]
    pairs = [cases[:2], cases[2:]]
    for two in pairs:
        words = np.array(
            [[column | column << 16], [two[0][0]], [two[1][0]], [two[0][1]], [two[1][1]]],
            np.uint32,
        )
        monkeypatch.setattr(
            _alias.jax.random,
            "bits",
            lambda key, shape, dtype, words=words: _alias.jnp.asarray(words),
        )
        found = _alias.draw(name, random.insecure_root(0).key("a"), 2)
        assert found.tolist() == [two[0][2], two[1][2]]


def fits(noise: np.ndarray) -> bool:
    """χ² of draws against the exact law in 60 cells, and moments within 5 standard errors."""
    scaled = noise / 4096.0
    # Cell edges at half-integers, so that each cell's mass is exact for the rounded Gaussian.
    edges = np.round(4096 * scipy.stats.norm.ppf(np.arange(1, 60) / 60)) + 0.5
    expected = np.diff([0.0, *scipy.stats.norm.cdf(edges / 4096.0), 1.0]) * noise.size
    found = np.bincount(np.searchsorted(edges, noise), minlength=60)
    chi2 = ((found - expected) ** 2 / expected).sum()
    count = noise.size
    return bool(
        # p = 1e-6 a test; the seed is fixed.
        scipy.stats.chi2.sf(chi2, 59) > 1e-6
        and abs(scaled.mean()) < 5 / math.sqrt(count)
        and abs((scaled**2).mean() - 1) < 5 * math.sqrt(2 / count)
        and abs((scaled**4).mean() - 3) < 5 * math.sqrt(96 / count)
    )


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    noise = np.asarray(_alias.draw(name, random.insecure_root(3).key("noise"), 400_001))
    assert fits(noise)
    # Neighbours, and the two draws that share a word, are not correlated.
    half = 200_001
    for one, two in ((noise[:-1], noise[1:]), (noise[: half - 1], noise[half:])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(one.size)
        assert abs(np.corrcoef(abs(one), abs(two))[0, 1]) < 5 / math.sqrt(one.size)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8, 0.99])
def test_weaker_noise_is_told_from_the_law(factor):
    noise = np.asarray(_alias.draw("rounded_gaussian", random.insecure_root(3).key("n"), 400_001))
    assert not fits(np.round(factor * noise))
