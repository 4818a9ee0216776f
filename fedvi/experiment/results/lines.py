"""Closed-form predictions of a linear regression with unknown noise.

    xᵀw ~ t_{2α}(xᵀm, √(β/α · xᵀΛ⁻¹x))   and   y ~ t_{2α}(xᵀm, √(β/α · (1 + xᵀΛ⁻¹x)))

for q(w, τ) = N(w; m, (τΛ)⁻¹) Gamma(τ; α, β): Student's t with 2α degrees of freedom, by centre and scale.

Source: Bishop (2006), Pattern Recognition and Machine Learning, exercise 3.13.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.stats

from fedvi.models.unknown_noise import UnknownNoise
from fedvi.typing import Eta

__all__ = ["Line", "inputs", "line", "log_density"]


class Line(NamedTuple):
    """The laws of xᵀw and of y, of n records.

    Attributes:
      freedom: 2α.
      centre: xᵀm, [n].
      scale: of the law of xᵀw, [n]; no standard deviation.
      outcome_scale: of the law of y, [n].
    """

    freedom: float
    centre: np.ndarray
    scale: np.ndarray
    outcome_scale: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """The standard deviation of xᵀw, [n]; infinite unless α > 1."""
        if self.freedom <= 2.0:
            return np.full_like(self.scale, math.inf)
        return self.scale * math.sqrt(self.freedom / (self.freedom - 2.0))

    def quantile(self, probability: float, scale: np.ndarray) -> np.ndarray:
        """Returns the quantile at one of the two scales, [n]."""
        return self.centre + float(scipy.stats.t.ppf(probability, self.freedom)) * scale


def line(model: UnknownNoise, posterior: Eta, x: np.ndarray) -> Line:
    """Returns what q says of the outcomes beside x [n, D]."""
    found = model.family.parameters(posterior)
    m, precision, shape, rate = (np.asarray(each, np.float64)[0] for each in found)
    # Λ = L Lᵀ, so that xᵀΛ⁻¹x = ‖L⁻¹x‖².
    along = np.linalg.solve(np.linalg.cholesky(precision), x.T)
    square = (along**2).sum(axis=0)
    unit = rate / shape
    return Line(2.0 * float(shape), x @ m[0], np.sqrt(unit * square), np.sqrt(unit + unit * square))


def log_density(
    model: UnknownNoise, posterior: Eta, records: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns log ∫ p(y | x, θ) q(θ) dθ of each record, [n]."""
    found = line(model, posterior, records["x"])
    logs = scipy.stats.t.logpdf(records["y"], found.freedom, found.centre, found.outcome_scale)
    return np.asarray(logs)


def inputs(model: UnknownNoise) -> dict[str, tuple[int, ...]]:
    """Returns the arrays that an outcome is told from, of the model's layout: all but y."""
    return {name: shape for name, shape in model.layout.items() if name != "y"}
