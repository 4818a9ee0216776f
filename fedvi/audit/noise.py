"""Tests whether the drawn noise is fresh and has the charged distribution."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import scipy.fft
import scipy.special
import scipy.stats

from fedvi.audit.findings import Finding, judged
from fedvi.audit.recording import Call

__all__ = ["FALSE_ALARM", "check_noise"]

FALSE_ALARM = 1e-6
"""The probability that one check of correct noise fails by chance."""

_BLOCK = 1024

_TAILS = tuple(np.linspace(2.02, 4.02, 21).tolist())
"""Thresholds, in sds, beyond which numbers are counted; a distribution function hardly shows cut tails.

They lie a little above multiples of 0.1, which are likely cuts: a grid rounds up.
"""

_AS_CHARGED = 0.05
"""Relative deviation up to which the scale counts as the charged one here; `_scale` tests it exactly."""

_FEWEST_NUMBERS = 4
"""Fewest numbers of releases that are compared in pairs: on a grid of 4,096 steps a std, no two of 2,000
such releases are parallel by chance."""

_MOST_NUMBERS = 2000
"""The most numbers of a release that are compared with each other, evenly spread."""


def check_noise(
    calls: Sequence[Call], multipliers: Sequence[float], runs: Sequence[int]
) -> list[Finding]:
    """Tests residuals: their scale and shape, and that no two releases share a key or noise.

    Each check fails on correct noise about once in a million. The null laws are those of independent
    Gaussian noise; the grid's spacing, at most a few thousandths of the std, is allowed for where it could
    matter.

    Args:
      calls: releases with their own noise, of any clients, visits and steps, in order.
      multipliers: the charged noise multiplier of each.
      runs: the number of the update that each belongs to.
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
        _reuse(scaled),
        _numbers(scaled),
        _leaves(calls, multipliers),
    ]


def _scale(residuals: np.ndarray) -> Finding:
    """Tests the scale: Σ r²/σ² is χ² with as many degrees of freedom as there are numbers."""
    count = residuals.size
    square = float((residuals**2).sum())
    ratio = float(np.sqrt(square / count))
    law = scipy.stats.chi2(count)
    chance = 2.0 * min(float(law.sf(square)), float(law.cdf(square)))
    passed = bool(np.isfinite(square)) and chance >= FALSE_ALARM
    return judged(
        "replay",
        "noise scale",
        passed,
        f"std {ratio:.4g} × charged, over {count} numbers",
        "the noise that is added is the noise that is charged for",
        f"noise of std {ratio:.3g} times what is charged is added to the totals",
        {"ratio": ratio, "count": count, "p_value": chance},
    )


def _shape(residuals: np.ndarray) -> Finding:
    finite = residuals[np.isfinite(residuals)]
    middle = tails = 0.0
    if finite.size == residuals.size:
        spread = float(np.sqrt((finite**2).mean())) or 1.0
        middle = float(scipy.stats.kstest(finite / spread, "norm").pvalue)
        tails = _tails(np.abs(finite / (1.0 if abs(spread - 1.0) < _AS_CHARGED else spread)))
    chance = min(1.0, 2.0 * min(middle, tails))
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "noise law",
        passed,
        f"Kolmogorov–Smirnov p {middle:.2g}, tails p {tails:.2g}",
        "the noise is Gaussian, as far as so many numbers tell",
        "the noise is not Gaussian, but priced as if it were",
        {"p_value": chance},
    )


def _tails(sizes: np.ndarray) -> float:
    """Returns the corrected p-value of the counts of numbers beyond 2 to 4 sds."""
    chances = []
    for beyond in _TAILS:
        law = scipy.stats.binom(sizes.size, 2.0 * scipy.stats.norm.sf(beyond))
        count = int((sizes > beyond).sum())
        chances.append(2.0 * min(float(law.cdf(count)), float(law.sf(count - 1))))
    return min(1.0, len(_TAILS) * min(chances))


def _everywhere(
    calls: Sequence[Call],
    residuals: Sequence[np.ndarray],
    multipliers: Sequence[float],
    runs: Sequence[int],
) -> Finding:
    """Tests whether every part of the noise has the charged scale, since the whole may hide one bad part.

    Parts are each release, each step of an update, each array and each number over all releases; and each
    number about its own mean, which shows noise that repeats at every step. Σ r²/σ² of n numbers is χ²
    with n degrees of freedom, up to half a grid step in both directions.
    """
    chances: list[tuple[float, str]] = []

    def judge(what: str, less: float, more: float, count: int) -> None:
        below, above = scipy.special.chdtr(count, more), scipy.special.chdtrc(count, less)
        chances.append((2.0 * float(min(below, above)), what))

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
                chance = float(scipy.special.chdtr(len(calls) - 1, square))
                chances.append((chance, f"number {number}, which repeats itself"))
    chance, what = min(chances)
    chance *= len(chances)
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "noise everywhere",
        passed,
        f"corrected p {min(chance, 1.0):.2g} over {len(chances)} parts",
        "every release, step, array and number has the noise that is charged for",
        f"the noise of {what} is not what is charged for",
        {"p_value": min(chance, 1.0), "part": what},
    )


def _grids(calls: Sequence[Call]) -> list[Finding]:
    """Tests the grid's norm bound, which the replay compares totals with, against the clip norm."""
    layouts = {call.layout for call in calls if call.layout.step is not None}
    if not layouts:
        return []
    worst = max(
        Fraction(layout.bound) / (Fraction(layout.clip_norm) / Fraction(layout.step)) ** 2
        for layout in layouts
        if layout.step is not None
    )
    # The public step is a float, within a few parts in 10¹⁶ of the exact one.
    passed = worst <= 1 + Fraction(1, 10**12)
    return [
        judged(
            "replay",
            "grid's norm bound",
            passed,
            f"{float(worst):.6g} × the squared clip norm",
            "integers are clipped to the clip norm that noise is measured in",
            "integers may be longer than the clip norm that noise is measured in",
            {"ratio": float(worst)},
        )
    ]


def _keys(calls: Sequence[Call]) -> Finding:
    distinct = len({call.key for call in calls})
    passed = distinct == len(calls)
    return judged(
        "replay",
        "noise keys",
        passed,
        f"{distinct} keys for {len(calls)} releases",
        "no two releases, of any step, visit or client, draw from one key",
        "releases share a key: their difference is free of noise",
        {"keys": distinct, "releases": len(calls)},
    )


def _reuse(residuals: Sequence[np.ndarray]) -> Finding:
    """Looks for noise that repeats, in whole or in part, after any number of releases or numbers.

    By pairs of releases: the cosine c of two independent Gaussian vectors of length d has
    P[|c| > x] = I(1 − x²; (d−1)/2, 1/2). With fewer than four numbers too many vectors are parallel by
    chance, since a grid has few directions: those are tested by lags only.
    By lags ℓ: S = Σ_t r_t·r_{t+ℓ}, over the sequence of all numbers, and for each number over the
    releases, with ``_lag_chance``.
    """
    sizes = [vector.size for vector in residuals]
    pair_chance, worst, pairs = 1.0, 0.0, 0
    for size in sorted(set(sizes)):
        unit = np.stack([_unit(vector) for vector in residuals if vector.size == size])
        count = len(unit) * (len(unit) - 1) // 2
        if size < _FEWEST_NUMBERS or not count:
            continue
        pairs += count
        cosine = min(1.0, _largest_cosine(unit))
        tail = scipy.stats.beta.cdf(1.0 - cosine**2, (size - 1) / 2.0, 0.5)
        # Correct for the pairs of this size and for the number of sizes.
        pair_chance = min(pair_chance, float(tail) * count * len(set(sizes)))
        worst = max(worst, cosine if size >= 8 else 0.0)
    sequence = np.concatenate(residuals)
    chance, at = _lag_chance(sequence[:, None])
    what = f"noise comes again after {at} numbers"
    lags = len(sequence) - 1
    if len(set(sizes)) == 1 and len(residuals) > 1:
        by_number, at = _lag_chance(np.stack(residuals))
        lags += (len(residuals) - 1) * sizes[0]
        if by_number < chance:
            chance, what = by_number, f"a number's noise comes again after {at} releases"
    if pair_chance < chance:
        what = "two releases have related noise"
    # Three families of tests, each already corrected within itself.
    chance = min(1.0, 3.0 * min(chance, pair_chance))
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "noise is fresh",
        passed,
        f"corrected p {chance:.2g} over {pairs} pairs, {lags} lags"
        + (f"; largest |correlation| {worst:.2g}" if worst else ""),
        "the noise of steps, visits and clients is unrelated",
        f"noise is used again in another step, visit or client: it cancels in a difference ({what})",
        {"p_value": chance, "largest_correlation": worst},
    )


def _largest_cosine(unit: np.ndarray) -> float:
    """Returns the largest |inner product| of two rows, computed by blocks of rows."""
    largest = 0.0
    for start in range(0, len(unit), _BLOCK):
        products = np.abs(unit[start : start + _BLOCK] @ unit[start:].T)
        # Ignore products of a row with itself, and count the pairs of this block once.
        products[np.tril_indices(len(products), 0, products.shape[1])] = 0.0
        largest = max(largest, float(products.max(initial=0.0)))
    return largest


def _lag_chance(table: np.ndarray) -> tuple[float, int]:
    """Returns the corrected p-value of the largest Σ_t r_t·r_{t+ℓ} over lags ℓ and columns, and its lag.

    For N products of independent standard normals r the matrix of S has its eigenvalues in [−1, 1],
    in pairs ±λ, with Σλ² = N/2. So log E e^{θS} = −¼ Σ log(1 − 4θ²λ²) ≤ −(N/8)·log(1 − 4θ²), since
    −log(1 − cu) is convex in u = λ² and 0 at 0. This is ``_exponent`` with c = 2, for any N.

    Args:
      table: scaled noise [times, columns].
    """
    times, columns = table.shape
    if times < 2 or not np.isfinite(table).all():
        return (1.0, 0) if times < 2 else (0.0, 0)
    # The autocorrelation at all lags at once, padded against wrap-around.
    length = scipy.fft.next_fast_len(2 * times, real=True)
    spectrum = scipy.fft.rfft(table, length, axis=0)
    sums = scipy.fft.irfft(np.abs(spectrum) ** 2, length, axis=0)[1:times]
    count = np.arange(times - 1, 0, -1, dtype=float)[:, None]
    exponent = _exponent(sums, count, 2.0)
    place = int(exponent.argmax())
    chance = 2.0 * exponent.size * float(np.exp(-exponent.ravel()[place]))
    return min(1.0, chance), 1 + place // columns


def _exponent(sums: np.ndarray, count: np.ndarray | float, reach: float) -> np.ndarray:
    """Returns e with P[|S| ≥ x] ≤ 2·exp(−e), given log E e^{θS} ≤ −(N / 2c²)·log(1 − c²θ²), c = ``reach``.

    e is the maximum over θ of θx + (N / 2c²)·log(1 − c²θ²), at θ = (√(N² + 4c²x²) − N) / 2c²x.
    """
    x, square = np.abs(sums) + 1e-12, reach**2
    theta = (np.sqrt(count**2 + 4.0 * square * x**2) - count) / (2.0 * square * x)
    return np.asarray(theta * x + count / (2.0 * square) * np.log1p(-square * theta**2))


def _numbers(residuals: Sequence[np.ndarray]) -> Finding:
    """Tests that, within a release, the noises of any two numbers are uncorrelated.

    Over N releases, S = Σ_t r_t·r′_t of two numbers has log E e^{θS} = −(N / 2)·log(1 − θ²).
    """
    chance, pairs, worst = 1.0, 0, ""
    if len({vector.size for vector in residuals}) == 1:
        table = np.stack(residuals)
        size = table.shape[1]
        kept = np.linspace(0, size - 1, min(size, _MOST_NUMBERS)).round().astype(int)
        pairs = len(kept) * (len(kept) - 1) // 2
        if not np.isfinite(table).all():
            chance = 0.0
        elif pairs:
            sums = np.triu(table[:, kept].T @ table[:, kept], 1)
            exponent = _exponent(sums, float(len(table)), 1.0)
            one, other = np.unravel_index(int(exponent.argmax()), exponent.shape)
            chance = min(1.0, 2.0 * pairs * float(np.exp(-exponent[one, other])))
            worst = f" (numbers {kept[one]} and {kept[other]})"
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "noise across numbers",
        passed,
        f"corrected p {chance:.2g} over {pairs} pairs of numbers",
        "the numbers of one release have noise of their own",
        f"two numbers of one release have related noise: it cancels in a difference{worst}",
        {"p_value": chance, "pairs": pairs},
    )


def _leaves(calls: Sequence[Call], multipliers: Sequence[float]) -> Finding:
    """Tests that, within a release, no array's noise repeats that of another array."""
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
        if not np.isfinite(joined).all():
            chance = 0.0
        elif joined.size:
            # A sum of few products, such as one per release for a scale, is far from normal.
            exponent = _exponent(joined.sum(), float(joined.size), 1.0)
            chance = min(chance, 2.0 * len(sums) * float(np.exp(-exponent)))
    passed = chance >= FALSE_ALARM
    return judged(
        "replay",
        "noise across arrays",
        passed,
        f"corrected p {min(chance, 1.0):.2g} over {len(sums)} pairs of arrays",
        "the arrays of one release have noise of their own",
        "two arrays of one release share noise: it cancels in their difference",
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
