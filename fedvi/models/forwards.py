"""What models share that are run forwards, in NumPy: labels, proportions and draws of levels."""

import math

import numpy as np

__all__ = ["LIKELIHOOD", "levels_drawn", "numbered", "shares"]

LIKELIHOOD = "mean log-likelihood"
"""The usual measure of whole records: of log ∫ p(record | θ) q(θ) dθ."""


def numbered(count: int, first: int = 0) -> tuple[str, ...]:
    """Returns so many labels, "0", "1", …"""
    return tuple(map(str, range(first, first + count)))


def shares(values: np.ndarray) -> np.ndarray:
    """Returns proportions that add up to 1 to the last bit, as generators want them."""
    return values / math.fsum(values)


def levels_drawn(proportions: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws one level from each row of proportions [n, L]."""
    ends = np.cumsum(proportions, axis=1)
    at = random.uniform(size=(len(ends), 1)) * ends[:, -1:]
    found: np.ndarray = (at >= ends).sum(axis=1)
    # A rounding may put it at the very end.
    return np.minimum(found, proportions.shape[1] - 1)
