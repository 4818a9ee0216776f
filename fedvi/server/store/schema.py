"""The database schema of a server's folder, and the functions that read it.

    FOLDER/state.sqlite    cells, arrays, accepted, history, chain (append-only), events, meta
    FOLDER/blobs/ab/abcd…  arrays above 1 MiB, named by their SHA-256

The state can be read while a server uses it: each read sees one committed state.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Ledger
from fedvi.server.core.state import ServerState
from fedvi.server.store import state_cells
from fedvi.server.store.journal import Event
from fedvi.server.store.state_cells import Key, Reference
from fedvi.store import blobs, files
from fedvi.typing import Eta

__all__ = [
    "APPLICATION",
    "BLOBS",
    "DATABASE",
    "MIGRATIONS",
    "VERSIONS",
    "array_of",
    "check_arrays",
    "damage_reported",
    "events_after",
    "opened",
    "read_appended",
    "read_cells",
    "read_ledgers",
    "read_state",
]

DATABASE = "state.sqlite"
"""The database's name within a server's folder."""

BLOBS = "blobs"
"""The name, within a server's folder, of the folder of large arrays."""

APPLICATION = 0x66647673
"""The application id in the database's header: "fdvs"."""

MIGRATIONS = (
    """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE cells (
  number INTEGER PRIMARY KEY,
  field TEXT NOT NULL,
  item TEXT NOT NULL,
  text TEXT NOT NULL,
  UNIQUE (field, item)
);
CREATE TABLE arrays (sha256 TEXT PRIMARY KEY, size INTEGER NOT NULL, data BLOB);
CREATE TABLE accepted (
  position INTEGER PRIMARY KEY, task_id TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL
);
CREATE TABLE history (position INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TABLE chain (
  client TEXT NOT NULL, position INTEGER NOT NULL, line TEXT NOT NULL, PRIMARY KEY (client, position)
);
CREATE TABLE events (
  number INTEGER PRIMARY KEY,
  at REAL NOT NULL,
  kind TEXT NOT NULL,
  client TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE TRIGGER accepted_keeps_lines BEFORE UPDATE ON accepted
  BEGIN SELECT RAISE(ABORT, 'accepted answers are append-only'); END;
CREATE TRIGGER accepted_keeps_all_lines BEFORE DELETE ON accepted
  BEGIN SELECT RAISE(ABORT, 'accepted answers are append-only'); END;
CREATE TRIGGER history_keeps_lines BEFORE UPDATE ON history
  BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER history_keeps_all_lines BEFORE DELETE ON history
  BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER chain_keeps_lines BEFORE UPDATE ON chain
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER chain_keeps_all_lines BEFORE DELETE ON chain
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER chain_grows_at_its_end BEFORE INSERT ON chain
  WHEN NEW.position IS NOT
    (SELECT coalesce(max(position) + 1, 0) FROM chain WHERE client = NEW.client)
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER events_keep_lines BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_keep_all_lines BEFORE DELETE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
""",
)
"""The script at position i migrates a database from version i to the next; scripts never change."""

VERSIONS = range(1, len(MIGRATIONS) + 1)
"""The known versions; databases are written in the last one."""


def read_state(folder: Path, like: Eta = None) -> ServerState | None:
    """Reads the state in a folder without changing it; a server may be using it.

    Args:
      folder: a server's.
      like: any η of the family; if None, every η is returned as the tuple of its leaves.

    Returns:
      None if nothing was saved yet. Large arrays are read-only memory maps, which stay readable.

    Raises:
      LedgerError: there is no state, or it is damaged.
    """
    with opened(folder) as connection:
        path = folder / DATABASE
        check_arrays(connection, folder)

        def get(reference: Reference) -> np.ndarray:
            return array_of(connection, folder, reference)

        texts = read_cells(connection, path)
        if not texts:
            return None
        with damage_reported(path):
            values = {key: state_cells.decode(key, text, get, like) for key, text in texts.items()}
            return state_cells.assemble(values, read_appended(connection, path))


def read_ledgers(folder: Path) -> dict[str, Ledger]:
    """Reads and verifies the ledger of each client in a server's folder, without changing it.

    Raises:
      LedgerError: there is no state, or a ledger in it is damaged.
    """
    with opened(folder) as connection:
        return _chains(connection, folder / DATABASE)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """Opens one committed state of a server's database for reading, and protects its blobs meanwhile.

    As for every reader, SQLite may create an empty write-ahead log and its index (``-wal``, ``-shm``)
    beside the database.

    Raises:
      LedgerError: there is no database, or it is damaged, or its version is unknown.
    """
    path = folder / DATABASE
    if not path.is_file():
        raise errors.LedgerError(
            f"{folder} holds no server's state: {DATABASE} is not there",
            hint="give the folder that `fedvi server` was started with",
        )
    with (
        files.reported(path),
        blobs.held(folder / BLOBS),
        contextlib.closing(files.open_database(path, "ro")) as connection,
    ):
        version = files.check_schema(connection, path, APPLICATION, VERSIONS)
        if version == 0:
            files.refuse(path, "it is empty")
        if version != VERSIONS[-1]:
            raise errors.LedgerError(
                f"{path} has schema version {version}, expected {VERSIONS[-1]}",
                hint="start the server once: it brings its state up to date",
            )
        connection.execute("BEGIN")
        yield connection


def read_cells(connection: sqlite3.Connection, path: Path) -> dict[Key, str]:
    """Returns the text of every cell, in the order in which they were first written.

    Raises:
      LedgerError: a cell has a field that this version of fedvi does not know.
    """
    with files.reported(path):
        rows = connection.execute("SELECT field, item, text FROM cells ORDER BY number").fetchall()
    unknown = sorted({field for field, _, _ in rows} - state_cells.CELLS.keys())
    if unknown:
        raise errors.LedgerError(
            f"{path} holds `{unknown[0]}` of a run, which this version of fedvi does not know",
            hint="a newer version of fedvi wrote it: use that one",
        )
    return {Key(field, item): text for field, item, text in rows}


def read_appended(connection: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Returns the append-only fields of the state; ledgers are verified.

    Raises:
      LedgerError: a line is missing or was changed.
    """
    with files.reported(path):
        accepted = connection.execute(
            "SELECT position, task_id, sha256 FROM accepted ORDER BY position"
        ).fetchall()
        history = connection.execute(
            "SELECT position, line FROM history ORDER BY position"
        ).fetchall()
    for name, rows in (("accepted answers", accepted), ("history", history)):
        if [row[0] for row in rows] != list(range(len(rows))):
            files.refuse(path, f"a line of the {name} is missing")
    with damage_reported(path):
        return {
            "accepted": {task_id: sha256 for _, task_id, sha256 in accepted},
            "history": tuple(state_cells.update_of(line) for _, line in history),
            "ledgers": _chains(connection, path),
        }


def array_of(connection: sqlite3.Connection, folder: Path, reference: Reference) -> np.ndarray:
    """Returns a read-only array: a memory map of its file, or a copy from its row.

    Raises:
      LedgerError: the array is missing, or has another size.
    """
    path = folder / DATABASE
    row = connection.execute(
        "SELECT size, data FROM arrays WHERE sha256 = ?", (reference.sha256,)
    ).fetchone()
    if row is None or row[0] != reference.size:
        files.refuse(path, f"the array {reference.sha256} is missing, or not of its size")
    size, data = row
    if data is None:
        content = blobs.read(folder / BLOBS, reference.sha256, size)
    else:
        content = np.frombuffer(data, np.uint8).copy()
        content.flags.writeable = False
    return content.view(reference.dtype).reshape(reference.shape)


def check_arrays(connection: sqlite3.Connection, folder: Path) -> dict[str, int]:
    """Hashes every array.

    Returns:
      The size in bytes of each array that has a file of its own, by its digest.

    Raises:
      LedgerError: an array is missing, or its bytes differ from those that were saved.
    """
    path, sizes = folder / DATABASE, {}
    with files.reported(path):
        for sha256, size, data in connection.execute("SELECT sha256, size, data FROM arrays"):
            if data is None:
                blobs.verify(folder / BLOBS, sha256, size)
                sizes[sha256] = size
            elif not _is_array(data, size, sha256):
                files.refuse(path, f"the array {sha256} holds other bytes than were saved")
    return sizes


def _is_array(data: Any, size: int, sha256: str) -> bool:
    """Whether a row holds the bytes that it should; SQLite keeps any type in any column."""
    if not isinstance(data, bytes):
        return False
    return len(data) == size and hashlib.sha256(data).hexdigest() == sha256


def events_after(connection: sqlite3.Connection, after: int, limit: int) -> list[Event]:
    """Returns the lines of the operational log after a number, at most ``limit`` of them."""
    rows = connection.execute(
        "SELECT number, at, kind, client, text FROM events WHERE number > ? ORDER BY number LIMIT ?",
        (after, limit),
    )
    return [Event(*row) for row in rows]


@contextlib.contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Turns errors from malformed content into a ``LedgerError`` that names the file."""
    try:
        yield
    # Of JSON of another shape: a list in the place of a table, too few leaves, too deep a nesting.
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        StopIteration,
        RecursionError,
    ) as error:
        files.refuse(path, f"it holds something else than was saved: {error!r:.200}")


def _chains(connection: sqlite3.Connection, path: Path) -> dict[str, Ledger]:
    lines: dict[str, list[str]] = {}
    with files.reported(path):
        rows = connection.execute(
            "SELECT client, position, line FROM chain ORDER BY client, position"
        )
        for client, position, line in rows:
            if position != len(lines.setdefault(client, [])):
                files.refuse(path, f"a line of the ledger of {client!r} is missing")
            lines[client].append(line)
    found = {}
    for client, chain in lines.items():
        try:
            found[client] = ledgers.from_lines(chain)
        except errors.LedgerError as error:
            raise errors.LedgerError(
                f"{path}: the ledger of {client!r}: {error.message}", error.hint
            ) from error
        if found[client].header.client != client:
            files.refuse(path, f"the ledger of {client!r} is that of another client")
    return found
