"""The public directions of low-rank Gaussians: random, smooth, or by groups of coefficients."""

import dataclasses
import math

import numpy as np

__all__ = ["GroupDirections", "random_directions", "smooth_directions"]


def random_directions(size: int, rank: int, seed: int) -> np.ndarray:
    """Returns B [size, rank]: random columns of the cosine transform, with random signs of the rows.

    Its columns are orthonormal, and no coordinate is favoured: every row's squared norm is at most
    2·rank/size. It is made from integers of a fixed generator and from cosines, so it is the same on every
    machine up to the last bits of a cosine. The constant column is never used. That keeps every coordinate
    vector out of the span, so the family's parameters are identified.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    frequencies = 1 + generator.permutation(size - 1)[:rank]
    signs = 1.0 - 2.0 * generator.integers(0, 2, size)
    angles = np.pi / size * (np.arange(size) + 0.5)
    return math.sqrt(2.0 / size) * signs[:, None] * np.cos(angles[:, None] * frequencies[None, :])


def smooth_directions(size: int, rank: int, seed: int) -> np.ndarray:
    """Returns B [size, rank]: the slowest columns of the cosine transform, the constant one first.

    For coordinates ordered so that neighbours are similar, such as wavelengths or days.
    """
    angles = np.pi / size * (np.arange(size) + 0.5)
    basis = math.sqrt(2.0 / size) * np.cos(angles[:, None] * np.arange(rank)[None, :])
    basis[:, 0] = size**-0.5
    return basis


@dataclasses.dataclass(frozen=True)
class GroupDirections:
    """Directions by groups of coordinates: the sum of each group over the root of its size.

    Args:
      groups: the sizes of consecutive groups. A group of 1 has no direction, and neither have
        coordinates after the last group.
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
