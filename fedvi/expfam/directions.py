"""The public directions of low-rank Gaussians: groups of coefficients, smooth ones, random ones."""

import dataclasses
import math

import numpy as np

__all__ = ["GroupDirections", "random_directions", "smooth_directions"]


def random_directions(size: int, rank: int, seed: int) -> np.ndarray:
    """Returns B [size, rank]: random columns of the cosine transform, with random signs of the rows.

    Its columns are orthonormal, and no coordinate is favoured: every row's squared norm is at most
    2·rank/size. Made of integers of a fixed generator and of cosines, it is the same on every machine
    up to the last bits of a cosine. The constant column is never taken, which keeps every coordinate
    vector out of the span: the family's parameters are identified.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    frequencies = 1 + generator.permutation(size - 1)[:rank]
    signs = 1.0 - 2.0 * generator.integers(0, 2, size)
    angles = np.pi / size * (np.arange(size) + 0.5)
    return math.sqrt(2.0 / size) * signs[:, None] * np.cos(angles[:, None] * frequencies[None, :])


def smooth_directions(size: int, rank: int, seed: int) -> np.ndarray:
    """Returns B [size, rank]: the slowest columns of the cosine transform, the constant one first.

    For coordinates in an order in which neighbours go together, such as wavelengths or days.
    """
    angles = np.pi / size * (np.arange(size) + 0.5)
    basis = math.sqrt(2.0 / size) * np.cos(angles[:, None] * np.arange(rank)[None, :])
    basis[:, 0] = size**-0.5
    return basis


@dataclasses.dataclass(frozen=True)
class GroupDirections:
    """Directions of coordinates that go together: of each group the sum, over the root of its size.

    Args:
      groups: how many coordinates each has, in their order; a group of 1 stands alone, without a
        direction, and so do those after the last.
    """

    groups: tuple[int, ...]

    def __call__(self, size: int, rank: int, seed: int) -> np.ndarray:
        """Returns B [size, rank], with one column for each group of two or more."""
        basis, first, column = np.zeros((size, rank)), 0, 0
        for count in self.groups:
            if count > 1:
                basis[first : first + count, column] = count**-0.5
                column += 1
            first += count
        return basis
