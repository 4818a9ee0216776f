"""What every exponential family must satisfy; a family listed in expfam is tested here at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors, expfam
from fedvi.expfam import gaussian, tree
from fedvi.expfam.base import blocks
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation import fold as folding
from tests.studies import random_eta

# float64 linear algebra on well-conditioned matrices of size 4.
RTOL = 1e-9

pytestmark = pytest.mark.parametrize("kind", expfam.__all__)


def make(kind: str, size: int = 4):
    return getattr(expfam, kind)(size)


def test_mean_parameters_are_the_gradient_of_the_log_partition(kind):
    family, eta = make(kind), random_eta(make(kind), 1)
    with jax.enable_x64(True):
        gradient = jax.grad(family.log_partition)(GaussianEta(*map(jnp.asarray, eta)))
    mu = family.mean(eta)
    for found, expected in zip(mu, gradient, strict=True):
        np.testing.assert_allclose(found, np.asarray(expected), rtol=RTOL, atol=RTOL)


def test_natural_inverts_mean(kind):
    family, eta = make(kind), random_eta(make(kind), 2)
    for found, expected in zip(family.natural(family.mean(eta)), eta, strict=True):
        np.testing.assert_allclose(found, expected, rtol=RTOL, atol=RTOL)


def test_entropy_is_the_log_partition_minus_the_inner_product(kind):
    family, eta = make(kind), random_eta(make(kind), 3)
    dual = family.log_partition(eta) - family.inner(eta, family.mean(eta))
    assert family.entropy(eta) == pytest.approx(dual, rel=RTOL)


def test_kl_is_the_bregman_divergence_of_the_log_partition(kind):
    family = make(kind)
    q, p = random_eta(family, 4), random_eta(family, 5)
    change = tree.subtract(p, q)
    expected = (
        family.log_partition(p) - family.log_partition(q) - family.inner(change, family.mean(q))
    )
    assert family.kl(q, p) == pytest.approx(expected, rel=RTOL)
    assert family.kl(q, q) == pytest.approx(0.0, abs=1e-12)


def test_log_density_agrees_with_scipy_and_numpyro(kind):
    family, eta = make(kind), random_eta(make(kind), 6)
    theta = np.array([0.3, -1.0, 0.7, 2.0])
    density = family.inner(eta, family.statistics(theta)) - family.log_partition(eta)
    mean, sd = family.moments(eta)
    covariance = np.linalg.inv(eta.J) if eta.J.ndim == 2 else np.diag(1.0 / eta.J)
    expected = scipy.stats.multivariate_normal(mean, covariance).logpdf(theta)
    assert density == pytest.approx(expected, rel=RTOL)
    np.testing.assert_allclose(sd, np.sqrt(np.diagonal(covariance)), rtol=RTOL)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        found = family.to_distribution(eta).log_prob(jnp.asarray(theta))
    assert float(found) == pytest.approx(expected, rel=RTOL)


def test_samples_have_the_moments_of_q(kind):
    family, eta = make(kind), random_eta(make(kind), 7)
    count = 40_000
    with jax.enable_x64(True):
        draws = np.asarray(family.sample(jax.random.key(0), eta, (count,)))
    mean, sd = family.moments(eta)
    assert draws.shape == (count, 4)
    # 4 means and 4 sds at 5 standard errors: false alarm below 5e-6, and the seed is fixed.
    assert (np.abs(draws.mean(0) - mean) < 5.0 * sd / np.sqrt(count)).all()
    assert (np.abs(draws.std(0) / sd - 1.0) < 5.0 / np.sqrt(2.0 * count)).all()


def test_whitened_squared_norm_is_the_fisher_metric(kind):
    family, eta = make(kind), random_eta(make(kind), 8)
    change = tree.scale(tree.subtract(random_eta(family, 9), eta), 0.1)
    with jax.enable_x64(True):
        tangent = GaussianEta(*map(jnp.asarray, change))
        point = GaussianEta(*map(jnp.asarray, eta))
        hessian = jax.jvp(jax.grad(family.log_partition), (point,), (tangent,))[1]
    expected = family.inner(change, GaussianEta(*map(np.asarray, hessian)))
    whitened = family.whiten(eta, change)
    assert whitened @ whitened == pytest.approx(expected, rel=1e-8)


def test_a_proper_member_is_kept_by_projection(kind):
    family, eta = make(kind), random_eta(make(kind), 10)
    assert family.is_proper(eta)
    assert tree.equal(family.project(eta, family.isotropic(1.0)), eta)


def test_properness_does_not_depend_on_units(kind):
    family = make(kind)
    units = np.array([1.0, 1e-8, 1e5, 1e9])
    for eta, proper in (
        (random_eta(family, 14), True),
        (tree.subtract(random_eta(family, 11), tree.scale(random_eta(family, 12), 3.0)), False),
    ):
        scale = units if eta.J.ndim == 1 else units[:, None]
        other = units if eta.J.ndim == 1 else units[None, :]
        assert bool(family.is_proper(GaussianEta(eta.h * units, eta.J * scale * other))) == proper


def test_an_improper_member_is_projected_to_a_proper_one(kind):
    family = make(kind)
    eta = tree.subtract(random_eta(family, 11), tree.scale(random_eta(family, 12), 3.0))
    assert not family.is_proper(eta)
    assert not family.is_proper(family.zeros())
    projected = family.project(eta, family.isotropic(1.0))
    assert family.is_proper(projected)
    assert np.array_equal(projected.h, eta.h)


def test_numbers_that_leave_are_those_of_a_symmetric_matrix(kind):
    assert make(kind).number_count == {"full_gaussian": 14, "diagonal_gaussian": 8}[kind]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda eta: eta._replace(h=np.zeros(5)), r"eta\.h has shape \(5,\), expected \(4,\)"),
        (lambda eta: eta._replace(J=np.zeros((4, 3))), r"eta\.J has shape \(4, 3\), expected"),
        (lambda eta: eta._replace(h=np.full(4, np.nan)), "NaN or infinite"),
        (lambda eta: tuple(eta), "expected GaussianEta"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(kind, change, message):
    family = make(kind)
    with pytest.raises(errors.FamilyError, match=message):
        family.check(change(random_eta(family, 13)))


def test_a_family_without_a_dimension_is_refused(kind):
    with pytest.raises(errors.FamilyError, match="size is 0"):
        make(kind, 0)


def test_pieces_are_the_whole_and_what_is_computed_of_them_agrees(kind, monkeypatch):
    family = make(kind, 7)
    before, after, change = (random_eta(family, seed) for seed in (1, 2, 3))
    whole = folding.gap(family, before, after)
    whitened = family.whiten(before, change)
    monkeypatch.setattr(gaussian, "_BLOCK", 3)
    pieces = list(blocks(family, before, change))
    for index, eta in enumerate((before, change)):
        h = np.concatenate([piece[index].h for piece in pieces])
        J = np.concatenate([piece[index].J for piece in pieces])
        assert tree.equal(GaussianEta(h, J), eta)
    # A largest number is the same however it is found; a sum is not, to the last bit.
    assert folding.gap(family, before, after) == whole
    parts = [family.whiten(eta, part) for eta, part in pieces]
    assert sum(part @ part for part in parts) == pytest.approx(whitened @ whitened, rel=1e-13)


def test_sums_in_place_have_the_bits_of_sums_and_change_no_argument(kind):
    family = make(kind)
    etas = [random_eta(family, seed) for seed in range(1, 5)]
    copies = [tree.map_leaves(np.array, eta) for eta in etas]
    expected = tree.add(tree.add(tree.add(etas[0], etas[1]), etas[2]), etas[3])
    assert tree.equal(tree.total(etas[1:], etas[0]), expected)
    scaled = tree.add(etas[0], tree.scale(etas[1], 0.3))
    assert tree.equal(tree.add_scaled(etas[0], etas[1], 0.3), scaled)
    assert all(tree.equal(eta, copy) for eta, copy in zip(etas, copies, strict=True))


def test_arrays_at_rest_are_shared_and_others_are_copied(kind):
    eta = random_eta(make(kind), 1)
    rest = tree.to_numpy(eta)
    assert rest.J is not eta.J
    assert tree.to_numpy(rest).J is rest.J
    view = eta.J[:]
    view.flags.writeable = False  # and eta.J is not
    assert tree.to_numpy(GaussianEta(eta.h, view)).J is not view
    assert tree.to_numpy(GaussianEta(rest.h.astype(np.float32), rest.J)).h.dtype == np.float64
    fresh = tree.freeze(tree.scale(eta, 2.0))
    assert not fresh.J.flags.writeable
