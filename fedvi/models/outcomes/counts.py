"""Distributions of counts with a log link."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.models.outcomes.base import (
    MOST_EXPONENT,
    Columns,
    Derivatives,
    Observed,
    Predictor,
    Values,
    of_two_kinds,
)
from fedvi.models.regression_statistics import PolyaGamma
from fedvi.updates.coordinates import Outcome

__all__ = ["NegativeBinomial", "Poisson", "rate"]

# A rate beyond which no count can be drawn.
_LARGEST_RATE = 1e15


def rate(
    linear_predictor: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """Returns eᵃ and its first and second derivative, finite for every a that a solver may try.

    Above 30 in float32, and 300 in float64, eᵃ is continued by its quadratic Taylor polynomial. The
    derivatives stay continuous and positive, and the squares in the norm of a gradient finite, so
    that an extreme record is clipped instead of counted as zero. No real count has such a
    rate (e³⁰ is 10¹³), so a posterior has no mass there.
    """
    highest = 300.0 if linear_predictor.dtype == jnp.float64 else 30.0
    inner = jnp.minimum(linear_predictor, highest)
    beyond = linear_predictor - inner
    exponential = jnp.exp(inner)
    value = exponential * (1.0 + beyond + 0.5 * beyond**2)
    return value, exponential * (1.0 + beyond), exponential


class _Count:
    """The methods that all counts with a log link share."""

    measured: ClassVar[str] = "count"
    whole: ClassVar[bool] = True
    keeps_total: ClassVar[bool] = False

    @property
    def surveyed(self) -> Outcome:
        """What a survey learns: the usual count, exposures, and how long slopes are."""
        return Outcome("count", getattr(self, "dispersion", 0.0))

    def surveyed_value(self, y: Observed, most: float) -> Values:
        """Returns log(1 + y) / log(1 + most), between 0 and 1."""
        return jnp.clip(jnp.log1p(jnp.asarray(y)) / math.log1p(most), 0.0, 1.0)

    def what(self, columns: Columns) -> str:
        """Names the mean."""
        return f"expected number of {columns.text}"

    def mean(self, linear_predictor: np.ndarray) -> np.ndarray:
        """Returns eᵃ."""
        return np.asarray(np.exp(np.clip(linear_predictor, -MOST_EXPONENT, MOST_EXPONENT)))

    def draw(
        self,
        linear_predictor: np.ndarray,
        columns: Columns,
        random: np.random.Generator,
        given: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Draws a count that is Poisson given its rate."""
        rates = np.exp(np.minimum(linear_predictor, math.log(_LARGEST_RATE)))
        return [random.poisson(self.drawn_rates(rates, random)).astype(np.float64)]

    def drawn_rates(self, means: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draws the rates of Poisson counts with these means."""
        return means


@dataclasses.dataclass(frozen=True)
class Poisson(_Count):
    """y in {0, 1, …} with mean and variance eᵃ."""

    conjugate: ClassVar[bool] = False
    concave: ClassVar[bool] = True
    accepts: ClassVar[Accepted] = ACCEPTED["poisson"]

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns y a − eᵃ − log y!, elementwise."""
        return self.derivatives(linear_predictor, y)[0]

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        value, slope, curvature = rate(a)
        return y * a - value - jax.lax.lgamma(y + 1.0), y - slope, -curvature

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns the slope of a count that is 1 + 3 sds above the mean."""
        _, mean, _ = rate(jnp.asarray(linear_predictor))
        return 1.0 + 3.0 * jnp.sqrt(mean)

    def curvature_at(self, mean: float) -> float:
        """Returns the Fisher information on a, which is the mean."""
        return mean

    def sd(self, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns √mean."""
        return np.sqrt(means)

    def cdf(self, y: np.ndarray, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns P(Y ≤ y)."""
        import scipy.stats

        return np.asarray(scipy.stats.poisson.cdf(y, means))


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(_Count):
    """y in {0, 1, …} with mean μ = eᵃ and variance μ + dispersion · μ²."""

    dispersion: float
    conjugate: ClassVar[bool] = False
    concave: ClassVar[bool] = True
    accepts: ClassVar[Accepted] = ACCEPTED["negative_binomial"]

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log p(y | a) with success odds dispersion · eᵃ, elementwise."""
        b, y, shape, constant = self._terms(linear_predictor, y)
        return y * jax.nn.log_sigmoid(b) + shape * jax.nn.log_sigmoid(-b) + constant

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        return of_two_kinds(*self._terms(linear_predictor, y))

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns the slope of a count that is 1 + 3 sds above the mean."""
        _, mean, _ = rate(jnp.asarray(linear_predictor))
        wider = 1.0 + self.dispersion * mean
        return 1.0 / wider + 3.0 * jnp.sqrt(mean / wider)

    def curvature_at(self, mean: float) -> float:
        """Returns the Fisher information on a."""
        return mean / (1.0 + self.dispersion * mean)

    def sharpest(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns the curvature, −∂² log p / ∂a², of that count: it grows with the outcome."""
        _, mean, _ = rate(jnp.asarray(linear_predictor))
        far = mean + 1.0 + 3.0 * jnp.sqrt(mean * (1.0 + self.dispersion * mean))
        return -self.derivatives(linear_predictor, far)[2]

    def _terms(self, linear_predictor: Any, y: Any) -> tuple[Any, Any, Any, Any]:
        """Returns log odds, y, the shape 1 / dispersion, and the term that is constant in a."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        shape = 1.0 / self.dispersion
        ways = jax.lax.lgamma(y + shape) - jax.lax.lgamma(y + 1.0) - math.lgamma(shape)
        return a + math.log(self.dispersion), y, shape, ways

    def sd(self, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns √(mean + dispersion · mean²)."""
        return np.sqrt(means * (1.0 + self.dispersion * means))

    def cdf(self, y: np.ndarray, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns P(Y ≤ y)."""
        import scipy.stats

        shape = 1.0 / self.dispersion
        return np.asarray(scipy.stats.nbinom.cdf(y, shape, shape / (shape + means)))

    def drawn_rates(self, means: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draws rates that are Gamma distributed around the means."""
        shape = 1.0 / self.dispersion
        return means * random.gamma(shape, 1.0 / shape, len(means))

    def conjugate_form(self, **shared: Any) -> PolyaGamma:
        """Returns the regression with Pólya-Gamma latents."""
        return PolyaGamma(
            **shared,
            centred=True,
            trials=1.0 / self.dispersion,
            counts=True,
            offset=math.log(self.dispersion),
        )
