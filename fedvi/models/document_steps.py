"""The variational steps of a topic model on documents, without arrays of words by topics."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = [
    "extrapolated",
    "inner_products",
    "known_words",
    "lengths_of",
    "outer_products",
    "relative_weights",
    "sound_documents",
    "topic_weights",
]

# The least weight of a topic, in units of the largest: the product of two is a normal float32.
_FLOOR = 1e-18
# The longest extrapolation, in units of a step.
_FARTHEST = 64.0


def relative_weights(logs: np.ndarray) -> np.ndarray:
    """Returns exp(logs − the largest of each word), float32 [V, K], for expected logs [K, V]."""
    found = np.maximum(np.exp(logs - logs.max(axis=0)), _FLOOR)
    return np.ascontiguousarray(found.T, dtype=np.float32)


def sound_documents(records: Mapping[str, Any], vocabulary: int) -> tuple[Any, Any]:
    """Returns words and counts; an invalid document gets NaN as its first count, and no words.

    Norms rely on distinct words, so this is checked here for each document.
    """
    import jax.numpy as jnp

    given, counts = records["words"], records["counts"]
    words, counts = given.astype(jnp.int32), counts.astype(jnp.float32)
    # Denormal numbers may or may not be flushed to 0, depending on the processor's settings.
    counts = jnp.where(jnp.abs(counts) < 1e-30, jnp.zeros_like(counts), counts)
    stands = counts != 0.0
    number = jnp.isfinite(counts) & (counts >= 0.0)
    inside = (words >= 0) & (words < vocabulary) & (words.astype(given.dtype) == given)
    known = ~stands | inside
    rising = ~stands[:, 1:] | (stands[:, :-1] & (words[:, 1:] > words[:, :-1]))
    good = (number & known).all(axis=1) & rising.all(axis=1)
    counts = jnp.where(good[:, None], counts, jnp.zeros_like(counts))
    first = jnp.where(good, counts[:, 0], jnp.full_like(counts[:, 0], jnp.nan))
    words = jnp.where(stands & good[:, None], words, jnp.zeros_like(words))
    return words, counts.at[:, 0].set(first)


def known_words(records: Mapping[str, Any], rates: Any) -> Any:
    """Returns the words, with 0 where a document has none."""
    import jax.numpy as jnp

    words = records["words"].astype(jnp.int32)
    return jnp.where(rates != 0.0, words, jnp.zeros_like(words))


def lengths_of(counts: Any) -> Any:
    """Returns the last place of each document that is not 0, counted from 1: int32 [B]."""
    import jax.numpy as jnp

    places = jnp.arange(1, counts.shape[1] + 1, dtype=jnp.int32)[None, :]
    return jnp.where(counts != 0.0, places, jnp.zeros_like(places)).max(axis=1)


def topic_weights(gamma: Any) -> Any:
    """Returns exp ψ(γ_k) in units of each document's largest, float32, with relative error 1e-6.

    ψ(γ) = ψ(y) − Σ_{i<6} 1/(γ + i) with y = γ + 6, and with z = y − ½ it is
    exp ψ(y) = z + 1/(24 z) − 37/(5760 z³) + O(z⁻⁵): one logarithm and one exponential.
    """
    import jax.numpy as jnp

    shift = sum(1.0 / (gamma + float(i)) for i in range(6))
    z = gamma + 5.5
    inverse = 1.0 / z
    logs = jnp.log(z + inverse * (1.0 / 24.0 - inverse * inverse * (37.0 / 5760.0))) - shift
    return jnp.maximum(jnp.exp(logs - logs.max(axis=1, keepdims=True)), _FLOOR)


def extrapolated(first: Any, second: Any, third: Any, least: Any) -> Any:
    """Returns the extrapolation of three successive values of γ, [R, K], each at least ``least``.

    With r = γ₁ − γ₀ and v = (γ₂ − γ₁) − r it is γ₀ + 2ar + a²v, a = max(1, ‖r‖ / ‖v‖), for each document.
    At a = 1 that is γ₂. Where it is not finite, it is replaced by γ₂.

    Source: Varadhan and Roland (2008), Scandinavian Journal of Statistics 35, scheme SqS3.
    """
    import jax.numpy as jnp

    moved = second - first
    bend = (third - second) - moved
    square = (bend * bend).sum(axis=1, keepdims=True)
    ratio = (moved * moved).sum(axis=1, keepdims=True) / jnp.maximum(square, 1e-30)
    length = jnp.clip(jnp.sqrt(ratio), 1.0, _FARTHEST)
    found = jnp.maximum(first + length * (2.0 * moved + length * bend), least)
    return jnp.where(jnp.isfinite(found).all(axis=1, keepdims=True), found, third)


def inner_products(taken: Any, weights: Any) -> Any:
    """Returns Σ_k taken_rlk · weights_rk, [R, L]."""
    import jax
    import jax.numpy as jnp

    highest = jax.lax.Precision.HIGHEST  # on a GPU the default would round to TF32
    return jnp.einsum("rlk,rk->rl", taken, weights, precision=highest)


def outer_products(taken: Any, rates: Any) -> Any:
    """Returns Σ_l taken_rlk · rates_rl, [R, K]."""
    import jax
    import jax.numpy as jnp

    return jnp.einsum("rlk,rl->rk", taken, rates, precision=jax.lax.Precision.HIGHEST)
