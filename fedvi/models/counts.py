"""Regressions of counts with a log link: Poisson and negative binomial."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi.models.arguments import Scale, checked_scale
from fedvi.models.glm import GeneralisedLinearModel, regression

__all__ = ["NegativeBinomial", "Poisson", "negative_binomial", "poisson", "rate"]


def rate(
    linear_predictor: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """Returns eᵃ and its first and second derivative, finite for every a that a solver may try.

    Above 30 in float32, and 300 in float64, eᵃ is continued by its quadratic Taylor polynomial: the
    derivatives stay continuous and positive, and the squares in the norm of a gradient finite, so
    that a record far out is clipped instead of counted as zero. No count of this world has such a
    rate (e³⁰ is 10¹³): a posterior has no mass there.
    """
    highest = 300.0 if linear_predictor.dtype == jnp.float64 else 30.0
    inner = jnp.minimum(linear_predictor, highest)
    beyond = linear_predictor - inner
    exponential = jnp.exp(inner)
    value = exponential * (1.0 + beyond + 0.5 * beyond**2)
    return value, exponential * (1.0 + beyond), exponential


@dataclasses.dataclass(frozen=True)
class Poisson:
    """y in {0, 1, …} with mean and variance eᵃ."""

    conjugate: ClassVar[bool] = False

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns y a − eᵃ − log y!, elementwise."""
        return self.derivatives(linear_predictor, y)[0]

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        value, slope, curvature = rate(a)
        return y * a - value - jax.lax.lgamma(y + 1.0), y - slope, -curvature

    def steepest(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns the slope of a count that is three standard deviations, and one, above the mean."""
        _, mean, _ = rate(jnp.asarray(linear_predictor))
        return 1.0 + 3.0 * jnp.sqrt(mean)


@dataclasses.dataclass(frozen=True)
class NegativeBinomial:
    """y in {0, 1, …} with mean μ = eᵃ and variance μ + dispersion · μ²."""

    dispersion: float
    conjugate: ClassVar[bool] = False

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns log p(y | a) with success odds dispersion · eᵃ, elementwise."""
        b, y, shape, constant = self._terms(linear_predictor, y)
        return y * jax.nn.log_sigmoid(b) + shape * jax.nn.log_sigmoid(-b) + constant

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        b, y, shape, constant = self._terms(linear_predictor, y)
        decay = jnp.exp(-jnp.abs(b))
        larger = 1.0 / (1.0 + decay)
        smaller = decay * larger
        positive = b >= 0.0
        success = jnp.where(positive, larger, smaller)
        failure = jnp.where(positive, smaller, larger)
        softened = jnp.log1p(decay)
        value = (
            y * (jnp.minimum(b, 0.0) - softened)
            - shape * (jnp.maximum(b, 0.0) + softened)
            + constant
        )
        return value, y * failure - shape * success, -(y + shape) * larger * smaller

    def steepest(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns the slope of a count that is three standard deviations, and one, above the mean."""
        _, mean, _ = rate(jnp.asarray(linear_predictor))
        wider = 1.0 + self.dispersion * mean
        return 1.0 / wider + 3.0 * jnp.sqrt(mean / wider)

    def _terms(self, linear_predictor: Any, y: Any) -> tuple[Any, Any, Any, Any]:
        """Returns log odds, y, the shape 1 / dispersion, and the term that is constant in a."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        shape = 1.0 / self.dispersion
        ways = jax.lax.lgamma(y + shape) - jax.lax.lgamma(y + 1.0) - math.lgamma(shape)
        return a + math.log(self.dispersion), y, shape, ways


def poisson(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
) -> GeneralisedLinearModel:
    """Makes Bayesian Poisson regression: y ~ Poisson(exp(xᵀθ)), θ_d ~ N(0, scale_d²).

    exp(coefficient) is a rate ratio. Where counts vary by more than their mean, its intervals are
    too narrow: take ``negative_binomial``.

    Args:
      names: the D coefficients, in the order of the columns of x.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: that of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (count, offset), the log of what the count is out of, such as
        the time at risk: y ~ Poisson(exp(xᵀθ + offset)). In a formula: ``offset(log(years))``.

    Raises:
      ModelError: no names, a repeated one, or a scale that is not a positive number.

    >>> poisson(["(Intercept)", "age"], intercept_scale=10).prior_scales
    (10.0, 2.5)
    """
    return regression(names, prior_scale, intercept_scale, Poisson(), offset)


def negative_binomial(
    names: Sequence[str],
    dispersion: Scale,
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
) -> GeneralisedLinearModel:
    """Makes negative binomial regression: mean μ = exp(xᵀθ), variance μ + dispersion · μ².

    exp(coefficient) is a rate ratio. The dispersion is known and public; where it is to be learned,
    ``fedvi.models.overdispersed`` has a NumPyro model. It is 1 / ``theta`` of R's ``glm.nb``, and
    ``alpha`` of Stata's ``nbreg``; at 0 the counts would be Poisson.

    Args:
      names: the D coefficients, in the order of the columns of x.
      dispersion: above 0.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: that of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (count, offset); see ``poisson``.

    Raises:
      ModelError: no names, a repeated one, or a scale or dispersion that is not a positive number.

    >>> negative_binomial(["(Intercept)", "age"], dispersion=0.5).size
    2
    """
    response = NegativeBinomial(
        checked_scale(
            "dispersion", dispersion, "the variance is μ + dispersion · μ²; for 0 use `poisson`"
        )
    )
    return regression(names, prior_scale, intercept_scale, response, offset)
