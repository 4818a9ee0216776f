"""The closed form of a Gaussian release, from shift and noise alone."""

import functools
import math
import sys

from fedvi.privacy.accountants import overflow
from fedvi.privacy.events import DiscreteGaussian, Gaussian, Relation

__all__ = ["gaussian_delta", "gaussian_epsilon", "shift_over_noise"]


def shift_over_noise(event: Gaussian | DiscreteGaussian, relation: Relation) -> float:
    """Returns μ = shift ÷ noise; infinite if there is a shift but no noise."""
    shift = event.add_remove if relation == "add_remove" else event.substitute
    if shift == 0:
        return 0.0
    return shift / event.noise_multiplier if event.noise_multiplier > 0 else math.inf


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), rounded up."""
    if mu == 0:
        return 0.0
    # Imported late, like dp-accounting: together they take a second, which reading a ledger or a claim
    # without pricing it should not cost.
    from scipy import special

    upper = float(special.log_ndtr(mu / 2 - epsilon / mu))
    if upper < -745:
        return 0.0  # below the smallest float
    lower = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    # log_ndtr is accurate to a few units in the last place, ε/μ to one.
    rounding = 8 * sys.float_info.epsilon * (1 + abs(upper) + abs(lower) + epsilon)
    value = math.exp(upper) * (-math.expm1(min(0.0, lower - upper)) + rounding)
    return min(1.0, value)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the smallest ε with `gaussian_delta` at most ``delta``, rounded up; may be infinite."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    # P[loss > high] ≤ δ by the Gaussian tail bound.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    if high == math.inf:  # beyond the largest float
        return math.inf
    delta_at = functools.partial(gaussian_delta, mu)
    return overflow.smallest(delta_at, delta, 0.0, high, tolerance=1e-13)
