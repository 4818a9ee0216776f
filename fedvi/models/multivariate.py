"""Linear regression of several outcomes with known noise."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedvi import errors
from fedvi.models.arguments import Scale, checked_names, checked_scale, prior_scales
from fedvi.models.glm import GeneralisedLinearModel
from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.models.outcomes.base import Columns
from fedvi.models.outcomes.normal import Normal

__all__ = ["Outcomes", "multivariate_linear"]


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """Turns a record into one row per outcome, scaled so that all have the noise ``common``."""

    noise_scales: tuple[float, ...]
    accepts: ClassVar[Accepted] = ACCEPTED["multivariate_linear"]
    measured: ClassVar[str] = "other"

    @property
    def common(self) -> float:
        """The geometric mean of the noises; with it, the rows' densities multiply to the record's."""
        return math.exp(sum(map(math.log, self.noise_scales)) / len(self.noise_scales))

    @property
    def blocks(self) -> tuple[float, ...]:
        """How large the noise of each outcome is, in units of ``common``."""
        return tuple(scale / self.common for scale in self.noise_scales)

    def rows(
        self, x: Float[Array, " c"], y: Float[Array, " k"]
    ) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        """Returns the block-diagonal design [K, K·C] and the outcomes, both on the common scale."""
        weights = self.common / jnp.asarray(self.noise_scales, x.dtype)
        return jnp.kron(jnp.diag(weights), x[None, :]), y * weights

    def draw_rows(
        self, theta: np.ndarray, x: np.ndarray, columns: Columns, random: np.random.Generator
    ) -> list[np.ndarray]:
        """Draws all outcomes of each row."""
        means = x @ theta.reshape(-1, x.shape[1]).T
        noise = random.standard_normal(means.shape) * np.array(self.noise_scales)
        return list((means + noise).T)


def multivariate_linear(
    names: Sequence[str],
    outcomes: Sequence[str],
    noise_scale: Scale | Sequence[Scale] = 1.0,
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
) -> GeneralisedLinearModel:
    """Makes linear regression of K outcomes on the same D columns: y_k ~ N(xᵀθ_k, noise_scale_k²).

    θ = (θ₁, …, θ_K), named "outcome: column". A record is ``{"x": [D], "y": [K]}``, clipped as a
    whole. The noises are known and independent given x, so the ``exact`` solver applies.

    Args:
      names: the D columns of x.
      outcomes: the names of the K outcomes, two or more. In a formula: ``cbind(sbp, dbp) ~ age``.
      noise_scale: standard deviation of every outcome around its mean, or one for each.
      prior_scale: prior standard deviation of every coefficient, or one for each column.
      intercept_scale: prior standard deviation of the coefficients named ``(Intercept)``, if different.

    Raises:
      ModelError: no names, a repeated one, fewer than two outcomes, or a scale that is not a positive
        number.

    >>> multivariate_linear(["(Intercept)", "age"], ["sbp", "dbp"]).names
    ('sbp: (Intercept)', 'sbp: age', 'dbp: (Intercept)', 'dbp: age')
    """
    columns, responses = checked_names(names), checked_names(outcomes)
    if len(responses) < 2:
        raise errors.ModelError(
            f"outcomes is {list(responses)!r}, expected two or more",
            "for one outcome use `linear`; in a formula several are `cbind(a, b) ~ …`",
        )
    given = np.asarray(noise_scale).ravel()
    if np.ndim(noise_scale) and len(given) != len(responses):
        raise errors.ModelError(
            f"noise_scale has {len(given)} numbers, expected {len(responses)}, one for each outcome",
            "give one number for all outcomes, or a list in their order",
        )
    noises = [checked_scale("noise_scale", scale) for scale in given]
    layout = Outcomes(tuple(noises * len(responses) if len(noises) == 1 else noises))
    return GeneralisedLinearModel(
        tuple(f"{outcome}: {column}" for outcome in responses for column in columns),
        prior_scales(columns, prior_scale, intercept_scale) * len(responses),
        Normal(layout.common),
        layout,
    )
