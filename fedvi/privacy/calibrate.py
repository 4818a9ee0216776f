"""Finds the noise that a budget asks for; come here to change how it is searched."""

import decimal
import math
from collections.abc import Callable
from typing import TypeAlias

from fedvi.errors import ConfigError, PrivacyError, UnsupportedEvent
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.events import Event

__all__ = ["calibrate"]

_LEAST = 2.0**-10
_MOST = 2.0**40
_DIGITS = 4


def calibrate(
    event_of: Callable[[float], Event],
    accountant: Accountant,
    epsilon: float,
    delta: float,
    tolerance: float = 1e-3,
) -> float:
    """Returns a noise multiplier, of 4 significant digits, whose price is at most ``epsilon``.

    Guarantee: ``accountant.epsilon(event_of(result), delta) <= epsilon``, checked on the very
    number that is returned.

    The result exceeds the smallest such multiplier by at most ``tolerance`` plus one unit in its
    fourth digit, if the price falls as the noise grows; it is never below about 0.001.

    Args:
      event_of: the event of the whole study at a noise multiplier; the largest number of releases.
      accountant: what the budget is checked against.
      epsilon: the budget, finite and above 0.
      delta: the budget, above 0 and below 1.
      tolerance: relative width at which the search stops.

    Raises:
      ConfigError: no noise reaches the budget, or an argument is outside its range.
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

    def excess(noise: float) -> float:
        """log(ε(noise) ÷ ε): 0 or less where the noise suffices; close to linear in log noise."""
        found = _epsilon(accountant, event_of(noise), delta)
        return math.log(found / epsilon) if found > 0 else -math.inf

    low, high = _bracket(excess)
    if high[1] > 0:
        event = event_of(high[0])
        raise ConfigError(
            f"no noise reaches epsilon {epsilon:g} at delta {delta:g}: noise multiplier "
            f"{high[0]:.3g} still costs epsilon {_epsilon(accountant, event, delta):.4g}, "
            f"and delta {accountant.delta(event, epsilon):.3g} at epsilon {epsilon:g}",
            hint="something costs privacy whatever the noise: an unprotected release, or batches "
            "that overflow their capacity",
        )
    result = _round_up(_narrow(excess, low, high, tolerance))
    # An accountant may choose another grid at another noise, so the price may wobble upwards.
    for _ in range(100):
        if excess(result) <= 0:
            return result
        result = _round_up(result * (1 + 10.0**-_DIGITS))
    raise ConfigError(
        f"noise multiplier {result} still costs epsilon "
        f"{_epsilon(accountant, event_of(result), delta):.4g}, expected {epsilon:g} or less",
        hint="the price does not fall as the noise grows; check `event_of`",
    )


_Point: TypeAlias = tuple[float, float]  # a noise multiplier and its excess


def _bracket(excess: Callable[[float], float]) -> tuple[_Point, _Point]:
    """Doubles or halves from 1 until one end fails and the other suffices, or limits are met."""
    noise, found = 1.0, excess(1.0)
    if found > 0:
        while found > 0 and noise < _MOST:
            low = (noise, found)
            noise *= 2
            found = excess(noise)
        return low, (noise, found)
    while found <= 0 and noise > _LEAST:
        high = (noise, found)
        noise /= 2
        found = excess(noise)
    return (noise, found), high


def _narrow(excess: Callable[[float], float], low: _Point, high: _Point, tolerance: float) -> float:
    """Shrinks the bracket and returns its upper end, which suffices.

    Takes the secant's point in (log noise, excess), moved a little beyond the root so that it
    brings in the far end, and bisects after three points that did not halve the bracket. A point
    costs a fraction of a second, and bisection alone needs twice as many.
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


def _epsilon(accountant: Accountant, event: Event, delta: float) -> float:
    try:
        return accountant.epsilon(event, delta)
    except UnsupportedEvent:
        raise
    except PrivacyError:  # no epsilon is finite
        return math.inf


def _round_up(value: float) -> float:
    """Rounds up to 4 significant digits, exactly: never below ``value``."""
    number = decimal.Decimal(value)
    unit = decimal.Decimal(1).scaleb(number.adjusted() - _DIGITS + 1)
    return float(number.quantize(unit, rounding=decimal.ROUND_CEILING))
