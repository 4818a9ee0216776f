"""Reports what one run gives away about records made to be found; never a verdict.

m canaries, each put into the shard or left out by a coin of its own, with gradients along axes of
their own on a model of m coordinates. After the run the auditor guesses the coins of the r canaries
that show most and least. An (ε, δ)-DP release under add/remove lets v of r guesses be right with
probability at most

    f(v) + 2mδ · max_{1≤i≤v} (f(v−i) − f(v)) / i,    f(v) = P[Binomial(r, e^ε/(1+e^ε)) ≥ v],

so that the ε at which this falls to the error is a lower bound with that confidence.

Source: Steinke, Nasr and Jagielski (2023), arXiv:2305.08846, Theorem 5.2 and Algorithm 1.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from fedvi import errors
from fedvi.audit.findings import Finding
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.bounded import clipped_sum
from fedvi.privacy.release import decoded, release
from fedvi.typing import Key

__all__ = ["canaries", "epsilon_lower", "guess_probability"]

_CONFIDENCE = 0.95
_SHARES = (0.05, 0.2, 1.0)
"""Shares of the canaries that are guessed; each takes its part of the error."""


def canaries(
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    steps: int,
    slots: int,
    delta: float,
    key: Key,
    count: int = 1000,
) -> Finding:
    """Runs ``steps`` releases once with orthogonal canaries, and bounds ε from below (95 %).

    The audit model is wide: one coordinate a canary, whatever the study's model is. The release
    code, sampler and noise are the study's.

    Args:
      sampler, mechanism, clip_norm: the study's.
      steps: how many releases are observed.
      slots: of a shard; at most so many canaries.
      delta: of the claim.
      key: for the audit's coins and the run.
      count: m, the wanted number of canaries.
    """
    m = min(count, slots)
    if m < 2:
        raise errors.PrivacyError(f"{m} canaries, expected at least 2", "declare more records")
    coin_key, run_key = jax.random.split(key)
    coins = jax.random.bernoulli(coin_key, 0.5, (m,))
    valid = jnp.zeros((slots,), bool).at[:m].set(coins)

    @jax.jit
    def observe(key: Key, valid: jax.Array) -> jax.Array:
        def step(seen: jax.Array, step_key: Key) -> tuple[jax.Array, None]:
            sampling_key, noise_key = jax.random.split(step_key)
            batch = sampler.draw(sampling_key, valid)
            # Ten clip norms long, so that the clip has work to do.
            rows = jax.nn.one_hot(batch.indices, m, dtype=jnp.float32) * jnp.float32(
                10.0 * clip_norm
            )
            bounded = clipped_sum(rows, clip_norm, batch, mechanism)
            noised = decoded(release(noise_key, bounded, mechanism))
            return seen + noised.value / jnp.float32(clip_norm), None

        seen, _ = jax.lax.scan(step, jnp.zeros((m,), jnp.float32), jax.random.split(key, steps))
        return seen

    order = np.argsort(np.asarray(observe(run_key, valid)))
    inside = np.asarray(coins)
    best, right, guessed = 0.0, 0, 0
    for share in _SHARES:
        half = max(1, int(share * m) // 2)
        hits = int(inside[order[-half:]].sum() + (~inside[order[:half]]).sum())
        error = (1.0 - _CONFIDENCE) / len(_SHARES)
        found = epsilon_lower(m, 2 * half, hits, delta, error)
        if found >= best:
            best, right, guessed = found, hits, 2 * half
    return Finding(
        "canaries",
        "one-run audit",
        None,
        f"ε ≥ {best:.3g} (add/remove, δ {delta:g}, 95 %): {right} of {guessed} guesses right, "
        f"{m} canaries, {steps} releases",
        "a lower bound from one run of the mechanism; far below the claim also where the claim is "
        "tight, so that it judges nothing",
        {
            "epsilon_lower": best,
            "delta": delta,
            "right": right,
            "guesses": guessed,
            "canaries": m,
            "steps": steps,
        },
    )


def guess_probability(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Returns the bound on P[at least v of r guesses are right] for m canaries; see the file's head.

    >>> round(guess_probability(100, 10, 10, 0.0, 0.0) * 2**10, 6)
    1.0
    """
    tail = scipy.stats.binom.sf(np.arange(v, -1, -1) - 1, r, 1.0 / (1.0 + math.exp(-epsilon)))
    steepest = float(((tail[1:] - tail[0]) / np.arange(1, v + 1)).max()) if v else 0.0
    return min(1.0, float(tail[0]) + 2.0 * m * delta * steepest)


def epsilon_lower(m: int, r: int, v: int, delta: float, error: float) -> float:
    """Returns the largest ε that v right guesses of r refute at this error; 0 if none."""
    low, high = 0.0, 30.0
    if guess_probability(m, r, v, low, delta) > error:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        if guess_probability(m, r, v, middle, delta) > error:
            high = middle
        else:
            low = middle
    return low
