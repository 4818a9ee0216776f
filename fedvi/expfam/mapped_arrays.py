"""Processes large arrays one window at a time, so that little of a mapped file stays in memory.

Whoever reads an array that is the map of a file has its pages in the process's memory from then on,
until the system wants them back. A server goes through several such arrays at each fold. So what
reads large arrays does it in windows, and lets go of the pages of each before it reads the next.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["WINDOW", "elementwise", "evict", "is_finite", "windows"]

WINDOW = 1 << 20
"""Bytes of an array that are read in one go; smaller arrays are taken whole."""

# A read may map what the system has in its cache around it, as far as one page table goes.
_AROUND = 2 << 20


def windows(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Cuts arrays of one shape alike into flat pieces of at most ``WINDOW`` bytes, which share memory.

    A piece's pages of a mapped file are let go of when the next piece is asked for. Small arrays,
    and whatever is no NumPy array in C order, are one piece as they are.

    >>> [piece.size for (piece,) in windows(np.zeros((2, 100_000)))]
    [131072, 68928]
    """
    if not _are_large(arrays):
        yield arrays
        return
    flat = [array.reshape(-1) for array in arrays]
    count = WINDOW // max(array.itemsize for array in arrays)
    for start in range(0, flat[0].size, count):
        pieces = tuple(array[start : start + count] for array in flat)
        yield pieces
        for piece in pieces:
            evict(piece)


def elementwise(function: Callable[..., Any], *arrays: Any) -> Any:
    """Returns what a function makes of each number by itself: bit for bit, in windows where it can.

    Args:
      function: from arrays of one shape, float64, to one array of the same.
      arrays: of one shape; where they are not, or not NumPy's, the function gets them as they are.
    """
    if not _are_large(arrays) or any(array.dtype != np.float64 for array in arrays):
        return function(*arrays)
    result = np.empty(arrays[0].shape)
    for piece, *pieces in windows(result, *arrays):
        piece[:] = function(*pieces)
    return result


def is_finite(array: Any) -> bool:
    """Says whether every number of an array is finite."""
    return all(bool(np.isfinite(piece).all()) for (piece,) in windows(array))


def evict(array: Any) -> None:
    """Lets the pages of a mapped file that an array covers leave the memory; they come back when read.

    Does nothing to arrays that are no read-only map, or not in C order.
    """
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.size:
        return
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    # Pages of a private map, which can be written to, would be lost.
    if isinstance(base, mmap.mmap) and memoryview(base).readonly:
        offset = _address(array) - _address(np.frombuffer(base, np.uint8))
        start = max(0, offset - offset % mmap.PAGESIZE - _AROUND)
        end = min(len(base), offset + array.nbytes + _AROUND)
        base.madvise(mmap.MADV_DONTNEED, start, end - start)


def _are_large(arrays: tuple[Any, ...]) -> bool:
    # Most are small, and this is asked of each.
    for array in arrays:
        if isinstance(array, np.ndarray) and array.nbytes > WINDOW:
            break
    else:
        return False
    whole = all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in arrays)
    return whole and len({array.shape for array in arrays}) == 1


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
