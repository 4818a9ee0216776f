"""Writes an answer that is added up as whole numbers: the same at a site that masks, and at a server."""

from collections.abc import Mapping

import numpy as np

from fedvi import errors
from fedvi.updates.base import check_shapes

__all__ = ["LARGEST", "MASKED", "SHARES", "whole"]

MASKED = "masked"
"""The name of the array of a masked answer."""

SHARES = "shares"
"""The name of the array behind it, where some sites may be missing: a sealed share for each site."""

LARGEST = 2**53
"""Whole numbers up to here are float64, and so are their sums."""


def whole(
    value: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], step: float
) -> np.ndarray:
    """Returns an answer's numbers in units of the grid, one array after the other, by name.

    Args:
      value: an answer's arrays, float64, whole numbers times the step.
      shapes: of these arrays.
      step: of the grid.

    Returns:
      [D], float64, whole numbers.

    Raises:
      ProtocolError: the arrays are others, or hold what is on no grid.
    """
    check_shapes(dict(value), dict(shapes))
    flat = np.concatenate([np.ravel(value[name]) for name in sorted(shapes)])
    numbers = np.rint(flat / step) + 0.0  # no negative zero
    # The product is what was sent: the same two factors give the same bits.
    if not np.array_equal(numbers * step, flat):
        raise errors.ProtocolError(
            "an answer holds numbers that are not on the grid of the study's noise",
            "do all sites have the same version of fedvi?",
        )
    return numbers
