"""Converts messages to protobuf and back, and checks every field; pure.

For each kind of message, ``x_to`` makes protobuf and ``x_from`` reads it. Reading checks every field:
for any input, ``x_from`` returns a message or raises ProtocolError with the name of the field. Messages
hold references to arrays, which travel by `bundle`; errors travel by `status`.
"""

import math
from typing import Any, NamedTuple

import numpy as np

import fedvi
from fedvi import errors
from fedvi.federation.messages import (
    FAILURES,
    Done,
    Failure,
    Goodbye,
    Hello,
    KeyPart,
    NextTask,
    Receipt,
    Renew,
    Renewed,
    Wait,
    Welcome,
)
from fedvi.transport import bundle, codec
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.transport.status import from_status, is_retryable, to_status
from fedvi.transport.wire_fields import (
    EVENT,
    NAME,
    TENSORS,
    TEXT,
    anchor_from,
    anchor_to,
    checked_count,
    checked_name,
    checked_seconds,
    checked_text,
    number_of,
    present,
    session_of,
    sha256_of,
    spec_from,
    word_of,
)
from fedvi.typing import Eta
from fedvi.updates.base import Task
from fedvi.updates.coordinates import Coordinates

__all__ = [
    "LONGEST_WAIT",
    "PROTOCOLS",
    "Header",
    "Progress",
    "Query",
    "Work",
    "chunk_from",
    "chunk_to",
    "done_from",
    "done_to",
    "failure_from",
    "failure_to",
    "from_status",
    "get_payload_from",
    "get_payload_to",
    "goodbye_from",
    "goodbye_to",
    "header_from",
    "header_to",
    "hello_from",
    "hello_to",
    "is_retryable",
    "next_task_from",
    "next_task_to",
    "part_from",
    "progress_from",
    "progress_to",
    "query_from",
    "query_to",
    "receipt_from",
    "receipt_to",
    "ref_from",
    "ref_to",
    "renew_from",
    "renew_to",
    "renewed_from",
    "renewed_to",
    "software",
    "task_from",
    "task_to",
    "to_status",
    "wait_from",
    "wait_to",
    "welcome_from",
    "welcome_to",
]

PROTOCOLS = (2, 2)
"""The oldest and the newest protocol version that this version of fedvi speaks."""

LONGEST_WAIT = 25.0
"""Seconds that a NextTask may wait at the server: middleboxes cut connections that are silent for 30."""

_RECEIPTS = {
    pb.RECEIPT_STATUS_ACCEPTED: "accepted",
    pb.RECEIPT_STATUS_DUPLICATE: "duplicate",
    pb.RECEIPT_STATUS_CONFLICT: "conflict",
}

_FAILURES = {pb.FailureCode.Value(f"FAILURE_CODE_{word.upper()}"): word for word in FAILURES}

_TASKS = {
    pb.TASK_STATUS_UNKNOWN: "unknown",
    pb.TASK_STATUS_OPEN: "open",
    pb.TASK_STATUS_ACCEPTED: "accepted",
    pb.TASK_STATUS_CONFLICT: "conflict",
}


class Work(NamedTuple):
    """An announced task, without its arrays.

    Attributes:
      task: with None in place of posterior and factor.
      posterior: manifest of q, and its bytes if the message holds them.
      factor: the same for the client's own factor; None if the message has none.
      lease_seconds: how long the server waits without a sign of life; 0 for no limit.
    """

    task: Task
    posterior: tuple[bundle.Manifest, bytes | None]
    factor: tuple[bundle.Manifest, bytes | None] | None
    lease_seconds: float


class Header(NamedTuple):
    """The header of an answer's upload.

    Attributes:
      attempt: which release of this task.
      manifest: describes the payload.
      inline: all its bytes if the header holds them, else None.
      offset: where the chunks begin.
    """

    client: str
    task_id: str
    attempt: int
    manifest: bundle.Manifest
    inline: bytes | None
    offset: int


class Query(NamedTuple):
    """Client → server: asks for the status of an answer, the payload ``sha256`` (hex)."""

    client: str
    task_id: str
    sha256: str
    session: str = ""


class Progress(NamedTuple):
    """Server → client: "unknown", "open", "accepted" or "conflict", and the bytes received so far."""

    status: str
    received: int


def software() -> str:
    """Returns the name and version of this software, for people to read."""
    return f"fedvi {fedvi.__version__}"


def hello_to(hello: Hello) -> pb.HelloRequest:
    """Makes a HelloRequest that offers all of ``PROTOCOLS``."""
    return pb.HelloRequest(
        client=hello.client,
        study_digest=hello.study_digest,
        anchor=anchor_to(hello.anchor),
        protocol_min=PROTOCOLS[0],
        protocol_max=PROTOCOLS[1],
        software=software(),
        session=bytes.fromhex(hello.session),
    )


def hello_from(request: pb.HelloRequest) -> tuple[Hello, int]:
    """Reads a HelloRequest; returns it and the newest protocol version that both ends speak.

    Raises:
      ProtocolError: a field is wrong, or there is no common version.
    """
    hello = Hello(
        checked_name("client", request.client),
        checked_name("study_digest", request.study_digest),
        anchor_from(request),
        session_of(request),
    )
    oldest, newest = request.protocol_min, request.protocol_max
    agreed = min(newest, PROTOCOLS[1])
    if not 1 <= oldest <= newest or agreed < max(oldest, PROTOCOLS[0]):
        raise errors.ProtocolError(
            f"the client speaks protocol {oldest} to {newest}, and this server {PROTOCOLS[0]} to "
            f"{PROTOCOLS[1]}",
            f"the server runs {software()}: install a version of fedvi that fits it",
        )
    checked_text("software", request.software, NAME)
    return hello, agreed


def welcome_to(
    welcome: Welcome, protocol: int, payload_limit: int = bundle.PAYLOAD_LIMIT
) -> pb.HelloReply:
    """Makes a HelloReply; ``payload_limit`` is the most bytes that an answer may have."""
    return pb.HelloReply(
        version=welcome.version,
        anchor=anchor_to(welcome.anchor),
        protocol=protocol,
        software=software(),
        payload_limit=payload_limit,
    )


def welcome_from(reply: pb.HelloReply) -> tuple[Welcome, int]:
    """Reads a HelloReply; returns it and the most bytes that an answer may have."""
    if not PROTOCOLS[0] <= reply.protocol <= PROTOCOLS[1]:
        raise errors.ProtocolError(
            f"the server chose protocol {reply.protocol}, expected {PROTOCOLS[0]} to {PROTOCOLS[1]}"
        )
    checked_text("software", reply.software, NAME)
    if reply.payload_limit < 1:
        raise errors.ProtocolError("payload_limit is 0, expected a number of bytes")
    limit = min(reply.payload_limit, bundle.PAYLOAD_LIMIT)
    return Welcome(checked_count("version", reply.version), anchor_from(reply)), limit


def next_task_to(request: NextTask, wait_seconds: float = LONGEST_WAIT) -> pb.NextTaskRequest:
    """Makes a NextTaskRequest that waits at the server."""
    part = request.part
    return pb.NextTaskRequest(
        client=request.client,
        wait_seconds=wait_seconds,
        session=bytes.fromhex(request.session),
        part=part and pb.KeyPart(stage=part.stage, content=part.content, epoch=part.epoch),
        without_factor=request.without_factor,
    )


def next_task_from(request: pb.NextTaskRequest) -> tuple[NextTask, float]:
    """Reads a NextTaskRequest; returns it and the seconds that it may wait.

    Raises:
      ProtocolError: a field is wrong, or the session is missing, which a call for work needs.
    """
    seconds = checked_seconds("wait_seconds", request.wait_seconds)
    if seconds > LONGEST_WAIT:
        raise errors.ProtocolError(f"wait_seconds is {seconds}, expected at most {LONGEST_WAIT}")
    session = session_of(request)
    if not session:
        raise errors.ProtocolError("session is empty, expected 16 bytes")
    client = checked_name("client", request.client)
    return NextTask(client, session, part_from(request), request.without_factor), seconds


def part_from(request: pb.NextTaskRequest) -> KeyPart | None:
    """Reads a site's part of the keys, if a request for work has one."""
    if not request.HasField("part"):
        return None
    part = request.part
    stage, epoch = checked_count("part.stage", part.stage), checked_count("part.epoch", part.epoch)
    return KeyPart(stage, part.content, epoch)


def wait_to(wait: Wait) -> pb.Wait:
    """Makes a Wait."""
    return pb.Wait(parts=wait.parts, epoch=wait.epoch)


def wait_from(message: pb.Wait) -> Wait:
    """Reads a Wait."""
    return Wait(tuple(message.parts), checked_count("wait.epoch", message.epoch))


def task_to(
    task: Task, posterior: bundle.Bundle, factor: bundle.Bundle | None, lease_seconds: float = 0.0
) -> pb.Task:
    """Makes a Task; its arrays are announced by their bundles (``bundle.of_eta``).

    The factor may be None if the client asked for the task without.
    """
    at = task.coordinates
    return pb.Task(
        task_id=task.task_id,
        client=task.client,
        visit=task.visit,
        version=task.version,
        damping=task.damping,
        posterior=_ref(posterior),
        factor=factor and _ref(factor),
        lease_seconds=lease_seconds,
        coordinates=at and pb.Coordinates(**at._asdict() | _more_than_one(at)),
    )


def _more_than_one(at: Coordinates) -> dict[str, int]:
    """Returns the counts of coordinates as they are sent: 0 for one."""
    return {
        name: count if count > 1 else 0
        for name, count in (("blocks", at.blocks), ("baselines", at.baselines))
    }


def task_from(message: pb.Task, client: str, like: Eta, without_factor: bool = False) -> Work:
    """Reads a Task for ``client`` whose arrays must have the layout of ``like``.

    Raises:
      ProtocolError: a field is wrong; or the factor is missing, unless ``without_factor``.
    """
    if message.client != client:
        raise errors.ProtocolError(
            f"the task is for another client, expected {client!r}", server_says=message.client
        )
    # It is printed, and kept in the ledger: no text of the server's own choice.
    visit = checked_count("visit", message.visit)
    if message.task_id != (expected := f"{client}/{visit}"):
        raise errors.ProtocolError(
            f"the task of visit {visit} has another name, expected {expected!r}",
            "do both ends run the same version of fedvi?",
            message.task_id,
        )
    damping = message.damping
    if not (math.isfinite(damping) and damping >= 0.0):
        raise errors.ProtocolError(f"damping is {damping}, expected a number of at least 0")
    task = Task(
        task_id=expected,
        client=client,
        visit=visit,
        version=checked_count("version", message.version),
        posterior=None,
        factor=None,
        damping=damping,
        coordinates=_coordinates_from(message.coordinates)
        if message.HasField("coordinates")
        else None,
    )

    def announced(field: str) -> tuple[bundle.Manifest, bytes | None]:
        manifest, inline = ref_from(present(message, field), field)
        bundle.check_layout(manifest, like)
        if manifest.event:
            raise errors.ProtocolError(f"{field}.event is set, expected none from a server")
        return manifest, inline

    posterior = announced("posterior")
    left_out = without_factor and not message.HasField("factor")
    factor = None if left_out else announced("factor")
    return Work(task, posterior, factor, checked_seconds("lease_seconds", message.lease_seconds))


def _coordinates_from(message: pb.Coordinates) -> Coordinates:
    at = Coordinates(
        np.array(message.centre),
        np.array(message.scale),
        message.constant,
        *(message.spread, message.level, message.residual, message.sizes),
        *(message.blocks or 1, message.baselines or 1),
    )
    size = at.centre.size
    if not 1 <= at.blocks <= size or size % at.blocks or not 1 <= at.baselines <= size:
        raise errors.ProtocolError(
            f"coordinates of {size} columns are in {at.blocks} blocks with {at.baselines} constants, "
            "expected blocks of equal size with a constant or more each"
        )
    if (
        at.scale.size != size
        or not at.constant + at.baselines <= size // at.blocks
        or at.centre[at.constants].any()
    ):
        raise errors.ProtocolError(
            f"coordinates have {size} centres and {at.scale.size} scales, and column {at.constant} is "
            "said to be constant, expected as many of both, and a constant column with centre 0"
        )
    if not (
        np.isfinite(at.centre).all() and np.isfinite(at.scale).all() and (at.scale > 0.0).all()
    ):
        raise errors.ProtocolError(
            "coordinates hold a number that is not finite, or a scale that is not above 0"
        )
    if not (
        math.isfinite(at.level) and all(0.0 <= part < math.inf for part in (at.spread, at.residual))
    ):
        raise errors.ProtocolError(
            f"coordinates have spread {at.spread}, level {at.level} and residual {at.residual}, expected "
            "finite numbers, and none below 0 but the level"
        )
    return at


def done_to(done: Done) -> pb.Done:
    """Makes a Done."""
    return pb.Done(reason=done.reason, resumable=done.resumable)


def done_from(message: pb.Done) -> Done:
    """Reads a Done.

    Raises:
      ProtocolError: the reason is not printable.
    """
    # The reason may be an error's text, with its hint on a line of its own.
    for line in message.reason.split("\n"):
        checked_text("reason", line, TEXT)
    return Done(message.reason, message.resumable)


def ref_to(bundled: bundle.Bundle) -> pb.PayloadRef:
    """Makes a PayloadRef, which includes the bytes if there are at most ``bundle.INLINE``."""
    return pb.PayloadRef(**_ref(bundled))


def _ref(bundled: bundle.Bundle, *, bare: bool = False) -> dict[str, Any]:
    """Returns a PayloadRef's fields: a message given to a message would be serialised and parsed again."""
    manifest, tensors = bundled
    inline = manifest.size <= bundle.INLINE and not bare
    return {
        "tensors": [spec._asdict() for spec in manifest.specs],
        "event": manifest.event,
        "sha256": bytes.fromhex(manifest.sha256),
        "size": manifest.size,
        "inline": b"".join(t.data for t in tensors) if inline else b"",
    }


def ref_from(ref: pb.PayloadRef, field: str = "payload") -> tuple[bundle.Manifest, bytes | None]:
    """Reads a PayloadRef; returns its manifest, and the bytes if it holds them.

    ``bundle.assemble``, or ``codec.decode``, checks the digest once all bytes have arrived.

    Raises:
      ProtocolError: a field is wrong, or the sizes do not add up.
    """
    if len(ref.tensors) > TENSORS:
        raise errors.ProtocolError(
            f"{field}.tensors has {len(ref.tensors)} entries, expected at most {TENSORS}"
        )
    specs = tuple(spec_from(spec, f"{field}.tensors") for spec in ref.tensors)
    if len({spec.name for spec in specs}) != len(specs):
        raise errors.ProtocolError(f"{field}.tensors holds a name twice")
    size = sum(codec.check_spec(*spec) for spec in specs)
    if ref.size != size:
        raise errors.ProtocolError(f"{field}.size is {ref.size}, expected {size} by its tensors")
    if size > bundle.PAYLOAD_LIMIT:
        raise errors.ProtocolError(
            f"{field}.size is {size}, expected at most {bundle.PAYLOAD_LIMIT}"
        )
    inline = ref.inline if ref.inline or not size else None
    if inline is not None and len(inline) != size:
        raise errors.ProtocolError(f"{field}.inline has {len(inline)} bytes, expected {size}")
    event = checked_text(f"{field}.event", ref.event, EVENT)
    return bundle.Manifest(specs, event, sha256_of(f"{field}.sha256", ref.sha256), size), inline


def get_payload_to(
    client: str, sha256: str, offset: int, session: str = ""
) -> pb.GetPayloadRequest:
    """Makes a GetPayloadRequest for the bytes from ``offset`` on of the payload ``sha256`` (hex)."""
    return pb.GetPayloadRequest(
        client=client,
        sha256=bytes.fromhex(sha256),
        offset=offset,
        session=bytes.fromhex(session),
    )


def get_payload_from(request: pb.GetPayloadRequest) -> tuple[str, str, int, str]:
    """Reads a GetPayloadRequest; returns client, sha256 in hex, offset, session."""
    offset = checked_count("offset", request.offset)
    client, sha256 = checked_name("client", request.client), sha256_of("sha256", request.sha256)
    return client, sha256, offset, session_of(request)


def chunk_to(offset: int, data: bytes) -> pb.Chunk:
    """Makes a Chunk of at most ``bundle.CHUNK`` bytes."""
    return pb.Chunk(offset=offset, data=data)


def chunk_from(chunk: pb.Chunk) -> tuple[int, bytes]:
    """Reads a Chunk; returns its offset and its bytes.

    Raises:
      ProtocolError: the chunk is empty or too large.
    """
    if not 0 < len(chunk.data) <= bundle.CHUNK:
        raise errors.ProtocolError(
            f"chunk.data has {len(chunk.data)} bytes, expected 1 to {bundle.CHUNK}"
        )
    return checked_count("chunk.offset", chunk.offset), chunk.data


def header_to(
    client: str,
    task_id: str,
    attempt: int,
    bundled: bundle.Bundle,
    offset: int = 0,
    *,
    bare: bool = False,
) -> pb.SubmitHeader:
    """Makes the header of an upload; ``bundle.pieces`` gives the chunks, unless the header holds all bytes.

    A ``bare`` header holds only the digest, and no bytes even if they are few.
    """
    payload = _ref(bundled, bare=bare)
    return pb.SubmitHeader(
        client=client, task_id=task_id, attempt=attempt, payload=payload, offset=offset
    )


def header_from(header: pb.SubmitHeader) -> Header:
    """Reads the header of an upload."""
    manifest, inline = ref_from(present(header, "payload"))
    offset = checked_count("offset", header.offset)
    if offset > manifest.size:
        raise errors.ProtocolError(f"offset is {offset}, expected at most {manifest.size}")
    return Header(
        client=checked_name("client", header.client),
        task_id=checked_name("task_id", header.task_id),
        attempt=checked_count("attempt", header.attempt),
        manifest=manifest,
        inline=inline,
        offset=offset,
    )


def receipt_to(receipt: Receipt) -> pb.Receipt:
    """Makes a Receipt."""
    return pb.Receipt(
        status=number_of(_RECEIPTS, receipt.status),
        version=receipt.version,
        anchor=anchor_to(receipt.anchor),
    )


def receipt_from(message: pb.Receipt) -> Receipt:
    """Reads a Receipt."""
    status = word_of("status", _RECEIPTS, message.status)
    return Receipt(status, checked_count("version", message.version), anchor_from(message))


def query_to(query: Query) -> pb.QueryTaskRequest:
    """Makes a QueryTaskRequest."""
    return pb.QueryTaskRequest(
        client=query.client,
        task_id=query.task_id,
        sha256=bytes.fromhex(query.sha256),
        session=bytes.fromhex(query.session),
    )


def query_from(request: pb.QueryTaskRequest) -> Query:
    """Reads a QueryTaskRequest."""
    return Query(
        checked_name("client", request.client),
        checked_name("task_id", request.task_id),
        sha256_of("sha256", request.sha256),
        session_of(request),
    )


def progress_to(progress: Progress) -> pb.QueryTaskReply:
    """Makes a QueryTaskReply."""
    return pb.QueryTaskReply(status=number_of(_TASKS, progress.status), received=progress.received)


def progress_from(reply: pb.QueryTaskReply) -> Progress:
    """Reads a QueryTaskReply."""
    return Progress(
        word_of("status", _TASKS, reply.status), checked_count("received", reply.received)
    )


def renew_to(renew: Renew) -> pb.RenewLeaseRequest:
    """Makes a RenewLeaseRequest."""
    return pb.RenewLeaseRequest(
        client=renew.client, task_id=renew.task_id, session=bytes.fromhex(renew.session)
    )


def renew_from(request: pb.RenewLeaseRequest) -> Renew:
    """Reads a RenewLeaseRequest."""
    client, task_id = (
        checked_name("client", request.client),
        checked_name("task_id", request.task_id),
    )
    return Renew(client, task_id, session_of(request))


def renewed_to(renewed: Renewed) -> pb.RenewLeaseReply:
    """Makes a RenewLeaseReply."""
    return pb.RenewLeaseReply(held=renewed.held)


def renewed_from(reply: pb.RenewLeaseReply) -> Renewed:
    """Reads a RenewLeaseReply."""
    return Renewed(reply.held)


def failure_to(failure: Failure) -> pb.ReportFailureRequest:
    """Makes a ReportFailureRequest."""
    return pb.ReportFailureRequest(
        client=failure.client,
        task_id=failure.task_id,
        code=number_of(_FAILURES, failure.code),
        session=bytes.fromhex(failure.session),
    )


def failure_from(request: pb.ReportFailureRequest) -> Failure:
    """Reads a ReportFailureRequest."""
    return Failure(
        checked_name("client", request.client),
        checked_name("task_id", request.task_id),
        word_of("code", _FAILURES, request.code),
        session_of(request),
    )


def goodbye_to(goodbye: Goodbye) -> pb.GoodbyeRequest:
    """Makes a GoodbyeRequest."""
    return pb.GoodbyeRequest(client=goodbye.client, session=bytes.fromhex(goodbye.session))


def goodbye_from(request: pb.GoodbyeRequest) -> Goodbye:
    """Reads a GoodbyeRequest."""
    return Goodbye(checked_name("client", request.client), session_of(request))
