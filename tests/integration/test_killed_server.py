"""The process of a server, killed at every step of a run: the run is the undisturbed one, to the bit.

What `test_server_crashes.py` shows of single saves, this shows of the whole: clients over gRPC that
wait, repeat themselves and go on, while the server dies under them.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedvi.run import server_plan
from fedvi.server.store import schema
from fedvi.transport import bundle
from tests import dying
from tests.sites import (
    PATIENCE_SECONDS,
    Sites,
    assembled,
    check_undisturbed,
    sites_of,
    study_file,
    undisturbed,
)

pytestmark = pytest.mark.nightly

_LOG = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
# Each life of the server brings the run on by one step or more.
ROUNDS = 12
# Asked for are 5 s on cores of its own. One start among forty may meet a machine that is busy for a while.
RESUMED_SECONDS = 15.0


class Lives:
    """One server after the other, over the same state and at the same port."""

    def __init__(self, study: Path, state: Path, sites: Sites) -> None:
        self._study, self._state, self._sites = study, state, sites
        self.address = ""
        self.resumed: dict[str, float] = {}

    def live(self, point: str) -> int:
        """Runs a server until it dies; returns its exit code."""
        log = self._state / "log"
        with log.open("wb") as file:
            began = time.monotonic()
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.dying", point, "server", str(self._study)),
                    *("--state", str(self._state), "--listen", self.address or "127.0.0.1:0"),
                    *("--linger", "20", "--log-format", "json"),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
        heard = len(self._sites.replies)
        try:
            while process.poll() is None:
                assert time.monotonic() < began + PATIENCE_SECONDS, (point, log.read_text())
                if not self.address and (found := ready(log)):
                    self.address = found
                    self._sites.start(found)
                if not self._sites.working and len(self._sites.replies) > heard:
                    point_of_no_return = "the run ended before the server died"
                    assert point == "never", f"{point}: {point_of_no_return}"
                time.sleep(0.005)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        replies = self._sites.replies[heard:]
        if replies:
            self.resumed[point] = replies[0] - began
        return process.returncode


def ready(log: Path) -> str:
    for line in log.read_text().splitlines():
        found = json.loads(line) if line.startswith("{") else {}
        if found.get("kind") == "ready":
            return str(found["listen"])
    return ""


def test_a_server_killed_at_every_step_of_a_run_changes_no_bit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bundle, "INLINE", dying.INLINE)
    monkeypatch.setattr(bundle, "CHUNK", dying.CHUNK)
    study = study_file(tmp_path, rounds=ROUNDS)
    assembly = assembled(study)
    expected = undisturbed(assembly, tmp_path)
    state = tmp_path / "server"
    state.mkdir()
    # Planned beforehand, as any but the first start finds it.
    server_plan._write(state / server_plan.FILE, server_plan.to_json(server_plan.make(assembly)))
    with sites_of(assembly, tmp_path, tmp_path) as sites:
        lives = Lives(study, state, sites)
        for point in dying.POINTS:
            code = lives.live(point)
            assert code == (0 if point == "never" else -signal.SIGKILL), (
                point,
                (state / "log").read_text(),
            )
        sites.join()
        found = schema.read_state(state, assembly.spec.prior)
        assert found is not None
        check_undisturbed(sites, found, expected)
    assert len(dying.POINTS) > 30
    took = sorted(lives.resumed.values())
    _LOG.info("%d lives, the slowest answered after %.2f s", len(took), took[-1])
    assert took[len(took) * 9 // 10] < RESUMED_SECONDS, lives.resumed
