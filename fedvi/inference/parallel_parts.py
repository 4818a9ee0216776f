"""Parts of a batch on several processors at a time: for programs that XLA would run on one."""

import collections
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

__all__ = ["PARTS", "side_by_side", "striped", "thread_count"]

PARTS = 4
"""How many parts a batch is cut into at least, on every machine: no bit depends on its processors."""

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")


def thread_count() -> int:
    """Returns how many parts are worth computing side by side: the processors at hand, up to ``PARTS``.

    An accelerator is one.
    """
    if jax.default_backend() != "cpu":
        return 1
    can_tell = hasattr(os, "sched_getaffinity")  # not on macOS
    usable = len(os.sched_getaffinity(0)) if can_tell else os.cpu_count() or 1
    return min(usable, PARTS)


def striped(indices: Any, mask: Any, parts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns a batch in parts of one length, each with every so many-th row, filled up with empty rows.

    So that parts take equally long where records stand in an order, by their lengths for one.

    Args:
      indices: int32 [B], which rows of a shard.
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
    """Yields what a function makes of each part, in the order of the parts; up to ``threads`` at a time.

    At most so many parts are taken and not yet answered, whatever their number. What the function
    raises is raised here, once the parts that were begun have ended; an interrupt waits for them, too.

    Args:
      function: of a part; called from several threads, it is to leave the interpreter to others, as
        compiled programs do.
      parts: to be read from one thread.
      threads: at least 1, which calls the function without a thread.
    """
    if threads == 1:
        yield from map(function, parts)
        return
    with ThreadPoolExecutor(threads, "part") as pool:
        begun: collections.deque[Future[_Found]] = collections.deque()
        for part in parts:
            begun.append(pool.submit(function, part))
            if len(begun) == threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
