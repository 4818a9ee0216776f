"""Claims about a study of events out of trials, from files of wards to odds ratios, by the command line."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi.cli.main import main

# Log odds of an infection: (Intercept) at 70, age per 10, and the ward.
TRUTH = {"(Intercept)": -1.2, "age": 0.4, "ward[surgery]": 0.8}
STUDY = """
[study]
name = "infections"
[model]
kind = "{kind}"
formula = "{formula}"
{more}
[solver]
{solver}
[schedule]
kind = "synchronous"
rounds = {rounds}
[privacy]
{privacy}
[data]
max_records = 400
[data.schema.infected]
type = "count"
bounds = [0, 60]
missing = "drop"
[data.schema.others]
type = "count"
bounds = [0, 60]
missing = "drop"
[data.schema.ill]
type = "binary"
[data.schema.age]
type = "number"
bounds = [40, 100]
center = 70
scale = 10
[data.schema.ward]
type = "level"
levels = ["medicine", "surgery"]
[[clients]]
name = "north"
data = "north.csv"
[[clients]]
name = "south"
data = "south.csv"
"""
PAIRS = "cbind(infected, others) ~ age + ward"
OPEN = 'protection = "none"'
PROMISE = """epsilon = 100.0
delta = 1e-5
unit = "record"
relation = "add_remove"
[simulation]
insecure_seed = 1"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hospitals: a line is a week of a ward, of as many patients as there were; and each by itself."""
    path = tmp_path_factory.mktemp("hospitals")
    generator = np.random.default_rng(31)
    for client, count in (("north", 300), ("south", 200)):
        pairs, single = ["infected,others,age,ward"], ["ill,age,ward"]
        for index in range(count):
            age, ward = round(generator.uniform(50, 90), 1), ("medicine", "surgery")[index % 2]
            logit = -1.2 + 0.04 * (age - 70.0) + 0.8 * (index % 2)
            trials = int(generator.integers(0, 12))
            events = int(generator.binomial(trials, 1.0 / (1.0 + math.exp(-logit))))
            pairs.append(f"{events},{trials - events},{age},{ward}")
            single += [f"{int(which < events)},{age},{ward}" for which in range(trials)]
        # Lines that are refused where nothing is promised, and count as zero here.
        odd = ["?,3,60,surgery", ",,60,surgery"]
        (path / f"{client}.csv").write_text("\n".join(pairs + odd) + "\n")
        (path / f"{client}-single.csv").write_text("\n".join(single) + "\n")
    lines = (path / "north.csv").read_text().splitlines()
    (path / "public.csv").write_text("\n".join(lines[:101]) + "\n")
    return path


def fedvi(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def simulated(folder: Path, name: str, **said: Any) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Runs a study; returns its folder, and its table of coefficients by name."""
    raw = {"kind": "binomial", "formula": PAIRS, "more": "", "rounds": 6} | said
    text = STUDY.format(**raw)
    if raw["kind"] == "logistic":
        text = text.replace(".csv", "-single.csv").replace("max_records = 400", "")
    path, run = folder / f"{name}.toml", folder / f"run-{name}"
    path.write_text(text)
    if not run.exists():
        fedvi("simulate", path, "--out", run)
    rows = json.loads((run / "result.json").read_text())["coefficients"]
    return run, {row["name"]: row for row in rows}


def of_glm(folder: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    return simulated(folder, "glm", solver='kind = "glm"', privacy=OPEN)


@pytest.mark.nightly
def test_a_study_of_pairs_has_the_posterior_of_the_trials_as_records(folder: Path) -> None:
    _, pairs = of_glm(folder)
    single = simulated(
        folder,
        "single",
        kind="logistic",
        formula="ill ~ age + ward",
        solver='kind = "glm"',
        privacy=OPEN,
    )[1]
    assert list(pairs) == list(single) == list(TRUTH)
    for name, row in pairs.items():
        other = single[name]
        # The order of sums, and six rounds that end within 1e-7 sds.
        assert row["mean"] == pytest.approx(other["mean"], abs=1e-5 * row["sd"])
        assert row["sd"] == pytest.approx(other["sd"], rel=1e-6)
        assert row["odds_ratio"] == pytest.approx(math.exp(row["mean"]), rel=1e-12)
        # Within 4 sds of what the records were made with: fails once in 16,000 seeds.
        assert abs(row["mean"] - TRUTH[name]) < 4.0 * row["sd"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "solver",
    [
        'kind = "vips"\nclip_norm = 4.0\nrow_norm = 1.5',
        'kind = "site_release"\nclip_norm = 4.0',
        'kind = "dp_optimisation"\nclip_norm = 4.0\nsteps = 60',
    ],
    ids=["vips", "site_release", "dp_optimisation"],
)
def test_private_solvers_come_near_it_at_a_promise_that_leaves_little_noise(
    folder: Path, solver: str
) -> None:
    _, exact = of_glm(folder)
    name = solver.split('"')[1]
    more, rounds = "typical_trials = 6", 2 if name == "dp_optimisation" else 20
    run, found = simulated(folder, name, solver=solver, privacy=PROMISE, more=more, rounds=rounds)
    for key, row in exact.items():
        # ε = 100 over the run leaves noise of about 0.05 on a mean, and the seed is fixed.
        assert abs(found[key]["mean"] - row["mean"]) < 0.2
        assert found[key]["odds_ratio"] == pytest.approx(math.exp(found[key]["mean"]))
    fedvi("ledger", "verify", run / "ledger", "--recompute")


def test_the_run_is_evaluated_predicted_and_drawn_from(folder: Path, tmp_path: Path) -> None:
    run, rows = of_glm(folder)
    figures = json.loads(fedvi("evaluate", run, folder / "public.csv", "--json"))
    assert (figures["outcome"], figures["rows"]) == ("binomial", 100)
    lines = [line.split(",") for line in (folder / "public.csv").read_text().splitlines()[1:]]
    trials = sum(int(line[0]) + int(line[1]) for line in lines)
    assert sum(group["rows"] for group in figures["classes"]["groups"]) == trials
    assert figures["classes"]["auc"] > 0.55
    assert figures["numbers"]["coverage_95"] > 0.85
    text = fedvi("evaluate", run, folder / "public.csv")
    assert "trials" in text
    assert "within intervals of at least 95 %" in text

    new = tmp_path / "new.csv"
    new.write_text("age,ward\n70,medicine\n80,surgery\n")
    fedvi("predict", run, new, "--out", tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(encoding="utf-8") as file:
        first, second = list(csv.DictReader(file))
    logit = rows["(Intercept)"]["mean"]
    # Averaged over q, which is narrow: second order in its sd, 0.06.
    assert float(first["mean"]) == pytest.approx(1.0 / (1.0 + math.exp(-logit)), abs=2e-3)
    assert float(second["mean"]) > float(first["mean"])
    assert "outcome_lower" not in first

    drawn = tmp_path / "synthetic.csv"
    fedvi("synthesise", run, "--given", folder / "public.csv", "--out", drawn)
    with drawn.open(encoding="utf-8") as file:
        made = [(int(row["infected"]), int(row["others"])) for row in csv.DictReader(file)]
    assert [sum(pair) for pair in made] == [int(a) + int(b) for a, b, *_ in lines]
    assert made != [(int(a), int(b)) for a, b, *_ in lines]
    fedvi("report", run)


def test_a_count_that_is_not_whole_is_refused_where_nothing_is_promised(
    folder: Path, tmp_path: Path
) -> None:
    for client in ("north", "south"):
        (tmp_path / f"{client}.csv").write_text("infected,others,age,ward\n1.5,3,60,surgery\n")
    path = tmp_path / "study.toml"
    path.write_text(
        STUDY.format(
            kind="binomial",
            formula=PAIRS,
            more="",
            solver='kind = "glm"',
            rounds=1,
            privacy=OPEN,
        )
    )
    result = CliRunner().invoke(main, ["simulate", str(path)])
    assert result.exit_code != 0
    assert "column `infected` holds '1.5', expected a whole number" in result.output
