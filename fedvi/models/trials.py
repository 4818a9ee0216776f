"""Regression of event counts out of known numbers of trials."""

from collections.abc import Sequence

from fedvi.models.arguments import Scale, checked_scale
from fedvi.models.glm import GeneralisedLinearModel, regression
from fedvi.models.outcomes.binomial import Binomial

__all__ = ["binomial"]


def binomial(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
    typical_trials: Scale = 1.0,
) -> GeneralisedLinearModel:
    """Makes Bayesian binomial regression: s ~ Binomial(s + f, σ(xᵀθ)), θ_d ~ N(0, scale_d²).

    A record is ``{"x": [D], "y": [2]}`` with y = (successes s, failures f), so trials may vary from record
    to record; in a formula ``cbind(events, non_events) ~ age``, as in R. exp(coefficient) is an odds ratio.
    The posterior is that of ``logistic`` with each trial as its own record. In a private study a record
    is still one unit, clipped as one, however many trials it has.

    Args:
      names: the D coefficients, in the order of the columns of x.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: prior standard deviation of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (s, f, offset), see ``WithOffset``.
      typical_trials: s + f of a typical record: a public number, never computed from the data. The
        likelihood does not depend on it. The solver ``vips`` uses it to weight its blocks, and plans use
        it to estimate the signal of a record.

    Raises:
      ModelError: no names, a repeated one, or a scale or ``typical_trials`` that is not a positive number.

    Source: McCullagh and Nelder (1989), Generalized Linear Models, chapter 4.

    >>> binomial(["(Intercept)", "age"], intercept_scale=10).prior_scales
    (10.0, 2.5)
    """
    hint = "it is how many trials a typical record has, a public number such as 20"
    response = Binomial(checked_scale("typical_trials", typical_trials, hint))
    return regression(names, prior_scale, intercept_scale, response, offset)
