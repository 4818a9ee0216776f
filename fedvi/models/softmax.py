"""Regression of an outcome with several levels, by a softmax link."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi import errors
from fedvi.models.arguments import Scale, checked_names, prior_scales
from fedvi.models.base import Record
from fedvi.models.capabilities import Parameter
from fedvi.models.glm import normal_log_prior
from fedvi.models.outcomes.categorical import Categorical

__all__ = ["Multinomial", "multinomial"]


@dataclasses.dataclass(frozen=True)
class Multinomial:
    """Softmax regression with independent N(0, scale²) priors; a record is ``{"x": [D], "y": level}``.

    All fields are public, and models with equal fields are equal. Make one with ``multinomial``, which
    checks its arguments.
    """

    columns: tuple[str, ...]
    levels: tuple[str, ...]
    column_scales: tuple[float, ...]
    concave: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """The (K − 1)·D coefficients, "level: column"; the first level has none."""
        return tuple(f"{level}: {column}" for level in self.levels[1:] for column in self.columns)

    @property
    def size(self) -> int:
        """(K − 1)·D."""
        return (len(self.levels) - 1) * len(self.columns)

    @property
    def blocks(self) -> tuple[float, ...]:
        """See ``Survey``: slopes of all levels are alike."""
        return (1.0,) * (len(self.levels) - 1)

    @property
    def outcome(self) -> Categorical:
        """One of the levels."""
        return Categorical(self.levels)

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns ``{"coefficients": [S, K − 1, D]}`` of draws θ [S, (K − 1)·D]."""
        axes = ("level", self.levels[1:]), ("coefficient", self.columns)
        shape = (-1, len(self.levels) - 1, len(self.columns))
        return {"coefficients": Parameter(theta.reshape(shape), axes)}

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns Σ log N(θ; 0, scale²) over all coefficients."""
        return normal_log_prior(theta, self.column_scales * (len(self.levels) - 1))

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Returns log p(y | x) = a_y − log Σₖ exp(aₖ), a₀ = 0 and aₖ = xᵀθₖ, of ONE record.

        ``y`` is the index of a level.
        """
        coefficients = self.constrain(theta)["coefficients"]
        x = jnp.asarray(record["x"]).astype(coefficients.dtype)
        predictor = jnp.matmul(coefficients, x, precision=jax.lax.Precision.HIGHEST)
        predictor = jnp.concatenate([jnp.zeros((1,), predictor.dtype), predictor])
        # Compares instead of indexing: y may be a float, as columns of a schema are.
        y = jnp.asarray(record["y"])
        chosen = jnp.arange(len(self.levels)).astype(y.dtype) == y
        return jnp.where(chosen, jax.nn.log_softmax(predictor), jnp.zeros_like(predictor)).sum()

    def plausible(self, theta: Float[ArrayLike, " d"], record: Record) -> Record:
        """Returns ONE record with each level in turn as its outcome."""
        levels = jnp.arange(len(self.levels)).astype(jnp.asarray(record["y"]).dtype)
        x = jnp.asarray(record["x"])
        return {"x": jnp.broadcast_to(x, (len(self.levels), *x.shape)), "y": levels}

    def designs(self, record: Record) -> Float[Array, "k d"]:
        """Returns [K − 1, (K − 1)·D]: the predictors of ONE record's levels are designs @ θ."""
        x = jnp.asarray(record["x"])
        return jnp.kron(jnp.eye(len(self.levels) - 1, dtype=x.dtype), x[None, :])

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns ``{"coefficients": [K − 1, D]}``, one row for each level after the first."""
        return {"coefficients": jnp.asarray(theta).reshape(-1, len(self.columns))}


def multinomial(
    names: Sequence[str],
    levels: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
) -> Multinomial:
    """Makes multinomial logistic regression: p(y = k) ∝ exp(xᵀθₖ), θ₀ = 0, θ_kd ~ N(0, scale_d²).

    exp(coefficient) is the odds ratio of a level against the first, the reference. The prior
    is not symmetric in the levels, so the choice of the reference matters a little.

    Args:
      names: the D columns of x.
      levels: the K levels of the outcome, two or more, the reference first. A study takes them from the
        schema of the response.
      prior_scale: prior standard deviation of every coefficient, or one for each column.
      intercept_scale: prior standard deviation of the coefficients named ``(Intercept)``, if different.

    Raises:
      ModelError: no names, a repeated one, fewer than two levels, or a scale that is not a positive
        number.

    >>> multinomial(["(Intercept)", "age"], ["none", "mild", "severe"]).names
    ('mild: (Intercept)', 'mild: age', 'severe: (Intercept)', 'severe: age')
    """
    columns, outcomes = checked_names(names), checked_names(levels)
    if len(outcomes) < 2:
        raise errors.ModelError(
            f"levels is {list(outcomes)!r}, expected two or more", "the first is the reference"
        )
    return Multinomial(columns, outcomes, prior_scales(columns, prior_scale, intercept_scale))
