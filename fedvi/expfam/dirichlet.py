"""The Dirichlet family, for proportions that sum to one.

q(θ) = Γ(Σα) / ∏ Γ(αᵢ) · ∏ θᵢ^(αᵢ−1) on the simplex of D numbers, with concentrations α, stored as
η = α − 1 beside T(θ) = log θ: η = 0 is the factor 1 and, unlike that of ℝᴰ, a proper density. Several
simplices are a ``product`` of these.
"""

import dataclasses
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
from fedvi.typing import Key, Theta

__all__ = ["SMALLEST", "Dirichlet", "DirichletEta", "dirichlet", "whiten_concentrations"]

SMALLEST = 1e-12
"""A proper concentration is larger: α − 1 tells smaller ones from 0 only by rounding."""


class DirichletEta(NamedTuple):
    """Natural parameters: powers α − 1, [D]; of μ, E[log θ]."""

    power: Any


@dataclasses.dataclass(frozen=True)
class Dirichlet:
    """Dirichlets over the simplex of D numbers, with D ≥ 2.

    >>> family = Dirichlet(3)
    >>> family.moments(family.from_parameters(np.array([1.0, 2.0, 1.0])))[0].tolist()
    [0.25, 0.5, 0.25]
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 2:
            raise errors.FamilyError(
                f"size is {self.size!r}, expected a whole number of at least 2",
                "a Dirichlet is over proportions that sum to one",
            )

    @property
    def number_count(self) -> int:
        """D powers."""
        return self.size

    def zeros(self) -> DirichletEta:
        """Returns the factor 1."""
        return DirichletEta(np.zeros(self.size))

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless the powers are [D] and finite."""
        check_layout(eta, self.zeros(), name, self)

    def from_parameters(self, concentration: Any) -> DirichletEta:
        """Returns η of the Dirichlet with concentrations α [D]."""
        return DirichletEta(concentration - 1.0)

    def parameters(self, eta: DirichletEta) -> Any:
        """Returns the concentrations α [D]."""
        return eta.power + 1.0

    def log_partition(self, eta: DirichletEta) -> Any:
        """Returns A(η) = Σ log Γ(αᵢ) − log Γ(Σα)."""
        alpha = self.parameters(eta)
        return special.gammaln(alpha).sum() - special.gammaln(alpha.sum(keepdims=True)).sum()

    def mean(self, eta: DirichletEta) -> DirichletEta:
        """Returns μ = E[log θ] = ψ(α) − ψ(Σα)."""
        alpha = self.parameters(eta)
        return DirichletEta(special.digamma(alpha) - special.digamma(alpha.sum(keepdims=True)))

    def natural(self, mu: DirichletEta) -> DirichletEta:
        """Returns η with the mean parameters μ; nonsense where Σ exp μ ≥ 1, which no member has.

        See ``special.concentrations`` for its precision.
        """
        return self.from_parameters(special.concentrations(mu.power[:, None])[:, 0])

    def statistics(self, theta: Theta) -> DirichletEta:
        """Returns T(θ) = log θ for θ of shape [D]."""
        xp = theta.__array_namespace__()
        return DirichletEta(xp.log(theta))

    def inner(self, eta: DirichletEta, mu: DirichletEta) -> Any:
        """Returns ⟨η, μ⟩."""
        return inner(eta, mu)

    def sample(self, key: Key, eta: DirichletEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        alpha = jax.numpy.asarray(self.parameters(eta))
        return jax.random.dirichlet(key, alpha, shape, alpha.dtype)

    def is_proper(self, eta: DirichletEta) -> bool:
        """Says whether every concentration is positive, beyond rounding (NumPy arrays only)."""
        return bool((self.parameters(eta) > SMALLEST).all()) and tree.is_finite(eta)

    def project(self, eta: DirichletEta, floor: DirichletEta) -> DirichletEta:
        """Lifts concentrations to 1e-3 of the floor's, each by itself; keeps a proper η as it is.

        Proper members are an orthant of α, so that this is the nearest of those no flatter than that in
        every norm that weighs coordinates.
        """
        if self.is_proper(eta):
            return eta
        least = PROJECTION_FRACTION * self.parameters(floor)
        return self.from_parameters(np.maximum(self.parameters(eta), least))

    def kl(self, eta_q: DirichletEta, eta_p: DirichletEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        return bregman_kl(self, eta_q, eta_p)

    def entropy(self, eta: DirichletEta) -> Any:
        """Returns H(q) in nats, with respect to Lebesgue measure on the first D − 1 coordinates."""
        return dual_entropy(self, eta)

    def whiten(self, eta: DirichletEta, change: DirichletEta) -> np.ndarray:
        """Returns ``change`` in units of the metric diag ψ′(α) − ψ′(Σα) 11ᵀ: shape [D]."""
        return whiten_concentrations(self.parameters(eta)[:, None], change.power[:, None])[:, 0]

    def moments(self, eta: DirichletEta) -> tuple[Any, Any]:
        """Returns the mean α/Σα [D] and the standard deviation [D]."""
        alpha = self.parameters(eta)
        total = alpha.sum(keepdims=True)
        return alpha / total, (alpha * (total - alpha) / (total + 1.0)) ** 0.5 / total


def whiten_concentrations(alpha: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Returns the symmetric root of the Fisher metrics of n Dirichlets, applied to changes of α.

    With s = √ψ′(α) and the unit vector u ∝ 1/s, the metric is s (I − c uuᵀ) s, whose eigenvalue along
    u is 1 − c = 1 − ψ′(Σα) Σ 1/ψ′(αᵢ). For large α that is a difference of nearly equal numbers, and is
    written as one of the small ``excess`` instead.

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
    return Dirichlet(size)
