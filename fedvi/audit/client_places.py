"""Defines the stores and the scripted server that an audited client runs with."""

import contextlib
import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedvi.federation import messages
from fedvi.privacy.ledger import Header, Ledger, anchor, check_counterpart, open_ledger
from fedvi.store.memory import MemoryClientStore
from fedvi.store.sqlite import SqliteClientStore
from fedvi.updates.base import Task

__all__ = ["Clerk", "InMemory", "Killed", "OnDisk", "Place", "Secrets"]


class Killed(BaseException):
    """Stands for a killed process. Not an ``Exception``, so that no handler catches it."""


class Secrets:
    """Replaces the operating system's generator: draws a new secret at every call, and records it."""

    secure = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng((seed, 23))
        self.drawn: list[bytes] = []

    def secret(self, *_: str | int) -> bytes:
        """Returns 32 bytes that were not drawn before."""
        self.drawn.append(self._generator.bytes(32))
        return self.drawn[-1]


class Clerk:
    """A server that offers tasks until they are answered, and loses some replies.

    Args:
      tasks: in this order.
      lost: how many of the first replies to Submit are lost.
      book: its own ledger of the client; None: it has none, and repeats the client's anchor.
    """

    def __init__(self, tasks: Sequence[Task], lost: int = 0, book: Ledger | None = None) -> None:
        self.tasks, self.lost, self._book = list(tasks), lost, book
        self.received: list[messages.Submit] = []

    def handle(self, request: Any) -> Any:
        """Answers a request."""
        match request:
            case messages.Hello():
                if self._book is None:
                    return messages.Welcome(0, request.anchor)
                if request.anchor is not None:
                    # The server's half of the check at Hello; the client does the other half.
                    check_counterpart(self._book, request.anchor, "server")
                return messages.Welcome(0, anchor(self._book))
            case messages.NextTask() if self.tasks:
                return messages.Offer(self.tasks[0])
            case messages.NextTask():
                return messages.Done("finished", resumable=True)
            case messages.Failure():
                return messages.Noted()
            case messages.Submit():
                self.received.append(request)
                if self.lost:
                    self.lost -= 1
                    raise ConnectionError("the reply was lost")
                self.tasks = [task for task in self.tasks if task.task_id != request.task_id]
                return messages.Receipt("accepted", 1)
        return messages.Noted()


class Place(Protocol):
    """Holds a client's store, which can be closed, reopened as by a new process, and copied."""

    name: str

    def new(self) -> "Place":
        """Returns an empty place of the same kind."""

    def open(self) -> Any:
        """Returns the store; the same object until it is closed."""

    def close(self) -> None:
        """Ends the process that has the store open."""

    def copy(self) -> "Place":
        """Returns a copy of a closed store."""

    def holds(self, secret: bytes) -> bool:
        """Whether the store contains a secret's bytes."""


class InMemory:
    """A store that lasts as long as the process, as in a simulation."""

    name = "memory"

    def __init__(self, header: Header, store: MemoryClientStore | None = None) -> None:
        self._header = header
        self._store = store or MemoryClientStore(open_ledger(header))

    def new(self) -> "InMemory":
        """Returns an empty place."""
        return InMemory(self._header)

    def open(self) -> MemoryClientStore:
        """Returns the store."""
        return self._store

    def close(self) -> None:
        """Does nothing."""

    def copy(self) -> "InMemory":
        """Returns a copy in its present state."""
        return InMemory(self._header, copy.deepcopy(self._store))

    def holds(self, secret: bytes) -> bool:
        """Whether an attribute of the store is, or contains, the secret."""
        return _is_in(vars(self._store), secret)


class OnDisk:
    """The store of a deployed client."""

    name = "disk"

    def __init__(self, folder: Path, header: Header) -> None:
        self._folder, self._header, self._copies = folder, header, 0
        self._store: SqliteClientStore | None = None

    def new(self) -> "OnDisk":
        """Returns an empty place in a folder of its own."""
        self._copies += 1
        return OnDisk(self._folder.with_name(f"{self._folder.name}-{self._copies}"), self._header)

    def open(self) -> SqliteClientStore:
        """Returns the store."""
        if self._store is None:
            self._store = SqliteClientStore(self._folder, self._header)
        return self._store

    def close(self) -> None:
        """Closes the file."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def copy(self) -> "OnDisk":
        """Returns a copy of the folder."""
        self.close()
        other = self.new()
        shutil.copytree(self._folder, other._folder)
        return other

    def holds(self, secret: bytes) -> bool:
        """Whether any file contains the secret, raw or in hexadecimal."""
        found = False
        for path in self._folder.rglob("*"):
            with contextlib.suppress(IsADirectoryError):
                found |= any(form in path.read_bytes() for form in (secret, secret.hex().encode()))
        return found


def _is_in(value: Any, secret: bytes) -> bool:
    if isinstance(value, bytes | bytearray):
        return secret in value
    if isinstance(value, dict):
        return any(_is_in(item, secret) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_is_in(item, secret) for item in value)
    return hasattr(value, "__dict__") and _is_in(vars(value), secret)
