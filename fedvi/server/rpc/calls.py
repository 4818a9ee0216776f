"""Reads calls at a bounded cost, turns errors into gRPC statuses, and counts calls; for all services."""

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from fedvi import errors
from fedvi.server import logs
from fedvi.server.core import run_events
from fedvi.server.core.run_events import RunEvent
from fedvi.server.rpc.access import Access, Bucket
from fedvi.transport import bounded
from fedvi.transport.status import to_status

__all__ = ["ASK_SECONDS", "READ_SECONDS", "Calls", "Reading", "TooSlow"]

T = TypeVar("T")

READ_SECONDS = 60.0
"""How long a caller may take to read a message of a stream: 256 KiB at 4 KB/s."""

ASK_SECONDS = 60.0
"""How long a caller may take to send the message of a call."""

# Refusals of certificates that are logged: each takes a line of the log and of the state's events.
_REFUSALS_A_SECOND, _REFUSALS_AT_ONCE = 0.1, 20.0

_ROLES = {"fedvi.v1.FederationService": "client", "fedvi.v1.AdminService": "admin"}


class TooSlow(errors.TransportError):
    """A stream takes too long; the caller may ask for the rest in another call."""


class Calls:
    """Answers calls, turns errors into statuses and counts both; lives in the event loop.

    Args:
      tell: called when a certificate does not allow a call.
    """

    def __init__(self, tell: Callable[[RunEvent], None]) -> None:
        self._tell = tell
        # One that is refused calls again and again: the counts below say how often.
        self._refusals = Bucket(_REFUSALS_A_SECOND, _REFUSALS_AT_ONCE)
        # (method, "ok" or kind of error) → calls; client → bytes of accepted answers.
        self.calls: Counter[tuple[str, str]] = Counter()
        self.taken: Counter[str] = Counter()

    async def __call__(self, context: Any, method: str, work: Awaitable[T]) -> T:
        """Waits for a reply; an error ends only this call.

        Args:
          context: of the call.
          method: its name.
          work: computes the reply.
        """
        reply = await self.part(context, method, work)
        self.calls[method, "ok"] += 1
        return reply

    async def part(self, context: Any, method: str, work: Awaitable[T]) -> T:
        """Does the same for a part of a reply, and counts it only if it fails."""
        try:
            return await work
        except errors.FedviError as error:
            self.calls[method, type(error).__name__] += 1
            if isinstance(error, errors.IdentityError) and self._refusals.take():
                self._tell(run_events.refused(method, "", error))
            await context.abort(*to_status(error))
        except Exception as error:
            # The text of an unexpected error may hold anything. The log gets its place and type; the
            # caller gets neither.
            self.calls[method, "internal"] += 1
            where = traceback.format_tb(error.__traceback__)
            name = type(error).__name__
            logs.log("error", f"{method} failed: {name}", logging.ERROR, where="".join(where))
            await context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says where")
        raise AssertionError("abort returns never")


class Reading(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Admits a call, then reads its message, then parses it; limits slow callers.

    gRPC calls a handler of one message once that message has arrived and was parsed. A caller that never
    sends it would not be counted, and could hold all calls that the server takes; one that is not admitted
    could have large messages parsed. So every handler takes a stream of bytes here, is counted and admitted
    first, and then reads its one message and parses it (``bounded.parse``). Callers see no difference. The
    parts of an upload reach its handler as bytes. Health checks are admitted with any certificate.

    Args:
      access: counts a caller's open calls, and admits it.
      hurries: whether to end a stream that is not read for ``READ_SECONDS``; False for operators, who may
        read slowly.
    """

    def __init__(
        self,
        calls: Calls,
        access: Access,
        hurries: bool,
    ) -> None:
        self._calls, self._access, self._hurries = calls, access, hurries
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Returns the wrapped handler of a method."""
        handler = await continuation(details)
        if handler is None:
            return None
        if details.method not in self._handlers:
            self._handlers[details.method] = self._checked(handler, details.method)
        return self._handlers[details.method]

    async def _write(self, context: Any, reply: Any) -> None:
        """Sends one message of a stream, once the caller has room for it.

        Raises:
          TooSlow: it has no room for too long.
        """
        try:
            async with asyncio.timeout(READ_SECONDS if self._hurries else None):
                await context.write(reply)
        except TimeoutError:
            raise TooSlow(
                f"what was sent was not read for {READ_SECONDS:g} s",
                "ask again, for what is missing",
            ) from None

    def _checked(self, handler: Any, path: str) -> Any:
        service, _, method = path[1:].partition("/")
        role = _ROLES.get(service)

        async def refuse(context: Any, error: errors.FedviError) -> None:
            async def refused() -> None:
                raise error

            await self._calls.part(context, method, refused())

        async def enter(context: Any, places: ExitStack) -> None:
            async def taken() -> None:
                places.enter_context(self._access.place(context))
                self._access.enter(context, role)

            await self._calls.part(context, method, taken())

        async def asked(context: Any) -> Any:
            kind = handler.request_deserializer.__self__
            return await self._calls.part(context, method, _only(context, method, kind))

        async def unary(_: Any, context: Any) -> Any:
            with ExitStack() as places:
                await enter(context, places)
                return await handler.unary_unary(await asked(context), context)

        async def stream(_: Any, context: Any) -> None:
            with ExitStack() as places:
                await enter(context, places)
                request = await asked(context)
                try:
                    async with aclosing(handler.unary_stream(request, context)) as replies:
                        async for reply in replies:
                            await self._write(context, reply)
                except TooSlow as error:
                    # Free the data now, but keep counting the call until the caller has read the refusal
                    # or is gone: otherwise it could pile up streams that it does not read.
                    await refuse(context, error)

        async def upload(requests: Any, context: Any) -> Any:
            with ExitStack() as places:
                await enter(context, places)
                return await handler.stream_unary(requests, context)

        return handler._replace(
            request_streaming=True,
            request_deserializer=None,
            unary_unary=None,
            unary_stream=None,
            stream_unary=unary if handler.stream_unary is None else upload,
            stream_stream=stream,
        )


async def _only(context: Any, method: str, kind: type[Message]) -> Message:
    """Returns the message of a call.

    Raises:
      TooSlow: it did not come.
      ProtocolError: there is none, or it is not what ``bounded.parse`` takes.
    """
    try:
        async with asyncio.timeout(ASK_SECONDS):
            request = await context.read()
    except TimeoutError:
        raise TooSlow(
            f"the message of {method} did not come within {ASK_SECONDS:g} s", "ask again"
        ) from None
    if request is grpc.aio.EOF:
        raise errors.ProtocolError(f"{method} came without its message, expected one")
    return bounded.parse(kind, request)
