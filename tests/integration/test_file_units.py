"""Claims about units: what is fitted does not depend on that of the file, and what is told is in it."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.results import draws
from fedvi.results.evaluation import evaluate, read_records, read_run
from fedvi.results.outcome import as_dict
from fedvi.results.predictions import predictor
from fedvi.run.simulate import simulate
from fedvi.study.build import assemble
from fedvi.study.config import load_study, parse_study
from tests.commands import invoked
from tests.commands import succeeded as fedvi

SITES = {"a": 900, "b": 700, "c": 500}
AGE = {"type": "number", "bounds": [20, 95], "center": 60, "scale": 10, "unit": "years"}
GRADE = {"type": "level", "levels": ["I", "II", "III"]}
# Two ways to count the same thing, and how many of the second are one of the first.
DAYS = {"days": 1.0, "weeks": 7.0, "years": 365.25}

Table = dict[str, Sequence[Any]]


def survived(random: np.random.Generator, count: int) -> Table:
    """A constant hazard of 1/2600 a day; age, arm and grade multiply it."""
    age, arm = random.normal(58, 12, count).clip(20, 95).round(), random.integers(0, 2, count)
    grade = random.choice(["I", "II", "III"], count, p=[0.15, 0.6, 0.25])
    along = 0.15 * (age - 60) / 10 - 0.5 * arm + 0.5 * (grade == "II") + 1.1 * (grade == "III")
    time, end = random.exponential(2600 * np.exp(-along)), random.uniform(300, 2800, count)
    seen = np.minimum(time, end).clip(1).round()
    return {"time": seen, "event": (time <= end) * 1, "age": age, "arm": arm, "grade": grade}


def measured(random: np.random.Generator, count: int) -> Table:
    """A blood pressure in mmHg: men 8.6 above women, and a residual sd of 11."""
    age, dose = random.normal(62, 12, count).clip(20, 95).round(), random.uniform(0, 10, count)
    sex = random.choice(["f", "m"], count)
    mean = 128 + 4 * (age - 60) / 10 + 8.6 * (sex == "m") - 0.35 * (dose - 5)
    pressure = (mean + random.normal(0, 11, count)).clip(60, 220).round(1)
    return {"sbp": pressure, "age": age, "sex": sex, "dose": dose.round(2)}


def counted(random: np.random.Generator, count: int) -> Table:
    """Events of a rate of 0.3 a year, over times that are fixed beforehand."""
    age, time = random.normal(58, 12, count).clip(20, 95).round(), random.uniform(20, 1000, count)
    rate = 0.3 / 365.25 * np.exp(0.2 * (age - 60) / 10)
    return {"falls": random.poisson(rate * time), "time": time.round(), "age": age}


def write(folder: Path, make: Any, column: str = "", per: float = 1.0) -> Path:
    """Writes the sites' tables; one column is counted in another unit, of which one is ``per``."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(9)
    for site, count in SITES.items():
        table = make(random, count)
        table |= {column: [float(value) / per for value in table[column]]} if column else {}
        with (folder / f"{site}.csv").open("w", newline="") as file:
            lines: Iterable[Sequence[Any]] = zip(*table.values(), strict=True)
            csv.writer(file).writerows([list(table), *lines])
    return folder


def fitted(folder: Path, model: Mapping[str, Any], schema: Mapping[str, Any], solver: str) -> Any:
    raw = {
        "study": {"name": "units"},
        "model": model,
        "prior": {"scale": 2.5},
        "solver": {"kind": solver},
        "schedule": {"kind": "synchronous", "rounds": 8 if solver == "glm" else 1},
        "privacy": {"protection": "none"},
        "data": {"schema": schema},
        "clients": [{"name": site, "data": f"{site}.csv"} for site in SITES],
    }
    return simulate(parse_study(raw), folder, pooled=solver == "exact")


def in_unit(folder: Path, unit: str) -> Any:
    per = DAYS[unit]
    write(folder, survived, "time", per)
    time = {"type": "number", "bounds": [0.5 / per, 2800 / per], "unit": unit}
    schema = {"time": time, "event": {"type": "binary"}, "age": AGE, "arm": {"type": "binary"}}
    formula, cuts = "Surv(time, event) ~ age + arm + grade", [365 / per, 1095 / per]
    model = {"kind": "survival", "formula": formula, "cuts": cuts}
    return fitted(folder, model, schema | {"grade": GRADE}, "glm")


def rows_of(result: Any) -> list[dict[str, Any]]:
    return list(as_dict(result)["coefficients"])


@pytest.mark.nightly
def test_survival_in_days_weeks_and_years_is_one_study(tmp_path: Path) -> None:
    told, likelihoods, chances = {}, {}, {}
    for unit, per in DAYS.items():
        result = in_unit(tmp_path / unit, unit)
        assembly = result.assembly
        told[unit] = rows_of(result)
        assert [row["unit"] for row in told[unit][:3]] == [f"per {unit[:-1]}"] * 3
        records = read_records(assembly, tmp_path / unit / "a.csv")
        found = evaluate(assembly, result.posterior, records, draws=50)
        seen = float(records.flat().records["y"][:, 1].mean())
        # A density of times in days is one in years, divided by the days in a year.
        likelihoods[unit] = found.mean_log_likelihood - seen * math.log(per)
        assert found.density_per == "file"
        one = {"age": np.zeros(1), "arm": np.zeros(1), "grade": np.zeros(1, int), "": np.zeros(1)}
        forecast = predictor(assembly, result.posterior, 0.9, draws=50).predict(one)
        chances[unit] = forecast.mean
        # Draws are told as the table is.
        drawn = draws.flat(draws.named(assembly, result.posterior, 2000, 0))
        for row in told[unit]:
            assert abs(drawn[row["name"]].mean() - row["mean"]) < 0.1 * row["sd"]
    for unit, per in DAYS.items():
        for day, other in zip(told["days"], told[unit], strict=True):
            shift = math.log(per) if "baseline" in day["name"] else 0.0
            assert abs(day["mean"] + shift - other["mean"]) < 1e-6 * day["sd"]
            assert other["sd"] == pytest.approx(day["sd"], rel=1e-6)
        assert likelihoods[unit] == pytest.approx(likelihoods["days"], abs=1e-9)
        np.testing.assert_allclose(chances[unit], chances["days"], rtol=1e-9)
    true = [*[-math.log(2600)] * 3, 0.15, -0.5, 0.5, 1.1]
    for row, value in zip(told["days"], true, strict=True):
        assert abs(row["mean"] - value) < 3.0 * row["sd"]


@pytest.mark.nightly(but=("days",))
@pytest.mark.parametrize("unit", ["days", "years"])
def test_a_survival_that_the_command_drafts_finds_the_truth_in_either_unit(
    tmp_path: Path, unit: str
) -> None:
    per = DAYS[unit]
    write(tmp_path / "study", survived, "time", per)
    stated = [f"time=number:{0.5 / per}..{2800 / per}", "event=binary", "arm=binary"]
    stated += ["age=number:20..95", "grade=level:I,II,III"]
    flags = [item for column in stated for item in ("--column", column)]
    flags += ["--formula", "Surv(time, event) ~ age + arm + grade", "--per", "age=10 from 60"]
    run = drafted(tmp_path, "survival", flags)
    rows = json.loads((run / "result.json").read_text())["coefficients"]
    true = [math.log(per / 2600), 0.15, -0.5, 0.5, 1.1]
    for row, value in zip(rows, true, strict=True):
        assert abs(row["mean"] - value) < 3.0 * row["sd"]
    assert rows[2]["hazard_ratio"] == pytest.approx(math.exp(-0.5), rel=0.2)


def drafted(folder: Path, kind: str, flags: Sequence[str]) -> Path:
    """Drafts a study without noise beside its tables, and runs it; returns the folder of the run."""
    given = ["--yes", "--kind", kind, "--clients", ",".join(SITES), "--protection", "none", *flags]
    study, run = folder / "study" / "study.toml", folder / "run"
    fedvi("init", folder / "study", *given)
    fedvi("simulate", study, "--quiet", "--out", run)
    return run


@pytest.mark.nightly
def test_an_event_at_the_end_of_follow_up_counts_in_days_and_in_years(tmp_path: Path) -> None:
    found = {}
    for unit in ("days", "years"):
        random, per = np.random.default_rng(3), DAYS["years"] / DAYS[unit]

        def visits(_: Any, count: int, random: Any = random, per: float = per) -> Table:
            arm = random.integers(0, 2, count)
            year = 1 + np.floor(random.exponential(4.0 * np.exp(0.5 * arm)))
            return {"time": np.minimum(year, 5) * per, "died": (year <= 5) * 1, "arm": arm}

        folder = write(tmp_path / unit, visits)
        time = {"type": "number", "bounds": [0.5 * per, 5 * per], "unit": unit}
        schema = {"time": time, "died": {"type": "binary"}, "arm": {"type": "binary"}}
        model = {"kind": "survival", "formula": "Surv(time, died) ~ arm", "cuts": [4 * per]}
        found[unit] = rows_of(fitted(folder, model, schema, "glm"))
    for day, year in zip(found["days"], found["years"], strict=True):
        shift = math.log(365.25) if "baseline" in day["name"] else 0.0
        assert abs(day["mean"] + shift - year["mean"]) < 1e-6 * day["sd"]
    # Of those without the event after four visits, 1 − exp(−0.25) have it at the fifth.
    last = found["years"][1]
    assert abs(last["mean"] - math.log(1.0 - math.exp(-0.25))) < 3.0 * last["sd"]


PRESSURE = {"age": AGE, "sex": {"type": "level", "levels": ["f", "m"]}}
PRESSURE |= {"dose": {"type": "number", "bounds": [0, 10]}}


def of_pressure(folder: Path, per: float, unit: str, formula: str, **model: Any) -> Any:
    write(folder, measured, "sbp", per)
    sbp = {"type": "number", "bounds": [60 / per, 220 / per], "unit": unit}
    kind = {"kind": "linear", "formula": formula, "noise_scale": 11 / per}
    return fitted(folder, kind | model, {"sbp": sbp} | PRESSURE, "exact")


@pytest.mark.parametrize(
    ("formula", "true"),
    [
        ("sbp ~ age + sex + dose", [128.0, 4.0, 8.6, -0.35 * 5]),
        ("sbp ~ 0 + sex + age + dose", [128.0, 136.6, 4.0, -0.35 * 5]),
    ],
)
def test_linear_outcomes_are_told_in_the_unit_of_the_file(
    tmp_path: Path, formula: str, true: list[float]
) -> None:
    result = of_pressure(tmp_path / "a", 1.0, "mmHg", formula)
    other = of_pressure(tmp_path / "b", 10.0, "cmHg", formula)
    rows, again = rows_of(result), rows_of(other)
    for row, same, value in zip(rows, again, true, strict=True):
        assert abs(row["mean"] - value) < 3.0 * row["sd"]
        assert abs(row["mean"] - 10.0 * same["mean"]) < 1e-6 * row["sd"]
        assert row["sd"] == pytest.approx(10.0 * same["sd"], rel=1e-6)
        assert row["pooled_mean"] == pytest.approx(row["mean"], abs=1e-6 * row["sd"])
        assert row["unit"].startswith("mmHg")
        assert same["unit"] == row["unit"].replace("mmHg", "cmHg")
    units = {row["name"]: row["unit"] for row in rows}
    assert units["age"] == "mmHg per 10 years from 60"
    # The least squares fit of numbers as the files have them, with a prior of 2.5 × 80 mmHg.
    tables = [
        np.genfromtxt(tmp_path / "a" / f"{site}.csv", delimiter=",", names=True, dtype=None)
        for site in SITES
    ]
    x = np.concatenate(
        [
            np.stack(
                [np.ones(len(t)), (t["age"] - 60) / 10, t["sex"] == "m", (t["dose"] - 5) / 5], 1
            )
            for t in tables
        ]
    )
    y = np.concatenate([t["sbp"] for t in tables])
    if formula.startswith("sbp ~ 0"):
        x = np.stack([1.0 - x[:, 2], x[:, 2], x[:, 1], x[:, 3]], axis=1)
    before = np.where([name.startswith("sex[") or name == "(Intercept)" for name in units], 140, 0)
    before = np.where([name == "sex[m]" and "(Intercept)" in units for name in units], 0, before)
    precision = x.T @ x / 11**2 + np.eye(4) / 200**2
    mean = np.linalg.solve(precision, x.T @ y / 11**2 + before / 200**2)
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    np.testing.assert_allclose([row["mean"] for row in rows], mean, atol=1e-6)
    np.testing.assert_allclose([row["sd"] for row in rows], sd, rtol=1e-6)


def test_several_outcomes_have_the_unit_of_each(tmp_path: Path) -> None:
    write(tmp_path, measured)
    schema = {"sbp": {"type": "number", "bounds": [60, 220], "unit": "mmHg"}, **PRESSURE}
    model = {"kind": "multivariate_linear", "formula": "cbind(sbp, dose) ~ sex"}
    rows = rows_of(fitted(tmp_path, model | {"noise_scale": [11, 3]}, schema, "exact"))
    told = {row["name"]: (row["mean"], row["unit"]) for row in rows}
    assert told["sbp: sex[m]"] == (pytest.approx(8.6, abs=2.0), "mmHg")
    assert told["sbp: (Intercept)"] == (pytest.approx(128.8, abs=2.0), "mmHg")
    assert told["dose: (Intercept)"] == (pytest.approx(5.0, abs=0.5), "units of dose")


def test_what_a_run_tells_of_a_linear_outcome_is_in_one_unit(tmp_path: Path) -> None:
    write(tmp_path / "study", measured)
    stated = ["sbp=number:60..220", "age=number:20..95", "sex=level:f,m", "dose=number:0..10"]
    flags = [item for column in stated for item in ("--column", column)]
    run = drafted(tmp_path, "linear", [*flags, "--formula", "sbp ~ age + sex + dose"])
    text = (tmp_path / "study" / "study.toml").read_text()
    assert "noise_scale = 40 " in text
    assert "2.5 half-widths of the bounds of sbp = 200" in text
    assert "200 units of sbp" in fedvi("check", tmp_path / "study" / "study.toml").output
    plan = json.loads(fedvi("plan", tmp_path / "study" / "study.toml", "--json").output)
    result = json.loads((run / "result.json").read_text())
    for planned, row, prior in zip(
        plan["coefficients"], result["coefficients"], result["prior"], strict=True
    ):
        assert planned["prior_sd"] == prior["sd"] == pytest.approx(200.0)
        assert 0.5 < planned["sd"] / row["sd"] < 2.0
    assert result["prior"][0]["mean"] == pytest.approx(140.0)
    for site in result["influence"]:
        assert abs(site["alone"][2]["mean"] - 8.6) < 4.0 * site["alone"][2]["sd"]
    fedvi("report", run, "--out", tmp_path / "report")
    with (tmp_path / "report" / "coefficients.csv").open() as file:
        listed = list(csv.DictReader(file))
    assert [row["prior_sd"] for row in listed] == ["200.0"] * 4
    assert abs(float(listed[2]["mean"]) - 8.6) < 3.0 * float(listed[2]["sd"])
    said = (tmp_path / "report" / "report.md").read_text()
    assert "a higher sbp, in units of sbp," in said
    assert "prior sd of a coefficient: 200 units of sbp" in said
    # A posterior that another version fitted in other units is no posterior of this result.
    result["coefficients"][0]["mean"] = 0.1
    (run / "result.json").write_text(json.dumps(result))
    done = invoked("predict", run, tmp_path / "study" / "a.csv", "--out", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert "the mean of (Intercept) is 12" in done.stderr
    with pytest.raises(errors.ConfigError, match=r"result\.json says 0\.1"):
        read_run(run)


@pytest.mark.nightly(but=("poisson-falls ~ age",))
@pytest.mark.parametrize("formula", ["falls ~ age", "falls ~ 0 + sex + age"])
@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_the_unit_of_an_exposure_moves_the_intercept_alone(
    tmp_path: Path, kind: str, formula: str
) -> None:
    found = {}
    for unit in ("days", "years"):
        per = DAYS[unit]

        def table(random: np.random.Generator, count: int) -> Table:
            return counted(random, count) | {"sex": random.choice(["f", "m"], count)}

        folder = write(tmp_path / unit, table, "time", per)
        time = {"type": "number", "bounds": [10 / per, 1000 / per], "outside": "drop"}
        schema = {"falls": {"type": "count", "bounds": [0, 100]}, "time": time | {"unit": unit}}
        schema |= {"age": AGE, "sex": {"type": "level", "levels": ["f", "m"]}}
        model: dict[str, Any] = {"kind": kind, "formula": f"{formula} + offset(log(time))"}
        model |= {"dispersion": 0.1} if kind == "negative_binomial" else {}
        found[unit] = rows_of(fitted(folder, model, schema, "glm"))
    for day, year in zip(found["days"], found["years"], strict=True):
        shift = 0.0 if day["name"] == "age" else math.log(365.25)
        assert abs(day["mean"] + shift - year["mean"]) < 1e-6 * day["sd"]
        assert year["sd"] == pytest.approx(day["sd"], rel=1e-6)
        if shift:
            assert (day["unit"], year["unit"]) == ("per day", "per year")
            assert abs(year["mean"] - math.log(0.3)) < 4.0 * year["sd"]


def test_a_known_noise_that_is_of_another_unit_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    stated = ["sbp=number:60..220", "age=number:20..95"]
    flags = [item for column in stated for item in ("--column", column)]
    flags += ["--formula", "sbp ~ age", "--setting", "noise_scale=0.5"]
    given = ["--yes", "--kind", "linear", "--clients", "a", "--protection", "none", *flags]
    fedvi("init", tmp_path / "study", *given)
    assembly = assemble(load_study(tmp_path / "study" / "study.toml"))
    (warning,) = (line for line in assembly.warnings if "noise_scale" in line)
    assert "model.noise_scale is 0.5: it is the sd of a record around its mean" in warning
    assert warning.endswith("write 40")
