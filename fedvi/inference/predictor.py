"""Computes per-record gradients of GLMs through the linear predictor, which is faster than autodiff."""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp

from fedvi.inference import per_record, whitened
from fedvi.models.capabilities import Regression

__all__ = ["gradients", "has_predictor"]


def has_predictor(model: Any) -> TypeGuard[Regression]:
    """Whether a record of the model is one row with one linear predictor xᵀθ, as `gradients` requires."""
    # Several rows a record, as in a survival model, add up to no multiple of one x.
    return isinstance(model, Regression) and model.layout is None


def gradients(
    model: Regression, guide: Any, at: whitened.Frame, noise: Any, rows: Any
) -> per_record.Records:
    """Returns each record's gradient of the mean of log p(y | xᵀθ_s) over draws θ_s = c + L B ε_s.

    With the slopes g_s = ∂ log p / ∂(xᵀθ_s) of S draws,

        ∂/∂c = x Σ_s g_s / S,      ∂/∂B = (Lᵀ x) (Σ_s g_s ε_s / S)ᵀ,

    restricted to the lower triangle; the diagonal, kept as a logarithm, gets the factor B_ii. So a
    record needs one outer product, where automatic differentiation forms one for each draw. Each row is
    computed from its own record alone, in batches of whole groups of rows (``privacy.base.filled``).

    Args:
      model: one for which `has_predictor` is true.
      guide: (c [D], raw B [D] or [D, D]), see ``whitened``.
      at: the frame, with L.
      noise: ε, [S, D].
      rows: ``x`` [R, D] and ``y`` [R, …].

    Returns:
      (∂/∂c [R, D], ∂/∂raw [R, D] or [R, D, D]); the [R, D, D] array is not formed.

    Source: the chain rule; the reparameterised objective of docs/proofs/updates.md §5.
    """
    centre, raw = guide
    draws = whitened.draw((jnp.zeros_like(centre), raw), noise)
    thetas = whitened.to_theta(at._replace(mean=centre), draws)

    def product(left: Any, right: Any) -> Any:
        # HIGHEST: on a GPU the default would round to TF32.
        return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)

    x = rows["x"]
    # Row by row, so that an outcome from outside of fedvi cannot look at another record.
    value, slope, _ = jax.vmap(model.derivatives)(product(x, thetas.T), rows["y"][:, None])
    losses, slope = -value.mean(axis=1), slope / noise.shape[0]
    told = product(slope, noise)
    location = slope.sum(axis=1)[:, None] * x
    if raw.ndim == 1:
        return per_record.of_rows(losses, location, x * (at.root * jnp.exp(raw))[None, :] * told)
    inputs = product(x, at.root)
    diagonal = inputs * told * jnp.exp(jnp.diagonal(raw))[None, :]
    return per_record.of_rows(losses, location, per_record.triangles(inputs, told, diagonal))
