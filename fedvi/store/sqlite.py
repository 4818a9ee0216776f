"""A client's ledger, secrets and outbox on disk: come here to change what survives a power cut.

    FOLDER/ledger.sqlite   chain (append-only), pending, outbox, state, meta
    FOLDER/lock            held by the one process that may write

Every transaction is on the disk before its method returns (WAL, synchronous=FULL). Whenever a
secret or private state is erased, its bytes are overwritten in the database and, after the commit,
the write-ahead log is emptied. If that fails, because a reader holds the log, the method raises, its
change stays, and the next opening empties the log before anything else, or refuses. What is beyond
this file: blocks that a file system or a flash disk keeps of files that it overwrote, the process's
own memory, and backups taken in between.
"""

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fedvi import errors
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Header, Ledger
from fedvi.store import base

__all__ = ["DATABASE", "SqliteClientStore", "read_ledger"]

DATABASE = "ledger.sqlite"
"""The database's name within a store's folder."""

_APPLICATION = 0x66647669  # "fdvi" in the file's header
_VERSION = 1

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
      folder: made, readable by its owner alone, if it is not there.
      header: of the ledger; one that is found there must be equal.

    Raises:
      LedgerError: the store is in use, damaged, of another study, client or promise, of another
        version of fedvi, or cannot be written.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self._folder = folder
        with contextlib.ExitStack() as undo:
            self._lock = _locked(folder)
            undo.callback(os.close, self._lock)
            path = folder / DATABASE
            with _reported(path):
                self._connection = _connect(path)
                undo.callback(self._connection.close)
                _check_schema(self._connection, path)
                if not _has_schema(self._connection):
                    _check_fresh(path, self._lock)
                    self._create(header)
                self._ledger = _read(self._connection, path)
                _check_header(self._ledger.header, header, path)
                self._check_slots()
                # A crash may have come between an erasure and its overwriting.
                self._overwrite_erased()
            _mark_created(self._lock)
            _sync(folder)
            undo.pop_all()

    @property
    def ledger(self) -> Ledger:
        """The ledger as last stored."""
        return self._ledger

    @property
    def freeze(self) -> base.Freeze:
        """Which records the releases of this ledger are of."""
        with _reported(self._folder):
            found = dict(self._connection.execute("SELECT name, value FROM meta"))
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
        """Stores a ledger that charges a release whose secret is kept elsewhere."""
        base.check_reservation(self._ledger, ledger, release_id, None)
        with self._transaction(ledger):
            pass

    def renew(self, release_id: str, secret: bytes, task: bytes) -> base.Pending:
        """Replaces the secret of a pending release that no record was read for."""
        base.check_renewal(self.pending(), release_id, secret)
        with self._transaction() as write:
            write("UPDATE pending SET secret = ?, task = ?", secret, task)
        self._overwrite_erased()
        return base.Pending(release_id, secret, task)

    def pending(self) -> base.Pending | None:
        """Returns the release that is reserved and not sealed, if there is one."""
        with _reported(self._folder):
            row = self._connection.execute(
                "SELECT release_id, secret, task, data, state FROM pending"
            ).fetchone()
        return None if row is None else base.Pending(*row)

    def note_inputs(self, release_id: str, data: bytes, state: bytes, frozen: bytes) -> None:
        """Stores what a pending release is about to be computed from."""
        pending, freeze = self.pending(), self.freeze
        noted = base.check_inputs(pending, freeze, release_id, data, state, frozen)
        if noted == pending:
            return
        with self._transaction() as write:
            write("UPDATE pending SET data = ?, state = ?", data, state)
            if freeze.digest is None:
                write("INSERT INTO meta VALUES ('freeze_digest', ?)", frozen)

    def seal(self, ledger: Ledger, release_id: str, payload: Payload, state: bytes | None) -> None:
        """Stores the noised bytes, the ledger that says so and the solver's new private state."""
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
        """Returns the oldest release that is sealed and not acknowledged, if there is one."""
        with _reported(self._folder):
            row = self._connection.execute(
                "SELECT number, release_id, event, sha256 FROM outbox ORDER BY number"
            ).fetchone()
            if row is None:
                return None
            number, release_id, event, sha256 = row
            tensors = self._connection.execute(
                "SELECT form, data FROM tensors WHERE number = ? ORDER BY position", (number,)
            ).fetchall()
        return release_id, Payload(tuple(_tensor(*columns) for columns in tensors), event, sha256)

    def acknowledge(self, ledger: Ledger, release_id: str) -> None:
        """Stores the ledger and forgets the bytes: the server has them."""
        base.check_sent(self._ledger, ledger, release_id)
        with self._transaction(ledger) as write:
            write("DELETE FROM outbox WHERE release_id = ?", release_id)

    def load_state(self) -> bytes | None:
        """Returns the solver's private state after the last sealed release, if it keeps one."""
        with _reported(self._folder):
            row = self._connection.execute("SELECT bytes FROM state").fetchone()
        return None if row is None else row[0]

    def erase_state(self) -> None:
        """Erases the solver's private state and a pending secret; their bytes are overwritten."""
        if self.pending() is None and self.load_state() is None:
            return
        with self._transaction() as write:
            write("DELETE FROM pending")
            write("DELETE FROM state")
        self._overwrite_erased()

    def close(self) -> None:
        """Closes the file and lets another process have it; closing again does nothing."""
        self._connection.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _create(self, header: Header) -> None:
        """Writes the schema, an empty ledger and the local secret, all in one transaction."""
        with self._transaction() as write:
            for statement in _statements(_SCHEMA):
                write(statement)
            lines = ledgers.to_lines(ledgers.open_ledger(header))
            write("INSERT INTO chain VALUES (0, ?)", *lines)
            write("INSERT INTO meta VALUES ('freeze_key', ?)", os.urandom(base.SECRET_BYTES))
            write(f"PRAGMA application_id = {_APPLICATION}")
            write(f"PRAGMA user_version = {_VERSION}")
        # The names of new files are on the disk before anything relies on them.
        _sync(self._folder)

    @contextlib.contextmanager
    def _transaction(self, ledger: Ledger | None = None) -> Iterator[Any]:
        """All or nothing: yields a function that executes a statement; appends the ledger's news."""

        def write(statement: str, *values: Any) -> sqlite3.Cursor:
            return self._connection.execute(statement, values)

        with _reported(self._folder):
            write("BEGIN IMMEDIATE")
            try:
                if ledger is not None:
                    count = len(self._ledger.entries)
                    news = ledger._replace(entries=ledger.entries[count:])
                    for offset, line in enumerate(ledgers.to_lines(news)[1:], 1):
                        write("INSERT INTO chain VALUES (?, ?)", count + offset, line)
                yield write
                write("COMMIT")
            except BaseException:
                # SQLite itself has rolled back after some errors, such as a full disk.
                if self._connection.in_transaction:
                    write("ROLLBACK")
                raise
        if ledger is not None:
            self._ledger = ledger

    def _overwrite_erased(self) -> None:
        """Empties the write-ahead log, which still holds pages from before an erasure."""
        with _reported(self._folder):
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise errors.LedgerError(
                f"{self._folder / DATABASE}: a reader keeps the write-ahead log from being emptied",
                hint="close what reads it, and start the client again: it then erases what is left",
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
                _refuse(self._folder / DATABASE, f"the outbox holds other bytes of {release_id!r}")

    def _check_slot(self, release_id: str, expected: ledgers.State) -> None:
        found = ledgers.state(self._ledger, release_id)
        if found != expected:
            _refuse(
                self._folder / DATABASE,
                f"release {release_id!r} is {found or 'unknown'} in the ledger, expected {expected}",
            )


def read_ledger(folder: Path) -> Ledger:
    """Reads and verifies the ledger of a store that may be in use; changes nothing of what is stored.

    SQLite may put an empty write-ahead log and its index (``-wal``, ``-shm``) beside the database,
    as for every reader. No copy is read in their place: it would hold a pending release's secret,
    beyond the reach of what erases it.

    Raises:
      LedgerError: there is none, or it is damaged.
    """
    path = folder / DATABASE
    if not path.is_file():
        raise errors.LedgerError(
            f"{folder} holds no ledger: {DATABASE} is not there",
            hint="give the folder of one client's state",
        )
    with _reported(path), contextlib.closing(_open(path, "ro")) as connection:
        _check_schema(connection, path)
        if not _has_schema(connection):
            _refuse(path, "it is empty")
        return _read(connection, path)


# The file.


def _locked(folder: Path) -> int:
    """Makes the folder and returns a descriptor that holds its lock until closed."""
    try:
        fresh = [level for level in (folder, *folder.parents) if not level.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for level in fresh:
            _sync(level.parent)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise errors.LedgerError(f"{folder} cannot be used as a store: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise errors.LedgerError(
                f"{folder} cannot be locked: {error.strerror}",
                hint="put the state on a disk of this machine, not on a network share",
            ) from error
        raise errors.LedgerError(
            f"{folder} is in use: another process holds its lock",
            hint="a client runs once: stop the other one, or give this one another folder",
        ) from error
    return descriptor


_CREATED = b"a ledger was started in this folder\n"


def _mark_created(lock: int) -> None:
    """Notes beside the database that there is one, so that its absence is noticed."""
    if os.pread(lock, len(_CREATED), 0) != _CREATED:
        os.pwrite(lock, _CREATED, 0)
        os.fsync(lock)


def _check_fresh(path: Path, lock: int) -> None:
    if os.pread(lock, 1, 0):
        raise errors.LedgerError(
            f"{path} is missing or empty, though a ledger was started in this folder",
            hint="restore it: a fresh ledger would forget what was spent",
        )


def _connect(path: Path) -> sqlite3.Connection:
    """Opens the database for writing, with every setting that durability and erasure rest on."""
    # SQLite gives the log and its index the permissions of the database.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = _open(path, "rw")
    settings = {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL: each commit is on the disk
        "secure_delete": 1,
        "foreign_keys": 1,
        "temp_store": 2,  # in memory: no temporary file gets a copy of a secret
    }
    try:
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name} = {value}")
            (found,) = connection.execute(f"PRAGMA {name}").fetchone()
            if found != value:
                _refuse(path, f"SQLite has {name} at {found!r}, expected {value!r}")
        # Only on a Mac, where a plain fsync leaves bytes in the disk's cache; else without effect.
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")
    except BaseException:
        connection.close()
        raise
    return connection


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )


def _has_schema(connection: sqlite3.Connection) -> bool:
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(count)


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not _has_schema(connection) and (application, version) == (0, 0):
        return
    if application != _APPLICATION:
        raise errors.LedgerError(f"{path} is a database of something else than fedvi")
    if version != _VERSION:
        raise errors.LedgerError(
            f"{path} has schema version {version}, expected {_VERSION}",
            hint="it was written by another version of fedvi: use that one",
        )
    (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if health != "ok":
        _refuse(path, health)


def _read(connection: sqlite3.Connection, path: Path) -> Ledger:
    rows = connection.execute("SELECT position, line FROM chain ORDER BY position").fetchall()
    if [position for position, _ in rows] != list(range(len(rows))):
        _refuse(path, "a line of the ledger is missing")
    try:
        return ledgers.from_lines([line for _, line in rows])
    except errors.LedgerError as error:
        raise errors.LedgerError(f"{path}: {error.message}", error.hint) from error


def _check_header(found: Header, expected: Header, path: Path) -> None:
    differences = [
        f"`{name}` is {value!r}, expected {wanted!r}"
        for (name, value), wanted in zip(found._asdict().items(), expected, strict=True)
        if value != wanted
    ]
    if differences:
        raise errors.LedgerError(
            f"{path} is the ledger of something else: {'; '.join(differences)}",
            hint="give each study and each client a folder of its own",
        )


def _tensor(form: str, data: bytes) -> Tensor:
    fields = json.loads(form)
    return Tensor(**{**fields, "shape": tuple(fields["shape"]), "data": data})


def _statements(script: str) -> Iterator[str]:
    """Splits a script into statements; ``executescript`` would commit the transaction first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turns what SQLite or the file system reports into a ``LedgerError`` that says where."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise errors.LedgerError(
            f"{path}: {error}",
            hint="nothing was stored; is the disk full, read-only or damaged?",
        ) from error


def _refuse(path: Path, reason: str) -> NoReturn:
    raise errors.LedgerError(
        f"{path}: {reason}",
        hint="the store was damaged or changed by something else; restore it, and tell who relies "
        "on it",
    )
