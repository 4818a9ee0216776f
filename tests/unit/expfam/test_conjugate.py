"""Evidence adds to natural parameters as in the textbook, so that no sign and no logarithm is wrong."""

import numpy as np
import pytest

from fedvi import expfam
from fedvi.expfam import tree
from fedvi.expfam.dirichlet import DirichletEta
from fedvi.expfam.gamma import GammaEta
from fedvi.expfam.normal_gamma_rows import NormalGammaRowsEta


def normal_gamma(m, scale, shape, rate):
    """Returns η of pairs of one location and one precision each."""
    m, scale, shape, rate = map(np.atleast_1d, (m, scale, shape, rate))
    family = expfam.normal_gamma_rows(len(m), 1, 1)
    return family.from_parameters(m[:, None, None], scale[:, None, None], shape, rate)


def test_poisson_counts_add_to_a_gamma_s_shape_and_exposures_to_its_rate():
    family = expfam.gamma(2)
    prior = family.from_parameters(np.array([2.0, 0.5]), np.array([1.0, 3.0]))
    counts, exposure = np.array([7.0, 0.0]), np.array([2.5, 4.0])
    posterior = tree.add(prior, GammaEta(counts, exposure))
    shape, rate = family.parameters(posterior)
    assert shape.tolist() == [9.0, 0.5]
    assert rate.tolist() == [3.5, 7.0]


def test_counts_of_levels_add_to_a_dirichlet():
    family = expfam.dirichlet(3)
    posterior = tree.add(family.zeros(), DirichletEta(np.array([2.0, 0.0, 5.0])))
    # Laplace's rule: of N records, n of a level of K have the expectation (n + 1) / (N + K).
    np.testing.assert_allclose(family.moments(posterior)[0], np.array([3.0, 1.0, 6.0]) / 10.0)


def test_normal_records_add_to_a_normal_gamma():
    family = expfam.normal_gamma_rows(1, 1, 1)
    y = np.random.default_rng(0).normal(3.0, 2.0, 50)
    prior = normal_gamma(1.0, 0.5, 2.0, 3.0)
    cube = np.ones((1, 1, 1))
    factors = [
        NormalGammaRowsEta(v * cube, cube, np.array([0.5]), np.array([0.5 * v * v])) for v in y
    ]
    m, scale, shape, rate = family.parameters(tree.total(factors, prior))
    # Bernardo and Smith (2000), appendix A: the conjugate update of a normal with both unknown.
    n, mean, square = len(y), y.mean(), ((y - y.mean()) ** 2).sum()
    assert scale.item() == pytest.approx(0.5 + n, rel=1e-12)
    assert m.item() == pytest.approx((0.5 * 1.0 + n * mean) / (0.5 + n), rel=1e-12)
    assert shape.item() == pytest.approx(2.0 + n / 2.0, rel=1e-12)
    shrunk = 0.5 * n * (mean - 1.0) ** 2 / (2.0 * (0.5 + n))
    assert rate.item() == pytest.approx(3.0 + square / 2.0 + shrunk, rel=1e-12)


def test_a_location_has_no_sd_where_its_precision_is_too_uncertain():
    family = expfam.normal_gamma_rows(2, 1, 1)
    eta = normal_gamma([1.0, 2.0], [1.0, 1.0], [1.0, 1.5], [1.0, 1.0])
    mean, sd = family.moments(eta)
    assert family.is_proper(eta)
    assert mean.tolist() == [1.0, 2.0, 1.0, 1.5]
    assert sd.tolist() == [np.inf, np.sqrt(2.0), 1.0, np.sqrt(1.5)]
