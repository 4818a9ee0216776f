"""Runs loops over rows of unequal length on arrays of a few fixed lengths.

A row's results depend on that row alone, to the last bit, whatever the other rows: its length
class follows from its own numbers, and every array of a class has the same number of rows.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["over_chunks", "through_chunks"]

# The shortest length class; each further one is twice as long.
_SHORTEST = 32
# How many numbers are computed together, and the fewest rows. With 50 or 100 topics they fit into a core's
# own cache, which is three times as fast.
_TOGETHER = 1024
_FEWEST_ROWS = 4


def through_chunks(body: Callable[..., Any], lengths: Any, longest: int, state: Any) -> Any:
    """Updates a state with groups of rows, each in arrays of its own length class.

    Rows of length 0 are in no group.

    Args:
      body: (state, rows int32 [R], length, stands bool [R]) → state; rows with a false ``stands`` must
        change nothing. R follows from the length.
      lengths: int32 [B], the length of each row.
      longest: the largest possible length.
      state: any tree.
    """
    import jax
    import jax.numpy as jnp

    sizes = [_SHORTEST << index for index in range(32) if _SHORTEST << index < longest] + [longest]
    kind = sum((lengths > size).astype(jnp.int32) for size in [0, *sizes[:-1]])
    order = jnp.argsort(kind).astype(jnp.int32)
    order = jnp.pad(order, (0, _rows_of(_SHORTEST)))
    for index, size in enumerate(sizes):
        together = _rows_of(size)
        start = (kind < index + 1).sum(dtype=jnp.int32)
        end = (kind < index + 2).sum(dtype=jnp.int32)

        def visit(
            chunk: Any,
            state: Any,
            size: int = size,
            together: int = together,
            start: Any = start,
            end: Any = end,
        ) -> Any:
            at = start + chunk * together
            taken = jax.lax.dynamic_slice(order, (at,), (together,))
            stands = jnp.arange(together, dtype=jnp.int32) < end - at
            return body(state, taken, size, stands)

        trips = (end - start + jnp.int32(together - 1)) // jnp.int32(together)
        state = jax.lax.fori_loop(jnp.int32(0), trips, visit, state)
    return state


def over_chunks(function: Callable[..., Any], lengths: Any, longest: int, state: Any) -> Any:
    """Applies a function to groups of rows, and writes its results into the rows of a tree.

    Args:
      function: (rows, length) → tree of arrays [R, …].
      lengths, longest: see ``through_chunks``.
      state: a tree of arrays [B, …]; rows of length 0 stay as they are.
    """
    import jax
    import jax.numpy as jnp

    count = lengths.shape[0]

    def written(state: Any, rows: Any, size: int, stands: Any) -> Any:
        places = jnp.where(stands, rows, jnp.full_like(rows, count))

        def put(whole: Any, part: Any) -> Any:
            return whole.at[places].set(part, mode="drop")

        return jax.tree.map(put, state, function(rows, size))

    return through_chunks(written, lengths, longest, state)


def _rows_of(length: int) -> int:
    return max(_TOGETHER // max(length, _SHORTEST), _FEWEST_ROWS)
