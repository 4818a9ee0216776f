"""The normal-Wishart family, for means with unknown precision matrices.

q(x, Λ) = ∏ₖ N(xₖ; mₖ, (κₖ Λₖ)⁻¹) Wishart(Λₖ; νₖ, Wₖ) over K pairs of dimension d, stacked. With a = ν/2
and B = ½ W⁻¹, so that E[Λ] = a B⁻¹, stored as η = (h, J, power, rate) with

    h = κm,   J = κ,   power = a − d/2,   rate = B + ½ κ m mᵀ      for
    T = (Λx, −½ xᵀΛx, log|Λ|, −Λ),

so that a record y ~ N(x, Λ⁻¹) is the factor (y, 1, ½, ½ y yᵀ). θ is all means, then the lower triangle
of each Λ, row by row; densities are with respect to Lebesgue measure on those numbers.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import special, tree
from fedvi.expfam.base import (
    PROJECTION_FRACTION,
    ROUNDING_FRACTION,
    SMALLEST,
    Derived,
    check_layout,
    check_size,
)
from fedvi.expfam.matrices import outer, symmetric, turned
from fedvi.typing import Key, Theta

__all__ = ["NormalWishart", "NormalWishartEta", "normal_wishart"]

_LOG_2PI = math.log(2.0 * math.pi)
_LOG_PI = math.log(math.pi)

# A proper a exceeds its bound (d − 1)/2 by this: less would be lost in the rounding of the power.
_SMALLEST_SHAPE = 1e-12


class NormalWishartEta(NamedTuple):
    """Natural parameters of K pairs: κm [K, d], κ [K], a − d/2 [K] and B + ½κmmᵀ [K, d, d]."""

    h: Any
    J: Any
    power: Any
    rate: Any


@dataclasses.dataclass(frozen=True)
class NormalWishart(Derived):
    """Independent normal-Wisharts over ``rows`` = K pairs of dimension ``columns`` = d.

    A mean's marginal is Student's t with 2a − d + 1 degrees of freedom. With d = 1 a pair is a
    normal-gamma.

    >>> family = NormalWishart(2, 3)
    >>> family.size, family.number_count
    (18, 22)
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        check_size(self.rows)
        check_size(self.columns)

    @property
    def size(self) -> int:
        """K·d coordinates of means and K·d(d+1)/2 of precisions."""
        return self.rows * (self.columns + self._triangle_size)

    @property
    def number_count(self) -> int:
        """As many as θ has, and two more for each pair."""
        return self.size + 2 * self.rows

    def zeros(self) -> NormalWishartEta:
        """Returns the factor 1."""
        rows, columns = self.rows, self.columns
        return NormalWishartEta(
            np.zeros((rows, columns)),
            np.zeros(rows),
            np.zeros(rows),
            np.zeros((rows, columns, columns)),
        )

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless shapes fit, all numbers are finite and rates are symmetric."""
        check_layout(eta, self.zeros(), name, self)
        if not np.allclose(eta.rate, turned(np.asarray(eta.rate)), rtol=1e-9, atol=1e-9):
            raise errors.FamilyError(
                f"{name}.rate is not symmetric", "send half the sum of it and its transpose"
            )

    def from_parameters(self, m: Any, scale: Any, shape: Any, rate: Any) -> NormalWishartEta:
        """Returns η with m [K, d], κ = ``scale`` [K], a = ``shape`` [K] and B = ``rate`` [K, d, d].

        The textbook's Wishart(ν, W) has a = ν/2 and B = ½ W⁻¹.
        """
        h = scale[:, None] * m
        return NormalWishartEta(h, scale, shape - 0.5 * self.columns, rate + 0.5 * outer(h, m))

    def parameters(self, eta: NormalWishartEta) -> tuple[Any, Any, Any, Any]:
        """Returns m [K, d], κ [K], a [K] and B [K, d, d]."""
        m = eta.h / eta.J[:, None]
        # An outer product of equal vectors is symmetric to the last bit, and so is the rest.
        part = eta.h / (eta.J**0.5)[:, None]
        return m, eta.J, eta.power + 0.5 * self.columns, eta.rate - 0.5 * outer(part, part)

    def log_partition(self, eta: NormalWishartEta) -> Any:
        """Returns A(η) = Σ (½d log 2π − ½d log κ − a log|B| + log Γ_d(a))."""
        xp = eta.J.__array_namespace__()
        _, scale, shape, rate = self.parameters(eta)
        spread = 0.5 * self.columns * (_LOG_2PI - xp.log(scale))
        constant = 0.25 * self.columns * (self.columns - 1) * _LOG_PI
        gammas = special.gammaln(self._halves(shape)).sum(axis=0) + constant
        return (spread - shape * xp.linalg.slogdet(rate)[1] + gammas).sum()

    def mean(self, eta: NormalWishartEta) -> NormalWishartEta:
        """Returns μ = (E[Λx], −½ E[xᵀΛx], E[log|Λ|], −E[Λ])."""
        xp = eta.J.__array_namespace__()
        m, scale, shape, rate = self.parameters(eta)
        precision = shape[:, None, None] * symmetric(xp.linalg.inv(rate))
        along = _times(precision, m)
        return NormalWishartEta(
            along,
            -0.5 * (self.columns / scale + (m * along).sum(axis=1)),
            special.digamma(self._halves(shape)).sum(axis=0) - xp.linalg.slogdet(rate)[1],
            -precision,
        )

    def statistics(self, theta: Theta) -> NormalWishartEta:
        """Returns T(θ) = (Λx, −½ xᵀΛx, log|Λ|, −Λ) for θ of shape [D]."""
        xp = theta.__array_namespace__()
        x, precision = self.split(theta)
        along = _times(precision, x)
        return NormalWishartEta(
            along, -0.5 * (x * along).sum(axis=1), xp.linalg.slogdet(precision)[1], -precision
        )

    def split(self, theta: Theta) -> tuple[Any, Any]:
        """Splits θ [D] into means [K, d] and precision matrices [K, d, d]."""
        count = self.rows * self.columns
        x = theta[:count].reshape(self.rows, self.columns)
        return x, theta[count:].reshape(self.rows, self._triangle_size)[:, self._places]

    def sample(self, key: Key, eta: NormalWishartEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``, by Bartlett's decomposition of Wisharts.

        With B = L Lᵀ and a lower-triangular A of independent numbers, A_ii² ~ Gamma(a − i/2) for
        i = 0 … d − 1 and A_ij ~ N(0, ½) below: Λ = L⁻ᵀ A Aᵀ L⁻¹.
        """
        import jax

        jnp = jax.numpy
        m, scale, a, rate = self.parameters(tree.map_leaves(jnp.asarray, eta))
        for_squares, for_rest, for_x = jax.random.split(key, 3)
        d, dtype = self.columns, m.dtype
        squares = jax.random.gamma(
            for_squares, self._halves(a).T, (*shape, self.rows, d), dtype=dtype
        )
        rest = jax.random.normal(for_rest, (*shape, self.rows, d, d), dtype) * math.sqrt(0.5)
        diagonal = jnp.sqrt(squares)[..., None] * _lifted(jnp.eye(d, dtype=dtype), rest.ndim)
        factor = jnp.tril(rest, -1) + diagonal
        root = jnp.linalg.inv(jnp.linalg.cholesky(rate))
        half = jnp.matmul(_lifted(turned(root), factor.ndim), factor)
        precision = jnp.matmul(half, turned(half))
        noise = jax.random.normal(for_x, (*shape, self.rows, d), dtype)
        # Λ = half·halfᵀ, so that half⁻ᵀ·noise has covariance Λ⁻¹.
        apart = jnp.linalg.solve(turned(half), noise[..., None])[..., 0]
        x = _lifted(m, apart.ndim) + apart / _lifted(scale[:, None] ** 0.5, apart.ndim)
        rows, columns = np.tril_indices(d)
        pieces = (x, precision[..., rows, columns])
        return jnp.concatenate([piece.reshape(*shape, -1) for piece in pieces], axis=-1)

    def is_proper(self, eta: NormalWishartEta) -> bool:
        """Returns whether κ > 0, a > (d − 1)/2 and B is positive definite, beyond rounding (NumPy only).

        B is scaled to a unit diagonal of ``rate``, so that the units of x do not matter.
        """
        if not (tree.is_finite(eta) and (eta.J > SMALLEST).all()):
            return False
        _, _, shape, rate = self.parameters(eta)
        if not (shape > 0.5 * (self.columns - 1) + _SMALLEST_SHAPE).all():
            return False
        diagonal = np.diagonal(eta.rate, axis1=1, axis2=2)
        if not (diagonal > SMALLEST).all():
            return False
        root = np.sqrt(diagonal)
        least = np.linalg.eigvalsh(symmetric(np.asarray(rate)) / outer(root, root))[:, 0]
        return bool((least > 0.5 * ROUNDING_FRACTION * self.columns).all())

    def project(self, eta: NormalWishartEta, floor: NormalWishartEta) -> NormalWishartEta:
        """Lifts κ, a − (d − 1)/2 and then B's eigenvalues, relative to the floor's B, to 1e-3 of the
        floor's, keeping h; keeps a proper η.

        Where the floor's precisions have an expected inverse, a > (d + 1)/2, a − (d + 1)/2 is lifted
        instead, so that means have an sd.
        """
        if self.is_proper(eta):
            return eta
        _, scale, shape, rate = self.parameters(floor)
        J = np.maximum(eta.J, PROJECTION_FRACTION * scale)
        d = self.columns
        bound = np.where(shape > 0.5 * (d + 1), 0.5 * (d + 1), 0.5 * (d - 1))
        power = np.maximum(eta.power, bound + PROJECTION_FRACTION * (shape - bound) - 0.5 * d)
        part = eta.h / np.sqrt(J)[:, None]
        taken = 0.5 * outer(part, part)
        root = np.linalg.cholesky(symmetric(rate))
        inverse = np.linalg.inv(root)
        left = inverse @ symmetric(eta.rate - taken) @ turned(inverse)
        values, vectors = np.linalg.eigh(symmetric(left))
        beside = inverse @ taken @ turned(inverse)
        largest = values[:, -1:].clip(0.0) + np.trace(beside, axis1=1, axis2=2)[:, None]
        # Four times what ``is_proper`` requires, in the floor's units instead of η's own.
        least = np.maximum(PROJECTION_FRACTION, 4.0 * ROUNDING_FRACTION * d * largest)
        lifted = (vectors * np.maximum(values, least)[:, None, :]) @ turned(vectors)
        kept = symmetric(root @ lifted @ turned(root))
        return NormalWishartEta(np.array(eta.h), J, power, kept + taken)

    def whiten(self, eta: NormalWishartEta, change: NormalWishartEta) -> np.ndarray:
        """Returns the first-order changes of m, κ and (a, B) in units of q's sds: shape [K(d + 2 + d²)].

        In (m, κ, a, B) the Fisher metric separates: κ dmᵀ E[Λ] dm + ½d (dκ/κ)² + the metric of the Wishart,
        which is ‖√a S − da/√a·I‖² + (ψ_d′(a) − d/a) da² with S = L⁻¹ dB L⁻ᵀ, B = L Lᵀ.
        """
        m, scale, shape, rate = self.parameters(eta)
        d = self.columns
        inverse = np.linalg.inv(np.linalg.cholesky(symmetric(rate)))
        shift = (change.h - change.J[:, None] * m) / scale[:, None]
        step = np.sqrt(scale * shape)[:, None] * _times(inverse, shift)
        cross = outer(change.h, m)
        moved = change.rate - symmetric(cross) + 0.5 * change.J[:, None, None] * outer(m, m)
        within = inverse @ symmetric(moved) @ turned(inverse)
        root = np.sqrt(shape)[:, None, None]
        spread = root * within - (change.power[:, None, None] / root) * np.eye(d)
        left = np.sqrt(self._excess(shape)) * change.power
        stretch = math.sqrt(0.5 * d) * change.J / scale
        return np.concatenate([step.ravel(), stretch, spread.ravel(), left])

    def moments(self, eta: NormalWishartEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D], of means and then of precisions.

        A mean has no finite sd, and the answer is inf, unless a > (d + 1)/2.
        """
        xp = eta.J.__array_namespace__()
        m, scale, shape, rate = self.parameters(eta)
        inverse = symmetric(xp.linalg.inv(rate))
        room = shape - 0.5 * (self.columns + 1)
        known = room > 0.0
        spread = _diagonal(xp, rate) / (scale * xp.where(known, room, 1.0))[:, None]
        sd = xp.where(known[:, None] & (spread > 0.0), spread**0.5, math.inf)
        diagonal = _diagonal(xp, inverse)
        variance = 0.5 * shape[:, None, None] * (inverse**2 + outer(diagonal, diagonal))
        rows, columns = np.tril_indices(self.columns)
        expected = shape[:, None] * inverse[:, rows, columns]
        spreads = variance[:, rows, columns] ** 0.5
        return (
            xp.concatenate([m.reshape(-1), expected.reshape(-1)]),
            xp.concatenate([sd.reshape(-1), spreads.reshape(-1)]),
        )

    @property
    def _triangle_size(self) -> int:
        return self.columns * (self.columns + 1) // 2

    @property
    def _places(self) -> np.ndarray:
        """The index of each entry of a symmetric matrix in its triangle, [d, d]."""
        rows, columns = np.tril_indices(self.columns)
        places = np.zeros((self.columns, self.columns), int)
        places[rows, columns] = places[columns, rows] = np.arange(len(rows))
        return places

    def _halves(self, shape: Any) -> Any:
        """Returns a − j/2 for j = 0 … d − 1, [d, K]: Γ_d(a) is the product of their gamma functions."""
        xp = shape.__array_namespace__()
        return xp.stack([shape - 0.5 * index for index in range(self.columns)])

    def _excess(self, shape: Any) -> Any:
        """Returns ψ_d′(a) − d/a > 0, a sum of positive terms."""
        halves = self._halves(shape)
        return (special.excess(halves) + (shape[None] - halves) / (halves * shape[None])).sum(
            axis=0
        )


def normal_wishart(rows: int, columns: int) -> NormalWishart:
    """Returns the family of ``rows`` independent normal-Wisharts, each over ``columns`` numbers."""
    return NormalWishart(rows, columns)


def _times(matrices: Any, vectors: Any) -> Any:
    """Returns the products of [K, d, d] and [K, d]."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _diagonal(xp: Any, matrices: Any) -> Any:
    return xp.diagonal(matrices, axis1=1, axis2=2)


def _lifted(array: Any, rank: int) -> Any:
    # Explicit, because rank promotion is an error in fedvi's own code.
    import jax

    return jax.lax.broadcast_to_rank(array, rank)
