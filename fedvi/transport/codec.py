"""Arrays to bytes and back; only a ``Released`` encodes, which is the privacy boundary of the wire."""

import hashlib
import json
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import events
from fedvi.privacy.release import Released

__all__ = ["decode", "encode"]

# What may travel: real numbers and indices of a fixed width.
_DTYPES = ("<f4", "<f8", "<i4", "<i8")


def encode(released: Any) -> Payload:
    """Turns a released dictionary of arrays into bytes, with the event that they cost.

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
    for name in sorted(released.value):
        array = np.asarray(released.value[name])
        kind = array.dtype.newbyteorder("<").str
        if kind not in _DTYPES:
            raise errors.ProtocolError(f"{name} has dtype {array.dtype}, expected one of {_DTYPES}")
        # A non-finite released value is reported without its numbers: the text may reach a log.
        if not np.isfinite(array).all():
            raise errors.ProtocolError(f"{name} holds numbers that are not finite")
        data = np.ascontiguousarray(array, dtype=kind).tobytes()
        tensors.append(Tensor(name, kind, array.shape, data))
    event = json.dumps(events.to_json(released.event), sort_keys=True, separators=(",", ":"))
    return Payload(tuple(tensors), event, _digest(event, tensors))


def decode(payload: Payload) -> tuple[dict[str, np.ndarray], events.Event]:
    """Turns bytes back into read-only arrays and the event.

    Raises:
      ProtocolError: if the digest, a dtype, a size or a number is wrong.
    """
    if payload.sha256 != _digest(payload.event, payload.tensors):
        raise errors.ProtocolError("a payload does not match its sha256", "send it again")
    arrays = {}
    for tensor in payload.tensors:
        if tensor.dtype not in _DTYPES:
            raise errors.ProtocolError(f"{tensor.name} has dtype {tensor.dtype!r}")
        expected = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
        if len(tensor.data) != expected:
            raise errors.ProtocolError(
                f"{tensor.name} has {len(tensor.data)} bytes, expected {expected}"
            )
        array = np.frombuffer(tensor.data, dtype=tensor.dtype).reshape(tensor.shape)
        if not np.isfinite(array).all():
            raise errors.ProtocolError(f"{tensor.name} holds numbers that are not finite")
        arrays[tensor.name] = array
    return arrays, events.from_json(json.loads(payload.event))


def _digest(event: str, tensors: Any) -> str:
    hasher = hashlib.sha256()
    for part in (event.encode(), *(p for t in tensors for p in _parts(t))):
        # The length first, so that no two different messages feed the same bytes.
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def _parts(tensor: Tensor) -> tuple[bytes, ...]:
    return (tensor.name.encode(), tensor.dtype.encode(), repr(tensor.shape).encode(), tensor.data)
