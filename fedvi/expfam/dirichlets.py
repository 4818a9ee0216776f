"""Many Dirichlets of one length side by side, for topics or tables of proportions.

q(θ) = ∏ₖ Dirichlet(θₖ; αₖ) over K rows of V proportions, with the concentrations as one array [K, V]:
what a ``product`` of K parts would hold in K. η = α − 1 beside T(θ) = log θ, as in ``dirichlet``.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import special, tree
from fedvi.expfam.base import (
    PROJECTION_FRACTION,
    bregman_kl,
    check_layout,
    dual_entropy,
    inner,
)
from fedvi.expfam.dirichlet import SMALLEST, whiten_concentrations
from fedvi.typing import Key, Theta

__all__ = ["Dirichlets", "DirichletsEta", "dirichlets"]

# How many numbers are computed with in one go where pieces will do.
_BLOCK = 1 << 17


class DirichletsEta(NamedTuple):
    """Natural parameters: powers α − 1, [K, V]; of μ, E[log θ]."""

    power: Any


@dataclasses.dataclass(frozen=True)
class Dirichlets:
    """K independent Dirichlets over V proportions each; θ has them row after row, D = K·V.

    Attributes:
      rows: K.
      levels: V.

    >>> family = Dirichlets(2, 3)
    >>> alpha = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 3.0]])
    >>> family.moments(family.from_parameters(alpha))[0].tolist()
    [0.25, 0.5, 0.25, 0.2, 0.2, 0.6]
    """

    rows: int
    levels: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise errors.FamilyError(
                f"rows is {self.rows!r}, expected a whole number of at least 1"
            )
        if self.levels < 2:
            raise errors.FamilyError(
                f"size is {self.levels!r}, expected a whole number of at least 2",
                "a Dirichlet is over proportions that sum to one",
            )

    @property
    def size(self) -> int:
        """D = K·V."""
        return self.rows * self.levels

    @property
    def number_count(self) -> int:
        """K·V powers."""
        return self.size

    def zeros(self) -> DirichletsEta:
        """Returns the factor 1."""
        return DirichletsEta(np.zeros((self.rows, self.levels)))

    def blocks(self, *etas: DirichletsEta) -> Iterator[tuple[DirichletsEta, ...]]:
        """Cuts natural parameters into groups of rows, as many as are computed in one go."""
        step = max(1, _BLOCK // self.levels)
        for start in range(0, self.rows, step):
            yield tuple(DirichletsEta(eta.power[start : start + step]) for eta in etas)

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless the powers are [K, V] and finite."""
        check_layout(eta, self.zeros(), name, self)

    def from_parameters(self, concentrations: Any) -> DirichletsEta:
        """Returns η of the Dirichlets with concentrations α [K, V]."""
        return DirichletsEta(concentrations - 1.0)

    def parameters(self, eta: DirichletsEta) -> Any:
        """Returns the concentrations α [K, V]."""
        return eta.power + 1.0

    def log_partition(self, eta: DirichletsEta) -> Any:
        """Returns A(η) = Σₖ (Σᵥ log Γ(αₖᵥ) − log Γ(Σᵥ αₖᵥ))."""
        alpha = self.parameters(eta)
        return special.gammaln(alpha).sum() - special.gammaln(alpha.sum(axis=1)).sum()

    def mean(self, eta: DirichletsEta) -> DirichletsEta:
        """Returns μ = E[log θ] = ψ(α) − ψ(Σᵥ α)."""
        alpha = self.parameters(eta)
        total = alpha.sum(axis=1, keepdims=True)
        return DirichletsEta(special.digamma(alpha) - special.digamma(total))

    def natural(self, mu: DirichletsEta) -> DirichletsEta:
        """Returns η with the mean parameters μ; nonsense where a row's Σ exp μ ≥ 1, which no member has.

        See ``special.concentrations`` for its precision.
        """
        return self.from_parameters(special.concentrations(mu.power.T).T)

    def statistics(self, theta: Theta) -> DirichletsEta:
        """Returns T(θ) = log θ for θ of shape [D]."""
        xp = theta.__array_namespace__()
        return DirichletsEta(xp.reshape(xp.log(theta), (-1, self.levels)))

    def inner(self, eta: DirichletsEta, mu: DirichletsEta) -> Any:
        """Returns ⟨η, μ⟩."""
        return inner(eta, mu)

    def sample(self, key: Key, eta: DirichletsEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        alpha = jax.numpy.asarray(self.parameters(eta))
        draws = jax.random.dirichlet(key, alpha, (*shape, alpha.shape[0]), alpha.dtype)
        return draws.reshape(*shape, -1)

    def is_proper(self, eta: DirichletsEta) -> bool:
        """Says whether every concentration is positive, beyond rounding (NumPy arrays only)."""
        return bool((self.parameters(eta) > SMALLEST).all()) and tree.is_finite(eta)

    def project(self, eta: DirichletsEta, floor: DirichletsEta) -> DirichletsEta:
        """Lifts concentrations to 1e-3 of the floor's, each by itself; keeps a proper η as it is.

        Nearest in the sense of ``dirichlet``'s.
        """
        if self.is_proper(eta):
            return eta
        least = PROJECTION_FRACTION * self.parameters(floor)
        return self.from_parameters(np.maximum(self.parameters(eta), least))

    def kl(self, eta_q: DirichletsEta, eta_p: DirichletsEta) -> Any:
        """Returns KL(q ‖ p) in nats, the sum of the rows', both proper."""
        return bregman_kl(self, eta_q, eta_p)

    def entropy(self, eta: DirichletsEta) -> Any:
        """Returns H(q) in nats, the sum of the rows', each as ``dirichlet`` counts it."""
        return dual_entropy(self, eta)

    def whiten(self, eta: DirichletsEta, change: DirichletsEta) -> np.ndarray:
        """Returns ``change`` in units of each row's metric diag ψ′(α) − ψ′(Σα) 11ᵀ: shape [D]."""
        return whiten_concentrations(self.parameters(eta).T, change.power.T).T.reshape(-1)

    def moments(self, eta: DirichletsEta) -> tuple[Any, Any]:
        """Returns the mean α/Σα [D] and the standard deviation [D]."""
        alpha = self.parameters(eta)
        total = alpha.sum(axis=1, keepdims=True)
        sd = (alpha * (total - alpha) / (total + 1.0)) ** 0.5 / total
        return (alpha / total).reshape(-1), sd.reshape(-1)


def dirichlets(rows: int, size: int) -> Dirichlets:
    """Returns the family of ``rows`` independent Dirichlets over ``size`` proportions each."""
    return Dirichlets(rows, size)
