"""Weights for a regression's records before they are clipped, and the vectors that they multiply.

A weight depends on a record's x, on q and on the clip norm, never on the record's outcome. So it leaves
the mean of a gradient at the true coefficients at 0, which clipping would not. Proof and measurements:
docs/proofs/noise_aware.md.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi.inference.units import filled
from fedvi.models.capabilities import PlausibleOutcomes
from fedvi.typing import IDS, ROWS

__all__ = ["narrow_and_kept", "of_predictor", "of_units"]

# The sd of a predictor under q is capped at this: wider expectations make steps too long.
_WIDEST = 1.0
# The share of the clip norm that weights aim for: the limit, lowered for rounding, then clips none of them.
_NEARLY = 1.0 - 2.0**-8
# The smallest normal number of float32.
_TINY = 2.0**-126


def of_predictor(
    model: Any,
    nodes: int,
    mean: Any,
    root: Any,
    at: Any,
    records: Any,
    weight: float,
    clip_norm: float,
) -> tuple[Any, Any, Any]:
    """Returns x̃ [B, D], and the factors a, b [B] with which g = a x̃ and H = b x̃ x̃ᵀ for each record."""
    x, slope, bend, steepest, sharpest = _at_rows(
        model, nodes, mean, root, at, records["x"], records["y"]
    )
    if steepest is not None and math.isfinite(clip_norm):
        square = (x**2).sum(axis=1)
        kept = _kept(steepest**2 * square + (weight * sharpest * square) ** 2, clip_norm)
        slope, bend = kept * slope, kept * bend
    return x, slope, bend


def of_units(
    model: Any,
    nodes: int,
    mean: Any,
    root: Any,
    at: Any,
    units: Any,
    triangle: tuple[np.ndarray, np.ndarray, np.ndarray],
    clip_norm: float,
) -> dict[str, Any]:
    """Returns (Σ_r g_r, c·svec(Σ_r H_r)) of units of R rows each, before they are clipped.

    A unit's weight depends on its rows' x and on q only, like a record's. It allows for the sum of its
    rows' longest gradients, and for the sum of their longest curvatures.

    Args:
      model: of one row.
      units: of `fedvi.data.by_unit`: x [B, R, D], y [B, R, …] and ``ROWS`` [B, R].
      triangle: rows and columns of the lower triangle, and c, or c·√2, for each entry.
    """
    stands, rows, columns = units[ROWS].astype(bool), *triangle[:2]
    x, y = (filled(units[name], stands) for name in ("x", "y"))
    flat = (part.reshape(-1, *part.shape[2:]) for part in (x, y))
    found = _at_rows(model, nodes, mean, root, at, *flat)
    x = found[0].reshape(x.shape)
    slope, bend, steepest, sharpest = (
        None if part is None else jnp.where(stands, part.reshape(stands.shape), 0.0)
        for part in found[1:]
    )
    assert bend is not None  # only `steepest` may be absent
    assert sharpest is not None
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    gradient = product("br,brd->bd", slope, x)
    curvature = (
        product("brd,bre->bde", bend[:, :, None] * x, x)[:, rows, columns] * triangle[2][None, :]
    )
    if steepest is not None and math.isfinite(clip_norm):
        square = (x**2).sum(axis=2)
        first = (steepest * jnp.sqrt(square)).sum(axis=1)
        second = triangle[2].min() * (sharpest * square).sum(axis=1)
        kept = _kept(first**2 + second**2, clip_norm)[:, None]
        gradient, curvature = kept * gradient, kept * curvature
    return {"gradient": gradient, "curvature": curvature}


def narrow_and_kept(
    model: PlausibleOutcomes | None,
    mean: Any,
    root: Any,
    record: Any,
    vector: Callable[..., tuple[Any, Any]],
    clip_norm: float,
) -> tuple[Any, Any]:
    """Returns by how much to shrink draws around the mean, and the weight, of ONE record or unit.

    Args:
      model: of one row; None if it knows neither its predictors nor its outcomes.
      vector: (model, θ [S, D], record) → gradient, and c·svec of the curvature.
    """
    one = jnp.ones((), mean.dtype)
    if model is None:
        return one, one
    stands = record.get(ROWS)
    units = {name: part[None] for name, part in record.items()} if stands is None else record
    stands = jnp.ones(1, bool) if stands is None else stands.astype(bool)
    parts = {name: filled(part, stands) for name, part in units.items() if name not in (ROWS, IDS)}

    def of_row(row: Any) -> tuple[Any, Any, Any]:
        spread = jnp.sqrt(((model.designs(row) @ root) ** 2).sum(axis=1)).max()
        others = model.plausible(mean, row)
        if others is None or not math.isfinite(clip_norm):
            return spread, jnp.zeros_like(spread), jnp.zeros_like(spread)
        lengths = jax.vmap(lambda other: _lengths(*vector(model, mean[None], other)))(others)
        return spread, lengths[0].max(), lengths[1].max()

    spread, gradient, curvature = (
        jnp.where(stands, part, jnp.zeros_like(part)) for part in jax.vmap(of_row)(parts)
    )
    narrow = jnp.minimum(1.0, _WIDEST / jnp.maximum(spread.max(), _TINY))
    if not math.isfinite(clip_norm):
        return narrow, one
    return narrow, _kept(gradient.sum() ** 2 + curvature.sum() ** 2, clip_norm)


def _lengths(*parts: Any) -> tuple[Any, ...]:
    return tuple(jnp.sqrt((part**2).sum()) for part in parts)


def _kept(longest_square: Any, clip_norm: float) -> Any:
    """Returns the weights with which vectors that may be so long stay within the clip norm."""
    return jnp.minimum(1.0, _NEARLY * clip_norm / jnp.maximum(jnp.sqrt(longest_square), _TINY))


def _at_rows(
    model: Any, nodes: int, mean: Any, root: Any, at: Any, x: Any, y: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Returns x̃ [B, D], and of each row [B]: slope, bend, and both at the most extreme plausible outcome.

    The steepest slope is None where the model has none.
    """
    exact, shares = np.polynomial.hermite_e.hermegauss(nodes)
    points, weights = exact.astype(np.float32), (shares / shares.sum()).astype(np.float32)
    # HIGHEST: on a GPU the default would round to TF32.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    spread = jnp.minimum(jnp.sqrt((product(x, root) ** 2).sum(axis=1)), _WIDEST)
    predictor = product(x, mean)[:, None] + spread[:, None] * points[None, :]
    # Row by row, so that an outcome from outside of fedvi cannot look at another record.
    _, slope, bend = jax.vmap(model.derivatives)(predictor, y[:, None])
    centre, scale, constant, spread, level = at
    plan = getattr(model, "surveyed", None)
    larger = jnp.where(spread > 0.0, spread, 1.0)
    if plan is not None and plan.kind == "number":
        assumed = (model.noise_scale / larger) ** 2
        narrower = jnp.where(spread > 0.0, assumed, 1.0)
        slope, bend = narrower * slope, narrower * bend
    elif plan is not None:
        # An exposure may be known only with the outcome, as a follow-up that ends at the event is. A weight
        # may not depend on it.
        y = model.at_offset(y, level)
    x = (x - x[:, constant][:, None] * centre[None, :]) * scale[None, :]
    steepest = jax.vmap(model.steepest)(predictor, y[:, None])
    reached = None if steepest is None else product(steepest, weights)
    if reached is not None and plan is not None:
        reached = jnp.maximum(larger, 1.0) * reached
    sharpest = jax.vmap(model.sharpest)(predictor, y[:, None])
    bend = -product(bend, weights)
    if sharpest is None and plan is not None and plan.kind == "count":
        sharpest = -jax.vmap(model.derivatives)(predictor, y[:, None])[2]
    sharp = bend if sharpest is None else product(sharpest, weights)
    return x, product(slope, weights), bend, reached, sharp
