"""Parses protobuf messages of callers at a bounded cost.

A parsed message takes many times its length: two bytes announce a field whose object takes a hundred. So
the fields are counted first, down to the deepest message, and a message with too many is not parsed.
"""

from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from fedvi import errors

__all__ = ["FIELDS", "parse"]

_Kind = TypeVar("_Kind", bound=Message)

FIELDS = 8192
"""The most fields of a message, those of the messages in it included; each byte of a list of numbers counts
as one. An answer of 256 arrays has fewer than 6,000."""

# Messages within messages; ours have four levels.
_DEPTH = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parse(kind: type[_Kind], content: bytes) -> _Kind:
    """Parses a message.

    Args:
      kind: its class.
      content: what a caller sent.

    Raises:
      ProtocolError: the bytes are compressed, are no such message, or have more than ``FIELDS`` fields.
    """
    name = kind.DESCRIPTOR.full_name
    if content[:2] == b"\x1f\x8b":
        raise errors.ProtocolError(
            f"{name} came compressed, expected it as it is", "turn off gRPC's compression"
        )
    try:
        _count(memoryview(content), kind.DESCRIPTOR, FIELDS, _DEPTH)
        return kind.FromString(content)
    except OverflowError:
        raise errors.ProtocolError(
            f"{name} has more than {FIELDS} fields, expected fewer",
            "no client of fedvi sends so many",
        ) from None
    except (DecodeError, ValueError):
        raise errors.ProtocolError(
            f"{len(content)} bytes are no message {name}",
            "do both ends run the same version of fedvi?",
        ) from None


def _count(content: memoryview, form: Descriptor | None, left: int, depth: int) -> int:
    """Counts the fields of a message, and returns how many more there may be.

    Raises:
      OverflowError: there are more than ``left``, or messages lie too deep.
      ValueError: the bytes are no message.
    """
    if not depth:
        raise OverflowError
    at, size = 0, len(content)
    fields: Any = {} if form is None else form.fields_by_number
    while at < size:
        left -= 1
        tag, at = _varint(content, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, at = _varint(content, at)
        elif wire == _BYTES:
            length, at = _varint(content, at)
            part, at = content[at : at + length], at + length
            field = fields.get(number)
            if field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
                left = _count(part, field.message_type, left, depth - 1)
            elif field is not None and not _is_text(field):
                left -= length  # a list of numbers
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError("a group, which no message of fedvi has")
        if at > size or not number:
            raise ValueError("a field that is cut off, or has no number")
        if left < 0:
            raise OverflowError
    return left


def _is_text(field: Any) -> bool:
    return field.type in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """Reads a number of at most 10 bytes; returns it and where it ends."""
    value = shift = 0
    for byte in content[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number that is cut off")
