"""Claims about `fedvi sweep`: a grid of simulated studies, kept run by run, in one table."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedvi import errors
from fedvi.cli.main import main
from fedvi.results import sweeps
from fedvi.study.config import load_study
from tests.studies import raw_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of two sites without protection, in its folder."""
    generator = np.random.default_rng(0)
    raw = raw_study(["north", "south"], 2, schedule={"kind": "synchronous", "rounds": 2})
    for client in raw["clients"]:
        client["data"] = f"{client['name']}.csv"
        x = generator.normal(size=(40, 2))
        rows = np.column_stack([x @ [1.0, -0.5] + generator.normal(size=40), x])
        np.savetxt(tmp_path / client["data"], rows, delimiter=",", header="y,x0,x1", comments="")
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw))
    return path


def sweep(study: Path, *options: str) -> Result:
    return CliRunner().invoke(
        main, ["sweep", str(study), "--out", str(study.parent / "kept"), *options]
    )


def rows_of(study: Path, name: str) -> list[dict[str, str]]:
    with (study.parent / "kept" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_setting_and_seed_is_one_run_and_stands_in_the_tables(study: Path) -> None:
    done = sweep(study, "--set", "prior.scale=0.1,1", "--seeds", "2", "--pooled", "--json")
    assert done.exit_code == 0, done.output
    narrow, wide = json.loads(done.stdout)
    assert [row["prior.scale"] for row in (narrow, wide)] == [0.1, 1]
    assert narrow["runs"] == wide["runs"] == 2
    assert narrow["sd"] < wide["sd"]
    # Exact factors: the federation is the pooled fit.
    assert wide["width"] == pytest.approx(1.0, rel=1e-9)
    assert wide["distance"] < 1e-6
    assert [(row["prior.scale"], row["seed"]) for row in rows_of(study, "runs")] == [
        ("0.1", "3"),
        ("0.1", "4"),
        ("1", "3"),
        ("1", "4"),
    ]
    assert len(rows_of(study, "coefficients")) == 8
    drawn = (study.parent / "kept" / "coefficients.svg").read_text()
    # A panel a coefficient, and in each a mean and an interval a run.
    assert drawn.count('id="axes_') == 2
    assert "coefficients.svg" not in done.stderr


def test_what_was_run_is_not_run_again_and_a_grid_may_grow(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep(study, "--set", "prior.scale=1").exit_code == 0
    seen: list[float] = []
    simulate = sweeps.simulate

    def counted(described: Any, *rest: Any, **options: Any) -> Any:
        seen.append(described.prior.scale)
        return simulate(described, *rest, **options)

    monkeypatch.setattr(sweeps, "simulate", counted)
    assert sweep(study, "--set", "prior.scale=1,2").exit_code == 0
    assert seen == [2.0]
    # Other records are another run.
    table = study.parent / "north.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]) + "\n")
    assert sweep(study, "--set", "prior.scale=1,2").exit_code == 0
    assert seen == [2.0, 1.0, 2.0]


def test_a_sweep_that_is_stopped_goes_on_where_it_was(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate, calls = sweeps.simulate, []

    def stopped(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return simulate(*given, **options)

    monkeypatch.setattr(sweeps, "simulate", stopped)
    assert sweep(study, "--seeds", "3").exit_code != 0
    assert len(list((study.parent / "kept" / "runs").iterdir())) == 1
    assert sweep(study, "--seeds", "3").exit_code == 0
    assert len(calls) == 4
    assert len(rows_of(study, "runs")) == 3


def test_a_run_that_fails_is_told_and_leaves_the_others(study: Path) -> None:
    done = sweep(study, "--set", "data.max_records=10,100")
    assert done.exit_code == 6
    assert "1 of 2 runs failed" in done.stderr
    assert "max_records" in done.stderr
    failed, kept = rows_of(study, "runs")
    # What came to an end is drawn.
    assert (study.parent / "kept" / "coefficients.svg").exists()
    assert failed["problem"]
    assert not kept["problem"]
    # What failed is tried again.
    assert len(list((study.parent / "kept" / "runs").iterdir())) == 1


@pytest.mark.nightly
def test_numbers_that_are_hardly_meant_are_warned_of_before_anything_runs(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(*_: Any, **__: Any) -> None:
        raise errors.RunFailed("it ran")

    monkeypatch.setattr(sweeps, "simulate", runs)
    said = sweep(study, "--set", "schedule.rounds=2,100000", "--seeds", "2").stderr
    assert said.startswith("warning: schedule.rounds is 100,000")
    assert said.count("schedule.rounds is") == 1


@pytest.mark.nightly
def test_several_processes_find_what_one_does(study: Path) -> None:
    cells = sweeps.grid(load_study(study), {"prior.scale": [0.5, 1.0]}, 2)
    one, two = (
        sweeps.coefficient_rows(sweeps.sweep(cells, study.parent, study.parent / name, jobs=jobs))
        for name, jobs in (("one", 1), ("two", 2))
    )
    assert one == two


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("privacy.epsilom=1", "privacy.epsilom"),
        ("prior.scale=-1", "prior.scale is -1"),
        ("prior.scale", "--set is 'prior.scale', expected SECTION.KEY=VALUE"),
        ("scale=1", "'scale' cannot be varied"),
        ("study.seed=1,2", "seeds are given by --seeds"),
        ("clients.data=1", "'clients' is no table"),
    ],
)
def test_a_setting_that_is_none_is_refused_before_anything_runs(
    study: Path, setting: str, said: str
) -> None:
    done = sweep(study, "--set", setting)
    assert done.exit_code == errors.ConfigError("", "").exit_code
    assert said in done.stderr
    assert not (study.parent / "kept").exists()
