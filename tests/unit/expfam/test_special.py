"""Claims about digamma functions and their inverses, over all sizes of concentrations."""

import mpmath
import numpy as np
import pytest

from fedvi.expfam import special
from fedvi.expfam.dirichlet import whiten_concentrations

SIZES = np.logspace(-12, 14, 1301)


def reference(function, sizes):
    with mpmath.workdps(50):
        return np.array([float(function(mpmath.mpf(float(size)))) for size in sizes])


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (special.excess, lambda x: mpmath.psi(1, x) - 1 / x),
        (special.log_less_digamma, lambda x: mpmath.log(x) - mpmath.psi(0, x)),
        (special.trigamma, lambda x: mpmath.psi(1, x)),
    ],
)
def test_differences_of_digamma_functions_keep_their_relative_precision(function, exact):
    sizes = np.r_[SIZES[::13], 99.9, 100.0, 100.1]
    # Just below 100 a difference of numbers 200 times as large is taken.
    np.testing.assert_allclose(function(sizes), reference(exact, sizes), rtol=2e-13)


def test_a_gamma_s_shape_is_found_from_every_gap():
    found = special.shape_of_gap(special.log_less_digamma(SIZES))
    np.testing.assert_allclose(found, SIZES, rtol=1e-11)


@pytest.mark.parametrize("count", [2, 3, 30])
def test_concentrations_are_found_from_expected_logs_of_every_size(count):
    generator = np.random.default_rng(count)
    spread = generator.choice([0.0, 0.5, 2.0, 4.0], 500)
    alpha = 10.0 ** generator.uniform(-3.0, 5.0, 500) * np.exp(
        spread * generator.normal(size=(count, 500))
    )
    alpha = np.clip(alpha, 1e-6, 1e9)
    logs = special.digamma(alpha) - special.digamma(alpha.sum(axis=0))
    found = special.concentrations(logs)
    # What the logs, themselves rounded, can tell: see the docstring.
    lost = 1e-14 * alpha.sum(axis=0) * (1.0 + np.abs(logs).max(axis=0))
    assert (np.abs(found / alpha - 1.0) < 1e-11 + 10.0 * lost).all()
    again = special.digamma(found) - special.digamma(found.sum(axis=0))
    np.testing.assert_allclose(again, logs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4, 1e8])
def test_the_metric_of_sharp_dirichlets_is_not_lost_in_rounding(size):
    alpha = size * np.array([0.5, 1.0, 3.0, 0.1])
    # Along α itself the metric is that of the total concentration alone, 1 / α of the others.
    changes = np.stack([alpha, np.array([1.0, -2.0, 0.5, 0.0])], axis=1)
    whitened = whiten_concentrations(np.stack([alpha, alpha], axis=1), changes)
    with mpmath.workdps(60):
        for column, change in zip(whitened.T, changes.T, strict=True):
            sizes, moves = ([mpmath.mpf(x) for x in numbers] for numbers in (alpha, change))
            terms = (mpmath.psi(1, a) * c**2 for a, c in zip(sizes, moves, strict=True))
            total, moved = mpmath.fsum(sizes), mpmath.fsum(moves)
            expected = float(mpmath.fsum(terms) - mpmath.psi(1, total) * moved**2)
            assert column @ column == pytest.approx(expected, rel=1e-11)
