"""Writes run events to the logs, and prices each fold in the background."""

import logging
from collections.abc import Callable

from fedvi import errors
from fedvi.server import logs
from fedvi.server.core.prices import Prices
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.server.core.run_events import RunEvent
from fedvi.server.rpc.access import Bucket
from fedvi.server.store.journal import Journal

__all__ = ["KEPT", "RunLog"]

KEPT = (
    "joined",
    "left",
    "failed",
    "away",
    "back",
    "silent",
    "folded",
    "given_up",
    "dropped",
    "added",
    "removed",
    "status",
    "refused",
    "exported",
)
"""The kinds of event that the operational log keeps; tasks and answers are in the state itself."""

# Limits for events that a client can cause at will: at most 2 MB of log a day for each client.
_TOLD_A_SECOND, _TOLD_AT_ONCE = 0.2, 20.0

_WARNINGS = ("failed", "away", "silent", "refused", "given_up", "dropped")


class RunLog:
    """Logs events, in the coordinator's thread."""

    def __init__(
        self, spec: ServerSpec, state: Callable[[], ServerState], journal: Journal
    ) -> None:
        self.journal, self.prices = journal, Prices(spec.budget)
        self._spec, self._state = spec, state
        self._buckets = {name: _bucket() for name in spec.clients}
        self._others = _bucket()

    def tell(self, event: RunEvent) -> None:
        """Logs one event; if the journal cannot store it, the run goes on all the same.

        Each event goes to disk, so events that a client causes at will are dropped above a rate.
        """
        bucket = self._buckets.get(event.client, self._others)
        if event.at_will and not bucket.take():
            return
        if event.kind in KEPT:
            try:
                self.journal.record_event(event.kind, event.client, event.text)
            except errors.FedviError as error:
                logs.log("store", f"the event is not kept: {error.message}", logging.ERROR)
        if event.update is not None:
            self.prices.update(self._state().ledgers, lambda epsilon: _fold(event, epsilon))
            return
        level = logging.WARNING if event.kind in _WARNINGS else logging.INFO
        logs.log(event.kind, event.text, level, client=event.client)

    def close(self) -> None:
        """Logs the folds that still wait to be priced, without a price."""
        self.prices.close()


def _bucket() -> Bucket:
    return Bucket(_TOLD_A_SECOND, _TOLD_AT_ONCE)


def _fold(event: RunEvent, epsilon: float | None) -> None:
    """Logs a fold, with the largest ε charged to any client if it is known."""
    update = event.update
    assert update is not None
    priced = "" if epsilon is None else f"  ε charged {epsilon:.3g}"
    logs.log(
        "folded",
        event.text + priced,
        logging.WARNING if update.missing else logging.INFO,
        version=update.version,
        rounds=update.rounds,
        clients=list(update.clients),
        missing=list(update.missing),
        damping=update.damping,
        gap=None if update.gap is None else update.gap.largest,
        epsilon=epsilon,
    )
