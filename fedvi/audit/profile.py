"""Tests the whole privacy profile with many trials of the shipped sampler, clip and noise.

A claim is a curve: for every ε and every set of outputs S, P[M(X) ∈ S] ≤ e^ε·P[M(X′) ∈ S] + δ(ε).
The audit runs the code on a worst-case pair of shards, scores every outcome by the log likelihood
ratio that the claim implies, takes {score above a threshold} as S, and tests whether the counts are
consistent with the curve. It can refute a claim but never prove it: a claim that passes may still be wrong.

A quarter of the trials chooses direction, ε and threshold. Only the rest decides, so that the choice needs
no correction.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
import scipy.special

from fedvi import errors
from fedvi.audit import rates
from fedvi.audit.findings import Finding, judged
from fedvi.audit.trials import Case, Trials, run
from fedvi.privacy import events
from fedvi.privacy.accountants import Accountant
from fedvi.typing import Key

__all__ = ["judge", "profile"]

_CHOOSING = 4
_ERROR = 0.01
"""Error probability of the lower bound on a gap."""

_QUANTILE = 2.4
"""Approximate normal quantile for this error: how many sds the bound lies below the estimated gap."""

_CONFIDENCE_EPSILON = 0.95
_THRESHOLDS = 200
_FEWEST = 5
_EPSILONS = 24
_FACTORS = (
    0.25,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    1.0,
    1.02,
    1.04,
    1.06,
    1.08,
    1.1,
    1.12,
    1.15,
    1.25,
    1.5,
    2.0,
    3.0,
)
_HUGE = 1e300


def profile(
    trials: Trials,
    pair: Case,
    claim: events.Event,
    accountant: Accountant,
    delta: float,
    key: Key,
    count: int = 40_000,
) -> Finding:
    """Runs ``count`` trials on either side of a pair, and judges the claimed profile.

    Reports the certified lower bound of ε at ``delta`` (95 %), the profile gap (99 %; a gap above zero
    refutes the claim), and the smallest multiple of the claimed noise that the trials would refute.

    Args:
      trials: the code to run; ``shipped(…)`` for fedvi's own.
      pair: from ``worst_pairs``.
      claim: the event of all steps together; the noise multiplier of its sums scores the outcomes.
      accountant: whose δ(ε) is the claim.
      delta: of the statement.
    """
    left = run(trials, pair.left, jax.random.fold_in(key, 0), count)
    right = run(trials, pair.right, jax.random.fold_in(key, 1), count)
    sigma = _noise_multiplier(claim)
    return judge(
        pair.score(left, sigma), pair.score(right, sigma), pair.name, claim, accountant, delta
    )


def judge(
    left: np.ndarray,
    right: np.ndarray,
    name: str,
    claim: events.Event,
    accountant: Accountant,
    delta: float,
) -> Finding:
    """Judges a claim from scores of both shards, each [trials]."""
    # Any function of an outcome is a valid score. NaN becomes a huge score: it may tell shards apart.
    left, right = (
        np.nan_to_num(scores, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE) for scores in (left, right)
    )
    chosen, decided = zip(
        *(np.split(part, [part.size // _CHOOSING]) for part in (left, right)), strict=True
    )
    stated = accountant.epsilon(claim, delta)
    grid = _epsilons(stated)

    tails = _tails(chosen)

    def choose(event: events.Event) -> "_Choice":
        curve = np.array([accountant.delta(event, float(epsilon)) for epsilon in grid])
        return _choose(tails, decided[0].size, grid, curve)

    choice = choose(claim)
    found, at = _gap(choice, decided), choice.epsilon
    certified = _epsilon_lower(chosen, decided, delta)
    below = _smallest_refuted(lambda factor: _refutes(choose(_scaled(claim, factor)), decided))
    passed = not found > 0.0
    noise = _noise_multiplier(claim)
    smallest = "none" if below is None else f"{below:g} ×"
    return judged(
        "profile",
        f"profile, {name}",
        passed,
        f"gap {found:+.4f} at ε {at:.3g}; ε ≥ {certified:.3g} shown of {stated:.4g} claimed; smallest "
        f"refuted noise: {smallest} the claimed",
        f"{left.size + right.size} trials are consistent with the claimed δ(ε)",
        "the claim is refuted: outputs tell the two shards apart better than it allows",
        {
            "gap": found,
            "at_epsilon": at,
            "epsilon_lower": certified,
            "epsilon_claimed": stated,
            "delta": delta,
            "noise_multiplier_claimed": noise,
            "refuted_factor": below,
            "trials": left.size + right.size,
        },
    )


def _epsilons(stated: float) -> np.ndarray:
    """Returns the ε at which profiles are compared: 0 to twice the stated ε, denser at small ones."""
    top = 2.0 * stated if math.isfinite(stated) else 10.0
    top = min(max(top, 0.1), 30.0)
    return np.concatenate([[0.0], np.geomspace(top / 100.0, top, _EPSILONS - 1)])


_Halves = Sequence[np.ndarray]


class _Tails(NamedTuple):
    """Sets {score above threshold} or {score at most threshold}, and their counts on both sides."""

    thresholds: np.ndarray
    hits: np.ndarray
    misses: np.ndarray
    above: bool
    trials: tuple[int, int]


class _Choice(NamedTuple):
    """The choice from the first trials: a set, and the point of the claimed curve where it is judged."""

    threshold: float
    above: bool
    epsilon: float
    stated: float


def _tails(chosen: _Halves) -> list[_Tails]:
    """Takes quantiles of both sides' scores, including far tails, as thresholds."""
    levels = scipy.special.expit(np.linspace(-8.0, 8.0, _THRESHOLDS))
    thresholds = np.unique(np.concatenate([np.quantile(scores, levels) for scores in chosen]))
    tails = []
    for above in (True, False):
        hit, miss = chosen if above else chosen[::-1]
        counts = _counts(hit, thresholds, above), _counts(miss, thresholds, above)
        tails.append(_Tails(thresholds, *counts, above, (hit.size, miss.size)))
    return tails


def _counts(scores: np.ndarray, thresholds: np.ndarray, above: bool) -> np.ndarray:
    ordered = np.sort(scores)
    below = np.searchsorted(ordered, thresholds, side="right")
    return np.asarray(scores.size - below if above else below)


def _choose(tails: Sequence[_Tails], trials: int, grid: np.ndarray, curve: np.ndarray) -> _Choice:
    """Returns the set and ε at which ``trials`` more trials at these rates should show the largest gap.

    The criterion is the gap minus ``_QUANTILE`` times its spread. If no gap remains by that, it is the gap
    in units of its spread, provided that exceeds one: the choice most likely to show a gap after all.
    """
    ratios = np.exp(grid)[:, None]
    best: dict[bool, tuple[float, _Choice]] = {}
    for sets in tails:
        # Add one miss, so that a tail without misses does not count as certain.
        hit = sets.hits / sets.trials[0]
        miss = (sets.misses + 1.0) / (sets.trials[1] + 1.0)
        gaps = hit[None, :] - ratios * miss[None, :] - curve[:, None]
        spread = np.sqrt(
            (hit * (1.0 - hit) + 1.0 / trials)[None, :] / trials
            + ratios**2 * (miss * (1.0 - miss))[None, :] / trials
        )
        for certain, values in ((True, gaps - _QUANTILE * spread), (False, gaps / spread)):
            values[:, sets.hits < _FEWEST] = -math.inf  # a set that is never met shows nothing
            at, which = np.unravel_index(int(values.argmax()), values.shape)
            value = float(values[at, which])
            if certain not in best or value > best[certain][0]:
                best[certain] = (
                    value,
                    _Choice(
                        float(sets.thresholds[which]), sets.above, float(grid[at]), float(curve[at])
                    ),
                )
    # If no gap exceeds one spread, none can be shown: report the size of the first criterion.
    return best[best[True][0] > 0.0 or best[False][0] <= 1.0][1]


def _taken(choice: _Choice, decided: _Halves) -> tuple[int, int, int, int, float, float]:
    """Returns hits and misses of the chosen set, each with its trials, then e^ε and the error."""
    hit, miss = decided if choice.above else decided[::-1]
    threshold = np.array([choice.threshold])
    hits, misses = (int(_counts(scores, threshold, choice.above)[0]) for scores in (hit, miss))
    return hits, hit.size, misses, miss.size, math.exp(choice.epsilon), _ERROR


def _gap(choice: _Choice, decided: _Halves) -> float:
    """Returns the lower bound (99 %) on p − e^ε·p′ − δ(ε) of the chosen set.

    Guarantee: if the claim holds, the bound exceeds 0 with probability at most 1 % (``rates.exceeds``),
    since the set was chosen from other trials.
    """
    return rates.excess(*_taken(choice, decided)) - choice.stated


def _refutes(choice: _Choice, decided: _Halves) -> bool:
    """Whether the gap is above 0: the same test as ``_gap``, without its size."""
    hits, hit_trials, misses, miss_trials, ratio, error = _taken(choice, decided)
    return rates.exceeds(hits, hit_trials, misses, miss_trials, ratio, choice.stated, error)


def _epsilon_lower(chosen: _Halves, decided: _Halves, delta: float) -> float:
    """Returns log((TPR_lo − δ)/FPR_up) at the threshold and direction that are best in the first trials."""
    error = (1.0 - _CONFIDENCE_EPSILON) / 2.0

    def bound(hits: float, misses: float, trials: tuple[int, int]) -> float:
        attained = rates.lower(hits, trials[0], error) - delta
        return math.log(attained / rates.upper(misses, trials[1], error)) if attained > 0.0 else 0.0

    best, certified = 0.0, 0.0
    for sets in _tails(chosen):
        values = [
            bound(float(hits), float(misses), sets.trials)
            for hits, misses in zip(sets.hits, sets.misses, strict=True)
        ]
        if max(values) > best:
            best, place = max(values), values.index(max(values))
            hit, miss = decided if sets.above else decided[::-1]
            threshold = sets.thresholds[place : place + 1]
            counts = [float(_counts(scores, threshold, sets.above)[0]) for scores in (hit, miss)]
            certified = max(0.0, bound(counts[0], counts[1], (hit.size, miss.size)))
    return certified


def _smallest_refuted(refuted: Callable[[float], bool]) -> float | None:
    """Finds the smallest refuted factor by bisection, since claims of more noise are easier to refute."""
    place = bisect.bisect_left(_FACTORS, True, key=refuted)
    return _FACTORS[place] if place < len(_FACTORS) else None


def _noise_multiplier(event: events.Event) -> float:
    match event:
        case events.Gaussian(sigma) | events.DiscreteGaussian(sigma):
            return sigma
        case events.PoissonSampled() | events.WithoutReplacement() | events.Repeated():
            return _noise_multiplier(event.inner)
        case _:
            raise errors.UnsupportedEvent(
                f"the profile audit takes equal steps, found {event}", "audit its parts one by one"
            )


def _scaled(event: events.Event, factor: float) -> events.Event:
    """Returns the same claim with ``factor`` times the noise."""
    match event:
        case events.Gaussian() | events.DiscreteGaussian():
            return dataclasses.replace(event, noise_multiplier=event.noise_multiplier * factor)
        case events.PoissonSampled() | events.WithoutReplacement() | events.Repeated():
            return dataclasses.replace(event, inner=_scaled(event.inner, factor))
        case _:
            return event
