"""Counts the runs of one plan, and charges each before it begins."""

import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.events import Event
from fedvi.privacy.ledger import Budget, Header, Ledger

__all__ = ["Extend", "Keeper", "Runs"]

Extend: TypeAlias = Callable[[Ledger], Ledger]
"""Takes the stored ledger and returns an extended one, or raises."""


@runtime_checkable
class Keeper(Protocol):
    """Stores a plan's ledger for all processes, such as ``fedvi.LedgerFolder``.

    Attributes:
      place: where it is stored, in words for a statement.
    """

    place: str

    def opened(self, header: Header) -> Ledger:
        """Returns the stored ledger; starts one if there never was any.

        Raises:
          LedgerError: the ledger is lost or damaged, or has another header.
        """

    def extended(self, header: Header, extend: Extend) -> Ledger:
        """Reads, extends and stores the ledger, as one transaction over all processes.

        Returns once the ledger would survive a power cut. If ``extend`` raises, the ledger is unchanged.

        Raises:
          LedgerError: as ``opened``, or the ledger cannot be stored.
        """


class Runs:
    """The runs of one plan that were charged, and the only way to charge another.

    Guarantee: at most ``planned`` runs are ever charged of one ledger, by whatever threads and, with a
    keeper, by whatever processes; one that was charged stays so, whatever becomes of it.

    Args:
      header: of the ledger.
      run: the event of one run.
      planned: the largest number of runs.
      budget: what runs are checked against; None without protection.
      keeper: stores the ledger; None keeps it in this object's memory.

    Raises:
      LedgerError: the keeper's ledger is lost or damaged, or has another header.
    """

    def __init__(
        self,
        header: Header,
        run: Event,
        planned: int,
        budget: Budget | None,
        keeper: Keeper | None = None,
    ) -> None:
        self._header, self._run, self._planned, self._budget = header, run, planned, budget
        self._keeper = keeper
        self._lock = threading.Lock()
        self._ledger = ledgers.open_ledger(header) if keeper is None else keeper.opened(header)

    @property
    def ledger(self) -> Ledger:
        """The ledger at this object's last charge, including earlier charges by other processes."""
        return self._ledger

    def charge(self, method: str, hint: str) -> int:
        """Charges one run and returns its number, 0, 1, …, counted over all processes.

        Args:
          method: name of the method that begins a run, for the error message.
          hint: what to do if no run is left.

        Raises:
          BudgetExceeded: all planned runs were charged, or this one would exceed the promise.
          LedgerError: storing the charge failed, although it may have been stored; or the ledger lacks
            entries that this object has seen.
        """

        def another(ledger: Ledger) -> Ledger:
            # Detects a ledger that was deleted with its folder or replaced by an older copy.
            ledgers.check_anchor(ledger, ledgers.anchor(self._ledger))
            run = ledgers.reservations(ledger)
            if run >= self._planned:
                raise errors.BudgetExceeded(self._none_left(method, run), hint)
            return ledgers.spend(ledger, f"run/{run}", self._run, self._budget)

        with self._lock:
            if self._keeper is None:
                self._ledger = another(self._ledger)
            else:
                self._ledger = self._keeper.extended(self._header, another)
            return ledgers.reservations(self._ledger) - 1

    def _none_left(self, method: str, run: int) -> str:
        if self._keeper is None:
            return f"{method} was called {run + 1} times, expected at most {self._planned}"
        return (
            f"{method} would be run {run + 1} of the ledger in {self._keeper.place}, expected at most "
            f"{self._planned}, over all processes"
        )
