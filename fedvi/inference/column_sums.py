"""Noised sums of columns, and counts by size of slope: the surveys that open a study of a regression."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi.inference.block_sums import noised_in_blocks
from fedvi.inference.units import filled
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.release import Released
from fedvi.typing import ROWS
from fedvi.updates.base import compiled_once
from fedvi.updates.coordinates import EMPHASIS

__all__ = ["noised_column_sums", "noised_sizes"]

_TINY, _LEAST = 2.0**-126, 1e-300
_HIGHEST = jax.lax.Precision.HIGHEST


@compiled_once
def noised_column_sums(
    model: Any,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    constant: int,
    emphasis: float,
    unit: float,
    outcome: tuple[float, float | None] | None = None,
    blocks: int = 1,
    several: tuple[float, ...] = (),
    baselines: int = 0,
) -> Callable[..., Released]:
    """Returns a function (sampling key, noise key, records, valid) → Σ (x, x²) / unit with noise.

    A unit of several rows contributes the mean of its rows' (x, x²).

    Its arrays have the names and shapes of every other answer: ``gradient`` [D] holds Σ x, and the diagonal
    of ``curvature`` [D(D+1)/2] holds Σ x², in float64 until they are noised. Outcomes and exposures are in
    it as ``OutcomeSurvey`` says. Where several blocks of coefficients are on the same columns, the first
    block's entries hold the sums, and the others are 0.

    Guarantee: a record's vector is clipped to norm C, as those of other answers are, and depends on no
    other record (`noised_in_blocks`). A row with a number that is not finite is zero.

    Args:
      model: a regression of one row.
      sampler, mechanism, clip_norm: those of every other answer.
      constant, emphasis, unit: see ``Survey``.
      outcome: (most, exposed) of ``OutcomeSurvey``; None if nothing is learnt of outcomes.
      blocks: how many there are.
      several: see ``Survey``.
      baselines: of a hazard, which records do not hold; 0 of a model with an intercept.
    """
    size = len(model.names)
    rows, columns = np.tril_indices(size)
    held = size // blocks
    diagonal = np.flatnonzero(rows == columns).astype(np.int32)[:held]
    share = np.where(np.arange(held) == constant, emphasis, 1.0) / unit
    share = np.concatenate([share, share, np.full(len(several), 1.0 / unit)])[None, :]
    if outcome is not None:
        share[0, held + constant] = EMPHASIS / unit

    def block_sum(records: Any, mask: Any, limit: float) -> dict[str, Any]:
        # [B, R, D]: the rows of a unit, or the one row of a record.
        x, y, stands = _rows_of(records)
        if baselines:
            first = jnp.zeros((*x.shape[:2], baselines), x.dtype).at[..., 0].set(1.0)
            x = jnp.concatenate([first, x], axis=2)
        values = [] if outcome is None else [model.surveyed_value(y, outcome[0])]
        if outcome is not None and outcome[1] is not None:
            values.append(model.exposure(y, outcome[1]))
        if several:
            values.append((y / np.array([[several]], np.float32) + 1.0) / 2.0)
        finite = jnp.isfinite(x).all(axis=2)
        for value in values:
            finite = finite & jnp.isfinite(value).reshape(*finite.shape, -1).all(axis=2)
        usable = mask & (finite | ~stands).all(axis=1)
        here = usable[:, None] & stands
        x, *values = (_normal(part, here) for part in (x, *values))
        with jax.enable_x64(True):
            wide = x.astype(jnp.float64)
            count = jnp.maximum(stands.sum(axis=1), 1).astype(jnp.float64)[:, None]
            parts, exposures = [wide.sum(axis=1), (wide**2).sum(axis=1)], 0.0
            sums = [value.astype(jnp.float64).sum(axis=1) for value in values]
            if several:
                parts.append(EMPHASIS * sums.pop())
            if sums:
                parts[1] = parts[1].at[:, constant].set(sums[0])
            vectors = jnp.concatenate(parts, axis=1) / count * share
            if len(sums) > 1:
                exposures = sums[1] / count[:, 0] / unit
                vectors = vectors.at[:, held : held + 2].add(exposures[:, None])
            norm = jnp.sqrt((vectors**2).sum(axis=1) + 2.0 * exposures**2)
            kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))
            total = jnp.matmul(kept, vectors, precision=jax.lax.Precision.HIGHEST)
            squares = jnp.zeros(len(rows), total.dtype).at[diagonal].set(total[held : 2 * held])
            if len(sums) > 1:
                beside = math.sqrt(2.0) * jnp.vdot(kept, exposures, precision=_HIGHEST)
                squares = squares.at[1].set(beside)
            first = jnp.concatenate([total[:held], total[2 * held :]])
            return {"gradient": jnp.pad(first, (0, size - len(first))), "curvature": squares}

    return noised_in_blocks(sampler, mechanism, clip_norm, size + len(rows), block_sum)


@compiled_once
def noised_sizes(
    model: Any,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    sizes: tuple[float, ...],
) -> Callable[..., Released]:
    """Returns a function (sampling key, noise key, records, valid, θ, level) → counts by size of slope.

    They have noise. A record is 1 in the count of its slope at θ, see ``OutcomeSurvey``; a unit of several
    rows has the shares of its rows. The first D counts are in ``gradient``, the others on the diagonal of
    ``curvature``.

    Guarantee: that of `noised_column_sums`.

    Args:
      model: a regression of one row.
      sampler, mechanism, clip_norm: those of every other answer.
      sizes: K − 1 borders, increasing; K is at most 2D.
    """
    size = len(model.names)
    rows, columns = np.tril_indices(size)
    diagonal = np.flatnonzero(rows == columns).astype(np.int32)
    borders = np.array(sizes, np.float32)

    def block_sum(theta: Any, level: Any, records: Any, mask: Any, limit: float) -> dict[str, Any]:
        x, y, stands = _rows_of(records)
        # Row by row, so that an outcome from outside of fedvi cannot look at another record.
        of_rows = jax.vmap(jax.vmap(model.slope_size, in_axes=(0, 0, None)), in_axes=(0, 0, None))
        found = of_rows(jnp.matmul(x, theta, precision=_HIGHEST), y, level)
        usable = mask & (jnp.isfinite(found) | ~stands).all(axis=1)
        at = (found[:, :, None] > borders[None, None, :]).sum(axis=2)
        with jax.enable_x64(True):
            one = jax.nn.one_hot(at, 2 * size, dtype=jnp.float64)
            one = jnp.where((usable[:, None] & stands)[:, :, None], one, jnp.zeros_like(one))
            share = (
                one.sum(axis=1) / jnp.maximum(stands.sum(axis=1), 1).astype(jnp.float64)[:, None]
            )
            # Shares that add up to 1 have a norm of at most 1, which is C.
            total = jnp.minimum(1.0, limit) * share.sum(axis=0)
            squares = jnp.zeros(len(rows), total.dtype).at[diagonal].set(total[size:])
            return {"gradient": total[:size], "curvature": squares}

    return noised_in_blocks(sampler, mechanism, clip_norm, size + len(rows), block_sum)


def _rows_of(records: Any) -> tuple[Any, Any, Any]:
    """Returns x [B, R, D], y [B, R, …] and which rows stand [B, R]; R is 1 for records of one row."""
    x, y, stands = records["x"], records["y"], records.get(ROWS)
    if stands is None:
        x, y, stands = x[:, None], y[:, None], jnp.ones((len(x), 1), bool)
    stands = stands.astype(bool)
    return x, filled(y, stands), stands


def _normal(part: Any, here: Any) -> Any:
    """Returns zeros where a row does not count, and for numbers that some devices flush to zero.

    A norm and a sum must see the same values.
    """
    here = here.reshape(*here.shape, *(1,) * (part.ndim - 2))
    return jnp.where(here & (jnp.abs(part) >= _TINY), part, jnp.zeros_like(part))
