"""Whether noise that was drawn is what was charged for, and fresh; come here to add a test of noise."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import scipy.stats

from fedvi.audit.findings import Finding
from fedvi.audit.recording import Call

__all__ = ["FALSE_ALARM", "check_noise"]

FALSE_ALARM = 1e-6
"""How often one check of correct noise fails by chance."""

_LONGEST_LAG = 64
_MOST_PAIRS = 2000


def check_noise(
    calls: Sequence[Call], multipliers: Sequence[float], runs: Sequence[int]
) -> list[Finding]:
    """Tests residuals: their scale and shape, and that no two releases share a key or noise.

    Each check fails on correct noise about once in a million: laws are those of independent
    Gaussian noise, and the grid's spacing, a few thousandths of its std or less, is allowed for where it
    could matter.

    Args:
      calls: releases with their own noise, of any clients, visits and steps, in order.
      multipliers: for each, the noise multiplier that was charged.
      runs: for each, the number of the update that it belongs to.
    """
    scaled = [
        call.residual / sigma if sigma > 0.0 else np.full(call.residual.shape, np.inf)
        for call, sigma in zip(calls, multipliers, strict=True)
    ]
    return [
        _scale(np.concatenate(scaled)),
        _shape(np.concatenate(scaled)),
        _everywhere(calls, scaled, multipliers, runs),
        *_grids(calls),
        _keys(calls),
        _reuse(scaled, runs),
        _leaves(calls, multipliers),
    ]


def _scale(residuals: np.ndarray) -> Finding:
    """Σ r²/σ² is χ² with as many degrees of freedom as numbers."""
    count = residuals.size
    square = float((residuals**2).sum())
    ratio = float(np.sqrt(square / count))
    law = scipy.stats.chi2(count)
    chance = 2.0 * min(float(law.sf(square)), float(law.cdf(square)))
    passed = bool(np.isfinite(square)) and chance >= FALSE_ALARM
    return Finding(
        "replay",
        "noise scale",
        passed,
        f"std {ratio:.4g} × charged, over {count} numbers",
        "the noise that is added is the noise that is charged for"
        if passed
        else f"noise of std {ratio:.3g} times what is charged is added to the totals",
        {"ratio": ratio, "count": count, "p_value": chance},
    )


def _shape(residuals: np.ndarray) -> Finding:
    finite = residuals[np.isfinite(residuals)]
    chance = 0.0
    if finite.size == residuals.size:
        spread = float(np.sqrt((finite**2).mean())) or 1.0
        chance = float(scipy.stats.kstest(finite / spread, "norm").pvalue)
    passed = chance >= FALSE_ALARM
    return Finding(
        "replay",
        "noise law",
        passed,
        f"Kolmogorov–Smirnov p {chance:.2g}",
        "the noise is Gaussian, as far as so many numbers tell"
        if passed
        else "the noise is not Gaussian, but priced as if it were",
        {"p_value": chance},
    )


def _everywhere(
    calls: Sequence[Call],
    residuals: Sequence[np.ndarray],
    multipliers: Sequence[float],
    runs: Sequence[int],
) -> Finding:
    """Whether every part of the noise has the charged scale: a fault in one part drowns in the whole.

    Parts are each release, each step of an update, each array and each number over all releases, and
    each number about its own mean, which shows one noise that comes again at every step. Σ r²/σ² of
    n numbers is χ² with n degrees of freedom; half a grid step is given in both directions.
    """
    chances: list[tuple[float, str]] = []

    def judge(what: str, less: float, more: float, count: int) -> None:
        law = scipy.stats.chi2(count)
        chances.append((2.0 * min(float(law.cdf(more)), float(law.sf(less))), what))

    halves = [
        0.5 * call.layout.step / (call.layout.clip_norm * sigma)
        if call.layout.step is not None and sigma > 0.0
        else 0.0
        for call, sigma in zip(calls, multipliers, strict=True)
    ]
    less = [np.maximum(np.abs(r) - h, 0.0) ** 2 for r, h in zip(residuals, halves, strict=True)]
    more = [(np.abs(r) + h) ** 2 for r, h in zip(residuals, halves, strict=True)]
    for index, (low, high) in enumerate(zip(less, more, strict=True)):
        judge(f"release {index}", float(low.sum()), float(high.sum()), low.size)
    if len({r.size for r in residuals}) == 1:
        lows, highs = np.stack(less), np.stack(more)
        places = np.array(_places(runs))
        for place in np.unique(places):
            rows = places == place
            judge(
                f"step {place}", float(lows[rows].sum()), float(highs[rows].sum()), lows[rows].size
            )
        start = 0
        for leaf, shape, _ in calls[0].layout.leaves:
            part = slice(start, start + int(np.prod(shape, dtype=int)))
            start = part.stop
            judge(f"array {leaf}", lows[:, part].sum(), highs[:, part].sum(), lows[:, part].size)
        for number in range(lows.shape[1]):
            judge(f"number {number}", lows[:, number].sum(), highs[:, number].sum(), len(calls))
        if len(calls) > 1:
            table = np.stack(residuals)
            with np.errstate(invalid="ignore"):
                about = np.abs(table - table.mean(axis=0)) + max(halves)
            for number, square in enumerate((about**2).sum(axis=0)):
                law = scipy.stats.chi2(len(calls) - 1)
                chances.append((float(law.cdf(square)), f"number {number}, which repeats itself"))
    chance, what = min(chances)
    chance *= len(chances)
    passed = chance >= FALSE_ALARM
    return Finding(
        "replay",
        "noise everywhere",
        passed,
        f"corrected p {min(chance, 1.0):.2g} over {len(chances)} parts",
        "every release, step, array and number has the noise that is charged for"
        if passed
        else f"the noise of {what} is not what is charged for",
        {"p_value": min(chance, 1.0), "part": what},
    )


def _grids(calls: Sequence[Call]) -> list[Finding]:
    """Whether totals are held to the clip norm in grid steps, by which the replay compares them."""
    layouts = {call.layout for call in calls if call.layout.step is not None}
    if not layouts:
        return []
    worst = max(
        Fraction(layout.bound) / (Fraction(layout.clip_norm) / Fraction(layout.step)) ** 2
        for layout in layouts
        if layout.step is not None
    )
    # The public step is a float: it is within a few parts in 10¹⁶ of the exact one.
    passed = worst <= 1 + Fraction(1, 10**12)
    return [
        Finding(
            "replay",
            "grid's norm bound",
            passed,
            f"{float(worst):.6g} × the squared clip norm",
            "integers are clipped to the clip norm that noise is measured in"
            if passed
            else "integers may be longer than the clip norm that noise is measured in",
            {"ratio": float(worst)},
        )
    ]


def _keys(calls: Sequence[Call]) -> Finding:
    distinct = len({call.key for call in calls})
    passed = distinct == len(calls)
    return Finding(
        "replay",
        "noise keys",
        passed,
        f"{distinct} keys for {len(calls)} releases",
        "no two releases, of any step, visit or client, draw from one key"
        if passed
        else "releases share a key: their difference is free of noise",
        {"keys": distinct, "releases": len(calls)},
    )


def _reuse(residuals: Sequence[np.ndarray], runs: Sequence[int]) -> Finding:
    """Looks for equal or correlated noise between any two releases.

    By pairs: the cosine c of two independent Gaussian vectors of length d has
    P[|c| > x] = I(1 − x²; (d−1)/2, 1/2). By lags: Σ r_t·r_{t+ℓ} ÷ √(number of terms) is standard
    normal to a good approximation for 100 terms and more, which catches reuse where d is small.
    """
    chance, worst = 1.0, 0.0
    pairs = list(itertools.combinations(range(len(residuals)), 2))
    if len(pairs) > _MOST_PAIRS:
        # Neighbours in time, and the same place of other updates: where reuse would come from.
        places = _places(runs)
        pairs = [
            (i, j)
            for i, j in pairs
            if j - i <= 2 or (places[i] == places[j] and runs[i] != runs[j])
        ]
    unit = [_unit(vector) for vector in residuals]
    for i, j in pairs:
        if unit[i].shape != unit[j].shape or unit[i].size < 2:
            continue
        cosine = min(1.0, abs(float(unit[i] @ unit[j])))
        tail = scipy.stats.beta.cdf(1.0 - cosine**2, (unit[i].size - 1) / 2.0, 0.5)
        chance = min(chance, float(tail) * len(pairs))
        worst = max(worst, cosine if unit[i].size >= 8 else 0.0)
    length = min(vector.size for vector in residuals)
    table = np.stack([vector[:length] for vector in residuals])
    lags = range(1, min(_LONGEST_LAG, len(residuals) - 1) + 1)
    for lag in lags:
        product = table[lag:] * table[:-lag]
        if product.size >= 100:
            score = float(product.sum()) / np.sqrt(product.size)
            chance = min(chance, float(2.0 * scipy.stats.norm.sf(abs(score))) * len(lags))
    passed = chance >= FALSE_ALARM
    return Finding(
        "replay",
        "noise is fresh",
        passed,
        f"corrected p {min(chance, 1.0):.2g} over {len(pairs)} pairs, {len(lags)} lags"
        + (f"; largest |correlation| {worst:.2g}" if worst else ""),
        "the noise of steps, visits and clients is unrelated"
        if passed
        else "noise is used again in another step, visit or client: it cancels in a difference",
        {"p_value": min(chance, 1.0), "largest_correlation": worst},
    )


def _leaves(calls: Sequence[Call], multipliers: Sequence[float]) -> Finding:
    """Within a release, no array's noise may repeat that of another array."""
    sums: dict[tuple[int, int], list[np.ndarray]] = {}
    for call, sigma in zip(calls, multipliers, strict=True):
        if sigma <= 0.0:
            continue
        leaves = [leaf / sigma for leaf in call.leaf_residuals()]
        for i, j in itertools.combinations(range(len(leaves)), 2):
            shared = min(leaves[i].size, leaves[j].size)
            sums.setdefault((i, j), []).append(leaves[i][:shared] * leaves[j][:shared])
    chance = 1.0
    for products in sums.values():
        joined = np.concatenate(products)
        score = float(joined.sum()) / np.sqrt(max(joined.size, 1))
        chance = min(chance, float(2.0 * scipy.stats.norm.sf(abs(score))) * len(sums))
    passed = chance >= FALSE_ALARM
    return Finding(
        "replay",
        "noise across arrays",
        passed,
        f"corrected p {min(chance, 1.0):.2g} over {len(sums)} pairs of arrays",
        "the arrays of one release have noise of their own"
        if passed
        else "two arrays of one release share noise: it cancels in their difference",
        {"p_value": min(chance, 1.0)},
    )


def _places(runs: Sequence[int]) -> list[int]:
    places: list[int] = []
    seen: dict[int, int] = {}
    for run in runs:
        places.append(seen.get(run, 0))
        seen[run] = places[-1] + 1
    return places


def _unit(vector: np.ndarray) -> np.ndarray:
    norm = float(np.sqrt((vector**2).sum()))
    return vector / norm if 0.0 < norm < np.inf else np.zeros_like(vector)
