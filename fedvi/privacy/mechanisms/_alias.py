"""Draws integer noise from alias tables in JAX, and holds the code that all mechanisms on a grid share.

The running time depends on the values drawn: a table lookup is not constant-time, and one draw in 2¹⁵
needs an extra step. Attackers who time a client's memory or computation are out of scope.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from fedvi import errors
from fedvi.privacy.base import Grid
from fedvi.privacy.noise_table import table, variance
from fedvi.typing import Key

__all__ = [
    "FINEST",
    "LEAST_NOISE",
    "check_fineness",
    "check_noise",
    "draw",
    "grid",
    "perturb",
]

FINEST = 256
"""The largest fineness: σ = 4096 is then 16 strides, and the error of the stride below e⁻⁵⁰⁰⁰."""

LEAST_NOISE = 0.1
"""The smallest noise multiplier on a grid: below it ε exceeds 50, and sums need many bits."""

_MASK = 2**16 - 1
_LARGEST = _MASK
_LARGEST_BOUND = 2**52  # squared norms below it are checked exactly in float64


# Jitted, so that calls outside a trace do not compile the loop again.
@functools.partial(jax.jit, static_argnames=("law", "count"), inline=True)
def draw(law: str, key: Key, count: int) -> jax.Array:
    """Draws ``count`` independent integers from a table's law, int32 [count].

    A draw uses 80 random bits: 16 pick a column, 63 decide between it and its alias, one is the sign.
    The first 15 of the 63 are in the same word as the column and the sign, and nearly always decide. The
    last 48 matter only if the first 15 equal the threshold's, and are drawn only then, for a whole row of
    draws at once.

    Guarantee: given uniform bits, each is within ``TABLE_DISTANCE`` of the law.

    Raises:
      PrivacyError: if ``count`` is 2³¹ or more: draws are numbered by int32.
    """
    if count >= 2**31:
        raise errors.PrivacyError(
            f"{count} integers of noise were requested from one key, expected fewer than 2^31",
            "release fewer numbers together",
        )
    if count == 0:
        return jnp.zeros(0, jnp.int32)
    rows = -(-count // _ROW)
    width = -(-count // rows)

    @jax.custom_batching.custom_vmap
    def one(key: Key) -> jax.Array:
        key, rest = jax.random.split(key)
        words = jax.random.bits(key, (rows, width), jnp.uint32)

        def further(row: jax.Array) -> jax.Array:
            return jax.random.bits(jax.random.fold_in(rest, row), (2, width), jnp.uint32)

        return _decided(law, words, further).reshape(-1)[:count]

    @one.def_vmap
    def many(size: int, batched: Any, keys: Key) -> Any:
        # The rows of all keys are one table, so that ties of some do not cost all of them more words.
        pairs = jax.vmap(jax.random.split)(keys)
        words = jax.vmap(lambda key: jax.random.bits(key, (rows, width), jnp.uint32))(pairs[:, 0])

        def further(row: jax.Array) -> jax.Array:
            key = jax.random.fold_in(pairs[row // rows, 1], row % rows)
            return jax.random.bits(key, (2, width), jnp.uint32)

        found = _decided(law, words.reshape(size * rows, width), further)
        return found.reshape(size, -1)[:, :count], True

    drawn: jax.Array = one(key)
    return drawn


def _decided(law: str, words: jax.Array, further: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Turns uint32 words [rows, width] into draws of the law, int32 [rows, width].

    ``further`` returns two more words for each draw of a row, uint32 [2, width]; asked where a draw ties.
    """
    rows = len(words)
    packed, bars_middle, bars_low = (jnp.asarray(row) for row in _packed(law))

    def looked_up(row: jax.Array, at: jax.Array) -> jax.Array:
        return row.at[at].get(mode="promise_in_bounds")

    column = words & jnp.uint32(_MASK)
    entry = looked_up(packed, column)
    bar, coin = entry >> 16, (words >> 16) & jnp.uint32(2**15 - 1)
    tied = coin == bar

    # All rows with a tie at once, as far as expected: one after the other they are slow on a GPU.
    together = min(rows, -(-rows // _TIED_ROWS))

    def below(row: jax.Array) -> jax.Array:
        middle, low = further(row)
        middle, at = middle >> 16, column[row]
        bar_middle = looked_up(bars_middle, at)
        return (middle < bar_middle) | ((middle == bar_middle) & (low < looked_up(bars_low, at)))

    def settled(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        kept, waiting = state
        some = jnp.nonzero(waiting, size=together, fill_value=rows)[0]
        found = jnp.where(tied[some], jax.vmap(below)(some), kept[some])
        # The places that are left over name no row, and nothing is written there.
        return kept.at[some].set(found, mode="drop"), waiting.at[some].set(False, mode="drop")

    start = coin < bar, tied.any(axis=1)
    kept, _ = lax.while_loop(lambda state: state[1].any(), settled, start)
    magnitude = jnp.where(kept, column, entry & jnp.uint32(_MASK)).astype(jnp.int32)
    return jnp.where((words >> 31) == 1, -magnitude, magnitude)


_ROW = 1024  # draws; a tie costs two more random words for each draw of its row
_TIED_ROWS = 24  # one row in so many is settled at once; one in 32 has a tie


def _packed(law: str) -> tuple[npt.NDArray[np.uint32], ...]:
    """Packs a table so that one lookup decides nearly every draw.

    The first array holds the alias, and above it the first 15 of a threshold's 63 bits. The second holds
    the next 16 bits, the third the last 32.
    """
    alias, high, low = table(law)
    return alias | (high >> 16) << 16, high & _MASK, low


def check_noise(noise_multiplier: float) -> float:
    """Returns the noise multiplier as a float, if a grid can carry it.

    Raises:
      PrivacyError: if it is neither 0 nor a finite number of at least ``LEAST_NOISE``.
    """
    if noise_multiplier == 0.0:
        return 0.0
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= LEAST_NOISE):
        raise errors.PrivacyError(
            f"noise_multiplier is {noise_multiplier}, expected 0 or a finite number of at least "
            f"{LEAST_NOISE}",
            "less noise protects next to nothing; 0 means no noise, and an infinite epsilon",
        )
    return float(noise_multiplier)


def check_fineness(fineness: int | None, noise_multiplier: float) -> int:
    """Returns the given fineness, or by default the least one that is not below the noise multiplier.

    C is then 4,096 steps or more, unless the noise multiplier is above ``FINEST``.

    Raises:
      PrivacyError: if ``fineness`` is not a power of two from 1 to ``FINEST``.
    """
    if fineness is None:
        steps = [2**k for k in range(FINEST.bit_length())]
        return next((m for m in steps if m >= noise_multiplier), FINEST)
    if not 1 <= fineness <= FINEST or fineness & (fineness - 1):
        raise errors.PrivacyError(
            f"fineness is {fineness}, expected a power of two from 1 to {FINEST}"
        )
    return fineness


def grid(noise_multiplier: float, clip_norm: float, fineness: int, terms: int = 1) -> Grid | None:
    """Returns the grid on which the sum of ``terms`` equal noises has std noise_multiplier · clip_norm.

    The bound is computed in rational numbers: K² = terms · variance / noise_multiplier².

    Raises:
      PrivacyError: if the clip norm is not finite, since noise is measured in clip norms; or if the
        bound is 2⁵² or more, which float64 cannot check exactly.
    """
    if noise_multiplier == 0.0:
        return None
    if not (math.isfinite(clip_norm) and clip_norm > 0.0):
        raise errors.PrivacyError(
            f"clip_norm is {clip_norm} with noise_multiplier {noise_multiplier}",
            "noise is measured in clip norms: give a finite clip_norm, or noise_multiplier 0",
        )
    whole = terms * variance(fineness)
    bound = math.floor(whole / Fraction(noise_multiplier) ** 2)
    if bound >= _LARGEST_BOUND:
        raise errors.PrivacyError(
            f"{terms} terms at noise_multiplier {noise_multiplier:g} and fineness {fineness} make a "
            f"grid of {math.isqrt(bound)} steps a clip norm, expected fewer than 2**26",
            "use fewer terms, a lower fineness, or more noise",
        )
    tail = _LARGEST * (1 if fineness == 1 else 1 + fineness)
    return Grid(clip_norm * noise_multiplier / math.sqrt(whole), bound, tail, terms)


def perturb(law: str, fineness: int, key: Key, total: Any) -> Any:
    """Adds noise to a tree of int32 or int64 arrays, in their dtypes.

    Raises:
      PrivacyError: if the total does not hold int32 or int64, and so is not on a grid.
    """
    leaves, tree = jax.tree.flatten(total)
    for leaf in leaves:
        if leaf.dtype not in (np.int32, np.int64):
            raise errors.PrivacyError(
                f"a total has dtype {leaf.dtype}, expected integers on the mechanism's grid",
                "pass the mechanism to `clipped_sum`, which rounds to its grid",
            )
    count = sum(leaf.size for leaf in leaves)
    if fineness == 1:
        noise = draw(law, key, count)
    else:
        drawn = draw(law, key, 2 * count)
        noise = drawn[:count] + fineness * drawn[count:]
    noised, start = [], 0
    for leaf in leaves:
        part = noise[start : start + leaf.size].reshape(leaf.shape)
        with jax.enable_x64(leaf.dtype == np.int64):
            noised.append(leaf + part.astype(leaf.dtype))
        start += leaf.size
    return jax.tree.unflatten(tree, noised)
