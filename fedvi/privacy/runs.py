"""Counts the runs of one plan, and charges each before it begins."""

import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.events import Event
from fedvi.privacy.ledger import Budget, Header, Ledger

__all__ = ["Extend", "Keeper", "Owned", "Runs"]

Extend: TypeAlias = Callable[[Ledger], Ledger]
"""Takes a ledger as it was kept last and returns it longer, or raises."""


@runtime_checkable
class Keeper(Protocol):
    """What keeps a plan's ledger beyond one process, such as ``fedvi.LedgerFolder``.

    Attributes:
      place: where, in words for a statement.
    """

    place: str

    def opened(self, header: Header) -> Ledger:
        """Returns the ledger as it was kept last; starts one if there never was any.

        Raises:
          LedgerError: there was one and it is gone or damaged, or it has another header.
        """

    def extended(self, header: Header, extend: Extend) -> Ledger:
        """Reads the ledger, extends it and keeps it: one transaction over all processes.

        Returns once it would survive a power cut. What ``extend`` raises leaves the ledger as it was.

        Raises:
          LedgerError: as ``opened``, or nothing can be kept.
        """


class Owned:
    """What one process holds alone: no copy of it is made, and a process that was forked off is refused.

    Either would draw the same noise for other records, whose difference then carries none, and count its
    runs by itself.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()

    def __copy__(self) -> NoReturn:
        raise self._refusal("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._refusal("copied")

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise self._refusal("used by a process that was forked off")

    def _refusal(self, what: str) -> errors.PrivacyError:
        return errors.PrivacyError(
            f"a {type(self).__name__} was {what}: both would draw the same noise, and count by themselves",
            "make another object; sgd(ledger=fedvi.LedgerFolder(…)) has both count together",
        )


class Runs:
    """What the runs of one plan were charged, and the only way to another.

    Guarantee: at most ``planned`` runs are ever charged of one ledger, by whatever threads and, with a
    keeper, by whatever processes; one that was charged stays so, whatever becomes of it.

    Args:
      header: of the ledger.
      run: what one run costs.
      planned: how many there may be.
      budget: what they are checked against; None where nothing is protected.
      keeper: where the ledger is kept; None for the memory of this object.

    Raises:
      LedgerError: the keeper has no whole ledger of this header.
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
        """The ledger as of the last charge here, with all that other processes charged until then."""
        return self._ledger

    def charge(self, method: str, hint: str) -> int:
        """Charges one run and returns its number: 0, 1, …, of all processes together.

        Args:
          method: what begins a run, for the error.
          hint: what to do where none is left.

        Raises:
          BudgetExceeded: all planned runs were charged, or this one would exceed the promise.
          LedgerError: the charge cannot be kept, though it may be there all the same; or the ledger lacks
            entries that were seen here.
        """

        def another(ledger: Ledger) -> Ledger:
            # Deleted with its folder, or replaced by an older copy: that much this object can tell.
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
