"""Stores that last as long as the process: what simulation uses in place of a disk."""

from typing import Any

from fedvi import errors
from fedvi.federation.messages import Payload
from fedvi.privacy.ledger import Ledger

__all__ = ["MemoryClientStore", "MemoryServerStore"]


class MemoryClientStore:
    """A client's ledger and outbox; each method is one transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._outbox: dict[str, Payload] = {}

    @property
    def ledger(self) -> Ledger:
        """The ledger as last saved."""
        return self._ledger

    def save(self, ledger: Ledger) -> None:
        """Saves a ledger that extends the one before it.

        Raises:
          LedgerError: if it does not: entries are never taken back.
        """
        if ledger.entries[: len(self._ledger.entries)] != self._ledger.entries:
            raise errors.LedgerError("a ledger was saved that does not extend the one before it")
        self._ledger = ledger

    def seal(self, ledger: Ledger, release_id: str, payload: Payload) -> None:
        """Saves the sealed bytes of a release and the ledger that says so, together."""
        self.save(ledger)
        self._outbox[release_id] = payload

    def unsent(self) -> tuple[str, Payload] | None:
        """Returns a release that is sealed and not yet acknowledged, if there is one."""
        return next(iter(self._outbox.items()), None)

    def acknowledge(self, ledger: Ledger, release_id: str) -> None:
        """Saves the ledger and forgets the bytes: the server has them."""
        self.save(ledger)
        self._outbox.pop(release_id, None)


class MemoryServerStore:
    """The server's state, as last saved."""

    def __init__(self) -> None:
        self._state: Any = None

    def load(self) -> Any:
        """Returns the state as last saved, or None."""
        return self._state

    def save(self, state: Any) -> None:
        """Saves the state."""
        self._state = state
