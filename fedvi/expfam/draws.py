"""Draws θ from a member of any family, in NumPy float64, reproducibly from a seed."""

from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.base import DenseGaussian
from fedvi.typing import Eta

__all__ = ["thetas"]

# The most numbers to draw: 2 GB of float64.
_MOST = 250_000_000


def thetas(family: Any, posterior: Eta, count: int, seed: int) -> np.ndarray:
    """Draws θ ~ q, float64 [count, D]; the same for the same seed.

    Raises:
      ConfigError: ``count`` is below 1, or there would be too many numbers.
    """
    if count < 1:
        raise errors.ConfigError(f"draws is {count}, expected at least 1")
    if count * family.size > _MOST:
        raise errors.ConfigError(
            f"draws is {count}, of {family.size} numbers each: more than {_MOST:,} in all",
            f"ask for at most {max(1, _MOST // family.size)}, or take the means of the summary",
        )
    if isinstance(family, DenseGaussian):
        mean, root = map(np.asarray, family.location_root(posterior))
        noise = np.random.default_rng(seed).normal(size=(count, family.size))
        return mean + (noise @ root.T if root.ndim == 2 else noise * root)
    import jax

    with jax.enable_x64(True):
        return np.array(family.sample(jax.random.key(seed), posterior, (count,)), np.float64)
