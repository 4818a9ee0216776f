"""Keeps a client's ledger, secrets and outbox on disk, safe from a power cut.

    FOLDER/ledger.sqlite   chain (append-only), pending, outbox, state, meta
    FOLDER/lock            held by the one process that may write

Every transaction is on the disk before its method returns (WAL, synchronous=FULL). Whenever a secret or
private state is erased, its bytes are overwritten in the database and, after the commit, the write-ahead
log is emptied. If that fails, because a reader holds the log, the method raises, its change stays, and
the next opening empties the log first, or refuses. This file cannot erase old blocks that a file system
or flash disk keeps of overwritten files, the process's own memory, or backups taken in between.
"""

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Header, Ledger
from fedvi.store import base, files

__all__ = ["DATABASE", "Evidence", "SqliteClientStore", "read_evidence", "read_ledger"]

DATABASE = "ledger.sqlite"
"""The database's name within a store's folder."""

_APPLICATION = 0x66647669  # "fdvi" in the file's header
_VERSIONS = range(1, 2)
_CERTIFICATE = "certificate/"
_IN_USE = "a client runs once: stop the other one, or give this one another folder"

_SCHEMA = """
CREATE TABLE chain (position INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TRIGGER chain_keeps_lines BEFORE UPDATE ON chain
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER chain_keeps_all_lines BEFORE DELETE ON chain
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER chain_grows_at_its_end BEFORE INSERT ON chain
  WHEN NEW.position IS NOT (SELECT coalesce(max(position) + 1, 0) FROM chain)
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TABLE pending (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 0),
  release_id TEXT NOT NULL,
  secret BLOB NOT NULL CHECK (length(secret) = 32),
  task BLOB NOT NULL,
  data BLOB,
  state BLOB CHECK ((state IS NULL) = (data IS NULL))
);
CREATE TABLE outbox (
  number INTEGER PRIMARY KEY,
  release_id TEXT NOT NULL UNIQUE,
  event TEXT NOT NULL,
  sha256 TEXT NOT NULL
);
CREATE TABLE tensors (
  number INTEGER NOT NULL REFERENCES outbox (number) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  form TEXT NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (number, position)
);
CREATE TABLE state (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), bytes BLOB NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


class SqliteClientStore:
    """A client's ledger, secrets and outbox in one folder; see ``base.ClientStore``.

    Guarantee: entries are only ever appended; what was changed in the file by other hands is
    refused when it is opened, except for entries missing from the end, which only another party
    that saw the ledger's last hash can tell (``ledger.check_anchor``).

    Args:
      folder: created, readable only by its owner, if missing.
      header: of the ledger; an existing ledger must have the same one.

    Raises:
      LedgerError: the store is in use, damaged, of another study, client or promise, of another
        version of fedvi, or cannot be written.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self._folder = folder
        with contextlib.ExitStack() as undo:
            self._lock = files.lock_folder(folder, _IN_USE)
            undo.callback(os.close, self._lock)
            path = folder / DATABASE
            with files.reported(path):
                self._connection = files.connect(path, secure_delete=True)
                undo.callback(self._connection.close)
                if not files.check_schema(self._connection, path, _APPLICATION, _VERSIONS):
                    files.check_fresh(path, self._lock)
                    self._create(header)
                self._ledger = _read(self._connection, path)
                files.check_header(self._ledger.header, header, path)
                self._check_slots()
                # A crash may have happened between an erasure and its overwriting.
                self._overwrite_erased()
            files.mark_created(self._lock)
            files.sync(folder)
            undo.pop_all()

    @property
    def ledger(self) -> Ledger:
        """The ledger as last stored."""
        return self._ledger

    @property
    def freeze(self) -> base.Freeze:
        """The identity of the records that this ledger's releases use."""
        with files.reported(self._folder):
            found = dict(
                self._connection.execute(
                    "SELECT name, value FROM meta WHERE name IN ('freeze_key', 'freeze_digest')"
                )
            )
        if "freeze_key" not in found:
            files.refuse(self._folder / DATABASE, "the key that fingerprints records is missing")
        return base.Freeze(found["freeze_key"], found.get("freeze_digest"))

    def reserve(self, ledger: Ledger, release_id: str, secret: bytes, task: bytes) -> base.Pending:
        """Stores the ledger that charges a release, and the release's secret."""
        base.check_reservation(self._ledger, ledger, release_id, secret)
        given_up = self.pending() is not None
        with self._transaction(ledger) as write:
            write("DELETE FROM pending")
            write("INSERT INTO pending VALUES (0, ?, ?, ?, NULL, NULL)", release_id, secret, task)
        if given_up:
            self._overwrite_erased()
        return base.Pending(release_id, secret, task)

    def charge(self, ledger: Ledger, release_id: str) -> None:
        """Stores a ledger that charges a release whose secret is in another store."""
        base.check_reservation(self._ledger, ledger, release_id, None)
        with self._transaction(ledger):
            pass

    def renew(self, release_id: str, secret: bytes, task: bytes) -> base.Pending:
        """Replaces the secret of a pending release for which no record was read."""
        base.check_renewal(self.pending(), release_id, secret)
        with self._transaction() as write:
            write("UPDATE pending SET secret = ?, task = ?", secret, task)
        self._overwrite_erased()
        return base.Pending(release_id, secret, task)

    def pending(self) -> base.Pending | None:
        """Returns the release that is reserved and not sealed, if there is one."""
        with files.reported(self._folder):
            row = self._connection.execute(
                "SELECT release_id, secret, task, data, state FROM pending"
            ).fetchone()
        return None if row is None else base.Pending(*row)

    def note_inputs(self, release_id: str, data: bytes, state: bytes, frozen: bytes) -> None:
        """Stores fingerprints of the inputs that a pending release is about to use."""
        pending, freeze = self.pending(), self.freeze
        noted = base.check_inputs(pending, freeze, release_id, data, state, frozen)
        if noted == pending:
            return
        with self._transaction() as write:
            write("UPDATE pending SET data = ?, state = ?", data, state)
            if freeze.digest is None:
                write("INSERT INTO meta VALUES ('freeze_digest', ?)", frozen)

    def seal(self, ledger: Ledger, release_id: str, payload: Payload, state: bytes | None) -> None:
        """Stores the noised bytes, the ledger that seals them and the solver's new private state."""
        base.check_seal(self._ledger, ledger, self.pending(), release_id, payload)
        with self._transaction(ledger) as write:
            write("DELETE FROM pending")
            write("DELETE FROM state")
            if state is not None:
                write("INSERT INTO state VALUES (0, ?)", state)
            number = write(
                "INSERT INTO outbox (release_id, event, sha256) VALUES (?, ?, ?)",
                release_id,
                payload.event,
                payload.sha256,
            ).lastrowid
            for position, tensor in enumerate(payload.tensors):
                form = {name: value for name, value in tensor._asdict().items() if name != "data"}
                write(
                    "INSERT INTO tensors VALUES (?, ?, ?, ?)",
                    number,
                    position,
                    json.dumps(form, allow_nan=False),
                    tensor.data,
                )
        self._overwrite_erased()

    def unsent(self) -> tuple[str, Payload] | None:
        """Returns the oldest release that is sealed but not acknowledged, if there is one."""
        with files.reported(self._folder):
            row = self._connection.execute(
                "SELECT number, release_id, event, sha256 FROM outbox ORDER BY number"
            ).fetchone()
            if row is None:
                return None
            number, release_id, event, sha256 = row
            tensors = self._connection.execute(
                "SELECT form, data FROM tensors WHERE number = ? ORDER BY position", (number,)
            ).fetchall()
            try:
                parts = tuple(_tensor(*columns) for columns in tensors)
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                path = self._folder / DATABASE
                files.refuse(path, f"an array in the outbox cannot be read: {error!r:.200}")
        return release_id, Payload(parts, event, sha256)

    def acknowledge(self, ledger: Ledger, release_id: str) -> None:
        """Stores the ledger and deletes the bytes, which the server has received."""
        base.check_sent(self._ledger, ledger, release_id)
        with self._transaction(ledger) as write:
            write("DELETE FROM outbox WHERE release_id = ?", release_id)

    def load_state(self) -> bytes | None:
        """Returns the solver's private state after the last sealed release, if it keeps one."""
        with files.reported(self._folder):
            row = self._connection.execute("SELECT bytes FROM state").fetchone()
        return None if row is None else row[0]

    def load_keys(self) -> bytes | None:
        """Returns the mask keys last saved, if there are any."""
        with files.reported(self._folder):
            row = self._connection.execute(
                "SELECT value FROM meta WHERE name = 'mask_keys'"
            ).fetchone()
        return None if row is None else row[0]

    def save_keys(self, keys: bytes, kept: tuple[str, bytes] | None = None) -> None:
        """Stores the mask keys, and erases earlier ones."""
        with self._transaction() as write:
            write("INSERT OR REPLACE INTO meta VALUES ('mask_keys', ?)", keys)
            if kept is not None:
                name, content = kept
                write("INSERT OR REPLACE INTO meta VALUES (?, ?)", _CERTIFICATE + name, content)
        self._overwrite_erased()

    def erase_state(self) -> None:
        """Erases and overwrites the solver's private state, a pending secret and the mask keys."""
        if (self.pending(), self.load_state(), self.load_keys()) == (None, None, None):
            return
        with self._transaction() as write:
            write("DELETE FROM pending")
            write("DELETE FROM state")
            write("DELETE FROM meta WHERE name = 'mask_keys'")
        self._overwrite_erased()

    def close(self) -> None:
        """Closes the database and releases its lock; closing again does nothing."""
        self._connection.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _create(self, header: Header) -> None:
        """Writes the schema, an empty ledger and the local secret in one transaction."""
        with self._transaction() as write:
            for statement in files.statements(_SCHEMA):
                write(statement)
            lines = ledgers.to_lines(ledgers.open_ledger(header))
            write("INSERT INTO chain VALUES (0, ?)", *lines)
            write("INSERT INTO meta VALUES ('freeze_key', ?)", os.urandom(base.SECRET_BYTES))
            write(f"PRAGMA application_id = {_APPLICATION}")
            write(f"PRAGMA user_version = {_VERSIONS[-1]}")
        # Flushes the names of new files before anything relies on them.
        files.sync(self._folder)

    @contextlib.contextmanager
    def _transaction(self, ledger: Ledger | None = None) -> Iterator[Any]:
        """Runs one transaction and appends new ledger entries; yields a function for statements."""

        with files.transaction(self._connection, self._folder) as write:
            if ledger is not None:
                count = len(self._ledger.entries)
                news = ledger._replace(entries=ledger.entries[count:])
                for offset, line in enumerate(ledgers.to_lines(news)[1:], 1):
                    write("INSERT INTO chain VALUES (?, ?)", count + offset, line)
            yield write
        if ledger is not None:
            self._ledger = ledger

    def _overwrite_erased(self) -> None:
        """Empties the write-ahead log, which still holds pages from before an erasure."""
        with files.reported(self._folder):
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise errors.LedgerError(
                f"{self._folder / DATABASE}: the write-ahead log cannot be emptied while it is being read",
                hint="close the program that reads it, and start again: that completes the erasure",
            )

    def _check_slots(self) -> None:
        """Checks that secrets and outbox agree with the ledger."""
        pending = self.pending()
        if pending is not None:
            self._check_slot(pending.release_id, "reserved")
        rows = self._connection.execute("SELECT release_id, sha256 FROM outbox").fetchall()
        for release_id, sha256 in rows:
            self._check_slot(release_id, "sealed")
            sealed = [e.digest for e in self._ledger.entries if e.release_id == release_id]
            if sha256 not in sealed:
                files.refuse(
                    self._folder / DATABASE, f"the outbox holds other bytes of {release_id!r}"
                )

    def _check_slot(self, release_id: str, expected: ledgers.State) -> None:
        found = ledgers.state(self._ledger, release_id)
        if found != expected:
            files.refuse(
                self._folder / DATABASE,
                f"release {release_id!r} is {found or 'unknown'} in the ledger, expected {expected}",
            )


def read_ledger(folder: Path) -> Ledger:
    """Reads and verifies the ledger of a store that may be in use; changes no stored data.

    SQLite may create an empty write-ahead log and its index (``-wal``, ``-shm``) beside the database, as
    for every reader. Reading a copy instead would leave a pending release's secret where no store erases
    it.

    Raises:
      LedgerError: the ledger is missing or damaged.
    """
    with _opened(folder) as connection:
        return _read(connection, folder / DATABASE)


def is_unbegun(folder: Path) -> bool:
    """Whether a crash left a store into which nothing was ever written; its lock file must say so too.

    Raises:
      LedgerError: there is a database that cannot be read.
    """
    path, lock = folder / DATABASE, folder / "lock"
    if not lock.is_file() or lock.stat().st_size:
        return False
    left = {item.name for item in folder.iterdir()} - {"lock"}
    if not path.exists() or not path.stat().st_size:
        return left <= {DATABASE}
    if not left <= {DATABASE + end for end in ("", "-wal", "-shm")}:
        return False
    # SQLite writes a page before the first transaction.
    with files.reported(path), contextlib.closing(files.open_database(path, "ro")) as connection:
        return not files.check_schema(connection, path, _APPLICATION, _VERSIONS)


class Evidence(NamedTuple):
    """What a site kept of masked sums, for its auditor.

    Attributes:
      ledger: the site's.
      certificates: visit → the certificate of the sum that was opened.
      boards: epoch → all sites' signed keys; empty if not kept.
      tasks: visit → (digest of the sites' keys, digest of the task that was answered), hex; where all
        sites must answer. Certificates hold the same.
    """

    ledger: Ledger
    certificates: Mapping[int, bytes]
    boards: Mapping[int, bytes]
    tasks: Mapping[int, tuple[str, str]]


def read_evidence(folder: Path) -> Evidence:
    """Reads the ledger like `read_ledger`, and what the site kept beside it of masked sums.

    Raises:
      LedgerError: as `read_ledger`, or a certificate or a task has no visit.
    """
    with _opened(folder) as connection:
        connection.execute("BEGIN")
        path = folder / DATABASE
        certificates, tasks, boards = {}, {}, {}
        rows = connection.execute(
            "SELECT name, CAST(value AS BLOB) FROM meta WHERE name GLOB ?", (f"{_CERTIFICATE}*",)
        )
        for name, content in rows:
            what = name.removeprefix(_CERTIFICATE)
            visit = what.removeprefix(base.TASK)
            if what.startswith(base.BOARD):
                boards[_epoch(what, path)] = content
            elif not (visit.isascii() and visit.isdigit() and len(visit) < 16):
                files.refuse(path, f"it holds a certificate of round {visit!r:.40}")
            elif what == visit:
                certificates[int(visit)] = content
            else:
                set_up, _, digest = content.decode("ascii", "replace").partition(":")
                if not all(re.fullmatch("[0-9a-f]{64}", part) for part in (set_up, digest)):
                    files.refuse(path, f"what it holds of the task of round {visit} cannot be read")
                tasks[int(visit)] = (set_up, digest)
        return Evidence(_read(connection, path), certificates, boards, tasks)


def _epoch(name: str, path: Path) -> int:
    number = name.removeprefix(base.BOARD).removeprefix("/") or "0"
    if not (number.isascii() and number.isdigit() and base.board_of(int(number)) == name):
        files.refuse(path, f"it holds keys of epoch {number!r:.40}")
    return int(number)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    path = folder / DATABASE
    if not path.is_file():
        raise errors.LedgerError(
            f"{folder} holds no ledger: {DATABASE} is not there",
            hint="give the folder of one client's state",
        )
    with files.reported(path), contextlib.closing(files.open_database(path, "ro")) as connection:
        if not files.check_schema(connection, path, _APPLICATION, _VERSIONS):
            files.refuse(path, "it is empty")
        yield connection


def _read(connection: sqlite3.Connection, path: Path) -> Ledger:
    rows = connection.execute("SELECT position, line FROM chain ORDER BY position").fetchall()
    if [position for position, _ in rows] != list(range(len(rows))):
        files.refuse(path, "a line of the ledger is missing")
    try:
        return ledgers.from_lines([line for _, line in rows])
    except errors.LedgerError as error:
        raise errors.LedgerError(f"{path}: {error.message}", error.hint) from error


def _tensor(form: str, data: bytes) -> Tensor:
    fields = json.loads(form)
    return Tensor(**{**fields, "shape": tuple(fields["shape"]), "data": data})
