"""Helpers for models that simulate records in NumPy: labels, proportions and draws of levels."""

import math

import numpy as np

__all__ = ["LIKELIHOOD", "levels_drawn", "numbered", "points", "shares"]

LIKELIHOOD = "mean log-likelihood"
"""The usual measure for whole records: the mean of log ∫ p(record | θ) q(θ) dθ."""


def numbered(count: int, first: int = 0) -> tuple[str, ...]:
    """Returns ``count`` labels, "0", "1", … for ``first`` = 0."""
    return tuple(map(str, range(first, first + count)))


def points(count: int, width: int, norm: float, random: np.random.Generator) -> np.ndarray:
    """Draws points [count, width] in all directions, of lengths up to three times ``norm``."""
    drawn = random.standard_normal((count, width))
    size = norm * random.uniform(0.0, 3.0, (count, 1))
    return np.asarray(size * drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def shares(values: np.ndarray) -> np.ndarray:
    """Returns proportions that add up to 1 to the last bit, as NumPy's generators require."""
    return values / math.fsum(values)


def levels_drawn(proportions: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws one level from each row of proportions [n, L]."""
    ends = np.cumsum(proportions, axis=1)
    at = random.uniform(size=(len(ends), 1)) * ends[:, -1:]
    found: np.ndarray = (at >= ends).sum(axis=1)
    # Rounding may put it at the very end.
    return np.minimum(found, proportions.shape[1] - 1)
