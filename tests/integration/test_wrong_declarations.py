"""What happens where a declaration is wrong: the rows of the table in docs/guides/troubleshooting.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import invoked as fedvi

PROMISE = {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
HEAD = "who,y,age,sex\n"
GOOD = "".join(f"p{i},{i % 2},{20 + i},{'fm'[i % 3 % 2]}\n" for i in range(40))


def written(folder: Path, privacy: dict[str, Any] | None, rows: str, **data: Any) -> Path:
    """Writes a study of two sites, and its files; the first has ``rows``."""
    for name, text in (("a", HEAD + rows), ("b", HEAD + GOOD)):
        (folder / f"{name}.csv").write_text(text)
    columns = {
        "y": {"type": "binary"},
        "age": {"type": "number", "bounds": [18, 100]},
        "sex": {"type": "level", "levels": ["f", "m"]},
    }
    study = {
        "study": {"name": "declared", "seed": 1},
        "model": {"kind": "logistic", "formula": "y ~ age + sex"},
        "prior": {"scale": 1.0},
        "solver": {"kind": "glm" if privacy is None else "site_release"},
        "schedule": {"kind": "synchronous", "rounds": 2},
        "privacy": {"protection": "none"} if privacy is None else privacy,
        "data": {"max_records": 50, "schema": columns} | data,
        "clients": [{"name": name, "data": f"{name}.csv"} for name in "ab"],
    }
    path = folder / "study.json"
    path.write_text(json.dumps(study))
    return path


def inspected(study: Path) -> str:
    done = fedvi("data", "inspect", study, "--data", study.with_name("a.csv"))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_with_a_promise_no_cell_stops_a_run(tmp_path: Path) -> None:
    bad = "q,1,999,m\nq,1,old,m\nq,1,30,x\nq,1,,m\nq,1,30\nq,2,30,m\n"
    study = written(tmp_path, PROMISE, GOOD + bad)
    said = inspected(study)
    assert "age: 1 outside the bounds: clipped, such as '999'" in said
    assert "if '999' means missing, add missing_values = [\"999\"]" in said
    for name, what in (
        ("age", "that are no number"),
        ("sex", "of no declared value"),
        ("y", "of no declared value"),
    ):
        assert f"{name}: 1 {what}: record counts as zero" in said
    assert "age: 1 missing: record counts as zero" in said
    # The number outside counts; the other five do not.
    assert "46 rows, of which 41 count" in said
    assert fedvi("simulate", study, "--quiet").exit_code == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("q,1,old,m\n", "column `age` holds 'old', expected a number"),
        ("q,1,30,x\n", "column `sex` holds 'x', which is no declared level"),
        ("q,1,,m\n", "column `age` holds '', which means missing"),
        ("q,1,30\n", "has fewer cells than the 4 columns"),
        (GOOD, "more records than the study declares with `data.max_records` = 50"),
    ],
)
def test_without_a_promise_it_is_refused(tmp_path: Path, row: str, said: str) -> None:
    done = fedvi("simulate", written(tmp_path, None, GOOD + row), "--quiet")
    assert done.exit_code == 2
    assert said in done.stderr


def test_with_a_promise_the_first_records_alone_are_used(tmp_path: Path) -> None:
    study = written(tmp_path, PROMISE, GOOD + GOOD)
    assert "more rows than the study declares with data.max_records = 50" in inspected(study)
    done = fedvi("simulate", study, "--quiet")
    assert done.exit_code == 0
    assert "only the first of them are used" in done.stderr


def test_of_a_patient_the_first_rows_alone_are_used(tmp_path: Path) -> None:
    more = "p0,1,30,m\n" * 3
    patient = PROMISE | {"unit": "patient"}
    study = written(tmp_path, patient, GOOD + more, unit_column="who", max_rows_per_unit=2)
    assert "2 rows come after the first 2 of their unit, and are left out" in inspected(study)


@pytest.mark.parametrize("privacy", [PROMISE, None])
def test_a_column_that_the_file_lacks_is_named(
    tmp_path: Path, privacy: dict[str, Any] | None
) -> None:
    study = written(tmp_path, privacy, GOOD)
    path = tmp_path / "a.csv"
    path.write_text(path.read_text().replace("age", "Age", 1))
    done = fedvi("simulate", study, "--quiet")
    assert done.exit_code == 2
    assert "no column `age` in the first line" in done.stderr


@pytest.mark.parametrize("privacy", [PROMISE, None])
def test_bounds_in_another_unit_show_as_cells_that_are_clipped(
    tmp_path: Path, privacy: dict[str, Any] | None
) -> None:
    months = "".join(f"p{i},{i % 2},{240 + 12 * i},m\n" for i in range(40))
    study = written(tmp_path, privacy, months)
    assert "age: 40 outside the bounds: clipped" in inspected(study)


def test_a_person_at_two_sites_is_promised_less_than_disjoint_says(tmp_path: Path) -> None:
    # What is declared cannot be seen; without the declaration, check prices what it leaves open.
    declared = fedvi("check", written(tmp_path, PROMISE | {"disjoint": True}, GOOD)).stdout
    assert "cost of all 2 clients" not in declared
    assert "cost of all 2 clients" in fedvi("check", written(tmp_path, PROMISE, GOOD)).stdout


@pytest.mark.parametrize("privacy", [PROMISE, None])
@pytest.mark.parametrize("command", ["check", "plan"])
def test_bounds_far_too_wide_are_warned_of_where_an_sd_is_expected(
    tmp_path: Path, privacy: dict[str, Any] | None, command: str
) -> None:
    study = written(tmp_path, privacy, GOOD)
    raw = json.loads(study.read_text())
    raw["data"]["schema"]["age"]["bounds"] = [0, 1000]
    study.write_text(json.dumps(raw))
    words = "data.schema.age.bounds: [0, 1000] are"
    assert words not in fedvi(command, study).stderr
    raw["data"]["schema"]["age"]["expected"] = {"mean": 50, "sd": 12}
    study.write_text(json.dumps(raw))
    assert words in fedvi(command, study).stderr
