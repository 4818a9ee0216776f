"""Counts, survival, several outcomes and several levels: against SciPy, NumPyro and autodiff."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from fedvi.errors import ModelError
from fedvi.models import (
    binomial,
    linear,
    logistic,
    multinomial,
    multivariate_linear,
    negative_binomial,
    numpyro_model,
    overdispersed,
    poisson,
    survival,
)
from fedvi.models.base import Model, gaussian_prior
from fedvi.models.outcomes.hazard import Events
from fedvi.privacy.bounded import clipped_sum
from fedvi.privacy.mechanisms.gaussian import Gaussian
from fedvi.privacy.sampling.full import Full

NAMES = ["(Intercept)", "age", "dose"]
THETA = np.array([0.3, -0.7, 0.4])
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(9, 3))
COUNTS = RANDOM.integers(0, 12, size=9).astype(float)
OFFSETS = RANDOM.normal(size=9)
CUTS = [90, 365]
# Before, at and after a cut; events and censored; the last interval is open.
TIMES = np.array([1.0, 89.5, 90.0, 91.0, 365.0, 365.5, 2000.0, 90.0, 400.0])
DIED = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
HAZARD = survival(["age", "dose"], CUTS, prior_scale=[1.0, 3.0])
HAZARD_THETA = np.array([-5.0, -6.0, -4.5, 0.3, -0.2])


def per_record(model, theta, x, y):
    with jax.enable_x64(True):
        records = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
        return jax.vmap(model.log_likelihood, in_axes=(None, 0))(jnp.asarray(theta), records)


# Densities. rtol 1e-12: float64 algebra over nine records; lgamma in JAX is good to 1e-13 or so.


def test_poisson_is_that_of_scipy_with_and_without_offset():
    found = per_record(poisson(NAMES), THETA, X, COUNTS)
    expected = scipy.stats.poisson.logpmf(COUNTS, np.exp(X @ THETA))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    moved = per_record(poisson(NAMES, offset=True), THETA, X, np.stack([COUNTS, OFFSETS], axis=1))
    expected = scipy.stats.poisson.logpmf(COUNTS, np.exp(X @ THETA + OFFSETS))
    np.testing.assert_allclose(moved, expected, rtol=1e-12)


@pytest.mark.parametrize("dispersion", [0.05, 2])
def test_the_negative_binomial_is_that_of_scipy(dispersion):
    found = per_record(negative_binomial(NAMES, dispersion), THETA, X, COUNTS)
    mean = np.exp(X @ THETA)
    expected = scipy.stats.nbinom.logpmf(COUNTS, 1.0 / dispersion, 1.0 / (1.0 + dispersion * mean))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    # The variance that is documented, from SciPy's.
    variance = scipy.stats.nbinom.var(1.0 / dispersion, 1.0 / (1.0 + dispersion * mean))
    np.testing.assert_allclose(variance, mean + dispersion * mean**2, rtol=1e-12)


def test_an_offset_moves_the_log_odds_and_the_mean_too():
    y = np.stack([DIED, OFFSETS], axis=1)
    found = per_record(logistic(NAMES, offset=True), THETA, X, y)
    a = X @ THETA + OFFSETS
    expected = np.where(DIED == 1.0, scipy.special.log_expit(a), scipy.special.log_expit(-a))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    model = linear(NAMES, noise_scale=0.5, offset=True)
    assert not model.conjugate
    found = per_record(model, THETA, X, y)
    np.testing.assert_allclose(found, scipy.stats.norm.logpdf(DIED, a, 0.5), rtol=1e-12)


def test_survival_is_log_hazard_minus_its_integral():
    """The hazard as a function of time, integrated numerically from 0 to the time seen."""

    def hazard(time, x):
        level = HAZARD_THETA[:3][int(np.searchsorted([90.0, 365.0], time))]
        return np.exp(level + x @ HAZARD_THETA[3:])

    x = X[:, :2]
    expected = []
    for covariates, time, died in zip(x, TIMES, DIED, strict=True):
        breaks = [cut for cut in (90.0, 365.0) if cut < time]
        integral, _ = scipy.integrate.quad(
            hazard, 0.0, time, args=(covariates,), points=breaks or None, epsabs=1e-12
        )
        expected.append(died * np.log(hazard(time, covariates)) - integral)
    found = per_record(HAZARD, HAZARD_THETA, x, np.stack([TIMES, DIED], axis=1))
    # quad's own error bound, absolute 1e-12 of terms up to 30.
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_survival_is_the_poisson_regression_of_its_expanded_table():
    """Every subject split by hand into its intervals, as one would for a Poisson GLM."""
    rows, counts, exposures = [], [], []
    for x, time, died in zip(X[:, :2], TIMES, DIED, strict=True):
        for index, (low, high) in enumerate([(0.0, 90.0), (90.0, 365.0), (365.0, np.inf)]):
            if time > low:
                rows.append([*np.eye(3)[index], *x])
                exposures.append(min(time, high) - low)
                counts.append(float(died == 1.0 and time <= high))
    counts, exposures = np.array(counts), np.array(exposures)
    expanded = poisson(HAZARD.names, offset=True)
    y = np.stack([counts, np.log(exposures)], axis=1)
    subjects = np.stack([TIMES, DIED], axis=1)
    found = np.asarray(per_record(HAZARD, HAZARD_THETA, X[:, :2], subjects)).sum()
    by_table = np.asarray(per_record(expanded, HAZARD_THETA, np.array(rows), y)).sum()
    # The two differ by d log e, which no parameter is in.
    np.testing.assert_allclose(found, by_table - counts @ np.log(exposures), rtol=1e-13)


def test_several_outcomes_are_as_many_normal_densities():
    model = multivariate_linear(["(Intercept)", "age"], ["sbp", "dbp"], noise_scale=[0.3, 4.0])
    theta, x, y = RANDOM.normal(size=4), X[:, :2], X[:, 1:]
    expected = scipy.stats.norm.logpdf(y, x @ theta.reshape(2, 2).T, [0.3, 4.0]).sum(axis=1)
    np.testing.assert_allclose(per_record(model, theta, x, y), expected, rtol=1e-12)
    assert model.conjugate


@pytest.mark.nightly
@pytest.mark.numpyro
def test_the_multinomial_equals_the_same_model_written_in_numpyro():
    def written(x, y):
        b = numpyro.sample(
            "b", dist.Normal(0.0, jnp.array([9.0, 2.5, 2.5])).expand([3, 3]).to_event(2)
        )
        with numpyro.plate("records", x.shape[0]):
            logits = jnp.concatenate([jnp.zeros((x.shape[0], 1), x.dtype), x @ b.T], axis=1)
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    model = multinomial(NAMES, ["none", "mild", "severe", "fatal"], intercept_scale=9.0)
    other = numpyro_model(written, {"x": np.zeros(3), "y": 0})
    theta, level = RANDOM.normal(size=9), np.arange(9) % 4
    with jax.enable_x64(True):
        np.testing.assert_allclose(model.log_prior(theta), other.log_prior(theta), rtol=1e-12)
        evaluate = jax.vmap(jax.value_and_grad(other.log_likelihood), in_axes=(None, 0))
        expected = evaluate(jnp.asarray(theta), {"x": jnp.asarray(X), "y": jnp.asarray(level)})
        evaluate = jax.vmap(jax.value_and_grad(model.log_likelihood), in_axes=(None, 0))
        # A level's index is a float where a schema's columns were prepared.
        records = {"x": jnp.asarray(X), "y": jnp.asarray(level, float)}
        for mine, theirs in zip(evaluate(jnp.asarray(theta), records), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
        assert model.constrain(theta)["coefficients"].shape == (3, 3)
    assert model.names[3:5] == ("severe: (Intercept)", "severe: age")


@pytest.mark.nightly(but=("True",))
@pytest.mark.numpyro
@pytest.mark.parametrize("offset", [False, True])
def test_the_model_that_learns_its_dispersion_is_the_other_where_it_is_known(offset):
    y = np.stack([COUNTS, OFFSETS], axis=1) if offset else COUNTS
    model = numpyro_model(overdispersed.negative_binomial, {"x": X[0], "y": y[0]})
    assert model.names == ("b[0]", "b[1]", "b[2]", "log_dispersion")
    # A prior in the family: no factor of its own, and no worker for it.
    assert gaussian_prior(model) is not None
    known = negative_binomial(NAMES, 0.4, offset=offset)
    found = per_record(model, [*THETA, np.log(0.4)], X, y)
    np.testing.assert_allclose(found, per_record(known, THETA, X, y), rtol=1e-10)


# Derivatives

RESPONSES = {
    "binomial": (binomial(["a"]).response, [[0.0, 0.0], [3.0, 1.0], [2.0, 1e4]]),
    "trials with an offset": (
        binomial(["a"], offset=True).response,
        [[0.0, 4.0, -2.0], [5.0, 0.0, 3.0], [0.0, 0.0, 0.0]],
    ),
    "poisson": (poisson(["a"]).response, [0.0, 3.0, 1e4]),
    "negative binomial": (negative_binomial(["a"], 0.4).response, [0.0, 3.0, 1e4]),
    "events": (Events(3.0), [[0.0, 2.0], [1.0, 0.5], [0.0, 0.0]]),
    "offset": (poisson(["a"], offset=True).response, [[0.0, -2.0], [5.0, 3.0], [0.0, 0.0]]),
}


@pytest.mark.nightly(only=("binomial",))
@pytest.mark.parametrize("name", RESPONSES)
def test_derivatives_are_those_of_the_log_density(name):
    response, outcomes = RESPONSES[name]
    with jax.enable_x64(True):
        # 310 is where the Poisson rate is continued by its Taylor polynomial.
        a = jnp.array([-800.0, -30.0, -1.3, 0.0, 0.4, 2.0, 35.0, 310.0])
        for outcome in outcomes:
            y = jnp.broadcast_to(jnp.asarray(outcome), (8, *np.shape(outcome)))
            slope = jax.grad(response.log_density)
            expected = [jax.vmap(fn)(a, y) for fn in (response.log_density, slope, jax.grad(slope))]
            for left, right in zip(response.derivatives(a, y), expected, strict=True):
                # float64; differentiating a log density cancels below 1e-14 of the outcome.
                np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-10)


@pytest.mark.nightly(only=("float64-binomial", "float32-binomial"))
@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_out_everything_is_finite_concave_and_of_a_finite_norm(name, dtype):
    response, outcomes = RESPONSES[name]
    with jax.enable_x64(dtype == "float64"):
        a = jnp.array([-1e4, -100.0, 29.0, 31.0, 90.0, 1e3, 1e4], dtype)
        for outcome in outcomes:
            y = jnp.broadcast_to(jnp.asarray(outcome, dtype), (7, *np.shape(outcome)))
            value, slope, curvature = response.derivatives(a, y)
            for part in (value, slope, curvature, jax.vmap(jax.grad(response.log_density))(a, y)):
                assert part.dtype == dtype
                assert np.isfinite(part).all()
            assert np.isfinite((slope**2).sum())
            assert (curvature <= 0.0).all()


def test_quadrature_nodes_broadcast_over_outcomes():
    """What the glm solver does: predictors [nodes, n] against outcomes [1, n] or [1, n, 2]."""
    a = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    for name, (response, outcomes) in RESPONSES.items():
        y = jnp.asarray(outcomes)
        together = response.derivatives(a, y[None])
        for node in range(4):
            alone = response.derivatives(a[node], y)
            for whole, part in zip(together, alone, strict=True):
                # float32: other shapes may be added and multiplied in another order.
                np.testing.assert_allclose(whole[node], part, rtol=1e-6, err_msg=name)


# One record


def test_a_subject_is_one_record_to_a_clip():
    """Whatever a subject's intervals say, with it and without it the clipped sum differs by C."""
    records = {"x": jnp.asarray(X[:, :2], jnp.float32)}
    records["y"] = jnp.asarray(np.stack([TIMES, DIED], axis=1), jnp.float32)
    theta = jnp.asarray(HAZARD_THETA, jnp.float32)
    gradients = jax.vmap(jax.grad(HAZARD.log_likelihood), in_axes=(None, 0))(theta, records)
    assert gradients.shape == (9, 5)
    sampler, mechanism, clip_norm = Full(9), Gaussian(1.0), 0.05
    totals = []
    for without in (None, 6):  # the subject of 2,000 days, which was in all three intervals
        valid = jnp.arange(9) != (-1 if without is None else without)
        batch = sampler.draw(jax.random.key(0), valid)
        totals.append(clipped_sum(gradients[batch.indices], clip_norm, batch, mechanism).total)
    moved = float(jnp.linalg.norm(totals[0] - totals[1]))
    # It is clipped, so that the bound is reached; 1e-5 of it is float32.
    assert moved == pytest.approx(clip_norm, rel=1e-5)


def test_the_rows_of_a_record_stand_together_and_share_its_mask():
    with jax.enable_x64(True):
        y = jnp.asarray(np.stack([TIMES, DIED], axis=1))
        x, outcomes, mask = HAZARD.rows(jnp.asarray(X[:, :2]), y, jnp.arange(9) < 8)
        assert x.shape == (27, 5)
        np.testing.assert_array_equal(mask, np.arange(27) < 24)
        # 91 days, died: 90 in the first interval, one in the second.
        np.testing.assert_allclose(outcomes[9:12], [[0.0, 90.0], [1.0, 1.0], [0.0, 0.0]])
        found = HAZARD.response.log_density(x @ HAZARD_THETA, outcomes).reshape(9, 3).sum(axis=1)
    expected = per_record(HAZARD, HAZARD_THETA, X[:, :2], np.stack([TIMES, DIED], axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    same = poisson(NAMES).rows(jnp.asarray(X), jnp.asarray(COUNTS), jnp.ones(9, bool))
    np.testing.assert_array_equal(same[1], COUNTS.astype(np.float32))


@pytest.mark.nightly(
    only=(
        "survival-float32",
        "multivariate_linear-float64",
        "multivariate_linear-float32",
        "binomial-float32",
        "binomial-float64",
    )
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (binomial(NAMES), np.array([3, 1])),
        (poisson(NAMES), np.int64(3)),
        (negative_binomial(NAMES, 1), 3.0),
        (survival(NAMES[1:], []), np.array([3.0, 1.0])),
        (multivariate_linear(NAMES, ["a", "b"]), np.array([1.0, 2.0])),
        (multinomial(NAMES, ["a", "b"]), 1.0),
    ],
    ids=[
        "binomial",
        "poisson",
        "negative_binomial",
        "survival",
        "multivariate_linear",
        "multinomial",
    ],
)
def test_each_is_a_model_of_its_names_with_a_gaussian_prior_and_answers_in_the_dtype_of_theta(
    model, y, dtype
):
    assert isinstance(model, Model)
    assert len(model.names) == model.size == len(set(model.names))
    assert gaussian_prior(model) is not None
    with jax.enable_x64(True):
        theta = jnp.zeros(model.size, dtype)
        record = {"x": np.ones(3 - (model.names[0][:4] == "base")), "y": y}
        assert model.log_prior(theta).dtype == dtype
        assert jax.grad(model.log_likelihood)(theta, record).dtype == dtype
    assert hash(model) == hash(model)


def test_hazards_per_follow_up_do_not_depend_on_the_unit_of_time():
    per = 365.25
    days = survival(["age", "dose"], CUTS, follow_up=1000.0)
    years = survival(["age", "dose"], [cut / per for cut in CUTS], follow_up=1000.0 / per)
    theta = HAZARD_THETA + np.array([6.0, 6.0, 6.0, 0.0, 0.0])
    subjects = [np.stack([time, DIED], axis=1) for time in (TIMES, TIMES / per)]
    found, other = (
        np.asarray(per_record(model, theta, X[:, :2], y))
        for model, y in zip((days, years), subjects, strict=True)
    )
    # A density of times in days is one in years, divided by the days in a year. rtol: float64 algebra.
    np.testing.assert_allclose(found, other - DIED * np.log(per), rtol=1e-12)
    # Without a follow-up hazards are per unit of time.
    each = theta - np.array([*[np.log(1000.0)] * 3, 0.0, 0.0])
    np.testing.assert_allclose(found, per_record(HAZARD, each, X[:, :2], subjects[0]), rtol=1e-12)
    with jax.enable_x64(True):
        record = {"x": jnp.asarray(X[0, :2]), "y": jnp.zeros(2)}
        ends = [
            np.asarray(each.plausible(jnp.asarray(theta), record)["y"]) for each in (days, years)
        ]
    np.testing.assert_allclose(ends[0][:, 0], ends[1][:, 0] * per, rtol=1e-12)


def test_the_prior_of_the_baseline_is_wider_than_that_of_hazard_ratios():
    assert HAZARD.prior_scales == (5.0, 5.0, 5.0, 1.0, 3.0)
    assert survival([], [1.5], intercept_scale=3).names == (
        "baseline (0, 1.5]",
        "baseline (1.5, ∞)",
    )


@pytest.mark.nightly(only=("<lambda>-`a` more than once-rename1",))
@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: negative_binomial(NAMES, 0.0), "dispersion is 0.0, expected a pos", "`poisson`"),
        (lambda: negative_binomial(NAMES, -1), "dispersion is -1, expected a positive", "variance"),
        (lambda: survival(["a"], [90, 90]), r"cuts is \[90, 90\], expected .* increase", "public"),
        (lambda: survival(["a"], [90, 30]), r"cuts is \[90, 30\], expected .* increase", "public"),
        (lambda: survival(["a"], [0, 30]), "cuts holds .*0.*, expected numbers above 0", "cuts ="),
        (lambda: survival(["a"], [30, np.inf]), "cuts holds .*inf.*, expected numbers", "cuts ="),
        (lambda: survival(["a", "a"], [30]), "`a` more than once", "rename"),
        (lambda: survival(["a"], [30], intercept_scale=0), "intercept_scale is 0, expect", "2.5"),
        (lambda: multivariate_linear(NAMES, ["a"]), r"outcomes is \['a'\], expected two", "cbind"),
        (lambda: multivariate_linear(NAMES, ["a", "b"], [1.0]), "1 numbers, expected 2", "order"),
        (lambda: multivariate_linear(NAMES, ["a", "b"], [1.0, 0.0]), "noise_scale is .*0.0", "2.5"),
        (lambda: multinomial(NAMES, ["a"]), r"levels is \['a'\], expected two", "reference"),
        (lambda: multinomial(NAMES, ["a", "a"]), "`a` more than once", "rename"),
    ],
)
def test_wrong_arguments_are_named_with_what_was_expected(make, message, hint):
    with pytest.raises(ModelError, match=message) as found:
        make()
    assert re.search(hint, found.value.hint)
