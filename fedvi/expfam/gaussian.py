"""The Gaussian families, full and diagonal, stored as (h, J).

q(θ) ∝ exp(hᵀθ − ½ θᵀJθ), with precision J and h = J·mean. T(θ) = (θ, −½ θθᵀ), so ⟨η, T⟩ is that
exponent; for the diagonal family J and the second statistic are vectors. It matters for clipping and
noise in η that (h, J) is stored, not (h, −½J).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam.base import (
    PROJECTION_FRACTION,
    ROUNDING_FRACTION,
    SMALLEST,
    Derived,
    check_layout,
    check_size,
)
from fedvi.expfam.mapped_arrays import elementwise, is_finite, windows
from fedvi.expfam.matrices import outer, symmetric
from fedvi.typing import Key, Theta

__all__ = ["DiagonalGaussian", "FullGaussian", "GaussianEta", "diagonal_gaussian", "full_gaussian"]

_LOG_2PI = math.log(2.0 * math.pi)

# Coordinates of a piece of a diagonal Gaussian: 1 MiB an array.
_BLOCK = 1 << 17


class GaussianEta(NamedTuple):
    """Natural parameters: h = J·mean, shape [D]; J the precision, shape [D, D] or [D]."""

    h: Any
    J: Any


@dataclasses.dataclass(frozen=True)
class FullGaussian(Derived):
    """Gaussians with any covariance over θ ∈ ℝᴰ.

    >>> family = FullGaussian(2)
    >>> eta = family.from_moments(np.array([1.0, 2.0]), np.eye(2))
    >>> family.kl(eta, eta).item()
    0.0
    """

    size: int
    correlated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_size(self.size)

    @property
    def number_count(self) -> int:
        """D numbers of h and D(D+1)/2 of the symmetric J."""
        return self.size + self.size * (self.size + 1) // 2

    def zeros(self) -> GaussianEta:
        """Returns the factor 1."""
        return GaussianEta(np.zeros(self.size), np.zeros((self.size, self.size)))

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless h is [D], J is [D, D] and symmetric, and all are finite."""
        check_layout(eta, self.zeros(), name, f"full_gaussian(size={self.size})")
        # Most are symmetric to the last bit, and that is told in a hundredth of the time.
        J = np.asarray(eta.J)
        if not (np.array_equal(J, J.T) or np.allclose(J, J.T, rtol=1e-9, atol=1e-9)):
            raise errors.FamilyError(f"{name}.J is not symmetric", "send (J + Jᵀ) / 2")

    def isotropic(self, scale: float, mean: float = 0.0) -> GaussianEta:
        """Returns η of N(mean, scale² I)."""
        precision = np.eye(self.size) / scale**2
        return GaussianEta(precision @ np.full(self.size, mean), precision)

    def from_moments(self, mean: Any, covariance: Any) -> GaussianEta:
        """Returns η of N(mean [D], covariance [D, D])."""
        xp = mean.__array_namespace__()
        precision = symmetric(xp.linalg.inv(covariance))
        return GaussianEta(precision @ mean, precision)

    def location_covariance(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the covariance [D, D] of a proper member."""
        xp = eta.J.__array_namespace__()
        covariance = symmetric(xp.linalg.inv(eta.J))
        return xp.linalg.solve(eta.J, eta.h), covariance

    def location_root(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [D] and a lower-triangular L [D, D] with L Lᵀ = J⁻¹."""
        xp = eta.J.__array_namespace__()
        return xp.linalg.solve(eta.J, eta.h), xp.linalg.cholesky(symmetric(xp.linalg.inv(eta.J)))

    def along(self, eta: GaussianEta, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the sd of xᵀθ, [n] each, for rows of ``x`` [n, D], of NumPy arrays."""
        location, root = self.location_root(eta)
        return x @ location, np.sqrt(((x @ root) ** 2).sum(axis=1))

    def trace(self, eta: GaussianEta, other: GaussianEta) -> float:
        """Returns tr(J⁻¹J′) of a proper η and any other."""
        return float(np.trace(np.linalg.solve(eta.J, other.J)))

    def from_quadratic(self, h: np.ndarray, precision: np.ndarray) -> GaussianEta | None:
        """Returns η of exp(hᵀθ − ½ θᵀJθ) with J [D, D]."""
        return GaussianEta(h, precision)

    def padded(self, eta: GaussianEta, precision: np.ndarray) -> GaussianEta:
        """Returns η with further independent coordinates of mean 0 and these precisions appended."""
        wide = np.diag(np.concatenate([np.zeros(self.size), precision]))
        wide[: self.size, : self.size] = eta.J
        return GaussianEta(np.concatenate([eta.h, np.zeros(len(precision))]), wide)

    def marginal(self, eta: GaussianEta, size: int) -> GaussianEta:
        """Returns the marginal η of the first ``size`` coordinates, by the Schur complement."""
        cut = slice(0, size), slice(size, None)
        across = eta.J[cut[0], cut[1]]
        explained = np.linalg.solve(eta.J[cut[1], cut[1]], np.c_[across.T, eta.h[cut[1]]])
        precision = eta.J[cut[0], cut[0]] - across @ explained[:, :-1]
        location = eta.h[cut[0]] - across @ explained[:, -1]
        return GaussianEta(location, 0.5 * (precision + precision.T))

    def log_partition(self, eta: GaussianEta) -> Any:
        """Returns A(η) = ½ hᵀJ⁻¹h − ½ log|J| + (D/2) log 2π."""
        xp = eta.J.__array_namespace__()
        quadratic = eta.h @ xp.linalg.solve(eta.J, eta.h)
        return 0.5 * (quadratic - xp.linalg.slogdet(eta.J)[1] + self.size * _LOG_2PI)

    def mean(self, eta: GaussianEta) -> GaussianEta:
        """Returns μ = (E[θ], −½ E[θθᵀ])."""
        location, covariance = self.location_covariance(eta)
        return GaussianEta(location, -0.5 * (covariance + outer(location, location)))

    def statistics(self, theta: Theta) -> GaussianEta:
        """Returns T(θ) = (θ, −½ θθᵀ) for θ of shape [D]."""
        return GaussianEta(theta, -0.5 * outer(theta, theta))

    def sample(self, key: Key, eta: GaussianEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        location, root = self.location_root(GaussianEta(*map(jax.numpy.asarray, eta)))
        noise = jax.random.normal(key, (*shape, self.size), dtype=location.dtype)
        return _broadcast_add(noise @ root.T, location)

    def is_proper(self, eta: GaussianEta) -> bool:
        """Returns whether J is positive definite beyond rounding (NumPy arrays only).

        J is scaled to a unit diagonal, so that the answer does not depend on the units of θ's
        coordinates, unless an sd is beyond 1e15.
        """
        if not (np.isfinite(eta.h).all() and np.isfinite(eta.J).all()):
            return False
        diagonal = np.diagonal(eta.J)
        if not (diagonal > SMALLEST).all():
            return False
        scaled = symmetric(np.asarray(eta.J)) / outer(np.sqrt(diagonal), np.sqrt(diagonal))
        return bool(np.linalg.eigvalsh(scaled)[0] > 1e-14 * self.size)

    def project(self, eta: GaussianEta, floor: GaussianEta) -> GaussianEta:
        """Lifts the eigenvalues of J, relative to the floor's J, to at least 1e-3; keeps a proper η.

        If the largest eigenvalue is so large that 1e-3 would be lost in rounding, the bound is higher.
        h stays the same, so the mean in the lifted directions follows from the lifted precision.
        """
        if self.is_proper(eta):
            return eta
        root = np.linalg.cholesky(floor.J)
        inverse = np.linalg.inv(root)
        values, vectors = np.linalg.eigh(symmetric(inverse @ eta.J @ inverse.T))
        least = max(PROJECTION_FRACTION, ROUNDING_FRACTION * self.size * values[-1])
        lifted = (vectors * np.maximum(values, least)) @ vectors.T
        return GaussianEta(np.array(eta.h), symmetric(root @ lifted @ root.T))

    def kl(self, eta_q: GaussianEta, eta_p: GaussianEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        xp = eta_q.J.__array_namespace__()
        m_q, covariance = self.location_covariance(eta_q)
        shift = xp.linalg.solve(eta_p.J, eta_p.h) - m_q
        log_ratio = xp.linalg.slogdet(eta_q.J)[1] - xp.linalg.slogdet(eta_p.J)[1]
        return 0.5 * (
            (eta_p.J * covariance).sum() - self.size + shift @ (eta_p.J @ shift) + log_ratio
        )

    def whiten(self, eta: GaussianEta, change: GaussianEta) -> np.ndarray:
        """Returns the change of the mean and of the covariance that ``change`` makes, to first order,
        in units of q's standard deviations: shape [D + D²], its squared norm is the Fisher metric."""
        try:
            covariance_root = np.linalg.cholesky(symmetric(np.linalg.inv(eta.J)))
        except np.linalg.LinAlgError:
            # Near singularity the inverse is lost in rounding; L⁻ᵀ of J = L Lᵀ is still a root.
            covariance_root = np.linalg.inv(np.linalg.cholesky(symmetric(eta.J))).T
        location = np.linalg.solve(eta.J, eta.h)
        shift = covariance_root.T @ (change.h - change.J @ location)
        spread = covariance_root.T @ change.J @ covariance_root / math.sqrt(2.0)
        return np.concatenate([shift, spread.ravel()])

    def moments(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D]."""
        xp = eta.J.__array_namespace__()
        location, covariance = self.location_covariance(eta)
        return location, xp.sqrt(xp.diagonal(covariance))


@dataclasses.dataclass(frozen=True)
class DiagonalGaussian(Derived):
    """Gaussians with a diagonal covariance (mean field) over θ ∈ ℝᴰ; J is its diagonal, [D].

    >>> family = DiagonalGaussian(2)
    >>> family.moments(GaussianEta(np.array([4.0, 0.0]), np.array([4.0, 1.0])))[0].tolist()
    [1.0, 0.0]
    """

    size: int
    correlated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_size(self.size)

    @property
    def number_count(self) -> int:
        """D numbers of h and D of J."""
        return 2 * self.size

    def zeros(self) -> GaussianEta:
        """Returns the factor 1."""
        return GaussianEta(np.zeros(self.size), np.zeros(self.size))

    def blocks(self, *etas: GaussianEta) -> Iterator[tuple[GaussianEta, ...]]:
        """Splits natural parameters into pieces of ``_BLOCK`` coordinates."""
        for start in range(0, self.size, _BLOCK):
            piece = slice(start, start + _BLOCK)
            yield tuple(GaussianEta(eta.h[piece], eta.J[piece]) for eta in etas)

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless h and J are [D] and finite."""
        check_layout(eta, self.zeros(), name, f"diagonal_gaussian(size={self.size})")

    def isotropic(self, scale: float, mean: float = 0.0) -> GaussianEta:
        """Returns η of N(mean, scale² I)."""
        precision = np.full(self.size, scale**-2.0)
        return GaussianEta(precision * mean, precision)

    def from_moments(self, mean: Any, variance: Any) -> GaussianEta:
        """Returns η of N(mean [D], diag(variance [D]))."""
        return GaussianEta(mean / variance, 1.0 / variance)

    def log_partition(self, eta: GaussianEta) -> Any:
        """Returns A(η) = ½ Σ (h²/J − log J + log 2π)."""
        xp = eta.J.__array_namespace__()
        return 0.5 * (eta.h**2 / eta.J - xp.log(eta.J) + _LOG_2PI).sum()

    def mean(self, eta: GaussianEta) -> GaussianEta:
        """Returns μ = (E[θ], −½ E[θ²])."""
        location = eta.h / eta.J
        return GaussianEta(location, -0.5 * (1.0 / eta.J + location**2))

    def statistics(self, theta: Theta) -> GaussianEta:
        """Returns T(θ) = (θ, −½ θ²) for θ of shape [D]."""
        return GaussianEta(theta, -0.5 * theta**2)

    def sample(self, key: Key, eta: GaussianEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        h, precision = map(jax.numpy.asarray, eta)
        noise = jax.random.normal(key, (*shape, self.size), dtype=h.dtype)
        scale = jax.lax.broadcast_to_rank(precision**-0.5, noise.ndim)
        return _broadcast_add(noise * scale, h / precision)

    def is_proper(self, eta: GaussianEta) -> bool:
        """Returns whether every precision is positive, and no sd beyond 1e15 (NumPy arrays only)."""
        positive = all(bool((piece > SMALLEST).all()) for (piece,) in windows(np.asarray(eta.J)))
        return positive and is_finite(eta.h) and is_finite(eta.J)

    def project(self, eta: GaussianEta, floor: GaussianEta) -> GaussianEta:
        """Lifts precisions to at least 1e-3 of the floor's; keeps a proper η."""
        if self.is_proper(eta):
            return eta
        lifted = elementwise(
            lambda found, least: np.maximum(found, PROJECTION_FRACTION * least), eta.J, floor.J
        )
        return GaussianEta(elementwise(np.array, eta.h), lifted)

    def kl(self, eta_q: GaussianEta, eta_p: GaussianEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        xp = eta_q.J.__array_namespace__()
        ratio = eta_p.J / eta_q.J
        shift = eta_p.h / eta_p.J - eta_q.h / eta_q.J
        return 0.5 * (ratio - 1.0 - xp.log(ratio) + eta_p.J * shift**2).sum()

    def whiten(self, eta: GaussianEta, change: GaussianEta) -> np.ndarray:
        """Returns the first-order change of mean and variance in units of q's sds, shape [2D]."""
        shift = (change.h - change.J * eta.h / eta.J) / np.sqrt(eta.J)
        return np.concatenate([shift, change.J / eta.J / math.sqrt(2.0)])

    def moments(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D]."""
        return eta.h / eta.J, eta.J**-0.5

    def location_root(self, eta: GaussianEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D]: a root of a diagonal covariance."""
        return self.moments(eta)

    def along(self, eta: GaussianEta, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the sd of xᵀθ, [n] each, for rows of ``x`` [n, D], of NumPy arrays."""
        location, sd = self.moments(eta)
        return x @ location, np.sqrt(((x * sd) ** 2).sum(axis=1))

    def trace(self, eta: GaussianEta, other: GaussianEta) -> float:
        """Returns tr(J⁻¹J′) of a proper η and any other."""
        return float((other.J / eta.J).sum())

    def from_quadratic(self, h: np.ndarray, precision: np.ndarray) -> GaussianEta | None:
        """Returns η of exp(hᵀθ − ½ θᵀJθ) with J [D, D]; None if J is not diagonal."""
        diagonal = np.diagonal(precision)
        if not np.array_equal(precision, np.diag(diagonal)):
            return None
        return GaussianEta(h, diagonal.copy())

    def padded(self, eta: GaussianEta, precision: np.ndarray) -> GaussianEta:
        """Returns η with further independent coordinates of mean 0 and these precisions appended."""
        h = np.concatenate([eta.h, np.zeros(len(precision))])
        return GaussianEta(h, np.concatenate([eta.J, precision]))

    def marginal(self, eta: GaussianEta, size: int) -> GaussianEta:
        """Returns the marginal η of the first ``size`` coordinates."""
        return GaussianEta(eta.h[:size], eta.J[:size])


def full_gaussian(size: int) -> FullGaussian:
    """Returns the family of Gaussians with full covariance over ℝˢⁱᶻᵉ: the default up to D ≈ 300."""
    return FullGaussian(size)


def diagonal_gaussian(size: int) -> DiagonalGaussian:
    """Returns the mean-field Gaussian family over ℝˢⁱᶻᵉ.

    Synchronous updates are slow or diverge under mean field when coordinates correlate
    (docs/proofs/updates.md §3); the server's step rule then shortens its steps.
    """
    return DiagonalGaussian(size)


def _broadcast_add(draws: Any, location: Any) -> Any:
    # Explicit, because rank promotion is an error in fedvi's own code.
    import jax

    return draws + jax.lax.broadcast_to_rank(location, draws.ndim)
