"""Bounds answers by what the study declares: a site can answer with no more than its records allow.

An answer is a sum of clipped contributions and noise. Both have public bounds, so that a larger answer is
not what its solver computed. Whoever checks it learns nothing, since the answer was released.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedvi import errors

__all__ = ["Limit", "check", "limit_of"]

# A standard normal vector of any dimension n is longer than √n + z with a probability below exp(-z²/2):
# 2e-10 here. Noise on a grid is that vector rounded, and longer by half a step in each coordinate at most.
_TAIL = 6.7
# For steps of the grid, of which a standard deviation has at least 4,096; and for float32 sums.
_ROUNDING = 1.001


class Limit(NamedTuple):
    """How long one answer may be: the L2 norm of all its numbers.

    Attributes:
      contributions: the largest norm of the sum of contributions.
      noise: a norm that the noise of one answer exceeds with a probability below 1e-9.
    """

    contributions: float
    noise: float

    def of_sum(self, answers: int, louder: float = 1.0) -> float:
        """Returns the limit of a sum of answers.

        Args:
          answers: how many there are at most.
          louder: the variance of its noise, in units of that of so many answers.
        """
        noise = self.noise * math.sqrt(answers * louder)
        return _ROUNDING * (answers * self.contributions + noise)


def limit_of(
    summands: int, clip_norm: float, noise_multiplier: float, numbers: int
) -> Limit | None:
    """Returns the limit of a noised sum of clipped contributions; None if nothing is clipped.

    Args:
      summands: the most contributions, such as the records of a batch.
      clip_norm: C, the largest L2 norm of each.
      noise_multiplier: the noise's standard deviation ÷ C.
      numbers: how many numbers the sum has.
    """
    if not math.isfinite(clip_norm):
        return None
    noise = noise_multiplier * clip_norm * (math.sqrt(numbers) + _TAIL)
    return Limit(summands * clip_norm, noise)


def check(
    limit: Limit, value: Mapping[str, np.ndarray], what: str, answers: int = 1, louder: float = 1.0
) -> None:
    """Refuses an answer, or a sum of answers, that is longer than it can be.

    Args:
      value: its arrays, finite.
      what: names it in the message, which shows none of its numbers.
      answers, louder: see ``Limit.of_sum``.

    Raises:
      ProtocolError: it is longer.
    """
    most = limit.of_sum(answers, louder)
    # Scaled first: squares of 1e200 overflow. One array at a time, since they may be large.
    scaled = (np.ravel(array).astype(np.float64) / most for array in value.values())
    if not math.hypot(*(_norm(flat) for flat in scaled)) <= 1.0:
        raise errors.ProtocolError(
            f"{what} is longer than {most:.6g}, expected at most that of the declared records' "
            "clipped contributions and their noise",
            "does the site run the same study and the same version of fedvi, and is it who it should be?",
        )


def _norm(flat: np.ndarray) -> float:
    """Returns the L2 norm; infinity, without an overflow, if an entry is larger than 1."""
    if np.abs(flat).max(initial=0.0) > 1.0:
        return math.inf
    return float(np.linalg.norm(flat))
