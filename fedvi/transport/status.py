"""Converts errors to gRPC statuses and back.

The class of the error, its message and its hint travel as an ErrorDetail in the trailing metadata.
"""

from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from fedvi import errors
from fedvi.transport._wire import federation_pb2 as pb

__all__ = [
    "DETAIL_KEY",
    "Misnamed",
    "Status",
    "from_status",
    "is_retryable",
    "is_unreachable",
    "to_status",
]

DETAIL_KEY = "fedvi-error-bin"
"""The key of the trailing metadata in which a refused call carries its ErrorDetail."""

# gRPC allows 8 KiB of metadata.
_DETAIL_BYTES = 2048
# gRPC's codes for a connection that broke off within a call. A bug in the server has the same codes, so the
# number of retries is limited. Deliberate refusals carry a detail.
_BROKEN_OFF = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
# Messages of gRPC's versions for a trusted certificate that is for other hosts.
_MISNAMED = ("hostname verification check failed", "is not in peer certificate")

# Phrases of gRPC's texts. A server can send the same, and nobody can tell whose they are: of a text with
# one of these, only the phrase is shown.
_PHRASES = (
    "Concurrent RPC limit exceeded",
    "Bandwidth exhausted or memory limit exceeded",
    "message larger than max",
    "metadata size exceeds",
    "Connection refused",
    "Connection reset by peer",
    "Connection timed out",
    "Broken pipe",
    "Network is unreachable",
    "No route to host",
    "Domain name not found",
    "DNS resolution failed",
    "FD Shutdown",
    "CERTIFICATE_VERIFY_FAILED",
    "handshake failed",
    "Failed parsing HTTP/2",
    "Received RST_STREAM",
    "Deadline Exceeded",
    "Socket closed",
    "failed to connect to all addresses",
)

# What this party can check, for a class of error, whatever cause the server gives.
_ADVICE = {
    errors.IdentityError: "is this certificate still admitted, or was it revoked or made anew? `fedvi "
    "doctor` looks at it; ask the coordinator over a different channel",
    errors.LedgerError: "was the server, or this client, set back to a backup? `fedvi ledger show` prints "
    "what was charged here",
    errors.Superseded: "is this state in use twice? stop one of the two",
    errors.ProtocolError: "are the study file and the version of fedvi those of the server? `fedvi doctor` "
    "compares the two ends",
}


class Misnamed(errors.IdentityError):
    """The server's certificate is not for the host that was dialled, so a retry cannot help."""


class Status(NamedTuple):
    """An error as the arguments of gRPC's ``abort``."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def to_status(error: errors.FedviError) -> Status:
    """Turns an error into the status that the server aborts a call with.

    A TransportError at the server (too many calls, a full disk) is marked retryable. A class outside
    `fedvi.errors` is replaced by its nearest base class there.
    """
    known = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in errors.__all__]
    retryable = isinstance(error, errors.TransportError)
    detail = pb.ErrorDetail(
        code=known[0],
        message=_shortened(error.message),
        hint=_shortened(error.hint),
        retryable=retryable,
    )
    code = grpc.StatusCode.FAILED_PRECONDITION
    if retryable:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, errors.IdentityError):
        code = grpc.StatusCode.PERMISSION_DENIED
    elif isinstance(error, errors.ProtocolError) and not isinstance(
        error, errors.HelloNeeded | errors.Superseded
    ):
        code = grpc.StatusCode.INVALID_ARGUMENT
    return Status(code, known[0], ((DETAIL_KEY, detail.SerializeToString()),))


def from_status(error: Any) -> errors.FedviError:
    """Turns the ``grpc.RpcError`` of a call into an error of the class that the server raised.

    Message and hint are this party's own. The server's words are its ``server_says``, since a server may
    say anything. Without a detail gRPC itself failed. The result is then ``Misnamed`` if the certificate is
    for other hosts, a TransportError if the other end was unreachable or broke off, and otherwise depends
    on the status. An unknown class becomes a ProtocolError.
    """
    detail = _detail_of(error)
    if detail is not None:
        kind = getattr(errors, detail.code, None) if detail.code in errors.__all__ else None
        if not (isinstance(kind, type) and issubclass(kind, errors.FedviError)):
            kind = errors.ProtocolError
        says = f"{detail.message}; hint: {detail.hint}" if detail.hint else detail.message
        return kind(
            "the server refused the call" + ("" if says else " and gave no reason"),
            _advice(kind),
            says,
        )
    code, details = error.code(), _shortened(str(error.details() or ""))
    phrase = next((known for known in _PHRASES if known.lower() in details.lower()), "")
    says = "" if phrase else details
    words = [] if code is None else [code.name.lower().replace("_", " ")]
    words += [phrase] if phrase else []
    own = f" ({': '.join(words)})" if words else ""
    if _is_misnamed(error):
        return Misnamed(
            f"the server's certificate is not for the host that was dialled{own}",
            "dial a host that it is for; `fedvi doctor` names them",
        )
    match code:
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return errors.IdentityError(f"the server refused the call{own}", "", says)
        case grpc.StatusCode.UNIMPLEMENTED:
            return errors.ProtocolError(
                f"the other end does not speak fedvi.v1{own}",
                "check the address and the port",
                says,
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _is_busy(error):
            return errors.TransportError(
                f"the server has too much to do{own}", "wait a moment", says
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED | grpc.StatusCode.INVALID_ARGUMENT:
            return errors.ProtocolError(f"a message was refused{own}", "", says)
    return errors.TransportError(
        f"the server cannot be reached{own}", "`fedvi doctor` looks for the reason", says
    )


def is_retryable(error: Any) -> bool:
    """Whether the same call may succeed later, judged by its ``grpc.RpcError``."""
    detail = _detail_of(error)
    if detail is not None:
        return bool(detail.retryable)
    return is_unreachable(error) or error.code() in _BROKEN_OFF


def is_unreachable(error: Any) -> bool:
    """Whether a call failed because the server is absent, too slow, or busy."""
    detail = _detail_of(error)
    if detail is not None:
        return bool(detail.retryable)
    codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return (error.code() in codes and not _is_misnamed(error)) or _is_busy(error)


def _is_misnamed(error: Any) -> bool:
    """Whether a handshake failed only for the host's name, which is checked after the chain."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    said = str(error.details() or "").lower()
    return any(words in said for words in _MISNAMED)


def _is_busy(error: Any) -> bool:
    """Whether gRPC refused a call temporarily: too many are open, or they come too fast.

    A message or metadata that is too large has the same code, but is refused permanently.
    """
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return False
    said = str(error.details() or "").lower()
    return "larger than" not in said and "metadata size" not in said


def _detail_of(error: Any) -> pb.ErrorDetail | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                return pb.ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None


def _shortened(text: str) -> str:
    return text.encode(errors="replace")[:_DETAIL_BYTES].decode(errors="ignore")


def _advice(kind: type[errors.FedviError]) -> str:
    """Returns what this party can check after a refusal with an error of this class."""
    for one, advice in _ADVICE.items():
        if issubclass(kind, one):
            return advice
    return "`fedvi doctor` compares the two ends; the coordinator sees more in the server's log"
