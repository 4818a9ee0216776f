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
        (special.trigamma, lambda x: mpmath.psi(1, x)),
    ],
)
def test_differences_of_digamma_functions_keep_their_relative_precision(function, exact):
    sizes = np.r_[SIZES[::13], 99.9, 100.0, 100.1]
    # Just below 100 a difference of numbers 200 times as large is taken.
    np.testing.assert_allclose(function(sizes), reference(exact, sizes), rtol=2e-13)


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
