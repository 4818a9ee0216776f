"""Families with precisions of their own, of more dimensions than their contract's four numbers allow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors, expfam
from fedvi.expfam import tree
from tests.studies import random_eta

WISHART = expfam.normal_wishart(2, 3)
ROWS = expfam.normal_gamma_rows(2, 2, 3)
BOTH = pytest.mark.parametrize("family", [WISHART, ROWS], ids=["wishart", "rows"])

# float64 algebra on well-conditioned matrices.
RTOL = 1e-9


def on_jax(eta):
    return tree.map_leaves(jnp.asarray, eta)


def assert_close(found, expected, rtol=RTOL):
    for left, right in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=rtol, atol=rtol)


@pytest.mark.nightly(but=("rows",))
@BOTH
def test_mean_parameters_are_the_gradient_of_the_log_partition(family):
    eta = random_eta(family, 1)
    with jax.enable_x64(True):
        assert_close(family.mean(eta), jax.grad(family.log_partition)(on_jax(eta)))


@pytest.mark.nightly(but=("rows",))
@BOTH
def test_the_whitened_squared_norm_is_the_curvature_of_the_log_partition(family):
    eta = random_eta(family, 8)
    change = tree.scale(tree.subtract(random_eta(family, 9), eta), 0.1)
    with jax.enable_x64(True):
        hessian = jax.jvp(jax.grad(family.log_partition), (on_jax(eta),), (on_jax(change),))[1]
    whitened = family.whiten(eta, change)
    expected = family.inner(change, tree.map_leaves(np.asarray, hessian))
    assert whitened @ whitened == pytest.approx(expected, rel=1e-8)


@pytest.mark.nightly
@BOTH
def test_draws_have_the_moments_and_the_mean_parameters(family):
    eta, count = random_eta(family, 7), 40_000
    with jax.enable_x64(True):
        draws = family.sample(jax.random.key(1), eta, (count,))
        found = jax.vmap(family.statistics)(draws)
    mean, sd = family.moments(eta)
    draws = np.asarray(draws)
    # 50 numbers at five standard errors: a false alarm below 1e-4 as far as their means are normal.
    assert (np.abs(draws.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(count)).all()
    fourth = ((draws - mean) ** 4).mean(axis=0) - sd**4
    assert (np.abs(draws.var(axis=0) - sd**2) < 6.0 * np.sqrt(fourth / count)).all()
    for leaf, expected in zip(found, family.mean(eta), strict=True):
        error = np.asarray(leaf).std(axis=0) / np.sqrt(count)
        assert (np.abs(np.asarray(leaf).mean(axis=0) - expected) < 5.0 * error).all()


def test_the_density_is_a_gaussian_given_a_wishart_matrix():
    eta = random_eta(WISHART, 6)
    generator = np.random.default_rng(0)
    parts, density = [], 0.0
    for m, scale, shape, rate in zip(*WISHART.parameters(eta), strict=True):
        law = scipy.stats.wishart(2.0 * shape, np.linalg.inv(2.0 * rate))
        precision, x = law.rvs(random_state=generator), generator.normal(size=3)
        given = scipy.stats.multivariate_normal(m, np.linalg.inv(scale * precision))
        density += law.logpdf(precision) + given.logpdf(x)
        parts.append((x, precision[np.tril_indices(3)]))
    theta = np.concatenate([part[0] for part in parts] + [part[1] for part in parts])
    found = WISHART.inner(eta, WISHART.statistics(theta)) - WISHART.log_partition(eta)
    assert found == pytest.approx(density, rel=RTOL)


def test_the_density_is_of_rows_given_one_gamma_precision():
    eta = random_eta(ROWS, 6)
    w, tau = np.random.default_rng(0).normal(size=(2, 2, 3)), np.array([0.7, 1.9])
    density = 0.0
    for group, (m, scale, shape, rate) in enumerate(zip(*ROWS.parameters(eta), strict=True)):
        covariance = np.linalg.inv(scale * tau[group])
        density += scipy.stats.gamma(shape, scale=1.0 / rate).logpdf(tau[group])
        for row in range(2):
            density += scipy.stats.multivariate_normal(m[row], covariance).logpdf(w[group, row])
    found = ROWS.inner(eta, ROWS.statistics(np.r_[w.ravel(), tau])) - ROWS.log_partition(eta)
    assert found == pytest.approx(density, rel=RTOL)


@BOTH
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_what_is_no_density_is_projected_to_one(family, scale):
    floor = random_eta(family, 2)
    generator = np.random.default_rng(0)
    field = "J" if family is ROWS else "rate"
    for _ in range(5):
        eta = tree.map_leaves(lambda leaf: scale * generator.normal(size=leaf.shape), floor)
        matrix = getattr(eta, field)
        eta = eta._replace(**{field: matrix + matrix.swapaxes(1, 2)})
        assert not family.is_proper(eta)
        found = family.project(eta, floor)
        family.check(found)
        assert family.is_proper(found)
        assert np.isfinite(family.whiten(found, eta)).all()


@BOTH
def test_matrices_that_are_not_symmetric_are_refused(family):
    eta = random_eta(family, 2)
    field = "J" if family is ROWS else "rate"
    skew = getattr(eta, field) + np.triu(np.ones((3, 3)), 1)
    with pytest.raises(errors.FamilyError, match=rf"eta.{field} is not symmetric"):
        family.check(eta._replace(**{field: skew}))


def test_a_record_of_known_mean_and_precision_is_the_factor_of_the_docstring():
    y = np.array([0.3, -1.2, 2.0])
    record = WISHART.zeros()._replace(
        h=np.stack([y, np.zeros(3)]),
        J=np.array([1.0, 0.0]),
        power=np.array([0.5, 0.0]),
        rate=np.stack([0.5 * np.outer(y, y), np.zeros((3, 3))]),
    )
    x, root = np.array([1.0, 0.5, 0.0]), np.tril(np.ones((3, 3))) + np.eye(3)
    precision = root @ root.T
    other = np.zeros(3), np.eye(3)
    theta = np.concatenate(
        [x, other[0], precision[np.tril_indices(3)], other[1][np.tril_indices(3)]]
    )
    found = WISHART.inner(record, WISHART.statistics(theta))
    law = scipy.stats.multivariate_normal(x, np.linalg.inv(precision))
    assert found == pytest.approx(law.logpdf(y) + 1.5 * np.log(2.0 * np.pi), rel=RTOL)
