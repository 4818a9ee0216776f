"""A categorical outcome: one of several levels, by a softmax of linear predictors."""

import dataclasses
from typing import ClassVar

import numpy as np
import scipy

from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.models.outcomes.base import Columns

__all__ = ["Categorical"]


@dataclasses.dataclass(frozen=True)
class Categorical:
    """y is one of K levels, p(y = k) ∝ exp(xᵀθₖ), θ₀ = 0; θ holds the K − 1 others, one row a level."""

    levels: tuple[str, ...]
    accepts: ClassVar[Accepted] = ACCEPTED["multinomial"]
    measured: ClassVar[str] = "level"

    def quantities(self, columns: Columns) -> tuple[str, tuple[str, ...]]:
        """Names the probability of each level."""
        return f"probability of each level of {columns.text}", self.levels

    def expected(self, theta: np.ndarray, x: np.ndarray, columns: Columns) -> np.ndarray:
        """Returns the probability of each level, [S, n, K]."""
        coefficients = theta.reshape(len(theta), len(self.levels) - 1, x.shape[1])
        logits = np.einsum("skd,nd->snk", coefficients, x)
        logits = np.concatenate([np.zeros((*logits.shape[:2], 1)), logits], axis=2)
        return np.asarray(scipy.special.softmax(logits, axis=2))

    def draw_rows(
        self, theta: np.ndarray, x: np.ndarray, columns: Columns, random: np.random.Generator
    ) -> list[np.ndarray]:
        """Draws the index of a level: the largest of logits plus Gumbel noise has the softmax law."""
        coefficients = theta.reshape(len(self.levels) - 1, x.shape[1])
        logits = np.concatenate([np.zeros((len(x), 1)), x @ coefficients.T], axis=1)
        return [np.argmax(logits + random.gumbel(size=logits.shape), axis=1)]
