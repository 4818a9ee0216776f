"""The prior's coordinates, in which a whole change Δη is clipped and noised; NumPy only, for servers.

θ = m₀ + L₀ z with L₀ L₀ᵀ = J₀⁻¹ of the prior, which the study states. In z, the exponent hᵀθ − ½ θᵀJθ
is h_zᵀz − ½ zᵀJ_z z with h_z = L₀ᵀ (h − J m₀) and J_z = L₀ᵀ J L₀, up to a constant. h and J have
different units, which depend on those of θ; in these coordinates one clip norm suits both.
"""

from typing import NamedTuple

import numpy as np
import scipy

from fedvi.expfam.gaussian import GaussianEta
from fedvi.expfam.matrices import from_triangle, symmetric, triangle

__all__ = ["PriorFrame", "from_vector", "to_vector"]


class PriorFrame(NamedTuple):
    """The prior's mean m₀ [D] and root L₀ ([D, D], or [D] for the diagonal family), float64; public."""

    mean: np.ndarray
    root: np.ndarray

    def location(self, theta: np.ndarray) -> np.ndarray:
        """Converts θ to z."""
        shift = theta - self.mean
        if self.root.ndim == 1:
            return np.asarray(shift / self.root)
        return np.asarray(scipy.linalg.solve_triangular(self.root, shift, lower=True))

    def inward(self, eta: GaussianEta) -> GaussianEta:
        """Converts η from θ to z."""
        root = self.root
        if root.ndim == 1:
            return GaussianEta(root * (eta.h - eta.J * self.mean), root**2 * eta.J)
        return GaussianEta(root.T @ (eta.h - eta.J @ self.mean), root.T @ eta.J @ root)

    def outward(self, eta: GaussianEta) -> GaussianEta:
        """Converts η from z to θ; J exactly symmetric."""
        if self.root.ndim == 1:
            precision = eta.J / self.root**2
            return GaussianEta(eta.h / self.root + precision * self.mean, precision)

        def back(values: np.ndarray) -> np.ndarray:
            return np.asarray(
                scipy.linalg.solve_triangular(self.root, values, lower=True, trans="T")
            )

        precision = symmetric(back(back(eta.J).T))
        return GaussianEta(back(eta.h) + precision @ self.mean, precision)


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
    location, curvature = frame.inward(change)
    if curvature.ndim == 2:
        rows, columns, weights = triangle(len(location))
        curvature = weights * curvature[rows, columns]
    return np.concatenate([location, curvature])


def from_vector(frame: PriorFrame, vector: np.ndarray) -> GaussianEta:
    """Returns the change Δη that ``to_vector`` maps to a vector; J exactly symmetric.

    >>> frame = PriorFrame(np.ones(2), np.diag([2.0, 0.5]))
    >>> change = GaussianEta(np.array([3.0, 0.0]), np.array([[1.0, 2.0], [2.0, -1.0]]))
    >>> from_vector(frame, to_vector(frame, change)).J.round(12).tolist()
    [[1.0, 2.0], [2.0, -1.0]]
    """
    size = len(frame.mean)
    location, curvature = vector[:size], vector[size:]
    if frame.root.ndim == 2:
        curvature = from_triangle(curvature / triangle(size)[2], size)
    return frame.outward(GaussianEta(location, curvature))
