"""Survival regression with a piecewise constant hazard."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from fedvi import errors
from fedvi.models.arguments import Scale, checked_names, checked_scale, prior_scales
from fedvi.models.glm import GeneralisedLinearModel
from fedvi.models.outcomes.hazard import Events, Intervals

__all__ = ["survival"]


def survival(
    names: Sequence[str],
    cuts: Sequence[Scale],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale = 5.0,
    follow_up: Scale | None = None,
) -> GeneralisedLinearModel:
    """Makes piecewise exponential survival: the hazard is exp(aⱼ + xᵀβ) in the j-th interval of time.

    θ = (a₁, …, a_K, β). exp(β_d) is a hazard ratio, proportional over time as in a Cox model, and
    exp(aⱼ) the hazard, per ``follow_up``, where all covariates are 0: how many events a subject would have
    over the whole follow-up if it could have several. So θ is the same whatever times are counted in, if
    times, cuts and ``follow_up`` are in one unit; per unit of time the log hazard is aⱼ − log(follow_up).
    A subject is ONE record ``{"x": [D], "y": (time, event)}``, so a private solver clips all of its
    intervals together:

        log p = Σⱼ dⱼ (aⱼ + xᵀβ − log F) − eⱼ exp(aⱼ + xᵀβ) / F,

    where dⱼ = 1 if the event happened in interval j, eⱼ is the time at risk there, and F is ``follow_up``.
    Unlike a Cox partial likelihood it is a sum over subjects, and so over sites.

    Args:
      names: the D covariates, without an intercept, which the baseline replaces. In a formula:
        ``Surv(time, event) ~ age + sex``.
      cuts: the times at which the baseline hazard may jump, increasing, in the unit of time; public. With
        an empty list the hazard is constant. An interval without events takes its hazard from the prior.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: prior standard deviation of each log hazard of the baseline, around 0, which is one
        event in the whole follow-up: 5 allows one in 20,000 follow-ups, and 20,000 in one.
      follow_up: the latest time, if it is public; a study takes it from the bounds of its time. Weights
        before clipping (``site_release``) need not expect later times. Left out, hazards are per unit of
        time, as with a follow-up of 1 whose end nobody knows.

    Raises:
      ModelError: a repeated name, a scale that is not a positive number, or cuts that do not increase.

    Source: Friedman (1982), Piecewise exponential models for survival data with covariates; Holford
    (1980) and Laird and Olivier (1981) for the Poisson likelihood.

    >>> survival(["age"], cuts=[90, 365]).names
    ('baseline (0, 90]', 'baseline (90, 365]', 'baseline (365, ∞)', 'age')
    """
    end = math.inf if follow_up is None else checked_scale("follow_up", follow_up)
    intervals = Intervals(_checked_cuts(cuts), end)
    covariates = checked_names(names) if len(names) else ()
    baseline = (checked_scale("intercept_scale", intercept_scale),) * len(intervals.names)
    return GeneralisedLinearModel(
        checked_names([*intervals.names, *covariates]),
        (*baseline, *prior_scales(covariates, prior_scale, None)),
        Events(intervals.per),
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
