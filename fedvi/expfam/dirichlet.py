"""The Dirichlet family, for proportions that sum to one: one simplex, or many of equal length.

q(θ) = ∏ₖ Γ(Σα) / ∏ᵥ Γ(αₖᵥ) · ∏ᵥ θₖᵥ^(αₖᵥ−1) on rows of V proportions, with concentrations α, stored as
η = α − 1 with T(θ) = log θ: η = 0 is the factor 1 and, unlike on ℝᴰ, a proper density.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import special, tree
from fedvi.expfam.base import PROJECTION_FRACTION, Derived
from fedvi.typing import Key, Theta

__all__ = ["Dirichlet", "DirichletEta", "dirichlet", "dirichlets", "whiten_concentrations"]

# A proper concentration is larger: α − 1 cannot tell smaller ones from 0, because of rounding.
_SMALLEST = 1e-12
# How many numbers are in one piece.
_BLOCK = 1 << 17


class DirichletEta(NamedTuple):
    """Natural parameters: powers α − 1, [V] or [K, V]; for μ, E[log θ]."""

    power: Any


@dataclasses.dataclass(frozen=True)
class Dirichlet(Derived):
    """Dirichlets over V ≥ 2 proportions each; θ has them row after row.

    Attributes:
      shape: (V,) for one simplex, (K, V) for K rows.

    >>> family = Dirichlet((2, 3))
    >>> alpha = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 3.0]])
    >>> family.moments(family.from_parameters(alpha))[0].tolist()
    [0.25, 0.5, 0.25, 0.2, 0.2, 0.6]
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        *rows, levels = self.shape
        if any(count < 1 for count in rows):
            raise errors.FamilyError(f"rows is {rows[0]!r}, expected a whole number of at least 1")
        if levels < 2:
            raise errors.FamilyError(
                f"size is {levels!r}, expected a whole number of at least 2",
                "a Dirichlet is over proportions that sum to one",
            )

    @property
    def size(self) -> int:
        """D, the number of proportions in all rows."""
        return math.prod(self.shape)

    @property
    def number_count(self) -> int:
        """D powers."""
        return self.size

    def zeros(self) -> DirichletEta:
        """Returns the factor 1."""
        return DirichletEta(np.zeros(self.shape))

    def blocks(self, *etas: DirichletEta) -> Iterator[tuple[DirichletEta, ...]]:
        """Splits natural parameters into groups of rows."""
        if len(self.shape) == 1:
            yield etas
            return
        rows, levels = self.shape
        step = max(1, _BLOCK // levels)
        for start in range(0, rows, step):
            yield tuple(DirichletEta(eta.power[start : start + step]) for eta in etas)

    def from_parameters(self, concentration: Any) -> DirichletEta:
        """Returns η of the Dirichlets with concentrations α, [V] or [K, V]."""
        return DirichletEta(concentration - 1.0)

    def parameters(self, eta: DirichletEta) -> Any:
        """Returns the concentrations α, [V] or [K, V]."""
        return eta.power + 1.0

    def log_partition(self, eta: DirichletEta) -> Any:
        """Returns A(η) = Σₖ (Σᵥ log Γ(αₖᵥ) − log Γ(Σᵥ αₖᵥ))."""
        alpha = self.parameters(eta)
        total = alpha.sum(axis=-1, keepdims=True)
        return special.gammaln(alpha).sum() - special.gammaln(total).sum()

    def mean(self, eta: DirichletEta) -> DirichletEta:
        """Returns μ = E[log θ] = ψ(α) − ψ(Σᵥ α)."""
        alpha = self.parameters(eta)
        total = alpha.sum(axis=-1, keepdims=True)
        return DirichletEta(special.digamma(alpha) - special.digamma(total))

    def statistics(self, theta: Theta) -> DirichletEta:
        """Returns T(θ) = log θ for θ of shape [D]."""
        xp = theta.__array_namespace__()
        return DirichletEta(xp.reshape(xp.log(theta), self.shape))

    def sample(self, key: Key, eta: DirichletEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        alpha = jax.numpy.asarray(self.parameters(eta))
        draws = jax.random.dirichlet(key, alpha, (*shape, *alpha.shape[:-1]), alpha.dtype)
        return draws.reshape(*shape, -1)

    def is_proper(self, eta: DirichletEta) -> bool:
        """Returns whether every concentration is positive, beyond rounding (NumPy arrays only)."""
        return bool((self.parameters(eta) > _SMALLEST).all()) and tree.is_finite(eta)

    def project(self, eta: DirichletEta, floor: DirichletEta) -> DirichletEta:
        """Lifts each concentration to at least 1e-3 of the floor's; keeps a proper η.

        Proper members are an orthant of α, so this is the nearest member above that bound, in every norm
        that weights coordinates.
        """
        if self.is_proper(eta):
            return eta
        least = PROJECTION_FRACTION * self.parameters(floor)
        return self.from_parameters(np.maximum(self.parameters(eta), least))

    def whiten(self, eta: DirichletEta, change: DirichletEta) -> np.ndarray:
        """Returns ``change`` in units of each row's metric diag ψ′(α) − ψ′(Σα) 11ᵀ: shape [D]."""
        columns = (part.reshape(-1, self.shape[-1]).T for part in (eta.power + 1.0, change.power))
        return whiten_concentrations(*columns).T.reshape(-1)

    def moments(self, eta: DirichletEta) -> tuple[Any, Any]:
        """Returns the mean α/Σα [D] and the standard deviation [D]."""
        alpha = self.parameters(eta)
        total = alpha.sum(axis=-1, keepdims=True)
        sd = (alpha * (total - alpha) / (total + 1.0)) ** 0.5 / total
        return (alpha / total).reshape(-1), sd.reshape(-1)


def whiten_concentrations(alpha: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Returns the symmetric root of the Fisher metrics of n Dirichlets, applied to changes of α.

    With s = √ψ′(α) and the unit vector u ∝ 1/s, the metric is s (I − c uuᵀ) s, whose eigenvalue along
    u is 1 − c = 1 − ψ′(Σα) Σ 1/ψ′(αᵢ). For large α that is a difference of nearly equal numbers, so it is
    computed from the small ``excess`` instead.

    Args:
      alpha, change: [K, n].

    Returns:
      [K, n]; the squared norms of its columns are the metrics.
    """
    total, curvature = alpha.sum(axis=0), special.trigamma(alpha)
    of_total, weight = special.trigamma(total), (1.0 / curvature).sum(axis=0)
    lost = (alpha * special.excess(alpha) / curvature).sum(axis=0)
    along = np.where(
        total > 1.0, of_total * lost - total * special.excess(total), 1.0 - of_total * weight
    )
    scaled = np.sqrt(curvature) * change
    unit = 1.0 / np.sqrt(curvature * weight)
    return scaled - (1.0 - np.sqrt(along)) * unit * (unit * scaled).sum(axis=0)


def dirichlet(size: int) -> Dirichlet:
    """Returns the family of Dirichlets over one simplex of ``size`` numbers."""
    return Dirichlet((size,))


def dirichlets(rows: int, size: int) -> Dirichlet:
    """Returns the family of ``rows`` independent Dirichlets over ``size`` proportions each."""
    return Dirichlet((rows, size))
