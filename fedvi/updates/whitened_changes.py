"""The prior's coordinates, in which a whole change Δη is clipped and noised; NumPy only, for servers.

θ = m₀ + L₀ z with L₀ L₀ᵀ = J₀⁻¹ of the prior, which the study states. In z, the exponent hᵀθ − ½ θᵀJθ
is h_zᵀz − ½ zᵀJ_z z with h_z = L₀ᵀ (h − J m₀) and J_z = L₀ᵀ J L₀, up to a constant. h and J have
different units, which depend on those of θ; in these coordinates one clip norm suits both.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy

from fedvi.expfam.gaussian import GaussianEta

__all__ = ["PriorFrame", "from_vector", "to_vector"]


class PriorFrame(NamedTuple):
    """The prior's mean m₀ [D] and root L₀ ([D, D], or [D] for the diagonal family), float64; public."""

    mean: np.ndarray
    root: np.ndarray


def to_vector(frame: PriorFrame, change: GaussianEta) -> np.ndarray:
    """Returns (h_z, J_z) as one vector, whose L2 norm is that of h_z and J_z together.

    A full J_z is represented by its lower triangle, with off-diagonal entries times √2 because each occurs
    twice in the matrix. Without that factor the matrix could move up to √2 times as far as the vector.

    Args:
      frame: of the prior.
      change: Δη, float64; J symmetric.

    Returns:
      [D + D(D+1)/2], or [2D] for the diagonal family, float64.

    >>> frame = PriorFrame(np.zeros(2), np.eye(2))
    >>> change = GaussianEta(np.array([3.0, 0.0]), np.array([[1.0, 2.0], [2.0, -1.0]]))
    >>> float(round(to_vector(frame, change) @ to_vector(frame, change), 12))
    19.0
    """
    root = frame.root
    if root.ndim == 1:
        return np.concatenate([root * (change.h - change.J * frame.mean), root**2 * change.J])
    location = root.T @ (change.h - change.J @ frame.mean)
    curvature = root.T @ change.J @ root
    rows, columns, weights = _triangle(len(location))
    return np.concatenate([location, weights * curvature[rows, columns]])


def from_vector(frame: PriorFrame, vector: np.ndarray) -> GaussianEta:
    """Returns the change Δη that ``to_vector`` maps to a vector; J exactly symmetric.

    >>> frame = PriorFrame(np.ones(2), np.diag([2.0, 0.5]))
    >>> change = GaussianEta(np.array([3.0, 0.0]), np.array([[1.0, 2.0], [2.0, -1.0]]))
    >>> from_vector(frame, to_vector(frame, change)).J.round(12).tolist()
    [[1.0, 2.0], [2.0, -1.0]]
    """
    size, root = len(frame.mean), frame.root
    if root.ndim == 1:
        precision = vector[size:] / root**2
        return GaussianEta(vector[:size] / root + precision * frame.mean, precision)
    rows, columns, weights = _triangle(size)
    curvature = np.zeros((size, size))
    curvature[rows, columns] = curvature[columns, rows] = vector[size:] / weights
    half = scipy.linalg.solve_triangular(root, curvature, lower=True, trans="T")
    found = scipy.linalg.solve_triangular(root, half.T, lower=True, trans="T")
    precision = 0.5 * (found + found.T)
    location = scipy.linalg.solve_triangular(root, vector[:size], lower=True, trans="T")
    return GaussianEta(location + precision @ frame.mean, precision)


def _triangle(size: int) -> tuple[Any, Any, np.ndarray]:
    """Returns the indices of a lower triangle and the multiplier of each entry."""
    rows, columns = np.tril_indices(size)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))
