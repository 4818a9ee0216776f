"""Low-rank Gaussians: never an array of D × D, right where leverages are large, honest about their span."""

import tracemalloc

import jax
import mpmath
import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.expfam.directions import random_directions
from fedvi.expfam.low_rank_gaussian import LowRankEta, LowRankGaussian
from tests.studies import random_eta


def mean_contrast(size: int, rank: int, seed: int) -> np.ndarray:
    """One direction that is known beforehand: all coordinates together."""
    return np.full((size, rank), size**-0.5)


def skewed(size: int, rank: int, seed: int) -> np.ndarray:
    return np.ones((size, rank))


def coordinate(size: int, rank: int, seed: int) -> np.ndarray:
    return np.eye(size)[:, :rank]


def wide(family, seed):
    """Returns a proper member whose d spans eight orders of magnitude, so that few coordinates carry
    nearly all of the leverage."""
    generator, eta = np.random.default_rng(seed), random_eta(family, seed)
    d = 10.0 ** generator.uniform(-4.0, 4.0, family.size)
    return eta._replace(d=d, K=eta.K @ eta.K * 10.0 ** generator.uniform(-2.0, 4.0))


def test_directions_are_orthonormal_favour_no_coordinate_and_follow_from_the_seed():
    for size, rank in ((2, 1), (7, 6), (1000, 20)):
        basis = random_directions(size, rank, 3)
        np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-12)
        assert ((basis**2).sum(axis=1) <= 2.0 * rank / size + 1e-12).all()
        assert np.array_equal(basis, LowRankGaussian(size, rank, seed=3).basis)
        assert not np.allclose(basis, random_directions(size, rank, 4))


def test_groups_and_slow_contrasts_are_orthonormal_directions():
    grouped = expfam.low_rank_gaussian(9, groups=[1, 3, 2])
    expected = np.zeros((9, 2))
    expected[1:4, 0], expected[4:6, 1] = 3**-0.5, 2**-0.5
    np.testing.assert_allclose(grouped.basis, expected)
    assert grouped == expfam.low_rank_gaussian(9, groups=(1, 3, 2))
    smooth = expfam.low_rank_gaussian(50, rank=5, directions="smooth").basis
    np.testing.assert_allclose(smooth.T @ smooth, np.eye(5), atol=1e-12)
    # Column k changes sign k times.
    assert [int((np.diff(np.sign(column)) != 0).sum()) for column in smooth.T] == [0, 1, 2, 3, 4]


def test_a_predictor_has_the_mean_and_sd_of_its_draws_covariance():
    family, x = LowRankGaussian(30, 4), np.random.default_rng(0).normal(size=(6, 30))
    eta = wide(family, 2)
    precision = np.diag(eta.d) + family.basis @ eta.K @ family.basis.T
    mean, sd = family.along(eta, x)
    np.testing.assert_allclose(mean, x @ np.linalg.solve(precision, eta.h), rtol=1e-7)
    np.testing.assert_allclose(
        sd**2, np.einsum("ij,ji->i", x, np.linalg.solve(precision, x.T)), rtol=1e-7
    )


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (skewed, "not orthonormal"),
        (coordinate, "span a coordinate of"),
        (lambda size, rank, seed: np.eye(rank), r"shape \(2, 2\), expected \(5, 2\)"),
    ],
)
def test_directions_that_are_no_basis_are_refused(directions, message):
    family = LowRankGaussian(5, 2, directions=directions)
    with pytest.raises(errors.FamilyError, match=message):
        _ = family.basis


@pytest.mark.parametrize(("size", "rank"), [(8, 8), (8, 0), (1, 1)])
def test_a_rank_that_is_not_below_the_size_is_refused(size, rank):
    with pytest.raises(errors.FamilyError, match=f"rank is {rank}, expected 1 to {size - 1}"):
        expfam.low_rank_gaussian(size, rank=rank)


@pytest.mark.parametrize("seed", range(4))
def test_the_metric_and_the_variances_are_right_where_leverages_are_large(seed):
    family = LowRankGaussian(30, 4)
    eta, change = wide(family, seed), random_eta(family, seed + 50)
    scaled = family.basis / np.sqrt(eta.d)[:, None]
    assert (np.linalg.qr(scaled)[0] ** 2).sum(axis=1).max() > 0.5
    with mpmath.workdps(60):
        basis = mpmath.matrix(family.basis.tolist())

        def precision(of):
            return mpmath.diag(of.d.tolist()) + basis * mpmath.matrix(of.K.tolist()) * basis.T

        covariance, moved = precision(eta) ** -1, precision(change)
        pull = mpmath.matrix(change.h.tolist()) - moved * (
            covariance * mpmath.matrix(eta.h.tolist())
        )
        product = covariance * moved
        square = product * product
        trace = mpmath.fsum(square[i, i] for i in range(family.size))
        expected = float((pull.T * covariance * pull)[0] + trace / 2)
        variances = [float(covariance[i, i]) for i in range(family.size)]
    whitened = family.whiten(eta, change)
    # Errors of float64 linear algebra on matrices with condition numbers to 1e9.
    assert whitened @ whitened == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(family.moments(eta)[1] ** 2, variances, rtol=1e-10)


def test_what_many_coordinates_have_in_common_is_held_where_its_direction_is_named():
    # Equicorrelation, in its precision: diag(d) + k bbᵀ.
    size = 200
    full, family = expfam.full_gaussian(size), LowRankGaussian(size, 1, directions=mean_contrast)
    eta = LowRankEta(np.ones(size), np.full(size, 3.0), np.array([[-2.5]]))
    precision = np.diag(eta.d) + family.basis @ eta.K @ family.basis.T
    target = full.from_moments(np.linalg.solve(precision, eta.h), np.linalg.inv(precision))
    assert family.is_proper(eta)
    np.testing.assert_allclose(family.moments(eta), full.moments(target), rtol=1e-9)
    assert family.log_partition(eta) == pytest.approx(full.log_partition(target), rel=1e-12)


def test_no_array_of_d_by_d_is_made():
    family, limit = LowRankGaussian(20_000, 4), 64 << 20  # an array of D × D is 3.2 GB
    q, p = random_eta(family, 1), random_eta(family, 2)
    _ = family.basis
    improper = tree.scale(q, -1.0)
    tracemalloc.start()
    try:
        family.kl(q, p)
        family.mean(q)
        family.whiten(q, p)
        family.whiten(wide(family, 3), p)
        family.moments(q)
        family.project(improper, p)
        family.inner(q, family.statistics(q.h))
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
    with jax.enable_x64(True):
        assert family.sample(jax.random.key(0), q, (2,)).shape == (2, 20_000)
