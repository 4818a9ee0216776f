"""Writes keys, certificates and rosters atomically, and never overwrites a key."""

import contextlib
import fcntl
import glob
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedvi import errors

__all__ = ["PRIVATE", "PUBLIC", "create", "folder", "locked", "put", "read", "replace", "sweep"]

PRIVATE = 0o600
"""Mode of a file that only its owner may read."""

PUBLIC = 0o644
"""Mode of a file that everybody may read."""


def read(path: Path, what: str, hint: str = "") -> bytes:
    """Returns a file's bytes.

    Args:
      what: names the file in the error, such as "the certificate".

    Raises:
      ConfigError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.ConfigError(f"{path}: {what} cannot be read: {error.strerror}", hint) from None


def folder(path: Path) -> None:
    """Creates a folder that only its owner may enter, unless it exists.

    Raises:
      ConfigError: the folder cannot be created.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.ConfigError(f"{path}: cannot be made: {error.strerror}") from None


def create(path: Path, content: bytes, mode: int, hint: str = "") -> None:
    """Writes a new file; its bytes are on the disk when this returns.

    Raises:
      ConfigError: the file exists, and is left unchanged; or it cannot be written.
    """
    try:
        _write(path, [content], mode)
        _sync(path.parent)
    except FileExistsError:
        raise errors.ConfigError(
            f"{path} is there already, and is not overwritten", hint or "name another file"
        ) from None
    except OSError as error:
        raise errors.ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def replace(path: Path, content: bytes | Iterable[bytes | memoryview], mode: int) -> None:
    """Does what ``put`` does.

    Raises:
      ConfigError: the file cannot be written; an existing one is unchanged.
    """
    try:
        put(path, content, mode)
    except OSError as error:
        raise errors.ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def put(path: Path, content: bytes | Iterable[bytes | memoryview], mode: int) -> None:
    """Writes a file, or replaces it atomically: a reader sees either the old bytes or the new.

    Args:
      path: of the file; a symbolic link there is replaced and not followed.
      content: its bytes, or consecutive parts of them.

    Raises:
      OSError: the file cannot be written; an existing one is unchanged.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(beside, [content] if isinstance(content, bytes) else content, mode)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)


def sweep(path: Path) -> None:
    """Removes temporary files of a killed `replace` of this file; none may be running now.

    Raises:
      ConfigError: a file cannot be removed.
    """
    try:
        for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
            left.unlink(missing_ok=True)
    except OSError as error:
        raise errors.ConfigError(f"{path.parent}: cannot be tidied: {error.strerror}") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a folder for one process that changes it; others wait.

    Raises:
      ConfigError: there is no such folder, or it cannot be written.
    """
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise errors.ConfigError(f"{path}: cannot be changed: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, content: Iterable[bytes | memoryview], mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Flushes the names of new files in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
