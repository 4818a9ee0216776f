"""Shares the noise of a sum among the clients that add it up.

What is then left of it for whoever sees sums alone is in ``fedvi.privacy.sums``.
"""

import math

from fedvi.errors import ConfigError

__all__ = ["share"]


def share(noise_multiplier: float, clients: int, least_reporting: int | None = None) -> float:
    """Returns the noise multiplier at which each client adds its own noise.

    σ ÷ √k_min: k_min independent shares sum to noise of multiplier σ. Without a floor k_min = M,
    and every client that drops out is missed; with one, k_min answers suffice.

    Args:
      noise_multiplier: σ of the sum, noise std ÷ clip norm of one client's answer.
      clients: M, all that take part.
      least_reporting: k_min, the number of answers below which a round is given up; M if None.

    Raises:
      ConfigError: a number is outside its range.

    >>> share(4.0, 16)
    1.0
    >>> share(4.0, 16, least_reporting=4)
    2.0
    """
    if not 0 < noise_multiplier < math.inf:
        raise ConfigError(
            f"noise_multiplier is {noise_multiplier}, expected a finite number above 0"
        )
    if clients < 1:
        raise ConfigError(f"clients is {clients}, expected 1 or more")
    least = clients if least_reporting is None else least_reporting
    if not 1 <= least <= clients:
        raise ConfigError(f"least_reporting is {least}, expected 1 to `clients`, {clients}")
    return noise_multiplier / math.sqrt(least)
