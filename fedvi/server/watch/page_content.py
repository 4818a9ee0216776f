"""Gathers the contents of the browser page as plain public values.

All of them belong to the public transcript: names, counts, versions, how far the posterior moved, charges,
and the sentences of the operational log.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fedvi.server.core.protocol import ServerSpec, ServerState, Update, is_removed
from fedvi.server.store.journal import Journal
from fedvi.server.watch.page_spending import Spending
from fedvi.server.watch.public_values import run_as_dict

__all__ = ["Contents"]

_MOST_FOLDS, _MOST_EVENTS = 50, 50


class Contents:
    """Gathers the page's contents; only one thread at a time may call it.

    Args:
      describe_run: returns the current state of the run (an admin ``Run``).
    """

    def __init__(
        self,
        spec: ServerSpec,
        state: Callable[[], ServerState],
        describe_run: Callable[[], Any],
        journal: Journal,
    ) -> None:
        self._spec, self._state, self._describe = spec, state, describe_run
        self._journal, self._spending = journal, Spending(spec.budget)
        self._events: deque[Any] = deque(maxlen=_MOST_EVENTS)

    def __call__(self) -> dict[str, Any]:
        """Returns the current contents, as values that JSON can hold."""
        state = self._state()
        folds = state.history[-_MOST_FOLDS:]
        self._read_log()
        run = run_as_dict(self._describe())
        if self._spec.gather is not None:
            # Only sums are published, and a ledger head depends on the digest of a single message.
            for row in run["clients"]:
                row["ledger"] = ""
        return {
            **run,
            "time": round(time.time(), 3),
            "promise": self._promise(),
            "members": sum(not is_removed(state, name) for name in self._spec.members),
            "folds": [_fold(update) for update in reversed(folds)],
            "folds_earlier": len(state.history) - len(folds),
            "spending": [
                {"clients": list(curve.clients), "points": [list(p) for p in curve.points]}
                for curve in self._spending.curves(state.ledgers)
            ],
            "events": [
                {
                    "number": number,
                    "time": round(at, 3),
                    "kind": kind,
                    "client": client,
                    "text": text,
                }
                for number, at, kind, client, text in reversed(self._events)
            ],
        }

    def close(self) -> None:
        """Stops pricing."""
        self._spending.close()

    def _promise(self) -> dict[str, Any] | None:
        """Returns the promise in the ledgers' headers, the same at all clients; None without ledgers."""
        header = next(iter(self._spec.headers.values()), None)
        if header is None:
            return None
        budget = self._spec.budget
        return {
            "protected": header.protected,
            "note": header.note,
            "unit": header.unit,
            "relation": header.relation,
            "view": header.view,
            "epsilon": None if budget is None else budget.epsilon,
            "delta": None if budget is None else budget.delta,
            "accountant": header.accountant,
        }

    def _read_log(self) -> None:
        """Reads new events, page by page, so that writes of the run never wait long."""
        cursor = self._events[-1][0] if self._events else 0
        while lines := self._journal.events(cursor):
            self._events.extend(lines)
            cursor = lines[-1][0]


def _fold(update: Update) -> dict[str, Any]:
    return {
        "version": update.version,
        "rounds": update.rounds,
        "stage": None if update.stage is None else update.stage._asdict(),
        "clients": list(update.clients),
        "missing": list(update.missing),
        "given_up": list(update.given_up),
        "dropped": list(update.dropped),
        "removed": list(update.removed),
        "added": list(update.added),
        "damping": update.damping if update.clients else None,
        "gap": None if update.gap is None else update.gap.largest,
    }
