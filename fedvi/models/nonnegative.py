"""Makes noisy counts non-negative, as post-processing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvi.expfam import tree
from fedvi.typing import Eta

__all__ = ["TIDY", "above_noise", "kept_sums", "onto_simplex", "positive"]

_Array = NDArray[Any]


def onto_simplex(found: _Array, spread: float, mass: float | None) -> _Array:
    """Returns the nearest array without negative entries that has the sum ``mass``, or its own sum if None.

    This counters noise that makes many empty cells positive: what ``positive`` would add is subtracted
    equally from all cells. If the sum is not positive, all entries are 0.

    >>> onto_simplex(np.array([[3.0, -2.0], [0.5, 0.5]]), 1.0, None).tolist()
    [[2.0, 0.0], [0.0, 0.0]]

    Source: Held, Wolfe and Crowder (1974), for the projection by sorting.
    """
    whole = float(found.sum()) if mass is None else mass
    if whole <= 0.0:
        return np.zeros_like(found)
    falling = np.sort(found, axis=None)[::-1]
    surplus = (np.cumsum(falling) - whole) / np.arange(1, falling.size + 1)
    # The first entry exceeds its surplus by the mass, except for rounding.
    above = np.flatnonzero(falling > surplus)
    return np.maximum(found - surplus[above[-1] if above.size else 0], 0.0)


def kept_sums(prior: Eta, total: Eta) -> Eta:
    """Returns prior + total, with the nearest counts of at least 0 that have the same sums."""
    return tree.map_leaves(lambda own, found: own + onto_simplex(found, 0.0, None), prior, total)


def above_noise(found: _Array, spread: float, mass: float | None) -> _Array:
    """Returns the array with entries below two standard deviations of the noise set to 0."""
    return np.where(found > 2.0 * spread, found, 0.0)


def positive(found: _Array, spread: float, mass: float | None) -> _Array:
    """Returns the array with negative entries set to 0."""
    return np.maximum(found, 0.0)


TIDY = {"simplex": onto_simplex, "relu": positive, "threshold": above_noise}
"""The methods, by their names in a study."""
