"""Checks single fields of protobuf messages: names, texts, counts, digests."""

import math
import re
from collections.abc import Sequence
from typing import Any

from fedvi import errors
from fedvi.privacy.ledger import Anchor
from fedvi.transport import bundle, codec
from fedvi.transport._wire import federation_pb2 as pb

__all__ = [
    "EVENT",
    "NAME",
    "TENSORS",
    "TEXT",
    "anchor_from",
    "anchor_to",
    "checked_count",
    "checked_name",
    "checked_seconds",
    "checked_text",
    "number_of",
    "present",
    "session_of",
    "sha256_of",
    "spec_from",
    "word_of",
]

NAME = 256

TEXT = 4096

EVENT = 64 << 10

_RANK = 16

_SESSION = 16

_HASH = re.compile("[0-9a-f]{64}")

# A message has room for a hundred thousand empty tensors, which would keep a server busy for seconds.
TENSORS = 256

# The largest integer of SQLite.
_COUNT = (1 << 63) - 1


def anchor_to(anchor: Anchor | None) -> pb.Anchor | None:
    return None if anchor is None else pb.Anchor(count=anchor.entries, hash=anchor.hash)


def anchor_from(message: Any) -> Anchor | None:
    if not message.HasField("anchor"):
        return None
    anchor = message.anchor
    if not _HASH.fullmatch(anchor.hash):
        raise errors.ProtocolError("anchor.hash is not 64 hexadecimal digits")
    return Anchor(checked_count("anchor.count", anchor.count), anchor.hash)


def spec_from(spec: pb.TensorSpec, field: str) -> bundle.Spec:
    name = checked_name(f"{field}.name", spec.name)
    if len(spec.shape) > _RANK:
        raise errors.ProtocolError(
            f"{field}.shape has {len(spec.shape)} axes, expected up to {_RANK}"
        )
    shape = tuple(checked_count(f"{field}.shape", length) for length in spec.shape)
    scale = spec.scale if spec.HasField("scale") else None
    # Before anything names it.
    if spec.dtype not in codec.DTYPES:
        raise errors.ProtocolError(f"{field}.dtype is not one of {codec.DTYPES}")
    return bundle.Spec(name, spec.dtype, shape, scale)


def present(message: Any, field: str) -> Any:
    if not message.HasField(field):
        raise errors.ProtocolError(f"{field} is missing")
    return getattr(message, field)


def checked_name(field: str, value: str) -> str:
    if not value:
        raise errors.ProtocolError(f"{field} is empty")
    return checked_text(field, value, NAME)


def checked_text(field: str, value: str, longest: int) -> str:
    if len(value) > longest:
        raise errors.ProtocolError(
            f"{field} has {len(value)} characters, expected at most {longest}"
        )
    if not value.isprintable():
        # The rest is not shown: it is a stranger's text.
        odd = next(c for c in value if not c.isprintable())
        raise errors.ProtocolError(
            f"{field} holds U+{ord(odd):04X}, expected printable characters alone"
        )
    return value


def checked_count(field: str, value: int) -> int:
    if value > _COUNT:
        raise errors.ProtocolError(f"{field} is {value}, expected at most {_COUNT}")
    return int(value)


def checked_seconds(field: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0.0):
        raise errors.ProtocolError(f"{field} is {value}, expected 0 or more seconds")
    return float(value)


def sha256_of(field: str, value: bytes) -> str:
    if len(value) != 32:
        raise errors.ProtocolError(f"{field} has {len(value)} bytes, expected 32")
    return value.hex()


def session_of(request: Any) -> str:
    if len(request.session) not in (0, _SESSION):
        raise errors.ProtocolError(
            f"session has {len(request.session)} bytes, expected {_SESSION} or none"
        )
    return str(request.session.hex())


def word_of(field: str, words: dict[Any, str], number: int) -> str:
    if number not in words:
        known: Sequence[str] = sorted(words.values())
        raise errors.ProtocolError(f"{field} is {number}, expected the number of one of {known}")
    return words[number]


def number_of(words: dict[Any, str], word: str) -> Any:
    for number, known in words.items():
        if known == word:
            return number
    raise errors.ProtocolError(f"{word!r} cannot be sent, expected one of {sorted(words.values())}")
