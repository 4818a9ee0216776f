"""In-memory stores, for simulation."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from fedvi.federation.messages import Payload
from fedvi.privacy.ledger import Ledger
from fedvi.store import base

__all__ = ["MemoryClientStore", "MemoryServerStore"]


class MemoryClientStore:
    """A client's ledger, secrets and outbox; see ``base.ClientStore``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._books: Mapping[str, Ledger] | None = None
        self._outbox: dict[str, Payload] = {}
        self._pending: base.Pending | None = None
        self._state: bytes | None = None
        self._keys: bytes | None = None
        self._freeze = base.Freeze(os.urandom(base.SECRET_BYTES))

    @property
    def ledger(self) -> Ledger:
        """The ledger as last stored."""
        if self._books is not None:
            longer = self._books[self._ledger.header.client]
            base.check_extends(self._ledger, longer)
            self._ledger, self._books = longer, None
        return self._ledger

    @property
    def freeze(self) -> base.Freeze:
        """The identity of the records that this ledger's releases use."""
        return self._freeze

    def reserve(self, ledger: Ledger, release_id: str, secret: bytes, task: bytes) -> base.Pending:
        """Stores the ledger that charges a release, and the release's secret."""
        base.check_reservation(self.ledger, ledger, release_id, secret)
        self._ledger, self._pending = ledger, base.Pending(release_id, secret, task)
        return self._pending

    def charge(self, ledger: Ledger, release_id: str) -> None:
        """Stores a ledger that charges a release whose secret is in another store."""
        base.check_reservation(self.ledger, ledger, release_id, None)
        self._ledger = ledger

    def renew(self, release_id: str, secret: bytes, task: bytes) -> base.Pending:
        """Replaces the secret of a pending release for which no record was read."""
        base.check_renewal(self._pending, release_id, secret)
        self._pending = base.Pending(release_id, secret, task)
        return self._pending

    def pending(self) -> base.Pending | None:
        """Returns the release that is reserved and not sealed, if there is one."""
        return self._pending

    def note_inputs(self, release_id: str, data: bytes, state: bytes, frozen: bytes) -> None:
        """Stores fingerprints of the inputs that a pending release is about to use."""
        self._pending = base.check_inputs(
            self._pending, self._freeze, release_id, data, state, frozen
        )
        self._freeze = dataclasses.replace(self._freeze, digest=frozen)

    def seal(self, ledger: Ledger, release_id: str, payload: Payload, state: bytes | None) -> None:
        """Stores the noised bytes, the ledger that seals them and the solver's new private state."""
        base.check_seal(self.ledger, ledger, self._pending, release_id, payload)
        self._ledger, self._state, self._pending = ledger, state, None
        self._outbox[release_id] = payload

    def unsent(self) -> tuple[str, Payload] | None:
        """Returns the oldest release that is sealed but not acknowledged, if there is one."""
        return next(iter(self._outbox.items()), None)

    def acknowledge(self, ledger: Ledger, release_id: str) -> None:
        """Stores the ledger and deletes the bytes, which the server has received."""
        base.check_sent(self.ledger, ledger, release_id)
        self._ledger = ledger
        self._outbox.pop(release_id, None)

    @property
    def is_idle(self) -> bool:
        """Whether no release is pending or unsent, and no solver state is kept between visits."""
        return not self._outbox and self._pending is None and self._state is None

    def note_records(self, release_id: str, frozen: bytes) -> None:
        """Stores the identity of the records of a release that is charged together with other clients'."""
        base.check_records(self._freeze, release_id, frozen)
        if self._freeze.digest is None:
            self._freeze = dataclasses.replace(self._freeze, digest=frozen)

    def take_over(self, books: Mapping[str, Ledger]) -> None:
        """Stores the ledger of this client that was extended together with others'.

        It is read from ``books``, which must not change, and checked, when it is next asked for. Its
        reservations are sent, or lost.
        """
        self._ledger, self._books = self.ledger, books

    def load_state(self) -> bytes | None:
        """Returns the solver's private state after the last sealed release, if it keeps one."""
        return self._state

    def load_keys(self) -> bytes | None:
        """Returns the mask keys last saved, if there are any."""
        return self._keys

    def save_keys(self, keys: bytes, kept: tuple[str, bytes] | None = None) -> None:
        """Stores the mask keys, and erases earlier ones."""
        self._keys = keys

    def erase_state(self) -> None:
        """Erases the solver's private state, a pending secret and the mask keys."""
        self._state = self._keys = None
        self._pending = None

    def close(self) -> None:
        """Does nothing."""


class MemoryServerStore:
    """The server's state, as last saved."""

    def __init__(self) -> None:
        self._state: Any = None

    def load(self) -> Any:
        """Returns the state as last saved, or None."""
        return self._state

    def save(self, state: Any) -> Any:
        """Saves the state, and returns it."""
        self._state = state
        return state
