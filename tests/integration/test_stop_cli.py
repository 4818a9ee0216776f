"""Claims about a run that failed and is stopped for good: a server and clients of the real commands."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.privacy import ledger as ledgers
from fedvi.store.sqlite import SqliteClientStore, read_ledger
from fedvi.study import build
from fedvi.study.config import load_study
from tests.sites import study_file

COMMAND = "from fedvi.cli.main import main; main()"
# Processes share two cores with other tests, and each compiles its solver.
PATIENCE_SECONDS = 120.0
# Its cap for life has no room for one release of the study.
POLICY = """
[run]
epsilon = 9.0
delta = 1e-5
[life]
site = "west"
unit = "record"
relation = "substitute"
epsilon = 0.05
delta = 1e-5
[allow]
simulated_noise = true
"""


def fedvi(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def ended(process: subprocess.Popen[str], code: int) -> str:
    """Waits for a process to end; returns what it printed."""
    try:
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    assert process.returncode == code, said
    return said


class Server:
    """A server at a port of its own, until it ends by itself."""

    def __init__(self, study: Path, state: Path) -> None:
        self.log = state.with_suffix(f".{time.monotonic_ns()}.log")
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", COMMAND, "server", str(study), "--state", str(state)),
                    *("--listen", "127.0.0.1:0", "--linger", "200", "--log-format", "json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
        self.address = self._ready()["listen"]

    def _ready(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            for line in self.log.read_text().splitlines():
                found = json.loads(line) if line.startswith("{") else {}
                if found.get("kind") == "ready":
                    return found
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def wait(self) -> int:
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def remembered(study: Path, name: str, folder: Path) -> bytes | None:
    """What a client's solver keeps between visits: factors without noise, which are its secret."""
    header = build.assemble(load_study(study)).header(name)
    with contextlib.closing(SqliteClientStore(folder, header)) as store:
        return store.load_state()


@pytest.mark.nightly
def test_a_run_that_failed_keeps_secrets_until_it_is_stopped_for_good(tmp_path: Path) -> None:
    study = study_file(
        tmp_path,
        names=("north", "south", "west"),
        solver={"kind": "perturbed_update", "clip_norm": 1.0, "clean_factor": True},
        schedule={"kind": "synchronous", "rounds": 3, "quorum": 3},
    )
    (tmp_path / "west.toml").write_text(POLICY)
    (tmp_path / "south.csv").write_text("nothing,of,this\n1,2,3\n")
    state, north = tmp_path / "server", tmp_path / "north"

    def client(name: str, server: Server, *more: object) -> subprocess.Popen[str]:
        where = ("--state", tmp_path / name, "--server", server.address)
        allowed = () if "--policy" in more else ("--allow-simulated-noise",)
        return fedvi("client", study, "--as", name, *where, *allowed, *more)

    # South cannot read its records, and west never may answer: too few are left, and the run fails.
    with contextlib.closing(Server(study, state)) as server:
        west = client("west", server, "--policy", tmp_path / "west.toml")
        south, first = client("south", server), client("north", server)
        for process, code in ((west, 5), (south, 2)):
            ended(process, code)
        assert "the run failed" in ended(first, 0)
        assert server.wait() == 6
    secret = remembered(study, "north", north)
    assert secret is not None

    with contextlib.closing(Server(study, state)) as server:
        # It may still be resumed: whoever asks keeps what is needed to go on.
        run = json.loads(CliRunner().invoke(main, ["status", str(state), "--json"]).stdout)
        assert run["status"] == "failed"
        assert remembered(study, "north", north) == secret
        stopped = CliRunner().invoke(main, ["stop", str(state), "--yes"])
        assert stopped.exit_code == 0, stopped.output
        assert "stopped" in stopped.stdout
        # Once more changes nothing; and what has ended for good does not go on.
        assert CliRunner().invoke(main, ["stop", str(state), "--yes"]).exit_code == 0
        assert CliRunner().invoke(main, ["resume", str(state)]).exit_code == 6
        assert "the run was stopped" in ended(client("north", server), 0)
        assert server.wait() == 6
    assert remembered(study, "north", north) is None
    # What was charged stays charged.
    assert ledgers.reservations(read_ledger(north)) == 1


def test_the_help_says_which_run_that_is_over_can_be_stopped() -> None:
    said = " ".join(CliRunner().invoke(main, ["stop", "--help"]).stdout.split())
    assert "6 the run is over, and did not fail" in said
    assert "A failed run could still go on with `fedvi resume`" in said
