"""`fedvi server` and the operators' commands as processes; clients are links of this one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedvi.federation.messages import Done, Hello, NextTask, Offer, Submit
from fedvi.privacy import ledger as ledgers
from fedvi.run import server_plan
from fedvi.transport.grpc import GrpcLink
from fedvi.updates.base import Task
from tests import pki
from tests.servers import encoded
from tests.studies import raw_study

FEDVI = [sys.executable, "-c", "from fedvi.cli.main import main; main()"]

TELLING = 0.831415
"""Stands in every answer, and may stand in no log."""


def to_toml(value: dict, path: str = "") -> str:
    """Writes the tables of a study; enough of TOML for them."""
    lines, tables = [], []
    for key, item in value.items():
        name = f"{path}.{key}" if path else key
        if isinstance(item, dict):
            tables.append(f"[{name}]\n{to_toml(item, name)}")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            tables += [f"[[{name}]]\n{to_toml(entry, name)}" for entry in item]
        else:
            lines.append(f"{key} = {json.dumps(item)}")
    return "\n".join([*lines, *tables])


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.toml"
    raw = raw_study(["south", "north"], 2, schedule={"kind": "synchronous", "rounds": 2})
    path.write_text(to_toml(raw), encoding="utf-8")
    return path


def fedvi(*arguments, expect: int = 0, **options) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [*FEDVI, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )
    assert done.returncode == expect, done.stderr
    return done


class Process:
    """A `fedvi server` that runs; its log is read as it comes."""

    def __init__(
        self, study: Path, state: Path, *options: str, before: tuple[str, ...] = ()
    ) -> None:
        command = [*before, *FEDVI, "server", str(study), "--state", str(state)]
        command += ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict] = []
        self.ready = threading.Event()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"kind": "text", "message": line})
            if self.lines[-1]["kind"] == "ready":
                self.ready.set()
        self.ready.set()

    @property
    def listen(self) -> str:
        return next(line["listen"] for line in self.lines if line["kind"] == "ready")

    def end(self, expect: int, number: int | None = None) -> str:
        if number is not None:
            self.process.send_signal(number)
        output = self.process.stdout.read()
        assert self.process.wait(20.0) == expect, self.lines
        self.process.stdout.close()
        self._reading.join(5.0)
        self.process.stderr.close()
        return output


@contextlib.contextmanager
def server(study, state, *options, before=()):
    running = Process(study, state, *options, before=before)
    try:
        assert running.ready.wait(60.0)
        assert running.process.poll() is None, running.lines
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running._reading.join(5.0)
        running.process.stdout.close()
        running.process.stderr.close()


def factor_of(plan, task: Task, name: str):
    """An answer of the form that the study's solver sends."""
    size = len(plan.names)
    cost = server_plan.to_spec(plan).costs[name]
    event = json.dumps(server_plan.events.to_json(cost), sort_keys=True, separators=(",", ":"))
    h, precision = np.asarray(task.posterior.h), np.asarray(task.posterior.J)
    return encoded({"h": h + TELLING, "J": precision + np.eye(size)}, event)


def work(listen: str, state: Path, name: str, answers: int | None = None) -> list:
    """A client without records, to the end or for so many answers."""
    plan = server_plan.read(state / server_plan.FILE)
    spec = server_plan.to_spec(plan)
    link, replies = GrpcLink(listen, name, spec.prior, give_up_after=20.0), []
    book = ledgers.open_ledger(spec.headers[name])
    with contextlib.closing(link):
        link.handle(Hello(name, plan.digest, ledgers.anchor(book)))
        while answers is None or len(replies) < answers:
            match link.handle(NextTask(name)):
                case Offer(task):
                    payload = factor_of(plan, task, name)
                    replies.append(link.handle(Submit(name, task.task_id, payload)))
                case Done(reason):
                    return [*replies, reason]
    return replies


@pytest.mark.nightly
def test_a_run_from_start_to_result_without_jax(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state, "--linger", "30") as running:
        assert running.process.poll() is None
        maps = Path(f"/proc/{running.process.pid}/maps")
        if maps.exists():
            assert "jaxlib" not in maps.read_text()
        run = json.loads(fedvi("status", state, "--json").stdout)
        assert (run["status"], run["tls"], run["version"]) == ("running", "insecure", 0)
        assert {row["name"]: row["state"] for row in run["clients"]} == {
            "south": "unseen",
            "north": "unseen",
        }
        assert fedvi("health", state).stdout == "serving\n"
        threads = [
            threading.Thread(target=work, args=(running.listen, state, name))
            for name in ("south", "north")
        ]
        for thread in threads:
            thread.start()
        output = running.end(0)
        for thread in threads:
            thread.join(20.0)
    assert "Posterior of test" in output
    assert "south 2, north 2" in output
    folds = [line for line in running.lines if line["kind"] == "folded"]
    assert [(fold["rounds"], sorted(fold["clients"])) for fold in folds] == [
        (1, ["north", "south"]),
        (2, ["north", "south"]),
    ]
    assert all(fold["missing"] == [] for fold in folds)
    posterior = np.load(state / "result" / "posterior.npz")
    result = json.loads((state / "result" / "result.json").read_text())
    assert result["status"] == "completed"
    assert [row["mean"] for row in result["coefficients"]] == posterior["mean"].tolist()
    fedvi("health", state, expect=3)
    run = json.loads(fedvi("status", state, "--json").stdout)
    assert (run["server"], run["status"], run["version"]) == ("stopped", "completed", 2)
    assert "the server has ended" in fedvi("status", state).stdout


@pytest.mark.nightly
def test_sigterm_keeps_the_run_and_the_next_start_goes_on(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state) as running:
        work(running.listen, state, "south", 1)
        assert running.end(0, signal.SIGTERM) == ""
    assert running.lines[-1]["kind"] == "stopped"
    with server(study, state) as running:
        run = json.loads(fedvi("status", state, "--json").stdout)
        assert {row["name"]: row["charged"] for row in run["clients"]} == {"south": 1, "north": 0}
        events = [
            json.loads(line)
            for line in fedvi("watch", state, "--once", "--json").stdout.splitlines()
        ]
        assert [event["kind"] for event in events].count("joined") == 1
        after = events[-1]["number"]
        assert fedvi("watch", state, "--once", "--after", after).stdout == ""


@pytest.mark.nightly
def test_a_killed_server_is_taken_up_and_its_socket_replaced(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state) as running:
        work(running.listen, state, "south", 1)
        running.process.kill()
        running.process.wait()
    began = time.monotonic()
    with server(study, state):
        assert time.monotonic() - began < 60.0
        run = json.loads(fedvi("status", state, "--json").stdout)
        assert {row["name"]: row["charged"] for row in run["clients"]} == {"south": 1, "north": 0}


@pytest.mark.nightly
def test_an_operator_pauses_resumes_and_stops(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state, "--linger", "0") as running:
        assert json.loads(fedvi("pause", state, "--json").stdout)["status"] == "paused"
        assert json.loads(fedvi("resume", state, "--json").stdout)["status"] == "running"
        fedvi("stop", state, expect=1)  # nobody confirms
        assert "test: running" in fedvi("status", state).stdout
        assert json.loads(fedvi("stop", state, "--yes", "--json").stdout)["status"] == "stopped"
        running.end(6)
    assert (state / "result" / "posterior.json").is_file()


@pytest.mark.nightly
def test_one_folder_has_one_server(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state):
        done = fedvi("server", study, "--state", state, "--listen", "127.0.0.1:0", expect=5)
        assert "is in use" in done.stderr
        # The first one is not disturbed.
        assert fedvi("health", state).stdout == "serving\n"


@pytest.mark.nightly(
    but=(
        "options5-2-leave out one of the two",
        "options3-2---metrics is '9464', expected HOST:PORT",
        "options1-2---listen is '127.0.0.1', expected HOST:PORT",
    )
)
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--listen", "0.0.0.0:0"], 2, "there is no --tls"),
        # gRPC would take port 443, and 34463.
        (["--listen", "127.0.0.1"], 2, "--listen is '127.0.0.1', expected HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], 2, "expected HOST:PORT with a port up to 65535"),
        (["--metrics", "9464"], 2, "--metrics is '9464', expected HOST:PORT"),
        (["--tls", "nowhere"], 2, "nowhere"),
        (["--insecure", "--tls", "nowhere"], 2, "leave out one of the two"),
        (["--listen", "nowhere.invalid:1"], 2, "there is no --tls"),
        (["--listen", "nowhere.invalid:1", "--insecure"], 3, "cannot be bound"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_exit_code(study, tmp_path, options, code, text):
    done = fedvi("server", study, "--state", tmp_path / "state", *options, expect=code)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_commands_without_a_server_say_so(tmp_path):
    for command in ("status", "watch", "pause", "resume", "stop", "health"):
        done = fedvi(command, tmp_path, expect=3)
        assert "no server runs on" in done.stderr
        done = fedvi(command, cwd=tmp_path, expect=2)
        assert "none is found in .fedvi" in done.stderr
        fedvi(command, tmp_path, "--server", "127.0.0.1:1", expect=2)
        fedvi(command, tmp_path, "--tls", "x", expect=2)
    assert "cannot be reached" in fedvi("health", "--server", "127.0.0.1:1", expect=3).stderr


@pytest.mark.parametrize(
    "command", ["status", "watch", "pause", "stop", "remove", "health", "server"]
)
def test_the_commands_import_no_jax_and_the_light_ones_no_numpy(command):
    code = f"import sys, fedvi.cli.{command}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"jax", "jaxlib", "numpyro"} & loaded
    assert command == "server" or "numpy" not in loaded


def test_the_log_holds_one_object_a_line_and_no_number_of_an_answer(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state) as running:
        work(running.listen, state, "south", 1)
        work(running.listen, state, "north", 1)
        running.end(0, signal.SIGTERM)
    assert not [line for line in running.lines if line["kind"] == "text"]
    assert any(line["kind"] == "folded" for line in running.lines)
    assert "31415" not in json.dumps(running.lines)


@pytest.mark.nightly
def test_the_status_of_a_killed_server_is_what_it_saved(study, tmp_path):
    state = tmp_path / "state"
    with server(study, state) as running:
        threads = [
            threading.Thread(target=work, args=(running.listen, state, name, 1))
            for name in ("south", "north")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        before = json.loads(fedvi("status", state, "--json").stdout)
        running.process.kill()
        running.process.wait(20.0)
    found = json.loads(fedvi("status", state, "--json").stdout)
    assert (before["server"], found["server"]) == ("running", "stopped")
    for key in ("study", "digest", "status", "version", "rounds", "gap", "damping"):
        assert found[key] == before[key], key
    for row, known in zip(found["clients"], before["clients"], strict=True):
        for key in ("name", "visits", "turns", "charged", "task", "ledger"):
            assert row[key] == known[key], key
    text = fedvi("status", state).stdout
    assert "THE SERVER IS STOPPED; it saved round" in text
    assert "south" in text
    # Only looking works without a server.
    assert "no server runs on" in fedvi("pause", state, expect=3).stderr


def test_an_operator_calls_no_other_machine_in_clear_text():
    for command in ("status", "watch", "pause", "resume", "stop"):
        done = fedvi(command, "--server", "fedvi.example.org:7444", expect=2)
        assert "is on another machine, and --tls is not given" in done.stderr


def test_grpc_is_silent_below_errors_unless_somebody_asks():
    code = "import os, fedvi.cli.main; print(os.environ['GRPC_VERBOSITY'])"
    for asked, expected in (({}, "ERROR"), ({"GRPC_VERBOSITY": "DEBUG"}, "DEBUG")):
        rest = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**rest, **asked},
            check=True,
        )
        assert done.stdout.strip() == expected


def test_what_knocks_without_tls_leaves_no_line_in_the_log(study, tmp_path):
    root = pki.authority_in(tmp_path / "ca")
    folder = pki.party(root, "server", "server", hosts=("127.0.0.1",))
    options = ("--tls", str(folder), "--roster", str(root / "roster.json"))
    with server(study, tmp_path / "state", *options) as running:
        host, _, port = running.listen.rpartition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as knocking:
                knocking.sendall(b"GET / HTTP/1.0\r\n\r\n")
                knocking.recv(1)
        running.end(0, signal.SIGTERM)
    assert all(line["kind"] != "text" for line in running.lines)
