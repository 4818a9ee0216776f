"""Hierarchical regressions as NumPyro models, in which groups share strength."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import ArrayLike

from fedvi import errors

__all__ = ["hierarchical_logistic"]


def hierarchical_logistic(
    characteristics: ArrayLike,
    *,
    effect_scale: float = 4.0,
    group_scale: float = 1.0,
) -> Callable[..., None]:
    """Makes a logistic regression whose coefficients differ by group, as groups' characteristics say.

    M ~ N(0, effect_scale²) [D, K]; wₗ ~ N(M gₗ, group_scale²·I) for each group l, with
    characteristics gₗ; y ~ Bernoulli(σ(xᵀ w_l)) for a record of group l.

    Latents: ``effects`` [D, K] and ``offsets`` [L, D], where wₗ = M gₗ + group_scale · offsetₗ. Offsets
    are standard normal, so that a group with few records leaves its own as it was, whatever M becomes.

    Args:
      characteristics: g [L, K], one row a group; public, for it stands in the model and in no record.
      effect_scale, group_scale: standard deviations, above 0.

    Returns:
      A NumPyro model of x [n, D], group [n] in 0 … L − 1 and y [n] or None, with the record plate
      ``records`` and the deterministic site ``coefficients`` [L, D].

    Raises:
      ModelError: if a scale is not positive, or characteristics are no matrix of finite numbers.

    Source: Prediger, Loppi, Kaski and Honkela (2022), arXiv:2103.11648, Section 5.3.

    >>> import jax
    >>> import numpy as np
    >>> from numpyro.infer import Predictive
    >>> model = hierarchical_logistic(np.eye(3, 2))
    >>> x, group = np.ones((4, 5), np.float32), np.array([0, 1, 2, 2])
    >>> Predictive(model, num_samples=6)(jax.random.key(0), x, group)["coefficients"].shape
    (6, 3, 5)
    """
    g = np.asarray(characteristics)
    if g.ndim != 2 or not np.isfinite(g).all():
        raise errors.ModelError(
            f"characteristics has shape {g.shape}, expected a matrix of finite numbers, [groups, K]",
            "np.eye(groups) says that nothing is known of them",
        )
    for name, value in (("effect_scale", effect_scale), ("group_scale", group_scale)):
        if not value > 0.0:
            raise errors.ModelError(f"{name} is {value}, expected a number above 0")

    def model(x: Any, group: Any, y: Any = None) -> None:
        covariates, traits = x.shape[1], jnp.asarray(g, x.dtype)
        effects = numpyro.sample(
            "effects", dist.Normal(0.0, effect_scale).expand([covariates, g.shape[1]]).to_event(2)
        )
        offsets = numpyro.sample(
            "offsets", dist.Normal(0.0, 1.0).expand([g.shape[0], covariates]).to_event(2)
        )
        coefficients = numpyro.deterministic(
            "coefficients", traits @ effects.T + group_scale * offsets
        )
        with numpyro.plate("records", x.shape[0]):
            logits = (x * coefficients[group]).sum(axis=-1)
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model
