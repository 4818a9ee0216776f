"""The client's link over gRPC, with deadlines, retries and resumed transfers.

The client dials out, and every call may be repeated on a new connection: a task is offered until it is
answered, and an answer that arrives twice counts once. So the link repairs broken connections by retrying,
and its user sees a slow link, not a broken one.
"""

import contextlib
import math
import queue
import random
import secrets
import threading
import time
import weakref
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

# Seconds that a small call may take, not counting its wait at the server.
_CALL_SECONDS = 20.0
# Seconds that one stream may take. A slower transfer continues in another stream.
_STREAM_SECONDS = 300.0
# Seconds for Failure and Goodbye: a client that leaves does not wait for an absent server.
_FAILURE_SECONDS = 30.0
_GOODBYE_SECONDS = 3.0
# Seconds between signs of life if the server names no lease; and their bounds if it does.
_BEAT_SECONDS = 30.0
_BEATS = (0.01, 3600.0)
# The first and the longest wait before a call is made again, in seconds.
_DELAYS = (0.1, 10.0)
# Seconds. For a shorter wait, do not ask whether the server is back. It is also how long to wait once the
# server says that it is back, in case it still refuses.
_WORTH_ASKING = 0.25
# How often a call may end in another way than by a lost connection, and how often a task may be withdrawn
# while its arrays are fetched, before that is an error.
_ODD_ENDS = 8
_WITHDRAWN = 3
# Trees cached: posterior and factor of the last two tasks. A repeated task or an unchanged factor is not
# fetched again.
_KEPT = 4

_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Allow pings without data: a call that waits for a task is silent.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_send_message_length", bundle.MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", bundle.MESSAGE_LIMIT),
    # A fixed window, for 40 MB/s at 100 ms: to find one, gRPC pings whenever data arrives. The server does
    # find one: a window is memory that callers may fill.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # The link does its own retries: gRPC's retries know nothing of offsets.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcLink:
    """Carries requests to a server, and retries after failures; a ``transport.memory.Link``.

    The link draws a session and adds it to each request; a process has one link. Before it sends the
    bytes of an answer, it asks the server, in a separate call, whether it awaits them from this session.

    Only one thread at a time may call ``handle``. From an Offer to the next request, a background thread
    renews the task's lease every third of its length.

    Args:
      target: "HOST:PORT" of the server.
      client: the sender of the requests; the name in the certificate.
      like: natural parameters with the layout of every task's.
      credentials: ``grpc.ChannelCredentials``; None for plaintext.
      give_up_after: seconds without any success after which a request fails; None for never.
      on_wait: called with what went wrong, before each wait for another try.
      on_heard: called in any thread whenever the server answered.
      wait_seconds: how long the server may hold back its answer to a NextTask.
      delays: the first and the longest wait before another try, in seconds; each wait is drawn
        uniformly from 0 to a bound that doubles, so that clients do not return all at once.
    """

    def __init__(
        self,
        target: str,
        client: str,
        like: Eta,
        credentials: Any = None,
        *,
        give_up_after: float | None = None,
        on_wait: Callable[[errors.FedviError], None] | None = None,
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
        # The same on the wire as a stream of one message, for which gRPC would start a thread.
        self._submit_whole = self._channel.unary_unary(
            "/fedvi.v1.FederationService/SubmitResult",
            request_serializer=pb.SubmitPart.SerializeToString,
            response_deserializer=pb.Receipt.FromString,
        )
        self._health = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        self._session = secrets.token_bytes(16).hex()
        self._closed = threading.Event()
        self._payload_limit = bundle.PAYLOAD_LIMIT
        self._fetched: OrderedDict[str, Eta] = OrderedDict()
        self._heartbeat = _Heartbeat()
        # Otherwise the thread of a link that was dropped without `close` would never end.
        weakref.finalize(self, self._heartbeat.close).atexit = False

    def handle(self, request: Request) -> Reply:
        """Sends one request and waits for its reply, as long as it takes.

        Raises:
          TransportError: the server was unreachable for ``give_up_after`` (for a Failure at most
            half a minute, for a Goodbye 3 seconds), or the link is closed.
          FedviError: the server refused, with an error of this class; ``HelloNeeded`` asks for a Hello
            first, ``Superseded`` says that another process sent Hello since.
        """
        if request.client != self._client:
            raise errors.ProtocolError(
                f"a request of {request.client!r} on the link of {self._client!r}"
            )
        if not isinstance(request, Renew):
            self._heartbeat.rest()
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
        """Ends every call and every wait, in all threads; may be called twice."""
        self._closed.set()
        self._heartbeat.close()
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
                    # The server stays until all clients have heard of the end, and a reply may be lost.
                    # Goodbye tells it that this one arrived.
                    with contextlib.suppress(errors.FedviError):
                        self.handle(Goodbye(self._client))
                    return wire.done_from(reply.done)
                case None:
                    raise errors.ProtocolError("reply is missing")
            without = request.without_factor
            work = wire.task_from(reply.task, self._client, self._like, without)
            try:
                posterior = self._fetch(*work.posterior)
                factor = None if work.factor is None else self._fetch(*work.factor)
            except (errors.HelloNeeded, errors.Superseded):
                raise
            except errors.ProtocolError:
                # The task and its arrays may have been withdrawn meanwhile.
                withdrawn += 1
                if withdrawn == _WITHDRAWN:
                    raise
                continue
            self._beat(work.task.task_id, work.lease_seconds)
            return Offer(work.task._replace(posterior=posterior, factor=factor))

    def _fetch(self, manifest: bundle.Manifest, inline: bytes | None) -> Eta:
        """Returns announced natural parameters from the cache, the message or a download."""
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
        bundle.check_size(request.task_id, bundled.manifest.size, self._payload_limit)
        patience = self._patience()
        upload = _Upload(self._stub, self._submit_whole, request, bundled, patience.renew)
        try:
            return patience.persist(upload.attempt)
        except (errors.HelloNeeded, errors.Superseded):
            raise
        except errors.ProtocolError:
            if not upload.offset:
                raise
            # Earlier bytes may be damaged, or more may have arrived since the server was asked.
            upload.begin_anew()
            return patience.persist(upload.attempt)

    def _call(
        self, method: Callable[..., Any], message: Any, seconds: float = _CALL_SECONDS
    ) -> Any:
        reply = self._patience().persist(lambda: method(message, timeout=seconds))
        self._on_heard()
        return reply

    def _say(self, method: Callable[..., Any], message: Any, longest: float) -> None:
        """Makes a call that gives up after ``longest`` seconds, even if the link is more patient."""
        patience = self._patience(longest)
        patience.persist(lambda: method(message, timeout=min(longest, _CALL_SECONDS)))

    def _patience(self, longest: float | None = None) -> "_Patience":
        limits = [limit for limit in (self._give_up_after, longest) if limit is not None]
        limit = min(limits) if limits else None
        return _Patience(self._delays, limit, self._on_wait, self._pause, self._closed)

    def _pause(self, seconds: float, is_lost: bool) -> None:
        """Waits before another try; if the connection is lost, at most until it is back."""
        ends = time.monotonic() + seconds
        if is_lost and seconds > _WORTH_ASKING:
            try:
                # Waits while gRPC redials, about every two seconds. Any server answers a health check,
                # if only with "not implemented".
                self._health(b"", timeout=seconds, wait_for_ready=True)
            except grpc.RpcError as error:
                is_lost = error.code() is grpc.StatusCode.UNAVAILABLE
            except ValueError:
                # gRPC raises this on a closed channel.
                return
            else:
                is_lost = False
            if not is_lost:
                ends = min(ends, time.monotonic() + _WORTH_ASKING)
        self._closed.wait(max(0.0, ends - time.monotonic()))

    def _beat(self, task_id: str, lease_seconds: float) -> None:
        """Starts to renew the lease of a task, every third of its length."""
        interval = min(max(lease_seconds / 3.0, _BEATS[0]), _BEATS[1])
        interval = interval if lease_seconds else _BEAT_SECONDS
        message = wire.renew_to(Renew(self._client, task_id, self._session))
        # No retries: the next beat is the next try.
        seconds = min(interval, _CALL_SECONDS)
        this = weakref.ref(self)

        def renew() -> None:
            link = this()
            if link is None:
                return
            try:
                link._stub.RenewLease(message, timeout=seconds)
            except grpc.RpcError as error:
                # A restarted server asks for a Hello, which precedes the next request.
                if not isinstance(status.from_status(error), errors.HelloNeeded):
                    raise
            link._on_heard()

        self._heartbeat.start(interval, renew)


class _Heartbeat:
    """Calls a function every so often, from one thread: a thread for each task costs more than small tasks.

    The thread begins with the first task. The end of a task does not wake it, and the next task does only
    if its first call is due before the thread would wake by itself.
    """

    def __init__(self) -> None:
        self._guard = threading.RLock()
        # Unlike a condition, it may be used by `close` while the garbage collector runs, in any thread.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._renew: Callable[[], object] | None = None
        self._interval, self._due, self._sleeps_until = 0.0, math.inf, math.inf
        self._closed = False

    def start(self, interval: float, renew: Callable[[], object]) -> None:
        """Calls ``renew`` every ``interval`` seconds from now on, and nothing else."""
        with self._guard:
            self._renew, self._interval, self._due = renew, interval, time.monotonic() + interval
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
                self._thread.start()
            elif self._due < self._sleeps_until:
                self._wakes.put(None)

    def rest(self) -> None:
        """Stops the calls; one in progress ends by itself."""
        with self._guard:
            self._renew, self._due = None, math.inf

    def close(self) -> None:
        """Stops the calls, and ends the thread after a call in progress."""
        self._closed = True
        self._wakes.put(None)

    def _next(self) -> Callable[[], object] | None:
        """Waits until a call is due, and returns it; None once closed."""
        while not self._closed:
            with self._guard:
                now = time.monotonic()
                if now >= self._due:
                    self._due = now + self._interval
                    return self._renew
                self._sleeps_until = self._due
                seconds = None if self._due == math.inf else self._due - now
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=seconds)
        return None

    def _run(self) -> None:
        while (renew := self._next()) is not None:
            try:
                renew()
            except grpc.RpcError as error:
                # A permanent refusal also applies to the answer, and is reported there.
                if not status.is_retryable(error):
                    with self._guard:
                        if self._renew is renew:
                            self._renew, self._due = None, math.inf
            except ValueError:
                # gRPC raises this on a closed channel.
                return


class _Patience:
    """Repeats a call until it succeeds; ``renew`` resets the count of failures.

    Args:
      delays: the first and the longest bound of a wait, in seconds.
      give_up_after: seconds without success, or None.
      on_wait: called with what went wrong before each wait.
      pause: waits for at most some seconds; its second argument says whether the connection is lost.
      closed: set once the link is closed.
    """

    def __init__(
        self,
        delays: tuple[float, float],
        give_up_after: float | None,
        on_wait: Callable[[errors.FedviError], None] | None,
        pause: Callable[[float, bool], None],
        closed: threading.Event,
    ) -> None:
        self._delays, self._give_up_after = delays, give_up_after
        self._on_wait, self._pause, self._closed = on_wait, pause, closed
        # From the operating system: a seeded generator would bring clients back together.
        self._random = random.SystemRandom()
        self.renew()

    def renew(self) -> None:
        """Resets the failures, since data arrived."""
        self._since, self._tries, self._odd = 0.0, 0, 0

    def persist(self, call: Callable[[], _T]) -> _T:
        """Repeats the call until it succeeds, and returns its result.

        Raises:
          TransportError: it took too long, or the link was closed.
          FedviError: the server refused for good.
        """
        while True:
            if self._closed.is_set():
                raise errors.TransportError("the link to the server is closed")
            try:
                return call()
            except grpc.RpcError as error:
                self._wait_after(error)
            except ValueError as error:
                # gRPC raises this on a channel that was closed meanwhile.
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
            # Count from the first failure: the call before it may have waited at the server.
            self._since = time.monotonic()
        first, longest = self._delays
        # Cap the exponent, which would overflow after some days of tries.
        delay = self._random.uniform(0.0, min(longest, first * 2.0 ** min(self._tries, 30)))
        self._tries += 1
        if self._give_up_after is not None:
            left = self._since + self._give_up_after - time.monotonic()
            if left <= 0.0:
                raise errors.TransportError(
                    f"gave up after {self._give_up_after:g} seconds: {failure.message}",
                    failure.hint,
                    failure.server_says,
                ) from error
            delay = min(delay, left)
        if self._on_wait is not None:
            self._on_wait(failure)
        self._pause(delay, error.code() is grpc.StatusCode.UNAVAILABLE)


class _Upload:
    """Sends one answer in as many attempts as needed; each continues where the last broke off.

    Attributes:
      offset: where the last attempt began.
    """

    def __init__(
        self,
        stub: stubs.FederationServiceStub,
        submit_whole: Callable[..., pb.Receipt],
        request: Submit,
        bundled: bundle.Bundle,
        on_progress: Callable[[], None],
    ) -> None:
        self._stub, self._submit_whole = stub, submit_whole
        self._request, self._bundled, self._on_progress = request, bundled, on_progress
        query = wire.Query(
            request.client, request.task_id, bundled.manifest.sha256, request.session
        )
        self._query = wire.query_to(query)
        self._size = bundled.manifest.size
        self._anew = False
        self.offset = 0

    def begin_anew(self) -> None:
        """Makes the next attempt begin at the first byte."""
        self._anew, self.offset = True, 0

    def attempt(self) -> Receipt:
        """Sends the bytes that have not arrived, and returns the receipt.

        No byte of the answer leaves before the server says that it awaits this very answer from this
        process: bytes that it would refuse without a charge must not leave. Otherwise only a header is
        sent, so that the server reports the status of the answer.

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
        request, bare, first = self._request, reply.status != "open", pb.SubmitPart()
        header = wire.header_to(
            request.client, request.task_id, request.attempt, self._bundled, self.offset, bare=bare
        )
        first.header.CopyFrom(header)
        if bare or self._size <= bundle.INLINE:
            receipt = self._submit_whole(first, timeout=_STREAM_SECONDS)
        else:
            receipt = self._stub.SubmitResult(self._parts(first), timeout=_STREAM_SECONDS)
        return wire.receipt_from(receipt)

    def _parts(self, first: pb.SubmitPart) -> Iterator[pb.SubmitPart]:
        yield first
        for at, data in bundle.pieces(self._bundled.tensors, self.offset):
            yield pb.SubmitPart(chunk=wire.chunk_to(at, data))
