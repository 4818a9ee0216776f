"""Gaussian noise in floating point, for simulation only."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.flatten_util

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.base import Grid, Shift
from fedvi.typing import Key

__all__ = ["Gaussian", "gaussian"]


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """total + N(0, (noise_multiplier · clip_norm)² I) in floating point.

    Guarantee: none in a formal sense. The float32 normal generator returns 2²³ values, and
    the sum of total and noise is rounded, so the Gaussian mechanism's price holds for an idealised
    machine only, whatever the key; hence the mark.
    """

    noise_multiplier: float
    mark: ClassVar[str] = "simulation: no guarantee"

    def grid(self, clip_norm: float) -> Grid | None:
        """Returns None: totals stay in floating point."""
        return None

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        """Returns the noised tree, in its own shapes and dtypes."""
        if self.noise_multiplier == 0.0:
            return total
        if not math.isfinite(clip_norm):
            raise errors.PrivacyError(
                f"clip_norm is {clip_norm} with noise_multiplier {self.noise_multiplier}",
                "noise is measured in clip norms: give a finite clip_norm, or noise_multiplier 0",
            )
        flat, unravel = jax.flatten_util.ravel_pytree(total)
        noise = jax.random.normal(key, flat.shape, flat.dtype)
        return unravel(flat + self.noise_multiplier * clip_norm * noise)

    def event(self, shift: Shift) -> events.Event:
        """Returns the Gaussian event, with shifts in clip norms."""
        return shift.event(functools.partial(events.Gaussian, self.noise_multiplier))


def gaussian(noise_multiplier: float) -> Gaussian:
    """Returns float Gaussian noise of std noise_multiplier · clip_norm; every claim is then marked.

    Raises:
      PrivacyError: if ``noise_multiplier`` is negative or not finite.
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0.0):
        raise errors.PrivacyError(
            f"noise_multiplier is {noise_multiplier}, expected a finite number of at least 0"
        )
    return Gaussian(float(noise_multiplier))
