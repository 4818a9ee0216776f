"""The normal-gamma family: coefficients that share one unknown noise precision, and that precision.

q(w, τ) = ∏_g ∏_r N(w_gr; m_gr, (τ_g Λ_g)⁻¹) Gamma(τ_g; α_g, β_g) over G groups of R rows of D numbers. The
rows of a group share τ and Λ. Stored as η = (h, J, power, rate) with

    h = Λm,   J = Λ,   power = α − 1 + ½RD,   rate = β + ½ Σ_r mᵀΛm      for
    T = (τw, −½ τ Σ_r w wᵀ, log τ, −τ),

so that outcomes y_r ~ N(zᵀw_r, 1/τ) with one z are the factor (y_r·z, z zᵀ, ½R, ½ Σ_r y_r²). Linear
regression with unknown noise has one group of one row. θ is all w, row by row, then all τ.
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
from fedvi.expfam.gamma import Gamma, GammaEta
from fedvi.expfam.matrices import symmetric, turned
from fedvi.typing import Key, Theta

__all__ = ["NormalGammaRows", "NormalGammaRowsEta", "normal_gamma_rows"]

_LOG_2PI = math.log(2.0 * math.pi)


class NormalGammaRowsEta(NamedTuple):
    """Natural parameters: Λm [G, R, D], Λ [G, D, D], α − 1 + ½RD [G] and β + ½ΣmᵀΛm [G]."""

    h: Any
    J: Any
    power: Any
    rate: Any


@dataclasses.dataclass(frozen=True)
class NormalGammaRows(Derived):
    """``groups`` = G of ``rows`` = R coefficient vectors of ``columns`` = D numbers, and G precisions.

    A coefficient's marginal is Student's t with 2α degrees of freedom.

    >>> family = NormalGammaRows(1, 2, 3)
    >>> family.size, family.number_count
    (7, 14)
    """

    groups: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        for count in (self.groups, self.rows, self.columns):
            check_size(count)

    @property
    def size(self) -> int:
        """G·R·D coefficients and G precisions."""
        return self.groups * (self.rows * self.columns + 1)

    @property
    def number_count(self) -> int:
        """For each group, R·D numbers of h, D(D+1)/2 of the symmetric J, and two more."""
        triangle = self.columns * (self.columns + 1) // 2
        return self.groups * (self.rows * self.columns + triangle + 2)

    def zeros(self) -> NormalGammaRowsEta:
        """Returns the factor 1."""
        groups, rows, columns = self.groups, self.rows, self.columns
        return NormalGammaRowsEta(
            np.zeros((groups, rows, columns)),
            np.zeros((groups, columns, columns)),
            np.zeros(groups),
            np.zeros(groups),
        )

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless shapes fit, all numbers are finite and J is symmetric."""
        check_layout(eta, self.zeros(), name, self)
        if not np.allclose(eta.J, turned(np.asarray(eta.J)), rtol=1e-9, atol=1e-9):
            raise errors.FamilyError(
                f"{name}.J is not symmetric", "send half the sum of it and its transpose"
            )

    def from_parameters(self, m: Any, scale: Any, shape: Any, rate: Any) -> NormalGammaRowsEta:
        """Returns η with m [G, R, D], Λ = ``scale`` [G, D, D], α = ``shape`` [G] and β = ``rate`` [G]."""
        h = m @ scale
        return NormalGammaRowsEta(h, scale, shape + self._shift, rate + 0.5 * _dot(m, h))

    def parameters(self, eta: NormalGammaRowsEta) -> tuple[Any, Any, Any, Any]:
        """Returns m [G, R, D], Λ [G, D, D], α [G] and β [G]."""
        m = self._locations(eta)
        return m, eta.J, eta.power - self._shift, eta.rate - 0.5 * _dot(m, eta.h)

    def log_partition(self, eta: NormalGammaRowsEta) -> Any:
        """Returns A(η) = Σ (log Γ(α) − α log β − ½R log|Λ| + ½RD log 2π)."""
        xp = eta.J.__array_namespace__()
        _, scale, shape, rate = self.parameters(eta)
        spread = 0.5 * self.rows * (self.columns * _LOG_2PI - xp.linalg.slogdet(scale)[1])
        return (special.gammaln(shape) - shape * xp.log(rate) + spread).sum()

    def mean(self, eta: NormalGammaRowsEta) -> NormalGammaRowsEta:
        """Returns μ = (E[τw], −½ Σ_r E[τ w wᵀ], E[log τ], −E[τ])."""
        xp = eta.J.__array_namespace__()
        m, scale, shape, rate = self.parameters(eta)
        precision = shape / rate
        along = precision[:, None, None] * m
        squares = self.rows * symmetric(xp.linalg.inv(scale)) + symmetric(turned(m) @ along)
        return NormalGammaRowsEta(
            along, -0.5 * squares, special.digamma(shape) - xp.log(rate), -precision
        )

    def statistics(self, theta: Theta) -> NormalGammaRowsEta:
        """Returns T(θ) = (τw, −½ τ Σ_r w wᵀ, log τ, −τ) for θ = (w, τ) of shape [size]."""
        xp = theta.__array_namespace__()
        w, tau = self.split(theta)
        along = tau[:, None, None] * w
        return NormalGammaRowsEta(along, -0.5 * (turned(w) @ along), xp.log(tau), -tau)

    def split(self, theta: Theta) -> tuple[Any, Any]:
        """Splits θ [size] into coefficients [G, R, D] and precisions [G]."""
        count = self.groups * self.rows * self.columns
        return theta[:count].reshape(self.groups, self.rows, self.columns), theta[count:]

    def sample(self, key: Key, eta: NormalGammaRowsEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, of shape ``shape + (size,)``."""
        import jax

        jnp = jax.numpy
        m, scale, *gamma = self.parameters(tree.map_leaves(jnp.asarray, eta))
        for_tau, for_w = jax.random.split(key)
        precisions = self._precisions()
        tau = precisions.sample(for_tau, precisions.from_parameters(*gamma), shape)
        noise = jax.random.normal(for_w, (*shape, *m.shape), m.dtype)
        inverse = jnp.linalg.inv(jnp.linalg.cholesky(scale))
        apart = jnp.matmul(noise, jax.lax.broadcast_to_rank(inverse, noise.ndim))
        w = jax.lax.broadcast_to_rank(m, noise.ndim) + apart / tau[..., None, None] ** 0.5
        return jnp.concatenate([w.reshape(*shape, -1), tau], axis=-1)

    def is_proper(self, eta: NormalGammaRowsEta) -> bool:
        """Returns whether Λ is positive definite and α, β are positive, beyond rounding (NumPy only).

        Λ is scaled to a unit diagonal, so that the units of coefficients do not matter.
        """
        if not tree.is_finite(eta):
            return False
        diagonal = np.diagonal(eta.J, axis1=1, axis2=2)
        if not (diagonal > SMALLEST).all():
            return False
        root = np.sqrt(diagonal)
        scaled = symmetric(np.asarray(eta.J)) / (root[:, :, None] * root[:, None, :])
        if not (np.linalg.eigvalsh(scaled)[:, 0] > 1e-14 * self.columns).all():
            return False
        _, _, shape, rate = self.parameters(eta)
        precisions = self._precisions()
        beyond_rounding = rate > 0.5 * ROUNDING_FRACTION * np.abs(eta.rate)
        proper = precisions.is_proper(precisions.from_parameters(shape, rate))
        return proper and bool(beyond_rounding.all())

    def project(self, eta: NormalGammaRowsEta, floor: NormalGammaRowsEta) -> NormalGammaRowsEta:
        """Lifts Λ's eigenvalues relative to the floor's Λ, α and then β to 1e-3 of the floor's, keeping
        h; keeps a proper η.

        Where the floor's α is above 1, α − 1 is lifted instead of α, so that coefficients have an sd.
        """
        if self.is_proper(eta):
            return eta
        _, scale, shape, rate = self.parameters(floor)
        root = np.linalg.cholesky(symmetric(scale))
        inverse = np.linalg.inv(root)
        values, vectors = np.linalg.eigh(symmetric(inverse @ eta.J @ turned(inverse)))
        lost = ROUNDING_FRACTION * self.columns * values[:, -1:]
        lifted = np.maximum(values, np.maximum(PROJECTION_FRACTION, lost))
        J = symmetric(root @ (vectors * lifted[:, None, :]) @ turned(vectors) @ turned(root))
        start = np.where(shape > 1.0, 1.0, 0.0)
        least_shape = start + PROJECTION_FRACTION * (shape - start)
        half_square = 0.5 * _dot(self._locations(eta._replace(J=J)), eta.h)
        # Four times what ``is_proper`` asks for.
        least = np.maximum(PROJECTION_FRACTION * rate, 2.0 * ROUNDING_FRACTION * half_square)
        return NormalGammaRowsEta(
            np.array(eta.h),
            J,
            np.maximum(eta.power, least_shape + self._shift),
            np.maximum(eta.rate, half_square + least),
        )

    def whiten(self, eta: NormalGammaRowsEta, change: NormalGammaRowsEta) -> np.ndarray:
        """Returns the first-order changes of m, Λ and (α, β) in units of q's sds: a vector.

        In (m, Λ, α, β) the Fisher metric separates: E[τ] Σ_r dmᵀΛ dm + ½R ‖L⁻¹ dΛ L⁻ᵀ‖² + the metric of
        the gamma, with Λ = L Lᵀ.
        """
        m, scale, shape, rate = self.parameters(eta)
        inverse = np.linalg.inv(np.linalg.cholesky(symmetric(scale)))
        shift = (change.h - m @ change.J) @ turned(inverse)
        spread = inverse @ change.J @ turned(inverse) * math.sqrt(0.5 * self.rows)
        moved = change.rate - _dot(m, change.h) + 0.5 * _dot(m, m @ change.J)
        precisions = self._precisions()
        return np.concatenate(
            [
                (np.sqrt(shape / rate)[:, None, None] * shift).ravel(),
                spread.ravel(),
                precisions.whiten(
                    precisions.from_parameters(shape, rate), GammaEta(change.power, moved)
                ),
            ]
        )

    def moments(self, eta: NormalGammaRowsEta) -> tuple[Any, Any]:
        """Returns the mean [size] and the standard deviation [size], of coefficients, then precisions.

        A coefficient has no finite sd, and the answer is inf, unless α > 1.
        """
        xp = eta.J.__array_namespace__()
        m, scale, shape, rate = self.parameters(eta)
        known = shape > 1.0
        diagonal = xp.diagonal(xp.linalg.inv(scale), axis1=1, axis2=2)
        variance = (rate / xp.where(known, shape - 1.0, 1.0))[:, None] * diagonal
        sd = xp.where(known[:, None], variance**0.5, math.inf)[:, None, :] + xp.zeros_like(m)
        precisions = self._precisions()
        tau, spread = precisions.moments(precisions.from_parameters(shape, rate))
        return xp.concatenate([m.reshape(-1), tau]), xp.concatenate([sd.reshape(-1), spread])

    @property
    def _shift(self) -> float:
        return 0.5 * self.rows * self.columns - 1.0

    def _locations(self, eta: NormalGammaRowsEta) -> Any:
        xp = eta.J.__array_namespace__()
        return turned(xp.linalg.solve(eta.J, turned(eta.h)))

    def _precisions(self) -> Gamma:
        return Gamma(self.groups)


def normal_gamma_rows(groups: int, rows: int, columns: int) -> NormalGammaRows:
    """Returns the family of ``groups`` precisions, each with ``rows`` vectors of ``columns`` numbers."""
    return NormalGammaRows(groups, rows, columns)


def _dot(left: Any, right: Any) -> Any:
    """Returns the sums of products within groups, [G]."""
    return (left * right).sum(axis=(1, 2))
