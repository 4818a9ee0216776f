"""Gaussians with a low-rank correction of a diagonal precision: correlations without a D × D matrix.

q(θ) ∝ exp(hᵀθ − ½ θᵀPθ) with P = diag(d) + B K Bᵀ, for a fixed, public B [D, r] with orthonormal
columns. η = (h, d, K) with T(θ) = (θ, −½ θ², −½ (Bᵀθ)(Bᵀθ)ᵀ). Factors add because they share B. No array
here is [D, D]: with s = d^−½ and s·B = QR,

    P⁻¹ = s (I − Q V Qᵀ) s,   V = I − M⁻¹,   M = I + R K Rᵀ   [r, r].
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import (
    PROJECTION_FRACTION,
    ROUNDING_FRACTION,
    SMALLEST,
    Derived,
    check_layout,
    check_size,
)
from fedvi.expfam.directions import GroupDirections, random_directions, smooth_directions
from fedvi.expfam.matrices import symmetric
from fedvi.typing import Key, Theta

__all__ = ["LowRankEta", "LowRankGaussian", "RootParts", "low_rank_gaussian"]

_LOG_2PI = math.log(2.0 * math.pi)

# The default of a study.
_RANK = 8

# Coordinates with a larger leverage use the dense part of a root of the metric; there are at most 2.5 r.
_LEVERAGE = 0.4


class LowRankEta(NamedTuple):
    """Natural parameters: h = P·mean [D]; d [D] and K [r, r] of the precision P = diag(d) + B K Bᵀ."""

    h: Any
    d: Any
    K: Any


class RootParts(NamedTuple):
    """A root L = s (I − QQᵀ + QHQᵀ) of P⁻¹ = L Lᵀ, which defines the coordinates of gradient solvers.

    Attributes:
      scale: s = d^−½, [D].
      q: Q [D, r] of s·B = QR, orthonormal.
      r: R [r, r], upper triangular with a positive diagonal.
      inside: H [r, r], lower triangular, H Hᵀ = M⁻¹.
    """

    scale: np.ndarray
    q: np.ndarray
    r: np.ndarray
    inside: np.ndarray


class _Parts(NamedTuple):
    """s [D], Q [D, r], R [r, r] and M [r, r] of the precision; see the module docstring."""

    scale: Any
    q: Any
    r: Any
    inside: Any


@functools.lru_cache(maxsize=8)
def _basis(
    directions: Callable[[int, int, int], np.ndarray], size: int, rank: int, seed: int
) -> np.ndarray:
    basis = np.array(directions(size, rank, seed), np.float64)
    if basis.shape != (size, rank):
        raise errors.FamilyError(
            f"directions returned an array of shape {basis.shape}, expected {(size, rank)}"
        )
    if not np.abs(basis.T @ basis - np.eye(rank)).max() < 1e-9:
        raise errors.FamilyError(
            "the columns of directions are not orthonormal", "take `np.linalg.qr(directions)[0]`"
        )
    if not (basis**2).sum(axis=1).max() < 1.0 - 1e-9:
        raise errors.FamilyError(
            "directions span a coordinate of θ, whose precision d holds already",
            "leave that direction out",
        )
    basis.setflags(write=False)
    return basis


@dataclasses.dataclass(frozen=True)
class LowRankGaussian(Derived):
    """Gaussians over θ ∈ ℝᴰ whose precision is diagonal except in r fixed directions.

    The precisions of single coordinates and the joint precision of the r numbers Bᵀθ are free. There are
    no correlations outside the span of B, which does not adapt. r random directions of D hold r/D of the
    squared length of any given direction, so with r ≪ D they are little better than
    ``diagonal_gaussian``. The family is as good as its directions (docs/concepts/factors.md).

    Proper members here have d > 0. Positive definiteness alone would allow up to r negative entries of d
    with a large K. Members with d > 0 are still a convex cone, and the computations here need d > 0.

    Args:
      size: D, larger than ``rank``.
      rank: r.
      seed: the public seed of the directions.
      directions: (size, rank, seed) → B [D, r] with orthonormal columns; a module-level function, so
        that equal families are equal. Called once, when B is first needed.

    >>> family = LowRankGaussian(5, rank=2)
    >>> family.number_count
    13
    >>> family.moments(family.isotropic(2.0))[1].tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0]
    """

    size: int
    rank: int = _RANK
    seed: int = 0
    directions: Callable[[int, int, int], np.ndarray] = random_directions

    def __post_init__(self) -> None:
        check_size(self.size)
        if not 1 <= self.rank < self.size:
            raise errors.FamilyError(
                f"rank is {self.rank!r}, expected 1 to {self.size - 1}, fewer than θ has coordinates",
                "use family kind `full_gaussian` for few coordinates",
            )
        if self.seed < 0:
            raise errors.FamilyError(
                f"seed is {self.seed!r}, expected a whole number of at least 0"
            )

    @property
    def number_count(self) -> int:
        """D numbers of h, D of d and r(r+1)/2 of the symmetric K."""
        return 2 * self.size + self.rank * (self.rank + 1) // 2

    @property
    def basis(self) -> np.ndarray:
        """B [D, r], float64, read-only."""
        return _basis(self.directions, self.size, self.rank, self.seed)

    def zeros(self) -> LowRankEta:
        """Returns the factor 1."""
        return LowRankEta(
            np.zeros(self.size), np.zeros(self.size), np.zeros((self.rank, self.rank))
        )

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless h and d are [D], K is [r, r] and symmetric, and all are finite."""
        check_layout(eta, self.zeros(), name, self)
        if not np.allclose(eta.K, np.asarray(eta.K).T, rtol=1e-9, atol=1e-9):
            raise errors.FamilyError(f"{name}.K is not symmetric", "send (K + Kᵀ) / 2")

    def isotropic(self, scale: float, mean: float = 0.0) -> LowRankEta:
        """Returns η of N(mean, scale² I)."""
        precision = np.full(self.size, scale**-2.0)
        return LowRankEta(precision * mean, precision, np.zeros((self.rank, self.rank)))

    def from_diagonal(self, h: np.ndarray, precision: np.ndarray) -> LowRankEta:
        """Returns η of exp(hᵀθ − ½ Σ jθ²), both [D]."""
        return LowRankEta(h, precision, np.zeros((self.rank, self.rank)))

    def log_partition(self, eta: LowRankEta) -> Any:
        """Returns A(η) = ½ hᵀP⁻¹h − ½ log|P| + (D/2) log 2π."""
        parts = self._parts(eta)
        quadratic = eta.h @ _solve(parts, eta.h)
        return 0.5 * (quadratic - _log_determinant(parts) + self.size * _LOG_2PI)

    def mean(self, eta: LowRankEta) -> LowRankEta:
        """Returns μ = (E[θ], −½ E[θ²], −½ E[(Bᵀθ)(Bᵀθ)ᵀ])."""
        parts = self._parts(eta)
        location, variance = _solve(parts, eta.h), _variance(parts)
        along = self._basis_like(location).T @ location
        spread = _spread(parts) + along[:, None] * along[None, :]
        return LowRankEta(location, -0.5 * (variance + location**2), -0.5 * spread)

    def statistics(self, theta: Theta) -> LowRankEta:
        """Returns T(θ) for θ of shape [D]."""
        along = self._basis_like(theta).T @ theta
        return LowRankEta(theta, -0.5 * theta**2, -0.5 * along[:, None] * along[None, :])

    def sample(self, key: Key, eta: LowRankEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        eta = tree.map_leaves(jax.numpy.asarray, eta)
        parts = self._parts(eta)
        noise = jax.random.normal(key, (*shape, self.size), eta.h.dtype)
        # s (I − Q (I − M^−½) Qᵀ) is a root of P⁻¹.
        noise = noise - ((noise @ parts.q) @ (_identity(parts) - _inverse_root(parts))) @ parts.q.T
        location, scale = (
            jax.lax.broadcast_to_rank(each, noise.ndim)
            for each in (_solve(parts, eta.h), parts.scale)
        )
        return location + scale * noise

    def is_proper(self, eta: LowRankEta) -> bool:
        """Returns whether d is positive and P positive definite beyond rounding (NumPy arrays only)."""
        if not tree.is_finite(eta) or not (eta.d > SMALLEST).all():
            return False
        inside = self._parts(eta).inside
        diagonal = np.diagonal(inside)
        if not (diagonal > 0.0).all():
            return False
        root = np.sqrt(diagonal)
        return bool(
            np.linalg.eigvalsh(inside / (root[:, None] * root[None, :]))[0] > 1e-14 * self.rank
        )

    def project(self, eta: LowRankEta, floor: LowRankEta) -> LowRankEta:
        """Lifts d, then K, and keeps h; keeps a proper η.

        d is lifted to at least √1e-3 of the floor's. The eigenvalues of P relative to that d, which depend
        on K alone, are lifted to at least √1e-3. So P is no flatter in any direction than 1e-3 of the
        floor's diag(d). In the coordinates where d is the identity, that K is the nearest in Frobenius
        norm. If the largest eigenvalue is so large that √1e-3 would be lost in rounding, the bound is
        higher.
        """
        if self.is_proper(eta):
            return eta
        fraction = math.sqrt(PROJECTION_FRACTION)
        d = np.maximum(eta.d, fraction * floor.d)
        parts = self._parts(eta._replace(d=d))
        values, vectors = np.linalg.eigh(parts.inside)
        least = max(fraction, ROUNDING_FRACTION * self.rank * values[-1])
        lifted = (vectors * np.maximum(values, least)) @ vectors.T - np.eye(self.rank)
        inverse = np.linalg.inv(parts.r)
        return LowRankEta(np.array(eta.h), d, symmetric(inverse @ lifted @ inverse.T))

    def kl(self, eta_q: LowRankEta, eta_p: LowRankEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        q, p = self._parts(eta_q), self._parts(eta_p)
        trace = self.trace(eta_q, eta_p)
        shift = _solve(p, eta_p.h) - _solve(q, eta_q.h)
        log_ratio = _log_determinant(q) - _log_determinant(p)
        return 0.5 * (trace - self.size + shift @ self.times(eta_p, shift) + log_ratio)

    def trace(self, eta: LowRankEta, other: LowRankEta) -> Any:
        """Returns tr(P⁻¹P′) of a proper η and any other."""
        parts = self._parts(eta)
        return (other.d * _variance(parts)).sum() + (other.K * _spread(parts)).sum()

    def whiten(self, eta: LowRankEta, change: LowRankEta) -> np.ndarray:
        """Returns the first-order change of q in units of its sds: [2D + D·r + r² + r(r+1)/2].

        The metric is ‖L (dh − dP m)‖² + ½ ‖L dP Lᵀ‖², with LᵀL = P⁻¹. In L dP Lᵀ = (I − QWQᵀ)(Δ + QEQᵀ)
        (I − QWQᵀ), with W = I − M^−½, Δ = diag(dd/d) and E = R dK Rᵀ, the parts inside and outside the
        span of Q are orthogonal: with ⊥ = I − QQᵀ the squared norm is

            ‖⊥Δ⊥‖² + 2 ‖⊥ΔQ M^−½‖² + ‖M^−½ (QᵀΔQ + E) M^−½‖²,

        and ``_root_outside`` computes the first without an array [D, D].
        """
        parts = self._parts(eta)
        q, root = parts.q, _inverse_root(parts)
        pull = parts.scale * (change.h - self.times(change, _solve(parts, eta.h)))
        shift = pull - q @ ((q.T @ pull) - root @ (q.T @ pull))
        delta = change.d / eta.d
        stretched = delta[:, None] * q
        within = q.T @ stretched
        across = (stretched - q @ within) @ root
        inside = root @ (within + parts.r @ change.K @ parts.r.T) @ root
        half = math.sqrt(0.5)
        return np.concatenate(
            [shift, half * _root_outside(q, delta), across.ravel(), half * inside.ravel()]
        )

    def moments(self, eta: LowRankEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D]."""
        parts = self._parts(eta)
        return _solve(parts, eta.h), _variance(parts) ** 0.5

    def location(self, eta: LowRankEta) -> Any:
        """Returns the mean [D]."""
        return _solve(self._parts(eta), eta.h)

    def along(self, eta: LowRankEta, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the sd of xᵀθ, [n] each, for rows of ``x`` [n, D], of NumPy arrays."""
        parts = self.root_parts(eta)
        scaled = x * parts.scale[None, :]
        along = scaled @ parts.q
        pulled = scaled + (along @ parts.inside - along) @ parts.q.T  # xᵀ L
        return x @ self.location(eta), np.sqrt((pulled**2).sum(axis=1))

    def root_parts(self, eta: LowRankEta) -> RootParts:
        """Returns a root of the covariance of a proper member, as float64 NumPy arrays."""
        parts = self._parts(eta)
        sign = np.where(np.diagonal(parts.r) < 0.0, -1.0, 1.0)
        inside = np.linalg.cholesky(sign[:, None] * _inverse(parts) * sign[None, :])
        return RootParts(parts.scale, parts.q * sign[None, :], sign[:, None] * parts.r, inside)

    def from_root(self, location: np.ndarray, scale: np.ndarray, inside: np.ndarray) -> LowRankEta:
        """Returns η of the member with this mean [D], s [D] and H [r, r]; see ``RootParts``."""
        r = np.linalg.qr(self.basis * scale[:, None], mode="r")
        inverse = np.linalg.inv(np.where(np.diagonal(r) < 0.0, -1.0, 1.0)[:, None] * r)
        precise = np.linalg.inv(inside)
        K = symmetric(inverse @ (precise.T @ precise - np.eye(self.rank)) @ inverse.T)
        eta = LowRankEta(np.zeros(self.size), scale**-2.0, K)
        return eta._replace(h=self.times(eta, location))

    def _basis_like(self, array: Any) -> Any:
        return array.__array_namespace__().asarray(self.basis, dtype=array.dtype)

    def times(self, eta: LowRankEta, vector: Any) -> Any:
        """Returns P v, [D]."""
        basis = self._basis_like(vector)
        return eta.d * vector + basis @ (eta.K @ (basis.T @ vector))

    def _parts(self, eta: LowRankEta) -> _Parts:
        xp = eta.d.__array_namespace__()
        scale = eta.d**-0.5
        q, r = xp.linalg.qr(self._basis_like(scale) * scale[:, None])
        inside = xp.eye(self.rank, dtype=scale.dtype) + symmetric(r @ eta.K @ r.T)
        return _Parts(scale, q, r, inside)


_DIRECTIONS = {"random": random_directions, "smooth": smooth_directions}


def low_rank_gaussian(
    size: int,
    rank: int = _RANK,
    seed: int = 0,
    directions: str = "random",
    groups: Sequence[int] | None = None,
) -> LowRankGaussian:
    """Returns the family of Gaussians with a diagonal precision corrected in a few fixed directions.

    Random directions are little better than ``diagonal_gaussian``. For directions of your own, name a
    function that returns ``LowRankGaussian(size, rank, directions=my_directions)`` as the study's family.

    Args:
      size: D.
      rank: r, below D; costs are linear in D and quadratic in r. With ``groups``, their number.
      seed: the seed of random directions, public. It is in the study, and no noise comes from it.
      directions: "random"; or "smooth", slow contrasts along the order of the coordinates.
      groups: the sizes of consecutive groups of coordinates, from the first on, such as [1, 40, 40] for an
        intercept and two groups of forty columns; each group of two or more is a direction.

    Raises:
      FamilyError: unknown directions, groups that do not fit, or a rank that is not below D.
    """
    if groups is not None:
        return _grouped(size, rank, directions, groups)
    if directions not in _DIRECTIONS:
        raise errors.FamilyError(
            f"directions is {directions!r}, expected one of {', '.join(_DIRECTIONS)}",
            errors.did_you_mean(directions, list(_DIRECTIONS)),
        )
    return LowRankGaussian(size, rank, seed, _DIRECTIONS[directions])


def _grouped(size: int, rank: int, directions: str, groups: Any) -> LowRankGaussian:
    if not isinstance(groups, list | tuple):
        raise errors.FamilyError(
            f"groups is {groups!r}, expected a list of whole numbers",
            "write e.g. groups = [1, 40, 40]",
        )
    whole = all(type(count) is int and count >= 1 for count in groups)
    if not whole or sum(groups) > size:
        raise errors.FamilyError(
            f"groups is {list(groups)!r}, expected whole numbers of at least 1 with a sum of at most "
            f"{size}, the coordinates there are",
            "say how many coordinates each group has, in the order of the table of coefficients",
        )
    found = sum(count > 1 for count in groups)
    if found == 0:
        raise errors.FamilyError(
            f"groups is {list(groups)!r}, expected at least one of two or more coordinates",
            'without any, write kind = "diagonal_gaussian"',
        )
    if rank not in (found, _RANK):
        raise errors.FamilyError(
            f"rank is {rank!r}, expected {found}, one for each group of two or more",
            "leave rank out",
        )
    if directions != "random":
        raise errors.FamilyError(
            f"directions is {directions!r}, but groups already give them", "leave one out"
        )
    return LowRankGaussian(size, found, 0, GroupDirections(tuple(groups)))


def _identity(parts: _Parts) -> Any:
    xp = parts.r.__array_namespace__()
    return xp.eye(parts.r.shape[0], dtype=parts.r.dtype)


def _inverse(parts: _Parts) -> Any:
    """Returns M⁻¹."""
    return symmetric(parts.inside.__array_namespace__().linalg.inv(parts.inside))


def _inverse_root(parts: _Parts) -> Any:
    """Returns the symmetric M^−½."""
    xp = parts.inside.__array_namespace__()
    values, vectors = xp.linalg.eigh(parts.inside)
    return (vectors * (values**-0.5)[None, :]) @ vectors.T


def _solve(parts: _Parts, vector: Any) -> Any:
    """Returns P⁻¹ v."""
    scaled = parts.scale * vector
    along = parts.q.T @ scaled
    return parts.scale * (scaled - parts.q @ (along - _inverse(parts) @ along))


def _variance(parts: _Parts) -> Any:
    """Returns the diagonal of P⁻¹."""
    kept = _identity(parts) - _inverse(parts)
    return parts.scale**2 * (1.0 - ((parts.q @ kept) * parts.q).sum(axis=1))


def _spread(parts: _Parts) -> Any:
    """Returns Bᵀ P⁻¹ B = Rᵀ M⁻¹ R."""
    return symmetric(parts.r.T @ _inverse(parts) @ parts.r)


def _log_determinant(parts: _Parts) -> Any:
    """Returns log|P|."""
    xp = parts.inside.__array_namespace__()
    return xp.linalg.slogdet(parts.inside)[1] - 2.0 * xp.log(parts.scale).sum()


def _root_outside(q: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Returns a vector, linear in δ, of squared norm ‖⊥ diag(δ) ⊥‖² with ⊥ = I − QQᵀ.

    That is δᵀNδ with N = ⊥∘⊥ = diag(1 − 2π) + (QQᵀ)∘(QQᵀ) and leverages πᵢ = ‖Qᵢ‖²: a sum of squares
    if every π is below ½. The coordinates H of larger leverage, of which there are few since Σπ = r,
    are eliminated: δᵀNδ = xᵀN_SS x + δ_Hᵀ(N_HH − N_HS N_SS⁻¹ N_SH)δ_H, x = δ_S + N_SS⁻¹ N_SH δ_H. As
    0.2 ≤ N_SS ≤ 1, conjugate gradients solve with it in forty steps.

    Returns:
      [D + r(r+1)/2].
    """
    leverage = (q**2).sum(axis=1)
    heavy = leverage > _LEVERAGE
    light, rest = q[~heavy], 1.0 - 2.0 * leverage[~heavy]
    x, dense = delta[~heavy], np.zeros(0)
    if heavy.any():
        crossed = (light @ q[heavy].T) ** 2
        eliminated = _conjugate_gradients(
            lambda v: rest[:, None] * v + _square_times(light, v), crossed, steps=60
        )
        own = np.diag(1.0 - 2.0 * leverage[heavy]) + (q[heavy] @ q[heavy].T) ** 2
        values, vectors = np.linalg.eigh(symmetric(own - crossed.T @ eliminated))
        dense = np.sqrt(np.maximum(values, 0.0)) * (vectors.T @ delta[heavy])
        x = x + eliminated @ delta[heavy]
    upper = np.triu_indices(q.shape[1])
    along = (light.T @ (x[:, None] * light))[upper]
    along *= np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return np.concatenate([np.sqrt(rest) * x, dense, along])


def _square_times(q: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns ((QQᵀ)∘(QQᵀ)) v for each column of ``vectors`` [D, n]."""
    columns = [((q @ (q.T @ (v[:, None] * q))) * q).sum(axis=1) for v in vectors.T]
    return np.stack(columns, axis=1)


def _conjugate_gradients(
    times: Callable[[np.ndarray], np.ndarray], target: np.ndarray, steps: int
) -> np.ndarray:
    """Solves A x = b for each column of ``target``, to rounding; A is positive definite."""
    solution, residual = np.zeros_like(target), target.copy()
    direction, size = residual.copy(), (residual**2).sum(axis=0)
    enough = 1e-32 * size
    for _ in range(steps):
        if (size <= enough).all():
            break
        product = times(direction)
        curvature = (direction * product).sum(axis=0)
        length = np.where(size > enough, size / np.where(curvature > 0.0, curvature, 1.0), 0.0)
        solution += length * direction
        residual -= length * product
        before, size = size, (residual**2).sum(axis=0)
        direction = residual + size / np.where(before > 0.0, before, 1.0) * direction
    return solution
