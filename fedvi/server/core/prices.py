"""Computes the ε charged to each client in a background thread; the run never waits for it."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.events import Event
from fedvi.privacy.ledger import Budget, Ledger
from fedvi.server import logs

__all__ = ["Prices", "price"]


class Prices:
    """Prices the server's ledgers in a thread of its own.

    The running ε is for information only. A privacy statement uses the price of the study's whole plan.

    Args:
      budget: the budget that the run checks against; None without protection, where nothing is priced.
    """

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._thread = ThreadPoolExecutor(1, "prices")
        self._lock = threading.Lock()
        self._closing = False
        self._known: dict[Event, float] = {}
        self._asked: set[Event] = set()

    def epsilon(self, ledger: Ledger) -> float | None:
        """Returns the ε of all that was charged; None until it is computed, or without protection."""
        if self._budget is None:
            return None
        event = ledgers.spent(ledger)
        found = self._known.get(event)
        if found is None:
            with self._lock:
                new = event not in self._asked and not self._closing
                self._asked.add(event)
            if new:
                self.update({"": ledger})
        return found

    @property
    def delta(self) -> float | None:
        """The δ that every ε is for."""
        return None if self._budget is None else self._budget.delta

    def update(
        self, ledgers_now: Mapping[str, Ledger], then: Callable[[float | None], None] | None = None
    ) -> None:
        """Queues these ledgers, then calls ``then`` with the largest ε; with None without protection."""
        self._thread.submit(self._price, dict(ledgers_now), then)

    def close(self) -> None:
        """Ends soon: what is still queued is reported without a price."""
        self._closing = True
        self._thread.shutdown(wait=True)

    def _price(
        self, ledgers_now: Mapping[str, Ledger], then: Callable[[float | None], None] | None
    ) -> None:
        if self._budget is None or self._closing:
            if then is not None:
                then(None)
            return
        try:
            found = price(self._budget, ledgers_now, self._known)
        except errors.FedviError as error:
            logs.log("price", f"what was charged cannot be priced: {error.message}")
            found = {}
        if then is not None:
            then(max(found.values(), default=None))


def price(
    budget: Budget, ledgers_now: Mapping[str, Ledger], known: dict[Event, float]
) -> dict[str, float]:
    """Returns the ε of all that each client was charged, an upper bound at the budget's δ.

    Args:
      budget: gives the accountant and δ.
      known: cache of ε by event; new prices are added to it.

    Raises:
      UnsupportedEvent: the accountant cannot price a charged event.
    """
    found = {}
    for name, ledger in ledgers_now.items():
        event = ledgers.spent(ledger)
        if event not in known:
            nothing = not ledgers.reservations(ledger)
            known[event] = 0.0 if nothing else budget.accountant.epsilon(event, budget.delta)
        found[name] = known[event]
    return found
