"""The server's shell: one lock, the pure step, save before reply."""

import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from fedvi.federation.messages import Reply, Request
from fedvi.server import protocol

__all__ = ["Coordinator", "ServerStore"]


@runtime_checkable
class ServerStore(Protocol):
    """Where the server's state is kept; ``save`` returns once it is durable."""

    def load(self) -> Any:
        """Returns the state as last saved, or None."""

    def save(self, state: Any) -> None:
        """Saves the state."""


class Coordinator:
    """Answers requests one at a time; a reply goes out only after the state behind it was saved.

    Args:
      spec: what the run agrees on.
      store: where the state is kept; a state found there is taken up.
      on_update: called after each fold with its public record, e.g. to show progress.
    """

    def __init__(
        self,
        spec: protocol.ServerSpec,
        store: ServerStore,
        on_update: Callable[[protocol.Update], None] | None = None,
    ) -> None:
        self._spec = spec
        self._store = store
        self._on_update = on_update
        self._lock = threading.Lock()
        self._state: protocol.ServerState = store.load() or protocol.initial_state(spec)

    @property
    def state(self) -> protocol.ServerState:
        """The state as last saved."""
        return self._state

    def handle(self, request: Request) -> Reply:
        """Answers one request.

        Raises:
          ProtocolError: if the request breaks the protocol; nothing changes.
        """
        with self._lock:
            state, reply = protocol.step(self._spec, self._state, request)
            folded = state.version > self._state.version
            if state is not self._state:
                self._store.save(state)
                self._state = state
        if folded and self._on_update is not None:
            self._on_update(state.history[-1])
        return reply
