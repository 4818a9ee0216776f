"""The compose files as a newcomer runs them, on a real container engine, from images built here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
GUIDE = ROOT / "docs" / "guides" / "docker.md"
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


def tool() -> list[str]:
    """Compose, as the plugin or the program before it."""
    known = succeeds("docker", "compose", "version")
    return ["docker", "compose"] if known else ["docker-compose"]


class Images(NamedTuple):
    full: str
    server: str
    base: str

    def settings(self) -> dict[str, str]:
        return {
            **os.environ,
            "FEDVI_IMAGE": self.full,
            "FEDVI_SERVER_IMAGE": self.server,
            "BASE_IMAGE": self.base,
        }


class Federation:
    """One compose project of the repository's own file; ``study`` takes the place of the file's own."""

    def __init__(self, images: Images, study: Path | None = None) -> None:
        self.name = f"fedvi-test-{os.getpid()}-{'own' if study is None else study.stem}"
        self._tool = tool()
        self._settings = images.settings()
        if study is not None:
            self._settings["STUDY"] = str(study)

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
def images() -> Iterator[Images]:
    if not succeeds("docker", "info"):
        pytest.skip("no container engine runs here")
    if os.geteuid() != 0 or shutil.which("dpkg-deb") is None:
        pytest.skip("a base image is built from Debian's packages, which needs root and Debian")
    built = Images(*(f"fedvi-test-{kind}:{os.getpid()}" for kind in Images._fields))
    base = built.base
    script = ROOT / "tests" / "integration" / "containers" / "base_image.sh"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if not succeeds("bash", str(script), base, scratch, seconds=600.0):
                pytest.skip("no base image can be built: Debian's packages cannot be had here")
        if not succeeds("docker", "run", "--rm", "-e", "PIP_INDEX_URL", base, "sh", "-c", PROBE):
            pytest.skip("no image can be built: a container reaches no package index here")
        # All services share two images. One after the other: what the first one built serves both.
        Federation(built).compose("build", "server")
        Federation(built).compose("build", "certificates")
        yield built
    finally:
        for tag in built:
            run("docker", "rmi", "--force", tag, check=False)


@pytest.fixture
def federation_of(images: Images) -> Iterator[Callable[..., Federation]]:
    made: list[Federation] = []

    def start(study: Path | None = None) -> Federation:
        made.append(Federation(images, study))
        return made[-1]

    yield start
    for federation in made:
        federation.compose("down", "--volumes", "--timeout", "5", check=False)


def test_the_whole_federation_comes_up_survives_a_killed_server_and_ends(
    federation_of, images, tmp_path
):
    federation = federation_of()
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
    # The server is of the small image, for the whole run.
    small = run("docker", "image", "inspect", "-f", "{{.Id}}", images.server).strip()
    assert json.loads(run("docker", "inspect", federation.container("server")))[0]["Image"] == small
    # Nobody runs as root, and nobody sees another one's key.
    for name in services:
        user = json.loads(run("docker", "inspect", federation.container(name)))[0]["Config"]["User"]
        assert user == "10001:10001"

    for name in services:
        run("docker", "cp", f"{federation.container(name)}:/state", str(tmp_path / name))
    posterior = json.loads((tmp_path / "server" / "result" / "posterior.json").read_text())
    # The log has the table that docs/guides/docker.md shows, with noise of its own.
    assert len(posterior["names"]) == 9
    log = federation.compose("logs", "server")
    assert "Posterior of heart-disease" in log
    assert all(f" {name} " in log for name in posterior["names"])
    for name in CLIENTS:
        at_site = ledger(tmp_path / name)
        at_server = next(
            book for book in ledger(tmp_path / "server") if book["header"]["client"] == name
        )
        assert at_site[0]["anchor"] == at_server["anchor"]
        # Twelve rounds, each charged once although the server was killed in between.
        assert at_site[0]["reserved"] == 12


def test_a_hospital_that_is_killed_while_sums_are_masked_is_left_out_and_comes_back(
    federation_of, tmp_path
):
    """Of four hospitals three are enough; nobody but a sum of at least three is seen."""
    study = tmp_path / "masked.toml"
    text = (ROOT / "examples" / "heart-disease" / "study-sums.toml").read_text()
    study.write_text(
        text.replace("\n[privacy]\n", "\n[privacy]\nleast_reporting = 3\n").replace(
            "rounds = 12\n", "rounds = 150\ndeadline_seconds = 40\n"
        )
    )
    study.chmod(0o644)  # user 10001 reads it
    federation = federation_of(study)
    federation.compose("up", "-d", "--no-build")

    def folds() -> int:
        said = federation.compose(
            "exec", "-T", "server", "fedvi", "status", "/state", "--json", check=False
        )
        return json.loads(said)["version"] if said else 0

    until(lambda: folds() >= 1, 120, "a first sum")
    federation.compose("kill", "switzerland")
    killed = folds()
    # One round may be given up: if switzerland had answered it, or was opening its sum.
    until(lambda: folds() >= killed + 2, 240, "sums without switzerland")
    # Without it rounds go fast: held back, so that some are left for it.
    federation.compose("exec", "-T", "server", "fedvi", "pause", "/state")
    federation.compose("up", "-d", "--no-build", "switzerland")
    until(lambda: federation.healthy("switzerland"), 60, "healthy again")
    federation.compose("exec", "-T", "server", "fedvi", "resume", "/state")
    until(lambda: all(federation.finished(name) for name in ("server", *CLIENTS)), 300, "finished")

    for name in ("server", *CLIENTS):
        run("docker", "cp", f"{federation.container(name)}:/state", str(tmp_path / name))
    history = json.loads((tmp_path / "server" / "result" / "result.json").read_text())["history"]
    summed = [set(update["clients"]) for update in history if update["clients"]]
    # On a busy machine another hospital may miss a deadline as well.
    assert {frozenset(CLIENTS), frozenset(CLIENTS) - {"switzerland"}} <= set(map(frozenset, summed))
    assert min(map(len, summed)) >= 3
    assert summed[-1] == set(CLIENTS)
    books = {book["header"]["client"]: book for book in ledger(tmp_path / "server")}
    for name in CLIENTS:
        assert ledger(tmp_path / name)[0]["anchor"] == books[name]["anchor"]


def within(image: str, *command: str, **settings) -> subprocess.CompletedProcess[str]:
    """Runs a command in a fresh container of an image, without its entry point."""
    return subprocess.run(
        [
            "docker",
            "run",
            "--rm",
            "--network",
            "none",
            "--entrypoint",
            command[0],
            image,
            *command[1:],
        ],
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
        **settings,
    )


INSTALLED = """
import importlib.metadata as m, json
print(json.dumps(sorted((d.metadata["Name"], d.version) for d in m.distributions())))
"""


@pytest.mark.parametrize("kind", ["full", "server"])
def test_an_image_lists_exactly_what_is_installed_in_it(images, kind):
    image = getattr(images, kind)
    bill = json.loads(within(image, "cat", "/opt/fedvi/share/sbom.cdx.json").stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    installed = json.loads(within(image, "/opt/fedvi/bin/python", "-c", INSTALLED).stdout)
    listed = sorted([part["name"], part["version"]] for part in bill["components"])
    assert listed == installed
    assert {name for name, _ in listed} > {"fedvi", "jax", "grpcio", "numpyro"}
    # Neither what built the image nor what wrote the list.
    assert not {"pip", "hatchling", "editables", "cyclonedx-bom"} & {name for name, _ in listed}
    for part in bill["components"]:
        if part["name"] != "fedvi":  # installed from a file
            name = re.sub("[-_.]+", "-", part["name"]).lower()
            assert part["purl"].startswith(f"pkg:pypi/{name}@{part['version']}")


def test_the_server_s_image_has_only_what_a_server_imports_and_says_so(images):
    for module in ("pandas", "matplotlib", "arviz", "orbax.checkpoint", "h5netcdf", "formulaic"):
        done = within(images.server, "/opt/fedvi/bin/python", "-c", f"import {module}")
        assert "ModuleNotFoundError" in done.stderr, module
        done = within(images.full, "/opt/fedvi/bin/python", "-c", f"import {module}")
        assert done.returncode == 0, done.stderr
    for command in (
        "server", "health", "status", "watch", "pause", "resume", "stop", "admit", "remove", "ca", "enroll",
        "export", "import", "backup", "ledger", "doctor", "check",
    ):  # fmt: skip
        done = within(images.server, "fedvi", command, "--help")
        assert done.returncode == 0, done.stderr


def test_what_the_server_s_image_cannot_do_it_says_in_a_sentence(images, tmp_path):
    """A spline needs formulaic, and a report jinja2 and matplotlib: no traceback reaches a user."""
    script = """
set -u
cp -r /examples /tmp/own && cd /tmp/own
fedvi simulate study-nonprivate.toml --quiet --out /tmp/run > /tmp/plain 2>&1 && echo simulated
fedvi report /tmp/run > /tmp/report 2>&1; echo "report $?"; cat /tmp/report
sed -i 's/~ age +/~ bs(age, knots=[50], lower_bound=18, upper_bound=100) +/' study-nonprivate.toml
fedvi simulate study-nonprivate.toml --quiet > /tmp/spline 2>&1; echo "spline $?"; cat /tmp/spline
"""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", "--entrypoint", "bash", "-v",
         f"{ROOT / 'examples' / 'heart-disease'}:/examples:ro", images.server, "-c", script],
        capture_output=True, text=True, timeout=600.0, check=False,
    )  # fmt: skip
    assert "simulated" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    assert "report 0" not in done.stdout
    assert "spline 2\nerror: this needs the Python module 'formulaic'" in done.stdout, done.stdout


class Site:
    """Folders of a coordinator and a site, whose commands are those of the guide, word for word."""

    def __init__(self, folder: Path, images: Images) -> None:
        self.name = f"fedvi-test-{os.getpid()}-site"
        self.images = images
        self.at = {"coordinator": folder / "coordinator", "north": folder / "site"}
        for place in self.at.values():
            place.mkdir()
        self.fingerprint = ""
        self.settings = {
            **images.settings(),
            "COMPOSE_PROJECT_NAME": self.name,
            "FEDVI_LIFE_VOLUME": f"{self.name}-life",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, who: str, command: str, check: bool = True) -> str:
        """Runs a command that names the site of the guide as this study's first site."""
        image = self.images.full if who == "north" else self.images.server
        said = re.sub(r"\bnorth(?=[ .]|$)", "cleveland", command)
        said = said.replace("=north ", "=cleveland ").replace("HEX", self.fingerprint)
        said = re.sub(r"(docker run .*) fedvi(-server)? enroll", rf"\1 {image} enroll", said)
        said = said.replace("docker compose", " ".join(tool())).replace(
            "docker/", f"{ROOT}/docker/"
        )
        said = said.replace("fedvi.example.org:7443", "server:7443")
        said = said.replace("volume create fedvi-life", f"volume create {self.name}-life")
        done = subprocess.run(
            ["bash", "-ec", f'sudo() {{ "$@"; }}; {said}'],
            cwd=self.at[who], env=self.settings, capture_output=True, text=True, timeout=600.0, check=False,
        )  # fmt: skip
        if check and done.returncode:
            pytest.fail(f"{said}\nexited {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout


def of_the_guide(heading: str) -> list[tuple[str, str]]:
    """(whose prompt, command) of the first console block below a heading of the guide."""
    section = GUIDE.read_text(encoding="utf-8").split(f"### {heading}\n")[1]
    block = section.split("```console\n")[1].split("```")[0]
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    found = [re.fullmatch(r"(\w+)\$ +(.+)", line) for line in lines]
    return [(match[1], match[2]) for match in found if match is not None]


@pytest.fixture
def site(images, tmp_path) -> Iterator[Site]:
    made = Site(tmp_path, images)
    yield made
    files = " ".join(f"-f docker/{name}.yaml" for name in ("coordinator", "site"))
    given = {
        f"FEDVI_{name}": "/tmp" for name in ("STUDY", "TLS", "DATA", "POLICY", "NAME", "SERVER")
    }
    made.settings.update(given)
    made.run("north", f"docker compose {files} down --volumes --timeout 5", check=False)
    run("docker", "volume", "rm", f"{made.name}-life", check=False)


def test_a_site_takes_part_with_files_that_were_made_as_the_guide_says(site):
    example = ROOT / "examples" / "heart-disease"
    coordinator, north = site.at["coordinator"], site.at["north"]
    for place in site.at.values():
        shutil.copy(example / "study.toml", place)
        (place / "study.toml").chmod(0o600)
    shutil.copy(example / "data" / "processed.cleveland.data", north / "cleveland.csv")
    (north / "cleveland.csv").chmod(0o600)
    life = '[life]\nepsilon = 9.0\ndelta = 1e-5\nrelation = "substitute"\n'
    (north / "policy.toml").write_text(f"[run]\nepsilon = 4.0\ndelta = 1e-5\n{life}")
    (north / "policy.toml").chmod(0o600)

    # The coordinator's own files, by the same commands.
    mount = '-v "$PWD/tls:/tls"'
    signed = '-v "$PWD/authority/ca.pem:/ca.pem:ro" -v "$PWD/server.pem:/server.pem:ro"'
    for command in (
        "fedvi ca init authority --name test",
        "sudo install -d -o 10001 -g 10001 -m 0700 tls",
        f"docker run --rm {mount} fedvi-server enroll server --dir /tls --role server --host server",
        "sudo cat tls/request.pem > request.pem",
        "fedvi ca sign request.pem --ca authority --role server --out server.pem",
        "chmod a+r authority/ca.pem server.pem study.toml",
    ):
        site.run("coordinator", command)
    listed = site.run("coordinator", "fedvi ca list --ca authority")
    site.fingerprint = re.findall(r"(?m)^authority's fingerprint: (\S.*)$", listed)[0].strip()
    site.run(
        "coordinator",
        f"docker run --rm {mount} {signed} fedvi-server enroll server --dir /tls "
        "--certificate /server.pem --ca /ca.pem --fingerprint HEX",
    )

    steps = of_the_guide("Files that user 10001 can read")
    assert [who for who, _ in steps].count("coordinator") == 1
    for who, command in steps:
        if who == "coordinator":  # what travels
            shutil.copy(north / "request.pem", coordinator)
        if "compose" in command:
            site.run(
                "coordinator",
                "sudo install -o 10001 -g 10001 -m 0600 authority/roster.json tls/roster.json; "
                "FEDVI_STUDY=$PWD/study.toml FEDVI_TLS=$PWD/tls FEDVI_PORT=17443 "
                "docker compose -f docker/coordinator.yaml up -d",
            )
        site.run(who, command)
        if who == "coordinator":
            shutil.copy(coordinator / "authority" / "ca.pem", north)
            shutil.copy(coordinator / "cleveland.pem", north)

    for place in site.at.values():
        key = (place / "tls" / "key.pem").stat()
        assert (key.st_uid, key.st_mode & 0o777) == (10001, 0o600)
    names = run("docker", "ps", "-a", "--filter", f"label=com.docker.compose.project={site.name}",
                "--format", "{{.Names}}").split()  # fmt: skip
    server, client = sorted(names, key=lambda name: "client" in name)

    def seen() -> bool:
        said = subprocess.run(
            ["docker", "exec", server, "fedvi", "status", "/state", "--json"],
            capture_output=True, text=True, timeout=60.0, check=False,
        ).stdout  # fmt: skip
        rows = json.loads(said)["clients"] if said else []
        return any(row["name"] == "cleveland" and row["charged"] for row in rows)

    # It has read its key, its policy and its records, and the server charged what it answered.
    try:
        until(seen, 240, "an answer of the site")
    except pytest.fail.Exception as failure:
        pytest.fail(f"{failure}\n{run('docker', 'logs', client)}")
    assert not run("docker", "logs", client).count("Permission denied")
    # What it spent for life outlives the study's own volumes.
    shown = run("docker", "run", "--rm", "-v", f"{site.name}-life:/life", "--entrypoint", "ls",
                site.images.full, "/life")  # fmt: skip
    assert shown.strip()


def ledger(folder: Path) -> list[dict]:
    """Verifies a folder's ledgers; fails if one is not whole."""
    fedvi = Path(sys.executable).with_name("fedvi")
    return json.loads(run(str(fedvi), "ledger", "verify", str(folder), "--json"))["ledgers"]
