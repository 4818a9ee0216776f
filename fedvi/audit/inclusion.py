"""Tests whether records enter batches as often as the price assumes.

A shard holds a single record, or copies of it in a group of slots. A total then differs from that of an
empty shard exactly if a slot of the group is in the batch, however the solver draws its batches.
"""

import functools
from collections.abc import Sequence

import numpy as np
import scipy.special
import scipy.stats

from fedvi.audit.charges import Charge
from fedvi.audit.findings import Finding, judged, not_checked
from fedvi.audit.noise import FALSE_ALARM

__all__ = ["check_inclusion", "check_sampling_keys"]

_DRAWS = 20_000
"""Number of simulations of a sampler's law; a check fails by chance twice in this many."""


def check_inclusion(
    inside: np.ndarray, groups: Sequence[np.ndarray], slots: int, charges: Sequence[Charge]
) -> list[Finding]:
    """Compares the batches that each group of slots was in with the charged rates.

    The checks of rate, independence and sizes, whose laws are simulated, fail by chance about once in ten
    thousand each; those of favoured slots and repeated batches at most once in a million.

    Args:
      inside: bool [groups, releases].
      groups: the slots of each group, disjoint.
      slots: of the whole shard.
      charges: of each release.
    """
    covered = sum(len(group) for group in groups)
    where = f" ({covered} of {slots} slots tried)"
    if not inside.any():
        return [
            not_checked(
                "replay",
                "records in batches",
                "the record that was tried shows in no total: nothing is known of the batches",
            )
        ]
    sizes = np.array([len(group) for group in groups])
    # Each law of batches is tested separately: a study may mix several.
    laws = list(dict.fromkeys(charge.law for charge in charges))
    findings = []
    for law in laws:
        at = np.array([charge.law == law for charge in charges])
        charge = next(charge for charge in charges if charge.law == law)
        found = _one_law(inside[:, at], sizes, charge, where)
        suffix = f", rate {charge.rate:g}" if len(laws) > 1 else ""
        findings += [finding._replace(check=finding.check + suffix) for finding in found]
    if any(charge.rate < 1.0 for charge in charges):
        findings.append(_repeated(inside, sizes, charges))
    return findings


def check_sampling_keys(draws: Sequence[bytes] | None, noise: Sequence[bytes]) -> Finding:
    """Tests that no two draws of batches share a key, and that none shares a key with noise.

    Args:
      draws: the key of every draw of a batch; None if the sampler was not recorded.
      noise: the key of every release.
    """
    if not draws:
        return not_checked(
            "replay",
            "sampling keys",
            "the solver did not draw its batches from the study's sampler: their keys are not seen"
            if draws is not None
            else "the sampler was not watched",
        )
    distinct, shared = len(set(draws)), len(set(draws) & set(noise))
    passed = distinct == len(draws) and not shared
    return judged(
        "replay",
        "sampling keys",
        passed,
        f"{distinct} keys for {len(draws)} batches, {shared} of them also of noise",
        "no two batches, of any step, visit or client, are drawn from one key",
        "batches are drawn from one key, so that they are the same, or from a key of noise",
        {"keys": distinct, "batches": len(draws), "shared": shared},
    )


def _one_law(inside: np.ndarray, sizes: np.ndarray, charge: Charge, where: str) -> list[Finding]:
    steps = inside.shape[1]
    chances = np.array([charge.any_of(int(size)) for size in sizes])
    count, expected = int(inside.sum()), float(chances.sum()) * steps
    if charge.rate == 1.0:
        # Fewer inclusions than expected mean a contribution of zero; more are impossible.
        return [_rate(True, count, inside.size, expected, where, 1.0)]
    generator = np.random.default_rng(0)
    simulated = generator.binomial(steps, chances, (_DRAWS, len(sizes)))
    chance = _outside(float(count), simulated.sum(axis=1))
    findings = [_rate(chance > 0.0, count, inside.size, expected, where, chance)]
    rows = inside.sum(axis=1)
    # Divide by each group's own variance, so that groups of all sizes get their proper weight.
    scale = np.maximum(steps * chances * (1.0 - chances), 1e-12)
    chance = _outside(
        float(((rows - steps * chances) ** 2 / scale).sum()),
        ((simulated - steps * chances) ** 2 / scale).sum(axis=1),
    )
    findings.append(
        _judged(
            "batches are independent",
            chance,
            f"a group of slots is in {rows.min()} to {rows.max()} of {steps} batches",
            "how often a record is drawn varies as independent batches do",
            "how often a record is drawn varies otherwise than in independent batches: "
            "shuffled epochs do that",
        )
    )
    findings.append(_favoured(rows, steps, chances))
    if charge.poisson and len(sizes) > 1:
        columns = inside.sum(axis=0)
        groups = np.arange(len(sizes) + 1)
        law = functools.reduce(np.convolve, [np.array([1.0 - c, c]) for c in chances])
        # Only the number of releases with each count of groups matters.
        drawn = generator.multinomial(steps, law / law.sum(), _DRAWS)
        away = (groups - float(chances.sum())) ** 2
        chance = _outside(float(away[columns].sum()), drawn @ away)
        findings.append(
            _judged(
                "batch sizes are random",
                chance,
                f"{columns.min()} to {columns.max()} of {len(sizes)} groups of slots in a batch",
                "batch sizes vary as Poisson batches do",
                "batch sizes do not vary as Poisson batches do, whose price is charged",
            )
        )
    return findings


def _favoured(rows: np.ndarray, steps: int, chances: np.ndarray) -> Finding:
    """Tests whether any group is in too many or too few batches, by exact binomial tests."""
    law = scipy.stats.binom(steps, chances)
    tails = np.minimum(law.cdf(rows), law.sf(rows - 1))
    chance = min(1.0, 2.0 * len(rows) * float(tails.min()))
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "no slot is favoured",
        passed,
        f"corrected p {chance:.2g} over {len(rows)} groups of slots",
        "no part of the shard is drawn oftener than is priced",
        "some slots are drawn oftener, or less often, than is priced",
        {"p_value": chance},
    )


def _rate(
    passed: bool, count: int, tried: int, expected: float, where: str, chance: float
) -> Finding:
    return judged(
        "replay",
        "records in batches",
        passed,
        f"{count} of {tried}, priced {expected:.4g}{where}",
        "records enter batches no oftener than is priced",
        "records enter batches at another rate than the priced one",
        {"count": count, "expected": expected, "p_value": min(chance, 1.0)},
    )


def _repeated(inside: np.ndarray, sizes: np.ndarray, charges: Sequence[Charge]) -> Finding:
    """Tests whether a batch resembles, or avoids, an earlier batch at any lag.

    At lag ℓ the pairs (t, t + ℓ) fall into two classes, ⌊t/ℓ⌋ even and odd. Within a class no batch is in
    two pairs, so that joint hits are independent over pairs. Over groups they are independent or
    negatively associated. So P[hits ≥ k of n] ≤ exp(−n·KL(k/n ‖ mean chance)) (Hoeffding 1963), and
    P[hits ≤ k] likewise.
    """
    chances = np.stack(
        [[charge.any_of(int(size)) for size in sizes] for charge in charges], axis=1
    )  # [groups, releases]
    random = np.array([charge.rate < 1.0 for charge in charges])
    inside, chances = inside[:, random], chances[:, random]
    steps = inside.shape[1]
    best, at, tests, avoids = 0.0, 0, 0, False
    for lag in range(1, steps):
        starts = np.arange(steps - lag)
        for half in (0, 1):
            chosen = starts[(starts // lag) % 2 == half]
            if not len(chosen):
                continue
            tests += 2
            hits = float((inside[:, chosen] & inside[:, chosen + lag]).sum())
            expected = chances[:, chosen] * chances[:, chosen + lag]
            share, mean = hits / expected.size, float(expected.mean())
            exponent = expected.size * _divergence(share, mean)
            if exponent > best:
                best, at, avoids = exponent, lag, share < mean
    chance = min(1.0, tests * float(np.exp(-best)))
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "batches do not repeat",
        passed,
        f"p {chance:.2g} over all distances between {steps} batches",
        "no batch resembles or avoids another one",
        f"records of a batch are left out {at} releases later: batches are not independent"
        if avoids
        else f"batches come again after {at} releases: a key of the sampler is used twice",
        {"p_value": chance, "lag": at},
    )


def _divergence(found: float, expected: float) -> float:
    """Returns the Kullback–Leibler divergence of two Bernoulli laws."""
    return float(
        scipy.special.kl_div(found, expected) + scipy.special.kl_div(1 - found, 1 - expected)
    )


def _judged(check: str, chance: float, figure: str, good: str, bad: str) -> Finding:
    passed = chance > 0.0
    return judged("replay", check, passed, figure, good, bad, {"p_value": chance})


def _outside(found: float, simulated: np.ndarray) -> float:
    """Returns the two-sided p-value of ``found`` among simulated values."""
    return 2.0 * float(min((simulated <= found).mean(), (simulated >= found).mean()))
