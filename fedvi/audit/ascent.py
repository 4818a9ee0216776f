"""A climb by gradient over the numbers of one record, to a total that moves further.

The gradient is taken by differences, of totals as the solver that is audited makes them. JAX's own would
need every solver to let a tracer through, and the rounding to a grid, which ships, has slope zero. So it is
the same for each solver, asks none what it is, and costs one run more than there are numbers.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

__all__ = ["Numbers", "ascend"]

_NEAR = 0.05
"""A difference: far beyond the rounding of a total, of which it makes some per cent."""

_MOST_DIRECTIONS = 16
"""Of more numbers the slope is taken along so many directions drawn at random."""

_FIRST, _SHORTEST = 0.5, 0.02
"""Steps, in units of ``Numbers``: the first of a climb, and one that is too short to go on."""

_GAIN = 1e-3
"""What a step along one gradient must add for another to be taken."""


class Numbers:
    """All numbers of some arrays of a record, on a scale on which one step suits large and small ones.

    The scale is arsinh in units of the array's median size: straight through 0, so that a number may turn
    around, and logarithmic far out.

    Args:
      row: the record.
      free: names of the arrays, of floats.
    """

    def __init__(self, row: Mapping[str, np.ndarray], free: Sequence[str]) -> None:
        self._row = {name: np.asarray(row[name]) for name in free}
        self._units = {name: _median(value) for name, value in self._row.items()}

    @property
    def at(self) -> np.ndarray:
        """Where the record is, [n]."""
        parts = [
            np.arcsinh(value.astype(np.float64).ravel() / self._units[name])
            for name, value in self._row.items()
        ]
        return np.concatenate(parts)

    def arrays(self, at: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays that are there, of finite numbers."""
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
    """The median size of what is not 0, or 1."""
    sizes = np.abs(value[value != 0]).astype(np.float64)
    return float(np.median(sizes)) if sizes.size else 1.0


def ascend(
    value: Callable[[np.ndarray], float],
    start: np.ndarray,
    found: float,
    may_go_on: Callable[[], bool],
    generator: np.random.Generator,
) -> None:
    """Climbs along the gradient of ``value`` until that hardly helps, or may not go on.

    Args:
      value: what is to become large. Whoever gives it keeps what is found.
      start: where to begin, [n].
      found: ``value`` there.
      may_go_on: asked before each value.
      generator: of the directions, where there are many numbers.
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
    """Returns orthonormal directions [k, n]: along each number, or a few that are drawn at random."""
    if size <= _MOST_DIRECTIONS:
        return np.eye(size)
    return np.linalg.qr(generator.standard_normal((size, _MOST_DIRECTIONS)))[0].T
