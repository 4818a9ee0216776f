"""No file that fedvi reads runs code of its sender: a corpus of mutated files, and an audit hook."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import hostile
from tests.conftest import ROOT

# These read a study file before they look at anything else.
READ_FIRST = (
    "check", "privacy", "plan", "audit", "simulate", "sweep", "client", "server", "data", "ledger",
)  # fmt: skip


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Any]:
    """Runs a family of commands in a process of its own, where hostile code lies ready to be imported."""

    def run(family: str, most: int | None = None) -> Any:
        hostile.install(tmp_path)
        folder = tmp_path / family
        folder.mkdir()
        command = [sys.executable, "-m", "tests.hostile", family, str(folder)]
        done = subprocess.run(
            command if most is None else [*command, str(most)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert not (tmp_path / "PWNED").exists()
        return json.loads(done.stdout)

    return run


def assert_sentences(refusals: dict[str, dict[str, str]]) -> int:
    """Each refusal of code names the file, the line, the kind, and the way to allow it."""
    count = 0
    for name, by_command in refusals.items():
        place, _, payload = name.partition(" = ")
        if place.endswith("accountant") or payload not in (*hostile.ADDRESSES, "hostile"):
            continue
        if place.startswith("schedule.stages") and payload == "hostile":
            continue  # a stage is fedvi's own, whatever is allowed
        for command in READ_FIRST:
            said = " ".join(by_command[command].split())
            key = place.removesuffix(".kind") if "sampler" in place else place
            assert key.replace(".0.", "[0].") in said, (name, command, said)
            assert f"is '{payload}'" in said, (name, command, said)
            assert "mutated-" in said, (name, command, said)
            assert ", line " in said, (name, command, said)
            assert "--allow-code" in said or "fedvi's own name for it" in said, (
                name,
                command,
                said,
            )
            assert "[[allow.custom]]" in said or "fedvi's own name for it" in said, (name, command)
            count += 1
    return count


def test_a_study_that_names_code_is_refused_by_every_command_and_runs_nothing(
    watched: Callable[..., Any],
) -> None:
    found = watched("studies", 20)
    assert found["files"] >= 20
    assert found["wrong"] == []
    assert assert_sentences(found["refusals"]) > 100


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "least"), [("studies", 220), ("results", 120), ("parcels", 95)])
def test_no_mutated_file_starts_a_process_opens_a_socket_or_imports_a_module(
    family: str, least: int, watched: Callable[..., Any]
) -> None:
    found = watched(family)
    assert found["files"] >= least
    assert found["wrong"] == []
    if family == "studies":
        assert assert_sentences(found["refusals"]) > 1500


@pytest.mark.nightly
def test_the_watch_sees_what_an_allowed_plug_in_does(tmp_path: Path) -> None:
    """The same hook on a command that may run the module: were it blind, the tests above would pass."""
    hostile.install(tmp_path)
    program = (
        "import json, sys\nfrom pathlib import Path\nfrom tests import hostile\n"
        "from fedvi.cli.main import main\n"
        "raw = hostile.changed(hostile.study(), ('solver', 'kind'), 'hostile')\n"
        "Path('study.json').write_text(json.dumps(raw))\nwatch = hostile.Watch()\n"
        "seen, _ = watch.during(main, ['check', 'study.json', '--allow-code', 'hostile'])\n"
        "print(json.dumps(sorted(seen)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "module hostile_module" in json.loads(done.stdout)
    assert (tmp_path / "PWNED").exists()
