"""Regressions of counts: Poisson and negative binomial, and binomial where trials are known."""

from collections.abc import Sequence

from fedvi.models.arguments import Scale, checked_scale
from fedvi.models.glm import GeneralisedLinearModel, regression
from fedvi.models.outcomes.binomial import Binomial
from fedvi.models.outcomes.counts import NegativeBinomial, Poisson

__all__ = ["binomial", "negative_binomial", "poisson"]


def poisson(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
) -> GeneralisedLinearModel:
    """Makes Bayesian Poisson regression: y ~ Poisson(exp(xᵀθ)), θ_d ~ N(0, scale_d²).

    exp(coefficient) is a rate ratio. If counts have a variance above their mean, its intervals are
    too narrow: use ``negative_binomial``.

    Args:
      names: the D coefficients, in the order of the columns of x.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: prior standard deviation of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (count, offset), where the offset is the log of the exposure, such
        as the time at risk: y ~ Poisson(exp(xᵀθ + offset)). In a formula: ``offset(log(years))``.

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

    exp(coefficient) is a rate ratio. The dispersion is known and public; to learn it, use the NumPyro
    model in ``fedvi.models.overdispersed``. It is 1 / ``theta`` of R's ``glm.nb``, and
    ``alpha`` of Stata's ``nbreg``; at 0 the counts would be Poisson.

    Args:
      names: the D coefficients, in the order of the columns of x.
      dispersion: the dispersion, above 0.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: prior standard deviation of the coefficient named ``(Intercept)``, if different.
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
