"""Tests the sampler by itself, over thousands of draws, against the price that it claims."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from fedvi.audit.findings import Finding, judged
from fedvi.privacy import events
from fedvi.privacy.base import Sampler
from fedvi.typing import Key

__all__ = ["check_sampler"]

_SIMULATED = 20_000
"""Number of simulated shards: the smallest p-value above 0 is 1 in 10,000."""

_MANY = 50.0
"""Variance from which a binomial is treated as normal: a p of 1e-4 is then off by a tenth."""


def check_sampler(sampler: Sampler, step: events.Event, slots: int, key: Key) -> list[Finding]:
    """Tests a sampler's draws against its price: inclusion and the law of batch sizes.

    Each check fails by chance once in ten thousand.

    Args:
      step: the event at which one draw is charged.
      slots: the number of slots of a shard; all are filled.
    """
    draws = int(np.clip(2_000_000 // max(slots, sampler.capacity), 50, 4000))
    indices, mask = _draws(sampler, slots, jax.random.split(key, draws))
    sizes = mask.sum(axis=1)
    chosen = indices[mask]
    rate, poisson = 1.0, False
    match step:
        case events.PoissonSampled(rate):
            poisson = True
        case events.WithoutReplacement():
            rate = step.rate
    findings = []
    total, expected = int(sizes.sum()), rate * slots * draws
    law = scipy.stats.binom(slots * draws, rate)
    chance = 1.0 if total == expected else 2.0 * float(min(law.cdf(total), law.sf(total - 1)))
    twice = any(
        len(np.unique(row[kept])) != kept.sum() for row, kept in zip(indices, mask, strict=True)
    )
    findings.append(
        judged(
            "sampler",
            "sampling rate",
            chance >= 1e-4 and not twice,
            f"{total} records in {draws} batches, priced {expected:.6g}",
            "records enter batches at the priced rate, none twice",
            "a record is in one batch twice"
            if twice
            else "records enter batches at another rate than the priced one",
            {"p_value": min(chance, 1.0)},
        )
    )
    if rate == 1.0:
        return findings
    counts = np.bincount(chosen, minlength=slots)
    chance = _spread_chance(counts, draws, rate, poisson)
    passed = chance >= 1e-4
    findings.append(
        judged(
            "sampler",
            "all slots alike",
            passed,
            f"a slot is in {counts.min()} to {counts.max()} of {draws} batches",
            "no slot is drawn more often than another",
            "some slots are drawn more often, or more evenly, than independent batches would",
            {"p_value": min(chance, 1.0)},
        )
    )
    if poisson:
        variance = float(sizes.var(ddof=1)) / (slots * rate * (1.0 - rate))
        # The variance of a binomial's sample variance, from its fourth cumulant.
        excess = (1.0 - 6.0 * rate * (1.0 - rate)) / (slots * rate * (1.0 - rate))
        deviation = math.sqrt((2.0 + excess) / (draws - 1))
        passed = abs(variance - 1.0) <= 4.5 * deviation
        findings.append(
            judged(
                "sampler",
                "law of batch sizes",
                passed,
                f"variance {variance:.3g} × binomial; sizes {sizes.min()} to {sizes.max()}",
                "batch sizes vary as Poisson sampling says",
                "batch sizes do not vary as in Poisson sampling, whose price is charged: "
                "a fixed-size batch costs more",
                {"variance_ratio": variance},
            )
        )
    else:
        passed = bool((sizes == sizes[0]).all())
        findings.append(
            judged(
                "sampler",
                "law of batch sizes",
                passed,
                f"sizes {sizes.min()} to {sizes.max()}",
                "every batch takes the same number of slots",
                "batch sizes vary, but are priced as fixed",
            )
        )
    return findings


def _draws(sampler: Sampler, slots: int, keys: Any) -> tuple[np.ndarray, np.ndarray]:
    valid = jnp.ones((slots,), bool)

    @jax.jit
    def many(keys: Any) -> Any:
        def one(key: Key) -> Any:
            batch = sampler.draw(key, valid)
            return batch.indices, batch.mask

        return jax.lax.map(one, keys)

    indices, mask = many(keys)
    return np.asarray(indices), np.asarray(mask)


def _spread_chance(counts: np.ndarray, draws: int, rate: float, poisson: bool) -> float:
    """Two-sided p-value of Σ (kᵢ − nq)² over slots, where slot i is in kᵢ of n batches.

    Under Poisson sampling the kᵢ are independent binomials. If nq is small, their squares vary far more
    than χ², so the law is simulated from the number of slots with each value of k. In batches of fixed
    size the terms of one draw cancel, and χ² holds at any rate.
    """
    mean, variance = rate * draws, draws * rate * (1.0 - rate)
    spread = float(((counts - mean) ** 2).sum())
    if not poisson or variance >= _MANY:
        law = scipy.stats.chi2(counts.size)
        return 2.0 * float(min(law.cdf(spread / variance), law.sf(spread / variance)))
    times = np.arange(int(scipy.stats.binom.isf(1e-14, draws, rate)) + 1)
    chances = scipy.stats.binom.pmf(times, draws, rate)
    generator = np.random.default_rng(0)
    found = generator.multinomial(counts.size, chances / chances.sum(), _SIMULATED)
    simulated = found @ (times - mean) ** 2
    return 2.0 * float(min((simulated <= spread).mean(), (simulated >= spread).mean()))
