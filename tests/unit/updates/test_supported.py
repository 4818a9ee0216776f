"""A report counts on as much curvature as noisy sums support: no more, and not much less."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi.updates.coordinates import Coordinates
from fedvi.updates.supported import supported_curvature, vanishing_forms

D = 12


def noise(generator, size=D):
    """Of sd 1 in each coordinate of svec."""
    found = generator.normal(size=(size, size))
    return (found + found.T) / 2.0


def correlated(strength):
    """A correlation matrix of which a neighbour's is ``strength``."""
    return strength ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))


def covariance(H, sd, precision):
    vectors, values = supported_curvature(H, sd, precision)
    return np.linalg.inv(precision + (vectors * values) @ vectors.T)


def test_without_doubt_it_is_the_curvature_itself():
    H, J = 100.0 * correlated(0.5), np.eye(D)
    np.testing.assert_allclose(covariance(H, 1e-6, J), np.linalg.inv(H + J), atol=1e-9)


@pytest.mark.parametrize("strength", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("sd", [5.0, 30.0])
def test_variances_are_seldom_below_the_true_ones_and_not_far_above(strength, sd):
    H, J, generator = 100.0 * correlated(strength), np.eye(D), np.random.default_rng(0)
    true = np.diag(np.linalg.inv(H + J))
    ratios = np.array(
        [np.diag(covariance(H + sd * noise(generator), sd, J)) / true for _ in range(100)]
    )
    # Sds of the worst coefficient, in the mean over noise; and of all of them, in the geometric mean.
    assert np.sqrt(ratios).mean(axis=0).min() > 0.97
    assert np.exp(0.5 * np.log(ratios).mean()) < {0.0: 1.4, 0.5: 2.1, 0.9: 2.6}[strength]


def test_intervals_cover_where_columns_go_together_in_ways_that_noise_hides():
    """Columns of 24 made-up records: 92 % with what is unknown taken for none, 98 % as it is."""
    generator, J, hits = np.random.default_rng(0), np.eye(D), []
    for _ in range(200):
        x = generator.normal(size=(24, D))
        H = 100.0 * x.T @ x / 24.0
        found = covariance(H + 30.0 * noise(generator), 30.0, J)
        theta = generator.multivariate_normal(np.zeros(D), np.linalg.inv(H + J))
        hits.append(np.abs(theta) < 1.96 * np.sqrt(np.diag(found)))
    # Of 2,400 coefficients, twelve of a run together: the standard error is below 0.7 points.
    assert 0.95 < np.mean(hits) < 0.995


def test_a_pair_that_goes_together_stays_a_pair_among_columns_that_do_not():
    """Shrunk like all the others, the planted bug, both would count as well known."""
    H, generator = 100.0 * np.eye(D), np.random.default_rng(1)
    H[0, 1] = H[1, 0] = 95.0
    found = np.mean(
        [np.diag(covariance(H + 10.0 * noise(generator), 10.0, np.eye(D))) for _ in range(50)],
        axis=0,
    )
    assert found[:2].min() > 4.0 * found[2:].max()


def test_noise_alone_supports_next_to_nothing():
    generator = np.random.default_rng(2)
    sds = np.sqrt(
        [np.diag(covariance(50.0 * noise(generator), 50.0, np.eye(D))) for _ in range(100)]
    )
    # Three sds of the trace are passed by one in 700; counting each diagonal, the planted bug, by half.
    assert (sds > 0.99).mean() > 0.98
    assert (sds <= 1.0 + 1e-9).all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_coefficients_are_served_too(size):
    H = 100.0 * np.eye(size) + 5.0 * noise(np.random.default_rng(3), size)
    vectors, values = supported_curvature(H, 5.0, np.eye(size))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(size), atol=1e-12)
    assert (values > 70.0).all()
    assert (values <= np.linalg.eigvalsh(np.diag(np.diag(H)) + np.abs(H))[-1]).all()


def test_curvature_that_is_negative_adds_no_precision():
    H = np.diag([-50.0] * 4 + [100.0] * (D - 4))
    found = covariance(H, 1.0, np.eye(D))
    np.testing.assert_allclose(np.diag(found)[:4], 1.0)
    np.testing.assert_allclose(np.diag(found)[4:], 1.0 / 101.0, rtol=1e-2)
    assert math.isfinite(found.sum())


def with_levels(generator, count=60):
    """Rows of an intercept, a number, three levels and a yes or no; and what is 0 in all of them."""
    level = np.eye(4)[generator.integers(0, 4, count)][:, 1:]
    number, yes = generator.normal(size=(count, 1)), generator.integers(0, 2, (count, 1))
    zero = [(i, i, 0) for i in (2, 3, 4, 5)] + [(3, 2, -1), (4, 2, -1), (4, 3, -1)]
    return np.hstack([np.ones((count, 1)), number, level, yes]), zero


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(deadline=None, max_examples=30)
def test_what_is_known_of_columns_takes_nothing_from_a_curvature(seed, centred):
    generator = np.random.default_rng(seed)
    x, zero = with_levels(generator)
    at = Coordinates(generator.normal(size=6), generator.uniform(0.1, 9.0, 6), 0)
    at.centre[0] = 0.0
    H = (x.T * generator.uniform(0.0, 0.25, len(x))) @ x
    forms = vanishing_forms(zero, 6, at if centred else None)
    if centred:
        H = at.columns(at.columns(H).T)
    np.testing.assert_allclose(forms.fitted(H), H, rtol=1e-8, atol=1e-8 * np.abs(H).max())


def test_what_is_known_of_columns_takes_as_much_noise_as_is_told():
    generator = np.random.default_rng(0)
    at = Coordinates(np.array([0.0, 0.3, 0.1, 0.5, 0.02, 0.5]), np.array([1, 2, 3, 2, 7, 2.0]), 0)
    forms = vanishing_forms(with_levels(generator)[1], 6, at)
    found = np.array([forms.fitted(noise(generator, 6)) for _ in range(4_000)])
    told = forms.left_over(6) * (np.eye(6) + 1.0) / 2.0
    # A variance of 4,000 draws has a standard error of 2.2 %: 5 of them.
    np.testing.assert_allclose(found.var(axis=0), told, rtol=0.11, atol=1e-12)
    # Seven of 21 numbers are known.
    assert np.tril(forms.left_over(6)).sum() == pytest.approx(21 - 7)
    once = forms.fitted(noise(generator, 6))
    np.testing.assert_allclose(forms.fitted(once), once, atol=1e-12)


def test_a_factor_of_many_levels_is_solved_for_where_it_has_entries_alone(monkeypatch):
    """For all coordinates of svec, of which most are in no form, 300 levels took half a minute."""
    size, solved, solve = 41, [], scipy.linalg.solve_triangular
    zero = [(i, i, 0) for i in range(1, size)]
    zero += [(i, j, -1) for i in range(1, size) for j in range(1, i)][:100]
    generator = np.random.default_rng(0)
    at = Coordinates(np.append(0.0, generator.uniform(size=size - 1)), np.full(size, 3.0), 0)
    forms = vanishing_forms(zero, size, at)

    def counted(root, right, **options):
        solved.append(right.size // len(root))
        return solve(root, right, **options)

    monkeypatch.setattr(scipy.linalg, "solve_triangular", counted)
    shares = forms.left_over(size)
    assert sum(solved) <= len(zero) + 2 * size < size**2 / 4
    # What the projection leaves of one coordinate is its share: an independent way to the same numbers.
    for row, column in ((0, 0), (3, 0), (3, 3), (3, 2), (40, 5), (40, 40)):
        unit = np.zeros((size, size))
        unit[row, column] = unit[column, row] = 1.0
        unit /= np.linalg.norm(unit)
        assert (forms.fitted(unit) * unit).sum() == pytest.approx(shares[row, column], abs=1e-12)


def test_nothing_known_is_no_forms():
    assert vanishing_forms((), 3, None) is None
