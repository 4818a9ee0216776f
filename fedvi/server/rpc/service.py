"""The FederationService: answers clients' gRPC calls through the dispatcher.

Every call is admitted by its certificate before its bytes are read (``calls.Reading``). Then they are
parsed, at a bounded cost; the name in the message is compared with the certificate's; and the coordinator
answers. A refusal returns its kind and a hint, and the server goes on.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import grpc

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import (
    Begin,
    Done,
    Offer,
    Payload,
    Receipt,
    Renewed,
    Reply,
    Submit,
    Wait,
    Welcome,
)
from fedvi.server.core import protocol
from fedvi.server.rpc.access import Access
from fedvi.server.rpc.calls import Calls, TooSlow
from fedvi.server.rpc.dispatcher import Dispatcher
from fedvi.server.store.uploads import Interrupted, Upload, Uploads
from fedvi.transport import bounded, bundle, wire
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.transport.bundle import Bundle
from fedvi.typing import Eta

__all__ = ["CHUNK_SECONDS", "LEASE_SECONDS", "STREAM_SECONDS", "Federation"]

T = TypeVar("T")

LEASE_SECONDS = 30.0
"""The longest time between two signs of life of a working client, which sends them three times as often."""

CHUNK_SECONDS = 60.0
"""The longest silence within an upload; with full chunks, that is 4 KB/s at least."""

STREAM_SECONDS = 600.0
"""The longest upload or download in one call; another call continues it. Clients switch calls by
themselves after half of this."""

# Bytes that are packed between two looks for packed ones that no task holds any more.
_LOOK_BYTES = 4 << 20


class Federation:
    """The FederationService over a dispatcher."""

    def __init__(
        self, dispatcher: Dispatcher, access: Access, uploads: Uploads, calls: Calls
    ) -> None:
        self._dispatcher, self._access, self._uploads = dispatcher, access, uploads
        self._calls = calls
        self._streams: dict[str, object] = {}
        self._packing = asyncio.Lock()
        self._bundles: dict[tuple[int, ...], tuple[Eta, Bundle]] = {}
        self._packed = 0

    @property
    def uploading(self) -> frozenset[str]:
        """The clients whose answers are arriving."""
        return frozenset(self._streams)

    async def Hello(self, request: Any, context: Any) -> Any:
        """Agrees on a protocol version and on the study, and compares the two ledgers."""

        async def answer() -> Any:
            self._access.admit(context, request.client)
            hello, protocol = wire.hello_from(request)
            welcome = _expect(Welcome, await self._dispatcher.handle(hello))
            return wire.welcome_to(welcome, protocol, self._uploads.limit)

        return await self._calls(context, "Hello", answer())

    async def NextTask(self, request: Any, context: Any) -> Any:
        """Returns a task; waits for one if there is none yet."""

        async def answer() -> Any:
            self._access.admit(context, request.client)
            # A certificate may be revoked while its holder waits.
            check = functools.partial(self._access.check, context, request.client)
            asked, seconds = wire.next_task_from(request)
            reply = await self._dispatcher.next_task(asked, seconds, check)
            match reply:
                case Offer(task):
                    posterior = await self._bundle(task.posterior)
                    factor = None if asked.without_factor else await self._bundle(task.factor)
                    check()
                    offer = pb.NextTaskReply()
                    offer.task.CopyFrom(wire.task_to(task, posterior, factor, LEASE_SECONDS))
                    return offer
                case Done():
                    return pb.NextTaskReply(done=wire.done_to(reply))
                case Wait():
                    return pb.NextTaskReply(wait=wire.wait_to(reply))
            raise TypeError(f"{type(reply).__name__} is no reply to NextTask")

        return await self._calls(context, "NextTask", answer())

    async def GetPayload(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Sends the bytes of a payload that the client's current task names."""

        async def find() -> Iterator[tuple[int, bytes]]:
            self._access.admit(context, request.client)
            client, sha256, offset, session = wire.get_payload_from(request)
            # A Hello to this process is not required: a download continues after a restart of the server.
            protocol.check_newest(self._dispatcher.state, client, session)
            task = self._dispatcher.state.tasks.get(client)
            for eta in () if task is None else (task.posterior, task.factor):
                found = await self._bundle(eta)
                if found.manifest.sha256 == sha256:
                    if offset > found.manifest.size:
                        raise errors.ProtocolError(
                            f"offset is {offset}, expected at most {found.manifest.size}"
                        )
                    return bundle.pieces(found.tensors, offset)
            raise errors.ProtocolError(
                f"payload {sha256[:12]} is of no task that {client!r} holds",
                "ask for the task again",
            )

        ends = _in(STREAM_SECONDS)

        async def check() -> None:
            self._access.check(context, request.client)
            _check_time(ends)

        for piece in await self._calls(context, "GetPayload", find()):
            # Each piece waits until the client has taken the one before it.
            await self._calls.part(context, "GetPayload", check())
            yield wire.chunk_to(*piece)

    async def SubmitResult(self, _: Any, context: Any) -> Any:
        """Takes the answer to a task: a header, then chunks."""
        return await self._calls(context, "SubmitResult", self._submit(context))

    async def RenewLease(self, request: Any, context: Any) -> Any:
        """Notes that a client is still at work."""

        async def answer() -> Any:
            self._access.admit(context, request.client)
            renewed = await self._dispatcher.handle(wire.renew_from(request))
            return wire.renewed_to(_expect(Renewed, renewed))

        return await self._calls(context, "RenewLease", answer())

    async def ReportFailure(self, request: Any, context: Any) -> Any:
        """Notes that a client cannot answer."""

        async def answer() -> Any:
            self._access.admit(context, request.client)
            await self._dispatcher.handle(wire.failure_from(request))
            return pb.ReportFailureReply()

        return await self._calls(context, "ReportFailure", answer())

    async def QueryTask(self, request: Any, context: Any) -> Any:
        """Returns the status of an answer, and how much of it has arrived."""

        async def answer() -> Any:
            self._access.admit(context, request.client)
            query = wire.query_from(request)
            # The client sends its answer only after this check, so an outdated session stops here.
            self._check_session(query.client, query.session)
            received = self._uploads.received(query.client, query.sha256)
            return wire.progress_to(wire.Progress(self._status(query), received))

        return await self._calls(context, "QueryTask", answer())

    async def Goodbye(self, request: Any, context: Any) -> Any:
        """Notes that a client leaves; it may come back."""

        async def answer() -> Any:
            self._access.admit(context, request.client)
            await self._dispatcher.handle(wire.goodbye_from(request))
            return pb.GoodbyeReply()

        return await self._calls(context, "Goodbye", answer())

    async def _submit(self, context: Any) -> Any:
        """Takes an upload, and hands it in once it is complete."""
        ends = _in(STREAM_SECONDS)
        first = await _next(context)
        if first is None or first.WhichOneof("part") != "header":
            raise errors.ProtocolError("an upload began without its header")
        self._access.admit(context, first.header.client)
        header = wire.header_from(first.header)
        client, manifest = header.client, header.manifest
        if header.inline is None:
            # From here on the answer is charged, whether or not all of it arrives. The digest alone
            # decides which bytes are still needed.
            begin = Begin(client, header.task_id, manifest.sha256, manifest.event, header.attempt)
            reply = await self._dispatcher.handle(begin)
            if isinstance(reply, Receipt):
                if reply.status == "duplicate":
                    # A server that was killed right after its commit has left these bytes.
                    self._uploads.forget(client, manifest.sha256)
                return wire.receipt_to(reply)
        # A client that lost its connection may return before its old stream is known to be dead.
        stream = self._streams[client] = object()
        try:
            if header.inline is not None:
                return await self._hand_in(header, bundle.cut(manifest, header.inline))
            upload = self._uploads.begin(client, manifest.sha256, manifest.size, header.offset)
            try:

                def check() -> None:
                    self._access.check(context, client)
                    _check_time(ends)

                return await self._take(context, upload, header, stream, check)
            finally:
                upload.close()
        finally:
            if self._streams.get(client) is stream:
                del self._streams[client]

    async def _take(
        self,
        context: Any,
        upload: Upload,
        header: wire.Header,
        stream: object,
        check: Callable[[], None],
    ) -> Any:
        """Receives an upload's chunks to its end; deletes it if it is refused for good."""
        try:
            while (part := await _next(context)) is not None:
                if self._streams.get(header.client) is not stream:
                    raise Interrupted("the same answer is being sent by a newer call")
                if part.WhichOneof("part") != "chunk":
                    raise errors.ProtocolError("an upload has two headers")
                check()
                offset, data = wire.chunk_from(part.chunk)
                _check_chunk(offset, data, upload.size)
                upload.add(offset, data)
            if upload.received < upload.size:
                raise Interrupted(
                    f"the upload ended after {upload.received} of {upload.size} bytes"
                )
            check()
            receipt = await self._hand_in(header, bundle.cut(header.manifest, upload.data()))
        except errors.TransportError:
            raise
        except errors.FedviError:
            self._uploads.forget(header.client)
            raise
        self._calls.taken[header.client] += upload.size
        return receipt

    async def _hand_in(self, header: wire.Header, payload: Payload) -> Any:
        submit = Submit(header.client, header.task_id, payload, header.attempt)
        receipt = _expect(Receipt, await self._dispatcher.handle(submit))
        self._uploads.forget(header.client)
        return wire.receipt_to(receipt)

    def _check_session(self, client: str, session: str) -> None:
        protocol.check_session(self._dispatcher.spec, self._dispatcher.state, client, session)

    def _status(self, query: wire.Query) -> str:
        """Returns the status of an answer; reveals nothing about another client's tasks."""
        state = self._dispatcher.state
        only = protocol.answer_of(state, query.client, query.task_id)
        if only not in (None, query.sha256):
            return "conflict"
        if only is not None and query.task_id in state.accepted:
            return "accepted"
        task = state.tasks.get(query.client)
        return "open" if task is not None and task.task_id == query.task_id else "unknown"

    async def _bundle(self, eta: Eta) -> Bundle:
        """Packs natural parameters once for all clients; the arrays are shared, not copied."""
        async with self._packing:
            key = _arrays_of(eta)
            if key not in self._bundles:
                size = sum(leaf.nbytes for leaf in tree.leaves(eta))
                made = await _hashed(size, bundle.of_eta, eta)
                self._packed += made.manifest.size
                if (
                    self._packed > _LOOK_BYTES
                ):  # at each, all tasks would be looked at for each task
                    self._forget_unheld()
                # Keep the tree alive: an id names an array only while the array lives.
                self._bundles[key] = (eta, made)
            return self._bundles[key][1]

    def _forget_unheld(self) -> None:
        tasks = self._dispatcher.state.tasks.values()
        held = (eta for task in tasks for eta in (task.posterior, task.factor))
        needed = {_arrays_of(eta) for eta in held}
        self._bundles = {k: v for k, v in self._bundles.items() if k in needed}
        self._packed = 0


def _arrays_of(eta: Eta) -> tuple[int, ...]:
    return tuple(id(leaf) for leaf in tree.leaves(eta))


async def _hashed(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Hashing large arrays is slow, and must not block the event loop; for few bytes a thread is slower."""
    if size <= bundle.CHUNK:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def _expect(kind: type[T], reply: Reply) -> T:
    """Checks that a reply is of the kind that the protocol prescribes for the request."""
    if not isinstance(reply, kind):
        raise TypeError(f"{type(reply).__name__} is no {kind.__name__}")
    return reply


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _check_time(ends: float) -> None:
    if asyncio.get_running_loop().time() > ends:
        raise TooSlow(
            f"the payload was on its way for {STREAM_SECONDS:g} s, expected less in one call",
            "go on where it stopped, in another call",
        )


def _check_chunk(offset: int, data: bytes, size: int) -> None:
    """Refuses tiny chunks: each chunk costs the same work, whatever its size."""
    if len(data) < bundle.LEAST_CHUNK and offset + len(data) < size:
        raise errors.ProtocolError(
            f"a chunk has {len(data)} bytes, expected at least {bundle.LEAST_CHUNK} but in the last",
            f"clients of fedvi send {bundle.CHUNK} bytes in each",
        )


async def _next(context: Any) -> Any:
    """Returns the next part of an upload; None at its end.

    Raises:
      Interrupted: nothing came for too long.
      ProtocolError: it is not what ``bounded.parse`` takes.
    """
    try:
        async with asyncio.timeout(CHUNK_SECONDS):
            part = await context.read()
    except TimeoutError:
        raise Interrupted(f"nothing came for {CHUNK_SECONDS:g} s") from None
    return None if part is grpc.aio.EOF else bounded.parse(pb.SubmitPart, part)
