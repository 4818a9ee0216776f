"""A client killed anywhere goes on as if nothing had happened; one that would not is found out.

Run as a program, this file is the client that gets killed: ``main`` forks one for each point.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.client.worker import Worker
from fedvi.federation.messages import Done, Hello, NextTask, Offer, Receipt, Welcome
from fedvi.privacy import events, ledger, random, release
from fedvi.store.base import Pending
from fedvi.store.sqlite import DATABASE, SqliteClientStore, read_ledger
from fedvi.transport import codec
from fedvi.updates.base import LocalSolver, Shard, Task, finish_natural

FAMILY = expfam.diagonal_gaussian(2)
HEADER = ledger.Header("s", "d", "north", "record", "substitute", "message", False)
COST = events.Unprotected("a sum, noised by the test")
SHARD = Shard({"x": np.arange(8, dtype=np.float32).reshape(4, 2)}, np.ones(4, bool))
STEPS = ("reserve", "note_inputs", "seal", "acknowledge")
POINTS = (
    *(f"{step}: before the commit" for step in STEPS),
    *(f"{step}: after the commit" for step in STEPS),
    "seal: before the erasure",
    "read",
    "computed",
    "delivered",
)


class Server:
    """Two tasks, and a file of what arrived that outlives it."""

    def __init__(self, folder: Path, reach: Callable[[str], None]) -> None:
        self._file = folder / "received"
        self._reach = reach
        self.offered = ""
        prior = FAMILY.isotropic(1.0)
        self.tasks = [
            Task(f"north/{visit}", "north", visit, visit, prior, FAMILY.zeros(), 1.0)
            for visit in range(2)
        ]

    @property
    def received(self) -> list[list[str]]:
        """(task, digest) of all that arrived, in order."""
        return [json.loads(line) for line in lines(self._file)]

    def handle(self, request: Any) -> Any:
        answered = dict(self.received)
        if isinstance(request, Hello):
            return Welcome(0, request.anchor)
        if isinstance(request, NextTask):
            left = [task for task in self.tasks if task.task_id not in answered]
            self.offered = left[0].task_id if left else ""
            return Offer(left[0]) if left else Done("finished")
        codec.decode(request.payload)
        append(self._file, [request.task_id, request.payload.sha256])
        self._reach("delivered")
        known = answered.get(request.task_id, request.payload.sha256)
        return Receipt("accepted" if known == request.payload.sha256 else "conflict", 1)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def append(file: Path, value: Any) -> None:
    with file.open("a") as handle:
        handle.write(json.dumps(value) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def answer(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
    """The sum of the records plus noise: NumPy's, seeded with the key, as it needs no compiling."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key_of("noise"))))
    noised = shard.records["x"].sum(axis=0, dtype=np.float64) + generator.normal(size=2)
    return state, release.disclose({"h": noised, "J": np.ones(2)}, COST.what), {}


def client(
    folder: Path,
    reach: Callable[[str], None] = lambda point: None,
    make_store: Any = SqliteClientStore,
) -> tuple[Worker, Any, Server]:
    """A client over the files of a folder, telling what point it reaches in its second task."""
    store = make_store(folder / "state", HEADER)

    def here(point: str) -> None:
        if server.offered == "north/1":
            reach(point)

    server = Server(folder, here)
    step: list[str] = []

    def traced(statement: str) -> None:
        if step and statement == "COMMIT":
            here(f"{step[-1]}: before the commit")
        if step and statement.startswith("PRAGMA wal_checkpoint"):
            here(f"{step[-1]}: before the erasure")

    store._connection.set_trace_callback(traced)

    def watched(name: str, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            step.append(name)
            result = method(*arguments, **options)
            step.pop()
            here(f"{name}: after the commit")
            return result

        return call

    for name in STEPS:
        setattr(store, name, watched(name, getattr(store, name)))

    def update(*arguments: Any) -> Any:
        result = answer(*arguments)
        append(folder / "computed", codec.encode(result[1]).sha256)
        here("computed")
        return result

    def shard() -> Shard:
        # The charge is on the disk, where another connection sees it, before a record is read.
        entries = read_ledger(folder / "state").entries
        append(folder / "charged", sum(entry.kind == "reserved" for entry in entries))
        here("read")
        return SHARD

    solver = LocalSolver("summing", lambda eta: (), update, finish_natural, COST, 4)
    root = random.secure_root()
    return Worker("north", "d", server, solver, shard, root, store, None), store, server


def finish(worker: Worker) -> None:
    assert any(worker.tick() == "done" for _ in range(20)), "the client does not come to an end"


def holds(folder: Path, secret: bytes) -> bool:
    return any(secret in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def check_restart(folder: Path, make_store: Any = SqliteClientStore) -> None:
    """Checks what a killed client left, starts it again, and checks how it ends."""
    book = read_ledger(folder / "state")
    sealed = {entry.digest for entry in book.entries if entry.kind == "sealed"}
    reserved = [entry.release_id for entry in book.entries if entry.kind == "reserved"]
    arrived = Server(folder, lambda point: None).received
    assert {digest for _, digest in arrived} <= sealed, "more was sent than the ledger holds"
    assert len(lines(folder / "computed")) <= len(reserved)
    charged = [json.loads(line) for line in lines(folder / "charged")]
    assert charged == list(range(1, len(charged) + 1)), "records were read before the charge"

    worker, store, server = client(folder, make_store=make_store)
    pending = store.pending()
    expected = None
    if pending is not None and pending.data is not None:
        keys = functools.partial(random.key, pending.secret)
        expected = codec.encode(answer(keys, (), server.tasks[-1], SHARD)[1]).sha256
    finish(worker)
    store.close()

    kinds = [(entry.kind, entry.release_id) for entry in worker.ledger.entries]
    names = ("north/0#0", "north/1#0")
    steps = [(kind, name) for name in names for kind in ("reserved", "sealed", "sent")]
    assert kinds == steps, "a retry was another release"
    digests = [entry.digest for entry in worker.ledger.entries if entry.digest]
    for task, digest in server.received:
        assert digest == digests[int(task[-1])], "other bytes were sent for the same entry"
    assert {task for task, _ in server.received} == {"north/0", "north/1"}
    assert expected in (None, digests[1]), "the noise was drawn again"
    computed = [json.loads(line) for line in lines(folder / "computed")]
    assert set(computed) == set(digests), "one entry was computed in two ways"
    if pending is not None:
        assert not holds(folder / "state", pending.secret), "a secret was not erased"
    ledger.verify(read_ledger(folder / "state"))


# Killed for good.


def main(folder: Path) -> None:
    """Forks a client for each point and kills it there."""
    for point in POINTS:
        home = folder / point.replace(": ", "-")
        home.mkdir()
        child = os.fork()
        if child == 0:

            def kill(reached: str, point: str = point) -> None:
                if reached == point:
                    os.kill(os.getpid(), signal.SIGKILL)

            finish(client(home, kill)[0])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"the client was not killed at {point!r}: status {status}")


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """One folder for each point, as the killed client left it."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_a_client_killed_at_any_point_goes_on_with_the_same_charge_and_the_same_bytes(
    killed, point, tmp_path
):
    shutil.copytree(killed / point.replace(": ", "-"), tmp_path / "copy")
    check_restart(tmp_path / "copy")


def test_the_points_cover_every_state_that_a_release_can_be_left_in(killed, tmp_path):
    found = set()
    shutil.copytree(killed, tmp_path / "copy")
    for home in (tmp_path / "copy").iterdir():
        with contextlib.closing(SqliteClientStore(home / "state", HEADER)) as store:
            pending = store.pending()
            noted = pending is not None and pending.data is not None
            found.add((ledger.state(store.ledger, "north/1#0"), noted, store.unsent() is not None))
    assert found >= {
        (None, False, False),
        ("reserved", False, False),
        ("reserved", True, False),
        ("sealed", False, True),
        ("sent", False, False),
    }


# Planted bugs, each of which the same checks find. The crash is an error here, not a kill.


class Crash(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def crash(folder: Path, at: str, make_store: Any) -> None:
    def stop(reached: str) -> None:
        if reached == at:
            raise Crash

    worker, store, _ = client(folder, stop, make_store)
    with pytest.raises(Crash):
        finish(worker)
    store.close()


class FreshNoise(SqliteClientStore):
    """Forgets that records were read for an interrupted release, and draws its noise again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection.execute("UPDATE pending SET data = NULL, state = NULL")


class Resolved(SqliteClientStore):
    """Loses the sealed bytes when it is opened, so that the client solves again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection.execute("DELETE FROM outbox")


class ChargedAfterReading(SqliteClientStore):
    """Charges when the records were read."""

    def reserve(self, *arguments: Any) -> Any:
        self.kept = arguments
        self._ledger = arguments[0]
        return Pending(*arguments[1:])

    def note_inputs(self, *arguments: Any, **options: Any) -> None:
        kept = self.kept[0]
        self._ledger = kept._replace(entries=kept.entries[:-1])
        super().reserve(*self.kept)
        super().note_inputs(*arguments, **options)


class KeptSecret(SqliteClientStore):
    """Leaves erased secrets in the log, also when it closes."""

    def _overwrite_erased(self) -> None:
        pass

    def close(self) -> None:
        folder = self._folder
        held = {path: path.read_bytes() for path in folder.iterdir()}
        super().close()
        for path, content in held.items():
            path.write_bytes(content)


class Unsealed(SqliteClientStore):
    """Writes down what was sealed only once it was sent."""

    early: Any = None

    def seal(self, *arguments: Any) -> None:
        self.early, self.before = arguments, self._ledger
        self._ledger = arguments[0]

    def unsent(self) -> Any:
        return self.early and self.early[1:3]

    def acknowledge(self, *arguments: Any) -> None:
        self._ledger = self.before
        super().seal(*self.early)
        self.early = None
        super().acknowledge(*arguments)


# An error that a trace callback raises is swallowed by SQLite: these points take a kill.
@pytest.mark.parametrize("at", [point for point in POINTS if "before" not in point])
def test_the_checks_pass_where_nothing_is_planted(tmp_path, at):
    crash(tmp_path, at, SqliteClientStore)
    check_restart(tmp_path)


@pytest.mark.parametrize(
    ("bug", "at", "found"),
    [
        (FreshNoise, "computed", "one entry was computed in two ways"),
        (Resolved, "seal: after the commit", "a retry was another release"),
        (ChargedAfterReading, "read", "records were read before the charge"),
        (KeptSecret, "computed", "a secret was not erased"),
        (Unsealed, "delivered", "more was sent than the ledger holds"),
    ],
)
def test_a_planted_bug_is_found(tmp_path, bug, at, found):
    crash(tmp_path, at, bug)
    with pytest.raises(AssertionError, match=found):
        check_restart(tmp_path, bug)


# Set back to a backup.


def backup(folder: Path, at: str) -> None:
    """Stops a client at a point, backs its state up, and lets it run to its end."""
    crash(folder, at, SqliteClientStore)
    shutil.copytree(folder / "state", folder / "backup")
    worker, store, _ = client(folder)
    finish(worker)
    store.close()


def restore(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    shutil.copytree(folder / "backup", folder / "state")


@pytest.mark.parametrize("at", ["reserve: after the commit", "read"])
def test_a_client_set_back_before_its_records_were_read_draws_other_noise(tmp_path, at):
    backup(tmp_path, at)
    first = dict(Server(tmp_path, lambda point: None).received)["north/1"]
    anchor = ledger.anchor(read_ledger(tmp_path / "state"))
    restore(tmp_path)
    (tmp_path / "received").write_text((tmp_path / "received").read_text().splitlines()[0] + "\n")
    worker, store, server = client(tmp_path)
    with pytest.raises(errors.LedgerError):
        ledger.check_anchor(worker.ledger, anchor)
    finish(worker)
    store.close()
    assert dict(server.received)["north/1"] != first


def test_a_client_set_back_after_its_records_were_read_sends_the_same_bytes(tmp_path):
    backup(tmp_path, "computed")
    restore(tmp_path)
    worker, store, server = client(tmp_path)
    before = server.received
    (tmp_path / "received").write_text(json.dumps(before[0]) + "\n")
    finish(worker)
    store.close()
    assert server.received == before


def test_a_server_that_holds_other_bytes_says_that_the_client_was_set_back(tmp_path):
    backup(tmp_path, "reserve: after the commit")
    restore(tmp_path)
    worker, store, _ = client(tmp_path)
    received = (tmp_path / "received").read_text()
    (tmp_path / "received").write_text(received.splitlines()[0] + "\n")
    worker.tick()
    (tmp_path / "received").write_text(received)
    with pytest.raises(errors.ProtocolError, match="other answer") as caught:
        worker.tick()
    assert "restored from a backup" in caught.value.hint
    store.close()


# A simulation that leaves its ledgers on the disk.


def simulated(**options: Any) -> Any:
    # Here, since the client that gets killed needs none of it.
    from tests.studies import linear_regression, raw_study, run_study

    reference, sources = linear_regression()
    return run_study(raw_study(list(sources), reference["x"].shape[1]), sources, **options)


def test_a_simulation_keeps_its_ledgers_and_no_secret_where_it_is_told(tmp_path):
    in_memory = simulated()
    result = simulated(state=tmp_path / "state")
    np.testing.assert_array_equal(result.posterior.h, in_memory.posterior.h)
    assert {path.name for path in (tmp_path / "state").iterdir()} == set(result.ledgers)
    for name, book in result.ledgers.items():
        assert read_ledger(tmp_path / "state" / name) == book
        assert book.entries[-1].kind == "sent"
        with contextlib.closing(SqliteClientStore(tmp_path / "state" / name, book.header)) as store:
            assert (store.pending(), store.unsent(), store.load_state()) == (None, None, None)


def test_a_simulation_refuses_a_folder_that_holds_something(tmp_path):
    (tmp_path / "empty").mkdir()
    simulated(state=tmp_path / "empty")
    before = (tmp_path / "empty" / "c0" / DATABASE).read_bytes()
    for folder in (tmp_path / "empty", tmp_path / "empty" / "c0" / DATABASE):
        with pytest.raises(errors.ConfigError, match="is not empty"):
            simulated(state=folder)
    assert (tmp_path / "empty" / "c0" / DATABASE).read_bytes() == before


if __name__ == "__main__":
    main(Path(sys.argv[1]))
