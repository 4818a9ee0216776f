"""Claims about a federation of real processes: it computes, to the last bit, what a simulation does."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi.expfam import tree
from fedvi.privacy import ledger as ledgers
from fedvi.run import loading, server_plan, site
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerState, Update
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.store.sqlite import read_ledger
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import load_study
from fedvi.transport.memory import MemoryLink

pytestmark = pytest.mark.nightly

CLIENTS = ("cleveland", "budapest", "switzerland", "long-beach")
COMMAND = "from fedvi.cli.main import main; main()"
# Processes share two cores with other tests, and each compiles its solver.
PATIENCE_SECONDS = 240.0


def study_file(
    folder: Path, examples: Path, name: str, change: Callable[[dict[str, Any]], object]
) -> Path:
    """A copy of one of the heart-disease studies, changed, whose clients' files are found."""
    raw = load_study(examples / "heart-disease" / name).as_dict()
    for client in raw["clients"]:
        client["data"] = str(examples / "heart-disease" / client["data"])
    change(raw)
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return path


def private(kind: str) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        raw["schedule"] = {"kind": kind, "rounds": 2}
        raw["solver"]["steps"] = 3
        raw["simulation"] = {"insecure_seed": 11}

    return change


def open_study(kind: str) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw.update(schedule={"kind": kind, "rounds": 3})


class Processes:
    """A server and clients on this machine; ended with the test."""

    def __init__(self, study: Path, folder: Path) -> None:
        self.study, self.folder = study, folder
        self.state = folder / "server"
        self.address = "127.0.0.1:0"
        self._all: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def server(self) -> subprocess.Popen[bytes]:
        """Starts the server, at the same port each time, and waits until it is ready."""
        process, log = self._start(
            "server", "server", "--state", self.state, "--listen", self.address, "--linger", "30"
        )
        self.address = self.line(process, log, "ready")["listen"]
        return process

    def client(self, name: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts a client; returns it and its log."""
        return self._start(
            name,
            "client",
            "--as",
            name,
            "--state",
            self.folder / name,
            "--server",
            self.address,
            "--allow-unprotected",
            "--allow-simulated-noise",
        )

    def line(self, process: subprocess.Popen[bytes], log: Path, kind: str) -> dict[str, Any]:
        """Waits for a line of a process's log."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            for text in log.read_text().splitlines():
                found = json.loads(text) if text.startswith("{") else {}
                if found.get("kind") == kind:
                    return found
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no line {kind!r} in {log.read_text()}")

    def _start(
        self, name: str, command: str, *arguments: str | Path
    ) -> tuple[subprocess.Popen[bytes], Path]:
        self._count += 1
        log = self.folder / f"{name}-{self._count}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", COMMAND, command, self.study),
                    *("--log-format", "json", *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
        self._all.append(process)
        return process, log

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def processes(study: Path, folder: Path) -> Iterator[Processes]:
    with contextlib.closing(Processes(study, folder)) as made:
        yield made


def finish(process: subprocess.Popen[bytes], log: Path | None = None) -> None:
    code = process.wait(timeout=PATIENCE_SECONDS)
    assert code == 0, None if log is None else log.read_text()


def server_state(running: Processes) -> ServerState:
    plan = server_plan.read(running.state / server_plan.FILE)
    with contextlib.closing(SqliteServerStore(running.state, server_plan.to_spec(plan))) as store:
        state = store.load()
        assert state is not None
        return state


def turns(history: tuple[Update, ...]) -> list[tuple[str, str]]:
    """The order in which clients took tasks and answered, as far as it matters to the result."""
    order: list[tuple[str, str]] = []
    offered: dict[int, list[str]] = {}
    for update in history:
        for client, staleness in zip(update.clients, update.staleness, strict=True):
            offered.setdefault(update.version - 1 - staleness, []).append(client)
    for update in history:
        order += [("take", client) for client in offered.get(update.version - 1, [])]
        order += [("answer", client) for client in update.clients]
    return order


def replayed(
    assembly: Assembly, base: Path, history: tuple[Update, ...]
) -> tuple[ServerState, dict[str, ledgers.Ledger]]:
    """Runs a study in this process, in the order of arrival of another run."""
    coordinator = Coordinator(assembly.spec, MemoryServerStore())
    link = MemoryLink(coordinator.handle)
    sources = loading.load_shards(assembly, base)
    workers = {}
    for name in assembly.clients:
        store = MemoryClientStore(ledgers.open_ledger(assembly.header(name)))
        shard = site.shard_of(assembly, name, sources[name])
        workers[name] = site.client_worker(assembly, name, link, store, shard)
    for what, name in turns(history):
        assert workers[name].tick() == {"take": "solved", "answer": "sent"}[what]
    return coordinator.state, {name: worker.ledger for name, worker in workers.items()}


def check_same(running: Processes) -> None:
    """The processes' posterior and ledgers are those of the run in this process."""
    found = server_state(running)
    assert found.status == "completed"
    assembly = build.assemble(load_study(running.study))
    expected, books = replayed(assembly, running.folder, found.history)
    assert found.history == expected.history
    assert tree.equal(found.posterior, expected.posterior)
    for name in CLIENTS:
        assert tree.equal(found.factors[name], expected.factors[name])
        own = read_ledger(running.folder / name)
        assert own == books[name]
        assert own == found.ledgers[name] == expected.ledgers[name]
    spec = server_plan.to_spec(server_plan.read(running.state / server_plan.FILE))
    with np.load(running.state / "result" / "posterior.npz") as kept:
        np.testing.assert_array_equal(kept["h"], protocol.served(spec, expected).h)
        np.testing.assert_array_equal(kept["J"], protocol.served(spec, expected).J)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("study-descent.toml", private("sequential")),
        ("study-nonprivate.toml", open_study("synchronous")),
        ("study-descent.toml", private("asynchronous")),
    ],
    ids=["sequential-private", "synchronous-open", "asynchronous-private"],
)
def test_processes_compute_what_one_process_does_bit_for_bit(
    name: str, change: Callable[[dict[str, Any]], None], tmp_path: Path, examples: Path
) -> None:
    study = study_file(tmp_path, examples, name, change)
    with processes(study, tmp_path) as running:
        server = running.server()
        clients = [running.client(client) for client in CLIENTS]
        for process, log in clients:
            finish(process, log)
        finish(server)
        check_same(running)


def test_a_run_whose_clients_were_stopped_and_killed_is_the_undisturbed_one(
    tmp_path: Path, examples: Path
) -> None:
    study = study_file(tmp_path, examples, "study-descent.toml", private("synchronous"))
    with processes(study, tmp_path) as running:
        server = running.server()
        clients = {client: running.client(client) for client in CLIENTS}
        stopped, log = clients["cleveland"]
        running.line(stopped, log, "task")
        stopped.send_signal(signal.SIGTERM)
        finish(stopped, log)
        assert running.line(stopped, log, "stopped")["message"].startswith("SIGTERM")
        killed, log = clients["budapest"]
        running.line(killed, log, "task")
        killed.kill()
        killed.wait()
        for name in ("cleveland", "budapest"):
            clients[name] = running.client(name)
        for process, log in clients.values():
            finish(process, log)
        finish(server)
        check_same(running)
