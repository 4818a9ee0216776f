"""Converts answers on a grid to whole numbers for summation; sites and server share this code."""

from collections.abc import Mapping

import numpy as np

from fedvi import errors
from fedvi.updates.base import check_shapes

__all__ = ["LARGEST", "MASKED", "SHARES", "whole"]

MASKED = "masked"
"""The name of the array of a masked answer."""

SHARES = "shares"
"""The name of the array after it, if sites may be missing: a sealed share for each site."""

LARGEST = 2**53
"""float64 represents whole numbers, and their sums, exactly up to here."""


def whole(
    value: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], step: float
) -> np.ndarray:
    """Returns an answer's arrays in units of the grid, concatenated in order of name.

    Args:
      value: an answer's arrays, float64, whole numbers times the step.
      shapes: of these arrays.
      step: of the grid.

    Returns:
      [D], float64, whole numbers.

    Raises:
      ProtocolError: names or shapes differ, or a value is not on the grid.
    """
    check_shapes(dict(value), dict(shapes))
    flat = np.concatenate([np.ravel(value[name]) for name in sorted(shapes)])
    numbers = np.rint(flat / step) + 0.0  # no negative zero
    # The site sent this very product, so multiplying again must give the same bits.
    if not np.array_equal(numbers * step, flat):
        raise errors.ProtocolError(
            "an answer holds numbers that are not on the grid of the study's noise",
            "do all sites have the same version of fedvi?",
        )
    return numbers
