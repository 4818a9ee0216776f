"""The normal-gamma family, for locations with unknown precisions.

q(x, τ) = ∏ᵢ N(xᵢ; mᵢ, 1/(λᵢτᵢ)) Gamma(τᵢ; αᵢ, βᵢ), stored as η = (h, J, power, rate) with

    h = λm,   J = λ,   power = α − ½,   rate = β + ½ λm²      beside
    T = (τx, −½ τx², log τ, −τ),

so that a record y ~ N(x, 1/τ) is the factor (y, 1, ½, ½ y²). θ is all locations, then all precisions.
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
    bregman_kl,
    check_layout,
    dual_entropy,
    inner,
)
from fedvi.expfam.gamma import Gamma, GammaEta
from fedvi.typing import Key, Theta

__all__ = ["NormalGamma", "NormalGammaEta", "normal_gamma"]

_LOG_2PI = math.log(2.0 * math.pi)


class NormalGammaEta(NamedTuple):
    """Natural parameters of n pairs, each [n]: λm, λ, α − ½ and β + ½λm²."""

    h: Any
    J: Any
    power: Any
    rate: Any


@dataclasses.dataclass(frozen=True)
class NormalGamma:
    """Independent normal-gammas over n = D/2 pairs: θ = (x₁ … xₙ, τ₁ … τₙ), τ > 0.

    The location's marginal is Student's t with 2α degrees of freedom. Where m² is 1e12 times β/λ,
    float64 cannot tell β from 0: centre the locations.

    >>> family = NormalGamma(2)
    >>> eta = family.from_parameters(*map(np.atleast_1d, (1.0, 2.0, 3.0, 4.0)))
    >>> [parameter.item() for parameter in family.parameters(eta)]
    [1.0, 2.0, 3.0, 4.0]
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 2 or self.size % 2:
            raise errors.FamilyError(
                f"size is {self.size!r}, expected an even number of at least 2",
                "the family is over as many precisions as locations",
            )

    @property
    def number_count(self) -> int:
        """Four numbers a pair."""
        return 2 * self.size

    def zeros(self) -> NormalGammaEta:
        """Returns the factor 1."""
        return NormalGammaEta(*(np.zeros(self.size // 2) for _ in range(4)))

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless all four are [D/2] and finite."""
        check_layout(eta, self.zeros(), name, self)

    def from_parameters(self, m: Any, scale: Any, shape: Any, rate: Any) -> NormalGammaEta:
        """Returns η of the normal-gammas with m, λ = ``scale``, α = ``shape``, β = ``rate``, each [D/2]."""
        return NormalGammaEta(scale * m, scale, shape - 0.5, rate + 0.5 * scale * m * m)

    def parameters(self, eta: NormalGammaEta) -> tuple[Any, Any, Any, Any]:
        """Returns m, λ, α and β, each [D/2]."""
        m = eta.h / eta.J
        return m, eta.J, eta.power + 0.5, eta.rate - 0.5 * m * eta.h

    def log_partition(self, eta: NormalGammaEta) -> Any:
        """Returns A(η) = Σ (log Γ(α) − α log β − ½ log λ + ½ log 2π)."""
        xp = eta.J.__array_namespace__()
        _, scale, shape, rate = self.parameters(eta)
        scales = 0.5 * (_LOG_2PI - xp.log(scale))
        return (special.gammaln(shape) - shape * xp.log(rate) + scales).sum()

    def mean(self, eta: NormalGammaEta) -> NormalGammaEta:
        """Returns μ = (E[τx], −½ E[τx²], E[log τ], −E[τ])."""
        xp = eta.J.__array_namespace__()
        m, scale, shape, rate = self.parameters(eta)
        precision = shape / rate
        return NormalGammaEta(
            m * precision,
            -0.5 * (1.0 / scale + m * m * precision),
            special.digamma(shape) - xp.log(rate),
            -precision,
        )

    def natural(self, mu: NormalGammaEta) -> NormalGammaEta:
        """Returns η with the mean parameters μ; NaN or nonsense where no member has them."""
        m = -mu.h / mu.rate
        scale = -1.0 / (2.0 * mu.J + m * mu.h)
        precisions = self._precisions()
        return self.from_parameters(
            m, scale, *precisions.parameters(precisions.natural(GammaEta(mu.power, mu.rate)))
        )

    def statistics(self, theta: Theta) -> NormalGammaEta:
        """Returns T(θ) = (τx, −½ τx², log τ, −τ) for θ = (x, τ) of shape [D]."""
        xp = theta.__array_namespace__()
        x, tau = theta[: self.size // 2], theta[self.size // 2 :]
        return NormalGammaEta(tau * x, -0.5 * tau * x * x, xp.log(tau), -tau)

    def inner(self, eta: NormalGammaEta, mu: NormalGammaEta) -> Any:
        """Returns ⟨η, μ⟩."""
        return inner(eta, mu)

    def sample(self, key: Key, eta: NormalGammaEta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``."""
        import jax

        m, scale, *gamma = self.parameters(tree.map_leaves(jax.numpy.asarray, eta))
        for_tau, for_x = jax.random.split(key)
        precisions = self._precisions()
        tau = precisions.sample(for_tau, precisions.from_parameters(*gamma), shape)
        noise = jax.random.normal(for_x, tau.shape, tau.dtype)
        m, scale = (jax.lax.broadcast_to_rank(each, tau.ndim) for each in (m, scale))
        return jax.numpy.concatenate([m + noise / (scale * tau) ** 0.5, tau], axis=-1)

    def is_proper(self, eta: NormalGammaEta) -> bool:
        """Says whether every λ, α and β is positive, beyond rounding (NumPy arrays only)."""
        if not (tree.is_finite(eta) and (eta.J > SMALLEST).all()):
            return False
        m, _, shape, rate = self.parameters(eta)
        beyond_rounding = rate > 0.5 * ROUNDING_FRACTION * m * eta.h
        precisions = self._precisions()
        proper = precisions.is_proper(precisions.from_parameters(shape, rate))
        return proper and bool(beyond_rounding.all())

    def project(self, eta: NormalGammaEta, floor: NormalGammaEta) -> NormalGammaEta:
        """Lifts λ, α and then β to 1e-3 of the floor's, keeping h; keeps a proper η as it is.

        Where the floor's α is above 1, it is α − 1 that is lifted, so that locations have an sd. As in
        the Gaussian families, h stays and the mean of a lifted λ is that with the same h. β is lifted by
        ``rate`` alone, after λ, which raises it too: so of each of J, power and rate no less would do,
        given those before it.
        """
        if self.is_proper(eta):
            return eta
        _, scale, shape, rate = self.parameters(floor)
        J = np.maximum(eta.J, PROJECTION_FRACTION * scale)
        start = np.where(shape > 1.0, 1.0, 0.0)
        power = np.maximum(eta.power, start + PROJECTION_FRACTION * (shape - start) - 0.5)
        half_square = 0.5 * eta.h**2 / J
        # Twice what ``is_proper`` asks for.
        least = np.maximum(PROJECTION_FRACTION * rate, 2.0 * ROUNDING_FRACTION * half_square)
        return NormalGammaEta(np.array(eta.h), J, power, np.maximum(eta.rate, half_square + least))

    def kl(self, eta_q: NormalGammaEta, eta_p: NormalGammaEta) -> Any:
        """Returns KL(q ‖ p) in nats, both proper."""
        return bregman_kl(self, eta_q, eta_p)

    def entropy(self, eta: NormalGammaEta) -> Any:
        """Returns H(q) in nats."""
        return dual_entropy(self, eta)

    def whiten(self, eta: NormalGammaEta, change: NormalGammaEta) -> np.ndarray:
        """Returns the first-order changes of m, λ and (α, β) in units of q's sds: shape [2D].

        In (m, λ, α, β) the Fisher metric falls apart: E[λτ] dm² + ½ (dλ/λ)² + that of the gamma.
        """
        m, scale, shape, rate = self.parameters(eta)
        shift = (change.h - m * change.J) / scale
        move = GammaEta(change.power, change.rate - m * change.h + 0.5 * m * m * change.J)
        precisions = self._precisions()
        return np.concatenate(
            [
                np.sqrt(scale * shape / rate) * shift,
                change.J / scale / math.sqrt(2.0),
                precisions.whiten(precisions.from_parameters(shape, rate), move),
            ]
        )

    def moments(self, eta: NormalGammaEta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D], of locations and then of precisions.

        A location has no finite sd, and the answer is inf, unless α > 1; for α ≤ ½ it has no mean
        either, and m is its median.
        """
        xp = eta.J.__array_namespace__()
        m, scale, shape, rate = self.parameters(eta)
        known = shape > 1.0
        variance = rate / (scale * xp.where(known, shape - 1.0, 1.0))
        precisions = self._precisions()
        tau, spread = precisions.moments(precisions.from_parameters(shape, rate))
        return (
            xp.concatenate([m, tau]),
            xp.concatenate([xp.where(known, variance**0.5, math.inf), spread]),
        )

    def _precisions(self) -> Gamma:
        return Gamma(self.size // 2)


def normal_gamma(size: int) -> NormalGamma:
    """Returns the family of ``size``/2 independent normal-gammas: that many locations, then precisions."""
    return NormalGamma(size)
