"""What images are built from: bases by digest, wheels by hash, and for a server no more than it imports."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedvi.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
# What fedvi's parts for reports and clients need, and what flax asks for.
NOT_A_SERVER_S = {
    "arviz", "formulaic", "h5netcdf", "h5py", "hatchling", "matplotlib", "orbax-checkpoint", "pandas",
    "pillow", "pyarrow", "setuptools", "tensorstore", "xarray",
}  # fmt: skip


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", text))


def instructions() -> list[str]:
    """Lines of the Dockerfile as Docker sees them: continued ones joined, without comments."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^#.*\n", "", text)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("lock", LOCKS)
def test_each_entry_of_a_lock_has_one_version_and_hashes(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = re.split(r"(?m)^(?=[^\s#])", text)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[0-9][^\s;]*( ; .*)? \\\n", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock != "requirements-protos.lock"])
def test_locks_name_the_same_version_of_what_they_share(lock):
    # The stubs' lock is apart: its compiler asks for another protobuf.
    known = pins("requirements.lock")
    assert {name: (version, known[name]) for name, version in pins(lock).items()
            if known.get(name, version) != version} == {}  # fmt: skip


def test_the_plugin_for_gpus_is_of_the_version_of_jax():
    cuda = pins("requirements-cuda.lock")
    version = pins("requirements.lock")["jax"]
    for name in ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt"):
        assert cuda[name] == version
    assert {"nvidia-cudnn-cu12", "nvidia-cublas-cu12"} < cuda.keys()


def test_the_images_install_nothing_without_a_hash_but_the_project():
    found = [part for line in instructions() for part in re.split(r"&&|;|\|\|", line)
             if re.search(r"\bpip\b.*\b(install|wheel|download)\b", part)]  # fmt: skip
    assert len(found) == 7
    for part in found:
        if "--require-hashes" in part:
            (lock,) = re.findall(r"-r (\S+)", part)
            assert lock in LOCKS
        elif " wheel " in part:
            # The project, by what the hash-locked tools hold, and nothing from an index.
            assert "--no-deps --no-build-isolation" in part
            assert part.split()[-1] == "."
        else:
            assert "--no-deps --no-index" in part
            assert part.split()[-1] == "/wheel/*.whl"


def test_every_image_is_built_on_a_digest():
    (default,) = (line for line in instructions() if line.startswith("ARG BASE_IMAGE="))
    base = default.removeprefix("ARG BASE_IMAGE=")
    assert re.fullmatch(r"python:3\.1[123]-slim-\w+@sha256:[0-9a-f]{64}", base)
    stages: set[str] = set()
    for line in instructions():
        if line.startswith("FROM "):
            _, source, _, name = line.split()
            assert source == "${BASE_IMAGE}" or source in stages
            stages.add(name)
    assert {"server", "full"} <= stages
    # Compose hands the argument over, so that it has the default as well.
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    assert compose["x-args"]["BASE_IMAGE"] == f"${{BASE_IMAGE:-{base}}}"
    assert compose["services"]["server"]["build"]["target"] == "server"


def test_a_build_is_given_every_file_that_it_copies():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in instructions():
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert f"!{name.removeprefix('./')}" in ignored


def test_a_server_s_lock_is_all_that_fedvi_depends_on_but_what_no_server_imports():
    server, full = pins("requirements-server.lock"), pins("requirements.lock")
    assert server.keys() < full.keys()
    assert server.keys() & NOT_A_SERVER_S == set()
    assert {"jax", "grpcio", "jinja2", "prometheus-client"} < server.keys()


# A process that has no more than the server's lock imports what a server does, and computes plans.
SERVER_ALONE = """
import importlib, importlib.abc, importlib.metadata, pkgutil, re, sys
from pathlib import Path
absent, studies = set(sys.argv[1].split(",")), sys.argv[2:]

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import fedvi
from fedvi.cli import export, server
if len(studies) > 1:  # all of fedvi, in the long tier
    for module in pkgutil.walk_packages(fedvi.__path__, "fedvi."):
        importlib.import_module(module.name)
import dp_accounting, fourier_accountant, optax
from fedvi.run import server_plan
from fedvi.study.build import assemble
from fedvi.study.config import load_study
for study in studies:
    server_plan.make(assemble(load_study(Path(study))))
"""
SHORT = ["examples/heart-disease/study-sums.toml"]
ALL = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*/study*.toml"))


@pytest.mark.parametrize("studies", [pytest.param(SHORT, id="one"), pytest.param(ALL, id="all")])
@pytest.mark.nightly(only=("all",))
def test_a_server_imports_nothing_that_its_lock_leaves_out(studies):
    locked = pins("requirements-server.lock").keys() | {"fedvi"}
    absent = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & locked
    }
    assert {"pandas", "orbax", "matplotlib", "formulaic"} <= absent
    done = subprocess.run(
        [sys.executable, "-c", SERVER_ALONE, ",".join(sorted(absent)), *studies],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_command_whose_module_is_not_installed_says_so(monkeypatch, capsys):
    def absent(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'formulaic.parser'", name="formulaic.parser")

    monkeypatch.setattr("fedvi.cli.main._imported", absent)
    monkeypatch.setattr(sys, "argv", ["fedvi", "simulate", "study.toml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "error: this needs the Python module 'formulaic', and it is not installed here" in said
    assert "--target server" in said


def test_a_module_of_fedvi_that_is_missing_is_a_fault_and_shows_where(monkeypatch):
    def absent(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'fedvi.typo'", name="fedvi.typo")

    monkeypatch.setattr("fedvi.cli.main._imported", absent)
    monkeypatch.setattr(sys, "argv", ["fedvi", "simulate"])
    with pytest.raises(ModuleNotFoundError):
        main()


def test_metrics_in_kubernetes_are_for_the_pod_alone():
    documents = yaml.safe_load_all((DOCKER / "kubernetes" / "server.yaml").read_text("utf-8"))
    (pod,) = (found["spec"]["template"] for found in documents if found["kind"] == "StatefulSet")
    (container,) = pod["spec"]["containers"]
    assert "--metrics=127.0.0.1:9464" in container["args"]
    assert container["ports"] == [{"containerPort": 7443}]
    assert "annotations" not in pod["metadata"]
