"""Gaussian noise rounded to whole steps of a grid: the default noise of private studies."""

import dataclasses
import functools
from typing import Any, ClassVar

from fedvi.privacy import events
from fedvi.privacy.base import Grid, Shift
from fedvi.privacy.mechanisms import _alias
from fedvi.privacy.noise_table import TABLE_DISTANCE
from fedvi.typing import Key

__all__ = ["RoundedGaussian", "rounded_gaussian"]


@dataclasses.dataclass(frozen=True)
class RoundedGaussian:
    """total + round(Z) in whole steps of the grid, Z ~ N(0, σ²) in each coordinate.

    Guarantee: the price of the Gaussian mechanism of the same noise multiplier, for every sampler,
    relation and dimension, up to ``distance`` in total variation a released number. Proof: a total
    x on the grid is whole, so x + round(Z) = round(x + Z), which is post-processing of x + Z. With
    fineness M > 1 the noise is a + M·b, both rounded Gaussian: the law of round(x + Z + M·U), U
    uniform on [−½, ½], up to e⁻⁵⁰⁰⁰. In full: docs/proofs/rounded_gaussian.md.

    Attributes:
      noise_multiplier: noise std ÷ clip norm.
      fineness: M; the grid has σ = 4,096 steps at 1, and about 4,096·M steps above.
    """

    noise_multiplier: float
    fineness: int
    mark: ClassVar[str] = ""  # the accountant's Gaussian is what is drawn

    @property
    def distance(self) -> float:
        """Bound on the total variation between the noise of one released coordinate and its law."""
        if self.noise_multiplier == 0.0:
            return 0.0
        return TABLE_DISTANCE * (1 if self.fineness == 1 else 2)

    def grid(self, clip_norm: float) -> Grid | None:
        """Returns the grid: g = σ·C / σ_int, bound ⌊(σ_int / σ)²⌋; None without noise."""
        return _alias.grid(self.noise_multiplier, clip_norm, self.fineness)

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        """Returns the noised tree of integers; use ``key`` for nothing else."""
        if self.noise_multiplier == 0.0:
            return total
        return _alias.perturb("rounded_gaussian", self.fineness, key, total)

    def event(self, shift: Shift) -> events.Event:
        """Returns the Gaussian event, with shifts in clip norms."""
        return shift.event(functools.partial(events.Gaussian, self.noise_multiplier))


def rounded_gaussian(noise_multiplier: float, fineness: int | None = None) -> RoundedGaussian:
    """Returns rounded Gaussian noise of std noise_multiplier · clip_norm.

    Args:
      noise_multiplier: 0 for no noise (and an infinite ε), else at least 0.1.
      fineness: a power of two up to 256. Raise it to release very many coordinates, since rounding d of
        them takes √d / 2 steps off the clip norm. By default the least one that is not below
        ``noise_multiplier``, so that C is at least 4,096 steps (unless that would exceed 256). Above 1,
        each coordinate takes two draws.

    Raises:
      PrivacyError: if an argument is outside these ranges.
    """
    noise = _alias.check_noise(noise_multiplier)
    return RoundedGaussian(noise, _alias.check_fineness(fineness, noise))
