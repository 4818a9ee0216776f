"""Stores large byte strings in files that are named by their SHA-256.

    FOLDER/ab/abcd…        the bytes whose digest is abcd…
    FOLDER/abcd….part      being written; `sweep` deletes it after a crash

A blob is on the disk before `put` returns, so a later transaction may refer to it. It is deleted only
after the transaction that removes the last reference, and never while a reader holds the folder. So
every blob that a committed state refers to exists.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fedvi import errors
from fedvi.expfam.mapped_arrays import windows
from fedvi.store import files

__all__ = ["Blobs", "held", "path_of", "read", "verify"]


class Blobs:
    """The blobs of one store, for its only writer.

    Args:
      folder: created, accessible only to its owner, if missing.

    Raises:
      OSError: the folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._garbage: set[str] = set()

    def put(self, contents: Mapping[str, np.ndarray]) -> None:
        """Writes blobs; they are on the disk when this returns.

        Args:
          contents: SHA-256 in hex, computed by the caller → uint8 [size].

        Raises:
          OSError: the disk is full, or a write failed; then none of the blobs is left.
        """
        paths = {sha256: path_of(self._folder, sha256) for sha256 in contents}
        parts = {sha256: self._folder / f"{sha256}.part" for sha256 in contents}
        folders = sorted({path.parent for path in paths.values()})
        made = [path for path in paths.values() if not path.exists()]
        try:
            fresh = [folder for folder in folders if not folder.is_dir()]
            for folder in fresh:
                folder.mkdir(mode=0o700)
            if fresh:
                files.sync(self._folder)
            # Each step is done for all blobs before the next one, so that the disk's journal batches them.
            for sha256, part in parts.items():
                with open(part, "wb", opener=_owner_only) as file:
                    for (piece,) in windows(contents[sha256]):
                        file.write(piece.data)
            for part in parts.values():
                files.sync(part)
            for sha256, part in parts.items():
                part.rename(paths[sha256])
            for folder in folders:
                files.sync(folder)
        except BaseException:
            for path in (*parts.values(), *made):
                path.unlink(missing_ok=True)
            raise
        self._garbage.difference_update(contents)

    def drop(self, names: Iterable[str]) -> None:
        """Deletes blobs that nothing refers to any more; never fails.

        While a reader holds the folder they stay; a later call or `sweep` deletes them.
        """
        self._garbage.update(names)
        if not self._garbage:
            return
        with contextlib.suppress(OSError), _locked(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for sha256 in sorted(self._garbage):
                path_of(self._folder, sha256).unlink(missing_ok=True)
                self._garbage.discard(sha256)

    def sweep(self, keep: Collection[str]) -> None:
        """Deletes all blobs not in ``keep``, and incomplete files left by a crash; never fails."""
        for part in self._folder.glob("*.part"):
            with contextlib.suppress(OSError):
                part.unlink()
        self.drop(path.name for path in self._folder.glob("??/*") if path.name not in keep)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps the store's writer from deleting blobs, for a reader in another process.

    Blobs that a state read within this context refers to exist until its end.

    Raises:
      OSError: the folder cannot be locked.
    """
    with _locked(folder, fcntl.LOCK_SH):
        yield


def path_of(folder: Path, sha256: str) -> Path:
    """Returns the path of a blob."""
    return folder / sha256[:2] / sha256


def read(folder: Path, sha256: str, size: int) -> np.ndarray:
    """Maps a blob into memory, read-only: uint8 [size]. The map stays valid if the file is deleted.

    Raises:
      LedgerError: the blob is missing, or has another size.
    """
    path = path_of(folder, sha256)
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                files.refuse(path, f"it has {found} bytes, expected {size}")
            return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise errors.LedgerError(
            f"{path} cannot be read: {error.strerror}",
            hint="the state names this file: restore the folder as a whole",
        ) from error


def verify(folder: Path, sha256: str, size: int) -> None:
    """Checks a blob against its digest.

    Raises:
      LedgerError: the blob is missing, has another size, or its bytes do not match its name.
    """
    digest = hashlib.sha256()
    for (piece,) in windows(read(folder, sha256, size)):
        digest.update(piece)
    if digest.hexdigest() != sha256:
        path = path_of(folder, sha256)
        files.refuse(path, f"its bytes have digest {digest.hexdigest()}, expected {sha256}")


@contextlib.contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
