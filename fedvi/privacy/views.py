"""Splits the noise of a sum among the clients; ``fedvi.privacy.sums`` prices the noise of the sum."""

import math

from fedvi.errors import ConfigError

__all__ = ["share"]


def share(noise_multiplier: float, clients: int, least_reporting: int | None = None) -> float:
    """Returns the noise multiplier at which each client adds its own noise.

    It is σ ÷ √k_min, since k_min independent shares sum to noise of multiplier σ. By default k_min = M,
    so that all clients must answer; otherwise k_min answers suffice.

    Args:
      noise_multiplier: σ of the sum: noise std ÷ clip norm of one client's answer.
      clients: M, the number of clients.
      least_reporting: k_min; a round with fewer answers is abandoned. M if None.

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
