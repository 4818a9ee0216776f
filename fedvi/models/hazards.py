"""Survival regression with a piecewise constant hazard."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi import errors
from fedvi.models.arguments import Scale, checked_names, checked_scale, prior_scales
from fedvi.models.counts import rate
from fedvi.models.glm import GeneralisedLinearModel

__all__ = ["Events", "Intervals", "survival"]


@dataclasses.dataclass(frozen=True)
class Events:
    """y is (events d, time at risk e) with the hazard eᵃ: log p = d a − e eᵃ.

    The density of the times themselves. A Poisson count d of mean e eᵃ has the same likelihood but
    for d log e − log d!, which does not depend on a (the "Poisson trick").
    """

    conjugate: ClassVar[bool] = False

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... 2"]
    ) -> Float[Array, "..."]:
        """Returns d a − e eᵃ."""
        return self.derivatives(linear_predictor, y)[0]

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... 2"]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        events, exposure = y[..., 0], y[..., 1]
        value, slope, curvature = rate(a)
        return events * a - exposure * value, events - exposure * slope, -exposure * curvature


@dataclasses.dataclass(frozen=True)
class Intervals:
    """One subject as rows, one an interval: (0, c₁], (c₁, c₂], …, (c_K₋₁, ∞), with its covariates."""

    cuts: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the log hazards where all covariates are 0, one an interval."""
        ends = [0.0, *self.cuts]
        within = [f"baseline ({low:g}, {high:g}]" for low, high in itertools.pairwise(ends)]
        return (*within, f"baseline ({ends[-1]:g}, ∞)")

    def rows(
        self, x: Float[Array, " c"], y: Float[Array, "2"]
    ) -> tuple[Float[Array, "k d"], Float[Array, "k 2"]]:
        """Returns (indicator of the interval, x) and (event, time at risk) for each interval.

        Args:
          x: the covariates, without an intercept.
          y: the time under observation, above 0, and whether it ended with the event, 1 or 0. Rows
            of zeros, where no record stands, are at risk for no time.
        """
        time, event = y[0], y[1]
        lower = jnp.asarray([0.0, *self.cuts], y.dtype)
        upper = jnp.asarray([*self.cuts, math.inf], y.dtype)
        exposure = jnp.clip(time, lower, upper) - lower
        # An interval includes its end, as in R's Surv. A time was scaled by its bounds and back, and may
        # have come to lie a rounding beyond.
        slack = 1.0 + (1e-9 if y.dtype == jnp.float64 else 1e-6)
        here = (time > lower * slack) & (time <= upper * slack)
        outcomes = jnp.stack([event * here.astype(y.dtype), exposure], axis=-1)
        intervals = len(self.cuts) + 1
        covariates = jnp.broadcast_to(x[None, :], (intervals, x.shape[0]))
        return jnp.concatenate([jnp.eye(intervals, dtype=x.dtype), covariates], axis=1), outcomes


def survival(
    names: Sequence[str],
    cuts: Sequence[Scale],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale = 10.0,
) -> GeneralisedLinearModel:
    """Makes piecewise exponential survival: the hazard is exp(aⱼ + xᵀβ) in the j-th interval of time.

    θ = (a₁, …, a_K, β). exp(β_d) is a hazard ratio, proportional over time as in a Cox model, and
    exp(aⱼ) the hazard, per unit of time, where all covariates are 0. A subject is ONE record
    ``{"x": [D], "y": (time, event)}``, so that a private solver clips all of its intervals together:

        log p = Σⱼ dⱼ (aⱼ + xᵀβ) − eⱼ exp(aⱼ + xᵀβ),

    dⱼ = 1 if the event came in interval j, eⱼ the time at risk there. Unlike a Cox partial
    likelihood it is a sum over subjects, and so over sites.

    Args:
      names: the D covariates, without an intercept: the baseline stands for it. In a formula:
        ``Surv(time, event) ~ age + sex``.
      cuts: where the baseline hazard may jump, increasing, in the unit of time; public. An empty list
        is a hazard that is constant over time. An interval without events takes its hazard from the prior.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: that of each log hazard of the baseline, around 0. Wide, because
        it depends on the unit: one event in 20 years of days is −8.9.

    Raises:
      ModelError: a repeated name, a scale that is not a positive number, or cuts that do not increase.

    Source: Friedman (1982), Piecewise exponential models for survival data with covariates; Holford
    (1980) and Laird and Olivier (1981) for the Poisson likelihood.

    >>> survival(["age"], cuts=[90, 365]).names
    ('baseline (0, 90]', 'baseline (90, 365]', 'baseline (365, ∞)', 'age')
    """
    intervals = Intervals(_checked_cuts(cuts))
    covariates = checked_names(names) if len(names) else ()
    baseline = (checked_scale("intercept_scale", intercept_scale),) * len(intervals.names)
    return GeneralisedLinearModel(
        checked_names([*intervals.names, *covariates]),
        (*baseline, *prior_scales(covariates, prior_scale, None)),
        Events(),
        intervals,
    )


def _checked_cuts(cuts: Sequence[Scale]) -> tuple[float, ...]:
    hint = "write e.g. cuts = [90, 365, 730], in the unit of the time; they are public"
    given = list(np.asarray(cuts).ravel())
    for cut in given:
        number = isinstance(cut, int | float | np.integer | np.floating)
        if not number or isinstance(cut, bool) or not 0.0 < cut < math.inf:
            raise errors.ModelError(f"cuts holds {cut!r}, expected numbers above 0", hint)
    if any(low >= high for low, high in itertools.pairwise(given)):
        raise errors.ModelError(f"cuts is {cuts!r}, expected numbers that increase", hint)
    return tuple(float(cut) for cut in given)
