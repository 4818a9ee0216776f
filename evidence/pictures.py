"""Draws rows of small grey pictures as SVG, each row under a line of text."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Pictures", "packed", "svg"]

_SIZE, _GAP, _TEXT, _LEFT = 54, 6, 22, 8
_SIDE = 28


@dataclass(frozen=True)
class Pictures:
    """Rows of pictures: what they are, and each row's text and pictures.

    Attributes:
      title: relation, view and what is not private.
      rows: text → pictures of 28 × 28 pixels, each as ``packed`` writes it.
    """

    title: str
    rows: Sequence[tuple[str, Sequence[str]]]


def packed(picture: Sequence[float]) -> str:
    """Writes brightnesses from 0 to 1 as hexadecimal digits, row by row: 16 levels of grey."""
    return "".join(f"{min(15, max(0, round(15.0 * float(value)))):x}" for value in picture)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def _png(picture: str) -> bytes:
    """Encodes a picture as PNG. Nothing is compressed, so that all machines write the same bytes."""
    half = _SIDE // 2
    pixels = bytes.fromhex(picture)
    raw = b"".join(b"\0" + pixels[half * row : half * (row + 1)] for row in range(_SIDE))
    sizes = struct.pack("<HH", len(raw), len(raw) ^ 0xFFFF)
    stored = b"\x78\x01\x01" + sizes + raw + struct.pack(">I", zlib.adler32(raw))
    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, 4, 0, 0, 0, 0)
    parts = _chunk(b"IHDR", head) + _chunk(b"IDAT", stored) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def svg(pictures: Pictures, alt: str) -> str:
    """Returns the drawing; the same for the same pictures, on every machine."""
    columns = max(len(row) for _, row in pictures.rows)
    width = max(500, 2 * _LEFT + columns * (_SIZE + _GAP))
    deep = _TEXT + _SIZE + 2 * _GAP
    height = 28 + deep * len(pictures.rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="15"><title>{escape(alt)}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14" fill="#555555">{escape(pictures.title)}</text>',
    ]
    for index, (text, row) in enumerate(pictures.rows):
        top = 28 + deep * index
        parts.append(f'<text x="{_LEFT}" y="{top + 15}" fill="#1a1a1a">{escape(text)}</text>')
        for column, picture in enumerate(row):
            x = _LEFT + column * (_SIZE + _GAP)
            png = base64.b64encode(_png(picture)).decode()
            parts.append(
                f'<image x="{x}" y="{top + _TEXT}" width="{_SIZE}" height="{_SIZE}" '
                f'style="image-rendering:pixelated" href="data:image/png;base64,{png}"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"
