"""A small server that speaks the protos, for tests of the link; and a proxy that breaks connections."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc

from fedvi import errors
from fedvi.federation.messages import Done, Receipt, Renewed, Wait, Welcome
from fedvi.transport import bundle, wire
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.transport._wire import federation_pb2_grpc as stubs


class Server(stubs.FederationServiceServicer):
    """Offers the tasks that it is given, and keeps what it hears.

    ``faults`` maps a method to what its next calls raise: an error, a status code, or a callable
    that is called with the call's context. An upload or a download breaks off after ``break_after``
    bytes, once for each entry.
    """

    def __init__(self, tasks=(), lease_seconds=0.0):
        self.tasks, self.lease_seconds = list(tasks), lease_seconds
        self.faults = {}
        self.break_after = []
        self.heard = []
        self.accepted = {}
        self.partial = {}
        self.offsets = []
        self.payload_limit = bundle.PAYLOAD_LIMIT
        self.held = True

    def _enter(self, method, request, context):
        self.heard.append((method, request))
        queue = self.faults.get(method)
        if not queue:
            return
        fault = queue.pop(0)
        if isinstance(fault, errors.FedviError):
            self.abort(context, fault)
        elif isinstance(fault, grpc.StatusCode):
            context.abort(fault, "planted")
        elif fault is not None:
            fault(context)

    def abort(self, context, error):
        status = wire.to_status(error)
        context.set_trailing_metadata(status.trailing_metadata)
        context.abort(status.code, status.details)

    def named(self, method):
        return [request for name, request in self.heard if name == method]

    def Hello(self, request, context):
        self._enter("Hello", request, context)
        hello, protocol = wire.hello_from(request)
        return wire.welcome_to(Welcome(3, hello.anchor), protocol, self.payload_limit)

    def NextTask(self, request, context):
        self._enter("NextTask", request, context)
        if not self.tasks:
            return pb.NextTaskReply(wait=pb.Wait())
        task = self.tasks[0]
        if isinstance(task, Done):
            return pb.NextTaskReply(done=wire.done_to(task))
        if isinstance(task, Wait):
            return pb.NextTaskReply(wait=pb.Wait())
        factor = None if request.without_factor else bundle.of_eta(task.factor)
        message = wire.task_to(task, bundle.of_eta(task.posterior), factor, self.lease_seconds)
        return pb.NextTaskReply(task=message)

    def GetPayload(self, request, context):
        self._enter("GetPayload", request, context)
        _, sha256, offset, _ = wire.get_payload_from(request)
        self.offsets.append(offset)
        for eta in (self.tasks[0].posterior, self.tasks[0].factor):
            bundled = bundle.of_eta(eta)
            if bundled.manifest.sha256 == sha256:
                break
        else:
            self.abort(context, errors.ProtocolError("no such payload"))
        until = self.break_after.pop(0) if self.break_after else None
        for at, data in bundle.pieces(bundled.tensors, offset):
            if until is not None and at >= until:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broke off")
            yield wire.chunk_to(at, data)

    def SubmitResult(self, parts, context):
        header = wire.header_from(next(parts).header)
        self._enter("SubmitResult", header, context)
        self.offsets.append(header.offset)
        sha256 = header.manifest.sha256
        before = self.accepted.get(header.task_id)
        if before is not None:
            same = before.sha256 == sha256
            return wire.receipt_to(Receipt("duplicate" if same else "conflict", 5))
        if not header.offset:
            self.partial[sha256] = bytearray(header.inline or b"")
        data = self.partial[sha256]
        if header.inline is None:
            assert header.offset == len(data)
            until = self.break_after.pop(0) if self.break_after else None
            for part in parts:
                at, piece = wire.chunk_from(part.chunk)
                assert at == len(data)
                data += piece
                if until is not None and len(data) >= until:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "broke off")
        try:
            payload = bundle.assemble(header.manifest, bytes(data))
        except errors.ProtocolError as error:
            del self.partial[sha256]
            self.abort(context, error)
        self.accepted[header.task_id] = payload
        self._enter("Receipt", header, context)
        return wire.receipt_to(Receipt("accepted", 5))

    def QueryTask(self, request, context):
        self._enter("QueryTask", request, context)
        query = wire.query_from(request)
        before = self.accepted.get(query.task_id)
        if before is not None:
            same = before.sha256 == query.sha256
            received = sum(len(t.data) for t in before.tensors)
            return wire.progress_to(wire.Progress("accepted" if same else "conflict", received))
        return wire.progress_to(wire.Progress("open", len(self.partial.get(query.sha256, b""))))

    def RenewLease(self, request, context):
        self._enter("RenewLease", request, context)
        wire.renew_from(request)
        return wire.renewed_to(Renewed(self.held))

    def ReportFailure(self, request, context):
        self._enter("ReportFailure", wire.failure_from(request), context)
        return pb.ReportFailureReply()

    def Goodbye(self, request, context):
        self._enter("Goodbye", wire.goodbye_from(request), context)
        return pb.GoodbyeReply()


@contextlib.contextmanager
def serving(servicer, port=0) -> Iterator[int]:
    """Serves on a loopback port, and yields it."""
    server = grpc.server(
        futures.ThreadPoolExecutor(4),
        options=[
            ("grpc.max_receive_message_length", bundle.MESSAGE_LIMIT),
            ("grpc.so_reuseport", 0),
        ],
    )
    stubs.add_FederationServiceServicer_to_server(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait()


class Proxy:
    """Passes bytes on between a client and a server, and cuts the connection when told to.

    ``cuts`` lists after how many bytes, of both directions together, the next connections are cut.
    """

    def __init__(self, port, cuts=()):
        self._port, self.cuts, self.connections = port, list(cuts), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        self._threads = []
        self._start(self._accept)

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            left = [self.cuts.pop(0) if self.cuts else None]
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open += [near, far]
            self._start(self._pass_on, near, far, left)
            self._start(self._pass_on, far, near, left)

    def _pass_on(self, source, sink, left):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if left[0] is not None:
                    left[0] -= len(data)
                    if left[0] < 0:
                        break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        # A listener that is only closed would keep `accept` waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for end in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(5.0)
