"""Gaussian mixtures as NumPyro models."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from fedvi import errors

__all__ = ["gaussian_mixture"]


def gaussian_mixture(
    components: int,
    *,
    concentration: float = 1.0,
    location_scale: float = 1.0,
    variance_shape: float = 1.0,
    variance_scale: float = 1.0,
) -> Callable[..., None]:
    """Makes a mixture of K round Gaussians, in which nobody's component is sampled.

    p(x) = Σₖ wₖ N(x; mₖ, vₖ·I), with w ~ Dirichlet(concentration), mₖ ~ N(0, location_scale²·I) and
    vₖ ~ InverseGamma(variance_shape, variance_scale).

    Summing a record's component out leaves three global latents, ``weights`` [K], ``locations``
    [K, D] and ``variances`` [K], and no local one: any automatic guide serves, and so do aligned
    gradients. The posterior has K! equal modes; a guide settles in one.

    Args:
      components: K, at least 2.
      concentration, location_scale, variance_shape, variance_scale: of the priors, above 0.

    Returns:
      A NumPyro model of one argument, x [n, D], with the record plate ``records``.

    Raises:
      ModelError: if an argument is out of its range; from the model, if x is no matrix.

    Source: Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749, their mixture experiment; the
    variance's prior is that of Prediger et al. (2022), arXiv:2103.11648, put on the variance.

    >>> import jax
    >>> import numpy as np
    >>> from numpyro.infer import Predictive
    >>> model = gaussian_mixture(5)
    >>> prior = Predictive(model, num_samples=3)(jax.random.key(0), np.zeros((7, 2), np.float32))
    >>> prior["locations"].shape, prior["weights"].shape
    ((3, 5, 2), (3, 5))
    """
    if type(components) is not int or components < 2:
        raise errors.ModelError(f"components is {components!r}, expected an integer of at least 2")
    for name, value in (
        ("concentration", concentration),
        ("location_scale", location_scale),
        ("variance_shape", variance_shape),
        ("variance_scale", variance_scale),
    ):
        if not value > 0.0:
            raise errors.ModelError(f"{name} is {value}, expected a number above 0")

    def model(x: Any) -> None:
        if x.ndim != 2:
            raise errors.ModelError(
                f"x has shape {x.shape}, expected [n, D]", "one column: x[:, None]"
            )
        weights = numpyro.sample(
            "weights", dist.Dirichlet(jnp.full(components, concentration, x.dtype))
        )
        with numpyro.plate("components", components):
            locations = numpyro.sample(
                "locations", dist.Normal(0.0, location_scale).expand([x.shape[1]]).to_event(1)
            )
            variances = numpyro.sample(
                "variances", dist.InverseGamma(variance_shape, variance_scale)
            )
        parts = dist.Normal(locations, jnp.sqrt(variances)[:, None]).to_event(1)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)

    return model
