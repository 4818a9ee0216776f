"""The AdminService: lets operators watch and control a run.

It shows only the public transcript: who answered, versions, how far the posterior moved, and the
ledgers, which hold no data.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import fedvi
from fedvi import errors
from fedvi.federation.progress import Progress
from fedvi.privacy import ledger as ledgers
from fedvi.server.core import key_board
from fedvi.server.core.membership import let_go
from fedvi.server.core.prices import Prices
from fedvi.server.core.protocol import (
    OVER,
    Action,
    ServerState,
    ending,
    folded,
    is_removed,
    next_deadline,
    progress_of,
)
from fedvi.server.rpc.access import Access
from fedvi.server.rpc.calls import Calls
from fedvi.server.rpc.dispatcher import Dispatcher, until
from fedvi.server.store.journal import Journal
from fedvi.transport._wire import admin_pb2 as pb

__all__ = ["Admin", "describe"]

# The largest integer of SQLite.
_LAST = (1 << 63) - 1
# How long a reply waits for the price of a new charge.
_PRICED_SECONDS = 0.3


class Admin:
    """The AdminService over a dispatcher.

    Args:
      access: checks callers; None where the socket's permissions do.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        access: Access | None,
        describe_run: Callable[[], pb.Run],
        journal: Journal,
        calls: Calls,
    ) -> None:
        self._dispatcher, self._access, self._describe = dispatcher, access, describe_run
        self._journal, self._calls = journal, calls

    async def GetRun(self, request: Any, context: Any) -> Any:
        """Returns the current state of the run."""
        return await self._calls(context, "GetRun", self._now(context))

    async def PauseRun(self, request: Any, context: Any) -> Any:
        """Pauses the run: no more tasks are given, and answers are still taken."""
        return await self._calls(context, "PauseRun", self._control(context, "pause"))

    async def ResumeRun(self, request: Any, context: Any) -> Any:
        """Resumes the run."""
        return await self._calls(context, "ResumeRun", self._control(context, "resume"))

    async def StopRun(self, request: Any, context: Any) -> Any:
        """Ends the run for good."""
        return await self._calls(context, "StopRun", self._control(context, "stop"))

    async def RemoveClient(self, request: Any, context: Any) -> Any:
        """Divides a client's factor out for good."""
        return await self._calls(context, "RemoveClient", self._remove(context, request.client))

    async def AdmitClient(self, request: Any, context: Any) -> Any:
        """Takes in a client that a study of masked sums began without."""
        return await self._calls(context, "AdmitClient", self._take_in(context, request.client))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Streams the events after a cursor, past and new, until the run or the call ends."""
        await self._calls(context, "WatchRun", self._admit(context))
        cursor = request.cursor
        while True:
            # Read both before the log, so that no event in between is missed.
            change = self._dispatcher.change()
            over = request.once or self._dispatcher.closing or self._dispatcher.ended
            while lines := await self._calls.part(
                context, "WatchRun", self._after(context, cursor)
            ):
                for cursor, moment, kind, client, text in lines:
                    yield pb.RunEvent(
                        cursor=cursor, time=moment, kind=kind, client=client, text=text
                    )
            if over:
                return
            await until(change, 1.0)

    async def _admit(self, context: Any) -> None:
        if self._access is not None:
            self._access.admit_operator(context)

    async def _after(self, context: Any, cursor: int) -> Any:
        # Check again: a certificate may be revoked while its holder watches.
        await self._admit(context)
        if cursor > _LAST:
            raise errors.ProtocolError(f"cursor is {cursor}, expected at most {_LAST}")
        return await self._dispatcher.run(self._journal.events, cursor)

    async def _now(self, context: Any) -> Any:
        await self._admit(context)
        run = self._describe()
        open_prices = any(row.charged and not row.HasField("epsilon") for row in run.clients)
        if open_prices and run.HasField("epsilon_budget"):
            # A new price is computed in the background: give it a moment.
            await asyncio.sleep(_PRICED_SECONDS)
            run = self._describe()
        return run

    async def _control(self, context: Any, action: Action) -> Any:
        await self._admit(context)
        await self._dispatcher.control(action)
        return self._describe()

    async def _remove(self, context: Any, client: str) -> Any:
        await self._admit(context)
        await self._dispatcher.remove(client)
        return self._describe()

    async def _take_in(self, context: Any, client: str) -> Any:
        await self._admit(context)
        await self._dispatcher.admit(client)
        return self._describe()


def describe(
    dispatcher: Dispatcher,
    prices: Prices,
    study: str,
    tls: bool,
    started: float,
    busy: frozenset[str],
) -> pb.Run:
    """Returns the current state of the run and its clients.

    Args:
      tls: whether clients show certificates.
      started: when the server started, in seconds of the monotonic clock.
      busy: the clients whose answers are arriving.
    """
    spec, state, now = dispatcher.spec, dispatcher.state, time.monotonic()
    due = next_deadline(spec, state)
    gaps = [update.gap.largest for update in state.history if update.gap is not None]
    progress = progress_of(spec, state)
    counts = folded(state)
    run = pb.Run(
        study=study,
        study_digest=spec.study_digest,
        status=state.status,
        reason=ending(state) if state.status in OVER else "",
        version=state.version,
        rounds=progress.rounds,
        rounds_planned=spec.schedule.rounds,
        schedule=spec.schedule.name,
        tls=tls,
        software=fedvi.__version__,
        uptime_seconds=now - started,
        awaited=_awaited(dispatcher, progress),
        let_go=let_go(spec, state, tls),
        clients=[
            _client(dispatcher, state, prices, name, counts[name], now, name in busy)
            for name in spec.clients
        ],
    )
    place = spec.schedule.place(progress)
    if place is not None:
        run.stage.CopyFrom(pb.Stage(**place._asdict()))
    if gaps:
        run.gap = gaps[-1]
    damping = [update.damping for update in state.history if update.clients]
    if damping:
        run.damping = damping[-1]
    if spec.budget is not None:
        run.epsilon_budget = spec.budget.epsilon
    if due is not None and not dispatcher.ended:
        run.deadline_seconds = max(0.0, due - now)
    return run


def _awaited(dispatcher: Dispatcher, progress: Progress) -> tuple[str, ...]:
    """Returns the clients that the run waits for: for keys, if answers are masked, then for answers."""
    spec, state = dispatcher.spec, dispatcher.state
    if dispatcher.ended:
        return ()
    return key_board.owing(spec, state) or spec.schedule.awaited(progress)


def _client(
    dispatcher: Dispatcher,
    state: ServerState,
    prices: Prices,
    name: str,
    answers: int,
    now: float,
    uploading: bool,
) -> pb.ClientRow:
    seen = state.presence.seen.get(name)
    reason = state.away.get(name)
    task = state.tasks.get(name)
    waiting = any(answer.task.client == name for answer in state.answers)
    if is_removed(state, name):
        doing, reason = "removed", None
    elif name in dispatcher.heard:
        doing = "done"
    elif reason is not None:
        doing = "away"
    elif uploading:
        doing = "uploading"
    elif task is not None:
        doing = "working"
    elif waiting:
        doing = "answered"
    else:
        doing = "unseen" if seen is None else "idle"
    book = state.ledgers.get(name)
    client = pb.ClientRow(
        name=name,
        state=doing,
        visits=answers,
        turns=state.turns[name],
        task_id="" if task is None else task.task_id,
        reason=reason or "",
        usual_seconds=dispatcher.calls.usual(name),
        silent=name in dispatcher.silent,
    )
    if book is not None:
        reached = ledgers.anchor(book)
        client.ledger_count, client.ledger_hash = reached.entries, reached.hash
        client.charged = ledgers.reservations(book)
    if seen is not None:
        client.seen_seconds = max(0.0, now - seen)
    epsilon = None if book is None else prices.epsilon(book)
    if epsilon is not None and prices.delta is not None:
        client.epsilon, client.delta = epsilon, prices.delta
    return client
