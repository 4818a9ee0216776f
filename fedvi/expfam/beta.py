"""The beta family, for probabilities.

q(θ) = ∏ᵢ θᵢ^(aᵢ−1) (1 − θᵢ)^(bᵢ−1) / B(aᵢ, bᵢ), stored as η = (a − 1, b − 1) beside
T(θ) = (log θ, log(1 − θ)): each θᵢ is the first coordinate of a Dirichlet of two.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam import special, tree
from fedvi.expfam.base import (
    PROJECTION_FRACTION,
    bregman_kl,
    check_layout,
    check_size,
    dual_entropy,
    inner,
)
from fedvi.expfam.dirichlet import SMALLEST, whiten_concentrations
from fedvi.typing import Key, Theta

__all__ = ["Beta", "BetaEta", "beta"]


class BetaEta(NamedTuple):
    """Natural parameters: the powers a − 1 of θ and b − 1 of 1 − θ, each [D]; of μ, the expected logs."""

    power: Any
    other: Any


@dataclasses.dataclass(frozen=True)
class Beta:
    """Independent betas over θ ∈ (0, 1)ᴰ.

    >>> family = Beta(1)
    >>> family.moments(family.from_parameters(np.array([3.0]), np.array([1.0])))[0].tolist()
    [0.75]
    """

    size: int

    def __post_init__(self) -> None:
        check_size(self.size)

    @property
    def number_count(self) -> int:
        """D powers of θ and D of 1 − θ."""
        return 2 * self.size

    def zeros(self) -> BetaEta:
        """Returns the factor 1, which is the uniform density."""
        return BetaEta(np.zeros(self.size), np.zeros(self.size))

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless both powers are [D] and finite."""
        check_layout(eta, self.zeros(), name, self)

    def from_parameters(self, a: Any, b: Any) -> BetaEta:
        """Returns η of the betas with concentrations a [D] on 1 and b [D] on 0."""
        return BetaEta(a - 1.0, b - 1.0)

    def parameters(self, eta: BetaEta) -> tuple[Any, Any]:
        """Returns a [D] and b [D]."""
        return eta.power + 1.0, eta.other + 1.0

    def log_partition(self, eta: BetaEta) -> Any:
        """Returns A(η) = Σ log B(a, b)."""
        a, b = self.parameters(eta)
        return (special.gammaln(a) + special.gammaln(b) - special.gammaln(a + b)).sum()

    def mean(self, eta: BetaEta) -> BetaEta:
        """Returns μ = (E[log θ], E[log(1 − θ)])."""
        a, b = self.parameters(eta)
        both = special.digamma(a + b)
        return BetaEta(special.digamma(a) - both, special.digamma(b) - both)

    def natural(self, mu: BetaEta) -> BetaEta:
        """Returns η with the mean parameters μ; nonsense where exp μ sums to 1 or more.

        See ``special.concentrations`` for its precision.
        """
        xp = mu.power.__array_namespace__()
        return self.from_parameters(*special.concentrations(xp.stack([mu.power, mu.other])))

    def statistics(self, theta: Theta) -> BetaEta:
        """Returns T(θ) = (log θ, log(1 − θ)) for θ of shape [D]."""
        xp = theta.__array_namespace__()
        return BetaEta(xp.log(theta), xp.log1p(-theta))

    def inner(self, eta: BetaEta, mu: BetaEta) -> Any:
        """Returns ⟨η, μ⟩."""
        return inner(eta, mu)

    def sample(self, key: Key, eta: BetaEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        a, b = map(jax.numpy.asarray, self.parameters(eta))
        return jax.random.beta(key, a, b, (*shape, self.size), a.dtype)

    def is_proper(self, eta: BetaEta) -> bool:
        """Says whether all concentrations are positive, beyond rounding (NumPy arrays only)."""
        positive = all((concentration > SMALLEST).all() for concentration in self.parameters(eta))
        return positive and tree.is_finite(eta)

    def project(self, eta: BetaEta, floor: BetaEta) -> BetaEta:
        """Lifts concentrations to 1e-3 of the floor's, each by itself; keeps a proper η as it is.

        Proper members are an orthant of (a, b), so that this is the nearest of those no flatter than
        that in every norm that weighs coordinates.
        """
        if self.is_proper(eta):
            return eta
        pairs = zip(self.parameters(eta), self.parameters(floor), strict=True)
        lifted = (np.maximum(found, PROJECTION_FRACTION * least) for found, least in pairs)
        return self.from_parameters(*lifted)

    def kl(self, eta_q: BetaEta, eta_p: BetaEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        return bregman_kl(self, eta_q, eta_p)

    def entropy(self, eta: BetaEta) -> Any:
        """Returns H(q) in nats."""
        return dual_entropy(self, eta)

    def whiten(self, eta: BetaEta, change: BetaEta) -> np.ndarray:
        """Returns ``change`` in units of each beta's Fisher metric: shape [2D]."""
        return whiten_concentrations(np.stack(self.parameters(eta)), np.stack(change)).ravel()

    def moments(self, eta: BetaEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D]."""
        a, b = self.parameters(eta)
        total = a + b
        return a / total, (a * b / (total + 1.0)) ** 0.5 / total


def beta(size: int) -> Beta:
    """Returns the family of ``size`` independent betas."""
    return Beta(size)
