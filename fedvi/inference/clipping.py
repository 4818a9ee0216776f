"""How the gradients of records are clipped: jointly, by leaf, or scaled."""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from fedvi.inference import per_record
from fedvi.inference.per_record import Records
from fedvi.privacy.release import Batch, Bounded, Mechanism, clipped_sum, float_limit, float_sum

__all__ = ["Clipping", "clipped"]

Clipping = Literal["flat", "per_site", "automatic", "normalised"]

# Of automatic clipping, in units of one gradient; its authors' value.
_STABILITY = 0.01
# Smaller norms count as this.
_LEAST = 1e-30
# From so many numbers a record on, gradients of dense layers are not formed. Below, rounding each
# record's to the grid and checking it costs about the same.
_WORTH_SPARING = 64
# The part of the clip norm that sums in float32 may take; blocks are as long as it allows.
_SUM_SHARE = 0.02
# Of more rows no block is short enough for that.
_MOST_ROWS = int(_SUM_SHARE * 2.0**23)
# The smallest normal number of float32.
_TINY = 2.0**-126


def clipped(
    records: Records, clip_norm: float, clipping: str, batch: Batch, mechanism: Mechanism
) -> Bounded:
    """Clips the gradients of a batch and adds them up; large ones are not formed if they need not be.

    Guarantee: what `clipped_sum` or `float_sum` returns. For the latter, that no row's norm is above
    `float_limit`: its leaves' weights times norms have a norm of at most the limit, norms are known to
    ``records.error``, and the limit is lowered by that; a record of which any number is not finite
    has the weight 0, and so has a leaf whose weighted gradient would not be finite.

    Args:
      records: of the rows of ``batch``, in its order.
      clip_norm: C.
      clipping: one of ``Clipping``; "per_site" clips each leaf to C / √leaves.
      batch: the rows.
      mechanism: what will noise the sum.

    Raises:
      PrivacyError: if C, the batch and the number of parameters do not go together.
    """
    norms, rows = records.norms(), batch.mask.shape[0]
    if records.spared < _WORTH_SPARING or rows > _MOST_ROWS or not records.is_single:
        gradients = records.formed()
        if clipping != "flat":
            leaves, tree = jax.tree.flatten(gradients)
            weights = _weights(norms, clip_norm, clipping)
            scaled = [
                leaf * weight.reshape(-1, *[1] * (leaf.ndim - 1))
                for leaf, weight in zip(leaves, weights, strict=True)
            ]
            gradients = jax.tree.unflatten(tree, scaled)
        return clipped_sum(gradients, clip_norm, batch, mechanism)
    block = min(rows, max(int(_SUM_SHARE * 2.0**23 / rows), 1))
    blocks = -(-rows // block)
    limit = float_limit(clip_norm, block, blocks, rows, records.size, mechanism)
    # Norms and weights are rounded, a few times each.
    limit *= 1.0 - records.error
    usable = batch.mask & jnp.isfinite(per_record.total(norms))
    weights = [
        # A denormal weight may be rounded up by more than a few parts in 2²⁴.
        jnp.where(usable & (weight >= _TINY), weight, jnp.zeros_like(weight))
        for weight in _weights(norms, limit, clipping)
    ]
    sums = records.block_sums(weights, block)
    return float_sum(sums, blocks, block, clip_norm, batch, mechanism)


def _weights(norms: list[jax.Array], limit: float, clipping: str) -> list[jax.Array]:
    """Returns what each record's gradient is multiplied by, [B] a leaf: its norm is then within limit."""
    if clipping == "per_site":
        part = limit / math.sqrt(len(norms))
        return [jnp.minimum(1.0, part / jnp.maximum(norm, _LEAST)) for norm in norms]
    total = per_record.total(norms)
    if clipping == "flat":
        weight = jnp.minimum(1.0, limit / jnp.maximum(total, _LEAST))
    else:
        weight = limit / (total + (_STABILITY if clipping == "automatic" else _LEAST))
    return [weight] * len(norms)
