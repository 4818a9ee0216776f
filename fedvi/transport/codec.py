"""Arrays to bytes and back; only a ``Released`` encodes, which is the privacy boundary of the wire."""

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import events
from fedvi.privacy.release import OnGrid, Released

__all__ = ["decode", "encode"]

# What may travel: real numbers and indices of a fixed width.
_DTYPES = ("<f4", "<f8", "<i4", "<i8")
_INTEGERS = ("<i4", "<i8")


def encode(released: Any) -> Payload:
    """Turns a released dictionary of arrays into bytes, with the event that they cost.

    What was released on a grid travels as its integers and the grid's step; the value may be an
    ``OnGrid`` of a dictionary, or a dictionary that holds ``OnGrid`` arrays.

    Raises:
      PrivacyError: for anything but a ``Released``: it was not released, so it may not leave.
      ProtocolError: if a number is not finite or a dtype cannot travel.
    """
    if not isinstance(released, Released):
        raise errors.PrivacyError(
            f"a {type(released).__name__} cannot be sent, only a Released",
            "pass the value through `privacy.release.release` first",
        )
    tensors = []
    for name, (leaf, scale) in sorted(_leaves(released.value).items()):
        array = np.asarray(leaf)
        kind = array.dtype.newbyteorder("<").str
        if kind not in _DTYPES:
            raise errors.ProtocolError(f"{name} has dtype {array.dtype}, expected one of {_DTYPES}")
        # A non-finite released value is reported without its numbers: the text may reach a log.
        if not np.isfinite(array).all():
            raise errors.ProtocolError(f"{name} holds numbers that are not finite")
        _check_scale(name, kind, scale)
        data = np.ascontiguousarray(array, dtype=kind).tobytes()
        tensors.append(Tensor(name, kind, array.shape, data, scale))
    event = json.dumps(events.to_json(released.event), sort_keys=True, separators=(",", ":"))
    return Payload(tuple(tensors), event, _digest(event, tensors))


def decode(payload: Payload) -> tuple[dict[str, np.ndarray], events.Event]:
    """Turns bytes back into read-only arrays and the event.

    Integers with a scale become float64, integer × scale.

    Raises:
      ProtocolError: if the digest, a dtype, a scale, a size or a number is wrong.
    """
    if payload.sha256 != _digest(payload.event, payload.tensors):
        raise errors.ProtocolError("a payload does not match its sha256", "send it again")
    arrays = {}
    for tensor in payload.tensors:
        if tensor.dtype not in _DTYPES:
            raise errors.ProtocolError(f"{tensor.name} has dtype {tensor.dtype!r}")
        _check_scale(tensor.name, tensor.dtype, tensor.scale)
        expected = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
        if len(tensor.data) != expected:
            raise errors.ProtocolError(
                f"{tensor.name} has {len(tensor.data)} bytes, expected {expected}"
            )
        array = np.frombuffer(tensor.data, dtype=tensor.dtype).reshape(tensor.shape)
        if tensor.scale is not None:
            array = array.astype(np.float64) * tensor.scale
            array.setflags(write=False)
        if not np.isfinite(array).all():
            raise errors.ProtocolError(f"{tensor.name} holds numbers that are not finite")
        arrays[tensor.name] = array
    return arrays, events.from_json(json.loads(payload.event))


def _leaves(value: Any) -> dict[str, tuple[Any, float | None]]:
    """Returns each named array and its scale."""
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
            f"{name} has scale {scale} and dtype {kind!r}, expected a positive number on integers"
        )


def _digest(event: str, tensors: Any) -> str:
    hasher = hashlib.sha256()
    for part in (event.encode(), *(p for t in tensors for p in _parts(t))):
        # The length first, so that no two different messages feed the same bytes.
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def _parts(tensor: Tensor) -> tuple[bytes, ...]:
    scale = b"" if tensor.scale is None else struct.pack("<d", tensor.scale)
    shape = repr(tensor.shape).encode()
    return (tensor.name.encode(), tensor.dtype.encode(), shape, tensor.data, scale)
