"""Searches for the smallest noise that meets a budget."""

import collections
import dataclasses
import decimal
import math
import sys
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeAlias

from fedvi.errors import ConfigError, PrivacyError
from fedvi.privacy.accountants import Accountant, price
from fedvi.privacy.accountants.closed_form import shift_over_noise
from fedvi.privacy.accountants.pld import Pld
from fedvi.privacy.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    WithoutReplacement,
    counts,
)

__all__ = ["calibrate"]

_LEAST = 2.0**-10
_MOST = 2.0**40
_DIGITS = 4
_COARSE = 0.01  # the widest grid that `pld` offers; it refines it where it must


class _Found(NamedTuple):
    """A result and the event whose price was checked for it."""

    noise: float
    event: Event


# The latest results. The cache key only samples `event_of` at the probes, so a result is used only if
# `event_of` gives exactly the event that was priced.
_cache: collections.OrderedDict[Hashable, _Found] = collections.OrderedDict()
_CACHED = 128
_PROBES = (0.7, 3.1)


def calibrate(
    event_of: Callable[[float], Event],
    accountant: Accountant,
    epsilon: float,
    delta: float,
    tolerance: float = 1e-3,
) -> float:
    """Returns a noise multiplier, of 4 significant digits, whose price is at most ``epsilon``.

    Guarantee: ``accountant.epsilon(event_of(result), delta) <= epsilon``, checked on the very number
    that is returned, by this accountant unchanged: closed-form guesses and coarser grids only choose
    where to search. A result is cached, and returned again only if ``event_of`` maps it to the event
    that was checked.

    The result exceeds the smallest such multiplier by at most ``tolerance`` plus one unit in its
    fourth digit, if the price falls as the noise grows; it is never below about 0.001.

    Args:
      event_of: noise multiplier → the event of the whole study, with the largest number of releases.
      accountant: checks the budget.
      epsilon: the budget, finite and above 0.
      delta: the budget, above 0 and below 1.
      tolerance: relative width at which the search stops.

    Raises:
      ConfigError: no noise reaches the budget, or an argument is outside its range.
      PrivacyError: ``accountant`` is not an accountant; a method of `historical` gives no bound.
      UnsupportedEvent: the accountant does not know the event.

    >>> from fedvi.privacy.accountants import pld
    >>> from fedvi.privacy.events import Gaussian, repeat
    >>> calibrate(lambda noise: repeat(Gaussian(noise), 10), pld("add_remove"), 1.0, 1e-5)
    11.81
    """
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon is {epsilon}, expected a finite number above 0")
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}, expected above 0 and below 1")
    if not tolerance > 0:
        raise ConfigError(f"tolerance is {tolerance}, expected above 0")

    if not isinstance(accountant, Accountant):
        raise PrivacyError(
            f"{type(accountant).__name__} is no accountant",
            hint="noise is calibrated by what bounds epsilon; see `fedvi.privacy.accountants`",
        )
    beyond = math.fsum(
        count * atom.overflow
        for atom, count in counts(event_of(_PROBES[0])).items()
        if isinstance(atom, PoissonSampled)
    )
    if delta <= 2.0 * beyond:
        raise ConfigError(
            f"delta is {delta:g}, expected above {2.0 * beyond:.3g}: no noise reaches epsilon {epsilon:g} "
            f"below it, since batches overflow their capacity with probability {beyond:.3g} in all",
            hint="give a larger delta or fewer releases, or take batches that never overflow: of a fixed "
            'size (sampler "feistel", under substitute), or of all records ("full")',
        )
    key = (tuple(event_of(probe) for probe in _PROBES), accountant, epsilon, delta, tolerance)
    known = _cache.get(key)
    if known is not None and event_of(known.noise) == known.event:
        _cache.move_to_end(key)
        return known.noise
    noise = _calibrated(event_of, accountant, epsilon, delta, tolerance)
    _cache[key] = _Found(noise, event_of(noise))
    if len(_cache) > _CACHED:
        _cache.popitem(last=False)
    return noise


def _calibrated(
    event_of: Callable[[float], Event],
    accountant: Accountant,
    epsilon: float,
    delta: float,
    tolerance: float,
) -> float:
    def excess_by(accountant: Accountant, noise: float) -> float:
        """log(ε(noise) ÷ ε): at most 0 if the noise suffices; nearly linear in log noise."""
        try:
            event = event_of(noise)
        except ConfigError:  # less noise than the mechanism allows
            return math.inf
        found = price(accountant, event, delta)
        if found == 0:
            return -math.inf
        # The sign decides, so it must not depend on the rounding of the quotient and the logarithm.
        excess = math.log(found / epsilon) if found / epsilon > 0 else -math.inf
        return min(excess, 0.0) if found <= epsilon else max(excess, sys.float_info.min)

    def excess(noise: float) -> float:
        return excess_by(accountant, noise)

    start = _guess(event_of, accountant.relation, epsilon, delta)
    if isinstance(accountant, Pld) and accountant.interval < _COARSE:
        # A coarse grid takes a tenth of the time and is off by less than a thousandth.
        coarse = dataclasses.replace(accountant, interval=_COARSE)
        low, high = _bracket(lambda noise: excess_by(coarse, noise), start, 0.05)
        start = high[0]
        if high[1] <= 0:
            start = _narrow(lambda noise: excess_by(coarse, noise), low, high, tolerance / 2)
    low, high = _bracket(excess, _round_up(start), tolerance)
    if high[1] > 0:
        event = event_of(high[0])
        raise ConfigError(
            f"no noise reaches epsilon {epsilon:g} at delta {delta:g}: noise multiplier "
            f"{high[0]:.3g} still costs epsilon {price(accountant, event, delta):.4g}, "
            f"and delta {accountant.delta(event, epsilon):.3g} at epsilon {epsilon:g}",
            hint="something costs privacy whatever the noise: an unprotected release, or batches "
            "that overflow their capacity",
        )
    narrowed = _narrow(excess, low, high, tolerance)
    result = _round_up(narrowed)
    if result == narrowed:
        return result  # the search has priced this very number
    # The accountant's grid depends on the noise, so the price may rise slightly after rounding up.
    for _ in range(100):
        if excess(result) <= 0:
            return result
        result = _round_up(result * (1 + 10.0**-_DIGITS))
    raise ConfigError(
        f"noise multiplier {result} still costs epsilon "
        f"{price(accountant, event_of(result), delta):.4g}, expected {epsilon:g} or less",
        hint="the price does not fall as the noise grows; check `event_of`",
    )


def _guess(
    event_of: Callable[[float], Event], relation: Relation, epsilon: float, delta: float
) -> float:
    """Returns the noise at which the central limit of the privacy losses meets the budget; 1 if none does.

    Only a starting point: it is right to a few per cent for many small releases. Source: Dong, Roth and
    Su (2022), arXiv:1905.02383, Corollary 5.4.
    """

    def root(too_small: Callable[[float], bool], low: float, high: float) -> float:
        for _ in range(50):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if too_small(middle) else (low, middle)
        return high

    def tail(value: float) -> float:
        return math.erfc(value / math.sqrt(2)) / 2

    def fits(mu: float) -> bool:
        shift = min(epsilon, 700.0)
        return tail(epsilon / mu - mu / 2) - math.exp(shift) * tail(epsilon / mu + mu / 2) < delta

    target = root(fits, 1e-6, 1e3)
    try:
        most, least = (_spread(event_of(noise), relation) for noise in (_LEAST, _MOST))
        if not least < target**2 < most:
            return 1.0
        return root(lambda noise: _spread(event_of(noise), relation) > target**2, _LEAST, _MOST)
    except ConfigError:  # `event_of` may not take such noise
        return 1.0


def _spread(event: Event, relation: Relation) -> float:
    """Approximates the variance of the privacy loss; infinite if unknown."""

    def square(inner: Gaussian | DiscreteGaussian) -> float:
        return shift_over_noise(inner, relation) ** 2

    total = 0.0
    for atom, count in counts(event).items():
        match atom:
            case Gaussian() | DiscreteGaussian():
                total += count * square(atom)
            case PoissonSampled(rate, Gaussian() as inner, _) if (
                rate < 1 and relation == "substitute"
            ):
                total += count * 4 * rate**2 * math.sinh(min(square(inner) / 4, 700.0))
            case PoissonSampled(rate, Gaussian() as inner, _) if rate < 1:
                total += count * rate**2 * math.expm1(min(square(inner), 700.0))
            case PoissonSampled(_, Gaussian() as inner, _):
                total += count * square(inner)
            case WithoutReplacement(_, _, Gaussian() as inner):
                total += count * atom.rate**2 * math.expm1(min(square(inner), 700.0))
            case _:
                return math.inf
    return total


_Point: TypeAlias = tuple[float, float]  # a noise multiplier and its excess


def _bracket(
    excess: Callable[[float], float], start: float, step: float = 1.0
) -> tuple[_Point, _Point]:
    """Searches from ``start`` until one end fails and the other suffices, or a limit is met.

    The first stride is a factor of 1 + ``step``; each further one is four times as long, up to doubling.
    """
    noise = min(max(start, _LEAST), _MOST)
    found = excess(noise)
    low = high = (noise, found)
    if found > 0:
        while found > 0 and noise < _MOST:
            low = (noise, found)
            noise, step = noise * (1 + step), min(1.0, 4 * step)
            found = excess(noise)
        return low, (noise, found)
    while found <= 0 and noise > _LEAST:
        high = (noise, found)
        noise, step = noise / (1 + step), min(1.0, 4 * step)
        found = excess(noise)
    return (noise, found), high


def _narrow(excess: Callable[[float], float], low: _Point, high: _Point, tolerance: float) -> float:
    """Shrinks the bracket and returns its upper end, which suffices.

    Uses the secant in (log noise, excess), moved slightly past the root so that the far end of the
    bracket moves too. After three points that did not halve the bracket it bisects. A point costs a
    fraction of a second, and bisection alone needs twice as many.
    """
    stalled = 0
    while low[1] > 0 and high[0] / low[0] > 1 + tolerance:
        width = math.log(high[0] / low[0])
        share = 0.5
        if stalled < 3 and math.isfinite(low[1]) and math.isfinite(high[1]):
            share = low[1] / (low[1] - high[1])
            nudge = 0.4 * tolerance / width
            share = min(max(share + math.copysign(nudge, 0.5 - share), nudge), 1 - nudge)
        noise = low[0] * math.exp(share * width)
        point = (noise, excess(noise))
        low, high = (low, point) if point[1] <= 0 else (point, high)
        stalled = stalled + 1 if math.log(high[0] / low[0]) > width / 2 and share != 0.5 else 0
    return high[0]


def _round_up(value: float) -> float:
    """Rounds up to 4 significant digits, exactly: never below ``value``."""
    number = decimal.Decimal(value)
    unit = decimal.Decimal(1).scaleb(number.adjusted() - _DIGITS + 1)
    return float(number.quantize(unit, rounding=decimal.ROUND_CEILING))
