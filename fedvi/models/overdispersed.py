"""Regression of counts with a learned dispersion, as a NumPyro model."""

import math
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from fedvi.models.arguments import Scale, checked_scale

__all__ = ["negative_binomial"]


def negative_binomial(
    x: Any,
    y: Any,
    prior_scale: Scale = 2.5,
    dispersion_centre: Scale = 0.5,
    dispersion_spread: Scale = 1.5,
) -> None:
    """Negative binomial regression with mean μ = exp(xᵀb), variance μ + dispersion · μ², as NumPyro's.

    b_d ~ N(0, prior_scale²) and log dispersion ~ N(log dispersion_centre, dispersion_spread²). This is
    Gaussian in the unconstrained θ, so the prior needs no factor of its own. In a study:

        [model]
        kind = "overdispersed_counts"
        formula = "falls ~ age + offset(log(years))"

    Args:
      x: [n, D], the columns of the formula, including the intercept.
      y: [n] counts, or [n, 2] (count, offset) if the formula has an offset.
      prior_scale: standard deviation of every coefficient.
      dispersion_centre: the median of the dispersion.
      dispersion_spread: standard deviation of its logarithm; with 1.5, 95 % within a factor of 19.

    Raises:
      ModelError: a scale, the centre or the spread is not positive.

    Latents: ``b`` [D] and ``log_dispersion``; the deterministic site ``dispersion``.
    """
    scale = checked_scale("prior_scale", prior_scale)
    centre = checked_scale("dispersion_centre", dispersion_centre, "it is the median dispersion")
    spread = checked_scale("dispersion_spread", dispersion_spread, "it is an sd on the log scale")
    counts, offset = (y[:, 0], y[:, 1]) if y.ndim == 2 else (y, jnp.zeros_like(y))
    b = numpyro.sample("b", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))
    log_dispersion = numpyro.sample("log_dispersion", dist.Normal(math.log(centre), spread))
    dispersion = numpyro.deterministic("dispersion", jnp.exp(log_dispersion))
    with numpyro.plate("records", x.shape[0]):
        # Uses log odds, so that no mean overflows.
        logits = x @ b + offset + log_dispersion
        counts_given = dist.NegativeBinomialLogits(1.0 / dispersion, logits)
        numpyro.sample("y", counts_given, obs=counts)
