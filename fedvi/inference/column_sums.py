"""Noised sums of columns and of their squares: the survey that opens a study of a regression."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi.inference.block_sums import noised_in_blocks
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.release import Released
from fedvi.typing import ROWS
from fedvi.updates.base import compiled_once

__all__ = ["noised_column_sums"]

_TINY, _LEAST = 2.0**-126, 1e-300


@compiled_once
def noised_column_sums(
    size: int,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    constant: int,
    emphasis: float,
    unit: float,
) -> Callable[..., Released]:
    """Returns a function (sampling key, noise key, records, valid) → Σ (x, x²) / unit with noise.

    A unit of several rows contributes the mean of its rows' (x, x²).

    Its arrays have the names and shapes of every other answer: ``gradient`` [D] holds Σ x, and the diagonal
    of ``curvature`` [D(D+1)/2] holds Σ x², in float64 until they are noised.

    Guarantee: a record's vector is clipped to norm C, as those of other answers are, and depends on no
    other record (`noised_in_blocks`). A row with a number that is not finite is zero.

    Args:
      size: D.
      sampler, mechanism, clip_norm: those of every other answer.
      constant, emphasis, unit: see ``Survey``.
    """
    rows, columns = np.tril_indices(size)
    diagonal = np.flatnonzero(rows == columns).astype(np.int32)
    share = np.where(np.arange(size) == constant, emphasis, 1.0) / unit
    share = np.tile(share, 2)[None, :]

    def block_sum(records: Any, mask: Any, limit: float) -> dict[str, Any]:
        # [B, R, D]: the rows of a unit, or the one row of a record.
        x, stands = records["x"], records.get(ROWS)
        if stands is None:
            x, stands = x[:, None, :], jnp.ones((len(x), 1), bool)
        stands = stands.astype(bool)
        usable = mask & (jnp.isfinite(x).all(axis=2) | ~stands).all(axis=1)
        # Some devices flush such small numbers and others do not; norm and sum must see the same values.
        here = (usable[:, None] & stands)[:, :, None]
        x = jnp.where(here & (jnp.abs(x) >= _TINY), x, jnp.zeros_like(x))
        with jax.enable_x64(True):
            wide = x.astype(jnp.float64)
            count = jnp.maximum(stands.sum(axis=1), 1).astype(jnp.float64)[:, None]
            vectors = (
                jnp.concatenate([wide.sum(axis=1), (wide**2).sum(axis=1)], axis=1) / count * share
            )
            norm = jnp.sqrt((vectors**2).sum(axis=1))
            kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))
            total = jnp.matmul(kept, vectors, precision=jax.lax.Precision.HIGHEST)
            squares = jnp.zeros(len(rows), total.dtype).at[diagonal].set(total[size:])
            return {"gradient": total[:size], "curvature": squares}

    return noised_in_blocks(sampler, mechanism, clip_norm, size + len(rows), block_sum)
