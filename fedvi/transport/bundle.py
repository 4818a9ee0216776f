"""Describes arrays in transit, cuts their bytes into pieces, and sets the size limits."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam.mapped_arrays import evict
from fedvi.federation.messages import Payload, Tensor
from fedvi.transport import codec
from fedvi.typing import Eta

__all__ = [
    "CHUNK",
    "INLINE",
    "LEAST_CHUNK",
    "MESSAGE_LIMIT",
    "PAYLOAD_LIMIT",
    "Buffer",
    "Bundle",
    "Manifest",
    "Spec",
    "assemble",
    "check_layout",
    "check_size",
    "cut",
    "of_eta",
    "of_payload",
    "pieces",
]

CHUNK = 256 << 10
"""Bytes in one piece: several times faster than one large message, in bounded memory."""

LEAST_CHUNK = 64 << 10
"""The fewest bytes that a server accepts in each piece of an answer except the last."""

INLINE = 256 << 10
"""A payload of up to this many bytes travels within the message that announces it."""

MESSAGE_LIMIT = 4 << 20
"""The most bytes of a message; fixed, since both ends must agree."""

PAYLOAD_LIMIT = 1 << 30
"""The most bytes of a payload."""


class Spec(NamedTuple):
    """A tensor without its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None


class Manifest(NamedTuple):
    """Describes a payload before its bytes arrive.

    Attributes:
      specs: of its tensors, in order.
      event: canonical JSON of the event that it cost; empty from the server.
      sha256: hex digest over event, specs and bytes, from ``codec.digest``.
      size: total bytes of all tensors.
    """

    specs: tuple[Spec, ...]
    event: str
    sha256: str
    size: int


class Bundle(NamedTuple):
    """A payload to send: its manifest and its tensors."""

    manifest: Manifest
    tensors: tuple[Tensor, ...]


def of_eta(eta: Eta) -> Bundle:
    """Bundles public natural parameters; shares their memory and reads them once, for the digest."""
    tensors = codec.pack(eta)
    return _bundle(tensors, "", codec.digest("", tensors))


def of_payload(payload: Payload) -> Bundle:
    """Bundles a client's payload, and trusts its digest."""
    return _bundle(payload.tensors, payload.event, payload.sha256)


def check_size(task_id: str, size: int, limit: int, hint: str = "") -> None:
    """Refuses an answer of more bytes than the server takes.

    Raises:
      ProtocolError: it has more.
    """
    if size > limit:
        raise errors.ProtocolError(
            f"the answer to task {task_id!r} has {size} bytes, expected at most {limit}", hint
        )


def pieces(tensors: Sequence[Tensor], offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, bytes) of at most ``CHUNK`` bytes, from ``offset`` to the end of all tensors.

    All pieces but the last are full, even across the boundary of two tensors. Yielded parts of
    memory-mapped tensors are evicted from memory.

    Raises:
      ProtocolError: there are fewer than ``offset`` bytes.
    """
    size = sum(len(tensor.data) for tensor in tensors)
    if offset > size:
        raise errors.ProtocolError(f"the offset is {offset}, expected at most {size}")
    skipped, at, piece = offset, offset, b""
    for tensor in tensors:
        data = memoryview(tensor.data)
        if skipped >= len(data):
            skipped -= len(data)
            continue
        data, skipped = data[skipped:], 0
        while data:
            missing = CHUNK - len(piece)
            part, data = data[:missing], data[missing:]
            piece = b"".join((piece, part))
            evict(np.frombuffer(part, np.uint8))
            if len(piece) == CHUNK:
                yield at, piece
                at, piece = at + CHUNK, b""
    if piece:
        yield at, piece


def assemble(manifest: Manifest, data: bytes | memoryview) -> Payload:
    """Cuts a payload's bytes into its tensors, which share their memory, and checks the digest.

    Raises:
      ProtocolError: the size or the digest is wrong.
    """
    payload = cut(manifest, data)
    found = codec.digest(payload.event, payload.tensors)
    if found != payload.sha256:
        raise errors.ProtocolError(
            f"the payload has sha256 {found}, expected {manifest.sha256}", "send it again"
        )
    return payload


def cut(manifest: Manifest, data: bytes | memoryview) -> Payload:
    """Cuts a payload's bytes into its tensors, and leaves the digest to ``codec.decode``.

    Raises:
      ProtocolError: the size is wrong.
    """
    view = memoryview(data).toreadonly()
    if len(view) != manifest.size:
        raise errors.ProtocolError(
            f"the payload has {len(view)} bytes, expected {manifest.size}", "send it again"
        )
    tensors, start = [], 0
    for spec in manifest.specs:
        end = start + codec.check_spec(*spec)
        tensors.append(Tensor(spec.name, spec.dtype, spec.shape, view[start:end], spec.scale))
        start = end
    if start != manifest.size:
        raise errors.ProtocolError(
            f"the payload has {manifest.size} bytes, expected {start} by its tensors"
        )
    return Payload(tuple(tensors), manifest.event, manifest.sha256)


def check_layout(manifest: Manifest, like: Eta) -> None:
    """Checks, before any byte is requested, that a payload has the layout of these natural parameters.

    Raises:
      ProtocolError: a name, dtype or shape differs.
    """
    found = {spec.name: (spec.dtype, spec.shape) for spec in manifest.specs}
    if found != codec.layout(like):
        raise errors.ProtocolError(
            f"natural parameters are announced {codec.differs(found, like)}",
            "do both sides run the same study and the same version of fedvi?",
        )


class Buffer:
    """Collects the bytes of a payload in memory, and keeps them if the stream breaks off.

    Args:
      size: of the payload.
    """

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)
        self.received = 0

    def add(self, offset: int, data: bytes) -> None:
        """Adds the next piece.

        Raises:
          ProtocolError: the piece is empty, too large, or does not follow the one before it.
        """
        end = offset + len(data)
        if not 0 < len(data) <= CHUNK:
            raise errors.ProtocolError(f"a chunk has {len(data)} bytes, expected 1 to {CHUNK}")
        if offset != self.received or end > len(self._bytes):
            raise errors.ProtocolError(
                f"a chunk covers bytes {offset} to {end}, expected them to begin at "
                f"{self.received} and to end by {len(self._bytes)}"
            )
        self._bytes[offset:end] = data
        self.received = end

    def data(self) -> memoryview:
        """Returns the bytes that have arrived, read-only, without a copy."""
        return memoryview(self._bytes).toreadonly()[: self.received]


def _bundle(tensors: Sequence[Tensor], event: str, sha256: str) -> Bundle:
    specs = tuple(Spec(t.name, t.dtype, tuple(t.shape), t.scale) for t in tensors)
    size = sum(len(t.data) for t in tensors)
    return Bundle(Manifest(specs, event, sha256, size), tuple(tensors))
