"""A ledger that several processes charge: a charge takes the lock, reads, writes, and lets go."""

import time
from collections.abc import Callable
from typing import TypeVar

from fedvi import errors
from fedvi.privacy.ledger import Ledger
from fedvi.privacy.runs import Extend
from fedvi.store.sqlite import SqliteClientStore

__all__ = ["extended", "patiently"]

# A charge holds the lock for milliseconds, so a longer wait means that something else holds it.
_PATIENCE_SECONDS = 20.0
_PAUSE_SECONDS = 0.02

_Taken = TypeVar("_Taken")


def patiently(take: Callable[[], _Taken], place: str) -> _Taken:
    """Takes a lock; waits while another process holds it.

    Args:
      take: takes it, or raises a ``LedgerError`` whose cause is a ``BlockingIOError``.
      place: names the folder in the error.

    Raises:
      LedgerError: another process held it for 20 seconds (then the cause is a ``BlockingIOError``); or
        whatever else ``take`` raises.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return take()
        except errors.LedgerError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            if time.monotonic() > end:
                raise errors.LedgerError(
                    f"{place} is in use: another process has held its lock for "
                    f"{_PATIENCE_SECONDS:g} seconds",
                    hint="a charge takes milliseconds: is it the folder of a client that runs?",
                ) from error.__cause__
        time.sleep(_PAUSE_SECONDS)


def extended(store: SqliteClientStore, extend: Extend) -> Ledger:
    """Extends the ledger of an open store by one entry, which no other process can do meanwhile.

    Raises:
      LedgerError: the ledger cannot be stored; or whatever ``extend`` raises. Nothing was changed.
    """
    longer = extend(store.ledger)
    store.charge(longer, longer.entries[-1].release_id)
    return longer
