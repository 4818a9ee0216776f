"""Runs the coordinator in one thread, and wakes the callers that wait for a change.

gRPC calls run in an event loop, which must not block, and the coordinator writes to disk. So every
request goes through the queue of one thread, the single writer. Requests that arrive while it writes are
answered together, in their order, with one commit: a round of ten clients takes a few commits instead of
twenty.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedvi import errors
from fedvi.federation.messages import Goodbye, NextTask, Reply, Request, Submit, Wait
from fedvi.server.coordinator import Coordinator, Step
from fedvi.server.core import run_events
from fedvi.server.core.protocol import OVER, Action, ServerSpec, ServerState, next_deadline
from fedvi.server.core.run_events import RunEvent
from fedvi.server.rpc.silence import Calls

__all__ = ["Dispatcher", "until"]

# The answers of a group are in memory together until they are saved.
_GROUP_BYTES = 16 << 20


class _Group:
    """Requests that are answered together, with the future of each reply."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Request, asyncio.Future[Reply]]] = []
        self.is_queued = False
        self._size = 0

    def add(self, request: Request, reply: "asyncio.Future[Reply]") -> bool:
        """Adds a request, unless it has to wait for the next group."""
        size = _size_of(request)
        if self.waiting and self._size + size > _GROUP_BYTES:
            return False
        self.waiting.append((request, reply))
        self._size += size
        return True


class Dispatcher:
    """Passes requests to a coordinator, one at a time, and reports events.

    Args:
      coordinator: answers the requests.
      on_event: called in the coordinator's thread with each event.
      revoked: returns the clients whose certificates are revoked; called in the event loop.
    """

    def __init__(
        self,
        spec: ServerSpec,
        coordinator: Coordinator,
        on_event: Callable[[RunEvent], None],
        revoked: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self.spec = spec
        self._coordinator = coordinator
        self._on_event = on_event
        self._revoked = revoked
        self._thread = ThreadPoolExecutor(1, "coordinator")
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        # The open group: no work is queued after it, and the thread has not started it.
        self._group: _Group | None = None
        self._guard = threading.Lock()
        self.closing = False
        # Clients that left after the end of the run: the server does not wait for them.
        self.heard: set[str] = set()
        self.calls = Calls(coordinator.clock())
        self.silent: frozenset[str] = frozenset()
        coordinator.add_listener(self._ring_from_thread)

    @property
    def state(self) -> ServerState:
        """The state as last saved."""
        return self._coordinator.state

    @property
    def ended(self) -> bool:
        """Whether the run has ended, so that no client gets a task any more."""
        return self.state.status in OVER

    def change(self) -> asyncio.Event:
        """Returns an event that is set at the next change; get it before you read the state."""
        return self._changed

    async def handle(self, request: Request) -> Reply:
        """Answers one request.

        Raises:
          FedviError: the coordinator refuses the request; nothing changes.
        """
        self.calls.hear(request.client, self._coordinator.clock())
        return await self._answered(request)

    async def _answered(self, request: Request) -> Reply:
        reply: asyncio.Future[Reply] = self._loop.create_future()
        with self._guard:
            if self._group is None or not self._group.add(request, reply):
                self._close_group()
                self._group = _Group()
                self._group.add(request, reply)
                # Start it in the loop's next turn, since all callers woken by a change ask in this one.
                self._loop.call_soon(self._hand_over, self._group)
        return await reply

    def handle_blocking(self, request: Request) -> Reply:
        """Answers one request from a thread other than the event loop's, as over a network.

        Raises:
          TransportError: the server is stopping.
        """
        if self.closing:
            raise errors.TransportError("the server is stopping")
        waits = isinstance(request, NextTask)
        work = self.next_task(request, 25.0) if waits else self.handle(request)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def next_task(
        self, request: Request, seconds: float, check: Callable[[], None] = lambda: None
    ) -> Reply:
        """Answers a request for work, and asks again after each change, up to ``seconds``.

        Args:
          request: for work.
          seconds: how long it may wait.
          check: called before each attempt; an exception from it ends the wait.
        """
        self.calls.hear(request.client, self._coordinator.clock())
        deadline = self._loop.time() + seconds
        while True:
            change = self.change()
            check()
            reply = await self._answered(request)
            left = deadline - self._loop.time()
            if not isinstance(reply, Wait) or reply.parts or reply.epoch:
                return reply
            if left <= 0.0 or self.closing:
                return reply
            await until(change, left)

    async def control(self, action: Action) -> None:
        """Pauses, resumes or stops the run.

        Raises:
          FedviError: the run is over.
        """
        await self.run(self._watched, lambda: self._coordinator.control(action))
        if not self.ended:
            self.heard.clear()

    async def remove(self, client: str) -> None:
        """Divides a client's factor out for good.

        Raises:
          FedviError: the client cannot be removed; nothing changes.
        """
        await self.run(self._watched, lambda: self._coordinator.remove(client))

    async def admit(self, client: str) -> None:
        """Takes in a client that a study of masked sums began without.

        Raises:
          FedviError: the client cannot be admitted; nothing changes.
        """
        await self.run(self._watched, lambda: self._coordinator.admit(client))

    async def keep_time(self) -> None:
        """Ticks the coordinator whenever a deadline passes or a site is revoked; runs until closing.

        Raises:
          Exception: any unexpected error. The server must then stop, since deadlines no longer apply.
        """
        while not self.closing:
            change = self.change()
            try:
                due = await self.run(self._tick, self.shut_out())
            except errors.FedviError:
                due = 1.0  # the store could not save, as the log says: try again
            self._tell_of_silence()
            # Deadlines depend on presence, which changes without a durable change; so does the roster.
            await until(change, min(1.0, max(0.01, due)))

    def _tell_of_silence(self) -> None:
        """Finds the clients that are silent now, and reports each once."""
        before = self.silent
        self.silent = self.calls.silent(self.state, self._coordinator.clock()) - self.heard
        for name in sorted(self.silent - before):
            self.post(run_events.silent(name))

    def shut_out(self) -> frozenset[str]:
        """Returns the clients whose certificates are revoked; call it in the event loop."""
        try:
            return self._revoked()
        except errors.TransportError:
            # An unreadable roster admits nobody for now, but that revokes nobody.
            return frozenset()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function in the coordinator's thread, after all queued work."""
        with self._guard:
            self._close_group()
        return await self._loop.run_in_executor(self._thread, work, *arguments)

    def post(self, event: RunEvent) -> None:
        """Queues the report of an event."""
        with contextlib.suppress(RuntimeError):  # the thread is closed
            self._thread.submit(self._on_event, event)

    def ring(self) -> None:
        """Wakes all callers that wait for a change; call it in the event loop."""
        old, self._changed = self._changed, asyncio.Event()
        old.set()

    def close(self) -> None:
        """Finishes all queued work; no request may follow."""
        self._thread.shutdown(wait=True)

    def _close_group(self) -> None:
        """Closes the open group, so that later work comes after it; the caller holds the guard."""
        group, self._group = self._group, None
        if group is not None:
            self._hand_over(group)

    def _hand_over(self, group: _Group) -> None:
        if group.is_queued:
            return
        group.is_queued = True
        try:
            self._thread.submit(self._work_off, group)
        except RuntimeError:  # closed
            stopping = errors.TransportError("the server is stopping")
            for _, reply in group.waiting:
                _settle(reply, stopping)

    def _work_off(self, group: _Group) -> None:
        """Answers a group; replies go out once its changes are saved and reported."""
        with self._guard:
            if self._group is group:
                self._group = None
        waiting = [(request, reply) for request, reply in group.waiting if not reply.cancelled()]
        before = self._coordinator.state
        try:
            steps = self._coordinator.handle_all([request for request, _ in waiting])
        except Exception as error:  # nothing was saved: the whole group fails
            steps = [Step(before, before, error)] * len(waiting)
        for (request, reply), step in zip(waiting, steps, strict=True):
            outcome = step.reply
            try:
                self._tell(request, step)
            except Exception as error:  # concerns this request alone, like an error of `step`
                outcome = error
            self._loop.call_soon_threadsafe(_settle, reply, outcome)

    def _tell(self, request: Request, step: Step) -> None:
        cause: Request | None = request
        match step.reply:
            case errors.HelloNeeded():
                return  # normal after a restart
            case errors.FedviError() as error:
                kind = type(request).__name__
                self._on_event(run_events.refused(kind, request.client, error))
                if step.before is step.after:
                    return
                cause = None  # what changed is not what was asked for
            case Exception():
                return
        for event in run_events.between(self.spec, step.before, step.after, cause):
            self._on_event(event)
        # Done itself may be lost on its way; the link sends Goodbye once it has arrived.
        if isinstance(request, Goodbye) and step.after.status in OVER:
            self.heard.add(request.client)
            self._ring_from_thread()

    def _tick(self, revoked: frozenset[str]) -> float:
        self._watched(lambda: self._coordinator.revoke(revoked))
        self._watched(self._coordinator.tick)
        due = next_deadline(self.spec, self._coordinator.state)
        return 1.0 if due is None else due - self._coordinator.clock()

    def _watched(self, act: Callable[[], None]) -> None:
        before = self._coordinator.state
        act()
        for event in run_events.between(self.spec, before, self._coordinator.state, None):
            self._on_event(event)

    def _ring_from_thread(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.ring)


async def until(event: asyncio.Event, seconds: float) -> None:
    """Waits for an event, at most ``seconds``; unlike ``wait_for``, never loses a cancellation."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _settle(waiting: "asyncio.Future[Reply]", outcome: Reply | Exception) -> None:
    if waiting.done():  # the caller no longer waits
        return
    if isinstance(outcome, Exception):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)


def _size_of(request: Request) -> int:
    if not isinstance(request, Submit):
        return 0
    return sum(len(tensor.data) for tensor in request.payload.tensors)
