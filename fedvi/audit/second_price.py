"""Prices solvers a second time, from public numbers and textbook formulas alone.

Nothing here imports an accountant, a calibration, or the prices of sums. A factor that is missing there is
missing here only if the same mistake was made twice. The result is the ε that an adversary attains on one
pair of data sets: a stated price may be above it, and never below.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

__all__ = ["TOLERANCE", "Release", "attained", "by_orders", "left_in_sum", "planned"]

TOLERANCE = 5e-3
"""How far, relatively, a stated ε may be below the second one: the precision of `_sampled`."""

_CELLS = 2**17
_REACH = 9.0  # range of the noise, in sds
_SPAN = 60.0  # range of privacy losses on either side


class Release(NamedTuple):
    """One noised sum, in plain numbers.

    Attributes:
      noise: std of the noise in one message, in clip norms.
      add_remove, substitute: how far a unit moves the sum, in clip norms.
      rate: the probability that a unit is in the batch.
      fixed: whether batches have a fixed size.
    """

    noise: float
    add_remove: float
    substitute: float
    rate: float = 1.0
    fixed: bool = False


def planned(
    solver: str, settings: Mapping[str, Any], unit: str, noise: float, rate: float, fixed: bool
) -> list[Release] | None:
    """Lists the noised sums of one visit, from the solver's documentation; None for an unknown solver.

    A record clipped to 1 moves a sum by 1 if it is added or removed, and by 2 if it is substituted. The
    change of a part or a client is clipped as a whole: one record may reverse it, which moves it by 2; a
    client that is added or removed moves it by 1. Missing settings have their documented defaults.
    """
    match solver:
        case "site_release" | "vips":
            moves, count = (1.0, 2.0), 1
        case "dp_optimisation":
            moves, count = (1.0, 2.0), int(settings.get("steps", 100))
        case "perturbed_update":
            moves, count = ((1.0, 2.0) if unit == "client" else (2.0, 2.0)), 1
        case "local_averaging" | "virtual_clients":
            parts = int(settings.get("parts", 10))
            moves = (2.0 * parts, 2.0) if settings.get("by_place") else (2.0, min(2, parts) * 2.0)
            count = 1
        case _:
            return None
    return [Release(noise, *moves, rate, fixed)] * count


def left_in_sum(noise: float, least_reporting: int, colluding: int) -> float:
    """Returns the std of the noise left in a sum for an observer who knows some of its answers.

    The sum holds ``least_reporting`` independent noises; the observer subtracts ``colluding`` of them.

    >>> left_in_sum(1.0, 5, 1)
    2.0
    """
    variance = 0.0
    for answer in range(least_reporting):
        if answer >= colluding:
            variance += noise * noise
    return math.sqrt(variance)


def attained(
    releases: list[Release], visits: int, relation: str, delta: float, noises: tuple[int, int]
) -> float:
    """Returns the ε that a pair of data sets attains at ``delta``; a claim may not be below it.

    Without sampling the result is exact, for Gaussian noise. With sampling, privacy losses are convolved on
    a grid.

    Args:
      releases: of one visit.
      visits: of the plan.
      noises: the fewest answers in a sum, and how many of them the observer knows.
    """
    shifts = [
        (getattr(release, relation) / left_in_sum(release.noise, *noises), release)
        for release in releases
    ]
    if all(release.rate >= 1.0 for _, release in shifts):
        mu = math.sqrt(visits * sum(shift**2 for shift, _ in shifts))
        return _epsilon(lambda epsilon: _of_gaussian(mu, epsilon), delta)
    kinds: dict[tuple[float, float, float], int] = {}
    for shift, release in shifts:
        both = relation == "substitute" and not release.fixed
        # For a substituted record the two means lie half a shift to either side of 0.
        places = (shift / 2.0, -shift / 2.0) if both else (shift, 0.0)
        at = (release.rate, *places)
        kinds[at] = kinds.get(at, 0) + visits
    return max(_sampled(kinds, delta, turned) for turned in (False, True))


def by_orders(
    releases: list[Release],
    visits: int,
    relation: str,
    delta: float,
    noises: tuple[int, int],
    amplified: bool,
) -> float:
    """Returns the ε by Rényi divergences at the best order; accountants of Rényi orders state no less.

    Set ``amplified`` to False for ``zcdp``, which ignores sampling. The divergence of a Gaussian sum is
    α·μ²/2. For sampled sums the result is 0: ``attained`` covers them.

    Source: Canonne, Kamath and Steinke (2020), arXiv:2004.00010, Proposition 12.
    """
    if amplified and any(release.rate < 1.0 for release in releases):
        return 0.0
    rho = 0.5 * visits * sum(
        (getattr(release, relation) / left_in_sum(release.noise, *noises)) ** 2
        for release in releases
    )  # fmt: skip

    def at(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        kept = math.log(delta) + math.log(order)
        return rho * order + math.log1p(-1.0 / order) - kept / (order - 1.0)

    return max(0.0, float(scipy.optimize.minimize_scalar(at, bounds=(-9.0, 9.0)).fun))


def _of_gaussian(mu: float, epsilon: float) -> float:
    """Returns δ of two unit Gaussians μ apart: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    upper, lower = mu / 2.0 - epsilon / mu, -mu / 2.0 - epsilon / mu
    first, second = scipy.special.log_ndtr([upper, lower])
    return float(math.exp(first) - math.exp(min(epsilon + second, 700.0)))


def _epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high) > delta and high < 1e4:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def _sampled(kinds: Mapping[tuple[float, float, float], int], delta: float, turned: bool) -> float:
    """Convolves the losses of (1−q)N(0) + qN(a) against (1−q)N(0) + qN(b); ``turned`` swaps a and b."""
    width = 2.0 * _SPAN / _CELLS
    spectrum = np.ones(_CELLS // 2 + 1, complex)
    for (rate, there, here), count in kinds.items():
        first, second = (here, there) if turned else (there, here)
        x = np.linspace(min(0.0, first) - _REACH, max(0.0, first) + _REACH, 200_001)
        law, other = _log_mixture(x, rate, first), _log_mixture(x, rate, second)
        mass = np.exp(law)
        mass /= mass.sum()
        place = (law - other) / width
        below = np.floor(place)
        share = place - below
        # Each loss is split between its neighbouring cells, so that the mean is preserved.
        cells = np.zeros(_CELLS)
        np.add.at(cells, below.astype(int) % _CELLS, mass * (1.0 - share))
        np.add.at(cells, (below.astype(int) + 1) % _CELLS, mass * share)
        spectrum = spectrum * np.fft.rfft(cells) ** count
    whole = np.fft.irfft(spectrum, _CELLS)
    losses = width * (np.arange(_CELLS) - (np.arange(_CELLS) >= _CELLS // 2) * _CELLS)

    def delta_at(epsilon: float) -> float:
        over = losses > epsilon
        return float((whole[over] * -np.expm1(epsilon - losses[over])).sum())

    return _epsilon(delta_at, delta)


def _log_mixture(x: np.ndarray, rate: float, place: float) -> np.ndarray:
    return np.asarray(
        np.logaddexp(
            math.log1p(-rate) - x**2 / 2.0 if rate < 1.0 else np.full_like(x, -np.inf),
            math.log(rate) - (x - place) ** 2 / 2.0,
        )
    )
