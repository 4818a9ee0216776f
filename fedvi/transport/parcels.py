"""Reads and writes task and result files, which people carry instead of network calls.

    fedvi task 1⏎ | two lengths | message | signature | bytes of the arrays
    fedvi result 1⏎ | ...

The message is a TaskFile or a ResultFile of ``protos/fedvi/v1/parcels.proto``. The signature, from
``identity.sign``, covers the first line and the message, and the message holds the digests of the arrays.
A file is signed but not encrypted: anybody who gets it can read it, as the server can.

Files cannot negotiate versions: the number in the first line is the version of this format, and the
message names the one protocol version that it is written in.
"""

import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from fedvi import errors
from fedvi.federation.messages import (
    Done,
    Failure,
    Hello,
    NextTask,
    Offer,
    Payload,
    Submit,
    Wait,
    Welcome,
)
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Ledger
from fedvi.transport import bundle, codec, files, identity, wire
from fedvi.transport._wire import federation_pb2, parcels_pb2
from fedvi.transport.roster import Roster
from fedvi.transport.wire_fields import checked_name
from fedvi.typing import Eta

__all__ = [
    "RESULT_SUFFIX",
    "TASK_SUFFIX",
    "ResultFile",
    "TaskFile",
    "check_target",
    "read_result",
    "read_task",
    "write_result",
    "write_task",
]

TASK_SUFFIX, RESULT_SUFFIX = ".task", ".result"

_TASK, _RESULT = b"fedvi task 1\n", b"fedvi result 1\n"
_KIND = re.compile(rb"fedvi (task|result) (\d{1,9})\n")
_LONGEST_KIND = 32
_WORDS = {_TASK: "task", _RESULT: "result"}
_LENGTHS = struct.Struct("<QQ")

# A task's message holds a ledger, a few lines for each visit; a result's message holds as much as a call.
# The server limits results strictly, since a parsed message takes many times its length in memory.
_LONGEST_MESSAGE = {_TASK: 64 << 20, _RESULT: bundle.MESSAGE_LIMIT}
_LONGEST_SIGNATURE = 64 << 10

_AGAIN = "it was damaged or changed on the way: ask for the file again"
_SAME_SOFTWARE = (
    f"this is {wire.software()}: install the same version of fedvi at both ends, and have the file made "
    "again"
)

_Message = TypeVar("_Message", parcels_pb2.TaskFile, parcels_pb2.ResultFile)


class TaskFile(NamedTuple):
    """The server's replies to a client's Hello and NextTask, as a file.

    Attributes:
      client: the recipient.
      study_digest: of the study.
      version: of the posterior, as in Welcome.
      ledger: the server's whole ledger of this client: which answers arrived, and with which bytes.
      reply: a task, the end of the run, or a wait that asks the site for its part of the keys.
      payload_limit: the most bytes that an answer may have.
      boards: in a study with secure sums, stage → the parts of all sites, once all have arrived.
    """

    client: str
    study_digest: str
    version: int
    ledger: Ledger
    reply: Offer | Done | Wait
    payload_limit: int = bundle.PAYLOAD_LIMIT
    boards: Mapping[int, tuple[bytes, ...]] = MappingProxyType({})


class ResultFile(NamedTuple):
    """A client's Hello with its answer, its failure, or its part of the keys, as a file."""

    hello: Hello
    answer: Submit | Failure | NextTask

    @property
    def task_id(self) -> str:
        """The task that it answers; empty for a part of the keys."""
        return "" if isinstance(self.answer, NextTask) else self.answer.task_id


def write_task(path: Path, tls: Path, parcel: TaskFile) -> None:
    """Writes a task file atomically; it is on the disk when this returns.

    Args:
      path: of the file; an existing one is replaced.
      tls: the server's folder of certificates, to sign with.

    Raises:
      ProtocolError: an array is larger than a payload may be.
      ConfigError, IdentityError: the file cannot be signed or written.
    """
    bundles: list[bundle.Bundle] = []
    if isinstance(parcel.reply, Offer):
        task = parcel.reply.task
        posterior, factor = bundle.of_eta(task.posterior), bundle.of_eta(task.factor)
        bundles = [posterior, factor]
        reply = federation_pb2.NextTaskReply(task=wire.task_to(task, posterior, factor))
    elif isinstance(parcel.reply, Wait):
        reply = federation_pb2.NextTaskReply(wait=wire.wait_to(parcel.reply))
    else:
        reply = federation_pb2.NextTaskReply(done=wire.done_to(parcel.reply))
    welcome = Welcome(parcel.version, ledgers.anchor(parcel.ledger))
    message = parcels_pb2.TaskFile(
        client=parcel.client,
        study_digest=parcel.study_digest,
        hello=wire.welcome_to(welcome, wire.PROTOCOLS[1], parcel.payload_limit),
        ledger=ledgers.to_lines(parcel.ledger),
        reply=reply,
        boards=[
            parcels_pb2.Board(stage=stage, parts=parts) for stage, parts in parcel.boards.items()
        ],
    )
    _write(path, tls, _TASK, message, bundles)


def read_task(
    path: Path, authority_pem: bytes, client: str, study_digest: str, like: Eta
) -> TaskFile:
    """Reads a task file; checks its signature before it uses anything in the file.

    Args:
      authority_pem: the certificate that this site trusts.
      client: the expected recipient.
      study_digest: the expected study.
      like: natural parameters with the expected layout.

    Raises:
      ConfigError: there is no such file.
      IdentityError: the file was not signed by a server of the authority, or was changed since.
      ProtocolError: the file is for another client or study, damaged, or not a task file.
      LedgerError: the ledger in it is inconsistent.
    """
    with _Reader(path, _TASK) as reader:
        identity.verify(authority_pem, reader.signed, reader.signature, role="server")
        message = reader.message(parcels_pb2.TaskFile)
        if message.client != client:
            raise errors.ProtocolError(
                f"{path} is for another client, expected {client!r}",
                "give --task the file that was made for this site",
                message.client,
            )
        if message.study_digest != study_digest:
            raise errors.ProtocolError(
                f"{path} is of another study, expected the digest {study_digest[:12]}",
                "give all sites the same study file",
                f"digest {message.study_digest[:12]}",
            )
        said = message.hello
        _check_protocol(reader.name, said.protocol, said.protocol, f"written by {said.software}")
        welcome, limit = wire.welcome_from(said)
        book = _ledger(path, list(message.ledger))
        # Refusals name the ledger's client, and no text of the server's own choice.
        if book.header.client != client:
            raise errors.ProtocolError(
                f"{path} holds the ledger of another client, expected that of {client!r}",
                "give --task the file that was made for this site",
                book.header.client,
            )
        if welcome.anchor != ledgers.anchor(book):
            raise errors.ProtocolError(
                f"hello.anchor is {welcome.anchor}, expected {ledgers.anchor(book)} by the ledger"
            )
        reply = _reply(message.reply, client, like, reader)
        reader.check_end()
    boards = {board.stage: tuple(board.parts) for board in message.boards}
    return TaskFile(client, study_digest, welcome.version, book, reply, limit, boards)


def write_result(path: Path, tls: Path, parcel: ResultFile) -> None:
    """Writes a result file atomically; it is on the disk when this returns.

    Args:
      path: of the file; an existing one is replaced.
      tls: the client's folder of certificates, to sign with.

    Raises:
      ProtocolError: the answer is larger than a payload may be.
      ConfigError, IdentityError: the file cannot be signed or written.
    """
    answer, bundles = parcel.answer, []
    message = parcels_pb2.ResultFile(hello=wire.hello_to(parcel.hello))
    message.hello.protocol_min = wire.PROTOCOLS[1]
    if isinstance(answer, Submit):
        bundles = [bundle.of_payload(answer.payload)]
        header = wire.header_to(answer.client, answer.task_id, answer.attempt, bundles[0])
        message.submit.CopyFrom(header)
    elif isinstance(answer, NextTask):
        message.keys.CopyFrom(wire.next_task_to(answer, 0.0))
    else:
        message.failure.CopyFrom(wire.failure_to(answer))
    _write(path, tls, _RESULT, message, bundles)


def read_result(
    path: Path, authority_pem: bytes, roster: Roster, payload_limit: int = bundle.PAYLOAD_LIMIT
) -> ResultFile:
    """Reads a result file; the certificate that signed it determines its sender.

    Args:
      authority_pem: the certificate that the server trusts.
      roster: the admitted certificates.
      payload_limit: the most bytes that an answer may have.

    Raises:
      ConfigError: there is no such file.
      IdentityError: the signer is not an admitted client, or not the client that the file names; or the
        file was changed since.
      ProtocolError: the file is damaged, not a result file, or holds too large an answer.
      TransportError: the roster cannot be read.
    """
    with _Reader(path, _RESULT) as reader:
        signer = identity.verify(authority_pem, reader.signed, reader.signature, roster, "client")
        message = reader.message(parcels_pb2.ResultFile)
        said = message.hello
        _check_protocol(reader.name, said.protocol_min, said.protocol_max)
        hello, _ = wire.hello_from(said)
        answer = _answer(message, reader, payload_limit)
        reader.check_end()
    for name in (hello.client, answer.client):
        if name != signer.name:
            raise errors.IdentityError(
                f"the result file says to be of {name!r}, and was signed by {signer.name!r}",
                "each site signs its own results, with --tls its own folder",
            )
    return ResultFile(hello, answer)


def check_target(path: Path) -> None:
    """Checks that a result file can be written to a path without overwriting anything else.

    Raises:
      ConfigError: the folder is not writable, or the path holds another file or an unreadable one.
    """
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise errors.ConfigError(
            f"{path.parent} is no folder in which {path.name} can be written",
            "name another place with --result FILE",
        )
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            found = file.read(len(_RESULT))
    except OSError as error:
        raise errors.ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if found != _RESULT:
        raise errors.ConfigError(
            f"{path} is there and is no result file; it is not overwritten", "name another file"
        )


def _reply(
    message: federation_pb2.NextTaskReply, client: str, like: Eta, reader: "_Reader"
) -> Offer | Done | Wait:
    match message.WhichOneof("reply"):
        case "done":
            return wire.done_from(message.done)
        case "wait":
            return wire.wait_from(message.wait)
        case "task":
            work = wire.task_from(message.task, client, like)
            assert work.factor is not None
            posterior, factor = (
                codec.unpack(reader.payload(*announced).tensors, like)
                for announced in (work.posterior, work.factor)
            )
            return Offer(work.task._replace(posterior=posterior, factor=factor))
    raise errors.ProtocolError("reply is missing, expected a task or the end of the run")


def _ledger(path: Path, lines: list[str]) -> Ledger:
    try:
        return ledgers.from_lines(lines)
    except errors.LedgerError as error:
        # Which may name what is in the lines.
        raise errors.LedgerError(
            f"{path} holds a ledger that is damaged", "have the file made again", error.message
        ) from None


def _check_protocol(name: str, oldest: int, newest: int, server_says: str = "") -> None:
    if wire.PROTOCOLS[0] <= oldest <= newest <= wire.PROTOCOLS[1]:
        return
    said = "without a protocol version" if not newest else f"in protocol {newest}"
    raise errors.ProtocolError(
        f"{name} was written {said}, expected {wire.PROTOCOLS[0]} to {wire.PROTOCOLS[1]}",
        _SAME_SOFTWARE,
        server_says,
    )


def _answer(
    message: parcels_pb2.ResultFile, reader: "_Reader", payload_limit: int
) -> Submit | Failure | NextTask:
    match message.WhichOneof("answer"):
        case "failure":
            return wire.failure_from(message.failure)
        case "keys":
            client = checked_name("client", message.keys.client)
            return NextTask(client, part=wire.part_from(message.keys))
        case "submit":
            header = wire.header_from(message.submit)
            hint = "do both ends run the same study and the same version of fedvi?"
            bundle.check_size(header.task_id, header.manifest.size, payload_limit, hint)
            payload = reader.payload(header.manifest, header.inline)
            return Submit(header.client, header.task_id, payload, header.attempt)
    raise errors.ProtocolError("answer is missing, expected a submit or a failure")


def _write(path: Path, tls: Path, kind: bytes, message: Any, bundles: list[bundle.Bundle]) -> None:
    for manifest, _ in bundles:
        if manifest.size > bundle.PAYLOAD_LIMIT:
            raise errors.ProtocolError(
                f"a payload has {manifest.size} bytes, expected at most {bundle.PAYLOAD_LIMIT}"
            )
    content = message.SerializeToString()
    if len(content) > _LONGEST_MESSAGE[kind]:
        raise errors.ProtocolError(
            f"the message has {len(content)} bytes, expected at most {_LONGEST_MESSAGE[kind]}"
        )
    signature = identity.sign(tls, kind + content)
    # Small arrays are in the message, as on the wire.
    apart = [b.tensors for b in bundles if b.manifest.size > bundle.INLINE]
    parts = [kind, _LENGTHS.pack(len(content), len(signature)), content, signature]
    parts += [tensor.data for tensors in apart for tensor in tensors]
    # No other writer: the caller holds the lock of the state that the file is made from.
    files.sweep(path)
    files.replace(path, parts, files.PRIVATE)


class _Reader:
    """Reads a file from beginning to end, and no more of it than the allowed lengths."""

    def __init__(self, path: Path, kind: bytes) -> None:
        self._path, self._kind = path, kind
        self.name = str(path)
        self._content = self.signature = b""

    def __enter__(self) -> "_Reader":
        try:
            self._file: BinaryIO = open(self._path, "rb", opener=_at_once)
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def signed(self) -> bytes:
        """The content that the signature covers."""
        return self._kind + self._content

    def message(self, form: type[_Message]) -> _Message:
        """Parses the message."""
        try:
            return form.FromString(self._content)
        except DecodeError:
            raise errors.ProtocolError(
                f"{self._path} holds no message of {form.DESCRIPTOR.full_name}",
                "do both ends run the same version of fedvi?",
            ) from None

    def payload(self, manifest: bundle.Manifest, inline: bytes | None) -> Payload:
        """Returns an announced payload, from the message or from the bytes after it."""
        data = self._take(manifest.size) if inline is None else inline
        return bundle.assemble(manifest, data)

    def check_end(self) -> None:
        """Checks that nothing follows."""
        if self._read(1):
            raise errors.ProtocolError(f"{self._path} has bytes beyond its end", _AGAIN)

    def _begin(self) -> None:
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise errors.ConfigError(f"{self._path} is no file", "name a file that is there")
        self._size = status.st_size
        line = self._read(len(self._kind))
        if line != self._kind:
            raise self._stranger(line + self._read(_LONGEST_KIND - len(line)))
        longest = (_LONGEST_MESSAGE[self._kind], _LONGEST_SIGNATURE)
        lengths = _LENGTHS.unpack(self._take(_LENGTHS.size))
        if any(length > most for length, most in zip(lengths, longest, strict=True)):
            raise errors.ProtocolError(
                f"{self._path} announces {lengths[0]} and {lengths[1]} bytes, expected at most "
                f"{longest[0]} and {longest[1]}",
                _AGAIN,
            )
        self._content, self.signature = (self._take(length) for length in lengths)

    def _stranger(self, found: bytes) -> errors.ProtocolError:
        """Describes a file that begins with another line."""
        match, word = _KIND.match(found), _WORDS[self._kind]
        if match is not None and match[1].decode() == word:
            return errors.ProtocolError(
                f"{self._path} is a {word} file of form {match[2].decode()}, expected form 1",
                _SAME_SOFTWARE,
            )
        other = f"a {match[1].decode()} file" if match else "something else" if found else "empty"
        return errors.ProtocolError(
            f"{self._path} is {other}, expected a {word} file",
            "sites are given task files, and send result files back",
        )

    def _take(self, size: int) -> bytes:
        # Allocates no memory for announced bytes that the file does not have.
        data = self._read(size) if size <= self._size else b""
        if len(data) != size:
            raise errors.ProtocolError(f"{self._path} is cut off before its end", _AGAIN)
        return data

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:  # a worn or removed medium
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> errors.ConfigError:
        return errors.ConfigError(
            f"{self._path}: cannot be read: {error.strerror}", "name a file that is there"
        )


def _at_once(path: str, flags: int) -> int:
    """Opens without blocking, even on a pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK)
