"""Converts arrays to bytes and back; it encodes only a ``Released``: the privacy boundary of the wire."""

import functools
import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.mapped_arrays import is_finite, windows
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import events
from fedvi.typing import Eta

__all__ = [
    "DTYPES",
    "Encoded",
    "check_spec",
    "decode",
    "differs",
    "digest",
    "encode",
    "encode_many",
    "event_from",
    "event_text",
    "layout",
    "pack",
    "unpack",
]

# The dtypes that may travel: real numbers and indices of a fixed width.
DTYPES = ("<f4", "<f8", "<i4", "<i8")
_INTEGERS = ("<i4", "<i8")
_NAME = re.compile(r"[\w.-]{1,64}")

# Bytes that are hashed together with their neighbours: most parts are a few bytes, and calls take longer.
_SHORT = 1 << 10


def encode(released: Any) -> Payload:
    """Turns a released dictionary of arrays into bytes, with the event that they cost.

    Values on a grid travel as integers and the grid's step. The value may be an ``OnGrid`` of a
    dictionary, or a dictionary that holds ``OnGrid`` arrays.

    Raises:
      PrivacyError: the argument is not a ``Released``, so it may not leave.
      ProtocolError: a number is not finite, or a dtype cannot travel.
    """
    event = event_text(_released(released).event)
    tensors = []
    for name, (leaf, scale) in sorted(_leaves(released.value).items()):
        array = np.asarray(leaf)
        kind = _kind(name, array, scale)
        data = np.ascontiguousarray(array, dtype=kind).tobytes()
        tensors.append(Tensor(name, kind, array.shape, data, scale))
    return Payload(tuple(tensors), event, digest(event, tensors))


class Encoded(NamedTuple):
    """The contents and digests of many clients' messages, without the messages.

    Attributes:
      digests: for each client, the digest that ``encode`` would give.
      arrays: the arrays that ``decode`` would give, with a first axis for clients.
      event: the cost of each message.
    """

    digests: tuple[str, ...]
    arrays: dict[str, np.ndarray]
    event: events.Event


def encode_many(released: Any, count: int) -> Encoded:
    """Encodes and decodes the releases of many clients within one process.

    Args:
      released: its arrays have a first axis for clients.
      count: the number of clients; later rows are padding.

    Raises:
      PrivacyError, ProtocolError: as in ``encode`` and ``decode``.
    """
    event = event_text(_released(released).event)
    rows = [_lengths_and(event.encode())]
    arrays: dict[str, np.ndarray] = {}
    for name, (leaf, scale) in sorted(_leaves(released.value).items()):
        array = np.asarray(leaf)[:count]
        kind = _kind(name, array, scale)
        data = np.ascontiguousarray(array, dtype=kind).reshape(count, -1).view(np.uint8)
        *before, _, after = _parts(Tensor(name, kind, array.shape[1:], b"", scale))
        size = data.shape[1].to_bytes(8, "little")
        rows += [_lengths_and(*before, size=size), data, _lengths_and(after)]
        arrays[name] = _decoded(name, array.astype(kind, copy=False), scale)
    whole = np.empty((count, sum(part.shape[-1] for part in rows)), np.uint8)
    np.concatenate([np.broadcast_to(part, (count, part.shape[-1])) for part in rows], 1, out=whole)
    # Rows as bytes: an array for each takes as long as its hash.
    each: Any = whole.view(np.dtype((np.void, whole.shape[1]))).ravel().tolist()
    digests = tuple([hashlib.sha256(row).hexdigest() for row in each])
    return Encoded(digests, arrays, released.event)


def decode(payload: Payload) -> tuple[dict[str, np.ndarray], events.Event]:
    """Turns bytes back into read-only arrays and the event.

    Integers with a scale become float64, integer × scale.

    Raises:
      ProtocolError: the digest, a name, a dtype, a scale, a size, a number or the event is wrong.
    """
    if payload.sha256 != digest(payload.event, payload.tensors):
        raise errors.ProtocolError("a payload does not match its sha256", "send it again")
    arrays: dict[str, np.ndarray] = {}
    for tensor in payload.tensors:
        if tensor.name in arrays:
            raise errors.ProtocolError(f"a payload holds {_called(tensor.name)} twice")
        arrays[tensor.name] = _decoded(tensor.name, _array(tensor), tensor.scale)
    return arrays, event_from(payload.event)


def pack(eta: Eta) -> tuple[Tensor, ...]:
    """Turns public natural parameters into tensors, float64, named by their fields.

    The tensors share the memory of ``eta`` where that is already float64 in C order: do not write to it
    until they are sent.

    >>> from fedvi.expfam.gaussian import GaussianEta
    >>> [(t.name, t.shape) for t in pack(GaussianEta(h=np.zeros(2), J=np.eye(2)))]
    [('h', (2,)), ('J', (2, 2))]
    """
    tensors = []
    for name, leaf in zip(_names(eta), tree.leaves(eta), strict=True):
        array = np.asarray(leaf, dtype="<f8")
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        tensors.append(Tensor(name, "<f8", array.shape, flat.data.toreadonly()))
    return tuple(tensors)


def unpack(tensors: Sequence[Tensor], like: Eta) -> Eta:
    """Turns tensors back into read-only arrays, in a tree with the structure and shapes of ``like``.

    The arrays share the memory of the tensors.

    Raises:
      ProtocolError: a name, dtype, shape, scale, size or number is wrong.
    """
    found = {t.name: (t.dtype, tuple(t.shape)) for t in tensors}
    if found != layout(like) or len(tensors) != len(found):
        raise errors.ProtocolError(
            f"natural parameters came {differs(found, like)}",
            "do both sides run the same study and the same version of fedvi?",
        )
    arrays = {}
    for tensor in tensors:
        if tensor.scale is not None:
            raise errors.ProtocolError(f"{tensor.name} has scale {tensor.scale}, expected none")
        arrays[tensor.name] = _array(tensor)
    ordered = iter([arrays[name] for name in _names(like)])
    return tree.map_leaves(lambda _: next(ordered), like)


def layout(like: Eta) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns name → (dtype, shape) of the tensors of ``pack(like)``."""
    shapes = (tuple(np.shape(leaf)) for leaf in tree.leaves(like))
    return {name: ("<f8", shape) for name, shape in zip(_names(like), shapes, strict=True)}


def differs(found: Mapping[str, tuple[str, tuple[int, ...]]], like: Eta) -> str:
    """Says which array of a layout is not as expected; names that a stranger chose are not shown.

    >>> differs({"mu": ("<f8", (3,))}, np.zeros(2))
    "without array 'value' of dtype <f8 and shape (2,)"
    """
    for name, expected in layout(like).items():
        if name not in found:
            return f"without array {name!r} of dtype {expected[0]} and shape {expected[1]}"
        if found[name] != expected:
            (dtype, shape), (of, wanted) = found[name], expected
            return f"with {name!r} of dtype {dtype} and shape {shape}, expected {of} and {wanted}"
    return f"as {len(found)} arrays, expected {len(layout(like))}"


def check_spec(name: str, dtype: str, shape: Sequence[int], scale: float | None) -> int:
    """Checks a tensor's description, and returns how many bytes it must have.

    Raises:
      ProtocolError: the dtype cannot travel, or the scale is not allowed.
    """
    if dtype not in DTYPES:
        raise errors.ProtocolError(f"{_called(name)} has another dtype, expected one of {DTYPES}")
    _check_scale(name, dtype, scale)
    # Python integers: the product of hostile lengths may exceed 64 bits.
    return math.prod(shape) * np.dtype(dtype).itemsize


def digest(event: str, tensors: Sequence[Tensor]) -> str:
    """Returns the SHA-256 over an event and tensors, in hexadecimal."""
    hasher, short = hashlib.sha256(), bytearray()
    for part in (event.encode(), *(p for t in tensors for p in _parts(t))):
        # The length prefix makes the encoding unambiguous.
        short += _length(part)
        if len(part) < _SHORT:
            short += part
            continue
        hasher.update(short)
        short.clear()
        for (piece,) in windows(np.frombuffer(part, np.uint8)):
            hasher.update(piece)
    hasher.update(short)
    return hasher.hexdigest()


def _length(part: bytes | memoryview) -> bytes:
    return len(part).to_bytes(8, "little")


def _lengths_and(*parts: bytes | memoryview, size: bytes = b"") -> np.ndarray:
    """Returns the bytes that ``digest`` hashes for some parts, then the length of the next part."""
    return np.frombuffer(b"".join(p for x in parts for p in (_length(x), x)) + size, np.uint8)


def _names(eta: Eta, path: str = "") -> Iterator[str]:
    """Yields a name for each array, in the order of ``tree.leaves``: fields and positions."""
    if not isinstance(eta, tuple):
        yield path or "value"
        return
    fields = getattr(eta, "_fields", None) or range(len(eta))
    for field, part in zip(fields, eta, strict=True):
        yield from _names(part, f"{path}.{field}" if path else str(field))


def _array(tensor: Tensor) -> np.ndarray:
    """Checks a tensor and returns its array, read-only, in the tensor's memory."""
    expected = check_spec(tensor.name, tensor.dtype, tensor.shape, tensor.scale)
    if len(tensor.data) != expected:
        raise errors.ProtocolError(
            f"{_called(tensor.name)} has {len(tensor.data)} bytes, expected {expected}"
        )
    try:
        array = np.frombuffer(tensor.data, dtype=tensor.dtype).reshape(tensor.shape)
    except (ValueError, OverflowError) as error:
        raise errors.ProtocolError(
            f"{_called(tensor.name)} has shape {tensor.shape}: {error}"
        ) from error
    array.setflags(write=False)
    _check_finite(tensor.name, array)
    return array


def _called(name: str) -> str:
    """Returns the name of an array, unless it is a sentence, which a stranger may have sent."""
    return name if _NAME.fullmatch(name) else "an array"


def _check_finite(name: str, array: np.ndarray) -> None:
    # The message shows no number, since it may reach a log.
    if not is_finite(array):
        raise errors.ProtocolError(f"{_called(name)} holds numbers that are not finite")


@functools.lru_cache(maxsize=256)
def event_from(text: str) -> events.Event:
    """Reads the event of a payload from its canonical JSON.

    Raises:
      ProtocolError: the text is not an event.
    """
    try:
        return events.from_json(json.loads(text))
    except (errors.FedviError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise errors.ProtocolError(f"the event of a payload cannot be read: {error}") from error


@functools.lru_cache(maxsize=256)
def event_text(event: events.Event) -> str:
    """Returns the canonical JSON of an event, which a payload carries."""
    return json.dumps(events.to_json(event), sort_keys=True, separators=(",", ":"))


def _released(value: Any) -> Any:
    # Imported here, since a server only decodes and runs without JAX.
    from fedvi.privacy.release import Released

    if not isinstance(value, Released):
        raise errors.PrivacyError(
            f"a {type(value).__name__} cannot be sent, only a Released",
            "pass the value through `privacy.release.release` first",
        )
    return value


def _kind(name: str, array: np.ndarray, scale: float | None) -> str:
    """Checks an array and returns the dtype that it travels in."""
    kind = array.dtype.newbyteorder("<").str
    if kind not in DTYPES:
        raise errors.ProtocolError(f"{name} has dtype {array.dtype}, expected one of {DTYPES}")
    _check_finite(name, array)
    _check_scale(name, kind, scale)
    return kind


def _decoded(name: str, array: np.ndarray, scale: float | None) -> np.ndarray:
    """Returns integer × scale in float64; without a scale, returns the array unchanged."""
    if scale is None:
        return array
    # The product may overflow, though both factors are finite.
    with np.errstate(over="ignore"):
        found = array.astype(np.float64) * scale
    found.setflags(write=False)
    _check_finite(name, found)
    return found


def _leaves(value: Any) -> dict[str, tuple[Any, float | None]]:
    """Returns each named array and its scale."""
    from fedvi.privacy.release import OnGrid

    if isinstance(value, OnGrid):
        return {name: (leaf, value.step) for name, leaf in value.integers.items()}
    return {
        name: (leaf.integers, leaf.step) if isinstance(leaf, OnGrid) else (leaf, None)
        for name, leaf in value.items()
    }


def _check_scale(name: str, kind: str, scale: float | None) -> None:
    if scale is None:
        return
    if kind not in _INTEGERS or not (math.isfinite(scale) and scale > 0.0):
        raise errors.ProtocolError(
            f"{_called(name)} has scale {scale} and dtype {kind!r}, expected a positive number on integers"
        )


def _parts(tensor: Tensor) -> tuple[bytes | memoryview, ...]:
    scale = b"" if tensor.scale is None else struct.pack("<d", tensor.scale)
    shape = repr(tensor.shape).encode()
    return (tensor.name.encode(), tensor.dtype.encode(), shape, tensor.data, scale)
