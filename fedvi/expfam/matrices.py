"""Products and parts of matrices, alone or stacked along leading axes; NumPy and JAX arrays alike."""

import functools
import math
from typing import Any

import numpy as np

__all__ = ["from_triangle", "outer", "symmetric", "triangle", "turned"]


def turned(matrices: Any) -> Any:
    """Returns the transposes."""
    return matrices.swapaxes(-1, -2)


def symmetric(matrices: Any) -> Any:
    """Returns half the sum of each matrix and its transpose."""
    return 0.5 * (matrices + turned(matrices))


def outer(left: Any, right: Any) -> Any:
    """Returns the outer products of vectors along the last axis."""
    return left[..., :, None] * right[..., None, :]


def triangle(size: int) -> tuple[Any, Any, np.ndarray]:
    """Returns rows and columns of a lower triangle, and for each entry 1, or √2 off the diagonal.

    A symmetric matrix has each entry off the diagonal twice: with these weights the norm of the triangle is
    the Frobenius norm of the matrix.
    """
    rows, columns = np.tril_indices(size)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))


def from_triangle(values: np.ndarray, size: int) -> np.ndarray:
    """Returns symmetric matrices [..., size, size] from their lower triangles by rows, without weights."""
    # "clip" writes where the result lies; no index is beyond the triangle.
    found = np.take(np.asarray(values, np.float64), _places(size), axis=-1, mode="clip")
    return found.reshape(*values.shape[:-1], size, size)


@functools.lru_cache(maxsize=16)
def _places(size: int) -> np.ndarray:
    """Returns for each entry of a matrix, by rows, its place in the lower triangle."""
    rows, columns = np.tril_indices(size)
    found = np.zeros((size, size), np.intp)
    found[rows, columns] = found[columns, rows] = np.arange(len(rows))
    return found.reshape(-1)
