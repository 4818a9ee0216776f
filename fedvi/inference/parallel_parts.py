"""Computes parts of a batch on several processors, for programs that XLA would run on one."""

import collections
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

__all__ = ["PARTS", "is_wide", "processors", "side_by_side", "striped", "thread_count"]

PARTS = 4
"""The fewest parts of a batch, the same on every machine, so that no bit depends on its processors."""

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")


def thread_count() -> int:
    """Returns how many of ``PARTS`` parts to compute at a time."""
    return min(processors(), PARTS)


def processors() -> int:
    """Returns the number of usable processors. An accelerator counts as one."""
    if jax.default_backend() != "cpu":
        return 1
    can_tell = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if can_tell else os.cpu_count() or 1


def is_wide() -> bool:
    """Whether JAX's x64 mode is on in this thread."""
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)


def striped(indices: Any, mask: Any, parts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Deals the rows of a batch out to parts of one length, in turn, and pads them with masked rows.

    So parts take equally long even where records are sorted, for example by length.

    Args:
      indices: int32 [B], rows of a shard.
      mask: bool [B], which of them count.
      parts: how many.
    """
    length = -(-len(mask) // parts)
    room = (0, parts * length - len(mask))
    rows, stands = (
        np.pad(np.asarray(column), room).reshape(length, parts).T for column in (indices, mask)
    )
    return list(zip(np.ascontiguousarray(rows), np.ascontiguousarray(stands), strict=True))


def side_by_side(
    function: Callable[[_Part], _Found], parts: Iterable[_Part], threads: int
) -> Generator[_Found, None, None]:
    """Yields the function's result for each part, in the order of the parts; runs ``threads`` at a time.

    At most ``threads`` parts are in memory at a time. An exception of the function is raised here, once the
    parts that have started are done; an interrupt waits for them, too.

    Args:
      function: called with a part, from several threads; it must release the GIL, as compiled programs do.
      parts: read from one thread.
      threads: at least 1; with 1 the function is called in this thread.
    """
    if threads == 1:
        yield from map(function, parts)
        return
    wide = is_wide()  # each thread has a mode of its own

    def run(part: _Part) -> _Found:
        # A context that sets what holds anyway would have programs traced again.
        if is_wide() == wide:
            return function(part)
        with jax.enable_x64(wide):
            return function(part)

    with ThreadPoolExecutor(threads, "part") as pool:
        begun: collections.deque[Future[_Found]] = collections.deque()
        for part in parts:
            begun.append(pool.submit(run, part))
            if len(begun) == threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
