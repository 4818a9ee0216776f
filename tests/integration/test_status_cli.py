"""Claims about `fedvi status` where a machine holds several runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.cli import status as command
from fedvi.cli.main import main

RUN = {
    "study": "heart",
    "status": "running",
    "rounds": 3,
    "rounds_planned": 20,
    "stage": None,
    "server": "running",
    "clients": [{"name": "north", "silent": True}, {"name": "south", "silent": False}],
}


def test_several_runs_have_a_line_each_and_a_damaged_one_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("heart", "kidney"):
        folder = tmp_path / ".fedvi" / name / "server"
        folder.mkdir(parents=True)
        (folder / "state.sqlite").write_bytes(b"no database")
    ask = command._asked

    def asked(state: Path, *rest: Any) -> dict[str, Any]:
        return RUN if "heart" in str(state) else ask(state, *rest)

    monkeypatch.setattr(command, "_asked", asked)
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.stdout.splitlines() if " heart " in line)
    assert "round 3 of 20" in line
    assert "north" in line
    assert "south" not in line
    assert "kidney" in done.stderr
    assert "fedvi status FOLDER" in done.stdout
    told = json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout)
    assert [sorted(run)[:1] for run in told.values()] == [["clients"], ["error"]]
