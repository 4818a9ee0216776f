"""Discrete Gaussian noise, for sums in which each client adds a share of the noise."""

import dataclasses
import functools
import math
import sys
from typing import Any, ClassVar

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.base import Grid, Shift
from fedvi.privacy.mechanisms import _alias
from fedvi.privacy.noise_table import TABLE_DISTANCE, variance
from fedvi.typing import Key

__all__ = ["DiscreteGaussian", "discrete_gaussian"]


@dataclasses.dataclass(frozen=True)
class DiscreteGaussian:
    """total + X in whole steps of the grid, P[X = k] ∝ exp(−k² / 2σ²) in each coordinate.

    ``perturb`` adds one of ``terms`` equal shares. ``noise_multiplier`` and the event describe the sum of
    all shares, for an observer of that sum only. One share alone has noise_multiplier / √terms.

    Guarantee: for one term the concentrated privacy of the Gaussian, (shift / σ)² / 2; for a sum
    (shift / σ + τ·√d)² / 2, τ = 10·Σ_{k<terms} exp(−2π²s²·k / (k + 1)), s the std of one share in
    steps. Each number of the sum is within ``distance`` of its law in total variation.

    Attributes:
      noise_multiplier: std of all shares together ÷ clip norm.
      terms: how many clients add a share.
      size: d, how many coordinates are released together; enters the slack of sums.
      fineness: as for the rounded Gaussian: a + M·b is discrete Gaussian up to e⁻⁵⁰⁰⁰.

    Source: Canonne, Kamath and Steinke (2020), arXiv:2004.00010, Theorem 4; Kairouz, Liu and
    Steinke (2021), arXiv:2102.06387, Proposition 14; Micciancio and Walter (2017), a + M·b.
    """

    noise_multiplier: float
    terms: int
    size: int
    fineness: int
    mark: ClassVar[str] = ""  # the accountant's discrete Gaussian is what is drawn

    @property
    def distance(self) -> float:
        """Bound on the total variation between the noise of one coordinate of the sum and its law.

        The event is that of the sum of all ``terms`` shares, and each share adds its own distance.
        """
        if self.noise_multiplier == 0.0:
            return 0.0
        return TABLE_DISTANCE * self.terms * (1 if self.fineness == 1 else 2)

    def grid(self, clip_norm: float) -> Grid | None:
        """Returns the grid: g = σ·C / (√terms · σ_int); None without noise."""
        return _alias.grid(self.noise_multiplier, clip_norm, self.fineness, self.terms)

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        """Returns the tree of integers with one share of noise; use ``key`` for nothing else."""
        if self.noise_multiplier == 0.0:
            return total
        return _alias.perturb("discrete_gaussian", self.fineness, key, total)

    def event(self, shift: Shift) -> events.Event:
        """Returns the discrete Gaussian event of the sum of all shares, shifts in clip norms."""
        exponent = math.pi**2 * variance(self.fineness)
        # Each of the terms − 1 summands is at most exp(−π²σ²), which is below the least float.
        least = max(math.exp(-exponent), sys.float_info.min)
        slack = 10.0 * (self.terms - 1) * least * math.sqrt(self.size)
        priced = functools.partial(events.DiscreteGaussian, self.noise_multiplier, slack=slack)
        return shift.event(priced)


def discrete_gaussian(
    noise_multiplier: float, terms: int = 1, size: int = 1, fineness: int | None = None
) -> DiscreteGaussian:
    """Returns discrete Gaussian noise; ``terms`` clients together reach noise_multiplier · C.

    Args:
      noise_multiplier: of the sum of all shares; 0 for no noise, else at least 0.1.
      terms: how many clients add a share.
      size: d, how many coordinates are released together; needed if terms > 1.
      fineness: a power of two up to 256, as in `rounded_gaussian`.

    Raises:
      PrivacyError: if an argument is outside these ranges.
    """
    noise = _alias.check_noise(noise_multiplier)
    for name, value in (("terms", terms), ("size", size)):
        if value < 1:
            raise errors.PrivacyError(f"{name} is {value}, expected at least 1")
    return DiscreteGaussian(noise, terms, size, _alias.check_fineness(fineness, noise))
