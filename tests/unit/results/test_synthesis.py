"""Claims about synthetic records: outcomes have the law of their model, and cells are those of the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedvi import errors
from fedvi.data import prepare_columns
from fedvi.data.schema import parse_schema
from fedvi.expfam.gaussian import FullGaussian
from fedvi.models.outcomes.binomial import events_within
from fedvi.results.synthesis import cells, synthesise
from fedvi.study import build
from fedvi.study.config import parse_study
from tests import forward_models
from tests.studies import raw_study

COUNT = 20_000
WITHIN = 4.9 * 0.5 / np.sqrt(COUNT)  # of a proportion, false alarms below 1e-6
NUMBER = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}
SCALED = {"type": "number", "bounds": [0, 200], "center": 100, "scale": 20}
COUNTED = {"type": "count", "bounds": [0, 1000]}
FORM = "y ~ a"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A public file: a is 1 in every other record and 0 else, years are 2."""
    path = tmp_path_factory.mktemp("given") / "public.csv"
    lines = [f"{index % 2},2,p{index}" for index in range(COUNT)]
    path.write_text("\n".join(["a,years,who", *lines]) + "\n")
    return path


def assembled(kind: str, formula: str, schema: dict[str, Any], **model: Any) -> Any:
    raw = raw_study(["c0"], 1, solver={"kind": model.pop("solver", "glm")})
    raw["model"] = {"kind": kind, "formula": formula, **model}
    raw["data"] = {"schema": schema | {"a": NUMBER}}
    own = getattr(forward_models, kind, None)
    if own is None:
        return build.assemble(parse_study(raw))
    del raw["prior"]
    return build.assemble(parse_study(raw, {kind: own}))


def drawn(assembly: Any, theta: list[float], given: Path) -> dict[str, list[str]]:
    """One set at a posterior that is a point."""
    size = len(theta)
    eta = FullGaussian(size).from_moments(np.array(theta), 1e-18 * np.eye(size))
    (found,) = synthesise(assembly, eta, None, 1, 0, given)
    assert found.columns is not None
    return found.columns


def numbers(column: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of the records where a is 0, and where it is 1."""
    values = np.array(column, float)
    return values[::2], values[1::2]


def mean_within(values: np.ndarray, mean: float, sd: float) -> None:
    assert values.mean() == pytest.approx(mean, abs=5.0 * sd / np.sqrt(len(values)))


def test_a_binary_outcome_has_its_probability_and_the_cells_of_the_file(given: Path) -> None:
    schema = {"y": {"type": "binary", "column": "died", "true": ["yes"], "false": ["no"]}}
    found = drawn(assembled("logistic", FORM, schema), [-1.0, 2.0], given)
    assert list(found) == [
        "a",
        "died",
    ]  # and nothing of the given file that the model does not read
    assert set(found["died"]) == {"yes", "no"}
    low, high = numbers([str(int(cell == "yes")) for cell in found["died"]])
    mean_within(low, scipy.special.expit(-1.0), 0.5)
    mean_within(high, scipy.special.expit(1.0), 0.5)


def test_a_number_is_in_the_unit_of_the_file_within_its_bounds(given: Path) -> None:
    assembly = assembled("linear", FORM, {"y": SCALED}, noise_scale=10, solver="exact")
    low, high = numbers(drawn(assembly, [0.0, 1.0], given)["y"])
    mean_within(low, 100.0, 10.0)
    mean_within(high, 120.0, 10.0)
    assert low.std() == pytest.approx(10.0, rel=0.05)
    beyond, _ = numbers(drawn(assembly, [9.0, 0.0], given)["y"])
    assert (beyond == 200.0).all()


def test_sets_have_noise_of_their_own(given: Path) -> None:
    assembly = assembled("linear", FORM, {"y": SCALED}, noise_scale=10, solver="exact")
    eta = FullGaussian(2).from_moments(np.zeros(2), 1e-18 * np.eye(2))
    one, other = (
        np.array(each.columns["y"], float) for each in synthesise(assembly, eta, None, 2, 0, given)
    )  # type: ignore[index]
    # Of independent records, false alarms below 1e-6.
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.9 / np.sqrt(COUNT)


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_counts_have_the_rate_and_the_spread_of_their_law(kind: str, given: Path) -> None:
    more: dict[str, Any] = {"dispersion": 0.5} if kind == "negative_binomial" else {}
    years = {"type": "number", "bounds": [1, 50], "center": 0, "scale": 1}
    formula = "y ~ a + offset(log(years))"
    assembly = assembled(kind, formula, {"y": COUNTED, "years": years}, **more)
    for values, rate in zip(
        # The rate is that of the largest exposure, 50 years.
        numbers(drawn(assembly, [0.5 + np.log(25.0), 1.0], given)["y"]),
        np.exp([0.5, 1.5]),
        strict=True,
    ):
        variance = rate + (0.5 * rate**2 if more else 0.0)
        mean_within(values, rate, np.sqrt(variance))
        assert values.var() == pytest.approx(variance, rel=0.15)


def test_events_are_drawn_anew_for_the_trials_that_are_given(tmp_path: Path) -> None:
    given = tmp_path / "public.csv"
    lines = [f"{index % 2},{index % 3},{4 - index % 3}" for index in range(COUNT)]
    given.write_text("\n".join(["a,died,lived", *lines]) + "\n")
    schema = {"s": {**COUNTED, "column": "died"}, "f": {**COUNTED, "column": "lived"}}
    assembly = assembled("binomial", "cbind(s, f) ~ a", schema)
    found = drawn(assembly, [-1.0, 2.0], given)
    assert set(found) == {"a", "died", "lived"}
    died, lived = np.array(found["died"], float), np.array(found["lived"], float)
    np.testing.assert_array_equal(died + lived, 4.0)
    for values, logit in zip(numbers(found["died"]), (-1.0, 1.0), strict=True):
        chance = scipy.special.expit(logit)
        variance = 4.0 * chance * (1.0 - chance)
        mean_within(values, 4.0 * chance, np.sqrt(variance))
        assert values.var() == pytest.approx(variance, rel=0.1)


def test_events_cannot_be_drawn_without_a_number_of_trials(given: Path) -> None:
    assembly = assembled("binomial", "cbind(s, f) ~ a", {"s": COUNTED, "f": COUNTED})
    with pytest.raises(errors.DataError, match=r"no column `s` in the first line"):
        drawn(assembly, [-1.0, 2.0], given)


def test_levels_have_their_probabilities(given: Path) -> None:
    level = {
        "type": "level",
        "levels": ["none", "mild", "severe"],
        "codes": {"0": "none", "1": "mild", "2": "severe"},
    }
    assembly = assembled("multinomial", FORM, {"y": level}, solver="gradient")
    found = numbers(drawn(assembly, [0.5, -1.0, 1.0, 0.0], given)["y"])
    for values, logits in zip(found, ([0.0, 0.5, 1.0], [0.0, -0.5, 1.0]), strict=True):
        chances = scipy.special.softmax(logits)
        for place, chance in enumerate(chances):
            mean_within(values == place, chance, 0.5)


def test_times_have_the_survival_of_their_hazards_and_are_censored(given: Path) -> None:
    schema = {
        "t": {"type": "number", "bounds": [0.001, 5], "center": 1, "scale": 2},
        "died": {"type": "binary"},
    }
    assembly = assembled("survival", "Surv(t, died) ~ a", schema, cuts=[1.0, 3.0])
    hazards = np.array([0.3, 0.1, 0.5])
    found = drawn(assembly, [*np.log(5.0 * hazards), np.log(2.0)], given)  # per follow-up
    times, events = numbers(found["t"]), numbers(found["died"])
    for time, event, risk in zip(times, events, (1.0, 2.0), strict=True):
        for at in (0.5, 1.0, 2.0, 3.0, 4.0, 4.99):
            spent = np.clip(at, [0.0, 1.0, 3.0], [1.0, 3.0, 9.0]) - [0.0, 1.0, 3.0]
            mean_within(time > at, np.exp(-risk * (hazards @ spent)), 0.5)
        assert ((time == 5.0) == (event == 0)).all()


def test_several_outcomes_have_each_their_noise(given: Path) -> None:
    assembly = assembled(
        "multivariate_linear",
        "cbind(y, z) ~ a",
        {"y": SCALED, "z": NUMBER},
        noise_scale=[10, 2.0],
        solver="exact",
    )
    found = drawn(assembly, [0.0, 1.0, 3.0, 4.0], given)
    _, y = numbers(found["y"])
    _, z = numbers(found["z"])
    mean_within(y, 120.0, 10.0)
    mean_within(z, 7.0, 2.0)
    assert z.std() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("learnt", [False, True])
def test_each_set_is_of_a_site_of_its_own(learnt: bool, tmp_path: Path) -> None:
    given = tmp_path / "public.csv"
    given.write_text("a\n" + "0\n" * 500)
    scale: Any = {"learn": True, "prior": 2.0} if learnt else 2.0
    assembly = assembled(
        "logistic", FORM, {"y": {"type": "binary"}}, site_effect="intercept", site_scale=scale
    )
    theta = [0.0, 0.0] + ([np.log(2.0)] if learnt else [])
    size = len(theta)
    eta = FullGaussian(size).from_moments(np.array(theta), 1e-18 * np.eye(size))
    sets = list(synthesise(assembly, eta, None, 60, 0, given))
    shares = np.array([np.mean(np.array(each.columns["y"], float)) for each in sets])  # type: ignore[index]
    effects = scipy.special.logit(np.clip(shares, 1e-4, 1 - 1e-4))
    # An sd of 60 draws: a standard error of 9 %.
    assert effects.std(ddof=1) == pytest.approx(2.0, rel=0.4)


@pytest.mark.nightly
@pytest.mark.numpyro
def test_a_numpyro_outcome_is_drawn_for_the_given_columns(given: Path) -> None:
    own = assembled("line", FORM, {"y": SCALED}, solver="gradient")
    # slopes of the constant and of a, and log of the noise
    low, high = numbers(drawn(own, [0.0, 1.0, np.log(0.5)], given)["y"])
    mean_within(low, 100.0, 10.0)
    mean_within(high, 120.0, 10.0)
    assert high.std() == pytest.approx(10.0, rel=0.05)
    years = {"type": "number", "bounds": [1, 50], "center": 0, "scale": 1}
    formula = "y ~ a + offset(log(years))"
    schema = {"y": COUNTED, "years": years}
    counted = assembled("counted", formula, schema, solver="gradient")
    low, high = numbers(drawn(counted, [0.5, 1.0], given)["y"])
    mean_within(low, 2.0 * np.exp(0.5), 2.0)
    mean_within(high, 2.0 * np.exp(1.5), 3.0)


def test_cells_read_back_as_what_was_drawn() -> None:
    raw = {
        "age": {"type": "number", "bounds": [18, 100], "center": 50, "scale": 10},
        "visits": COUNTED,
        "sex": {"type": "binary", "true": ["m", "male"], "false": ["f"]},
        "cp": {"type": "level", "levels": ["a", "b"], "codes": {"1": "a", "2": "b", "3": "b"}},
    }
    schema = parse_schema(raw, private=True)
    values = {
        "age": np.array([-1.0, 0.25, 2.0]),
        "visits": np.array([0.0, 3.0, 12.0]),
        "sex": np.array([0.0, 1.0, 1.0]),
        "cp": np.array([0, 1, 1]),
    }
    table = {name: cells(schema[name], column) for name, column in values.items()}
    read = prepare_columns(table, schema, list(schema), private=True, where="here")
    assert read.valid.all()
    for name, column in values.items():
        np.testing.assert_array_equal(read.records[name], column)


def test_what_cannot_be_drawn_is_refused_in_words(given: Path, tmp_path: Path) -> None:
    assembly = assembled("logistic", FORM, {"y": {"type": "binary"}})
    eta = FullGaussian(2).from_moments(np.zeros(2), np.eye(2))
    with pytest.raises(errors.ConfigError, match=r"no file gives these"):
        synthesise(assembly, eta, 10)
    with pytest.raises(errors.ConfigError, match=r"10 records are asked for beside --given"):
        synthesise(assembly, eta, 10, given=given)
    with pytest.raises(errors.ConfigError, match=r"sets is 0"):
        synthesise(assembly, eta, 10, sets=0)
    (tmp_path / "odd.csv").write_text("a\n1\nx\n")
    with pytest.raises(errors.DataError, match=r"record 2: `a` holds 'x'"):
        synthesise(assembly, eta, None, given=tmp_path / "odd.csv")


def test_trials_stay_though_bounds_cut_the_events() -> None:
    """As draws of the binomial law of which those within both bounds are kept."""
    random = np.random.default_rng(0)
    trials, chance = np.full(20_000, 12.0), np.full(20_000, 0.3)
    found = events_within(trials, chance, [(0, 4), (2, 10)], random)
    assert set(found) == {2.0, 3.0, 4.0}
    drawn = random.binomial(12, 0.3, 200_000)
    kept = drawn[(drawn >= 2) & (drawn <= 4)]
    for count in (2, 3, 4):
        # Four standard errors of a share of 20,000.
        assert abs(np.mean(found == count) - np.mean(kept == count)) < 0.015
