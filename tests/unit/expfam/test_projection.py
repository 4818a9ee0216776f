"""What projection does to one wrong number, where the contract has all of them wrong."""

import numpy as np
import pytest

from fedvi import expfam
from fedvi.expfam import tree
from fedvi.expfam.base import PROJECTION_FRACTION
from fedvi.expfam.gaussian import GaussianEta
from tests.studies import random_eta


@pytest.mark.parametrize("kind", ["full_gaussian", "diagonal_gaussian"])
def test_properness_of_a_gaussian_does_not_depend_on_units(kind):
    family = getattr(expfam, kind)(4)
    units = np.array([1.0, 1e-8, 1e5, 1e9])
    for eta, proper in (
        (random_eta(family, 14), True),
        (tree.subtract(random_eta(family, 11), tree.scale(random_eta(family, 12), 3.0)), False),
    ):
        scale = units if eta.J.ndim == 1 else units[:, None]
        other = units if eta.J.ndim == 1 else units[None, :]
        assert bool(family.is_proper(GaussianEta(eta.h * units, eta.J * scale * other))) == proper


@pytest.mark.parametrize(
    "family",
    [expfam.full_gaussian(4), expfam.diagonal_gaussian(4), expfam.low_rank_gaussian(4, 2)],
    ids=lambda family: type(family).__name__,
)
def test_projection_of_a_gaussian_keeps_h(family):
    eta = tree.subtract(random_eta(family, 11), tree.scale(random_eta(family, 12), 3.0))
    assert not family.is_proper(eta)
    assert np.array_equal(family.project(eta, family.isotropic(1.0)).h, eta.h)


@pytest.mark.parametrize("kind", ["gamma", "dirichlet"])
@pytest.mark.parametrize("field", [0, -1])
def test_a_positive_parameter_is_lifted_alone_to_a_fraction_of_the_floor(kind, field):
    family = getattr(expfam, kind)(3)
    floor, eta = random_eta(family, 1), random_eta(family, 2)
    leaf = tree.leaves(eta)[field]
    leaf[1] = -1.5
    assert not family.is_proper(eta)
    projected = family.project(eta, floor)
    lifted = np.atleast_2d(family.parameters(projected))
    least = np.atleast_2d(family.parameters(floor))
    assert lifted[field, 1] == pytest.approx(PROJECTION_FRACTION * least[field, 1], rel=1e-12)
    others = [a != b for a, b in zip(tree.leaves(projected), tree.leaves(eta), strict=True)]
    assert np.sum(others) == 1


def normal_gamma(m, scale, shape, rate):
    """Returns η of one location with one precision."""
    family, cube = expfam.normal_gamma_rows(1, 1, 1), np.ones((1, 1, 1))
    return family.from_parameters(m * cube, scale * cube, np.array([shape]), np.array([rate]))


def test_a_normal_gamma_is_improper_where_its_precision_s_rate_is_not_positive():
    family = expfam.normal_gamma_rows(1, 1, 1)
    floor = normal_gamma(0.0, 1.0, 2.0, 5.0)
    eta = normal_gamma(3.0, 2.0, 4.0, 1.0)
    # λ, α and the stored rate are all positive, and β = rate − ½λm² is not.
    wrong = eta._replace(rate=np.array([8.9]))
    assert family.is_proper(eta)
    assert not family.is_proper(wrong)
    m, scale, shape, rate = family.parameters(family.project(wrong, floor))
    assert (m.item(), scale.item(), shape.item()) == (3.0, 2.0, 4.0)
    assert rate.item() == pytest.approx(PROJECTION_FRACTION * 5.0, rel=1e-9)


def test_a_projected_normal_gamma_is_proper_however_large_its_mean():
    family = expfam.normal_gamma_rows(1, 1, 1)
    floor = normal_gamma(0.0, 1.0, 2.0, 1.0)
    for h in (0.0, 1.0, 1e6, -1e15):
        for J in (-1.0, 1e-3, 1e9):
            eta = floor._replace(
                h=np.full((1, 1, 1), h), J=np.full((1, 1, 1), J), rate=np.array([-1.0])
            )
            projected = family.project(eta, floor)
            assert family.is_proper(projected)
            assert np.isfinite(family.moments(projected)).all()


@pytest.mark.parametrize("wrong", ["d", "K"])
def test_a_projected_low_rank_gaussian_is_no_flatter_than_a_fraction_of_the_floor(wrong):
    family = expfam.low_rank_gaussian(12, rank=3)
    floor, eta = random_eta(family, 1), random_eta(family, 2)
    if wrong == "d":
        eta.d[4] = -0.2
    else:
        eta = eta._replace(K=eta.K - 5.0 * np.eye(3))
        assert (eta.d > 0.0).all()
    assert not family.is_proper(eta)
    projected = family.project(eta, floor)
    precision = np.diag(projected.d) + family.basis @ projected.K @ family.basis.T
    root = 1.0 / np.sqrt(floor.d)
    least = np.linalg.eigvalsh(precision * root[:, None] * root[None, :])[0]
    assert least > PROJECTION_FRACTION * (1.0 - 1e-9)
    if wrong == "K":
        assert np.array_equal(
            projected.d, np.maximum(eta.d, np.sqrt(PROJECTION_FRACTION) * floor.d)
        )
