"""Iterates over the records of a very large shard, one block at a time.

Above ``MOST_ROWS`` records a solver adds up blocks. The same programs run on the same blocks whether the
records are in memory or on disk, so the result is the same to the last bit.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedvi.inference.clipping import MOST_ROWS
from fedvi.privacy.base import ROWS_TOGETHER
from fedvi.typing import Records

__all__ = [
    "BLOCK",
    "Block",
    "blocks_of",
    "is_large",
    "length_of",
    "rows_at",
    "single_precision",
]

BLOCK = 1 << 16
"""Rows of one block, at most."""


class Block(NamedTuple):
    """Rows of a batch in memory.

    Attributes:
      records: arrays [rows, …] in the dtypes of the shard.
      mask: bool [rows], true where a row counts.
    """

    records: Records
    mask: np.ndarray


def is_large(mask: Any) -> bool:
    """Whether a shard of this capacity is added up block by block."""
    return len(mask) > MOST_ROWS


def length_of(rows: int, most: int | None = None) -> int:
    """Returns how many rows each block of a batch has: blocks of equal length, a multiple of 64.

    Args:
      rows: how many the batch has.
      most: about the longest block; left out, ``BLOCK``.
    """
    most = BLOCK if most is None else most
    even = -(-rows // -(-rows // most))
    return -(-even // ROWS_TOGETHER) * ROWS_TOGETHER


def blocks_of(records: Records, indices: Any, mask: Any, length: int) -> Iterator[Block]:
    """Yields the rows of a batch, ``length`` at a time; the last block is padded with masked rows.

    Blocks with no unmasked row add nothing and are left out, except the first.

    Args:
      records: columns of a ``Shard``.
      indices: integers [B], the rows of the shard; any value where the mask is false.
      mask: bool [B].
      length: see ``length_of``.
    """
    indices, mask = np.asarray(indices), np.asarray(mask)
    for start in range(0, max(len(mask), 1), length):
        part = mask[start : start + length]
        if start and not part.any():
            continue
        rows = rows_at(records, indices[start : start + length])
        short = length - len(part)
        if short:
            part = np.concatenate([part, np.zeros(short, bool)])
            rows = {name: _filled(column, short) for name, column in rows.items()}
        yield Block(rows, part)


def rows_at(records: Records, indices: np.ndarray) -> Records:
    """Returns rows of a shard as arrays in memory."""
    first, last = (int(indices[0]), int(indices[-1])) if len(indices) else (0, -1)
    if last - first == len(indices) - 1 and (np.diff(indices) == 1).all():
        return {name: np.asarray(column[first : last + 1]) for name, column in records.items()}
    return {name: np.asarray(column[indices]) for name, column in records.items()}


def _filled(column: np.ndarray, short: int) -> np.ndarray:
    return np.concatenate([column, np.zeros((short, *column.shape[1:]), column.dtype)])


def single_precision(records: dict[str, Any]) -> dict[str, Any]:
    """Moves floating columns to float32; integer columns keep their dtype.

    Values beyond float32 become infinite without a warning: a warning, which a caller may turn into an
    error, must not depend on a record.
    """
    with np.errstate(over="ignore"):
        return {
            name: jnp.asarray(column, jnp.float32)
            if jnp.issubdtype(column.dtype, jnp.floating)
            else jnp.asarray(column)
            for name, column in records.items()
        }
