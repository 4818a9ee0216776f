"""The compose file as a newcomer runs it, on a real container engine, from an image built here."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
# What an image is built with must be reachable from within a container.
PROBE = "python3 -m venv /tmp/v && /tmp/v/bin/python -m pip download -q --no-deps -d /tmp click"
CLIENTS = ("cleveland", "budapest", "switzerland", "long-beach")

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("containers")]


def run(*command: str, check: bool = True, seconds: float = 600.0, **settings) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT, **settings
    )
    if check and done.returncode:
        pytest.fail(f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def succeeds(*command: str, seconds: float = 60.0) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            pytest.fail(f"after {seconds:g} s: not {what}")
        time.sleep(0.5)
    return time.monotonic() - started


class Federation:
    """One compose project of the repository's own file."""

    def __init__(self, image: str, base: str) -> None:
        self.name = f"fedvi-test-{os.getpid()}"
        tool = ["docker", "compose"] if succeeds("docker", "compose", "version") else []
        self._tool = tool or ["docker-compose"]
        self._settings = {**os.environ, "FEDVI_IMAGE": image, "BASE_IMAGE": base}

    def compose(self, *arguments: str, check: bool = True) -> str:
        command = [*self._tool, "-p", self.name, "-f", str(COMPOSE), *arguments]
        return run(*command, check=check, env=self._settings)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def state(self, service: str) -> dict:
        return json.loads(run("docker", "inspect", self.container(service)))[0]["State"]

    def healthy(self, service: str) -> bool:
        return self.state(service).get("Health", {}).get("Status") == "healthy"

    def finished(self, service: str) -> bool:
        state = self.state(service)
        return state["Status"] == "exited" and state["ExitCode"] == 0


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    if not succeeds("docker", "info"):
        pytest.skip("no container engine runs here")
    if os.geteuid() != 0 or shutil.which("dpkg-deb") is None:
        pytest.skip("a base image is built from Debian's packages, which needs root and Debian")
    base, image = (f"fedvi-test-{kind}:{os.getpid()}" for kind in ("base", "image"))
    script = ROOT / "tests" / "integration" / "containers" / "base_image.sh"
    made = Federation(image, base)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if not succeeds("bash", str(script), base, scratch, seconds=600.0):
                pytest.skip("no base image can be built: Debian's packages cannot be had here")
        if not succeeds("docker", "run", "--rm", "-e", "PIP_INDEX_URL", base, "sh", "-c", PROBE):
            pytest.skip("no image can be built: a container reaches no package index here")
        made.compose("build", "certificates")  # all services share its image
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5", check=False)
        for tag in (image, base):
            run("docker", "rmi", "--force", tag, check=False)


def test_the_whole_federation_comes_up_survives_a_killed_server_and_ends(federation, tmp_path):
    federation.compose("up", "-d", "--no-build")
    # Held back, so that the server is killed in the middle of the run.
    federation.compose("exec", "-T", "server", "fedvi", "pause", "/state")
    # Issue 4: from a clean checkout to server and clients healthy within 60 s after the build.
    services = ("server", *CLIENTS)
    until(lambda: all(federation.healthy(name) for name in services), 60, "all healthy")

    federation.compose("kill", "server")
    # The server by name: Compose 1 takes the health of a killed dependency for that of the started one.
    federation.compose("up", "-d", "--no-build", "server")
    until(lambda: federation.healthy("server"), 60, "healthy again")
    federation.compose("exec", "-T", "server", "fedvi", "resume", "/state")

    until(lambda: all(federation.finished(name) for name in services), 300, "finished")
    # Started twice, and one run: the ledgers below were charged once a round.
    assert federation.compose("logs", "server").count("clients may dial in") >= 2
    # Nobody runs as root, and nobody sees another one's key.
    for name in services:
        user = json.loads(run("docker", "inspect", federation.container(name)))[0]["Config"]["User"]
        assert user == "10001:10001"

    for name in services:
        run("docker", "cp", f"{federation.container(name)}:/state", str(tmp_path / name))
    posterior = json.loads((tmp_path / "server" / "result" / "posterior.json").read_text())
    assert len(posterior["names"]) == 9
    for name in CLIENTS:
        at_site = ledger(tmp_path / name)
        at_server = next(
            book for book in ledger(tmp_path / "server") if book["header"]["client"] == name
        )
        assert at_site[0]["anchor"] == at_server["anchor"]
        # Twenty rounds, each charged once although the server was killed in between.
        assert at_site[0]["reserved"] == 20


def ledger(folder: Path) -> list[dict]:
    """Verifies a folder's ledgers; fails if one is not whole."""
    fedvi = Path(sys.executable).with_name("fedvi")
    return json.loads(run(str(fedvi), "ledger", "verify", str(folder), "--json"))["ledgers"]
