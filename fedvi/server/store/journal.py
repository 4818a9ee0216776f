"""The operational log, which operators may read and which holds nothing private."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

__all__ = ["Event", "Journal", "MemoryJournal"]


class Event(NamedTuple):
    """A line of the log: its number from 1 on; seconds since 1970; one word; the client; a sentence."""

    number: int
    at: float
    kind: str
    client: str
    text: str


@runtime_checkable
class Journal(Protocol):
    """Keeps the log; a durable server store is one."""

    def record_event(self, kind: str, client: str, text: str) -> None:
        """Adds a line."""

    def events(self, after: int = 0) -> Sequence[Any]:
        """Returns the lines after a number, oldest first; possibly only the first of them."""


class MemoryJournal:
    """A log that ends with the process."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def record_event(self, kind: str, client: str, text: str) -> None:
        """Adds a line."""
        self._events.append(Event(len(self._events) + 1, time.time(), kind, client, text))

    def events(self, after: int = 0) -> Sequence[Event]:
        """Returns the lines after a number."""
        return self._events[after:]
