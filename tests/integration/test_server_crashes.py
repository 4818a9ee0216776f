"""A server that is killed at any point of a save goes on from the state before or after, bit for bit.

What a power cut adds, bytes that never left the cache, is tested by the order of fsync, rename and
commit in `tests/unit/server/test_durable.py`.
"""

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedvi import errors
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.state import ServerState
from fedvi.server.store import durable, schema
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.schema import BLOBS, DATABASE
from fedvi.store.memory import MemoryServerStore
from fedvi.typing import Eta
from tests.states import FILED, LIMIT, frozen, make_spec, play

SPEC = make_spec(FILED)
BEFORE = (
    "before the blobs",
    "a blob is half written",
    "a blob is there without a name",
    "after a blob",
    "before the commit",
)
AFTER = ("after the commit", "one file is deleted", "after the save", "what a fold makes is kept")
# 1 the first task, 2 an answer, 6 a fold, 7 a task whose arrays have files, 12 the last fold
POINTS = (
    *itertools.product(BEFORE, (1, 2, 6, 12)),
    *itertools.product(("before the commit", "after the commit"), (7,)),
    *itertools.product(("after the commit", "after the save"), (1, 2, 6, 12)),
    *itertools.product(("one file is deleted",), (6, 12)),
    # The folds before the sixth and the twelfth save.
    *itertools.product(("what a fold makes is kept",), (5, 11)),
)


class Crashing(SqliteServerStore):
    """Says which point of which save it reaches."""

    def __init__(self, folder: Path, reach: Callable[[str, int], None]) -> None:
        self.number = 0
        self._reach = lambda point: reach(point, self.number)
        super().__init__(folder, SPEC)
        self._connection.set_trace_callback(
            lambda line: self._reach("before the commit") if line == "COMMIT" else None
        )
        put, drop = self._blobs.put, self._blobs.drop

        def watched_put(*arguments) -> None:
            self._reach("before the blobs")
            put(*arguments)
            self._reach("after a blob")

        def watched_drop(names) -> None:
            self._reach("after the commit")
            drop(names)

        self._blobs.put, self._blobs.drop = watched_put, watched_drop

    def keep(self, eta: Eta) -> Eta:
        kept = super().keep(eta)
        self._reach("what a fold makes is kept")
        return kept

    def save(self, state: ServerState) -> ServerState:
        self.number += 1
        kept = super().save(state)
        self._reach("after the save")
        return kept


def watch_files(reach: Callable[[str], None]) -> None:
    """Tells of what happens to a file in between."""
    fsync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def watched_fsync(descriptor: int) -> None:
        reach("a blob is half written")
        fsync(descriptor)

    def watched_rename(path: Path, target: Path) -> None:
        reach("a blob is there without a name")
        rename(path, target)

    def watched_unlink(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        reach("one file is deleted")

    os.fsync, Path.rename, Path.unlink = watched_fsync, watched_rename, watched_unlink


def lower_limits(set_attribute: Callable[..., None] = setattr) -> None:
    set_attribute(durable, *LIMIT)


def main(folder: Path) -> None:
    """Forks a server for each point and kills it there."""
    lower_limits()
    for number, (at, save) in enumerate(POINTS):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), f"{at} of save {save} was not reached: {status}"
            continue
        try:

            def reach(point: str, found: int, at: str = at, save: int = save) -> None:
                if point == at and found == save:
                    os.kill(os.getpid(), signal.SIGKILL)

            store = Crashing(folder / str(number), reach)
            watch_files(store._reach)
            # Elsewhere large arrays are written by the save itself, as those of an answer are.
            spec = store.spec if at == "what a fold makes is kept" else SPEC
            play(spec, Coordinator(spec, store))
        finally:
            os._exit(3)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.test_server_crashes", str(folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def saves() -> list:
    """What an undisturbed run saves, in order; nothing before the first."""
    found = [None]

    class Noting(MemoryServerStore):
        def save(self, state: ServerState) -> ServerState:
            found.append(frozen(state))
            return super().save(state)

    play(SPEC, Coordinator(SPEC, Noting()))
    assert len(found) == 13
    return found


@pytest.mark.nightly(only=("before the blobs 1", "before the blobs 2"))
@pytest.mark.parametrize("number", range(len(POINTS)), ids=lambda n: " ".join(map(str, POINTS[n])))
def test_a_killed_server_goes_on_bit_for_bit(killed, saves, monkeypatch, number):
    lower_limits(monkeypatch.setattr)
    (at, save), folder = POINTS[number], killed / str(number)
    with contextlib.closing(SqliteServerStore(folder, SPEC)) as store:
        found = store.load()
        expected = saves[save] if at in AFTER else saves[save - 1]
        assert (found if found is None else frozen(found)) == expected
        with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
            rows = connection.execute("SELECT sha256 FROM arrays WHERE data IS NULL").fetchall()
        there = {path.name for path in (folder / BLOBS).rglob("*") if path.is_file()}
        assert there == {name for (name,) in rows}, "what the crash left lies about"
        play(store.spec, Coordinator(store.spec, store))
        assert frozen(store.load()) == saves[-1]
    assert frozen(schema.read_state(folder, SPEC.prior)) == saves[-1]


# The checks find what they are to find.


def crash(folder: Path, at: str, save: int, make_store=Crashing) -> None:
    """Stops a server at a point by an error that nothing catches, as a kill would."""

    class Killed(BaseException):
        pass

    def reach(point: str, found: int) -> None:
        if (point, found) == (at, save):
            raise Killed

    store = make_store(folder, reach)
    with contextlib.suppress(Killed):
        play(SPEC, Coordinator(SPEC, store))
    store.close()


class CommitsFirst(Crashing):
    """Writes the files after the commit that names them."""

    def _write_blobs(self, fresh) -> None:
        self._late = fresh

    def _settled(self, state, arrays):
        super()._write_blobs(self._late)
        return super()._settled(state, arrays)


class DeletesFirst(Crashing):
    """Deletes the files that the new state does not name before it is committed."""

    def _write_blobs(self, fresh) -> None:
        super()._write_blobs(fresh)
        keep = {reference.sha256 for reference in fresh}
        for path in (self._folder / BLOBS).glob("??/*"):
            if path.name not in keep:
                path.unlink()
        self._reach("before the commit")


class CommitsTwice(Crashing):
    """Saves the posterior in one transaction and the rest in another."""

    def save(self, state: ServerState) -> ServerState:
        before = self.load()
        if before is not None and state.version > before.version:
            super().save(before._replace(posterior=state.posterior))
            self._reach("after the commit")
        return super().save(state)


@pytest.mark.parametrize(
    ("bug", "at"),
    [
        (CommitsFirst, "before the blobs"),
        (DeletesFirst, "before the commit"),
        (CommitsTwice, "after the commit"),
    ],
)
def test_a_planted_bug_is_found(tmp_path, saves, monkeypatch, bug, at):
    lower_limits(monkeypatch.setattr)
    crash(tmp_path, at, 6, bug)
    with pytest.raises((errors.LedgerError, AssertionError), match=r"cannot be read|between"):
        check_found(tmp_path, saves)


def check_found(folder: Path, saves: list) -> None:
    assert frozen(schema.read_state(folder, SPEC.prior)) in saves, "a state in between"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
