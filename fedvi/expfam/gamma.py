"""The gamma family, for rates, precisions and other positive numbers.

q(θ) = ∏ᵢ βᵢ^αᵢ / Γ(αᵢ) · θᵢ^(αᵢ−1) exp(−βᵢθᵢ), with shape α and rate β, stored as η = (α − 1, β) with
T(θ) = (log θ, −θ). The power is α − 1 and not α because η = 0 must be the factor 1. The rate's statistic
is −θ, so that evidence adds to both.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam import special, tree
from fedvi.expfam.base import (
    PROJECTION_FRACTION,
    SMALLEST,
    Derived,
    check_size,
)
from fedvi.typing import Key, Theta

__all__ = ["Gamma", "GammaEta", "gamma"]

# A proper shape is larger: α − 1 cannot tell smaller ones from 0, because of rounding.
_SMALLEST_SHAPE = 1e-12


class GammaEta(NamedTuple):
    """Natural parameters: power α − 1 and rate β, each [D]; for μ, E[log θ] and −E[θ]."""

    power: Any
    rate: Any


@dataclasses.dataclass(frozen=True)
class Gamma(Derived):
    """Independent gammas over θ ∈ (0, ∞)ᴰ.

    >>> family = Gamma(2)
    >>> eta = family.from_parameters(np.array([4.0, 1.0]), np.array([2.0, 1.0]))
    >>> [moment.tolist() for moment in family.moments(eta)]
    [[2.0, 1.0], [1.0, 1.0]]
    """

    size: int

    def __post_init__(self) -> None:
        check_size(self.size)

    @property
    def number_count(self) -> int:
        """D powers and D rates."""
        return 2 * self.size

    def zeros(self) -> GammaEta:
        """Returns the factor 1."""
        return GammaEta(np.zeros(self.size), np.zeros(self.size))

    def from_parameters(self, shape: Any, rate: Any) -> GammaEta:
        """Returns η of the gammas with shapes α [D] and rates β [D]."""
        return GammaEta(shape - 1.0, rate)

    def parameters(self, eta: GammaEta) -> tuple[Any, Any]:
        """Returns shapes α [D] and rates β [D]."""
        return eta.power + 1.0, eta.rate

    def log_partition(self, eta: GammaEta) -> Any:
        """Returns A(η) = Σ (log Γ(α) − α log β)."""
        xp = eta.rate.__array_namespace__()
        shape, rate = self.parameters(eta)
        return (special.gammaln(shape) - shape * xp.log(rate)).sum()

    def mean(self, eta: GammaEta) -> GammaEta:
        """Returns μ = (E[log θ], −E[θ]) = (ψ(α) − log β, −α/β)."""
        xp = eta.rate.__array_namespace__()
        shape, rate = self.parameters(eta)
        return GammaEta(special.digamma(shape) - xp.log(rate), -shape / rate)

    def statistics(self, theta: Theta) -> GammaEta:
        """Returns T(θ) = (log θ, −θ) for θ of shape [D]."""
        xp = theta.__array_namespace__()
        return GammaEta(xp.log(theta), -theta)

    def sample(self, key: Key, eta: GammaEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        alpha, rate = self.parameters(tree.map_leaves(jax.numpy.asarray, eta))
        draws = jax.random.gamma(key, alpha, (*shape, self.size), alpha.dtype)
        return draws / jax.lax.broadcast_to_rank(rate, draws.ndim)

    def is_proper(self, eta: GammaEta) -> bool:
        """Returns whether every shape and every rate is positive, beyond rounding (NumPy arrays only)."""
        positive = (eta.power + 1.0 > _SMALLEST_SHAPE) & (eta.rate > SMALLEST)
        return bool(positive.all()) and tree.is_finite(eta)

    def project(self, eta: GammaEta, floor: GammaEta) -> GammaEta:
        """Lifts each shape and each rate to at least 1e-3 of the floor's; keeps a proper η.

        Proper members are an orthant of (α, β), so this is the nearest member above that bound, in every
        norm that weights coordinates. A mean α/β moves if only one of α and β is lifted.
        """
        if self.is_proper(eta):
            return eta
        shape, rate = self.parameters(eta)
        least_shape, least_rate = self.parameters(floor)
        return self.from_parameters(
            np.maximum(shape, PROJECTION_FRACTION * least_shape),
            np.maximum(rate, PROJECTION_FRACTION * least_rate),
        )

    def whiten(self, eta: GammaEta, change: GammaEta) -> np.ndarray:
        """Returns the first-order changes of log E[θ], in units of 1/√α, q's coefficient of variation,
        and of the shape α, in units of the rest of its metric: [2D].

        The Fisher metric ψ′(α) dα² − 2 dα dβ/β + α dβ²/β² is α (dβ/β − dα/α)² + (ψ′(α) − 1/α) dα².
        """
        shape, rate = self.parameters(eta)
        level = np.sqrt(shape) * (change.rate / rate - change.power / shape)
        return np.concatenate([level, np.sqrt(special.excess(shape)) * change.power])

    def moments(self, eta: GammaEta) -> tuple[Any, Any]:
        """Returns the mean α/β [D] and the standard deviation √α/β [D]."""
        shape, rate = self.parameters(eta)
        return shape / rate, shape**0.5 / rate


def gamma(size: int) -> Gamma:
    """Returns the family of ``size`` independent gammas."""
    return Gamma(size)
