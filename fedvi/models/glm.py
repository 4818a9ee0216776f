"""Linear and logistic regression, and the base of all generalised linear models.

A new likelihood of a linear predictor goes into a new file, with a ``Response`` and a factory.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi.models.arguments import Scale, checked_names, checked_scale, prior_scales
from fedvi.models.base import Record
from fedvi.models.outcomes.base import (
    Derivatives,
    Observed,
    Predictor,
    Response,
    Values,
    WithOffset,
    curvature_at,
    sharpest,
    steepest,
    surveyed,
    typical_curvature,
)
from fedvi.models.outcomes.bernoulli import Bernoulli
from fedvi.models.outcomes.normal import Normal
from fedvi.updates.coordinates import Outcome

__all__ = [
    "GeneralisedLinearModel",
    "Layout",
    "linear",
    "logistic",
    "normal_log_prior",
    "regression",
]

_LOG_2PI = math.log(2.0 * math.pi)


@runtime_checkable
class Layout(Protocol):
    """Turns ONE record into several rows, each with its own linear predictor.

    Frozen and hashable: all fields are public, and so is the number of rows.
    """

    def rows(
        self, x: Float[Array, " c"], y: Float[Array, "..."]
    ) -> tuple[Float[Array, "k d"], Float[Array, "k ..."]]:
        """Returns the design and the outcomes of a record's k rows."""


@dataclasses.dataclass(frozen=True)
class GeneralisedLinearModel:
    """Coefficients with independent N(0, scale²) priors, and outcomes given linear predictors.

    A record is ``{"x": [C], "y": [...]}``. Without a layout it is one row: C = D, and y has the shape
    that the response takes. A layout turns it into k rows, independent given θ. They are still ONE
    record: their sum is clipped.

    All fields are public; two models with equal fields are equal, so a model can be a
    static argument of ``jax.jit``. Make one with ``logistic`` or another factory of
    ``fedvi.models``, which check their arguments.
    """

    names: tuple[str, ...]
    prior_scales: tuple[float, ...]
    response: Response
    layout: Layout | None = None

    @property
    def size(self) -> int:
        """D, the number of coefficients."""
        return len(self.names)

    @property
    def outcome(self) -> Any:
        """The distribution of a record's outcome, without any offset."""
        if self.layout is not None:
            return self.layout
        return self.response.response if isinstance(self.response, WithOffset) else self.response

    @property
    def conjugate(self) -> bool:
        """Whether the likelihood is Gaussian in θ, so that the ``exact`` solver applies."""
        return self.response.conjugate

    @property
    def concave(self) -> bool:
        """Whether log p(y | a) is concave in a, and so in θ; True of a response that does not say."""
        return bool(getattr(self.response, "concave", True))

    @property
    def typical_curvature(self) -> float:
        """What a typical record adds to the precision of a coefficient whose column has variance 1.

        A public guess from the response alone; ``TYPICAL_CURVATURE`` if the response has none.
        """
        return typical_curvature(self.response)

    def curvature_at(self, mean: float) -> float | None:
        """Returns the same where outcomes have this mean; None if the response cannot say."""
        return curvature_at(self.response, mean)

    @property
    def noise_scale(self) -> float | None:
        """The known standard deviation of a row's noise; None unless the model is linear."""
        inner = self.outcome if self.layout is None else None
        return inner.noise_scale if isinstance(inner, Normal) else None

    @property
    def surveyed(self) -> Outcome | None:
        """What a survey may learn of outcomes before steps begin; None for nothing."""
        return surveyed(self.response if self.layout is None else self.layout)

    @property
    def blocks(self) -> tuple[float, ...] | None:
        """How large slopes of each outcome are less than others, see ``Survey``; None of other layouts."""
        return (1.0,) if self.layout is None else getattr(self.layout, "blocks", None)

    @property
    def baselines(self) -> int:
        """How many log hazards come before the coefficients; 0 of a model without."""
        return int(getattr(self.layout, "baselines", 0))

    def at_offset(self, y: Observed, offset: Any) -> Observed:
        """Returns y as if all records had this offset; y itself where the model has none."""
        if not isinstance(self.response, WithOffset):
            return y
        y = jnp.asarray(y)
        return y.at[..., -1].set(jnp.asarray(offset, y.dtype))

    def surveyed_value(self, y: Observed, most: float) -> Values:
        """Returns an outcome as a number in [0, 1], whose sum a survey has."""
        response: Any = self.response if self.layout is None else self.layout
        return response.surveyed_value(y, most)

    def exposure(self, y: Observed, exposed: float) -> Values:
        """Returns exp(offset − exposed), at most 1; of a hazard, the time at risk ÷ follow-up."""
        layout: Any = self.layout
        if layout is not None:
            return layout.at_risk(y)
        return jnp.exp(jnp.minimum(jnp.asarray(y)[..., -1] - exposed, 0.0))

    def slope_size(self, linear_predictor: Predictor, y: Observed, level: Any) -> Values:
        """Returns the size of ∂ log p / ∂a as ``OutcomeSurvey`` counts it, with weights at this offset."""
        slope = jnp.abs(self.derivatives(linear_predictor, y)[1])
        reached = self.steepest(linear_predictor, self.at_offset(y, level))
        return slope * (self.noise_scale or 1.0) ** 2 if reached is None else 3.0 * slope / reached

    def with_noise(self, noise_scale: float) -> "GeneralisedLinearModel":
        """Returns the same model with known noise in place of noise to be learnt."""
        moved: Any = self.response
        inner = Normal(noise_scale)
        response = WithOffset(inner) if isinstance(moved, WithOffset) else inner
        return dataclasses.replace(self, response=response)

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns Σ_d log N(θ_d; 0, prior_scales[d]²)."""
        return normal_log_prior(theta, self.prior_scales)

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log p(y | a), elementwise in the linear predictor a and y."""
        return self.response.log_density(linear_predictor, y)

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a, elementwise."""
        return self.response.derivatives(linear_predictor, y)

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values | None:
        """Returns a size that |∂ log p(y | a) / ∂a| may well reach for some outcome, elementwise.

        It depends on a and on the known parts of y (an offset, a number of trials), but not on the outcome.
        So slopes weighted by it still have the mean 0, unlike clipped slopes. None if outcomes scatter
        symmetrically, or the response does not define it.
        """
        return steepest(self.response, linear_predictor, y)

    def sharpest(self, linear_predictor: Predictor, y: Observed) -> Values | None:
        """Returns −∂² log p(y | a) / ∂a² at the outcome of ``steepest``; None if no outcome changes it."""
        return sharpest(self.response, linear_predictor, y)

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Returns log p(y | a = xᵀθ) of ONE record ``{"x": [C], "y": [...]}``, over all its rows."""
        theta = jnp.asarray(theta)
        x = jnp.asarray(record["x"]).astype(theta.dtype)
        # HIGHEST: on a GPU the default would round x and θ to TF32.
        precision = jax.lax.Precision.HIGHEST
        if self.layout is None:
            return self.log_density(jnp.vdot(x, theta, precision=precision), record["y"])
        design, outcomes = self.layout.rows(x, jnp.asarray(record["y"]).astype(theta.dtype))
        return self.log_density(jnp.matmul(design, theta, precision=precision), outcomes).sum()

    def plausible(self, theta: Float[ArrayLike, " d"], record: Record) -> Record | None:
        """Returns ONE record with the layout's plausible outcomes; None without a layout that has them."""
        found = getattr(self.layout, "plausible", None)
        if found is None:
            return None
        x = jnp.asarray(record["x"])
        outcomes = found(jnp.asarray(theta), x)
        return {"x": jnp.broadcast_to(x, (len(outcomes), *x.shape)), "y": outcomes}

    def designs(self, record: Record) -> Float[Array, "k d"]:
        """Returns the designs of ONE record's k rows: their predictors are designs @ θ."""
        x = jnp.asarray(record["x"])
        return x[None] if self.layout is None else self.layout.rows(x, jnp.asarray(record["y"]))[0]

    def rows(
        self, x: Float[Array, "n c"], y: Float[Array, "n ..."], mask: Shaped[Array, " n"]
    ) -> tuple[Float[Array, "m d"], Float[Array, "m ..."], Shaped[Array, " m"]]:
        """Returns all rows of n records, record by record, for solvers that do not clip.

        Without a layout it returns its arguments. ``mask`` is repeated for the rows of a record.
        """
        if self.layout is None:
            return x, y, mask
        design, outcomes = jax.vmap(self.layout.rows)(x, y)
        count = design.shape[1]
        return (
            design.reshape(-1, self.size),
            outcomes.reshape(-1, *outcomes.shape[2:]),
            jnp.repeat(mask, count),
        )

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns ``{"coefficients": θ}``: θ has no transform."""
        return {"coefficients": jnp.asarray(theta)}


def normal_log_prior(theta: Float[ArrayLike, " d"], scales: Sequence[float]) -> Float[Array, ""]:
    """Returns Σ_d log N(θ_d; 0, scales[d]²)."""
    theta = jnp.asarray(theta)
    whitened = theta / jnp.asarray(scales, theta.dtype)
    constant = sum(math.log(scale) for scale in scales) + 0.5 * len(scales) * _LOG_2PI
    return -0.5 * jnp.sum(whitened**2) - constant


def logistic(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
) -> GeneralisedLinearModel:
    """Makes Bayesian logistic regression: y ~ Bernoulli(σ(xᵀθ)), θ_d ~ N(0, scale_d²).

    Args:
      names: the D coefficients, in the order of the columns of x.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: prior standard deviation of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (outcome, offset), see ``WithOffset``.

    Raises:
      ModelError: no names, a repeated one, or a scale that is not a positive number.

    >>> logistic(["(Intercept)", "age"], intercept_scale=10.0).prior_scales
    (10.0, 2.5)
    """
    return regression(names, prior_scale, intercept_scale, Bernoulli(), offset)


def linear(
    names: Sequence[str],
    noise_scale: Scale | Literal["learn"] = 1.0,
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
    outcome_bound: Scale = 1.0,
) -> GeneralisedLinearModel:
    """Makes Bayesian linear regression: y ~ N(xᵀθ, noise_scale²), θ_d ~ N(0, scale_d²).

    With known noise the model is conjugate and, without an offset, the ``exact`` solver applies.

    Args:
      names: the D coefficients, in the order of the columns of x.
      noise_scale: standard deviation of y around xᵀθ, in the unit of y; or "learn", which the solver
        ``site_release`` can: it is then the sd of residuals, as released, and taken as known.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: prior standard deviation of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (outcome, offset), see ``WithOffset``.
      outcome_bound: the largest |y|, for noise to be learnt: half of it is the guess until then, and
        remains where a survey of outcomes would not pay (``planned_survey``).

    Raises:
      ModelError: no names, a repeated one, or a scale that is not a positive number.

    >>> linear(["(Intercept)", "dose"], noise_scale=0.3).conjugate
    True
    """
    if noise_scale == "learn":
        response = Normal(0.5 * checked_scale("outcome_bound", outcome_bound), learnt=True)
    else:
        response = Normal(checked_scale("noise_scale", noise_scale))
    return regression(names, prior_scale, intercept_scale, response, offset)


def regression(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale],
    intercept_scale: Scale | None,
    response: Response,
    offset: bool,
) -> GeneralisedLinearModel:
    """Makes a model with one row per record from the arguments that all factories share."""
    checked = checked_names(names)
    return GeneralisedLinearModel(
        checked,
        prior_scales(checked, prior_scale, intercept_scale),
        WithOffset(response) if offset else response,
    )
