"""Numbers that are hardly meant are warned of by name before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fedvi
from fedvi.cli.main import main
from fedvi.planning import advice
from tests.unit.planning.test_widths import planned, raw_plan

HARDLY_MEANT = pytest.mark.parametrize(
    ("section", "change", "key"),
    [
        ("data", {"max_records": 3}, "data.max_records is 3"),
        ("privacy", {"delta": 0.01}, "privacy.delta is 0.01"),
        ("schedule", {"rounds": 100_000}, "schedule.rounds is 100,000"),
        ("solver", {"clip_norm": 1e9}, "solver.clip_norm is 1e+09"),
        ("prior", {"scale": 1e6}, "prior.scale is 1e+06"),
    ],
)


def changed(section: str, change: dict[str, Any]) -> dict[str, Any]:
    raw = raw_plan()
    raw[section] = raw[section] | change
    return raw


@HARDLY_MEANT
def test_it_is_named(section: str, change: dict[str, Any], key: str) -> None:
    assert any(key in line for line in advice.doubts(planned(changed(section, change))))


@HARDLY_MEANT
def test_every_way_to_a_run_names_it_before_a_file_is_read(
    section: str, change: dict[str, Any], key: str, tmp_path: Path
) -> None:
    raw = changed(section, change)
    for client in raw["clients"]:
        client["data"] = "none.csv"
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw))
    for command in ("check", "simulate", "plan"):
        said = CliRunner().invoke(main, [command, str(path)])
        assert any(f"{word}: {key}" in said.stderr for word in ("warning", "error")), command
    study = fedvi.load_study(path)
    assert any(line.startswith(key) for line in fedvi.plan(study).warnings)
    assert f"warning: {key}" in " ".join(fedvi.plan(study).summary().text(80).split())
    with pytest.raises(fedvi.FedviError, match=r"none\.csv"), pytest.warns() as told:
        fedvi.simulate(study, tmp_path)
    assert any(str(one.message).startswith(key) for one in told)
    assert told[0].filename == __file__


def test_a_usual_study_is_not_warned_of() -> None:
    assert advice.doubts(planned(raw_plan())) == ()
