"""A client is removed from a run over real gRPC, or joins it; servers restart between."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import Hello
from fedvi.privacy import ledger
from fedvi.run import loading, simulate, site
from fedvi.server.core import protocol
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store.sqlite import SqliteClientStore
from fedvi.study.build import Assembly
from fedvi.study.config import load_study
from fedvi.transport._wire import admin_pb2 as pb
from fedvi.transport.grpc import GrpcLink
from tests.integration.test_server_cli import FEDVI, fedvi, server
from tests.servers import Running, running
from tests.sites import NAMES, assembled, study_file

EXACT: dict[str, Any] = {
    "solver": {"kind": "exact"},
    "privacy": {"protection": "none"},
    "simulation": {},
}


def rounds_of(
    at: Running, assembly: Assembly, base: Path, names: tuple[str, ...], rounds: int
) -> None:
    """Lets each client answer so many times in turn, or hear of the end, as it does over a network."""
    with contextlib.ExitStack() as closing:
        workers = []
        for name in names:
            link = GrpcLink(at.addresses.listen, name, assembly.family.zeros(), delays=(0.02, 0.5))
            closing.callback(link.close)
            store = SqliteClientStore(base / "sites" / name, assembly.header(name))
            closing.callback(store.close)
            shard = site.file_shard(assembly, name, base / f"{name}.csv")
            workers.append(site.client_worker(assembly, name, link, store, shard))
        for _ in range(rounds):
            for worker in workers:
                outcomes = [worker.tick()]
                while outcomes[-1] in ("idle", "solved"):
                    outcomes.append(worker.tick())
                assert outcomes[-1] in ("sent", "done"), outcomes


def simulated(study: Path, **changes: Any) -> simulate.Result:
    assembly = assembled(study)
    return simulate.run(assembly, loading.load_shards(assembly, study.parent), **changes)


@contextlib.contextmanager
def served(study: Path, *earlier: str) -> Iterator[tuple[Running, Assembly]]:
    """A server over the state in the study's folder, which it takes up."""
    assembly, folder = assembled(study), study.parent / "server"
    with (
        contextlib.closing(SqliteServerStore(folder, assembly.spec, earlier)) as store,
        running(store.spec, folder, store, linger_seconds=0.0) as at,
    ):
        yield at, assembly


def check_equal(study: Path, result: simulate.Result) -> None:
    """The server's state and the clients' ledgers are those of a simulation, bit for bit."""
    assembly = assembled(study)
    with contextlib.closing(SqliteServerStore(study.parent / "server", assembly.spec)) as store:
        state = store.load()
    assert state is not None
    assert state.status == "completed"
    assert tree.equal(protocol.reported(assembly.spec, state), result.posterior)
    assert state.history == result.history
    assert dict(state.ledgers) == dict(result.ledgers)
    for name, book in result.ledgers.items():
        header = assembly.header(name)
        with contextlib.closing(SqliteClientStore(study.parent / "sites" / name, header)) as store:
            assert store.ledger == book


def test_over_grpc_a_removal_comes_to_what_it_comes_to_in_a_simulation(tmp_path: Path) -> None:
    study = study_file(tmp_path, "sequential")
    with served(study) as (at, assembly):
        rounds_of(at, assembly, tmp_path, NAMES, 1)
        run = at.admin().RemoveClient(pb.RemoveClientRequest(client="east"))
        assert {row.name: row.state for row in run.clients} == {
            "north": "idle",
            "east": "removed",
            "south": "idle",
        }
        kinds = [event.kind for event in at.admin().WatchRun(pb.WatchRunRequest(once=True))]
        assert kinds.count("removed") == 1
        rounds_of(at, assembly, tmp_path, ("east",), 1)
    with served(study) as (at, assembly):
        assert at.app._coordinator.state.away["east"] == protocol.REMOVED
        rounds_of(at, assembly, tmp_path, ("north", "south"), 2)
    check_equal(study, simulated(study, remove={"east": 1}))


def test_over_grpc_a_client_joins_as_it_does_in_a_simulation(tmp_path: Path) -> None:
    study = study_file(tmp_path, "sequential")
    longer = json.loads(study.read_text())
    study.write_text(json.dumps({**longer, "clients": longer["clients"][:2]}))
    with served(study) as (at, assembly):
        rounds_of(at, assembly, tmp_path, NAMES[:2], 1)
    begun, digest = assembly, assembly.study.digest
    longer["clients"][2]["added"] = True
    study.write_text(json.dumps(longer))
    with served(study, *load_study(study).earlier_digests) as (at, assembly):
        # Whoever still has the shorter study is told so.
        with contextlib.closing(at.link(begun.spec, "north")) as link:
            anchor = ledger.anchor(at.app._coordinator.state.ledgers["north"])
            with pytest.raises(errors.ProtocolError, match=r"read another study"):
                link.handle(Hello("north", digest, anchor))
        rounds_of(at, assembly, tmp_path, NAMES, 2)
    check_equal(study, simulated(study, add={"south": 1}))


class Client:
    """A `fedvi client` that runs."""

    def __init__(self, study: Path, name: str, listen: str) -> None:
        self.log = (study.parent / f"{name}.log").open("ab")
        command = [sys.executable, "-c", "from fedvi.cli.main import main; main()", "client"]
        command += [str(study), "--as", name, "--data", str(study.parent / f"{name}.csv")]
        command += ["--state", str(study.parent / "sites" / name), "--server", listen]
        command += ["--give-up-after", "60"]
        command += ["--allow-unprotected", "--allow-simulated-noise"]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)

    def end(self, expect: int) -> None:
        try:
            assert self.process.wait(120.0) == expect
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


@pytest.mark.nightly
def test_an_operator_removes_a_client_and_adds_another_by_command_and_the_posterior_is_exact(
    tmp_path: Path,
) -> None:
    """Two clients, one removed, the server restarted with a third: that of the first and the third."""
    schedule = {"kind": "synchronous", "rounds": 2}
    whole = json.loads(study_file(tmp_path, **EXACT, schedule=schedule).read_text())
    study, state = tmp_path / "study.json", tmp_path / "state"
    study.write_text(json.dumps({**whole, "clients": whole["clients"][:2]}))
    with server(study, state) as at:
        east = Client(study, "east", at.listen)
        try:
            wait_for(state, lambda run: {"east": "answered"}.items() <= states(run).items())
            fedvi("remove", state, "--client", "east", expect=1)  # nobody confirms
            fedvi("remove", state, "--client", "west", "--yes", expect=2)
            run = json.loads(fedvi("remove", state, "--client", "east", "--yes", "--json").stdout)
            assert states(run)["east"] == "removed"
            fedvi("remove", state, "--client", "north", "--yes", expect=2)  # nobody would be left
        finally:
            # It is told, and ends.
            east.end(0)
        at.end(0, signal.SIGTERM)
    assert b"'east' was removed from the run" in (tmp_path / "east.log").read_bytes()
    assert states(json.loads(fedvi("status", state, "--json").stdout))["east"] == "removed"
    whole["clients"][2]["added"] = True
    study.write_text(json.dumps(whole))
    assert "--extend" in fedvi("server", study, "--state", state, expect=5).stderr
    with server(study, state, "--extend") as at:
        clients = [Client(study, name, at.listen) for name in ("north", "south")]
        for client in clients:
            client.end(0)
        output = at.end(0)
    assert "east was removed at version 1: its factor is not in the posterior, and what" in output
    assert "south was added at version 1" in output
    result = json.loads((state / "result" / "result.json").read_text())
    assert {row["name"]: row["removed"] for row in result["clients"]} == {
        "north": False,
        "east": True,
        "south": False,
    }
    assert {row["name"]: row["charged"] for row in result["clients"]} == {
        "north": 2,
        "east": 1,
        "south": 2,
    }
    clients_without = [client for client in whole["clients"] if client["name"] != "east"]
    study.write_text(json.dumps({**whole, "clients": clients_without}))
    expected = simulated(study).posterior
    found = np.load(state / "result" / "posterior.npz")
    for field in ("h", "J"):
        np.testing.assert_allclose(found[field], getattr(expected, field), rtol=1e-9, atol=1e-9)


README = re.compile(r"^(?P<who>[\w-]+)\$ (?P<command>.+)$", re.MULTILINE)


@pytest.mark.nightly
def test_clients_join_and_leave_over_a_network_by_the_commands_of_the_readme(
    examples: Path, tmp_path: Path
) -> None:
    """Each prompt is a process; a new command at a prompt ends what runs there, as Ctrl-C does."""
    for name in ("continual", "heart-disease"):
        shutil.copytree(examples / name, tmp_path / "examples" / name)
    text = (examples / "continual" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(\w+\$.*?)^```$", text, re.DOTALL | re.MULTILINE)
    # What the README says of where the run stands before the next block.
    waits = [("budapest", {"cleveland"}), ("long-beach", {"cleveland", "budapest", "switzerland"})]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Terminals(tmp_path) as terminals:
        for block, waited in zip(blocks, [*waits, None], strict=True):
            for who, command in README.findall(block):
                terminals.run(who, command.replace("7443", str(port)))
            if waited is not None:
                last, answered = waited
                run = terminals.wait_for(lambda run, last=last: run["awaited"] == [last])
                assert {row["name"] for row in run["clients"] if row["visits"] == 1} == answered
        found = terminals.printed("server")
    shown = re.search(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert shown is not None
    # The figures depend on no seed: the solver iterates to the mode, and nothing is noised.
    printed = {line.rstrip() for line in found.splitlines()}
    for line in shown[1].splitlines():
        assert line.rstrip() in printed, found


class Terminals:
    """Terminals in one folder, each of which runs one command at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "130"}

    def __enter__(self) -> "Terminals":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def run(self, who: str, command: str) -> None:
        """Ends what runs there, and starts a command; waits for one that is no server or client."""
        before = self._running.get(who)
        if before is not None and before.poll() is None:
            before.send_signal(signal.SIGINT)
            assert before.wait(180.0) == 0, self.errors(who)
        with (
            (self._folder / f"{who}.out").open("ab") as out,
            (self._folder / f"{who}.err").open("ab") as err,
        ):
            # In place of the shell, so that a signal reaches the command itself.
            words = "" if "|" in command or ">" in command else "exec "
            self._running[who] = subprocess.Popen(
                ["bash", "-ec", words + command],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                env=self._environment,
            )
        if not re.match(r"fedvi (server|client) ", command):
            assert self._running[who].wait(180.0) == 0, self.errors(who)

    def wait_for(self, wanted: Any) -> dict[str, Any]:
        """Waits until the run is as wanted, and returns it; a server that only begins has none."""
        # From this folder: pytest's may be too deep for the path of a socket.
        command = [*FEDVI, "status", "--json"]
        for _ in range(120):
            done = subprocess.run(command, capture_output=True, check=False, cwd=self._folder)
            if done.returncode == 0:
                run: dict[str, Any] = json.loads(done.stdout)
                if wanted(run):
                    return run
            time.sleep(0.5)
        raise AssertionError(done.stderr.decode() + "".join(map(self.errors, self._running)))

    def printed(self, who: str) -> str:
        """Returns what a terminal showed, once all that runs has ended well."""
        for name, process in self._running.items():
            assert process.wait(120.0) == 0, self.errors(name)
        return (self._folder / f"{who}.out").read_text(encoding="utf-8")

    def errors(self, who: str) -> str:
        return (self._folder / f"{who}.err").read_text(encoding="utf-8")


def states(run: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in run["clients"]}


def wait_for(state: Path, wanted: Any) -> None:
    for _ in range(200):
        if wanted(json.loads(fedvi("status", state, "--json").stdout)):
            return
    raise AssertionError("the run does not come to it")
