"""The client's link over gRPC: deadlines, retries, and transfers that go on where they broke off.

The client dials out, and every call may be made again on a new connection: a task is offered until it
is answered, and an answer that arrives twice counts once. So a link that breaks off is mended by asking
again, and whoever uses it sees a slow link, not a broken one.
"""

import contextlib
import random
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from fedvi import errors
from fedvi.federation.messages import (
    Begin,
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Noted,
    Offer,
    Receipt,
    Renew,
    Reply,
    Request,
    Submit,
    Wait,
    Welcome,
)
from fedvi.transport import bundle, codec, status, wire
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.transport._wire import federation_pb2_grpc as stubs
from fedvi.typing import Eta

__all__ = ["GrpcLink"]

_T = TypeVar("_T")

# Seconds that a small call may take; one that waits at the server has these on top.
_CALL_SECONDS = 20.0
# Seconds that one stream may take. A slower one goes on in a stream of its own.
_STREAM_SECONDS = 300.0
# Seconds for the last words: whoever leaves, or failed, does not wait for a server that is not there.
_FAILURE_SECONDS = 30.0
_GOODBYE_SECONDS = 3.0
# Seconds between signs of life where the server names no lease; the fewest and the most where it does.
_BEAT_SECONDS = 30.0
_BEATS = (0.01, 3600.0)
# The first and the longest wait before a call is made again, in seconds.
_DELAYS = (0.1, 10.0)
# A shorter wait is not worth the question whether the server is back; and with a server that says so
# and yet refuses, each wait is at least so long, in seconds.
_WORTH_ASKING = 0.25
# How often a call may end in a way that is no broken connection by all appearances, or a task may be
# withdrawn while its arrays are fetched, before that is an error.
_ODD_ENDS = 8
_WITHDRAWN = 3
# The last task's two arrays, and those of the task before: a task that is offered again, and a factor
# that did not change, are not fetched again.
_KEPT = 4

_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A task is waited for in silence, for less time than a ping is due; none may be refused.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_send_message_length", bundle.MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", bundle.MESSAGE_LIMIT),
    # Retries are ours alone: those of gRPC know nothing of offsets.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcLink:
    """Carries requests to a server, and mends what breaks on the way; a ``transport.memory.Link``.

    It draws a session and gives it to each request: a process has one link. Before an answer's bytes
    go out, the server is asked whether it awaits them from this session, in a call of its own.

    One thread at a time calls ``handle``. While a task is in the caller's hands, from an Offer to
    the next request, a thread tells the server every third of a lease that it is being worked on.

    Args:
      target: "HOST:PORT" of the server.
      client: whose requests these are; the name in the certificate.
      like: natural parameters whose layout those of every task must have.
      credentials: ``grpc.ChannelCredentials``; None for plaintext.
      give_up_after: seconds without any success after which a request fails; None for never.
      on_wait: called with the reason, before each wait for another try.
      on_heard: called whenever the server answered, in whatever thread.
      wait_seconds: how long the server may hold back its answer to a NextTask.
      delays: the first and the longest wait before another try, in seconds; each wait is drawn
        uniformly from 0 to a bound that doubles, so that clients do not come back all at once.
    """

    def __init__(
        self,
        target: str,
        client: str,
        like: Eta,
        credentials: Any = None,
        *,
        give_up_after: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        on_heard: Callable[[], None] | None = None,
        wait_seconds: float = wire.LONGEST_WAIT,
        delays: tuple[float, float] = _DELAYS,
    ) -> None:
        self._client, self._like = client, like
        self._give_up_after, self._on_wait = give_up_after, on_wait
        self._on_heard = on_heard or (lambda: None)
        self._wait_seconds, self._delays = wait_seconds, delays
        self._channel = (
            grpc.insecure_channel(target, _OPTIONS)
            if credentials is None
            else grpc.secure_channel(target, credentials, _OPTIONS)
        )
        self._stub = stubs.FederationServiceStub(self._channel)
        self._health = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        self._session = secrets.token_bytes(16).hex()
        self._closed = threading.Event()
        self._payload_limit = bundle.PAYLOAD_LIMIT
        self._fetched: OrderedDict[str, Eta] = OrderedDict()
        self._heartbeat: _Heartbeat | None = None

    def handle(self, request: Request) -> Reply:
        """Sends one request and waits for its reply, as long as it takes.

        Raises:
          TransportError: the server was out of reach for ``give_up_after`` (for a Failure at most
            half a minute, for a Goodbye 3 seconds), or the link is closed.
          FedviError: what the server refused, as the class that it raised there; ``HelloNeeded``
            asks for a Hello first, ``Superseded`` says that another process greeted since.
        """
        if request.client != self._client:
            raise errors.ProtocolError(
                f"a request of {request.client!r} on the link of {self._client!r}"
            )
        if not isinstance(request, Renew):
            self._rest()
        request = request._replace(session=self._session)
        match request:
            case Hello():
                return self._hello(request)
            case NextTask():
                return self._next_task(request)
            case Submit():
                return self._submit(request)
            case Renew():
                renewed = self._call(self._stub.RenewLease, wire.renew_to(request))
                return wire.renewed_from(renewed)
            case Failure():
                self._say(self._stub.ReportFailure, wire.failure_to(request), _FAILURE_SECONDS)
                return Noted()
            case Goodbye():
                self._say(self._stub.Goodbye, wire.goodbye_to(request), _GOODBYE_SECONDS)
                return Noted()
            case Begin():
                raise errors.ProtocolError("Begin is what the server makes of an upload's header")

    def close(self) -> None:
        """Ends every call and every wait, in whatever thread; may be called twice."""
        self._closed.set()
        self._rest()
        self._channel.close()

    def _hello(self, request: Hello) -> Welcome:
        reply = self._call(self._stub.Hello, wire.hello_to(request))
        welcome, self._payload_limit = wire.welcome_from(reply)
        return welcome

    def _next_task(self, request: NextTask) -> Offer | Wait | Done:
        message = wire.next_task_to(request, self._wait_seconds)
        seconds = self._wait_seconds + _CALL_SECONDS
        withdrawn = 0
        while True:
            reply = self._call(self._stub.NextTask, message, seconds)
            match reply.WhichOneof("reply"):
                case "wait":
                    return wire.wait_from(reply.wait)
                case "done":
                    # The server stays until all have heard of the end, and a reply can be lost on
                    # its way: so it is told that this one was not.
                    with contextlib.suppress(errors.FedviError):
                        self.handle(Goodbye(self._client))
                    return wire.done_from(reply.done)
                case None:
                    raise errors.ProtocolError("reply is missing")
            work = wire.task_from(reply.task, self._client, self._like)
            try:
                posterior, factor = self._fetch(*work.posterior), self._fetch(*work.factor)
            except (errors.HelloNeeded, errors.Superseded):
                raise
            except errors.ProtocolError:
                # The task may have been withdrawn meanwhile, and its arrays with it.
                withdrawn += 1
                if withdrawn == _WITHDRAWN:
                    raise
                continue
            self._beat(work.task.task_id, work.lease_seconds)
            return Offer(work.task._replace(posterior=posterior, factor=factor))

    def _fetch(self, manifest: bundle.Manifest, inline: bytes | None) -> Eta:
        """Returns the natural parameters that were announced, from wherever they are."""
        eta = self._fetched.get(manifest.sha256)
        if eta is None:
            data = self._download(manifest) if inline is None else inline
            eta = codec.unpack(bundle.assemble(manifest, data).tensors, self._like)
        self._fetched[manifest.sha256] = eta
        self._fetched.move_to_end(manifest.sha256)
        while len(self._fetched) > _KEPT:
            self._fetched.popitem(last=False)
        return eta

    def _download(self, manifest: bundle.Manifest) -> memoryview:
        buffer = bundle.Buffer(manifest.size)
        patience = self._patience()

        def attempt() -> None:
            request = wire.get_payload_to(
                self._client, manifest.sha256, buffer.received, self._session
            )
            stream = self._stub.GetPayload(request, timeout=_STREAM_SECONDS)
            try:
                for chunk in stream:
                    buffer.add(*wire.chunk_from(chunk))
                    patience.renew()
            finally:
                stream.cancel()
            if buffer.received < manifest.size:
                raise errors.ProtocolError(
                    f"the server sent {buffer.received} bytes, expected {manifest.size}"
                )

        patience.persist(attempt)
        return buffer.data()

    def _submit(self, request: Submit) -> Receipt:
        bundled = bundle.of_payload(request.payload)
        size = bundled.manifest.size
        if size > self._payload_limit:
            raise errors.ProtocolError(
                f"the answer to task {request.task_id!r} has {size} bytes, expected at most "
                f"{self._payload_limit}"
            )
        patience = self._patience()
        upload = _Upload(self._stub, request, bundled, patience.renew)
        try:
            return patience.persist(upload.attempt)
        except (errors.HelloNeeded, errors.Superseded):
            raise
        except errors.ProtocolError:
            if not upload.offset:
                raise
            # What had arrived before may have been damaged, or have grown since the server was asked.
            upload.begin_anew()
            return patience.persist(upload.attempt)

    def _call(
        self, method: Callable[..., Any], message: Any, seconds: float = _CALL_SECONDS
    ) -> Any:
        reply = self._patience().persist(lambda: method(message, timeout=seconds))
        self._on_heard()
        return reply

    def _say(self, method: Callable[..., Any], message: Any, longest: float) -> None:
        """Calls with no more patience than ``longest`` seconds, however patient the link is."""
        patience = self._patience(longest)
        patience.persist(lambda: method(message, timeout=min(longest, _CALL_SECONDS)))

    def _patience(self, longest: float | None = None) -> "_Patience":
        limits = [limit for limit in (self._give_up_after, longest) if limit is not None]
        limit = min(limits) if limits else None
        return _Patience(self._delays, limit, self._on_wait, self._pause, self._closed)

    def _pause(self, seconds: float, is_lost: bool) -> None:
        """Waits before another try; if the connection is lost, no longer than until it is back."""
        ends = time.monotonic() + seconds
        if is_lost and seconds > _WORTH_ASKING:
            try:
                # Waits while gRPC dials again, every two seconds or so. The server's health is asked
                # for since that is always answered, and be it by "not implemented".
                self._health(b"", timeout=seconds, wait_for_ready=True)
            except grpc.RpcError as error:
                is_lost = error.code() is grpc.StatusCode.UNAVAILABLE
            except ValueError:
                # What gRPC raises on a channel that was closed.
                return
            else:
                is_lost = False
            if not is_lost:
                ends = min(ends, time.monotonic() + _WORTH_ASKING)
        self._closed.wait(max(0.0, ends - time.monotonic()))

    def _beat(self, task_id: str, lease_seconds: float) -> None:
        """Tells the server every third of a lease that a task is being worked on."""
        interval = min(max(lease_seconds / 3.0, _BEATS[0]), _BEATS[1])
        interval = interval if lease_seconds else _BEAT_SECONDS
        message = wire.renew_to(Renew(self._client, task_id, self._session))
        # Once: the next beat is the next try.
        seconds = min(interval, _CALL_SECONDS)

        def renew() -> None:
            try:
                self._stub.RenewLease(message, timeout=seconds)
            except grpc.RpcError as error:
                # A server that started anew asks for a Hello, which the next request will say.
                if not isinstance(status.from_status(error), errors.HelloNeeded):
                    raise
            self._on_heard()

        self._heartbeat = _Heartbeat(interval, renew)

    def _rest(self) -> None:
        beat, self._heartbeat = self._heartbeat, None
        if beat is not None:
            beat.close()


class _Heartbeat:
    """Calls ``renew`` every ``interval`` seconds from a thread of its own, until it is closed."""

    def __init__(self, interval: float, renew: Callable[[], object]) -> None:
        self._interval, self._renew = interval, renew
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """Ends it; the thread ends by itself, after a call that is under way."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._renew()
            except grpc.RpcError as error:
                # Whatever the server refuses for good, it refuses the answer as well; it is said then.
                if not status.is_retryable(error):
                    return
            except ValueError:
                # What gRPC raises on a channel that was closed.
                return


class _Patience:
    """Makes one call again until it succeeds; forgets all failures when ``renew`` is called.

    Args:
      delays: the first and the longest bound of a wait, in seconds.
      give_up_after: seconds without success, or None.
      on_wait: called with the reason before each wait.
      pause: waits for so many seconds, or less; it is told whether the connection is lost.
      closed: set when nothing is to be waited for any more.
    """

    def __init__(
        self,
        delays: tuple[float, float],
        give_up_after: float | None,
        on_wait: Callable[[str], None] | None,
        pause: Callable[[float, bool], None],
        closed: threading.Event,
    ) -> None:
        self._delays, self._give_up_after = delays, give_up_after
        self._on_wait, self._pause, self._closed = on_wait, pause, closed
        # From the operating system: a seeded generator would bring clients back together.
        self._random = random.SystemRandom()
        self.renew()

    def renew(self) -> None:
        """Begins anew: something arrived."""
        self._since, self._tries, self._odd = 0.0, 0, 0

    def persist(self, call: Callable[[], _T]) -> _T:
        """Returns what the call returns in the end.

        Raises:
          TransportError: it took too long, or the link was closed.
          FedviError: what the server refused for good.
        """
        while True:
            if self._closed.is_set():
                raise errors.TransportError("the link to the server is closed")
            try:
                return call()
            except grpc.RpcError as error:
                self._wait_after(error)
            except ValueError as error:
                # What gRPC raises on a channel that was closed meanwhile.
                if not self._closed.is_set():
                    raise
                raise errors.TransportError("the link to the server is closed") from error

    def _wait_after(self, error: grpc.RpcError) -> None:
        failure = status.from_status(error)
        if self._closed.is_set():
            raise errors.TransportError("the link to the server is closed") from error
        self._odd += not status.is_unreachable(error)
        if not status.is_retryable(error) or self._odd > _ODD_ENDS:
            raise failure from error
        if not self._tries:
            # From the first failure on: the call before it may have waited at the server.
            self._since = time.monotonic()
        first, longest = self._delays
        # No power of a large number of tries, which would overflow after some days.
        delay = self._random.uniform(0.0, min(longest, first * 2.0 ** min(self._tries, 30)))
        self._tries += 1
        if self._give_up_after is not None:
            left = self._since + self._give_up_after - time.monotonic()
            if left <= 0.0:
                raise errors.TransportError(
                    f"gave up after {self._give_up_after:g} seconds: {failure.message}",
                    failure.hint,
                ) from error
            delay = min(delay, left)
        if self._on_wait is not None:
            self._on_wait(failure.message)
        self._pause(delay, error.code() is grpc.StatusCode.UNAVAILABLE)


class _Upload:
    """Sends one answer, in as many attempts as it takes; each goes on where the last broke off.

    Attributes:
      offset: where the last attempt began.
    """

    def __init__(
        self,
        stub: stubs.FederationServiceStub,
        request: Submit,
        bundled: bundle.Bundle,
        on_progress: Callable[[], None],
    ) -> None:
        self._stub, self._request, self._bundled = stub, request, bundled
        self._on_progress = on_progress
        query = wire.Query(
            request.client, request.task_id, bundled.manifest.sha256, request.session
        )
        self._query = wire.query_to(query)
        self._size = bundled.manifest.size
        self._anew = False
        self.offset = 0

    def begin_anew(self) -> None:
        """Makes the next attempt begin at the first byte, whatever has arrived."""
        self._anew, self.offset = True, 0

    def attempt(self) -> Receipt:
        """Sends what has not arrived, and returns the receipt.

        Not a byte goes out before the server said that it awaits this very answer, from this process:
        what it would refuse, and charge to nobody, must not leave. Without its word a header goes
        out by itself, so that the server says what became of the answer.

        Raises:
          ProtocolError: the server has, or waits for the rest of, another answer.
        """
        reply = wire.progress_from(self._stub.QueryTask(self._query, timeout=_CALL_SECONDS))
        if reply.status == "conflict":
            raise errors.ProtocolError(
                f"the server holds another answer to task {self._request.task_id!r}",
                "was this client's state restored from a backup, or is it running twice?",
            )
        arrived = 0 if self._anew else min(reply.received, self._size)
        self._anew = False
        if arrived > self.offset:
            self._on_progress()
        self.offset = arrived
        parts = self._parts(bare=reply.status != "open")
        return wire.receipt_from(self._stub.SubmitResult(parts, timeout=_STREAM_SECONDS))

    def _parts(self, bare: bool) -> Iterator[pb.SubmitPart]:
        request = self._request
        header = wire.header_to(
            request.client, request.task_id, request.attempt, self._bundled, self.offset, bare=bare
        )
        yield pb.SubmitPart(header=header)
        if self._size > bundle.INLINE and not bare:
            for at, data in bundle.pieces(self._bundled.tensors, self.offset):
                yield pb.SubmitPart(chunk=wire.chunk_to(at, data))
