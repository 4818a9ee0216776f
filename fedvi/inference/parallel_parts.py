"""Computes parts of a batch on several processors or devices, for programs that XLA would run on one."""

import collections
import functools
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedvi.privacy.base import ROWS_TOGETHER

__all__ = [
    "PARTS",
    "added_on_devices",
    "compiled_calls",
    "devices",
    "is_wide",
    "on_devices",
    "processors",
    "side_by_side",
    "striped",
    "thread_count",
]

PARTS = 4
"""The fewest parts of a batch, the same on every machine, so that no bit depends on its processors."""

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")


def thread_count(most: int | None = PARTS) -> int:
    """Returns how many parts to compute at a time, so that all processors and devices are at work.

    An accelerator gets two parts, so that one is prepared while the other is computed.

    Args:
      most: how many processors to use at most, since each part takes memory; None for all.
    """
    found = devices()
    if found[0].platform != "cpu":
        return 2 * len(found)
    usable = processors()
    return max(usable if most is None else min(usable, most), len(found))


def processors() -> int:
    """Returns the number of usable processors."""
    can_tell = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if can_tell else os.cpu_count() or 1


def devices() -> list[Any]:
    """Returns the devices of this process, or the one that a caller chose by ``jax.default_device``."""
    if jax.config.jax_default_device is None:  # type: ignore[attr-defined]
        return jax.local_devices()
    with jax.ensure_compile_time_eval():  # within a trace, too
        return list(jnp.zeros(()).devices())


def is_wide() -> bool:
    """Whether JAX's x64 mode is on in this thread."""
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)


def striped(indices: Any, mask: Any, parts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Deals the rows of a batch out to parts of one length, in turn, and pads them with masked rows.

    So parts take equally long even where records are sorted, for example by length. Parts have whole groups
    of rows, as batches do (`filled`).

    Args:
      indices: int32 [B], rows of a shard.
      mask: bool [B], which of them count.
      parts: how many.
    """
    length = -(-len(mask) // (parts * ROWS_TOGETHER)) * ROWS_TOGETHER
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


def on_devices(
    prepared: Callable[[_Part], Callable[[], _Found]], parts: Iterable[_Part], threads: int
) -> Generator[_Found, None, None]:
    """Computes parts on all devices, and yields their results in the order of the parts.

    JAX computes the calls of one thread one after the other, so each call runs in one of several threads.
    Parts are dealt out to ``devices`` in turn.

    Args:
      prepared: returns a function without arguments that computes a part. It is called in this thread, with
        the part's device as JAX's default. Programs should be traced and compiled here (`compiled_calls`).
      parts: as of ``side_by_side``.
      threads: as of ``side_by_side``; see ``thread_count``.
    """
    found = devices()

    def call(place: int, part: _Part) -> Callable[[], _Found]:
        with jax.default_device(found[place % len(found)]):
            return prepared(part)

    calls = (call(*each) for each in enumerate(parts))
    return side_by_side(lambda ready: jax.block_until_ready(ready()), calls, threads)


def added_on_devices(total: Callable[[Any], Any], parts: int) -> Any:
    """Returns the sum of the whole numbers ``total(0)`` to ``total(parts - 1)``, on all ``devices``.

    Whole numbers have the same sum in any order, so the number of devices changes no bit. Call it within
    ``jit``; the rest of that program is computed on every device.

    Args:
      total: index of a part, an int32 scalar → an array of integers.
      parts: how many there are.
    """
    found = devices()
    like = jax.eval_shape(total, np.int32(0))
    if not jnp.issubdtype(like.dtype, jnp.integer):
        raise TypeError(f"sums have dtype {like.dtype}, expected integers")
    wide = like.dtype.itemsize == 8

    def mine(place: Any) -> Any:
        def add(step: Any, so_far: Any) -> Any:
            part = total(place[0] + step * len(found))
            with jax.enable_x64(wide):
                return so_far + part

        with jax.enable_x64(wide):
            nothing = jnp.zeros(like.shape, like.dtype)
        steps = (parts - place[0] + len(found) - 1) // len(found)
        own = jax.lax.fori_loop(0, steps, add, nothing)
        with jax.enable_x64(wide):
            return jax.lax.psum(own, "devices")

    mesh = jax.sharding.Mesh(np.array(found), ("devices",))
    one_each = jax.sharding.PartitionSpec("devices")
    spread = jax.shard_map(
        mine, mesh=mesh, in_specs=one_each, out_specs=jax.sharding.PartitionSpec(), check_vma=False
    )
    return spread(jnp.arange(len(found), dtype=jnp.int32))


def compiled_calls(program: Any) -> Callable[..., Callable[[], Any]]:
    """Returns a function of the arguments of ``program`` that returns its call, which any thread may make.

    Programs are traced and compiled where the function is called, never by several threads at once:
    NumPyro has one stack of handlers for all threads, and models traced by two at once would see each
    other's.

    Args:
      program: from ``jax.jit``; arguments with names are static.
    """
    programs: dict[Any, Callable[..., Any]] = {}

    def prepared(*arguments: Any, **static: Any) -> Callable[[], Any]:
        leaves, structure = jax.tree.flatten(arguments)
        (where,) = jnp.zeros(()).devices()
        kind = (
            structure,
            where,
            is_wide(),
            *static.items(),
            *map(jax.typeof, leaves),
        )
        if kind not in programs:
            programs[kind] = program.lower(*arguments, **static).compile()
        return functools.partial(programs[kind], *arguments)

    return prepared
