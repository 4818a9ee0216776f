"""Holds the bytes of an answer until all of them have arrived.

Answers of up to ``IN_MEMORY`` bytes stay in memory. Larger ones go to a file, to save memory and so that
an upload can continue where it stopped, even after a restart. All bytes here are released: they are
noised, or the study sends them without noise.
"""

import contextlib
import hashlib
import mmap
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fedvi import errors

__all__ = ["IN_MEMORY", "Full", "Interrupted", "Upload", "Uploads"]

IN_MEMORY = 1 << 20

# Space left free on the disk for everything else.
_RESERVE = 64 << 20


class Full(errors.TransportError):
    """The server cannot take the answer now; the client may send it again later."""


class Interrupted(errors.TransportError):
    """An upload broke off; the client may continue it."""


class Upload:
    """The bytes of one payload, as they arrive.

    Args:
      size: the total number of bytes.
      path: the file that holds them; None for memory.

    Attributes:
      received: how many bytes have arrived.
    """

    def __init__(self, size: int, path: Path | None) -> None:
        self.size, self.received = size, 0
        self._memory = bytearray()
        self._file = None if path is None else _opened(path)

    def add(self, offset: int, data: bytes) -> None:
        """Adds the next piece.

        Raises:
          ProtocolError: the piece does not follow the one before it, or exceeds the announced size.
          Full: the piece cannot be written.
        """
        end = offset + len(data)
        if offset != self.received or end > self.size:
            raise errors.ProtocolError(
                f"a chunk covers bytes {offset} to {end}, expected them to begin at "
                f"{self.received} and to end by {self.size}"
            )
        if self._file is None:
            self._memory += data
        else:
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(self._file, left) :]
            except OSError as error:
                raise Full(
                    f"the answer cannot be kept: {error.strerror}", "free some disk at the server"
                ) from error
        self.received += len(data)

    def data(self) -> memoryview:
        """Returns the bytes that have arrived, read-only; a file is mapped, not read."""
        if self._file is None:
            return memoryview(bytes(self._memory))
        return memoryview(mmap.mmap(self._file, self.received, access=mmap.ACCESS_READ))

    def cut(self, received: int) -> None:
        """Truncates the upload to its first ``received`` bytes."""
        if self._file is None:
            del self._memory[received:]
        else:
            os.ftruncate(self._file, received)
        self.received = received

    def close(self) -> None:
        """Closes the file; the bytes stay."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Uploads:
    """All uploads of a server; each client has one at a time.

    Args:
      folder: for large uploads; created when needed.
      limit: the most bytes of a payload.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.limit = folder, limit
        self._small: dict[str, tuple[str, Upload]] = {}
        # Files that calls of this process opened. Any of these calls may map its file at any time, an older
        # one too, so none is made shorter.
        self._large: set[Path] = set()

    def begin(self, client: str, sha256: str, size: int, offset: int) -> Upload:
        """Starts or continues an upload; deletes any other upload of this client.

        Args:
          sha256: hex digest of the payload.
          offset: the byte at which the client continues.

        Raises:
          ProtocolError: the payload is too large.
          Interrupted: the offset is beyond the bytes that have arrived.
          Full: the disk has no room for it.
        """
        if size > self.limit:
            raise errors.ProtocolError(
                f"the payload has {size} bytes, expected at most {self.limit}"
            )
        there = self.received(client, sha256)
        if offset > there:
            raise Interrupted(
                f"the payload goes on at byte {offset}, and {there} have arrived",
                "ask how much has arrived, and go on there",
            )
        small = self._small.pop(client, None)
        path = self._path(client, sha256)
        for other in self._files(client):
            if other != path:
                other.unlink(missing_ok=True)
                self._large.discard(other)
        if size <= IN_MEMORY:
            upload = small[1] if small is not None and small[0] == sha256 else Upload(size, None)
            self._small[client] = (sha256, upload)
        else:
            self._check_disk(size - offset)
            if path in self._large and offset < there:
                _begin_anew(path, offset)
            self._large.add(path)
            upload = Upload(size, path)
        upload.cut(offset)
        return upload

    def received(self, client: str, sha256: str) -> int:
        """Returns how many bytes of a payload have arrived."""
        small = self._small.get(client)
        if small is not None and small[0] == sha256:
            return small[1].received
        try:
            return self._path(client, sha256).stat().st_size
        except OSError:
            return 0

    def forget(self, client: str, sha256: str | None = None) -> None:
        """Removes a client's uploads; mapped bytes stay readable while they are in use.

        Args:
          sha256: hex digest of the only payload to remove; None for all.
        """
        if sha256 in (None, self._small.get(client, ("",))[0]):
            self._small.pop(client, None)
        for path in self._files(client) if sha256 is None else [self._path(client, sha256)]:
            path.unlink(missing_ok=True)
            self._large.discard(path)

    def sweep(self, taken: Iterable[tuple[str, str]]) -> None:
        """Removes useless files of a server that was killed; never fails.

        Args:
          taken: client and hex digest of each answer that is in the state.
        """
        parts = {self._path(*answer) for answer in taken}.intersection(self._folder.glob("*.part"))
        for path in (*self._folder.glob("*.new"), *parts):
            with contextlib.suppress(OSError):
                path.unlink()

    def _files(self, client: str) -> list[Path]:
        try:
            names = os.listdir(self._folder)
        except (FileNotFoundError, PermissionError):
            return []
        start = f"{_tag(client)}-"
        return [
            self._folder / name
            for name in names
            if name.startswith(start) and name.endswith(".part")
        ]

    def _path(self, client: str, sha256: str) -> Path:
        return self._folder / f"{_tag(client)}-{sha256}.part"

    def _check_disk(self, size: int) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        # Twice the size: the state also stores the factor computed from the answer.
        if free < 2 * size + _RESERVE:
            raise Full(
                f"the server's disk has {free >> 20} MB free, and the answer needs "
                f"{(2 * size + _RESERVE) >> 20} MB",
                "free some disk at the server; the client tries again by itself",
            )


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _begin_anew(path: Path, size: int) -> None:
    """Replaces a file by a copy of its first bytes: truncating it would kill processes that map it."""
    beside = path.with_suffix(".new")
    try:
        with open(path, "rb") as source, open(_opened(beside), "wb") as sink:
            sink.truncate(0)
            while left := size - sink.tell():
                sink.write(source.read(min(left, IN_MEMORY)))
        os.replace(beside, path)
    except OSError as error:
        raise Full(
            f"the answer cannot be kept: {error.strerror}", "free some disk at the server"
        ) from error


def _tag(client: str) -> str:
    """Returns a safe file name for any client's name."""
    return hashlib.sha256(client.encode()).hexdigest()[:16]
