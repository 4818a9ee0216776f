"""Ledgers of many clients with equal charges: priced once, and each ledger is written only on access.

    Together ─► spend ─► seal ─► mark_sent        each adds one row for all clients
        └─► together["north"]                     the ledger of one client, built from these rows

Each ledger equals, hash by hash, the one that ``privacy.ledger`` makes of the same steps for one client.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy._chain import append
from fedvi.privacy.events import Event
from fedvi.privacy.filter import RdpFilter
from fedvi.privacy.ledger import Budget, Ledger, State

__all__ = ["Together", "alike"]


class _Row(NamedTuple):
    """One entry for each client, for the release ``CLIENT`` + ``suffix``; a digest each, or none."""

    kind: State
    suffix: str
    event: Event | None = None
    digests: tuple[str, ...] | None = None


class Together(Mapping[str, Ledger]):
    """An immutable mapping from clients to ledgers; made by ``alike``."""

    __slots__ = ("_begun", "_first", "_places", "_rows", "_written")

    def __init__(
        self,
        begun: Mapping[str, Ledger],
        first: Ledger,
        places: Mapping[str, int],
        rows: tuple[_Row, ...] = (),
    ) -> None:
        self._begun, self._first, self._places, self._rows = begun, first, places, rows
        self._written: dict[str, Ledger] = {}

    @property
    def first(self) -> Ledger:
        """The ledger of the first client; all others differ from it only in names and digests."""
        return self._first

    def __getitem__(self, client: str) -> Ledger:
        found = self._written.get(client)
        if found is not None:
            return found
        found, place = self._begun[client], self._places[client]
        for row in self._rows:
            digest = None if row.digests is None else row.digests[place]
            found = append(found, row.kind, client + row.suffix, row.event, digest)
        self._written[client] = found
        return found

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"Together({len(self)} ledgers)"

    def spend(self, suffix: str, event: Event, budget: Budget | RdpFilter | None) -> "Together":
        """Reserves the release ``CLIENT`` + ``suffix`` of each client, at the same price.

        Guarantee: that of ``ledger.spend``, for each of them: by `alike`, the price and what it is
        checked against are the same.

        Raises:
          FedviError: as ``ledger.spend``; then nothing was reserved.
        """
        first = ledgers.spend(self._first, self._name(suffix), event, budget)
        for client, begun in self._begun.items():
            if begun.entries and ledgers.state(begun, client + suffix) is not None:
                raise errors.LedgerError(f"release {client + suffix!r} was reserved before")
        return self._with(first, _Row("reserved", suffix, event))

    def seal(self, suffix: str, digests: tuple[str, ...]) -> "Together":
        """Records the digest of each client's noised bytes, in the order of the clients.

        Raises:
          LedgerError: the release was not reserved just before.
        """
        if len(digests) != len(self) or not all(digests):
            raise errors.LedgerError(
                f"{len(digests)} digests came for {len(self)} ledgers, expected one for each"
            )
        self._check_last("reserved", suffix)
        first = ledgers.seal(self._first, self._name(suffix), digests[0])
        return self._with(first, _Row("sealed", suffix, digests=digests))

    def mark_sent(self, suffix: str) -> "Together":
        """Records that each client's sealed bytes were sent.

        Raises:
          LedgerError: the release was not sealed just before.
        """
        self._check_last("sealed", suffix)
        first = ledgers.mark_sent(self._first, self._name(suffix))
        return self._with(first, _Row("sent", suffix))

    def _name(self, suffix: str) -> str:
        return self._first.header.client + suffix

    def _check_last(self, kind: State, suffix: str) -> None:
        last = self._rows[-1] if self._rows else None
        if last is None or (last.kind, last.suffix) != (kind, suffix):
            raise errors.LedgerError(f"the releases *{suffix!r} are not {kind}")

    def _with(self, first: Ledger, row: _Row) -> "Together":
        return Together(self._begun, first, self._places, (*self._rows, row))


def alike(books: Mapping[str, Ledger]) -> Together | None:
    """Joins ledgers whose next charge has the same price; None if they are not alike.

    Ledgers are alike if their headers differ only in the client, all have reserved each event equally
    often, and every reserved release was sent.
    """
    if not books:
        return None
    first = next(iter(books.values()))
    header, spent = first.header, ledgers.tally(first)
    for client, book in books.items():
        if book.header != header._replace(client=client):
            return None
        if book.entries or first.entries:
            ends = {entry.release_id: entry.kind for entry in book.entries}
            if set(ends.values()) != {"sent"} or ledgers.tally(book) != spent:
                return None
    return Together(dict(books), first, {client: place for place, client in enumerate(books)})
