"""Public coordinates of a regression's columns, learnt from the first sums: NumPy alone, for servers too."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedvi.expfam.gaussian import GaussianEta

if TYPE_CHECKING:
    from fedvi.inference.base import Fold, Standing

__all__ = ["Coordinates", "fold_inward", "of_survey", "standing_inward", "standing_outward"]


class Coordinates(NamedTuple):
    """The columns x̃_j = scale_j · (x_j − centre_j · x_c), and the coefficients z of which xᵀθ = x̃ᵀz.

    Since x_c is 1, a column is centred by what its coefficient shares with the intercept's.

    Attributes:
      centre: [D], float64; 0 for the constant column c.
      scale: [D], float64, above 0.
      constant: c.
    """

    centre: np.ndarray
    scale: np.ndarray
    constant: int

    def columns(self, theta_like: np.ndarray) -> np.ndarray:
        """Returns A v of v [D, …], where x̃ = A x: what gradients in θ are in z."""
        scale, centre = (_beside(part, theta_like) for part in (self.scale, self.centre))
        return np.asarray(scale * (theta_like - centre * theta_like[self.constant]))

    def columns_back(self, z_like: np.ndarray) -> np.ndarray:
        """Returns A⁻¹ v of v [D, …]: what gradients in z are in θ."""
        found = z_like / _beside(self.scale, z_like)
        return np.asarray(found + _beside(self.centre, z_like) * found[self.constant])

    def coefficients(self, theta: np.ndarray) -> np.ndarray:
        """Returns z = A⁻ᵀ θ of θ [D]."""
        z = np.asarray(theta, np.float64).copy()
        z[self.constant] += self.centre @ theta
        return z / self.scale

    def coefficients_back(self, z: np.ndarray) -> np.ndarray:
        """Returns θ = Aᵀ z of z [D]."""
        theta = np.asarray(z * self.scale)
        theta[self.constant] -= self.centre @ theta
        return theta

    def inward(self, eta: GaussianEta) -> GaussianEta:
        """Returns η, of θ, as one of z."""
        J = self.columns(self.columns(eta.J).T)
        return GaussianEta(self.columns(eta.h), (J + J.T) / 2.0)

    def outward(self, eta: GaussianEta) -> GaussianEta:
        """Returns η, of z, as one of θ."""
        J = self.columns_back(self.columns_back(eta.J).T)
        return GaussianEta(self.columns_back(eta.h), (J + J.T) / 2.0)


def of_survey(
    sums: GaussianEta,
    noise: float,
    pull: np.ndarray,
    constant: int,
    length: float,
    emphasis: float,
) -> Coordinates:
    """Makes coordinates in which all columns that stand out of the noise count alike.

    With N = Σ x_c, a column has the mean μ_j = Σ x_j / N and the sum of squares s_j = Σ x_j² − N μ_j².
    Its scale is √(N / (max(s_j, u) + p_j)): u, the sd of the noise in a sum, for what cannot be told
    from none, and p_j, what the prior counts for in records.

    Args:
      sums: (Σ x_j, diag of Σ x_j²), with noise: [D] and [D, D].
      noise: u.
      pull: p, [D].
      constant: c.
      length: the root mean square of ‖x̃‖, which scales are chosen for.
      emphasis: by how much the two sums over the constant column were multiplied.
    """
    counted = float(sums.h[constant] + sums.J[constant, constant]) / (2.0 * emphasis)
    count = max(counted, noise, 1.0)
    centre = sums.h / count
    centre[constant] = 0.0
    squares = np.diagonal(sums.J) - count * centre**2
    squares[constant] = count
    seen = np.maximum(squares, noise)
    scale = np.sqrt(count / (seen + pull))
    whole = float((scale**2 * np.maximum(squares, 0.0)).sum()) / count
    # The constant column alone has a length of about 1.
    return Coordinates(centre, scale * length / math.sqrt(max(whole, 1.0)), constant)


def fold_inward(at: Coordinates, fold: "Fold") -> "Fold":
    """Returns a fold of which every η is one of z."""
    # Tasks share posteriors: what is one array stays one.
    once: dict[int, GaussianEta] = {}

    def of(eta: GaussianEta) -> GaussianEta:
        if id(eta) not in once:
            once[id(eta)] = at.inward(eta)
        return once[id(eta)]

    def of_all(etas: Mapping[str, Any]) -> dict[str, Any]:
        return {name: of(eta) for name, eta in etas.items()}

    return fold._replace(
        prior=of(fold.prior),
        known=of(fold.known),
        posterior=of(fold.posterior),
        factors=of_all(fold.factors),
        asked=of_all(fold.asked),
    )


def standing_inward(at: Coordinates, standing: "Standing") -> "Standing":
    """Returns a standing of which every η and every place is one of z."""
    return _moved(standing, at.inward, at.columns, at.coefficients)


def standing_outward(at: Coordinates, standing: "Standing") -> "Standing":
    """Returns a standing in z as one of θ."""
    return _moved(standing, at.outward, at.columns_back, at.coefficients_back)


def _moved(standing: "Standing", of: Any, gradient: Any, place: Any) -> "Standing":
    def of_gradient(pair: GaussianEta) -> GaussianEta:
        return GaussianEta(gradient(pair.h), place(pair.J))

    curvature = of(standing.curvature)
    return standing._replace(
        handed_out=of(standing.handed_out),
        reported=of(standing.reported),
        curvature=GaussianEta(place(standing.curvature.h), curvature.J),
        sites={name: of_gradient(site) for name, site in standing.sites.items()},
        gradient=None if standing.gradient is None else of_gradient(standing.gradient),
        reference=None if standing.reference is None else of(standing.reference),
    )


def _beside(part: np.ndarray, array: np.ndarray) -> np.ndarray:
    return part.reshape(-1, *(1,) * (array.ndim - 1))
