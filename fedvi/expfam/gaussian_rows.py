"""Many full Gaussians of one size side by side, for rows of weights.

q(θ) = ∏ₚ N(θₚ; Jₚ⁻¹hₚ, Jₚ⁻¹) over P rows of K numbers each, θ flat in C order: what a ``product`` of P
full Gaussians would hold, as one h [P, K] and one J [P, K, K]. T(θ) = (θₚ, −½ θₚθₚᵀ).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.base import PROJECTION_FRACTION, ROUNDING_FRACTION, SMALLEST, check_size
from fedvi.expfam.gaussian import GaussianEta
from fedvi.expfam.mapped_arrays import is_finite
from fedvi.typing import Key, Theta

__all__ = ["GaussianRows", "gaussian_rows"]

_LOG_2PI = math.log(2.0 * math.pi)
# Numbers of J in a piece: 8 MiB.
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class GaussianRows:
    """``rows`` independent Gaussians with any covariance over ``width`` numbers each.

    >>> family = GaussianRows(2, 3)
    >>> family.size, family.number_count, family.isotropic(2.0).J.shape
    (6, 18, (2, 3, 3))
    """

    rows: int
    width: int

    def __post_init__(self) -> None:
        check_size(self.rows)
        check_size(self.width)

    @property
    def size(self) -> int:
        """P·K."""
        return self.rows * self.width

    @property
    def number_count(self) -> int:
        """K numbers of h and K(K+1)/2 of the symmetric J in each row."""
        return self.rows * (self.width + self.width * (self.width + 1) // 2)

    def zeros(self) -> GaussianEta:
        """Returns the factor 1."""
        shape = (self.rows, self.width)
        return GaussianEta(np.zeros(shape), np.zeros((*shape, self.width)))

    def blocks(self, *etas: GaussianEta) -> Iterator[tuple[GaussianEta, ...]]:
        """Cuts natural parameters into pieces of as many rows as are computed in one go."""
        step = max(1, _BLOCK // self.width**2)
        for start in range(0, self.rows, step):
            piece = slice(start, start + step)
            yield tuple(GaussianEta(eta.h[piece], eta.J[piece]) for eta in etas)

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless h is [P, K], J is [P, K, K] and symmetric, and all are finite."""
        if type(eta) is not GaussianEta:
            raise errors.FamilyError(f"{name} is {type(eta).__name__}, expected GaussianEta(h, J)")
        for field, found, like in zip(eta._fields, eta, self.zeros(), strict=True):
            if np.shape(found) != like.shape:
                raise errors.FamilyError(
                    f"{name}.{field} has shape {np.shape(found)}, expected {like.shape}",
                    f"the family is gaussian_rows({self.rows}, {self.width}); model, prior and factors "
                    "must share its sizes",
                )
        if not (is_finite(eta.h) and is_finite(eta.J)):
            raise errors.FamilyError(f"{name} holds NaN or infinite numbers")
        if not np.allclose(eta.J, _transposed(np.asarray(eta.J)), rtol=1e-9, atol=1e-9):
            raise errors.FamilyError(f"{name}.J is not symmetric", "send (J + Jᵀ) / 2 of each row")

    def isotropic(self, scale: float, mean: float = 0.0) -> GaussianEta:
        """Returns η of independent N(mean, scale²)."""
        shape = (self.rows, self.width, self.width)
        precision = np.broadcast_to(np.eye(self.width) / scale**2, shape).copy()
        return GaussianEta(np.full(shape[:2], mean / scale**2), precision)

    def from_moments(self, mean: Any, covariance: Any) -> GaussianEta:
        """Returns η of rows N(mean [P, K], covariance [P, K, K])."""
        xp = mean.__array_namespace__()
        precision = _symmetric(xp.linalg.inv(covariance))
        return GaussianEta(_times(precision, mean), precision)

    def location_covariance(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [P, K] and the covariances [P, K, K] of a proper member."""
        xp = eta.J.__array_namespace__()
        covariance = _symmetric(xp.linalg.inv(eta.J))
        return _solved(eta.J, eta.h), covariance

    def log_partition(self, eta: GaussianEta) -> Any:
        """Returns A(η) = Σₚ ½ hᵀJ⁻¹h − ½ log|J| + (K/2) log 2π."""
        xp = eta.J.__array_namespace__()
        quadratic = (eta.h * _solved(eta.J, eta.h)).sum()
        return 0.5 * (quadratic - xp.linalg.slogdet(eta.J)[1].sum() + eta.h.size * _LOG_2PI)

    def mean(self, eta: GaussianEta) -> GaussianEta:
        """Returns μ = (E[θₚ], −½ E[θₚθₚᵀ])."""
        location, covariance = self.location_covariance(eta)
        return GaussianEta(location, -0.5 * (covariance + _squares(location)))

    def natural(self, mu: GaussianEta) -> GaussianEta:
        """Returns η with the mean parameters μ."""
        return self.from_moments(mu.h, -2.0 * mu.J - _squares(mu.h))

    def statistics(self, theta: Theta) -> GaussianEta:
        """Returns T(θ) for θ of shape [P·K]."""
        rows = theta.reshape(self.rows, self.width)
        return GaussianEta(rows, -0.5 * _squares(rows))

    def inner(self, eta: GaussianEta, mu: GaussianEta) -> Any:
        """Returns ⟨η, μ⟩."""
        return (eta.h * mu.h).sum() + (eta.J * mu.J).sum()

    def sample(self, key: Key, eta: GaussianEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (P·K,)``."""
        import jax

        location, covariance = self.location_covariance(GaussianEta(*map(jax.numpy.asarray, eta)))
        root = jax.numpy.linalg.cholesky(covariance)
        noise = jax.random.normal(key, (*shape, *location.shape), dtype=location.dtype)
        moved = jax.numpy.einsum("pkl,...pl->...pk", root, noise)
        draws = moved + jax.lax.broadcast_to_rank(location, moved.ndim)
        return draws.reshape(*shape, self.size)

    def is_proper(self, eta: GaussianEta) -> bool:
        """Says whether every J is positive definite beyond rounding (NumPy arrays only).

        The answer does not depend on the units of θ, unless an sd is beyond 1e15: J is scaled to a unit
        diagonal.
        """
        if not (is_finite(eta.h) and is_finite(eta.J)):
            return False
        diagonal = np.diagonal(eta.J, axis1=-2, axis2=-1)
        if not (diagonal > SMALLEST).all():
            return False
        root = np.sqrt(diagonal)
        scaled = _symmetric(np.asarray(eta.J)) / (root[:, :, None] * root[:, None, :])
        return bool((np.linalg.eigvalsh(scaled)[:, 0] > 1e-14 * self.width).all())

    def project(self, eta: GaussianEta, floor: GaussianEta) -> GaussianEta:
        """Lifts the eigenvalues of each J, relative to the floor's, to 1e-3; keeps a proper η as it is.

        Where others are so large that 1e-3 would be lost beside them, to what would not.
        """
        if self.is_proper(eta):
            return eta
        root = np.linalg.cholesky(floor.J)
        inverse = np.linalg.inv(root)
        values, vectors = np.linalg.eigh(_symmetric(inverse @ eta.J @ _transposed(inverse)))
        least = np.maximum(PROJECTION_FRACTION, ROUNDING_FRACTION * self.width * values[:, -1:])
        lifted = (vectors * np.maximum(values, least)[:, None, :]) @ _transposed(vectors)
        return GaussianEta(np.array(eta.h), _symmetric(root @ lifted @ _transposed(root)))

    def kl(self, eta_q: GaussianEta, eta_p: GaussianEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        xp = eta_q.J.__array_namespace__()
        location, covariance = self.location_covariance(eta_q)
        shift = _solved(eta_p.J, eta_p.h) - location
        ratio = (xp.linalg.slogdet(eta_q.J)[1] - xp.linalg.slogdet(eta_p.J)[1]).sum()
        far = (shift * _times(eta_p.J, shift)).sum()
        return 0.5 * ((eta_p.J * covariance).sum() - location.size + far + ratio)

    def entropy(self, eta: GaussianEta) -> Any:
        """Returns H(q) = Σₚ (K/2)(1 + log 2π) − ½ log|J|."""
        xp = eta.J.__array_namespace__()
        return 0.5 * (eta.h.size * (1.0 + _LOG_2PI) - xp.linalg.slogdet(eta.J)[1].sum())

    def whiten(self, eta: GaussianEta, change: GaussianEta) -> np.ndarray:
        """Returns the change of means and covariances that ``change`` makes, to first order, in units of
        q's standard deviations: shape [P(K + K²)], its squared norm is the Fisher metric."""
        # L⁻ᵀ of J = L Lᵀ is a root of the covariance, and is there even where J is close to singular.
        root = _transposed(np.linalg.inv(np.linalg.cholesky(_symmetric(eta.J))))
        location = _solved(eta.J, eta.h)
        shift = _times(_transposed(root), change.h - _times(change.J, location))
        spread = _transposed(root) @ change.J @ root / math.sqrt(2.0)
        # Row after row, so that pieces stand one after the other.
        return np.concatenate([shift, spread.reshape(len(shift), -1)], axis=1).reshape(-1)

    def moments(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [P·K] and the standard deviation [P·K]."""
        xp = eta.J.__array_namespace__()
        location, covariance = self.location_covariance(eta)
        variance = xp.linalg.diagonal(covariance)
        return location.reshape(-1), xp.sqrt(variance).reshape(-1)


def gaussian_rows(rows: int, size: int) -> GaussianRows:
    """Returns the family of ``rows`` independent Gaussians of ``size`` numbers each, covariances full."""
    return GaussianRows(rows, size)


def _transposed(matrices: Any) -> Any:
    return matrices.swapaxes(-1, -2)


def _symmetric(matrices: Any) -> Any:
    return 0.5 * (matrices + _transposed(matrices))


def _times(matrices: Any, vectors: Any) -> Any:
    return (matrices @ vectors[..., None])[..., 0]


def _solved(matrices: Any, vectors: Any) -> Any:
    return matrices.__array_namespace__().linalg.solve(matrices, vectors[..., None])[..., 0]


def _squares(vectors: Any) -> Any:
    return vectors[..., :, None] * vectors[..., None, :]
