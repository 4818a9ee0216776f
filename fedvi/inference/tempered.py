"""Raises a likelihood to a public power, so that a part of a shard stands in for all of it."""

import dataclasses
from typing import Any, ClassVar

from jaxtyping import Array, ArrayLike, Float

from fedvi.models.base import Model, Record, Wrapped
from fedvi.models.capabilities import Regression
from fedvi.models.outcomes.base import Derivatives, Observed, Predictor, Response, Values

__all__ = ["TemperedModel", "TemperedResponse", "tempered"]


@dataclasses.dataclass(frozen=True)
class TemperedResponse:
    """``response`` with its log density times ``power``."""

    response: Response
    power: int
    conjugate: ClassVar[bool] = False

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns power · log p(y | a) in the dtype of a."""
        return self.power * self.response.log_density(linear_predictor, y)

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns power · log p(y | a) and its first and second derivative in a."""
        value, slope, curvature = self.response.derivatives(linear_predictor, y)
        return self.power * value, self.power * slope, self.power * curvature


@dataclasses.dataclass(frozen=True)
class TemperedModel(Wrapped):
    """``model`` with its log likelihood times ``power``; the prior is its own."""

    power: int

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Returns power · log p(record | θ) of ONE record."""
        return self.power * self.model.log_likelihood(theta, record)


def tempered(model: Model, power: int) -> Model:
    """Returns ``model`` with its likelihood to a power: as if each record occurred ``power`` times.

    A generalised linear model stays one, so that solvers for such models take it; a linear one
    stays linear, with noise of sd s / √power.

    >>> from fedvi.models import linear
    >>> tempered(linear(["slope"], noise_scale=2.0), 4).noise_scale
    1.0
    """
    if not isinstance(model, Regression):
        return TemperedModel(model, power)
    own = getattr(model.response, "tempered", None)
    response = TemperedResponse(model.response, power) if own is None else own(power)
    made: Any = model
    changed: Model = dataclasses.replace(made, response=response)
    return changed
