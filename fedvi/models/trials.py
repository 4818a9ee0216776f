"""Regression of event counts out of known numbers of trials."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi.models.arguments import Scale, checked_scale
from fedvi.models.glm import TYPICAL_CURVATURE, GeneralisedLinearModel, regression

__all__ = ["Binomial", "binomial"]


@dataclasses.dataclass(frozen=True)
class Binomial:
    """y = (successes s, failures f) with s ~ Binomial(s + f, σ(a)), a = xᵀθ the log odds.

    The number of trials is the record's own, and taken as given: where it is 0, a record says nothing.

    Attributes:
      typical_trials: s + f of a typical record, a public number. The likelihood does not depend on it: see
        ``binomial``.
    """

    typical_trials: float = 1.0
    conjugate: ClassVar[bool] = False

    @property
    def typical_curvature(self) -> float:
        """That of as many yes-or-no answers as a record typically has."""
        return TYPICAL_CURVATURE * self.typical_trials

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... 2"]
    ) -> Float[Array, "..."]:
        """Returns s log σ(a) + f log σ(−a) + log C(s + f, s), elementwise in a and along y's other axes."""
        a, successes, failures, ways = _terms(linear_predictor, y)
        return successes * jax.nn.log_sigmoid(a) + failures * jax.nn.log_sigmoid(-a) + ways

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... 2"]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        a, successes, failures, ways = _terms(linear_predictor, y)
        decay = jnp.exp(-jnp.abs(a))
        larger = 1.0 / (1.0 + decay)
        smaller = decay * larger
        positive = a >= 0.0
        success = jnp.where(positive, larger, smaller)
        failure = jnp.where(positive, smaller, larger)
        # log1p: trials multiply what log(1 + decay) would lose.
        softened = jnp.log1p(decay)
        value = (
            successes * (jnp.minimum(a, 0.0) - softened)
            - failures * (jnp.maximum(a, 0.0) + softened)
            + ways
        )
        # Not s − (s + f) σ(a), which cancels where nearly all trials are of one kind.
        slope = successes * failure - failures * success
        return value, slope, -(successes + failures) * larger * smaller

    def steepest(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... 2"]
    ) -> Float[Array, "..."]:
        """Returns the slope of successes three standard deviations, and one, off; of all trials at most."""
        a, successes, failures, _ = _terms(linear_predictor, y)
        trials, likelier = successes + failures, jax.nn.sigmoid(jnp.abs(a))
        scatter = jnp.sqrt(trials * likelier * (1.0 - likelier))
        return jnp.minimum(trials * likelier, 1.0 + 3.0 * scatter)


def _terms(linear_predictor: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Returns a, successes, failures, and the log of the number of their orders, which has no a."""
    a = jnp.asarray(linear_predictor)
    y = jnp.asarray(y).astype(a.dtype)
    successes, failures = y[..., 0], y[..., 1]
    ways = (
        jax.lax.lgamma(successes + failures + 1.0)
        - jax.lax.lgamma(successes + 1.0)
        - jax.lax.lgamma(failures + 1.0)
    )
    return a, successes, failures, ways


def binomial(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
    typical_trials: Scale = 1.0,
) -> GeneralisedLinearModel:
    """Makes Bayesian binomial regression: s ~ Binomial(s + f, σ(xᵀθ)), θ_d ~ N(0, scale_d²).

    A record is ``{"x": [D], "y": [2]}`` with y = (successes s, failures f), so that trials vary from record
    to record; in a formula ``cbind(events, non_events) ~ age``, as in R. exp(coefficient) is an odds ratio.
    The posterior is that of ``logistic`` with each trial as a record of its own. A record of a private
    study is still one unit, and is clipped as one, however many trials it has.

    Args:
      names: the D coefficients, in the order of the columns of x.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: that of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (s, f, offset), see ``WithOffset``.
      typical_trials: s + f of a typical record: a public number, never looked up in the data. No
        likelihood depends on it: the solver ``vips`` weighs its blocks by it, and plans estimate by it
        how far a record's signal stands out.

    Raises:
      ModelError: no names, a repeated one, or a scale or ``typical_trials`` that is not a positive number.

    Source: McCullagh and Nelder (1989), Generalized Linear Models, chapter 4.

    >>> binomial(["(Intercept)", "age"], intercept_scale=10).prior_scales
    (10.0, 2.5)
    """
    hint = "it is how many trials a typical record has, a public number such as 20"
    response = Binomial(checked_scale("typical_trials", typical_trials, hint))
    return regression(names, prior_scale, intercept_scale, response, offset)
