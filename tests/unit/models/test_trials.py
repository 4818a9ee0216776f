"""Events out of trials: against SciPy, and against the yes-or-no records that trials are."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors, expfam, models
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import solvers
from fedvi.models.regression_statistics import PolyaGamma
from fedvi.privacy import mechanisms, random, sampling
from fedvi.updates.base import Shard, Task
from tests.vips import answer, federate, first_task, shard_of

NAMES = ("(Intercept)", "age")
FAMILY = expfam.full_gaussian(2)
GENERATOR = np.random.default_rng(3)
COUNT = 30
X = np.stack([np.ones(COUNT), GENERATOR.normal(size=COUNT)], axis=1)
TRIALS = GENERATOR.integers(0, 9, size=COUNT)
EVENTS = GENERATOR.binomial(TRIALS, 1.0 / (1.0 + np.exp(-X @ [-0.5, 1.0])))
Y = np.stack([EVENTS, TRIALS - EVENTS], axis=1).astype(float)
OFFSETS = GENERATOR.normal(size=COUNT)
THETA = np.array([-0.3, 0.8])
BINOMIAL = models.binomial(NAMES)


def expanded():
    """Each trial as a record of its own: x [Σn, 2], y [Σn] of 0 and 1, and which record it was."""
    place = np.repeat(np.arange(COUNT), TRIALS)
    y = np.concatenate([[1.0] * int(s) + [0.0] * int(f) for s, f in Y])
    return X[place], y, place


def likelihoods(model, y, x=X):
    with jax.enable_x64(True):
        records = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
        return np.asarray(
            jax.vmap(model.log_likelihood, in_axes=(None, 0))(jnp.asarray(THETA), records)
        )


def test_the_density_is_that_of_scipy_with_and_without_offset():
    # float64; lgamma in JAX is good to 1e-13 or so.
    chance = 1.0 / (1.0 + np.exp(-X @ THETA))
    expected = scipy.stats.binom.logpmf(EVENTS, TRIALS, chance)
    np.testing.assert_allclose(likelihoods(BINOMIAL, Y), expected, rtol=1e-11, atol=1e-12)
    moved = models.binomial(NAMES, offset=True)
    chance = 1.0 / (1.0 + np.exp(-X @ THETA - OFFSETS))
    expected = scipy.stats.binom.logpmf(EVENTS, TRIALS, chance)
    found = likelihoods(moved, np.column_stack([Y, OFFSETS]))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_trials_are_yes_or_no_records_but_for_the_number_of_their_orders():
    x, y, place = expanded()
    found = likelihoods(BINOMIAL, Y)
    ways = np.array([math.log(math.comb(n, s)) for n, s in zip(TRIALS, EVENTS, strict=True)])
    single = np.bincount(place, likelihoods(models.logistic(NAMES), y, x), COUNT)
    np.testing.assert_allclose(found, single + ways, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_record_without_trials_says_nothing_wherever_it_is_looked_at(dtype):
    with jax.enable_x64(dtype == "float64"):
        a = jnp.array([-1e4, -3.0, 0.0, 700.0, 1e4], dtype)
        value, slope, curvature = BINOMIAL.response.derivatives(a, jnp.zeros((5, 2), dtype))
        np.testing.assert_array_equal(slope, np.zeros(5))
        np.testing.assert_array_equal(curvature, np.zeros(5))
        for found in (value, BINOMIAL.response.log_density(a, jnp.zeros((5, 2), dtype))):
            # JAX's lgamma(1) in float32 is 5e-7.
            np.testing.assert_allclose(found, 0.0, atol=1e-6)


def test_the_slope_of_many_trials_does_not_cancel():
    """In float32, of 10⁶ trials of which all but 3 are events: s·σ(−a) − f·σ(a) at a = log(s / f)."""
    y = np.array([1e6 - 3.0, 3.0], np.float32)
    a = math.log((1e6 - 3.0) / 3.0)
    slope = BINOMIAL.response.derivatives(jnp.float32(a + 0.5), y)[1]
    wanted = (1e6 - 3.0) / (1.0 + math.exp(a + 0.5)) - 3.0 / (1.0 + math.exp(-a - 0.5))
    # An error of a, 5e-7, and single roundings; σ itself is off by 6e-8, times 10⁶ trials: 0.05.
    np.testing.assert_allclose(slope, wanted, rtol=1e-5)


# Solvers


def solved(model, x, y, scale=2.5):
    """What `glm` answers on all records: a posterior, as its natural parameters."""
    solver = solvers.glm(FAMILY, model)
    task = Task("c/0", "c", 0, 0, FAMILY.isotropic(scale), FAMILY.zeros(), 1.0)
    shard = Shard({"x": x, "y": y}, np.ones(len(x), bool))
    keys = random.insecure_root(0).key
    value = solver.update(lambda purpose: keys(purpose), (), task, shard)[1].value
    return GaussianEta(np.asarray(value["h"]), np.asarray(value["J"]))


@pytest.mark.nightly
@pytest.mark.parametrize("offset", [False, True])
def test_glm_finds_the_posterior_of_the_trials_as_records(offset):
    x, y, place = expanded()
    pairs, single = (Y, y) if not offset else (np.c_[Y, OFFSETS], np.c_[y, OFFSETS[place]])
    found = [
        solved(models.binomial(NAMES, offset=offset), X, pairs),
        solved(models.logistic(NAMES, offset=offset), x, single),
    ]
    # Newton steps end within 1e-6 sds, quadratically: what is left of both is far below.
    np.testing.assert_allclose(found[0].h, found[1].h, rtol=1e-6)
    np.testing.assert_allclose(found[0].J, found[1].J, rtol=1e-6)


def test_site_release_sums_what_the_trials_as_records_do():
    x, y, _ = expanded()
    found = []
    for model, design, outcome in ((BINOMIAL, X, Y), (models.logistic(NAMES), x, y)):
        count = len(design)
        solver = solvers.site_release(
            FAMILY,
            model,
            sampling.full(count),
            mechanisms.gaussian(0.0),
            clip_norm=1e6,
        )
        shard = Shard(
            {"x": design.astype(np.float32), "y": outcome.astype(np.float32)}, np.ones(count, bool)
        )
        task = Task("c/0", "c", 0, 0, FAMILY.isotropic(2.5), FAMILY.zeros(), 1.0)
        found.append(answer(solver, task, shard))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        # float32, of sums of terms of both signs.
        np.testing.assert_allclose(value, found[1][name], rtol=1e-4, atol=1e-4)


def test_vips_sums_what_the_trials_as_records_do_and_finds_their_posterior():
    x, y, _ = expanded()
    pairs = models.binomial(NAMES, typical_trials=4)
    found = []
    for model, design, outcome in ((pairs, X, Y), (models.logistic(NAMES), x, y)):
        solver = solvers.vips(
            FAMILY,
            model,
            sampling.full(len(design)),
            mechanisms.gaussian(0.0),
            clip_norm=math.inf,
            row_norm=1.4,
        )
        shard = shard_of({"x": design.astype(np.float32), "y": outcome.astype(np.float32)})
        task = first_task(solver)._replace(
            posterior=FAMILY.from_moments(np.array([0.2, -0.4]), np.diag([0.3, 0.2]))
        )
        once = solver.finish(answer(solver, task, shard), task).delta
        found.append((once, federate(solver, [shard], 12)[-1].reported))
    (mine, last), (theirs, last_of_them) = found
    # Answers travel as float32, of E steps in float32.
    for left, right in ((mine, theirs), (last, last_of_them)):
        np.testing.assert_allclose(left.h, right.h, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(left.J, right.J, rtol=1e-5, atol=1e-5)


# As a conjugate model

PAIRED = PolyaGamma(NAMES, (1.0, 1.0), 1.5, trials=5.0, paired=True)


def test_typical_trials_weigh_blocks_and_change_no_statistic():
    one, many = (PolyaGamma(NAMES, (1.0, 1.0), 1.5, trials=n, paired=True) for n in (1.0, 20.0))
    ratios = [b.typical / a.typical for a, b in zip(one.blocks, many.blocks, strict=True)]
    np.testing.assert_allclose(ratios, 20.0, rtol=1e-12)
    q = FAMILY.from_moments(THETA, 0.1 * np.eye(2))
    records = {"x": X.astype(np.float32), "y": Y.astype(np.float32)}
    first, second = (model.expected(model.messages(q), records) for model in (one, many))
    for name, part in first.items():
        np.testing.assert_array_equal(part, second[name])


def test_a_record_without_trials_adds_nothing():
    q = FAMILY.from_moments(THETA, 0.1 * np.eye(2))
    records = {"x": X.astype(np.float32), "y": np.zeros((COUNT, 2), np.float32)}
    for centred in (False, True):
        model = PolyaGamma(NAMES, (1.0, 1.0), 1.5, centred=centred, paired=True)
        for part in model.expected(model.messages(q), records).values():
            np.testing.assert_array_equal(part, np.zeros(COUNT))


def test_records_are_pairs_of_finite_counts_from_0_up():
    assert PAIRED.layout == {"x": (2,), "y": (2,)}
    y = np.array([[0.0, 0.0], [3.0, 900.0], [-1.0, 2.0], [2.0, np.nan], [np.inf, 1.0], [1.0, 1.0]])
    x = np.ones((6, 2))
    x[5, 1] = np.inf
    assert PAIRED.sound({"x": x, "y": y}).tolist() == [True, True, False, False, False, False]


def test_made_up_records_are_sound_with_trials_that_vary_around_the_typical_number():
    made = PAIRED.made_up(2000, np.random.default_rng(0))
    assert {name: each.shape[1:] for name, each in made.items()} == PAIRED.layout
    assert PAIRED.sound(made).all()
    trials = made["y"].sum(axis=1)
    # The sd of a sum of two uniforms over 0 … 5 is 2.4: six standard errors.
    assert trials.mean() == pytest.approx(5.0, abs=6.0 * 2.4 / math.sqrt(2000))
    assert (trials == 0.0).any()


def test_outcomes_are_of_one_layout():
    with pytest.raises(errors.ModelError, match=r"counts and paired are both true"):
        PolyaGamma(NAMES, (1.0, 1.0), 1.0, counts=True, paired=True)


def test_nothing_is_lost_between_the_coefficients_of_a_fit_and_odds_ratios():
    """One binary column: the maximum of the likelihood is the log of the observed odds ratio."""
    x = np.array([[1.0, 0.0], [1.0, 1.0]])
    y = np.array([[300.0, 700.0], [600.0, 400.0]])
    mean, _ = FAMILY.moments(solved(models.binomial(NAMES, 1000.0), x, y, 1000.0))
    odds = (600.0 / 400.0) / (300.0 / 700.0)
    # A prior of sd 1,000 shrinks by 1e-8; the mean of q is beside the mode by about 1 / 1,000.
    assert math.exp(mean[1]) == pytest.approx(odds, rel=5e-3)


@pytest.mark.parametrize("trials", [0.0, -3, math.inf, True])
def test_the_typical_number_of_trials_is_above_0(trials):
    with pytest.raises(errors.ModelError, match=r"typical_trials is .*, expected a positive"):
        models.binomial(NAMES, typical_trials=trials)
