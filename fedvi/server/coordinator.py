"""Runs the pure protocol step under a lock, and saves the state before each reply."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedvi import errors
from fedvi.federation.messages import Reply, Request
from fedvi.server.core import protocol

__all__ = ["Coordinator", "ServerStore", "Step"]


class Step(NamedTuple):
    """The result of one request: the state before and after it, and its reply or error."""

    before: protocol.ServerState
    after: protocol.ServerState
    reply: Reply | Exception


@runtime_checkable
class ServerStore(Protocol):
    """Stores the server's state; ``save`` returns once it is durable."""

    def load(self) -> Any:
        """Returns the state as last saved, or None."""

    def save(self, state: Any) -> Any:
        """Saves the state; returns an equal state to continue with, perhaps with its arrays on disk."""


class Coordinator:
    """Answers requests one after the other, and saves the state before each reply.

    A failed save changes nothing: its error is raised, and the request may be sent again.

    Args:
      store: holds the state; a stored state is continued.
      on_update: called after each fold with its public record, e.g. to show progress.
      clock: monotonic seconds, for deadlines.

    Raises:
      LedgerError: the stored state belongs to another study.
    """

    def __init__(
        self,
        spec: protocol.ServerSpec,
        store: ServerStore,
        on_update: Callable[[protocol.Update], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._spec = spec
        self._store = store
        self._on_update = on_update
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        found = store.load()
        self._state: protocol.ServerState = (
            protocol.initial_state(spec) if found is None else protocol.take_up(spec, found)
        )
        self.tick()

    @property
    def state(self) -> protocol.ServerState:
        """The state as last saved."""
        return self._state

    @property
    def spec(self) -> protocol.ServerSpec:
        """What the run agrees on."""
        return self._spec

    @property
    def next_deadline(self) -> float | None:
        """When to call ``tick`` at the latest, on ``clock``; None if time alone changes nothing."""
        return protocol.next_deadline(self._spec, self._state)

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` after a change that brings work to waiting clients.

        The call comes from the thread that made the change, once the change is durable.
        """
        self._listeners.append(callback)

    def handle(self, request: Request) -> Reply:
        """Answers one request.

        Raises:
          FedviError: as in ``protocol.step``; nothing changes, except that a client whose answer is
            impossible is left out.
        """
        (step,) = self.handle_all([request])
        if isinstance(step.reply, Exception):
            raise step.reply
        return step.reply

    def handle_all(self, requests: Sequence[Request]) -> list[Step]:
        """Answers several requests in their order, and saves once for all of them.

        Results are those of separate calls. A refused request changes nothing, except as in ``handle``, and
        does not affect the others: its step holds the error in place of the reply. No reply may be sent
        before this returns.

        Raises:
          FedviError: the store could not save; nothing changes, and all may be sent again.
        """
        steps: list[Step] = []
        with self._lock:
            state = self._state
            for request in requests:
                before = state
                reply: Reply | Exception
                try:
                    state, reply = self._stepped(before, request)
                except Exception as error:  # any error concerns this request alone
                    reply = error
                steps.append(Step(before, state, reply))
            tell = self._take(*(step.after for step in steps))
        tell()
        return steps

    def _stepped(
        self, state: protocol.ServerState, request: Request
    ) -> tuple[protocol.ServerState, Reply | Exception]:
        try:
            return protocol.step(self._spec, state, request, self.clock())
        except errors.ImpossibleAnswer as error:
            return protocol.leave_out(self._spec, state, request.client, self.clock()), error

    def apply(
        self,
        change: Callable[[protocol.ServerSpec, protocol.ServerState, float], protocol.ServerState],
    ) -> None:
        """Applies ``change``, a function of spec, state and time, as one step.

        Raises:
          FedviError: from ``change``; nothing changes.
        """
        with self._lock:
            tell = self._take(change(self._spec, self._state, self.clock()))
        tell()

    def tick(self) -> None:
        """Applies deadlines that have passed; does nothing before ``protocol.next_deadline``."""
        self.apply(protocol.tick)

    def revoke(self, names: Collection[str]) -> None:
        """Marks clients whose certificates are revoked; see ``protocol.revoke``."""
        self.apply(lambda spec, state, now: protocol.revoke(spec, state, names, now))

    def remove(self, client: str) -> None:
        """Divides a client's factor out for good; see ``protocol.remove``.

        Raises:
          ConfigError, RunFailed, ProtocolError: the client cannot be removed; nothing changes.
        """
        self.apply(lambda spec, state, now: protocol.remove(spec, state, client, now))

    def admit(self, client: str) -> None:
        """Takes in a client that a study of masked sums began without; see ``protocol.admit``.

        Raises:
          ConfigError, RunFailed: the client cannot be admitted; nothing changes.
        """
        self.apply(lambda spec, state, now: protocol.admit(spec, state, client, now))

    def extend(self, spec: protocol.ServerSpec) -> None:
        """Continues with a spec that has more clients; see ``protocol.extend``.

        Raises:
          ConfigError, RunFailed: they cannot be added; nothing changes.
        """
        with self._lock:
            tell = self._take(protocol.extend(spec, self._state))
            self._spec = spec
        tell()

    def control(self, action: protocol.Action) -> None:
        """Pauses, resumes or stops the run; see ``protocol.control``.

        Raises:
          RunFailed: the run is over.
        """
        self.apply(lambda spec, state, now: protocol.control(spec, state, action, now))

    def _take(self, *states: protocol.ServerState) -> Callable[[], None]:
        """Saves the last of successive states if it changed.

        Returns:
          A function that notifies listeners; call it without the lock.
        """
        before, last = self._state, states[-1]
        changed = not protocol.is_durably_equal(before, last)
        # Compare step by step: a client told to wait in between may be selected before and after.
        asks = changed and bool(self._listeners)
        wakes = asks and protocol.brings_work(self._spec, before, *states)
        self._state = state = self._store.save(last) if changed else last

        def tell() -> None:
            for update in state.history[len(before.history) :]:
                if self._on_update is not None:
                    self._on_update(update)
            if wakes:
                for callback in tuple(self._listeners):
                    callback()

        return tell
