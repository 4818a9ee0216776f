"""Claims about predictions held against test records: closed forms, and integrals done another way."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given

from fedvi.cli import _results
from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError, ModelError
from fedvi.expfam.gamma import Gamma
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian
from fedvi.models.glm import regression
from fedvi.results import evaluation
from fedvi.results.evaluation import evaluate
from fedvi.results.scores import area_under_curve
from fedvi.run import server_plan
from fedvi.server.core import protocol
from fedvi.study import build
from fedvi.study.config import parse_study
from tests.studies import raw_study

NUMBER = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}
SHARP = 1e-9  # sd of a posterior that is a point, to any figure here


def assembled(kind: str, formula: str, schema: dict[str, Any], **model: Any) -> Any:
    raw = raw_study(["c0"], 1, solver={"kind": "glm"})
    if kind == "multinomial":
        raw["solver"] = {"kind": "gradient"}
    raw["model"] = {"kind": kind, "formula": formula, **model}
    raw["data"] = {"schema": schema | {"a": NUMBER}}
    return build.assemble(parse_study(raw))


LOGISTIC = assembled("logistic", "y ~ a", {"y": {"type": "binary"}})


def records(x: Any, y: Any) -> ArraySource:
    return ArraySource(
        {"x": np.asarray(x, float), "y": np.asarray(y, float)}, np.ones(len(x), bool)
    )


def with_constant(a: Any) -> np.ndarray:
    return np.stack([np.ones(len(a)), np.asarray(a, float)], axis=1)


def point(*theta: float) -> Any:
    return FullGaussian(len(theta)).from_moments(np.array(theta), SHARP**2 * np.eye(len(theta)))


# Classes


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_the_area_under_the_curve_counts_pairs_and_ties_by_half(found: list[Any]) -> None:
    score, positive = (np.array(column) for column in zip(*found, strict=True))
    pairs = [(p > n) + 0.5 * (p == n) for p in score[positive] for n in score[~positive]]
    area = area_under_curve(score.astype(float), positive, ~positive)
    # Where there is no pair, there is no probability.
    assert (area is None) == (not pairs)
    assert area is None or area == pytest.approx(np.mean(pairs), rel=1e-12)


def test_a_sharp_logistic_posterior_gives_figures_that_can_be_done_by_hand() -> None:
    # θ = (0, log 3): probabilities 1/4, 1/2, 1/2 and 3/4, of which the second pair is a tie.
    source = records(with_constant([-1, 0, 0, 1]), [0, 0, 1, 1])
    found = evaluate(LOGISTIC, point(0.0, math.log(3.0)), source)
    assert (found.rows, found.left_out, found.error, found.draws) == (4, 0, None, 0)
    likelihood = (2 * math.log(3 / 4) + 2 * math.log(1 / 2)) / 4
    assert found.mean_log_likelihood == pytest.approx(likelihood, rel=1e-8)
    classes = found.classes
    assert classes is not None
    # Pairs: (1/2, 1/4) and both of 3/4 win, the tie counts one half.
    assert classes.auc == pytest.approx(3.5 / 4, rel=1e-12)
    assert classes.brier == pytest.approx((2 / 16 + 2 / 4) / 4, rel=1e-8)
    assert classes.majority == 0.5
    # Equal scores stay in one group: 1/4 never, 1/2 once of two, 3/4 always.
    assert [group.rows for group in classes.groups] == [1, 2, 1]
    assert [group.observed for group in classes.groups] == [0.0, 0.5, 1.0]
    assert classes.calibration_error == pytest.approx((1 / 4 + 2 * 0 + 1 / 4) / 4, rel=1e-8)


def test_probabilities_are_averaged_over_the_posterior_not_taken_at_its_mean() -> None:
    mean, covariance = np.array([0.5, -1.0]), np.array([[1.0, 0.3], [0.3, 2.0]])
    x, y = with_constant([-2.0, 0.3, 1.5]), np.array([1.0, 0.0, 1.0])
    logs = []
    for row, label in zip(x, y, strict=True):
        location, spread = row @ mean, math.sqrt(row @ covariance @ row)

        def density(a: float, sign: float = 2 * label - 1, at: Any = (location, spread)) -> float:
            return float(scipy.stats.norm.pdf(a, *at) / (1.0 + math.exp(-sign * a)))

        logs.append(math.log(scipy.integrate.quad(density, -30, 30, limit=200)[0]))
    family = FullGaussian(2)
    found = evaluate(LOGISTIC, family.from_moments(mean, covariance), records(x, y))
    # 64 nodes at a predictor of sd 2.6 or less
    assert found.mean_log_likelihood == pytest.approx(np.mean(logs), rel=1e-7)
    diagonal = DiagonalGaussian(2).from_moments(mean, np.diagonal(covariance))
    mean_field = dataclasses.replace(LOGISTIC, family=DiagonalGaussian(2))
    flat = evaluate(mean_field, diagonal, records(x, y)).mean_log_likelihood
    full = family.from_moments(mean, np.diag(np.diagonal(covariance)))
    assert flat == pytest.approx(evaluate(LOGISTIC, full, records(x, y)).mean_log_likelihood)


def test_an_offset_moves_every_probability_of_a_record() -> None:
    schema = {"y": {"type": "binary"}, "shift": NUMBER}
    assembly = assembled("logistic", "y ~ a + offset(shift)", schema)
    outcomes = np.array([[1.0, math.log(3.0)], [0.0, -math.log(3.0)]])
    found = evaluate(assembly, point(0.0, 0.0), records(with_constant([1, 2]), outcomes))
    assert found.mean_log_likelihood == pytest.approx(math.log(3 / 4), rel=1e-8)
    assert found.classes is not None
    assert found.classes.accuracy == 1.0


def test_levels_have_an_accuracy_and_a_brier_score_over_all_classes() -> None:
    levels = {"type": "level", "levels": ["low", "middle", "high"]}
    assembly = assembled("multinomial", "stage ~ a", {"stage": levels})
    # Odds 1 : 2 : 1 whatever a.
    q = point(math.log(2.0), 0.0, 0.0, 0.0)
    found = evaluate(assembly, q, records(with_constant([1, 2, 3]), [1, 1, 2]), draws=2)
    classes = found.classes
    assert classes is not None
    assert (classes.accuracy, classes.majority) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    right, wrong = 2 / 16 + 1 / 4, 1 / 16 + 1 / 4 + 9 / 16
    assert classes.brier == pytest.approx((2 * right + wrong) / 3, rel=1e-6)
    assert classes.auc is None
    expected = (2 * math.log(1 / 2) + math.log(1 / 4)) / 3
    assert found.mean_log_likelihood == pytest.approx(expected, rel=1e-6)


# Numbers and counts


def test_numbers_are_predicted_in_the_unit_of_the_file_with_honest_intervals() -> None:
    schema = {"y": {"type": "number", "bounds": [-1e6, 1e6], "center": 5, "scale": 10}}
    assembly = assembled("linear", "y ~ a", schema, noise_scale=5)
    mean, covariance = np.array([0.2, 1.0]), np.diag([0.3, 0.1])
    generator = np.random.default_rng(5)
    x = with_constant(generator.normal(size=4000))
    sd = np.sqrt(((x @ covariance) * x).sum(axis=1) + 0.25)
    y = x @ mean + sd * generator.normal(size=4000)
    found = evaluate(assembly, FullGaussian(2).from_moments(mean, covariance), records(x, y))
    expected = scipy.stats.norm.logpdf(10 * y + 5, 10 * (x @ mean) + 5, 10 * sd).mean()
    assert found.mean_log_likelihood == pytest.approx(expected, rel=1e-9)
    numbers = found.numbers
    assert numbers is not None
    assert numbers.rmse == pytest.approx(10 * np.sqrt(((y - x @ mean) ** 2).mean()), rel=1e-12)
    assert numbers.spread == pytest.approx(10 * y.std(), rel=1e-12)
    # 4 standard errors of a share of 4,000: a false alarm in 16,000, and the seed is fixed.
    assert numbers.coverage_50 == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 4000))
    assert numbers.coverage_95 == pytest.approx(0.95, abs=4 * math.sqrt(0.0475 / 4000))


class Waiting:
    """Times of mean e^a, of which no more than the density is said."""

    conjugate = False

    def log_density(self, a: Any, y: Any) -> Any:
        return self.derivatives(a, y)[0]

    def derivatives(self, a: Any, y: Any) -> tuple[Any, Any, Any]:
        ratio = y * jnp.exp(-a)
        return -a - ratio, ratio - 1.0, -ratio


def test_an_outcome_that_says_no_more_than_its_density_is_held_against_that_alone() -> None:
    scaled = {**NUMBER, "scale": 10}
    assembly = assembled("linear", "y ~ a", {"y": scaled})
    names = assembly.design.names
    own = dataclasses.replace(assembly, model=regression(names, 2.5, None, Waiting(), False))
    found = evaluate(own, point(0.5, 1.0), records(with_constant([-1.0, 1.0]), [0.4, 3.0]))
    assert (found.outcome, found.density_per, found.numbers) == ("other", "file", None)
    law = scipy.stats.expon.logpdf([4.0, 30.0], scale=10 * np.exp([-0.5, 1.5]))
    assert found.mean_log_likelihood == pytest.approx(law.mean(), rel=1e-6)


@pytest.mark.parametrize("dispersion", [None, 0.5])
def test_counts_lie_in_intervals_that_scipy_draws(dispersion: float | None) -> None:
    schema = {
        "y": {"type": "count", "bounds": [0, 1000]},
        "years": {**NUMBER, "bounds": [0.01, 50]},
    }
    extra = {} if dispersion is None else {"dispersion": dispersion}
    kind = "poisson" if dispersion is None else "negative_binomial"
    assembly = assembled(kind, "y ~ a + offset(log(years))", schema, **extra)
    generator = np.random.default_rng(6)
    x, years = with_constant(generator.normal(size=300)), generator.uniform(1.0, 4.0, 300)
    mean = np.exp(x @ [0.4, 0.3]) * years
    if dispersion is None:
        law = scipy.stats.poisson(mean)
    else:
        law = scipy.stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))
    y = law.rvs(random_state=generator)
    source = records(x, np.stack([y, np.log(years)], axis=1))
    found = evaluate(assembly, point(0.4, 0.3), source)
    assert found.mean_log_likelihood == pytest.approx(law.logpmf(y).mean(), rel=1e-6)
    numbers = found.numbers
    assert numbers is not None
    # What is left beyond the last count is 1e-6.
    assert numbers.rmse == pytest.approx(np.sqrt(((y - mean) ** 2).mean()), rel=1e-3)
    for share, coverage in ((0.5, numbers.coverage_50), (0.95, numbers.coverage_95)):
        low, high = law.ppf((1 - share) / 2), law.ppf((1 + share) / 2)
        assert coverage == pytest.approx(((y >= low) & (y <= high)).mean(), abs=1e-12)
        assert coverage >= share - 4 * math.sqrt(share * (1 - share) / 300)


# Events out of trials

PAIR = {name: {"type": "count", "bounds": [0, 1000]} for name in ("s", "f")}
BINOMIAL = assembled("binomial", "cbind(s, f) ~ a", PAIR)


def test_trials_have_the_figures_of_as_many_yes_or_no_records() -> None:
    generator = np.random.default_rng(11)
    a, trials = np.repeat(generator.normal(size=40), 2), generator.integers(0, 6, 80)
    events = generator.binomial(trials, 0.4)
    x, y = with_constant(a), np.stack([events, trials - events], axis=1)
    q = FullGaussian(2).from_moments(np.array([-0.2, 0.7]), np.diag([0.2, 0.1]))
    found = evaluate(BINOMIAL, q, records(x, y))
    place = np.repeat(np.arange(80), trials)
    single = np.concatenate([[1.0] * int(s) + [0.0] * int(f) for s, f in y])
    one = evaluate(LOGISTIC, q, records(x[place], single)).classes
    assert (found.outcome, found.rows, found.draws) == ("binomial", 80, 0)
    assert found.classes is not None
    assert one is not None
    for name in ("accuracy", "majority", "auc", "brier"):
        assert getattr(found.classes, name) == pytest.approx(getattr(one, name), rel=1e-9)
    groups = found.classes.groups
    assert sum(group.rows for group in groups) == trials.sum()
    observed = sum(group.rows * group.observed for group in groups)
    assert observed == pytest.approx(events.sum(), rel=1e-12)
    off = sum(group.rows * abs(group.predicted - group.observed) for group in groups)
    assert found.classes.calibration_error == pytest.approx(off / trials.sum(), rel=1e-12)
    # Tenths of the trials, as near as records let them be: of 5 trials at most, and each score twice.
    assert all(group.rows <= trials.sum() / 10 + 10 for group in groups)


def test_events_lie_in_intervals_that_scipy_draws_given_their_trials() -> None:
    schema = {**PAIR, "shift": NUMBER}
    assembly = assembled("binomial", "cbind(s, f) ~ a + offset(shift)", schema)
    generator = np.random.default_rng(12)
    x, shift = with_constant(generator.normal(size=300)), generator.normal(size=300)
    trials = generator.integers(0, 30, 300)
    law = scipy.stats.binom(trials, 1.0 / (1.0 + np.exp(-(x @ [0.4, 0.3] + shift))))
    events = law.rvs(random_state=generator)
    y = np.stack([events, trials - events, shift], axis=1)
    found = evaluate(assembly, point(0.4, 0.3), records(x, y))
    assert found.mean_log_likelihood == pytest.approx(law.logpmf(events).mean(), rel=1e-6)
    assert found.density_per == ""
    numbers, some = found.numbers, trials > 0
    assert numbers is not None
    residual = (events - law.mean())[some]
    assert numbers.rmse == pytest.approx(np.sqrt((residual**2).mean()), rel=1e-6)
    assert numbers.spread == pytest.approx(events[some].std(), rel=1e-12)
    for share, coverage in ((0.5, numbers.coverage_50), (0.95, numbers.coverage_95)):
        low, high = law.ppf((1 - share) / 2), law.ppf((1 + share) / 2)
        inside = ((events >= low) & (events <= high))[some]
        # One record whose probability is at an end to the last bit.
        assert coverage == pytest.approx(inside.mean(), abs=1.5 / some.sum())


def test_without_any_trial_the_likelihood_alone_is_told() -> None:
    found = evaluate(BINOMIAL, point(0.0, 0.0), records(with_constant([1, 2]), np.zeros((2, 2))))
    assert (found.classes, found.numbers) == (None, None)
    assert found.mean_log_likelihood == pytest.approx(0.0, abs=1e-12)


def test_two_counts_of_a_linear_model_are_densities_of_numbers() -> None:
    assembly = assembled("multivariate_linear", "cbind(s, f) ~ a", PAIR)
    found = evaluate(assembly, point(*[0.0] * 4), records(with_constant([1]), [[1.0, 2.0]]), 10)
    assert (found.outcome, found.density_per) == ("other", "file")


# Draws


def test_draws_say_how_far_off_they_may_be() -> None:
    assembly = assembled("multivariate_linear", "cbind(u, v) ~ a", {"u": NUMBER, "v": NUMBER})
    family = FullGaussian(4)
    mean = np.array([0.1, 0.5, -0.3, 0.2])
    root = np.tril(np.random.default_rng(7).normal(size=(4, 4))) / 4
    covariance = root @ root.T + 0.05 * np.eye(4)
    generator = np.random.default_rng(8)
    x, y = with_constant(generator.normal(size=50)), generator.normal(size=(50, 2))
    logs = []
    for row, outcome in zip(x, y, strict=True):
        design = np.kron(np.eye(2), row)
        law = scipy.stats.multivariate_normal(
            design @ mean, design @ covariance @ design.T + np.eye(2)
        )
        logs.append(law.logpdf(outcome))
    q = family.from_moments(mean, covariance)
    errors = []
    for seed in range(4):
        found = evaluate(assembly, q, records(x, y), draws=2000, seed=seed)
        assert found.outcome == "other"
        assert found.error is not None
        errors.append((found.mean_log_likelihood - np.mean(logs)) / found.error)
    # 4 standard errors: a false alarm in 4,000 for four seeds, which are fixed.
    assert np.abs(errors).max() < 4.0
    # And the error is no overstatement: the rms of four standard normals is below 0.15 once in 10,000.
    assert np.sqrt(np.mean(np.square(errors))) > 0.15


def test_survival_is_the_likelihood_of_the_subject_over_all_intervals() -> None:
    schema = {"time": {**NUMBER, "bounds": [1e-6, 100]}, "event": {"type": "binary"}}
    assembly = assembled("survival", "Surv(time, event) ~ a", schema, cuts=[1.0])
    q = point(math.log(50.0), math.log(200.0), 0.0)  # per follow-up, which is 100
    found = evaluate(assembly, q, records([[1.0], [1.0]], [[0.5, 1.0], [2.0, 0.0]]), draws=2)
    # An event at 0.5 under hazard 1/2; at risk for 1 under 1/2 and for 1 under 2.
    expected = (math.log(0.5) - 0.25 - 0.5 - 2.0) / 2
    assert found.mean_log_likelihood == pytest.approx(expected, rel=1e-6)
    assert found.classes is None
    assert found.numbers is None


def mapped(x: Any, y: Any = None) -> None:
    """Logistic regression, as somebody would write it for NumPyro."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


@pytest.mark.numpyro
def test_a_numpyro_model_is_averaged_over_draws_to_the_same_figures() -> None:
    raw = raw_study(["c0"], 1, kind="logistic", solver={"kind": "gradient"})
    raw["model"] = {"kind": "mapped", "formula": "y ~ a"}
    raw["data"] = {"schema": {"y": {"type": "binary"}, "a": NUMBER}}
    del raw["prior"]
    assembly = build.assemble(parse_study(raw, {"mapped": mapped}))
    generator = np.random.default_rng(9)
    x = with_constant(generator.normal(size=300))
    y = (generator.random(300) < 0.5).astype(float)
    q = FullGaussian(2).from_moments(np.array([0.3, -0.5]), 0.1 * np.eye(2))
    exact, drawn = evaluate(LOGISTIC, q, records(x, y)), evaluate(assembly, q, records(x, y))
    assert (exact.draws, drawn.draws) == (0, 1000)
    assert drawn.error is not None
    # 4 standard errors: a false alarm in 16,000, and the seed is fixed.
    assert abs(drawn.mean_log_likelihood - exact.mean_log_likelihood) < 4 * drawn.error
    assert 0.0 < drawn.error < 0.01
    assert drawn.classes is not None
    assert exact.classes is not None
    assert drawn.classes.brier == pytest.approx(exact.classes.brier, abs=4 * drawn.error)


def spread(x: Any, y: Any = None) -> None:
    """A law of all numbers."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 0.5), obs=y)


def told(x: Any, y: Any = None) -> None:
    """The same as a term, of which nobody knows what it is of."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.factor("y", dist.Normal(x @ b, 0.5).log_prob(y))


def of_numpyro(name: str, outcome: dict[str, Any]) -> Any:
    raw = raw_study(["c0"], 1, kind="logistic", solver={"kind": "gradient"})
    raw["model"] = {"kind": name, "formula": "y ~ a"}
    raw["data"] = {"schema": {"y": outcome, "a": NUMBER}}
    del raw["prior"]
    return build.assemble(parse_study(raw, {name: globals()[name]}))


@pytest.mark.numpyro
def test_a_density_is_of_the_unit_of_the_file_or_says_that_it_is_not() -> None:
    scaled = {**NUMBER, "center": 5, "scale": 10}
    generator = np.random.default_rng(10)
    x, y = with_constant(generator.normal(size=40)), generator.normal(size=40)
    expected = scipy.stats.norm.logpdf(10 * y + 5, 10 * (x @ [0.2, 1.0]) + 5, 5.0).mean()
    found = evaluate(of_numpyro("spread", scaled), point(0.2, 1.0), records(x, y), draws=2)
    assert (found.outcome, found.density_per) == ("other", "file")
    assert found.mean_log_likelihood == pytest.approx(expected, rel=1e-6)
    own = evaluate(of_numpyro("told", scaled), point(0.2, 1.0), records(x, y), draws=2)
    assert own.density_per == "model"
    assert own.mean_log_likelihood == pytest.approx(expected + math.log(10), rel=1e-6)
    # Of several numbers each has its own unit.
    schema = {"u": scaled, "v": {**scaled, "scale": 3}}
    two = assembled("multivariate_linear", "cbind(u, v) ~ a", schema)
    pairs = evaluate(two, point(0.0, 0.0, 0.0, 0.0), records(x, np.zeros((40, 2))), draws=2)
    assert pairs.density_per == "file"
    density = -math.log(2 * math.pi) - math.log(30)
    assert pairs.mean_log_likelihood == pytest.approx(density, rel=1e-6)
    assert evaluate(LOGISTIC, point(0.0, 0.0), records(x, y > 0)).density_per == ""


@pytest.mark.numpyro
def test_a_density_of_a_binary_outcome_is_refused_and_of_a_count_no_law_of_counts() -> None:
    x, y = with_constant([0.0, 1.0]), [0.0, 1.0]
    refused = of_numpyro("spread", {"type": "binary"})
    with pytest.raises(ModelError, match=r"law of `y`, Normal, is continuous"):
        evaluate(refused, point(0.2, 1.0), records(x, y), draws=2)
    count = of_numpyro("spread", {"type": "count", "bounds": [0, 9]})
    found = evaluate(count, point(0.2, 1.0), records(x, y), draws=2)
    assert (found.outcome, found.numbers, found.density_per) == ("other", None, "file")


# What is read


def test_records_that_do_not_fit_the_schema_are_left_out_and_counted(tmp_path: Path) -> None:
    raw = raw_study(["c0"], 1, kind="logistic", solver={"kind": "dp_optimisation", "steps": 2})
    raw["solver"] |= {"noise_multiplier": 5.0, "sampler": "full"}
    raw["privacy"] = {"epsilon": 50.0, "delta": 1e-5, "relation": "substitute", "unit": "patient"}
    raw["data"] |= {"unit_column": "patient", "max_records": 10}
    assembly = build.assemble(parse_study(raw))
    # Nobody says whose these rows are.
    (tmp_path / "test.csv").write_text("y,x0\n1,2\nmaybe,2\n0,\n0,-1\n")
    source = evaluation.read_records(assembly, tmp_path / "test.csv")
    found = evaluate(assembly, point(math.log(3.0)), source)
    assert (found.rows, found.left_out) == (2, 2)
    (tmp_path / "fitting.csv").write_text("y,x0\n1,2\n0,-1\n")
    fitting = evaluation.read_records(assembly, tmp_path / "fitting.csv")
    assert found._replace(left_out=0) == evaluate(assembly, point(math.log(3.0)), fitting)
    (tmp_path / "empty.csv").write_text("y,x0\nmaybe,2\n")
    with pytest.raises(DataError, match="no record that counts"):
        evaluate(assembly, point(0.0), evaluation.read_records(assembly, tmp_path / "empty.csv"))


def test_a_servers_folder_is_a_run_too(tmp_path: Path) -> None:
    assembly = build.assemble(parse_study(raw_study(["c0", "c1"], 2)))
    plan = server_plan.make(assembly)
    spec = server_plan.to_spec(plan)
    server_plan.keep(plan, tmp_path)
    with pytest.raises(ConfigError, match="has the run ended"):
        evaluation.read_run(tmp_path)
    _results.write(plan, spec, protocol.initial_state(spec), tmp_path)
    run = evaluation.read_run(tmp_path)
    assert run.assembly.study.digest == assembly.study.digest
    assert np.array_equal(run.posterior.J, assembly.prior.J)
    with pytest.raises(ConfigError, match=r"neither study\.json nor plan\.json"):
        evaluation.read_run(tmp_path / "result")


def test_a_posterior_beside_another_study_is_refused(tmp_path: Path) -> None:
    for size in (1, 2):
        assembly = build.assemble(parse_study(raw_study(["c0"], size)))
        plan = server_plan.make(assembly)
        (tmp_path / str(size)).mkdir()
        server_plan.keep(plan, tmp_path / str(size))
        spec = server_plan.to_spec(plan)
        _results.write(plan, spec, protocol.initial_state(spec), tmp_path / str(size))
    (tmp_path / "2" / "result" / "posterior.npz").replace(
        tmp_path / "1" / "result" / "posterior.npz"
    )
    with pytest.raises(ConfigError, match="files of two runs"):
        evaluation.read_run(tmp_path / "1")


def test_a_family_that_is_no_gaussian_and_too_few_draws_are_refused() -> None:
    other = dataclasses.replace(LOGISTIC, family=Gamma(2))
    with pytest.raises(ConfigError, match="family is Gamma"):
        evaluate(other, point(0.0, 0.0), records(with_constant([1]), [1]))
    with pytest.raises(ConfigError, match="draws is 1, expected 2"):
        evaluate(LOGISTIC, point(0.0, 0.0), records(with_constant([1]), [1]), draws=1)
