"""A numeric outcome with normal noise."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import scipy

from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.models.outcomes.base import Columns, Derivatives, Observed, Predictor, Values
from fedvi.models.regression_statistics import KnownNoise
from fedvi.updates.coordinates import Outcome

__all__ = ["Normal"]

_LOG_2PI = math.log(2.0 * math.pi)


@dataclasses.dataclass(frozen=True)
class Normal:
    """y ~ N(a, noise_scale²) with a = xᵀθ.

    Attributes:
      noise_scale: the sd of the noise.
      learnt: whether that is a guess until the records say more, see ``OutcomeSurvey``; else it is known.
    """

    noise_scale: float
    learnt: bool = False
    conjugate: ClassVar[bool] = True
    concave: ClassVar[bool] = True
    accepts: ClassVar[Accepted] = ACCEPTED["linear"]
    measured: ClassVar[str] = "number"
    whole: ClassVar[bool] = False
    keeps_total: ClassVar[bool] = False

    @property
    def typical_curvature(self) -> float:
        """1 / noise_scale², for every record."""
        return float(self.noise_scale**-2.0)

    @property
    def surveyed(self) -> Outcome | None:
        """What a survey learns: where outcomes are, and how large residuals; None for known noise."""
        return Outcome("number", learnt=True) if self.learnt else None

    def surveyed_value(self, y: Observed, most: float) -> Values:
        """Returns (y / most + 1) / 2, between 0 and 1."""
        return 0.5 * (jnp.clip(jnp.asarray(y) / most, -1.0, 1.0) + 1.0)

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log N(y; a, noise_scale²), elementwise."""
        a = jnp.asarray(linear_predictor)
        residual = (jnp.asarray(y).astype(a.dtype) - a) / self.noise_scale
        return -0.5 * residual**2 - (math.log(self.noise_scale) + 0.5 * _LOG_2PI)

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a."""
        a = jnp.asarray(linear_predictor)
        slope = (jnp.asarray(y).astype(a.dtype) - a) / self.noise_scale**2
        return self.log_density(a, y), slope, jnp.full_like(a, -(self.noise_scale**-2.0))

    def tempered(self, power: int) -> "Normal":
        """Returns the density to a power, which is normal with noise of sd s / √power."""
        return dataclasses.replace(self, noise_scale=self.noise_scale / math.sqrt(power))

    def what(self, columns: Columns) -> str:
        """Names the mean."""
        return f"mean of {columns.text}, in the unit of the file"

    def mean(self, linear_predictor: np.ndarray) -> np.ndarray:
        """Returns a."""
        return linear_predictor

    def sd(self, means: np.ndarray, unit: float = 1.0) -> float:
        """Returns the noise, the same for all."""
        return self.noise_scale * unit

    def cdf(self, y: np.ndarray, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns P(Y ≤ y)."""
        return np.asarray(scipy.special.ndtr((y - means) / self.sd(means, unit)))

    def predictive_sd(self, sd: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns the sd of y if a is normal with that sd; y is then normal too."""
        return np.hypot(unit * sd, self.noise_scale * unit)

    def draw(
        self,
        linear_predictor: np.ndarray,
        columns: Columns,
        random: np.random.Generator,
        given: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Draws a number."""
        return [linear_predictor + self.noise_scale * random.standard_normal(len(linear_predictor))]

    def conjugate_form(self, **shared: Any) -> KnownNoise:
        """Returns the regression without latents."""
        return KnownNoise(**shared, centred=True, noise_scale=self.noise_scale)
