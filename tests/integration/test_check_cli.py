"""Claims about `fedvi check`: what a plan cannot do is told before anybody runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedvi.cli.main import main
from fedvi.study.build import assemble
from fedvi.study.config import parse_study
from tests.sites import study_file
from tests.studies import raw_study
from tests.unit.planning.test_widths import raw_plan


def check(folder: Path, epsilon: float, *options: str, **solver: Any) -> Result:
    raw = raw_study(
        ["north"],
        2,
        solver={"kind": "dp_optimisation", "steps": 20, "clip_norm": 1.0, **solver},
        schedule={"kind": "sequential", "rounds": 2},
        privacy={"epsilon": epsilon, "delta": 1e-5, "unit": "record", "relation": "substitute"},
    )
    raw["data"]["max_records"] = 5000
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    result = CliRunner().invoke(main, ["check", str(path), *options])
    assert result.exit_code == 0, result.output
    return result


def test_whoever_checks_is_told_how_widths_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw_plan()))
    said = CliRunner().invoke(main, ["check", str(path)]).stdout
    assert f"fedvi plan {path}" in said
    # Not of a study that no plan is made of.
    assert "fedvi plan" not in check(tmp_path, 1.0).stdout


def test_a_promise_that_no_noise_can_spend_is_warned_of_with_the_largest_that_can(
    tmp_path: Path,
) -> None:
    said = " ".join(check(tmp_path, 50.0).stderr.split())
    # e^ε times how far the tables of noise are off passes δ at about 24.
    assert "warning: privacy.epsilon is 50, and this plan can spend no more than 24" in said
    told = json.loads(check(tmp_path, 50.0, "--json").stdout)
    (warning,) = (text for text in told["warnings"] if "can spend no more than" in text)
    largest = float(warning.split("promise at most ")[1].split(",")[0])
    assert largest == pytest.approx(told["epsilon"]["substitute"], rel=0.005)
    # What it says to promise is spent.
    told = json.loads(check(tmp_path, largest, "--json").stdout)
    assert told["epsilon"]["substitute"] > 0.98 * largest
    assert not [text for text in told["warnings"] if "can spend" in text]
    # Every command that builds the study says it, not `check` alone.
    raw = json.loads((tmp_path / "study.json").read_text())
    raw["privacy"]["epsilon"] = 50.0
    assert warning in assemble(parse_study(raw)).warnings


def test_noise_that_is_given_need_not_spend_the_promise(tmp_path: Path) -> None:
    assert "can spend no more" not in check(tmp_path, 50.0, noise_multiplier=20.0).stderr


def test_simulate_warns_of_all_that_check_warns_of_each_once(tmp_path: Path) -> None:
    path = study_file(tmp_path)
    raw = json.loads(path.read_text())
    raw["data"]["max_records"] = 5
    path.write_text(json.dumps(raw))
    checked = CliRunner().invoke(main, ["check", str(path)])
    assert checked.exit_code == 0, checked.output
    told = " ".join(checked.output.split())
    run = CliRunner().invoke(main, ["simulate", str(path), "--quiet"])
    assert run.exit_code == 0, run.output
    warned = [line for line in run.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == len(set(warned))
    of_study = [line for line in warned if "more records than" not in line]
    assert all(line in told for line in of_study)
    assert len(of_study) == told.count("warning: ")
    for words in ("the noise probably drowns", "data.max_records is 5"):
        assert sum(words in line for line in of_study) == 1
