"""Claims about regressions in which sites differ: what the joint model is, and what is refused."""

import math

import jax
import numpy as np
import pytest
import scipy.stats

from fedvi import errors, models
from fedvi.models.base import Model, gaussian_prior
from fedvi.models.site_effects import SiteEffects, WithScales, site_effects
from fedvi.typing import ROWS, SITE

NAMES = ["(Intercept)", "age", "sex"]
RECORD = {"x": np.array([1.0, 0.4, -1.2]), "y": np.array(1.0)}


def model(**options):
    return site_effects(models.logistic(NAMES, intercept_scale=5.0), **options)


def test_theta_holds_what_sites_share_alone():
    assert model(scale=0.5).names == tuple(NAMES)
    learnt = model(columns=["(Intercept)", "age"], scale=[0.5, 2.0], learnt=True)
    assert learnt.names == (*NAMES, "log τ: (Intercept)", "log τ: age")
    assert learnt.size == 5
    assert isinstance(learnt, Model)
    assert isinstance(learnt.joint(), Model)


def test_equal_settings_make_equal_models():
    assert model(scale=0.5) == model(scale=0.5)
    assert len({model(scale=0.5), model(scale=0.5), model(scale=0.6)}) == 2


def test_no_solver_can_take_it_for_a_product_over_records():
    with pytest.raises(errors.ModelError, match="share its effects"):
        model().log_likelihood(np.zeros(3), RECORD)


@pytest.mark.parametrize("learnt", [False, True])
def test_the_prior_of_theta_is_gaussian_and_exact(learnt):
    found = gaussian_prior(model(scale=0.5, learnt=learnt))
    assert found is not None
    h, precision = found
    assert np.allclose(
        np.diagonal(precision), [1 / 25, 1 / 6.25, 1 / 6.25, *([1.0] if learnt else [])]
    )
    assert np.allclose(h[3:], [math.log(0.5)] if learnt else [])


def test_with_a_known_scale_the_effects_are_further_coefficients():
    both = model(columns=["(Intercept)", "sex"], scale=[0.5, 0.2])
    joint, theta = both.joint(), np.array([0.2, -0.3, 0.4, 1.1, -0.7])
    record = both.widened(RECORD)
    assert record["x"].tolist() == [1.0, 0.4, -1.2, 1.0, -1.2]
    assert joint.names[3:] == ("site effect: (Intercept)", "site effect: sex")
    logit = RECORD["x"] @ theta[:3] + 1.1 - 0.7 * -1.2
    with jax.enable_x64(True):
        assert float(joint.log_likelihood(theta, record)) == pytest.approx(
            -np.log1p(np.exp(-logit))
        )
        own = float(joint.log_prior(theta)) - float(both.log_prior(theta[:3]))
    assert own == pytest.approx(scipy.stats.norm.logpdf([1.1, -0.7], 0.0, [0.5, 0.2]).sum())


@pytest.mark.parametrize("base", ["logistic", "survival"])
def test_the_two_forms_of_a_learnt_scale_are_one_model(base):
    """In u and in v = u / τ: equal likelihoods, and densities that differ by the Jacobian τᴷ."""
    made = models.logistic(NAMES) if base == "logistic" else models.survival(NAMES[1:], cuts=[1.0])
    effects = site_effects(made, ["(Intercept)", "age"], 0.7, learnt=True)
    record = (
        RECORD if base == "logistic" else {"x": np.array([0.4, -1.2]), "y": np.array([1.7, 1.0])}
    )
    record = effects.widened(record)
    u, standard = WithScales(effects), WithScales(effects, standard=True)
    shared = np.random.default_rng(0).normal(size=effects.size)
    tau, own = np.exp(shared[-2:]), np.array([0.8, -0.5])
    with jax.enable_x64(True):
        here, there = np.r_[shared, own], np.r_[shared, own / tau]
        assert float(u.log_likelihood(here, record)) == pytest.approx(
            float(standard.log_likelihood(there, record))
        )
        assert float(u.log_prior(here)) == pytest.approx(
            float(standard.log_prior(there)) - np.log(tau).sum()
        )
        assert u.constrain(here)["effects"] == pytest.approx(own)
        assert standard.constrain(there)["effects"] == pytest.approx(own)
        assert u.constrain(here)["site_scale"] == pytest.approx(tau)


def test_a_frailty_multiplies_the_hazard_in_every_interval():
    base = models.survival(["age"], cuts=[1.0, 2.0])
    effects = site_effects(base, scale=0.4)
    record = {"x": np.array([0.3]), "y": np.array([2.5, 1.0])}
    theta = np.array([-1.0, -0.5, 0.2, 0.6])
    with jax.enable_x64(True):
        found = float(effects.joint().log_likelihood(np.r_[theta, 0.9], effects.widened(record)))
        # All log hazards of the baseline are 0.9 larger.
        expected = float(base.log_likelihood(theta + np.array([0.9, 0.9, 0.9, 0.0]), record))
    assert found == pytest.approx(expected)


def test_a_covariate_of_a_survival_model_finds_its_column():
    effects = site_effects(models.survival(["age", "dose"], cuts=[1.0]), ["dose"])
    assert effects.widened({"x": np.array([[0.3, 7.0]])})["x"].tolist() == [[0.3, 7.0, 7.0]]


def test_records_of_several_sites_have_their_effects_in_places_of_their_own():
    effects = site_effects(models.linear(["a"]), ["(Intercept)", "a"])
    pooled = SiteEffects(effects.base, effects.labels, effects.places, effects.scales, sites=3)
    wide = pooled.widened({"x": np.array([[5.0], [7.0]]), SITE: np.array([2, 0])})
    assert set(wide) == {"x"}
    assert wide["x"].tolist() == [[5, 0, 0, 0, 0, 1, 5], [7, 1, 7, 0, 0, 0, 0]]
    assert len(pooled.joint().names) == 7


def test_a_unit_of_several_rows_is_widened_row_by_row():
    effects = site_effects(models.linear(["a"]), ["a"])
    rows = {"x": np.arange(6.0).reshape(2, 3, 1), ROWS: np.ones((2, 3), bool)}
    wide = effects.widened(rows)
    assert wide["x"].shape == (2, 3, 2)
    assert np.array_equal(wide["x"][..., 0], wide["x"][..., 1])
    assert wide[ROWS] is rows[ROWS]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": ["agee"]}, "no coefficient of the model"),
        ({"columns": []}, "expected one or more different columns"),
        ({"columns": ["age", "age"]}, "expected one or more different columns"),
        ({"scale": 0.0}, "expected a positive finite number"),
        ({"scale": -1.0}, "expected a positive finite number"),
        ({"scale": [1.0, 2.0]}, "has 2 numbers, expected 1"),
    ],
)
def test_what_sites_cannot_differ_by_is_refused(options, words):
    with pytest.raises(errors.ModelError, match=words):
        model(**options)


def test_sites_may_differ_in_a_model_of_trials():
    both = site_effects(models.binomial(NAMES), scale=0.5)
    record = both.widened({"x": RECORD["x"], "y": np.array([3.0, 2.0])})
    theta = np.array([0.2, -0.3, 0.4, 1.1])
    a = RECORD["x"] @ theta[:3] + 1.1
    with jax.enable_x64(True):
        found = both.joint().log_likelihood(theta, record)
    expected = scipy.stats.binom.logpmf(3, 5, 1.0 / (1.0 + math.exp(-a)))
    assert float(found) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "base",
    [models.multinomial(["a"], ["low", "high"]), models.multivariate_linear(["a"], ["u", "v"])],
    ids=["multinomial", "multivariate"],
)
def test_outcomes_of_several_numbers_are_refused(base):
    with pytest.raises(errors.ModelError, match="single linear predictor"):
        site_effects(base)
