"""Gradient ascent over the numbers of one record, to find one that moves a total further.

The gradient is a finite difference of totals from the audited solver. JAX's gradient would need solvers
that can be traced, and the shipped rounding to a grid has slope zero. So the method works for any solver,
and costs one run more than there are numbers.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

__all__ = ["Numbers", "ascend"]

_NEAR = 0.05
"""Step of the finite differences. It changes a total by a few per cent, far more than rounding does."""

_MOST_DIRECTIONS = 16
"""With more numbers than this, the slope is taken along this many random directions."""

_FIRST, _SHORTEST = 0.5, 0.02
"""Step lengths in units of ``Numbers``: the first of a climb, and the one at which it stops."""

_GAIN = 1e-3
"""Relative gain along one gradient that is needed to compute another."""


class Numbers:
    """All numbers of some arrays of a record, on a scale on which one step length suits all sizes.

    The scale is arsinh in units of the array's median size: linear near 0, so that a number may change its
    sign, and logarithmic far out.

    Args:
      row: the record.
      free: names of the arrays, of floats.
    """

    def __init__(self, row: Mapping[str, np.ndarray], free: Sequence[str]) -> None:
        self._row = {name: np.asarray(row[name]) for name in free}
        self._units = {name: _median(value) for name, value in self._row.items()}

    @property
    def at(self) -> np.ndarray:
        """The record's position, [n]."""
        parts = [
            np.arcsinh(value.astype(np.float64).ravel() / self._units[name])
            for name, value in self._row.items()
        ]
        return np.concatenate(parts)

    def arrays(self, at: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the record's arrays at a position, clipped to finite numbers."""
        found, start = {}, 0
        for name, value in self._row.items():
            part = at[start : start + value.size]
            start += value.size
            most = float(np.finfo(value.dtype).max)
            with np.errstate(over="ignore"):
                grown = np.clip(self._units[name] * np.sinh(part), -most, most)
            found[name] = grown.reshape(value.shape).astype(value.dtype)
        return found


def _median(value: np.ndarray) -> float:
    """Returns the median absolute value of the non-zero numbers, or 1 if there are none."""
    sizes = np.abs(value[value != 0]).astype(np.float64)
    return float(np.median(sizes)) if sizes.size else 1.0


def ascend(
    value: Callable[[np.ndarray], float],
    start: np.ndarray,
    found: float,
    may_go_on: Callable[[], bool],
    generator: np.random.Generator,
) -> None:
    """Climbs along the gradient of ``value`` until the gain is small, or ``may_go_on`` is false.

    Args:
      value: the function to maximise; the caller records its results.
      start: the first position, [n].
      found: ``value(start)``.
      may_go_on: called before each evaluation.
      generator: draws directions if there are many numbers.
    """
    at, length, before = start, _FIRST, -np.inf
    while found > before + _GAIN * abs(found):
        before = found
        slope = np.zeros(at.size)
        for direction in _directions(generator, at.size):
            if not may_go_on():
                return
            slope += (value(at + _NEAR * direction) - found) * direction
        norm = float(np.linalg.norm(slope))
        if not (0.0 < norm < np.inf):
            return
        while True:
            if not may_go_on():
                return
            further = at + length / norm * slope
            reached = value(further)
            if reached > found:
                at, found, length = further, reached, 2.0 * length
            elif found > before:
                length /= 2.0
                break
            elif length <= _SHORTEST:
                return
            else:
                length /= 4.0


def _directions(generator: np.random.Generator, size: int) -> np.ndarray:
    """Returns orthonormal directions [k, n]: along each number, or a few random ones."""
    if size <= _MOST_DIRECTIONS:
        return np.eye(size)
    return np.linalg.qr(generator.standard_normal((size, _MOST_DIRECTIONS)))[0].T
