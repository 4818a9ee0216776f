"""Processes large arrays one window at a time, so that little of a mapped file stays in memory.

Reading an array that is mapped from a file keeps its pages in the process's memory until the system
reclaims them. A server goes through several such arrays at each fold. So large arrays are read in
windows, and the pages of each window are released before the next is read.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["WINDOW", "elementwise", "evict", "is_finite", "windows"]

WINDOW = 1 << 20
"""Bytes of an array that are read in one go; smaller arrays are taken whole."""

# A read may also map cached pages around it, as far as one page table goes.
_AROUND = 2 << 20


def windows(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Splits arrays of one shape into matching flat views of at most ``WINDOW`` bytes.

    A piece's pages of a mapped file are released when the next piece is requested. Small arrays,
    and anything else than NumPy arrays in C order, are one piece as they are.

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
    """Applies an elementwise function to arrays, in windows where it can; the same bits either way.

    Args:
      function: maps float64 arrays of one shape to one array of that shape.
      arrays: of one shape; otherwise, or if not NumPy's, the function gets them as they are.
    """
    if not _are_large(arrays) or any(array.dtype != np.float64 for array in arrays):
        return function(*arrays)
    result = np.empty(arrays[0].shape)
    for piece, *pieces in windows(result, *arrays):
        piece[:] = function(*pieces)
    return result


def is_finite(array: Any) -> bool:
    """Returns whether every number of an array is finite."""
    return all(bool(np.isfinite(piece).all()) for (piece,) in windows(array))


def evict(array: Any) -> None:
    """Releases from memory the pages of a mapped file that an array covers; a read loads them again.

    Does nothing for arrays that are not a read-only map, or not in C order.
    """
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.size:
        return
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    # Only read-only maps: written pages of a private map would be lost.
    if isinstance(base, mmap.mmap) and memoryview(base).readonly:
        offset = _address(array) - _address(np.frombuffer(base, np.uint8))
        start = max(0, offset - offset % mmap.PAGESIZE - _AROUND)
        end = min(len(base), offset + array.nbytes + _AROUND)
        base.madvise(mmap.MADV_DONTNEED, start, end - start)


def _are_large(arrays: tuple[Any, ...]) -> bool:
    # Called for every array, and most are small: check the size first.
    for array in arrays:
        if isinstance(array, np.ndarray) and array.nbytes > WINDOW:
            break
    else:
        return False
    whole = all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in arrays)
    return whole and len({array.shape for array in arrays}) == 1


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
