"""Copies a server's state while the server runs, and verifies the copy (`fedvi backup`)."""

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.server.store import schema
from fedvi.store import blobs, files, sqlite

__all__ = ["Backup", "back_up"]

_PLAN = "plan.json"
"""The plan beside the state, which is copied if it exists."""

_ARRAYS = "plan"
"""The folder of large arrays that the plan names, each by its digest."""


class Backup(NamedTuple):
    """Summary of a copy.

    Attributes:
      version: of the state; None if nothing was saved yet.
      status: of the run; None likewise.
      rounds: how many are complete.
      size: bytes of the copy.
      anchors: client → the anchor of its ledger.
    """

    version: int | None
    status: str | None
    rounds: int
    size: int
    anchors: Mapping[str, ledgers.Anchor]


def back_up(source: Path, to: Path) -> Backup:
    """Copies one committed state of a server, which may be running, into a new folder.

    Guarantee: when it returns, ``to`` holds a state whose every array and ledger was read again
    and verified, and it is on the disk. If it raises, ``to`` is as it was.

    Raises:
      ConfigError: the source is a client's state, or no state at all, or ``to`` is not empty.
      LedgerError: the source is damaged, or the copy cannot be written.
    """
    _check_source(source)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise errors.ConfigError(f"{to} is not empty", "give a new folder for each backup")
    with files.reported(to), contextlib.ExitStack() as undo:
        to.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        undo.callback(shutil.rmtree, part, ignore_errors=True)
        _copy(source, part)
        state = schema.read_state(part)
        anchors = {name: ledgers.anchor(book) for name, book in schema.read_ledgers(part).items()}
        for name in ("-wal", "-shm"):
            (part / (schema.DATABASE + name)).unlink(missing_ok=True)
        size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
        files.sync(part)
        part.rename(to)
        undo.pop_all()
        files.sync(to.parent)
    if state is None:
        return Backup(None, None, 0, size, anchors)
    return Backup(state.version, state.status, min(state.turns.values()), size, anchors)


def _check_source(source: Path) -> None:
    if (source / sqlite.DATABASE).is_file() or source.name == sqlite.DATABASE:
        raise errors.ConfigError(
            f"{source} is a client's state, of which no copy is made: it would keep the secrets that "
            "noise is drawn from after the client erased them, and whoever has them can take the "
            "noise off what was sent",
            "back the server's state up, which keeps this client's ledger too",
        )
    if not (source / schema.DATABASE).is_file():
        raise errors.ConfigError(
            f"{source} holds no server's state: {schema.DATABASE} is not there",
            "give the folder that `fedvi server` was started with",
        )


def _copy_blobs(source: Path, into: Path, sizes: Mapping[str, int]) -> None:
    store = blobs.Blobs(into)
    for sha256, size in sizes.items():
        store.put({sha256: blobs.read(source, sha256, size)})


def _copy(source: Path, part: Path) -> None:
    database, into = part / schema.DATABASE, part / schema.BLOBS
    with schema.opened(source) as connection:
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(database)) as copy:
            connection.backup(copy)
            rows = copy.execute("SELECT sha256, size FROM arrays WHERE data IS NULL").fetchall()
        _copy_blobs(source / schema.BLOBS, into, dict(rows))
    if (source / _PLAN).is_file():
        _copy_plan(source, part)
    files.sync(database)
    files.sync(into)


def _copy_plan(source: Path, part: Path) -> None:
    text = (source / _PLAN).read_bytes()
    (part / _PLAN).write_bytes(text)
    files.sync(part / _PLAN)
    if not (source / _ARRAYS).is_dir():
        return
    # Copy only the plan's files; digests in the plan that name no file are skipped.
    named = {digest.decode() for digest in re.findall(rb'"([0-9a-f]{64})"', text)}
    paths = (blobs.path_of(source / _ARRAYS, sha256) for sha256 in sorted(named))
    sizes = {path.name: path.stat().st_size for path in paths if path.is_file()}
    _copy_blobs(source / _ARRAYS, part / _ARRAYS, sizes)
    for sha256, size in sizes.items():
        blobs.verify(part / _ARRAYS, sha256, size)
