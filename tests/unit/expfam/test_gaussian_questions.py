"""Claims about what Gaussian families say of themselves: the same as dense matrices do."""

import numpy as np
import pytest

from fedvi import expfam
from fedvi.expfam.base import DenseGaussian, FactoredGaussian, Gaussian, is_full

D = 5
FAMILIES = {
    "full": expfam.full_gaussian(D),
    "diagonal": expfam.diagonal_gaussian(D),
    "low rank": expfam.low_rank_gaussian(D, rank=2),
}
X = np.random.default_rng(2).normal(size=(4, D))


def member(family, seed):
    """A proper η, with its mean and precision as dense arrays."""
    random = np.random.default_rng(seed)
    h, d = random.normal(size=D), random.uniform(0.5, 2.0, D)
    if isinstance(family, FactoredGaussian):
        root = random.normal(size=(2, 2))
        eta = family.from_diagonal(h, d)._replace(K=root @ root.T)
        precision = np.diag(d) + family.basis @ eta.K @ family.basis.T
    else:
        root = random.normal(size=(D, D))
        precision = np.diag(d) + (root @ root.T if is_full(family) else 0.0)
        eta = family.from_quadratic(h, precision)
    return eta, np.linalg.solve(precision, h), precision


@pytest.mark.parametrize("name", FAMILIES)
def test_a_line_has_the_mean_and_sd_of_its_row(name):
    family = FAMILIES[name]
    assert isinstance(family, Gaussian)
    eta, mean, precision = member(family, 0)
    found, sd = family.along(eta, X)
    np.testing.assert_allclose(found, X @ mean, rtol=1e-10)
    variance = np.einsum("nd,de,ne->n", X, np.linalg.inv(precision), X)
    np.testing.assert_allclose(sd, np.sqrt(variance), rtol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_trace_is_that_of_the_dense_matrices(name):
    family = FAMILIES[name]
    (eta, _, precision), (other, _, added) = member(family, 0), member(family, 1)
    expected = np.trace(np.linalg.inv(precision) @ added)
    assert family.trace(eta, other) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["full", "diagonal"])
def test_further_coordinates_leave_a_marginal_as_it_was(name):
    family = FAMILIES[name]
    assert isinstance(family, DenseGaussian)
    eta, mean, precision = member(family, 3)
    wider = type(family)(D + 2)
    wide = family.padded(eta, np.array([2.0, 3.0]))
    np.testing.assert_allclose(wider.moments(wide)[0], [*mean, 0.0, 0.0], rtol=1e-9, atol=1e-12)
    for found, expected in zip(wider.marginal(wide, D), eta, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    # The marginal of what does correlate is that of its covariance.
    covariance = np.linalg.inv(precision)
    first, sd = type(family)(2).moments(family.marginal(eta, 2))
    np.testing.assert_allclose(first, mean[:2], rtol=1e-9)
    np.testing.assert_allclose(sd, np.sqrt(np.diag(covariance)[:2]), rtol=1e-9)


def test_a_correlated_quadratic_is_no_member_of_the_diagonal_family():
    precision = np.array([[2.0, 0.5], [0.5, 1.0]])
    assert expfam.diagonal_gaussian(2).from_quadratic(np.zeros(2), precision) is None
    found = expfam.full_gaussian(2).from_quadratic(np.zeros(2), precision)
    assert np.array_equal(found.J, precision)


@pytest.mark.parametrize("family", [expfam.gamma(2), expfam.dirichlet(3)])
def test_a_family_that_is_no_gaussian_answers_none_of_it(family):
    assert not isinstance(family, Gaussian | DenseGaussian | FactoredGaussian)
    assert not is_full(family)
