"""Adds to δ the price of batches that overflow their capacity.

Cutting such batches adds (1 + e^ε)·β to δ, β = Σ count · overflow. Proof: docs/proofs/overflow.md.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from fedvi.errors import ConfigError, PrivacyError

__all__ = [
    "LARGEST_EPSILON",
    "Price",
    "best_epsilon",
    "check_delta",
    "check_epsilon",
    "delta_of",
    "epsilon_of",
    "smallest",
    "smallest_epsilon",
    "too_much",
]

LARGEST_EPSILON = 700.0  # beyond it e^ε overflows a float


class Price(NamedTuple):
    """A composition's privacy profile without overflow, and β."""

    delta: Callable[[float], float]
    epsilon: Callable[[float], float]
    overflow: float

    def total_delta(self, epsilon: float) -> float:
        """δ(ε) + (1 + e^ε)·β, not capped at 1; unimodal in ε if δ is convex in ε or in e^ε."""
        if self.overflow > 0 and epsilon > LARGEST_EPSILON:
            return math.inf
        return self.delta(epsilon) + (
            (1 + math.exp(epsilon)) * self.overflow if self.overflow else 0.0
        )


def check_delta(delta: float) -> None:
    """Raises `ConfigError` unless ``delta`` is in [0, 1)."""
    if not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta}, expected at least 0 and below 1")


def check_epsilon(epsilon: float) -> None:
    """Raises `ConfigError` unless ``epsilon`` is finite and 0 or more."""
    if not 0 <= epsilon < math.inf:
        raise ConfigError(f"epsilon is {epsilon}, expected a finite number of 0 or more")


def epsilon_of(price: Price, delta: float) -> float:
    """Returns the smallest ε with δ(ε) + (1 + e^ε)·β ≤ ``delta``; infinite without enough noise.

    Raises:
      PrivacyError: no finite ε holds, and only overflowing batches are the reason.
    """
    least = price.epsilon(delta)
    if price.overflow == 0 or math.isinf(least):
        return least
    found = smallest_epsilon(price, delta, least)
    if math.isinf(found):
        raise too_much(price.overflow, delta, price.total_delta(best_epsilon(price, math.inf)))
    return found


def delta_of(price: Price, epsilon: float) -> float:
    """Returns the smallest δ(ε′) + (1 + e^ε′)·β over ε′ ≤ ``epsilon``, at most 1."""
    if price.overflow == 0:
        return min(1.0, price.delta(epsilon))
    return min(1.0, price.total_delta(best_epsilon(price, epsilon)))


def smallest_epsilon(price: Price, delta: float, least: float) -> float:
    """Returns the smallest ε ≥ ``least`` with δ(ε) + (1 + e^ε)·β ≤ ``delta``, or infinity."""
    if price.total_delta(least) <= delta:
        return least
    near = _next_to(price, delta, least)
    if near is not None:
        return near
    feasible = least
    if delta > 2 * price.overflow:
        # Beyond this ε, (1 + e^ε)·β alone exceeds δ.
        most = min(math.log(delta) - math.log(price.overflow), LARGEST_EPSILON)
        feasible = _valley(price.total_delta, min(least, most), most, delta)
    if price.total_delta(feasible) > delta:
        return math.inf
    return smallest(price.total_delta, delta, least, feasible, tolerance=1e-10)


def _next_to(price: Price, delta: float, least: float) -> float | None:
    """Returns `smallest_epsilon` to a relative 1e-10 if overflow costs little; None if it may not.

    The result is the least fixed point of the map from ε to the profile's ε at δ − (1 + e^ε)·β. The map
    is increasing, so the iteration from ``least``, which is too small, increases to the fixed point. One
    inversion of the profile replaces about thirty evaluations; one evaluation checks the result.
    """
    found = least
    for _ in range(8):
        left = delta - (1 + math.exp(min(found, LARGEST_EPSILON))) * price.overflow
        following = price.epsilon(left) if left > 0 else math.inf
        if not following < LARGEST_EPSILON:
            return None
        close = following <= found * (1 + 1e-12)
        found = max(found, following)
        if close:
            break
    certified = found * (1 + 5e-11)
    return certified if price.total_delta(certified) <= delta else None


def too_much(overflow: float, delta: float, lowest: float) -> PrivacyError:
    """Returns the error for a ``delta`` that is unattainable because of overflow alone."""
    return PrivacyError(
        f"no finite epsilon holds at delta {delta:g}: batches overflow their capacity with "
        f"probability {overflow:.3g} in all, and then delta is {lowest:.3g} or more",
        hint="raise the batch capacity, or the bound on records that it is derived from; or add noise, or "
        "plan fewer steps or runs: the probability counts about e^epsilon times",
    )


def best_epsilon(price: Price, epsilon: float) -> float:
    """Returns the ε′ ≤ ε of the smallest δ(ε′) + (1 + e^ε′)·β; (ε′, δ)-DP implies (ε, δ)-DP."""
    high = min(epsilon, -math.log(price.overflow), LARGEST_EPSILON)  # beyond -log β, δ is 1
    if price.total_delta(high) <= price.total_delta(high * (1 - 1e-6)):
        return high
    return _valley(price.total_delta, 0.0, high, -math.inf)


def smallest(
    delta_at: Callable[[float], float], delta: float, low: float, high: float, tolerance: float
) -> float:
    """Bisects for the point where ``delta_at`` falls to ``delta``, and returns the upper end.

    ``delta_at`` is at most ``delta`` at the result, which is infinite if there is no such point. ``high``
    is doubled where rounding made it too small. ``tolerance`` is relative.
    """
    while delta_at(high) > delta:
        high *= 2
        if math.isinf(high):
            return high
    while high - low > tolerance * high:
        middle = (low + high) / 2
        # Nothing lies between two neighbouring floats, which may be far apart at this tolerance.
        if not low < middle < high:
            break
        if delta_at(middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def _valley(height: Callable[[float], float], low: float, high: float, enough: float) -> float:
    """Golden-section search for the minimum of a unimodal function; stops early at ``enough``."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = height(left), height(right)
    while high - low > 1e-7 * max(1.0, high) and min(at_left, at_right) > enough:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = height(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = height(right)
    return left if at_left <= at_right else right
