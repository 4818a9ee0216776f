"""Names that look like formulas, through every command that writes a CSV."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fedvi.data.cells import Wanted
from fedvi.data.delimited import chunks
from tests import hostile
from tests.commands import succeeded as fedvi
from tests.unit.report.test_spreadsheets import is_run

COLUMN, OTHER = '=HYPERLINK("https://evil.example","a")', "@ward"
LEVELS = ["=1+1", "-a", "+cmd|' /C calc'!A0"]


def network(folder: Path) -> Path:
    """A study of a stranger, whose columns and levels are formulas; and a table of it."""
    schema = {
        "one": {"column": COLUMN, "type": "level", "levels": LEVELS},
        "two": {"column": OTHER, "type": "level", "levels": ["@x", "-1"]},
    }
    raw: dict[str, Any] = {
        "study": {"name": "census"},
        "model": {
            "kind": "discrete_network",
            "variables": ["one", "two"],
            "levels": [3, 2],
            "parents": [[], ["one"]],
        },
        "solver": {"kind": "vips"},
        "schedule": {"kind": "synchronous", "rounds": 1},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
        "data": {"max_records": 60, "schema": schema},
        "clients": [{"name": "north", "data": "north.csv"}],
    }
    with (folder / "north.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[LEVELS[k % 3], ["@x", "-1"][k % 2]] for k in range(60)]
        csv.writer(file).writerows([[COLUMN, OTHER], *rows])
    study = folder / "study.json"
    study.write_text(json.dumps(raw))
    return study


@pytest.mark.nightly
def test_no_command_writes_a_formula_into_a_csv(tmp_path: Path) -> None:
    study, run = network(tmp_path), tmp_path / "run"
    fedvi("simulate", study, "--quiet", "--out", run)
    fedvi("posterior", run, "--summary", tmp_path / "summary.csv")
    fedvi("posterior", run, "--to", tmp_path / "draws.csv", "--draws", 5)
    fedvi("synthesise", run, "--records", 40, "--out", tmp_path / "synthetic.csv")
    fedvi("report", run, "--out", tmp_path / "report", "--format", "csv")
    fedvi(
        "data",
        "split",
        tmp_path / "north.csv",
        "--clients",
        2,
        "--balanced",
        "--out",
        tmp_path / "parts",
    )
    # A regression, and identifiers that a site copies into its predictions.
    raw = hostile.study() | {"clients": [{"name": "north", "data": "numbers.csv"}]}
    (tmp_path / "numbers.csv").write_text("y,x0,x1\n" + "1,2,3\n" * 40)
    (tmp_path / "regression.json").write_text(json.dumps(raw))
    fedvi("simulate", tmp_path / "regression.json", "--quiet", "--out", tmp_path / "fitted")
    with (tmp_path / "new.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[COLUMN, "x0", "x1"], *([level, 1, 2] for level in LEVELS)])
    given = (tmp_path / "fitted", tmp_path / "new.csv", "--out", tmp_path / "predicted.csv")
    fedvi("predict", *given, "--id", COLUMN)
    files = [
        path
        for path in tmp_path.rglob("*.csv")
        if path.name not in ("north.csv", "new.csv", "numbers.csv") or "parts" in path.parts
    ]
    assert len(files) >= 8
    for path in files:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                assert not [cell for cell in row if is_run(cell)], path
    # What was written is read again: all levels of the synthetic records are the study's.
    wanted = Wanted((COLUMN, OTHER), columns=None, separator=",", private=True, rows=99)
    (table,) = chunks(tmp_path / "synthetic.csv", wanted)
    assert set(table[COLUMN]) <= set(LEVELS)
    assert set(table[OTHER]) <= {"@x", "-1"}
