"""Claims about predictions of new records: closed forms, against draws made another way."""

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedvi import errors
from fedvi.expfam.gaussian import FullGaussian
from fedvi.results import predictions
from fedvi.results.predictions import predictor
from fedvi.study import build
from fedvi.study.config import parse_study
from tests import forward_models
from tests.studies import raw_study

DRAWS = 400_000
A = np.array([-1.0, 0.3, 2.0])
NUMBER = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}
COUNTED = {"type": "count", "bounds": [0, 1000]}
SCALED = {"type": "number", "bounds": [0, 200], "center": 100, "scale": 20}


def assembled(kind: str, formula: str, schema: dict[str, Any], **model: Any) -> Any:
    raw = raw_study(["c0"], 1, solver={"kind": model.pop("solver", "glm")})
    raw["model"] = {"kind": kind, "formula": formula, **model}
    raw["data"] = {"schema": schema | {"a": NUMBER}}
    own = getattr(forward_models, kind, None)
    if own is None:
        return build.assemble(parse_study(raw))
    del raw["prior"]
    return build.assemble(parse_study(raw, {kind: own}))


def gaussian(size: int) -> tuple[Any, np.ndarray]:
    """A posterior over ``size`` coefficients, and draws of it that are made here."""
    generator = np.random.default_rng(5)
    root = 0.3 * generator.normal(size=(size, size)) / np.sqrt(size) + 0.3 * np.eye(size)
    mean = generator.normal(size=size) * 0.5
    eta = FullGaussian(size).from_moments(mean, root @ root.T)
    return eta, mean + np.random.default_rng(6).normal(size=(DRAWS, size)) @ root.T


def columns(**more: Any) -> dict[str, np.ndarray]:
    return {"a": A, **more, "": np.zeros(len(A))}


def check(found: Any, drawn: np.ndarray, at: int = 0) -> None:
    """Holds the forecast of one quantity against draws [DRAWS, n] of it."""
    sd = drawn.std(axis=0)
    # Standard errors of DRAWS: of a mean sd/632; of an sd and of a 2.5 % point a few times that.
    np.testing.assert_array_less(np.abs(found.mean[:, at] - drawn.mean(axis=0)), 0.01 * sd + 1e-12)
    np.testing.assert_allclose(found.sd[:, at], sd, rtol=0.03)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(found.lower[:, at], low, atol=0.03 * sd.max())
    np.testing.assert_allclose(found.upper[:, at], high, atol=0.03 * sd.max())


def test_a_probability_is_averaged_over_the_posterior() -> None:
    assembly = assembled("logistic", "y ~ a", {"y": {"type": "binary"}})
    eta, theta = gaussian(2)
    how = predictor(assembly, eta, 0.9)
    assert (how.labels, how.needed, how.draws) == (("",), ("a",), 0)
    check(how.predict(columns()), scipy.special.expit(theta[:, :1] + theta[:, 1:] * A))


def test_of_trials_the_probability_is_predicted_whatever_their_number() -> None:
    schema = {"s": COUNTED, "f": COUNTED, "shift": NUMBER}
    assembly = assembled("binomial", "cbind(s, f) ~ a + offset(shift)", schema)
    eta, theta = gaussian(2)
    how = predictor(assembly, eta, 0.9)
    assert (how.labels, set(how.needed), how.draws) == (("",), {"a", "shift"}, 0)
    assert how.what == "probability that a trial counts among s"
    found = how.predict(columns(shift=np.array([0.5, -1.0, 0.0])))
    check(found, scipy.special.expit(theta[:, :1] + theta[:, 1:] * A + [[0.5, -1.0, 0.0]]))
    assert found.outcome_lower is None


def test_a_number_is_told_in_the_unit_of_the_file_with_the_noise_of_a_new_one() -> None:
    assembly = assembled("linear", "y ~ a", {"y": SCALED}, noise_scale=10, solver="exact")
    eta, theta = gaussian(2)
    found = predictor(assembly, eta, 0.9).predict(columns())
    drawn = 100.0 + 20.0 * (theta[:, :1] + theta[:, 1:] * A)
    check(found, drawn)
    spread = np.hypot(drawn.std(axis=0), 10.0)
    reach = scipy.stats.norm.ppf(0.95) * spread
    np.testing.assert_allclose(found.outcome_upper[:, 0], drawn.mean(axis=0) + reach, rtol=2e-3)
    np.testing.assert_allclose(found.outcome_lower[:, 0], drawn.mean(axis=0) - reach, rtol=2e-3)


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_a_count_has_its_expected_number_and_an_interval_of_whole_ones(kind: str) -> None:
    more: dict[str, Any] = {"dispersion": 0.5} if kind == "negative_binomial" else {}
    years = {"type": "number", "bounds": [1, 50], "center": 0, "scale": 1}
    assembly = assembled(kind, "y ~ a + offset(log(years))", {"y": COUNTED, "years": years}, **more)
    eta, theta = gaussian(2)
    how = predictor(assembly, eta, 0.9)
    assert set(how.needed) == {"years", "a"}
    at = np.array([2.0, 1.0, 20.0])  # rates are per largest exposure
    found = how.predict(columns(years=50.0 * at))
    rates = np.exp(theta[:, :1] + theta[:, 1:] * A + np.log(at))
    check(found, rates)
    generator = np.random.default_rng(7)
    heard = rates * generator.gamma(2.0, 0.5, rates.shape) if more else rates
    counts = generator.poisson(heard)
    for end, told in ((0.05, found.outcome_lower), (0.95, found.outcome_upper)):
        assert (told == np.floor(told)).all()
        # The least k with P(Y ≤ k) ≥ p; 3e-3 for the error of the share of DRAWS.
        assert ((counts <= told[:, 0]).mean(axis=0) > end - 3e-3).all()
        assert ((counts <= told[:, 0] - 1).mean(axis=0) < end + 3e-3).all()


def test_a_number_of_little_noise_is_as_unsure_as_its_mean() -> None:
    assembly = assembled("linear", "y ~ a", {"y": SCALED}, noise_scale=0.2, solver="exact")
    eta, theta = gaussian(2)
    found = predictor(assembly, eta, 0.95).predict(columns())
    reach = scipy.stats.norm.ppf(0.975) * np.hypot((found.sd[:, 0]), 0.2)
    np.testing.assert_allclose(found.outcome_upper[:, 0], found.mean[:, 0] + reach, rtol=1e-8)
    np.testing.assert_allclose(found.outcome_lower[:, 0], found.mean[:, 0] - reach, rtol=1e-8)
    low, high = np.quantile(
        100.0 + 20.0 * (theta[:, :1] + theta[:, 1:] * A), [0.025, 0.975], axis=0
    )
    # As in `check`; the noise adds less than 1e-3 of an sd.
    np.testing.assert_allclose(found.outcome_lower[:, 0], low, atol=0.03 * found.sd.max())
    np.testing.assert_allclose(found.outcome_upper[:, 0], high, atol=0.03 * found.sd.max())


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_the_interval_of_a_large_count_does_not_fall_on_a_node(kind: str) -> None:
    more: dict[str, Any] = {"dispersion": 1e-4} if kind == "negative_binomial" else {}
    years = {"type": "number", "bounds": [1, 1e6], "center": 0, "scale": 1}
    assembly = assembled(kind, "y ~ a + offset(log(years))", {"y": COUNTED, "years": years}, **more)
    eta, theta = gaussian(2)
    how = predictor(assembly, eta, 0.95)
    # The first is small: its own noise is most of its interval, and few nodes do.
    found = how.predict(columns(years=1e6 * np.array([2.0, 1e5, 1e5])))
    a = theta[:, :1] + theta[:, 1:] * A + np.log([2.0, 1e5, 1e5])
    generator = np.random.default_rng(7)
    heard = np.exp(a) * (generator.gamma(1e4, 1e-4, a.shape) if more else 1.0)
    counts = generator.poisson(heard)
    for end, told in ((0.025, found.outcome_lower), (0.975, found.outcome_upper)):
        # Half a step between nodes is 0.025 sd, 0.0015 at these ends; 1e-3 for the share of DRAWS.
        assert ((counts <= told[:, 0]).mean(axis=0) > end - 2.5e-3).all()
        assert ((counts <= told[:, 0] - 1).mean(axis=0) < end + 2.5e-3).all()


def test_levels_have_probabilities_that_add_up() -> None:
    level = {"type": "level", "levels": ["none", "mild", "severe"]}
    assembly = assembled("multinomial", "y ~ a", {"y": level}, solver="gradient")
    eta, theta = gaussian(4)
    how = predictor(assembly, eta, 0.9, draws=20_000)
    found = how.predict(columns())
    assert how.labels == ("none", "mild", "severe")
    np.testing.assert_allclose(found.mean.sum(axis=1), 1.0, rtol=1e-12)
    a = theta.reshape(DRAWS, 2, 2)
    logits = np.stack([np.zeros((DRAWS, 3)), *(a[:, k, :1] + a[:, k, 1:] * A for k in (0, 1))], 2)
    drawn = scipy.special.softmax(logits, axis=2)
    for place in range(3):
        # 20,000 draws there: a standard error of sd/141.
        np.testing.assert_allclose(
            found.mean[:, place],
            drawn[:, :, place].mean(axis=0),
            atol=0.05 * drawn.std(axis=0).max(),
        )
        np.testing.assert_allclose(found.sd[:, place], drawn[:, :, place].std(axis=0), rtol=0.06)


def test_survival_falls_over_the_cuts_by_the_summed_hazard() -> None:
    schema = {
        "t": {"type": "number", "bounds": [0.01, 10], "center": 0, "scale": 1},
        "died": {"type": "binary"},
    }
    assembly = assembled("survival", "Surv(t, died) ~ a", schema, cuts=[1.0, 4.0])
    eta, theta = gaussian(4)
    how = predictor(assembly, eta, 0.9, draws=20_000)
    assert (how.labels, how.needed) == (("1", "4"), ("a",))
    found = how.predict(columns())
    risk = np.exp(theta[:, 3:] * A) / 10.0  # hazards are per follow-up
    first = np.exp(-np.exp(theta[:, :1]) * risk)
    second = first * np.exp(-3.0 * np.exp(theta[:, 1:2]) * risk)
    for place, drawn in enumerate((first, second)):
        off = np.abs(found.mean[:, place] - drawn.mean(axis=0))
        assert (off < 0.05 * drawn.std(axis=0)).all()
        np.testing.assert_allclose(found.sd[:, place], drawn.std(axis=0), rtol=0.06)
    assert (found.mean[:, 1] < found.mean[:, 0]).all()


def test_several_outcomes_have_each_their_own_unit_and_noise() -> None:
    schema = {"y": SCALED, "z": NUMBER}
    assembly = assembled(
        "multivariate_linear", "cbind(y, z) ~ a", schema, noise_scale=[10, 2.0], solver="exact"
    )
    eta, theta = gaussian(4)
    how = predictor(assembly, eta, 0.9)
    found = how.predict(columns())
    assert how.labels == ("y", "z")
    check(found, 100.0 + 20.0 * (theta[:, :1] + theta[:, 1:2] * A), 0)
    check(found, theta[:, 2:3] + theta[:, 3:] * A, 1)
    wide = (found.outcome_upper - found.outcome_lower) / (2.0 * scipy.stats.norm.ppf(0.95))
    np.testing.assert_allclose(wide[:, 1], np.hypot(found.sd[:, 1], 2.0), rtol=1e-9)


@pytest.mark.parametrize("learnt", [False, True])
def test_a_new_record_is_of_a_site_that_nobody_has_seen(learnt: bool) -> None:
    scale: Any = {"learn": True, "prior": 0.8} if learnt else 0.8
    assembly = assembled(
        "logistic", "y ~ a", {"y": {"type": "binary"}}, site_effect="intercept", site_scale=scale
    )
    eta, theta = gaussian(3 if learnt else 2)
    how = predictor(assembly, eta, 0.9, draws=20_000)
    own = np.random.default_rng(9).normal(size=(DRAWS, 1))
    own = own * (np.exp(theta[:, 2:]) if learnt else 0.8)
    drawn = scipy.special.expit(theta[:, :1] + theta[:, 1:2] * A + own)
    found = how.predict(columns())
    off = np.abs(found.mean[:, 0] - drawn.mean(axis=0))
    assert (off < (0.05 if learnt else 0.01) * drawn.std(axis=0)).all()
    np.testing.assert_allclose(found.sd[:, 0], drawn.std(axis=0), rtol=0.06 if learnt else 0.03)


@pytest.mark.numpyro
def test_a_numpyro_model_predicts_what_the_regression_it_is_predicts() -> None:
    schema = {"y": {"type": "binary"}}
    own = assembled("odds", "y ~ a", schema, solver="gradient")
    eta, _ = gaussian(2)
    exact = predictor(assembled("logistic", "y ~ a", schema), eta, 0.9).predict(columns())
    how = predictor(own, eta, 0.9, draws=20_000)
    found = how.predict(columns())
    assert how.needed == ("a",)
    # 20,000 draws: a standard error of sd/141.
    assert (np.abs(found.mean - exact.mean) < 0.05 * exact.sd).all()
    np.testing.assert_allclose(found.sd, exact.sd, rtol=0.06)
    np.testing.assert_allclose(found.lower, exact.lower, atol=0.03)


@pytest.mark.numpyro
def test_a_numpyro_number_and_count_are_in_the_units_of_the_file() -> None:
    line = assembled("line", "y ~ a", {"y": SCALED}, solver="gradient")
    eta, theta = gaussian(3)
    found = predictor(line, eta, 0.9, draws=20_000).predict(columns())
    drawn = 100.0 + 20.0 * (theta[:, :1] + theta[:, 1:2] * A)
    assert (np.abs(found.mean[:, 0] - drawn.mean(axis=0)) < 0.05 * drawn.std(axis=0)).all()
    years = {"type": "number", "bounds": [1, 50], "center": 0, "scale": 1}
    formula = "y ~ a + offset(log(years))"
    schema = {"y": COUNTED, "years": years}
    counted = assembled("counted", formula, schema, solver="gradient")
    eta, theta = gaussian(2)
    at = np.array([2.0, 1.0, 20.0])
    found = predictor(counted, eta, 0.9, draws=20_000).predict(columns(years=at))
    rates = np.exp(theta[:, :1] + theta[:, 1:] * A + np.log(at))
    assert (np.abs(found.mean[:, 0] - rates.mean(axis=0)) < 0.05 * rates.std(axis=0)).all()


@pytest.mark.numpyro
def test_a_numpyro_outcome_has_the_interval_of_its_law_over_the_posterior() -> None:
    line = assembled("line", "y ~ a", {"y": SCALED}, solver="gradient")
    eta, theta = gaussian(3)
    found = predictor(line, eta, 0.9, draws=20_000).predict(columns())
    generator = np.random.default_rng(7)
    noise = np.exp(theta[:, 2:]) * generator.standard_normal((DRAWS, len(A)))
    drawn = 100.0 + 20.0 * (theta[:, :1] + theta[:, 1:2] * A + noise)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    errors_of = []
    for told, expected in ((found.outcome_lower, low), (found.outcome_upper, high)):
        assert (np.abs(told[:, 0] - expected) < 5.0 * found.outcome_error[:, 0]).all()
        # Of a quantile: √(p(1 − p)/S) over the density there.
        near = 0.05 * drawn.std(axis=0)
        density = (np.abs(drawn - expected) < near).mean(axis=0) / (2.0 * near)
        errors_of.append(np.sqrt(0.05 * 0.95 / 20_000) / density)
    # It is made from some 60 draws around each end, and is the larger of two.
    np.testing.assert_allclose(found.outcome_error[:, 0], np.max(errors_of, axis=0), rtol=0.6)


@pytest.mark.nightly(but=("counted",))
@pytest.mark.numpyro
@pytest.mark.parametrize("name", ["counted", "scattered", "zeroed"])
def test_a_numpyro_count_has_an_interval_of_whole_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    years = {"type": "number", "bounds": [1, 50], "center": 0, "scale": 1}
    formula = "y ~ a + offset(log(years))"
    schema = {"y": COUNTED, "years": years}
    counted = assembled(f"{name}", formula, schema, solver="gradient")
    eta, theta = gaussian(2)
    at = np.array([2.0, 1.0, 20.0])
    how = predictor(counted, eta, 0.9, draws=10_000)
    found = how.predict(columns(years=at))
    rates = np.exp(theta[:, :1] + theta[:, 1:] * A + np.log(at))
    generator = np.random.default_rng(7)
    heard = rates * generator.gamma(2.0, 0.5, rates.shape) if name == "scattered" else rates
    counts = generator.poisson(heard)
    if name == "zeroed":
        counts = np.where(generator.random(counts.shape) < 1.0 / 3.0, 0, counts)
    for end, told in ((0.05, found.outcome_lower), (0.95, found.outcome_upper)):
        assert (told == np.floor(told)).all()
        # The least k with P(Y ≤ k) ≥ p; five standard errors of 10,000 draws.
        assert ((counts <= told[:, 0]).mean(axis=0) > end - 0.011).all()
        assert ((counts <= told[:, 0] - 1).mean(axis=0) < end + 0.011).all()
    # A record at a time, as with a file that is large: but for the order in which sums are taken.
    monkeypatch.setattr(predictions, "_AT_ONCE", 10_000)
    for one, other in zip(found, how.predict(columns(years=at)), strict=True):
        np.testing.assert_allclose(one[:, 0], other[:, 0], rtol=1e-12)


@pytest.mark.numpyro
def test_a_law_that_cannot_be_drawn_has_a_mean_and_no_interval_of_an_outcome() -> None:
    own = assembled("silent", "y ~ a", {"y": SCALED}, solver="gradient")
    found = predictor(own, gaussian(2)[0], 0.9).predict(columns())
    assert np.isfinite(found.mean).all()
    assert found.outcome_lower is found.outcome_upper is found.outcome_error is None


@pytest.mark.nightly(but=("heavy-2",))
@pytest.mark.numpyro
@pytest.mark.parametrize(("name", "size"), [("heavy", 2), ("wide", 3)])
def test_a_law_without_a_finite_mean_and_variance_is_told_and_gives_no_number(
    name: str, size: int
) -> None:
    own = assembled(f"{name}", "y ~ a", {"y": SCALED}, solver="gradient")
    how = predictor(own, gaussian(size)[0], 0.9)
    found = how.predict(columns())
    assert np.isnan(found.mean).all()
    assert how.unknown.startswith(f"model `{name}`: the law of `y` has no finite")
    # A regression always has one, and a NumPyro model whose law has one tells it.
    line = assembled("line", "y ~ a", {"y": SCALED}, solver="gradient")
    assert np.isfinite(predictor(line, gaussian(3)[0], 0.9).predict(columns()).sd).all()


@pytest.mark.numpyro
def test_a_law_that_does_not_know_its_mean_is_refused() -> None:
    own = assembled("cut_off", "y ~ a", {"y": SCALED}, solver="gradient")
    how = predictor(own, gaussian(2)[0], 0.9)
    with pytest.raises(errors.ModelError, match=r"the law of `y`, \w+, has no mean and variance"):
        how.predict(columns())


@pytest.mark.numpyro
@pytest.mark.parametrize(
    "column", [{"type": "binary"}, {"type": "level", "levels": ["none", "mild", "severe"]}]
)
def test_a_density_is_never_told_as_a_probability(column: dict[str, Any]) -> None:
    own = assembled("line", "y ~ a", {"y": column}, solver="gradient")
    how = predictor(own, gaussian(3)[0], 0.9)
    with pytest.raises(errors.ModelError, match=r"`y`, Normal, is continuous"):
        how.predict(columns())


def line_of(posterior: Any, level: float = 0.9) -> Any:
    """The forecast of a line with unknown noise at two records."""
    raw = {
        "study": {"name": "line"},
        "model": {"kind": "linear_unknown_noise", "coefficients": ["one", "age"]}
        | {"prior_scales": [1.0, 1.0], "row_norm": 1.4},
        "solver": {"kind": "vips", "noise_multiplier": 0.0},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"protection": "none"},
        "data": {"max_records": 64},
        "clients": [{"name": "north"}],
    }
    assembly = build.assemble(parse_study(raw))
    how = predictor(assembly, posterior(assembly.model.family), level)
    assert (how.needed, how.labels, how.draws) == (("x",), ("",), 0)
    return how.predict({"x": np.array([[1.0, 0.5], [1.0, -2.0]])})


def test_an_outcome_of_unknown_noise_has_students_law() -> None:
    m, scale = np.array([0.5, -1.0]), np.array([[4.0, 1.0], [1.0, 2.0]])

    def posterior(family: Any, shape: float = 3.0) -> Any:
        return family.from_parameters(
            m[None, None], scale[None], np.array([shape]), np.array([2.0])
        )

    found = line_of(posterior)
    # q by hand: τ ~ Gamma(3, rate 2), w = m + L⁻ᵀ·noise / √τ.
    generator = np.random.default_rng(0)
    tau = generator.gamma(3.0, 0.5, DRAWS)
    root = np.linalg.inv(np.linalg.cholesky(scale)).T
    w = m + generator.standard_normal((DRAWS, 2)) @ root.T / np.sqrt(tau)[:, None]
    drawn = w @ np.array([[1.0, 0.5], [1.0, -2.0]]).T
    check(found, drawn)
    new = drawn + generator.standard_normal(drawn.shape) / np.sqrt(tau)[:, None]
    low, high = np.quantile(new, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(found.outcome_lower[:, 0], low, atol=0.02)
    np.testing.assert_allclose(found.outcome_upper[:, 0], high, atol=0.02)
    # And by scipy, which knows the law: six degrees of freedom, scale √(β/α · (1 + xᵀΛ⁻¹x)).
    square = 1.0 + np.array([1.0, 0.5]) @ np.linalg.inv(scale) @ np.array([1.0, 0.5])
    law = scipy.stats.t(6.0, 0.0, np.sqrt(2.0 / 3.0 * square))
    assert found.outcome_upper[0, 0] == pytest.approx(law.ppf(0.95), rel=1e-12)
    # With two degrees of freedom there is no sd, with one no mean; an interval there is.
    wide = line_of(lambda family: posterior(family, 1.0))
    assert np.isinf(wide.sd).all()
    assert np.isfinite(wide.mean).all()
    assert np.isnan(line_of(lambda family: posterior(family, 0.5)).mean).all()


def test_each_record_is_predicted_by_itself() -> None:
    level = {"type": "level", "levels": ["none", "mild", "severe"]}
    assembly = assembled("multinomial", "y ~ a", {"y": level}, solver="gradient")
    how = predictor(assembly, gaussian(4)[0], 0.9)
    together = how.predict(columns()).mean
    for place in range(len(A)):
        alone = how.predict({"a": A[[place]], "": np.zeros(1)}).mean
        np.testing.assert_allclose(alone[0], together[place], rtol=1e-12)


def test_what_is_no_interval_or_has_no_outcome_is_refused() -> None:
    assembly = assembled("logistic", "y ~ a", {"y": {"type": "binary"}})
    with pytest.raises(errors.ConfigError, match=r"level is 1, expected"):
        predictor(assembly, gaussian(2)[0], 1.0)
    with pytest.raises(errors.ConfigError, match=r"draws is 1, expected"):
        predictor(assembly, gaussian(2)[0], 0.9, draws=1)
