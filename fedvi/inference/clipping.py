"""Clips the gradients of records and adds them up: clipped jointly, leaf by leaf, or rescaled."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedvi import errors
from fedvi.inference.per_record import Records
from fedvi.privacy.base import ROWS_TOGETHER, Batch, Mechanism
from fedvi.privacy.bounded import Bounded, clipped_sum, float_limit, float_sum

__all__ = [
    "LARGEST_BATCH",
    "MOST_ROWS",
    "Clipping",
    "Parts",
    "clipped",
    "longest_part",
    "loss_unit",
    "predictor_blocks",
    "predictor_limit",
]

Clipping = Literal["flat", "per_site", "automatic", "normalised"]

# The stability constant of automatic clipping, in units of one gradient; its authors' value.
_STABILITY = 0.01
# Smaller norms count as this.
_LEAST = 1e-30
# The share of the clip norm that rounding of float32 sums may take; blocks are as long as it allows.
_SUM_SHARE = 0.02
# Batches of so many rows are added up at once, since a second block takes as long as the first: 409 rows,
# as many as the share allows, are filled up to 448, and 2.4 % go to rounding.
_ONE_BLOCK = 448
LARGEST_BATCH = int(_SUM_SHARE * 2.0**23) // ROWS_TOGETHER * ROWS_TOGETHER
"""The most rows for which float32 blocks are short enough for ``_SUM_SHARE``."""
MOST_ROWS = 1 << 16
"""The most records of a shard that are added up at once: of a linear predictor in float32.

Rounding takes up to 4 % of the clip norm then (``predictor_limit``), and would take more than may be lost
from 105,000 records on. Float32 blocks of two rows are no faster than those in float64, of many.
"""
_BESIDE_ADDITIONS = 3
# The share of the clip norm that a released loss takes, and the least share of C that rounding leaves.
_BESIDE, _LEFT = 0.1, 0.95
# The smallest normal number of float32.
_TINY = 2.0**-126


class Parts(NamedTuple):
    """A batch in parts, with the gradients of one part in memory at a time.

    Attributes:
      of: index of a part → the gradients of its rows; the last rows may be padding.
      number: how many parts there are.
      rows: how many rows each has: one, or whole groups as in a batch (``privacy.base.filled``).
    """

    of: Callable[[Any], Records]
    number: int
    rows: int


def clipped(
    parts: Parts,
    clip_norm: float,
    clipping: str,
    batch: Batch,
    mechanism: Mechanism,
    loss_bound: float | None = None,
) -> Bounded:
    """Clips the gradients of a batch and adds them up; forms large gradients only where it must.

    Guarantee: that of `float_sum`, since no row's norm is above `float_limit`: its leaves' weights
    times norms have a norm of at most the limit, norms are known to ``Records.error``, and the limit
    is lowered by that; a record with any number that is not finite has the weight 0, and so has a leaf
    whose weighted gradient would not be finite. For gradients that are not float32, and for batches too
    large for float32 sums, the guarantee is that of `clipped_sum`.

    Args:
      parts: the gradients of the rows of ``batch``, in its order.
      clip_norm: C.
      clipping: one of ``Clipping``; "per_site" clips each leaf to C / √leaves.
      batch: the rows.
      mechanism: the one that will noise the sum.
      loss_bound: if given, each record's loss is added up as well, clipped to ±loss_bound and in units of
        loss_bound ÷ `loss_unit`. The total is then (gradients, loss), and gradients are clipped to what
        the loss leaves of C.

    Raises:
      PrivacyError: if C, the batch and the number of parameters are incompatible; if gradients that
        are not float32, or more rows than can be added up in float32, come in several parts.
    """
    rows, unit = batch.mask.shape[0], 0.0 if loss_bound is None else loss_unit(clip_norm)

    def counted(records: Records) -> Records:
        if loss_bound is None:
            return records
        # A model in float64 with parameters in float32 has its loss in float64.
        losses = records.losses.astype(jnp.float32)
        return records.beside(jnp.clip(losses / loss_bound, -1.0, 1.0) * unit)

    is_wide = jnp.result_type(float) == jnp.float64

    def part(index: Any) -> Records:
        # Block sums are traced with 32 bits, the model with the precision that its user set.
        with jax.enable_x64(is_wide):
            return parts.of(index)

    whole = part(0)
    like = counted(whole)
    if rows > LARGEST_BATCH or not like.is_single:
        if parts.number > 1:
            raise errors.PrivacyError(
                f"{rows} rows come in {parts.number} parts, expected at most {LARGEST_BATCH} rows, and "
                "gradients in float32",
                "use smaller batches, or no microbatches",
            )
        return _one_by_one(whole, like, unit, clip_norm, clipping, batch, mechanism)
    # All parts have the same number of blocks.
    block = min(longest_part(rows), parts.rows)
    each = -(-parts.rows // block)
    blocks = parts.number * each
    limit = float_limit(clip_norm, block, blocks, rows, like.size, mechanism)
    # Norms and weights are rounded, a few times each.
    limit = math.sqrt(limit**2 - unit**2) * (1.0 - like.error)

    def sums(records: Records, mask: Any) -> Callable[[Any], Any]:
        weights, everything = _weights(records, limit, clipping), counted(records)
        usable = mask & jnp.isfinite(everything.norm())
        weights += [jnp.ones_like(weights[0])] * (len(everything.parts) - len(weights))
        return everything.block_sums(
            [
                # A denormal weight may be rounded up by more than a few parts in 2²⁴.
                jnp.where(usable & (weight >= _TINY), weight, jnp.zeros_like(weight))
                for weight in weights
            ],
            block,
        )

    if parts.number == 1:
        return float_sum(sums(whole, batch.mask), blocks, block, clip_norm, batch, mechanism)
    masks = jnp.pad(batch.mask, (0, parts.number * parts.rows - rows)).reshape(-1, parts.rows)

    def part_sums(index: Any) -> Any:
        of_block = sums(part(index), masks[index])
        if each == 1:
            return of_block(0)
        return jax.lax.map(of_block, jnp.arange(each, dtype=jnp.int32))

    return float_sum(part_sums, blocks, block, clip_norm, batch, mechanism, stacked=each)


def longest_part(rows: int) -> int:
    """Returns how many rows of a batch may be added up in float32 before the sum moves to float64: b."""
    if rows <= _ONE_BLOCK:
        return rows
    return min(rows, max(int(_SUM_SHARE * 2.0**23 / rows), 1))


def predictor_limit(rows: int, size: int, clip_norm: float, mechanism: Mechanism) -> float:
    """Returns the `float_limit` of gradients and curvatures of records with one linear predictor each.

    Args:
      rows: of a batch that is added up at once.
      size: how many numbers a record's vector has.
      clip_norm, mechanism: those of the sum.

    Raises:
      PrivacyError: rounding of the sum and to the grid would take more than 5 % of the clip norm.
    """
    _, blocks, terms = predictor_blocks(rows)
    return float_limit(clip_norm, terms, blocks, rows, size, mechanism)


def predictor_blocks(rows: int) -> tuple[int, int, int]:
    """Returns the length of such a sum's blocks, how many there are, and the roundings that each counts."""
    block = longest_part(rows)
    return block, -(-rows // block), block + _BESIDE_ADDITIONS


def loss_unit(clip_norm: float) -> float:
    """Returns the norm that the largest loss takes beside a gradient: a tenth of C."""
    return _BESIDE * clip_norm if math.isfinite(clip_norm) else 1.0


def _one_by_one(
    records: Records,
    counted: Records,
    unit: float,
    clip_norm: float,
    clipping: str,
    batch: Batch,
    mechanism: Mechanism,
) -> Bounded:
    """Forms every gradient and sums them with `clipped_sum`, which rounds and checks each."""
    formed = counted.formed()
    if clipping != "flat" or unit:
        limit = clip_norm
        if unit:
            # Leaves room for the loss, so that rounding of C does not clip it with the gradient.
            limit = math.sqrt((_LEFT * clip_norm) ** 2 - unit**2)
        leaves, tree = jax.tree.flatten(formed)
        weights = _weights(records, limit, clipping)
        weights += [jnp.ones_like(weights[0])] * (len(leaves) - len(weights))
        scaled = [
            leaf * weight.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
            for leaf, weight in zip(leaves, weights, strict=True)
        ]
        formed = jax.tree.unflatten(tree, scaled)
    return clipped_sum(formed, clip_norm, batch, mechanism)


def _weights(records: Records, limit: float, clipping: str) -> list[jax.Array]:
    """Returns the factor for each record's gradient, [B] a leaf, that brings its norm within ``limit``."""
    if clipping == "per_site":
        norms = records.norms()
        part = limit / math.sqrt(len(norms))
        return [jnp.minimum(1.0, part / jnp.maximum(norm, _LEAST)) for norm in norms]
    norm = records.norm()
    if clipping == "flat":
        weight = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))
    else:
        weight = limit / (norm + (_STABILITY if clipping == "automatic" else _LEAST))
    return [weight] * len(records.parts)
