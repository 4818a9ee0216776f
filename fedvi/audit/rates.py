"""Bounds by how much one rate exceeds a multiple of another, from two counts.

Two separate Clopper–Pearson bounds each allow for their own worst case. A test of the difference itself
needs about a third less, since the worst errors of two counts seldom coincide. With few counts the
separate bounds may be sharper, so they get a tenth of the error.
"""

import numpy as np
import scipy.special
import scipy.stats

__all__ = ["exceeds", "excess", "lower", "upper"]

_SEPARATE = 0.1
"""Share of the error for the two separate bounds."""

_SHARE = 0.05
"""Share of the rest for the confidence interval of the second rate."""

_CELLS = 60
_TAIL = 1e-9
_PRECISION = 2e-4


def lower(count: float | int, trials: int, error: float) -> float:
    """Returns the Clopper–Pearson lower bound."""
    return 0.0 if count == 0 else float(scipy.special.betaincinv(count, trials - count + 1, error))


def upper(count: float | int, trials: int, error: float) -> float:
    """Returns the Clopper–Pearson upper bound."""
    if count == trials:
        return 1.0
    return float(scipy.special.betaincinv(count + 1, trials - count, 1.0 - error))


def exceeds(
    hits: int, hit_trials: int, misses: int, miss_trials: int, ratio: float, by: float, error: float
) -> bool:
    """Whether two independent counts with rates p and p′ show that p − ratio·p′ > by.

    Guarantee: if p − ratio·p′ ≤ by, this is true with probability at most ``error``. Proof: two
    Clopper–Pearson bounds err with a tenth of ``error``, and the test of the difference with the rest. With
    D = K/n − ratio·K′/m, P[D ≥ d] grows with p and falls with p′ (K and K′ are independent, and each is
    stochastically monotone in its rate). So on a cell [u, v] of p′ it is at most its value at
    p = min(1, ratio·v + by), p′ = u. The cells cover the Clopper–Pearson interval of p′ at a share of 1/20
    of the rest, and the largest of these values is compared with the other 19/20 (Berger and Boos 1994,
    doi:10.1080/01621459.1994.10476836). Tails that are left out of the sum are added.
    """
    if _separate(hits, hit_trials, misses, miss_trials, ratio, error) > by:
        return True
    error *= 1.0 - _SEPARATE
    share = _SHARE * error
    edges = np.linspace(
        lower(misses, miss_trials, share / 2.0), upper(misses, miss_trials, share / 2.0), _CELLS + 1
    )
    rate = np.clip(ratio * edges[1:] + by, 0.0, 1.0)[:, None]
    first, last = (
        scipy.stats.binom(miss_trials, edges[0]),
        scipy.stats.binom(miss_trials, edges[-2]),
    )
    counts = np.arange(max(0, int(first.ppf(_TAIL))), int(last.isf(_TAIL)) + 1)
    least = np.ceil(hits + hit_trials * ratio * (counts - misses) / miss_trials - 1e-9)
    inner = np.clip(least, 1.0, hit_trials)
    reached = scipy.special.betainc(inner, hit_trials - inner + 1.0, rate)  # P[K ≥ least]
    reached = np.where(least <= 0.0, 1.0, np.where(least > hit_trials, 0.0, reached))
    weights = scipy.stats.binom.pmf(counts, miss_trials, edges[:-1, None])
    chances = (weights * reached).sum(axis=1) + 2.0 * _TAIL
    return bool(chances.max() <= error - share)


def excess(
    hits: int, hit_trials: int, misses: int, miss_trials: int, ratio: float, error: float
) -> float:
    """Returns a lower bound on p − ratio·p′ with this error, to a precision of 0.0002; see ``exceeds``."""
    counts = hits, hit_trials, misses, miss_trials, ratio
    high = hits / hit_trials - ratio * misses / miss_trials
    low = _separate(*counts, error)
    while high - low > _PRECISION * max(1.0, abs(low)):
        middle = (low + high) / 2.0
        if exceeds(*counts, middle, error):
            low = middle
        else:
            high = middle
    return low


def _separate(
    hits: int, hit_trials: int, misses: int, miss_trials: int, ratio: float, error: float
) -> float:
    each = _SEPARATE * error / 2.0
    return lower(hits, hit_trials, each) - ratio * upper(misses, miss_trials, each)
