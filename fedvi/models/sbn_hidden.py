"""The E step of a sigmoid belief network: infers the hidden units given the visible ones.

Records are processed one at a time by the same program. In products over several rows the last bits of a
row depend on its position, and a record must not change the results of others. Loops run a fixed number
of times, and nothing is kept from one record to the next.

A visible unit's weights and bias (w_j, c_j) multiply ẑ = (z, 1), K + 1 numbers.
"""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["by_diagonal", "tilted_mean", "with_one"]

# On a GPU the default would round factors to TF32.
_HIGHEST = jax.lax.Precision.HIGHEST


def tilted_mean(square: Any) -> Any:
    """Returns E[ω] = tanh(c/2)/(2c) of ω ~ PG(1, c), from c² ≥ 0 of any shape."""
    near = square < 1e-4
    tilt = jnp.sqrt(jnp.where(near, jnp.ones_like(square), square))
    # The series at 0, whose next term is c⁴/480.
    return jnp.where(near, 0.25 - square / 48.0, jnp.tanh(0.5 * tilt) / (2.0 * tilt))


def with_one(z: Any) -> Any:
    """Returns (z, 1), along the last axis."""
    return jnp.concatenate([z, jnp.ones_like(z[..., :1])], axis=-1)


def by_diagonal(messages: Any, centred: Any, sweeps: int) -> tuple[Any, Any, Any]:
    """Returns E[z] [B, K], E[ω] [B, P] and y − ½ − E[ω]·E[ψ] [B, P], where all weights are independent.

    ψ_j = w_jᵀz + c_j. Each sweep updates E[ω] = g(√E[ψ²]) and then, unit by unit, each q(z_k) given the
    others: z_k = σ(b_k + Σ_j w_jk(y_j − ½ − E[ω_j](E[ψ_j] − w_jk z_k)) − ½E[ω_j]E[w_jk²]).

    Args:
      messages: ``mean`` and ``square``, E[w] and E[w²], [K + 1, P] each; ``hidden``, E[b], [K].
      centred: y − ½, [B, P].
      sweeps: how many sweeps.

    Source: docs/proofs/updates.md §8; Gan et al. (2015), AISTATS.
    """
    mean, square, hidden = (messages[name] for name in ("mean", "square", "hidden"))
    count, own = hidden.shape[0], mean**2

    def one(centred: Any) -> tuple[Any, Any, Any]:
        def augmented(z: Any) -> tuple[Any, Any]:
            wide = with_one(z)
            location = _product(wide, mean)
            # E[ẑ_k²] = ẑ_k for units that are 0 or 1.
            spread = _product(wide, square) - _product(wide**2, own)
            bend = tilted_mean(location**2 + jnp.maximum(spread, 0.0))
            return bend, centred - bend * location

        def sweep(_: Any, z: Any) -> Any:
            bend, slope = augmented(z)
            itself, half = _product(own[:count], bend), 0.5 * _product(square[:count], bend)

            def renew(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
                z, slope = state
                along = _product(mean[k], slope) + z[k] * itself[k] - half[k]
                moved = jax.nn.sigmoid(hidden[k] + along)
                return z.at[k].set(moved), slope - (moved - z[k]) * (bend * mean[k])

            return jax.lax.fori_loop(0, count, renew, (z, slope))[0]

        z = jax.lax.fori_loop(0, sweeps, sweep, jax.nn.sigmoid(hidden))
        return (z, *augmented(z))

    found: tuple[Any, Any, Any] = jax.lax.map(one, centred)
    return found


def _product(left: Any, right: Any) -> Any:
    return jnp.matmul(left, right, precision=_HIGHEST)
