"""Runs the shipped sampler, clip and noise many times on worst-case pairs of inputs.

Trials may draw from any generator of JAX: they test the arithmetic of the shipped sampler, clip and noise,
not the generator.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.bounded import clipped_sum
from fedvi.privacy.release import decoded, release
from fedvi.typing import Key

__all__ = [
    "Case",
    "Mixture",
    "Side",
    "Trials",
    "in_sums",
    "run",
    "shipped",
    "worst_pairs",
]

Trials = Callable[[Key, Any, Any], Any]
"""(key, contributions [slots, d], valid [slots]) → one trial's noised totals, [steps].

Each is the total's projection on the direction of ``worst_pairs``, in clip norms.
"""

_BEYOND = 10.0
"""Norm of the contributions, in clip norms, so that the clip is exercised."""

_WIDTH = 3
_CHUNK = 2048


class Side(NamedTuple):
    """One of two neighbouring shards: contributions [slots, d], and which slots are filled."""

    contributions: np.ndarray
    valid: np.ndarray


class Mixture(NamedTuple):
    """The claimed law of one total: Σ wᵢ N(mᵢ, σ²), in clip norms, along the audit's direction."""

    weights: tuple[float, ...]
    means: tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A pair of shards, and the laws by which outcomes are scored.

    Any function of the outcome is a valid score; a poor one only costs power.
    """

    name: str
    left: Side
    right: Side
    left_law: Mixture
    right_law: Mixture

    def score(self, outcomes: np.ndarray, sigma: float) -> np.ndarray:
        """Returns Σ_t log p(x_t)/p′(x_t) for outcomes [trials, steps]."""
        return np.asarray(
            (_log_density(outcomes, self.left_law, sigma))
            - _log_density(outcomes, self.right_law, sigma)
        ).sum(axis=1)


def worst_pairs(step: events.Event, relation: events.Relation, slots: int) -> list[Case]:
    """Returns the worst-case pairs for a release of this price, and pairs that expose a wrong price.

    ``nothing else``: all other records contribute zero. The changed record contributes +C and, in the other
    shard, nothing (add_remove) or −C (substitute). ``the rest opposed``: all others contribute −C, so that
    a batch of fixed size reveals which record it left out (docs/proofs/fixed_size.md).

    Args:
      step: the event of one noised total.
      slots: the number of slots of a shard; all are filled.

    Raises:
      UnsupportedEvent: the event is not one noised sum, sampled or not.
    """
    up = np.full(_WIDTH, _BEYOND / math.sqrt(_WIDTH))
    others = np.zeros((slots, _WIDTH))
    changed = slots // 2
    full = np.ones(slots, bool)

    def side(rest: np.ndarray, sign: float) -> Side:
        contributions = rest.copy()
        contributions[changed] = sign * up
        valid = full.copy()
        valid[changed] = sign != 0.0
        return Side(contributions, valid)

    added = relation == "add_remove"
    other_sign = 0.0 if added else -1.0
    match step:
        case events.Gaussian() | events.DiscreteGaussian():
            rate, batch = 1.0, slots
        case events.PoissonSampled(rate, events.Gaussian() | events.DiscreteGaussian()):
            batch = round(rate * slots)
        case events.WithoutReplacement(batch, _, events.Gaussian() | events.DiscreteGaussian()):
            rate = step.rate
        case _:
            raise errors.UnsupportedEvent(
                f"the profile audit has no worst-case pair for {step}",
                "it knows one Gaussian sum of all records, of a Poisson batch, or of a fixed-size one",
            )
    inside = (1.0 - rate, rate)
    quiet = Case(
        "nothing else",
        side(others, 1.0),
        side(others, other_sign),
        Mixture(inside, (0.0, 1.0)),
        Mixture(inside, (0.0, other_sign)),
    )
    if isinstance(step, events.Gaussian | events.DiscreteGaussian):
        return [quiet]
    opposed = Case(
        "the rest opposed",
        side(np.broadcast_to(-up, others.shape), 1.0),
        side(np.broadcast_to(-up, others.shape), other_sign),
        Mixture(inside, (-float(batch), 2.0 - batch)),
        Mixture((1.0,), (-float(batch),)),
    )
    return [opposed] if isinstance(step, events.WithoutReplacement) else [quiet, opposed]


def shipped(sampler: Sampler, mechanism: Mechanism, clip_norm: float, steps: int) -> Trials:
    """Returns a trial of the shipped code: draw, clip and sum, noise, ``steps`` times."""
    return functools.partial(_trial, sampler, mechanism, clip_norm, steps)


def in_sums(
    sampler: Sampler, mechanism: Mechanism, clip_norm: float, steps: int, honest: int
) -> Trials:
    """Returns a trial of sums over clients: one with the shard's records, the others without records.

    Args:
      sampler, mechanism, clip_norm, steps: of each client, as in ``shipped``.
      honest: how many clients' noise is in a sum.
    """
    one = functools.partial(_trial, sampler, mechanism, clip_norm, steps)

    def trial(key: Key, contributions: Any, valid: Any) -> Any:
        keys = jax.random.split(key, honest)
        changed = one(keys[0], contributions, valid)
        nobody = jnp.zeros_like(valid)
        others = jax.vmap(lambda key: one(key, contributions, nobody))(keys[1:])
        return changed + others.sum(axis=0)

    return trial


def run(trials: Trials, side: Side, key: Key, count: int) -> np.ndarray:
    """Returns the outcomes of independent trials on one shard: float64 [count, steps]."""
    many = _compiled(trials)
    contributions = jnp.asarray(side.contributions, jnp.float32)
    valid = jnp.asarray(side.valid)
    parts, done = [], 0
    chunk = min(count, _CHUNK)
    while done < count:
        keys = jax.random.split(jax.random.fold_in(key, done), chunk)
        parts.append(np.asarray(many(keys, contributions, valid), np.float64))
        done += chunk
    return np.concatenate(parts)[:count]


def _trial(
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    steps: int,
    key: Key,
    contributions: Any,
    valid: Any,
) -> Any:
    direction = jnp.full((_WIDTH,), 1.0 / (math.sqrt(_WIDTH) * clip_norm), jnp.float32)

    def step(nothing: Any, step_key: Any) -> Any:
        sampling_key, noise_key = jax.random.split(step_key)
        batch = sampler.draw(sampling_key, valid)
        rows = contributions[batch.indices] * jnp.float32(clip_norm)
        bounded = clipped_sum(rows, clip_norm, batch, mechanism)
        noised = decoded(release(noise_key, bounded, mechanism))
        return nothing, (noised.value * direction).sum()

    _, outcomes = jax.lax.scan(step, (), jax.random.split(key, steps))
    return outcomes


@functools.lru_cache(maxsize=16)
def _compiled(trials: Trials) -> Any:
    return jax.jit(jax.vmap(trials, in_axes=(0, None, None)))


def _log_density(x: np.ndarray, law: Mixture, sigma: float) -> np.ndarray:
    """Returns log Σ w·exp(−(x − m)²/2σ²) over components, without the constant that cancels in a ratio."""
    parts = [
        math.log(weight) - (x - mean) ** 2 / (2.0 * sigma**2)
        for weight, mean in zip(law.weights, law.means, strict=True)
        if weight > 0.0
    ]
    return np.asarray(scipy.special.logsumexp(np.stack(parts), axis=0))
