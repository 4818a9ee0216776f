"""Computes ε after each release of each client, for the page's plot."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from fedvi import errors
from fedvi.privacy.events import Event
from fedvi.privacy.ledger import Budget, Ledger
from fedvi.server.core.prices import price

__all__ = ["Curve", "Spending", "thinned"]

_MOST_POINTS = 24


class Curve(NamedTuple):
    """The growth of ε at clients with equal charges.

    Attributes:
      clients: their names.
      points: (releases charged, ε of all of them) pairs, from the first to the last.
    """

    clients: tuple[str, ...]
    points: tuple[tuple[int, float], ...]


class Spending:
    """Prices prefixes of ledgers in a background thread, and returns the latest results.

    Everything is computed from the ledgers, so a restarted server shows the earlier releases too.

    Args:
      budget: gives the accountant and δ; None without protection, where there are no curves.
    """

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._thread = ThreadPoolExecutor(1, "spending")
        self._closing = False
        self._known: dict[Event, float] = {}
        self._work: Future[tuple[Curve, ...]] | None = None
        self._of: Mapping[str, Ledger] | None = None
        self._found: tuple[Curve, ...] = ()

    def curves(self, ledgers_now: Mapping[str, Ledger]) -> tuple[Curve, ...]:
        """Returns the latest curves, and starts a new computation if ledgers have changed."""
        if self._work is not None and self._work.done():
            self._found, self._work = self._work.result(), None
        if self._work is None and ledgers_now is not self._of and self._budget is not None:
            self._of = ledgers_now
            self._work = self._thread.submit(self._price, self._budget, dict(ledgers_now))
        return self._found

    def close(self) -> None:
        """Drops what is not priced yet."""
        self._closing = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _price(self, budget: Budget, books: Mapping[str, Ledger]) -> tuple[Curve, ...]:
        alike: dict[tuple[tuple[int, float], ...], list[str]] = {}
        try:
            for name, book in books.items():
                if self._closing:
                    return ()
                ends = [n for n, entry in enumerate(book.entries, 1) if entry.event is not None]
                points = tuple(
                    (count, self._epsilon(budget, book, ends[count - 1]))
                    for count in thinned(len(ends))
                )
                alike.setdefault(points, []).append(name)
        except errors.FedviError:
            # The pricing of folds logs this error; a partial plot would mislead.
            return ()
        return tuple(Curve(tuple(names), points) for points, names in alike.items() if points)

    def _epsilon(self, budget: Budget, book: Ledger, end: int) -> float:
        """Returns the price of the first ``end`` entries of a ledger."""
        begun = book._replace(entries=book.entries[:end])
        return price(budget, {"": begun}, self._known)[""]


def thinned(count: int, most: int = _MOST_POINTS) -> list[int]:
    """Returns up to ``most`` of the numbers 1, 2, …, count, the first and the last among them.

    >>> thinned(3), thinned(100, 8), thinned(0)
    ([1, 2, 3], [1, 15, 29, 43, 58, 72, 86, 100], [])
    """
    if count <= most:
        return list(range(1, count + 1))
    step = (count - 1) / (most - 1)
    return [1 + round(index * step) for index in range(most)]
