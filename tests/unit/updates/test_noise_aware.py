"""What a server makes of noisy answers: neither blind to what they tell nor surer than they allow."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import expfam
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import prior_factor
from fedvi.privacy import random
from fedvi.privacy.release import decoded
from fedvi.updates.base import Fold, Task
from fedvi.updates.coordinates import Survey
from fedvi.updates.noise_aware import anew, hidden_values, of_changes, of_sites
from fedvi.updates.running_means import LEFT_OUT
from fedvi.updates.whitened_changes import PriorFrame, from_vector
from tests.studies import random_eta

D = 8
WIDE = expfam.full_gaussian(D)
PRIOR = WIDE.isotropic(1.0)


def stand(site, before=None, *, noise=0.0, curvature_noise=0.0, answered=1, floor=1.0, rate=1.0):
    q = PRIOR if before is None else before.handed_out
    factors = {str(client): tree.scale(site, 1.0 / answered) for client in range(answered)}
    fold = Fold(PRIOR, PRIOR, tree.add(PRIOR, site), factors, dict.fromkeys(factors, q), 1.0)
    return of_sites(
        WIDE, fold, before, gradient_sd=noise, curvature_sd=curvature_noise, rate=rate, floor=floor
    )


def symmetric_noise(generator) -> np.ndarray:
    """Of sd 1 in each coordinate of svec."""
    found = generator.normal(size=(D, D))
    return (found + found.T) / 2.0


def test_without_noise_it_is_the_newton_step():
    site = random_eta(WIDE, 3)
    standing = stand(site)
    wanted = tree.add(PRIOR, site)
    for q in (standing.handed_out, standing.reported):
        np.testing.assert_allclose(q.J, wanted.J, rtol=1e-9)
        np.testing.assert_allclose(q.h, wanted.h, rtol=1e-9)


@pytest.mark.parametrize("curvature", [-50.0, -0.01, 0.0])
def test_steps_climb_where_the_likelihood_is_not_concave_and_do_not_run_away(curvature):
    """Without |λ|, and without a longest step, the prior's precision alone would hold a step of 40."""
    H = np.diag([curvature] + [50.0] * (D - 1))
    found = stand(GaussianEta(np.full(D, 40.0), H), noise=1e-6)
    step = WIDE.moments(found.handed_out)[0]
    if curvature == -50.0:
        np.testing.assert_allclose(step, 40.0 / 51.0, rtol=1e-4)
    else:
        assert np.linalg.norm(step) == pytest.approx(math.sqrt(D))
        assert (step > 0.0).all()
    # It adds no precision of its own.
    assert np.linalg.eigvalsh(found.reported.J)[0] == pytest.approx(1.0, rel=1e-3)


def test_curvature_that_is_noise_alone_adds_next_to_no_precision():
    """Cleaning every site before the sum, the planted bug, adds hundreds."""
    generator = np.random.default_rng(0)
    noise, clients = 100.0, 25
    sites = [noise * symmetric_noise(generator) for _ in range(clients)]
    site = GaussianEta(np.zeros(D), sum(sites))
    found = stand(site, noise=50.0, curvature_noise=noise, answered=clients).reported.J
    # What is left below the edge tells of at most (e / s)² · e / (e + s²) beside the prior's 1.
    assert np.linalg.eigvalsh(found - PRIOR.J)[-1] < 10.0
    cleaned = sum((v * np.maximum(w, 0)) @ v.T for w, v in map(np.linalg.eigh, sites))
    assert np.linalg.eigvalsh(cleaned)[-1] > 1_000.0


def test_gradients_that_noise_drowns_leave_the_prior():
    """One step of noise has norm 1; told as it is, each sd would be √(1 + 1/8), and a mean as far off."""
    site = GaussianEta(np.zeros(D), 10.0 * np.eye(D))
    _, sd = WIDE.moments(stand(site, noise=1e4).reported)
    np.testing.assert_allclose(sd, 1.0, rtol=2e-3)
    generator, alone = np.random.default_rng(4), 0
    for _ in range(50):
        gradient = 1e4 * generator.normal(size=D)
        mean, sd = WIDE.moments(stand(GaussianEta(gradient, 10.0 * np.eye(D)), noise=1e4).reported)
        taken_back = sd <= 1.0 + 1e-6
        np.testing.assert_allclose(mean[taken_back], 0.0, atol=0.01)
        alone += taken_back.sum()
    # Noise goes beyond 3 of its sds in one of 370 coordinates.
    assert alone > 0.98 * 50 * D


@pytest.mark.parametrize(
    ("away", "unsure", "is_anew"),
    [(0.0, 1.0, False), (0.05, 100.0, False), (100.0, 1.0, False), (100.0, 100.0, True)],
)
def test_a_mean_of_steps_that_noise_led_far_away_begins_anew(away, unsure, is_anew):
    """Far steps would stay in it for good. Where it was sure of them, steps are too short, and it stays."""
    generator, optimum, H = np.random.default_rng(1), np.full(D, 0.3), 50.0 * np.eye(D)

    def step(before):
        site = GaussianEta(H @ optimum + generator.normal(size=D), H + symmetric_noise(generator))
        return stand(site, before, noise=1.0, curvature_noise=1.0)

    standing = functools.reduce(lambda before, _: step(before), range(6), None)
    moved = GaussianEta(standing.curvature.h + away, standing.curvature.J)
    found = step(
        standing._replace(curvature=moved, reported=tree.scale(standing.reported, 1.0 / unsure))
    )
    assert (found.folds == LEFT_OUT + 1) == is_anew
    assert found.steps == standing.steps + 1  # what is asked at a round of the plan does not wait
    mean, sd = WIDE.moments(found.reported)
    assert (np.abs(mean - optimum).max() < 5.0 * sd.max()) == (is_anew or away < 1.0)


def test_curvature_that_noise_hides_goes_to_the_coordinates_that_show_it():
    """Shared out evenly, the planted bug, all coordinates get about the same sd."""
    generator = np.random.default_rng(3)
    H = np.diag([1.0] * 4 + [200.0] * 4)
    rare, common = [], []
    for _ in range(40):
        seen = H + 60.0 * symmetric_noise(generator)
        _, sd = WIDE.moments(stand(GaussianEta(np.zeros(D), seen), curvature_noise=60.0).reported)
        rare.append(sd[:4].mean())
        common.append(sd[4:].mean())
    assert np.mean(rare) > 1.5 * np.mean(common)


def test_intervals_cover_where_columns_of_all_frequencies_hide_in_noise():
    """Curvatures of a log-normal law with median 10, in noise of 200 a fold, most of it hidden for good.

    As one normal law around their mean, which they are far from, 86 % were covered.
    """
    size, rounds, noise, curvature_noise = 40, 30, 60.0, 200.0
    family = expfam.full_gaussian(size)
    prior, generator, hits = family.isotropic(1.0), np.random.default_rng(0), []
    for _ in range(12):
        curvature = 10.0 * np.exp(1.5 * generator.normal(size=size))
        theta = generator.normal(size=size)
        best = theta + generator.normal(size=size) / np.sqrt(curvature)
        standing = None
        for _ in range(rounds):
            q = prior if standing is None else standing.handed_out
            mean = family.moments(q)[0]
            square = generator.normal(size=(size, size))
            seen = np.diag(curvature) + curvature_noise * (square + square.T) / 2.0
            gradient = curvature * (best - mean) + noise * generator.normal(size=size)
            site = GaussianEta(gradient + seen @ mean, seen)
            fold = Fold(prior, prior, tree.add(prior, site), {"a": site}, {"a": q}, 1.0)
            standing = of_sites(
                family, fold, standing,
                gradient_sd=noise, curvature_sd=curvature_noise, rate=1.0, floor=1.0,
            )  # fmt: skip
        mean, sd = family.moments(standing.reported)
        hits.append(np.abs(mean - theta) < 1.96 * sd)
    # Of 480 coefficients: the standard error is 1 point. What hides counts as less than it is likely to be.
    assert 0.93 <= np.mean(hits) <= 0.995


@pytest.mark.parametrize(("away", "least"), [(0.0, 0.9), (6.0, 0.8)])
def test_intervals_cover_coefficients_that_are_several_sds_of_the_prior_away(away, least):
    """Where the prior alone says how long the way is, the planted bug, 62 % are covered 6 sds away."""
    curvature, noise, rounds = 40.0 * np.eye(D), 60.0, 12
    generator, hits = np.random.default_rng(6), []
    for _ in range(60):
        theta = generator.normal(size=D)
        theta[:2] += away
        best = theta + generator.normal(size=D) / math.sqrt(40.0)
        standing = None
        for _ in range(rounds):
            mean = np.zeros(D) if standing is None else WIDE.moments(standing.handed_out)[0]
            seen = curvature + noise / 4.0 * symmetric_noise(generator)
            gradient = curvature @ (best - mean) + noise * generator.normal(size=D)
            standing = stand(
                GaussianEta(gradient + seen @ mean, seen),
                standing, noise=noise, curvature_noise=noise / 4.0,
            )  # fmt: skip
        mean, sd = WIDE.moments(standing.reported)
        hits.append((np.abs(mean - theta) < 1.96 * sd)[:2])
    # Of 120: the standard error is 2 to 4 points.
    assert np.mean(hits) > least


def test_what_noise_hides_is_estimated_along_each_eigenvector():
    """Eigenvalues as they are, the planted bug, are off by more than 2.5 u; a report doubts them by 2 u."""
    generator, noise = np.random.default_rng(4), 10.0
    for H in (np.zeros((D, D)), np.diag([0.0] * 4 + [30.0] * 4)):
        off, plain = [], []
        for _ in range(400):
            values, vectors = np.linalg.eigh(H + noise * symmetric_noise(generator))
            true = np.einsum("dk,de,ek->k", vectors, H, vectors)
            off.append(hidden_values(values, noise) - true)
            plain.append(values - true)
        # By rank: the lowest and the highest eigenvectors are where noise chose them.
        assert np.abs(np.mean(off, axis=0)).max() < 1.7 * noise
        assert np.abs(np.mean(plain, axis=0)).max() > 2.5 * noise
        # The trace stays what it was.
        np.testing.assert_allclose(np.sum(off, axis=1), np.sum(plain, axis=1), atol=1e-9)


def swings(bends, *, noise=1.0, rounds=12, clients=lambda fold: ("a",)):
    """Returns surprises, of gradients that bend ``bends`` times as much as curvatures say."""
    generator, H, standing, found = np.random.default_rng(5), 400.0 * np.eye(D), None, []
    sites = {}
    for fold in range(rounds):
        q = PRIOR if standing is None else standing.handed_out
        mean = WIDE.moments(q)[0]
        asked = clients(fold)
        for client in asked:
            gradient = bends * H @ (1.0 - mean) + noise * generator.normal(size=D)
            seen = H + noise * symmetric_noise(generator)
            sites[client] = GaussianEta(gradient + seen @ mean, seen)
        posterior = tree.total(sites.values(), PRIOR)
        given = Fold(PRIOR, PRIOR, posterior, dict(sites), dict.fromkeys(asked, q), 1.0)
        standing = of_sites(
            WIDE, given, standing, gradient_sd=noise, curvature_sd=noise, rate=1.0, floor=1.0
        )
        found.append(standing.surprise)
    return found, standing


def test_a_run_that_swings_is_seen_and_one_that_does_not_is_not():
    assert swings(1.0)[0] == [0.0] * 12
    # Steps 1.9 times too long go to and fro; noise explains nothing of it. A run says so from 0.3 on.
    assert swings(1.9)[0][-1] > 0.45
    # Of the same steps, under noise that hides it, nothing is claimed.
    assert swings(1.9, noise=3_000.0)[0] == [0.0] * 12


@pytest.mark.parametrize("clients", [1, 4])
def test_a_mean_seldom_moves_further_in_a_round_than_its_jitter_and_often_a_fifth_of_it(clients):
    """Of a round in which one client answers after the other, one fold's share alone is too little."""
    shares = []
    for seed in range(20):
        generator, standing, sites = np.random.default_rng(seed), None, {}
        for visit in range(12 * clients):
            q = PRIOR if standing is None else standing.handed_out
            mean, noise = WIDE.moments(q)[0], 150.0
            H = 400.0 / clients * np.eye(D)
            seen = H + noise / 4.0 * symmetric_noise(generator)
            gradient = H @ (1.0 - mean) + noise * generator.normal(size=D)
            sites[str(visit % clients)] = GaussianEta(gradient + seen @ mean, seen)
            posterior = tree.total(sites.values(), PRIOR)
            given = Fold(PRIOR, PRIOR, posterior, dict(sites), {str(visit % clients): q}, 1.0)
            if visit == 11 * clients:
                before = WIDE.moments(standing.reported)[0]
            standing = of_sites(
                WIDE, given, standing,
                gradient_sd=noise, curvature_sd=noise / 4.0, rate=1.0, floor=1.0,
            )  # fmt: skip
        after, sd = WIDE.moments(standing.reported)
        shares.append(np.abs((after - before) / sd).max() / standing.jitter)
    assert max(shares) < 1.0
    assert np.median(shares) > 0.2


def test_a_site_that_joins_or_leaves_is_no_surprise():
    found, standing = swings(1.0, clients=lambda fold: ("a",) if fold < 6 else ("a", "b"))
    assert found == [0.0] * 12
    left = anew(standing, ("a",), 0.0)
    assert left.gradient is None
    assert left.surprise == 0.0


SURVEYED = Survey(
    constant=0, unit=5.0, emphasis=1.5, length=1.5, noise=1e9, curvature=0.1, outcome=None
)


def surveying(before, *, factors, asked, surveys):
    posterior = tree.total(factors.values(), PRIOR)
    fold = Fold(PRIOR, PRIOR, posterior, factors, asked, 1.0, surveys)
    return of_sites(
        WIDE, fold, before, gradient_sd=1.0, curvature_sd=1.0, rate=1.0, floor=1.0, survey=SURVEYED
    )


def test_surveys_move_nothing_and_who_sent_one_alone_has_said_nothing():
    """Counting its factor of zeros, the planted bug, adds noise that was never drawn."""
    zeros, x = WIDE.zeros(), np.random.default_rng(0).normal(size=(500, D)) + 3.0
    x[:, 0] = 1.0
    emphasis = np.where(np.arange(D) == 0, SURVEYED["emphasis"], 1.0)
    survey = GaussianEta(x.sum(0) * emphasis, np.diag((x**2).sum(0) * emphasis))
    both = {"a": zeros, "b": zeros}
    first = surveying(
        None, factors=both, asked=dict.fromkeys(both, PRIOR), surveys=dict.fromkeys(both, survey)
    )
    assert first.folds == 0
    assert first.coordinates is not None
    np.testing.assert_allclose(first.coordinates.centre[1:], x.mean(0)[1:], rtol=1e-12)
    for q in (first.handed_out, first.reported):
        np.testing.assert_array_equal(q.J, PRIOR.J)
    # One that comes later changes nothing.
    late = surveying(first, factors=both, asked={"b": PRIOR}, surveys={"b": survey})
    assert late is first
    site = random_eta(WIDE, 3)
    alone, beside = (
        surveying(first, factors=factors, asked={"a": PRIOR}, surveys={})
        for factors in ({"a": site}, {"a": site, "b": zeros})
    )
    np.testing.assert_allclose(beside.reported.J, alone.reported.J)
    assert set(beside.sites) == {"a"}
    # Nor is there any when everybody else has been removed.
    assert surveying(first, factors={}, asked={}, surveys={}) is first


def test_what_goes_out_is_not_widened_by_noise():
    """Sites are expectations over it: with wider ones the optimum would be another than the pooled one."""
    H = np.diag(np.linspace(500.0, 1_000.0, D))
    found = stand(GaussianEta(np.zeros(D), H), noise=100.0)
    np.testing.assert_allclose(found.handed_out.J, PRIOR.J + H, rtol=1e-9)
    assert np.linalg.eigvalsh(PRIOR.J + H - found.reported.J)[0] > 50.0


def test_precision_is_widened_by_the_noise_of_the_gradient():
    """To first order: covariance + s² H⁻² of the noise that moved the mean."""
    site = GaussianEta(np.zeros(D), np.diag(np.linspace(500.0, 1_000.0, D)))
    covariance = np.linalg.inv(stand(site, noise=3.0).reported.J)
    H = site.J
    wanted = np.linalg.inv(PRIOR.J + H) + 9.0 * np.linalg.inv(H @ H)
    np.testing.assert_allclose(np.diag(covariance), np.diag(wanted), rtol=2e-3)


def test_precision_is_widened_by_what_drawing_records_scatters():
    """At rate r a gradient's covariance is H / r: that many times wider intervals, squared."""
    site = GaussianEta(np.zeros(D), 1e6 * np.eye(D))
    found = stand(site, rate=0.1).reported.J
    np.testing.assert_allclose(np.diag(found), 1e5, rtol=1e-4)


def coverage(order, *, curvature, noise, curvature_noise, rare=0, replicates=60):
    """Nominal 95 % intervals of D coefficients from N(0, 1): which share covers, over replicates.

    Ten clients, each with the Gaussian likelihood of precision ``curvature`` in an average direction,
    or a 400th of it in ``rare`` coordinates; ``order`` says who renews its site in each fold.
    """
    scales = np.where(np.arange(D) < rare, 0.05, 1.0)
    generator, hits = np.random.default_rng(0), []
    for _ in range(replicates):
        theta = generator.normal(size=D)
        factors = generator.normal(size=(10, 3 * D, D)) * scales
        precisions = curvature * np.einsum("kni,knj->kij", factors, factors) / (3 * D)
        roots = np.linalg.cholesky(precisions)
        pulls = precisions @ theta + np.einsum("kij,kj->ki", roots, generator.normal(size=(10, D)))
        sites, standing = {}, None
        for group in order:
            q = PRIOR if standing is None else standing.handed_out
            mean = WIDE.moments(q)[0]
            for client in group:
                gradient = (
                    pulls[client] - precisions[client] @ mean + noise * generator.normal(size=D)
                )
                seen = precisions[client] + curvature_noise * symmetric_noise(generator)
                sites[str(client)] = GaussianEta(gradient + seen @ mean, seen)
            posterior = tree.total(sites.values(), PRIOR)
            asked = dict.fromkeys(map(str, group), q)
            fold = Fold(PRIOR, PRIOR, posterior, dict(sites), asked, 1.0)
            standing = of_sites(
                WIDE, fold, standing,
                gradient_sd=noise, curvature_sd=curvature_noise, rate=1.0, floor=1.0,
            )  # fmt: skip
        mean, sd = WIDE.moments(standing.reported)
        hits.append(np.abs(mean - theta) < 1.96 * sd)
    return float(np.mean(hits))


EVERYBODY = list(range(10))
CLEAR = {"curvature": 400.0, "noise": 30.0, "curvature_noise": 20.0}
NOISY = {"curvature": 400.0, "noise": 100.0, "curvature_noise": 60.0}
# Two columns whose curvature noise hides, as it nearly hides the others'.
RARE = {"curvature": 100.0, "noise": 30.0, "curvature_noise": 60.0, "rare": 2}
DROWNED = {"curvature": 0.1, "noise": 100.0, "curvature_noise": 60.0}


@pytest.mark.nightly(but=("synchronous", "half leave"))
@pytest.mark.parametrize(
    ("order", "settings"),
    [
        ([EVERYBODY] * 20, CLEAR),
        # With what noise hides shared out evenly, 86 %.
        ([EVERYBODY] * 20, RARE),
        # With the mean of the steps as it is, far fewer.
        ([EVERYBODY] * 20, DROWNED),
        # With the noise of those who left averaged like that of the others, far fewer.
        ([EVERYBODY] * 2 + [EVERYBODY[:5]] * 20, NOISY),
        ([[client] for client in EVERYBODY] * 8, CLEAR),
        # With steps as long as if all sites were new, means leave for 1e24.
        ([[client] for client in EVERYBODY] * 8, NOISY),
    ],
    ids=[
        "synchronous",
        "rare columns",
        "drowned",
        "half leave",
        "sequential",
        "sequential and noisy",
    ],
)
def test_intervals_cover_under_noise(order, settings):
    # 60 replicates of 8 correlated coefficients: the standard error is below 2 points, and the seed fixed.
    assert 0.89 <= coverage(order, **settings) <= 0.995


def test_noise_moves_a_step_by_the_inverse_of_the_floor():
    generator = np.random.default_rng(1)
    noise, floor = 1e5, 4.0
    sizes = []
    for _ in range(200):
        site = GaussianEta(noise * generator.normal(size=D), np.zeros((D, D)))
        found = stand(site, noise=noise, curvature_noise=1.0, floor=floor).handed_out
        sizes.append(np.linalg.norm(WIDE.moments(found)[0]))
    # A chi of 8 degrees over √8 has mean 0.97 and sd 0.25: mean of 200 within 5 standard errors.
    assert np.mean(sizes) * floor == pytest.approx(0.97, abs=0.09)


def test_the_mean_over_folds_keeps_the_stated_part_of_the_noise():
    """Steps from the same place, fresh noise each: the report's variance is squares × that of one."""
    generator = np.random.default_rng(2)
    H, noise, ends, squares = 1e4 * np.eye(D), 50.0, [], 0.0
    for _ in range(300):
        standing = None
        for _ in range(12):
            centre = np.zeros(D) if standing is None else WIDE.moments(standing.handed_out)[0]
            gradient = -H @ centre + noise * generator.normal(size=D)
            standing = stand(GaussianEta(gradient + H @ centre, H), standing, noise=noise)
        squares = standing.squares
        ends.append(WIDE.moments(standing.reported)[0])
    step_sd = noise / (1e4 + 1.0 + noise * math.sqrt(D))
    ratio = np.var(ends) / (squares * step_sd**2)
    # 2,400 numbers: relative sd of a variance 0.029; within 5 of them. The floor makes steps a
    # little short, which correlates them: 1 + 2·0.014.
    assert ratio == pytest.approx(1.0, abs=0.17)
    assert squares < 2.0 / 12.0


class Laplaces:
    """Three coefficients with Laplace(0, 1) priors, of variance 2; the likelihood is not asked."""

    size, names = 3, ("a", "b", "c")

    def log_prior(self, theta):
        return -jnp.abs(theta).sum()

    def log_likelihood(self, theta, record):
        return 0.0 * theta.sum()

    def constrain(self, theta):
        return {}


def beside_laplaces(worker, seed, *, rounds, noise, curvature_noise, curvature=0.0, optimum=0.0):
    """Runs two synchronous clients with one Gaussian likelihood in all, and the prior's own worker."""
    family = expfam.full_gaussian(3)
    generator, keys = np.random.default_rng(seed), random.insecure_root(seed)
    base = prior_factor.base(family)
    factor, standing, q = family.zeros(), None, base
    for visit in range(rounds):
        task = Task("p", "p", visit, visit, q, factor, 1.0)
        key_of = functools.partial(keys.key, "p", f"p/{visit}")
        answer = worker.update(key_of, (), task, prior_factor.empty_shard())[1]
        value = {name: np.asarray(part) for name, part in decoded(answer).value.items()}
        factor = tree.add(factor, worker.finish(value, task).delta)
        mean, sites = family.moments(q)[0], {}
        for client in "ab":
            square = generator.normal(size=(3, 3))
            H = curvature / 2.0 * np.eye(3) + curvature_noise * (square + square.T) / 2.0
            slope = curvature / 2.0 * (optimum - mean) + noise * generator.normal(size=3)
            sites[client] = GaussianEta(slope + H @ mean, H)
        known = tree.add(base, factor)
        asked = dict.fromkeys(sites, q)
        fold = Fold(base, known, tree.total(sites.values(), known), sites, asked, 1.0)
        standing = of_sites(
            family, fold, standing,
            gradient_sd=noise, curvature_sd=curvature_noise, rate=1.0, floor=1.0,
        )  # fmt: skip
        q = standing.handed_out
    return family.moments(standing.reported)


@pytest.mark.nightly
def test_noise_alone_does_not_widen_a_prior_that_is_no_gaussian():
    """With the prior's precision as it is where noise carried q, sds of up to 30 were reported."""
    worker = prior_factor.prior_factor(expfam.full_gaussian(3), Laplaces())
    for seed in range(20):
        mean, sd = beside_laplaces(worker, seed, rounds=10, noise=30.0, curvature_noise=60.0)
        # Up to half more than the prior has: that is the walk of ten steps, each of norm 1.
        assert sd.max() < 1.5 * math.sqrt(2.0)
        assert (np.abs(mean) < 2.5 * sd).all()


def test_what_bounds_a_prior_goes_where_records_lead():
    worker = prior_factor.prior_factor(expfam.full_gaussian(3), Laplaces())
    # Far out, where a Laplace has no precision and its reference has 0.64; and where it has 10.
    best = np.array([3.0, -0.5, 0.0])
    told = {"rounds": 20, "curvature": 100.0, "optimum": best}
    exact_mean, exact_sd = beside_laplaces(worker, 0, noise=0.0, curvature_noise=0.0, **told)
    mean, sd = beside_laplaces(worker, 0, noise=0.05, curvature_noise=0.05, **told)
    # Noise has an sd of 0.01 posterior sds; the prior's worker draws, which moves sds by 1 %.
    np.testing.assert_array_less(np.abs(mean - exact_mean) / exact_sd, 0.06)
    np.testing.assert_allclose(sd, exact_sd, rtol=0.03)
    # Under noise of a third of what records tell, intervals are wider, and not much.
    mean, sd = beside_laplaces(worker, 0, noise=30.0, curvature_noise=10.0, **told)
    assert (np.abs(mean - exact_mean) < 3.0 * sd).all()
    assert (sd < 3.0 * exact_sd).all()


FAMILIES = pytest.mark.parametrize("kind", ["full_gaussian", "diagonal_gaussian"])


def family_and_prior(kind):
    family = getattr(expfam, kind)(D)
    return family, tree.to_numpy(random_eta(family, 21))


def after(family, prior, changes, *, noise, damping=1.0, visits=1):
    """Folds the same changes several times over."""
    standing, posterior = None, prior
    for _ in range(visits):
        for change in changes:
            posterior = tree.add_scaled(posterior, change, damping)
        factors = dict.fromkeys(map(str, range(len(changes))), prior)
        fold = Fold(prior, prior, posterior, factors, factors, damping)
        standing = of_changes(family, fold, standing, noise_sd=noise)
    return standing, posterior


@FAMILIES
def test_changes_without_noise_are_added_up(kind):
    family, prior = family_and_prior(kind)
    standing, posterior = after(family, prior, [random_eta(family, 3)], noise=0.0)
    assert tree.equal(standing.reported, posterior)


@FAMILIES
def test_changes_with_hardly_any_noise_are_nearly_added_up(kind):
    family, prior = family_and_prior(kind)
    standing, posterior = after(
        family, prior, [tree.scale(random_eta(family, 3), 50.0)], noise=1e-4
    )
    assert family.kl(standing.reported, posterior) < 1e-6


@FAMILIES
@pytest.mark.parametrize("damping", [1.0, 0.25])
def test_changes_that_are_noise_alone_leave_the_prior(kind, damping):
    """With what accumulates not counted, or counted without s², this fails: see the ratio."""
    family, prior = family_and_prior(kind)
    frame = PriorFrame(*(family.location_root(prior) if kind[0] == "f" else family.moments(prior)))
    generator, visits, clients, noise = np.random.default_rng(4), 10, 5, 30.0
    standing, posterior = None, prior
    for _ in range(visits):
        for _ in range(clients):
            change = from_vector(frame, noise * generator.normal(size=family.number_count))
            posterior = tree.add_scaled(posterior, change, damping)
        factors = dict.fromkeys(map(str, range(clients)), prior)
        fold = Fold(prior, prior, posterior, factors, factors, damping)
        standing = of_changes(family, fold, standing, noise_sd=noise)
    assert standing.squares == pytest.approx(visits * clients * damping**2)
    assert family.is_proper(standing.reported)
    mean, sd = family.moments(standing.reported)
    prior_mean, prior_sd = family.moments(prior)
    # What passes the edge by chance narrows sds a little, and moves means by less than an sd.
    assert (sd / prior_sd > 0.3).all()
    assert (sd <= prior_sd * (1.0 + 1e-9)).all()
    assert (np.abs(mean - prior_mean) < 2.0 * prior_sd).all()
    # As they are, they make no posterior, or one that is surer than the prior a hundredfold.
    assert (
        not family.is_proper(posterior) or family.moments(posterior)[1].min() < 0.2 * prior_sd.min()
    )


def test_the_priors_own_factor_is_taken_as_it_is():
    """It has no noise: it is neither cleaned nor shrunk."""
    family = expfam.full_gaussian(D)
    prior = family.isotropic(1.0)
    known = tree.add(prior, random_eta(family, 8))
    fold = Fold(prior, known, known, {"c": prior}, {"c": prior}, 1.0)
    standing = of_changes(family, fold, None, noise_sd=100.0)
    assert family.kl(standing.reported, known) < 1e-12
