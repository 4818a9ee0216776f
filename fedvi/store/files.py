"""Durable folders and SQLite databases: locks, settings, fsync, and errors that name the file.

Stores decide what a database holds; this file decides how it is kept.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from fedvi import errors, permissions
from fedvi.privacy.ledger import Header

__all__ = [
    "check_fresh",
    "check_header",
    "check_schema",
    "connect",
    "lock_folder",
    "mark_created",
    "open_database",
    "refuse",
    "reported",
    "statements",
    "sync",
    "transaction",
    "was_created",
    "without_sync",
]

_CREATED = b"a ledger was started in this folder\n"


def lock_folder(folder: Path, hint: str) -> int:
    """Creates a folder, accessible only to its owner, and returns a descriptor that locks it until closed.

    Args:
      hint: what to do if another process holds the lock.

    Raises:
      LedgerError: another process holds it (then the cause is a ``BlockingIOError``); or the folder cannot
        be made or locked; or other users can reach it.
    """
    try:
        fresh = [level for level in (folder, *folder.parents) if not level.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for level in fresh:
            sync(level.parent)
        permissions.check(folder, errors.LedgerError)
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
            f"{folder} is in use: another process holds its lock", hint=hint
        ) from error
    return descriptor


def mark_created(lock: int) -> None:
    """Records in the lock file that a database exists, so that its loss is detected."""
    if os.pread(lock, len(_CREATED), 0) != _CREATED:
        os.pwrite(lock, _CREATED, 0)
        os.fsync(lock)


def was_created(lock: int) -> bool:
    """Whether the lock file records that a database exists, or existed."""
    return bool(os.pread(lock, 1, 0))


def check_fresh(path: Path, lock: int) -> None:
    """Checks that a database may be created, because this folder never had one.

    Raises:
      LedgerError: it had one.
    """
    if was_created(lock):
        raise errors.LedgerError(
            f"{path} is missing or empty, though a ledger was started in this folder",
            hint="restore it: a fresh ledger would forget what was spent",
        )


def connect(path: Path, secure_delete: bool, page_bytes: int = 4096) -> sqlite3.Connection:
    """Opens a database for writing, with all settings that durability and erasure depend on.

    Args:
      path: created, readable only by its owner, if missing.
      secure_delete: whether deleted content is overwritten with zeros.
      page_bytes: of a new database; an older one keeps its own. Arrays of many pages are slower to write.

    Raises:
      LedgerError: SQLite does not accept a setting.
    """
    # SQLite gives the log and its index the permissions of the database.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = open_database(path, "rw")
    settings = {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL: each commit is on the disk
        "secure_delete": int(secure_delete),
        "foreign_keys": 1,
        "temp_store": 2,  # in memory: no temporary file gets a copy of a secret
    }
    try:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name} = {value}")
            (found,) = connection.execute(f"PRAGMA {name}").fetchone()
            if found != value:
                refuse(path, f"SQLite has {name} at {found!r}, expected {value!r}")
        # Only has an effect on a Mac, where a plain fsync leaves bytes in the disk's cache.
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")
    except BaseException:
        connection.close()
        raise
    return connection


def open_database(path: Path, mode: str) -> sqlite3.Connection:
    """Opens an existing database; ``mode`` is "ro" or "rw". The caller manages transactions."""
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )


def check_schema(
    connection: sqlite3.Connection, path: Path, application: int, versions: range
) -> int:
    """Checks that a database is intact, of this application and of a known version.

    Returns:
      Its version; 0 if it is new and empty.

    Raises:
      LedgerError: a check fails.
    """
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (tables, found, version) == (0, 0, 0):
        return 0
    if found != application:
        raise errors.LedgerError(f"{path} is a database, but not one of fedvi")
    if version not in versions:
        expected = " to ".join(str(end) for end in sorted({versions[0], versions[-1]}))
        raise errors.LedgerError(
            f"{path} has schema version {version}, expected {expected}",
            hint="it was written by another version of fedvi: use that one",
        )
    (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if health != "ok":
        refuse(path, health)
    return version


def check_header(found: Header, expected: Header, path: Path) -> None:
    """Checks that a ledger has the expected study, client and promise.

    Raises:
      LedgerError: names each field that differs.
    """
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


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[Callable[..., Any]]:
    """Runs one transaction; yields a function that executes a statement with its values.

    Raises:
      LedgerError: SQLite or the disk reports an error; nothing was changed.
    """

    def write(statement: str, *values: Any) -> sqlite3.Cursor:
        return connection.execute(statement, values)

    with reported(path):
        write("BEGIN IMMEDIATE")
        try:
            yield write
            write("COMMIT")
        except BaseException:
            # After some errors, such as a full disk, SQLite has rolled back already.
            if connection.in_transaction:
                write("ROLLBACK")
            raise


@contextlib.contextmanager
def without_sync(connection: sqlite3.Connection) -> Iterator[None]:
    """Lets transactions return before they are on the disk; the next synced transaction writes them too.

    The order is kept: a power cut can lose only the latest transactions.
    """
    connection.execute("PRAGMA synchronous = 1")  # NORMAL: in WAL mode no commit waits for the disk
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous = 2")


def statements(script: str) -> Iterator[str]:
    """Splits a script into statements; ``executescript`` would commit the transaction first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def sync(path: Path) -> None:
    """Flushes a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Converts errors of SQLite or the file system to a ``LedgerError`` that names the path."""
    try:
        yield
    # SQLite quotes what a damaged schema says, in bytes that may be no text.
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise errors.LedgerError(
            f"{path}: {error}",
            hint="nothing was stored; is the disk full, read-only or damaged?",
        ) from error


def refuse(path: Path, reason: str) -> NoReturn:
    """Reports that a store is damaged or was changed.

    Raises:
      LedgerError: always.
    """
    raise errors.LedgerError(
        f"{path}: {reason}",
        hint="the store was damaged or changed by something else; restore it, and tell those who rely "
        "on it",
    )
