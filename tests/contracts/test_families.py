"""What every exponential family must satisfy; a family listed in expfam is tested here at once."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.expfam.base import ExponentialFamily, blocks
from fedvi.expfam.dirichlet import Dirichlet
from fedvi.expfam.gamma import Gamma
from fedvi.expfam.low_rank_gaussian import LowRankGaussian
from fedvi.expfam.normal_gamma_rows import NormalGammaRows
from fedvi.expfam.normal_wishart import NormalWishart
from fedvi.expfam.product import Product
from fedvi.federation import fold as folding
from fedvi.transport import codec
from tests.studies import random_eta

# float64 algebra on well-conditioned numbers, of which there are few.
RTOL = 1e-9

# How each is made for θ of `size` coordinates, a multiple of 4; the others take nothing but `size`.
MAKE = {
    "dirichlets": lambda size: expfam.dirichlets(2, size // 2),
    "low_rank_gaussian": lambda size: expfam.low_rank_gaussian(size, rank=2, seed=1),
    "normal_gamma_rows": lambda size: expfam.normal_gamma_rows(size // 4, 1, 3),
    "normal_wishart": lambda size: expfam.normal_wishart(size // 2, 1),
    "product": lambda size: expfam.product(
        [expfam.product([expfam.gamma(1), expfam.full_gaussian(1)]), expfam.dirichlet(2)]
        * (size // 4)
    ),
}

# Of θ with 4 coordinates; a symmetric matrix counts once.
NUMBERS = {
    "diagonal_gaussian": 8,
    "dirichlet": 4,
    "dirichlets": 4,
    "full_gaussian": 14,
    "gamma": 8,
    "low_rank_gaussian": 11,
    "normal_gamma_rows": 11,
    "normal_wishart": 8,
    "product": 6,
}

# Their space is bounded, so that the density 1 is proper.
BOUNDED = {"dirichlet", "dirichlets"}

# All statistics of all families together, 70 · 6e-7, raise a false alarm below 1e-4 at this many standard
# errors, as far as sums of 40,000 are normal; the seed is fixed.
STANDARD_ERRORS = 5.0

pytestmark = pytest.mark.parametrize("kind", expfam.__all__)


def make(kind: str, size: int = 4):
    return MAKE.get(kind, getattr(expfam, kind))(size)


def improper(family, seed: int):
    """Returns natural parameters of no density, all of whose parts are wrong."""
    return tree.scale(random_eta(family, seed), -10.0)


def on_jax(eta):
    return tree.map_leaves(jnp.asarray, eta)


def assert_close(found, expected, rtol=RTOL):
    for left, right in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=rtol, atol=rtol)


def by_scipy(family, eta, generator):
    """Returns a θ, log q(θ), and the mean and sd of θ, from scipy and the textbook's parameters."""
    if isinstance(family, Product):
        pairs = zip(family.parts, eta, strict=True)
        theta, density, mean, sd = zip(*(by_scipy(*pair, generator) for pair in pairs), strict=True)
        return (*map(np.concatenate, (theta, [np.atleast_1d(d) for d in density], mean, sd)),)
    if isinstance(family, Dirichlet):
        rows = np.atleast_2d(eta.power + 1.0)
        laws = [scipy.stats.dirichlet(row) for row in rows]
        theta = generator.dirichlet(np.ones(rows.shape[1]), len(rows))
        density = sum(law.logpdf(row) for law, row in zip(laws, theta, strict=True))
        moments = [(law.mean(), np.sqrt(law.var())) for law in laws]
        return theta.ravel(), density, *map(np.concatenate, zip(*moments, strict=True))
    if isinstance(family, NormalWishart | NormalGammaRows):
        return by_scipy_with_precisions(family, eta, generator)
    if isinstance(family, Gamma):
        law = scipy.stats.gamma(eta.power + 1.0, scale=1.0 / eta.rate)
        theta = generator.uniform(0.1, 0.9, family.size)
        return theta, law.logpdf(theta).sum(), law.mean(), law.std()
    if isinstance(family, LowRankGaussian):
        precision = np.diag(eta.d) + family.basis @ eta.K @ family.basis.T
    else:
        precision = eta.J if eta.J.ndim == 2 else np.diag(eta.J)
    covariance = np.linalg.inv(precision)
    mean, theta = covariance @ np.ravel(eta.h), generator.normal(size=family.size)
    density = scipy.stats.multivariate_normal(mean, covariance).logpdf(theta)
    return theta, density, mean, np.sqrt(np.diagonal(covariance))


def by_scipy_with_precisions(family, eta, generator):
    """As ``by_scipy``: Gaussians given their precisions, which are Wishart or gamma."""
    rows, moments = [], []
    for m, scale, shape, rate in zip(*family.parameters(eta), strict=True):
        if isinstance(family, NormalWishart):
            law = scipy.stats.wishart(2.0 * shape, np.linalg.inv(2.0 * rate))
            spread = np.diagonal(rate) / (scale * (shape - 0.5 * (family.columns + 1)))
            scale = np.atleast_2d(scale)
        else:
            law = scipy.stats.gamma(shape, scale=1.0 / rate)
            spread = rate / (shape - 1.0) * np.diagonal(np.linalg.inv(scale))
        tau = law.rvs(random_state=generator)
        x = generator.normal(size=m.shape)
        covariance = np.linalg.inv(scale * tau)
        density = (
            law.logpdf(tau)
            + scipy.stats.multivariate_normal(np.zeros(m.shape[-1]), covariance).logpdf(x - m).sum()
        )
        rows.append((np.ravel(x), np.ravel(tau), density))
        mean, variance = (np.ravel(value) for value in (law.mean(), law.var()))
        spreads = np.broadcast_to(np.sqrt(spread), m.shape)
        moments.append((np.ravel(m), mean, np.ravel(spreads), np.sqrt(variance)))
    x, tau, density = (np.array([row[index] for row in rows]) for index in range(3))
    columns = [np.concatenate([part[index] for part in moments]) for index in range(4)]
    theta = np.concatenate([x.ravel(), tau.ravel()])
    return theta, density, np.concatenate(columns[:2]), np.concatenate(columns[2:])


def test_a_family_is_a_plain_value_with_all_methods(kind):
    family = make(kind)
    assert isinstance(family, ExponentialFamily)
    assert family.size == 4
    assert {family: "found"}[make(kind)] == "found"


@pytest.mark.nightly(only=("low_rank_gaussian", "normal_gamma_rows"))
def test_mean_parameters_are_the_gradient_of_the_log_partition(kind):
    family, eta = make(kind), random_eta(make(kind), 1)
    with jax.enable_x64(True):
        gradient = jax.grad(family.log_partition)(on_jax(eta))
    assert_close(family.mean(eta), gradient)


def test_kl_is_the_bregman_divergence_of_the_log_partition(kind):
    family = make(kind)
    q, p = random_eta(family, 4), random_eta(family, 5)
    change = tree.subtract(p, q)
    expected = (
        family.log_partition(p) - family.log_partition(q) - family.inner(change, family.mean(q))
    )
    assert family.kl(q, p) == pytest.approx(expected, rel=RTOL)
    assert family.kl(q, q) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.nightly(only=("normal_gamma_rows", "low_rank_gaussian", "normal_wishart", "product"))
def test_density_and_moments_agree_with_scipy(kind):
    family, eta = make(kind), random_eta(make(kind), 6)
    theta, log_density, mean, sd = by_scipy(family, eta, np.random.default_rng(0))
    expected = float(np.sum(log_density))
    found = family.inner(eta, family.statistics(theta)) - family.log_partition(eta)
    assert found == pytest.approx(expected, rel=RTOL)
    assert_close(family.moments(eta), (mean, sd))


@pytest.mark.nightly(but=("gamma", "full_gaussian", "low_rank_gaussian", "diagonal_gaussian"))
def test_samples_have_the_mean_parameters_and_the_metric_of_q(kind):
    family, eta = make(kind), random_eta(make(kind), 7)
    count = 40_000
    with jax.enable_x64(True):
        draws = family.sample(jax.random.key(0), eta, (count,))
        assert draws.shape == (count, 4)
        statistics = jax.vmap(family.statistics)(draws)
    flat = np.concatenate(
        [np.asarray(leaf).reshape(count, -1) for leaf in tree.leaves(statistics)], 1
    )
    mu = np.concatenate([np.ravel(leaf) for leaf in tree.leaves(family.mean(eta))])
    # The variance of T_i is the Fisher metric of its natural parameter.
    for index, (found, expected) in enumerate(zip(flat.mean(axis=0), mu, strict=True)):
        alone = family.whiten(eta, unit(family, index))
        assert abs(found - expected) < STANDARD_ERRORS * np.sqrt(alone @ alone / count)
    # And that of ⟨change, T⟩ is the metric of a change: all covariances, in one random direction.
    change = tree.subtract(random_eta(family, 17), eta)
    together = family.whiten(eta, change)
    squares = ((flat - mu) @ np.concatenate([np.ravel(leaf) for leaf in tree.leaves(change)])) ** 2
    assert abs(squares.mean() - together @ together) < STANDARD_ERRORS * squares.std() / np.sqrt(
        count
    )


def unit(family, index: int):
    """Returns a change of one number of η by 1; of a matrix's entry, not of its mirror image."""
    change = tree.map_leaves(np.array, family.zeros())
    for leaf in tree.leaves(change):
        if index < leaf.size:
            leaf.flat[index] = 1.0
            return change if isinstance(family, Dirichlet) else symmetric(change)
        index -= leaf.size
    raise AssertionError("η has no such number")


def symmetric(change):
    """Halves the difference: ⟨change, T⟩ is the same for a symmetric T."""

    def halved(leaf):
        square = leaf.ndim >= 2 and leaf.shape[-1] == leaf.shape[-2]
        return (leaf + leaf.swapaxes(-1, -2)) / 2.0 if square else leaf

    return tree.map_leaves(halved, change)


@pytest.mark.nightly(only=("normal_gamma_rows", "low_rank_gaussian"))
def test_whitened_squared_norm_is_the_fisher_metric(kind):
    family, eta = make(kind), random_eta(make(kind), 8)
    change = tree.scale(tree.subtract(random_eta(family, 9), eta), 0.1)
    with jax.enable_x64(True):
        hessian = jax.jvp(jax.grad(family.log_partition), (on_jax(eta),), (on_jax(change),))[1]
    expected = family.inner(change, tree.map_leaves(np.asarray, hessian))
    whitened = family.whiten(eta, change)
    assert whitened @ whitened == pytest.approx(expected, rel=1e-8)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), weight=st.floats(-10.0, 10.0))
def test_whitening_is_linear_so_that_steps_can_be_compared(kind, seed, weight):
    family = make(kind)
    eta, first, second = (random_eta(family, seed + index) for index in range(3))
    found = family.whiten(eta, tree.add_scaled(first, second, weight))
    expected = family.whiten(eta, first) + weight * family.whiten(eta, second)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), weight=st.floats(0.0, 1.0))
def test_between_two_proper_members_all_are_proper(kind, seed, weight):
    family = make(kind)
    left, right = random_eta(family, seed), random_eta(family, seed + 1)
    between = tree.add_scaled(tree.scale(left, 1.0 - weight), right, weight)
    assert family.is_proper(between)
    # A is convex: the factor of a geometric mean of densities is at most 1.
    bound = (1.0 - weight) * family.log_partition(left) + weight * family.log_partition(right)
    assert family.log_partition(between) <= bound + 1e-9 * (1.0 + abs(bound))


def test_a_proper_member_is_kept_by_projection(kind):
    family, eta = make(kind), random_eta(make(kind), 10)
    assert family.is_proper(eta)
    assert tree.equal(family.project(eta, random_eta(family, 11)), eta)


def test_an_improper_member_is_projected_to_a_proper_one(kind):
    family, floor = make(kind), random_eta(make(kind), 12)
    eta = improper(family, 11)
    before = tree.map_leaves(np.array, eta)
    assert not family.is_proper(eta)
    projected = family.project(eta, floor)
    family.check(projected)
    assert family.is_proper(projected)
    assert tree.equal(family.project(projected, floor), projected)
    assert tree.equal(eta, before)
    # It can be measured how far it is from others, as a server does.
    assert np.isfinite([*folding.gap(family, floor, projected)]).all()
    assert np.isfinite(family.whiten(projected, eta)).all()


def test_the_factor_1_is_proper_where_the_space_is_bounded_alone(kind):
    family = make(kind)
    family.check(family.zeros())
    assert family.is_proper(family.zeros()) == (kind in BOUNDED)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_is_improper(kind, number):
    family, eta = make(kind), random_eta(make(kind), 13)
    for index in range(len(tree.leaves(eta))):
        broken = tree.map_leaves(np.array, eta)
        tree.leaves(broken)[index].flat[0] = number
        assert not family.is_proper(broken)


@pytest.mark.nightly(only=("dirichlet", "normal_gamma_rows", "normal_wishart"))
def test_numpy_and_jax_are_answered_in_kind(kind):
    family, q, p = make(kind), random_eta(make(kind), 14), random_eta(make(kind), 15)
    theta = by_scipy(family, q, np.random.default_rng(1))[0]
    mu = family.mean(q)
    calls = [
        (family.log_partition, (q,)),
        (family.mean, (q,)),
        (family.statistics, (theta,)),
        (family.inner, (q, mu)),
        (family.kl, (q, p)),
        (family.moments, (q,)),
    ]
    with jax.enable_x64(True):
        for method, arguments in calls:
            expected, found = method(*arguments), method(*map(on_jax, arguments))
            assert type(found) is type(expected) or not isinstance(expected, tuple)
            assert all(isinstance(leaf, jax.Array) for leaf in tree.leaves(found)), method
            assert all(isinstance(leaf, np.ndarray | float) for leaf in tree.leaves(expected))
            assert_close(found, expected)


def test_numbers_that_leave_are_counted_once(kind):
    assert make(kind).number_count == NUMBERS[kind]


def test_parameters_travel_as_they_are(kind):
    family, eta = make(kind), random_eta(make(kind), 16)
    names = [tensor.name for tensor in codec.pack(eta)]
    assert len(set(names)) == len(tree.leaves(eta))
    there = codec.unpack(codec.pack(eta), family.zeros())
    family.check(there)
    assert tree.equal(there, eta)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (np.zeros(5), r"eta[.\w]* has shape \(5,\), expected \("),
        (np.full(1, np.nan), "NaN or infinite"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(kind, number, message):
    family, eta = make(kind), random_eta(make(kind), 13)
    first = tree.leaves(eta)[0]
    wrong = number if number.size > 1 else np.broadcast_to(number, first.shape)
    with pytest.raises(errors.FamilyError, match=message):
        family.check(tree.map_leaves(lambda leaf: wrong if leaf is first else leaf, eta))


def test_parameters_of_another_type_are_refused_without_their_numbers(kind):
    family, eta = make(kind), random_eta(make(kind), 13)
    for wrong in (list(eta), (*eta, *eta), None):
        with pytest.raises(errors.FamilyError, match=r"eta is (list|tuple|None)") as error:
            family.check(wrong)
        assert "array" not in str(error.value)


def test_a_family_without_a_dimension_is_refused(kind):
    with pytest.raises(errors.FamilyError, match=r"size is 0|parts is empty"):
        make(kind, 0)


def test_pieces_are_the_whole_and_what_is_computed_of_them_agrees(kind, monkeypatch):
    family = make(kind, 8)
    before, after, change = (random_eta(family, seed) for seed in (1, 2, 3))
    whole = folding.gap(family, before, after)
    whitened = family.whiten(before, change)
    monkeypatch.setattr("fedvi.expfam.gaussian._BLOCK", 3)
    monkeypatch.setattr(sys.modules[Dirichlet.__module__], "_BLOCK", 3)
    pieces = list(blocks(family, before, change))
    for index, eta in enumerate((before, change)):
        parts = zip(*(tree.leaves(piece[index]) for piece in pieces), strict=True)
        for found, leaf in zip(parts, tree.leaves(eta), strict=True):
            assert np.array_equal(np.concatenate(found), leaf)
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
    for found, leaf in zip(tree.leaves(rest), tree.leaves(eta), strict=True):
        assert found is not leaf
    again = tree.to_numpy(rest)
    assert all(a is b for a, b in zip(tree.leaves(again), tree.leaves(rest), strict=True))
    views = tree.map_leaves(lambda leaf: leaf[:], eta)
    for view in tree.leaves(views):
        view.flags.writeable = False  # and what it is a view of is not
    pairs = zip(tree.leaves(tree.to_numpy(views)), tree.leaves(views), strict=True)
    assert all(copied is not view for copied, view in pairs)
    single = tree.map_leaves(lambda leaf: leaf.astype(np.float32), rest)
    assert {leaf.dtype for leaf in tree.leaves(tree.to_numpy(single))} == {np.dtype(np.float64)}
    fresh = tree.freeze(tree.scale(eta, 2.0))
    assert not any(leaf.flags.writeable for leaf in tree.leaves(fresh))
