"""Times until an event with a piecewise constant hazard; a subject has one row per interval."""

import dataclasses
import itertools
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.models.outcomes.base import (
    MOST_EXPONENT,
    Columns,
    Derivatives,
    Observed,
    Predictor,
    Values,
)
from fedvi.models.outcomes.counts import rate
from fedvi.updates.coordinates import Outcome

__all__ = ["Events", "Intervals"]

# A subject survives a cumulative hazard of 3 with probability 5 %.
_LARGEST_HAZARD = 3.0


@dataclasses.dataclass(frozen=True)
class Events:
    """y is (events d, time at risk e, in units of F) with the hazard eᵃ: log p = d (a − log F) − e eᵃ.

    This is the density of the times in their own unit. A Poisson count d of mean e eᵃ has the same
    likelihood up to terms that do not depend on a (the "Poisson trick").

    Args:
      per: F, how many units of time hazards are per.
    """

    per: float = 1.0
    conjugate: ClassVar[bool] = False
    # A subject's Fisher information is its probability of an event: two in five.
    typical_curvature: ClassVar[float] = 0.4

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns d (a − log F) − e eᵃ."""
        return self.derivatives(linear_predictor, y)[0]

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        events, exposure = y[..., 0], y[..., 1]
        value, slope, curvature = rate(a)
        log_density = events * (a - math.log(self.per)) - exposure * value
        return log_density, events - exposure * slope, -exposure * curvature


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Turns a subject into one row per interval, (0, c₁], (c₁, c₂], …, (c_K₋₁, ∞), with its covariates.

    Args:
      cuts: c₁, c₂, ….
      end: the latest time under observation, if it is public. Hazards are per ``end``; per unit of time if
        it is not.
    """

    cuts: tuple[float, ...]
    end: float = math.inf
    accepts: ClassVar[Accepted] = ACCEPTED["survival"]
    measured: ClassVar[str] = "other"

    @property
    def per(self) -> float:
        """How many units of time hazards are per."""
        return self.end if math.isfinite(self.end) else 1.0

    @property
    def blocks(self) -> tuple[float, ...]:
        """One, see ``Survey``."""
        return (1.0,)

    @property
    def baselines(self) -> int:
        """How many intervals there are."""
        return len(self.cuts) + 1

    @property
    def surveyed(self) -> Outcome | None:
        """Events, and the time at risk, if its end is public."""
        return Outcome("event") if math.isfinite(self.end) else None

    def surveyed_value(self, y: Observed, most: float) -> Values:
        """Returns 1 for an event, and 0 for none."""
        return jnp.clip(jnp.asarray(y)[..., 1], 0.0, most)

    def at_risk(self, y: Observed) -> Values:
        """Returns the time at risk ÷ the end, between 0 and 1."""
        return jnp.clip(jnp.asarray(y)[..., 0] / self.end, 0.0, 1.0)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the log hazards where all covariates are 0, one for each interval."""
        ends = [0.0, *self.cuts]
        within = [f"baseline ({low:g}, {high:g}]" for low, high in itertools.pairwise(ends)]
        return (*within, f"baseline ({ends[-1]:g}, ∞)")

    def rows(
        self, x: Float[Array, " c"], y: Float[Array, "2"]
    ) -> tuple[Float[Array, "k d"], Float[Array, "k 2"]]:
        """Returns (indicator of the interval, x) and (event, time at risk ÷ ``per``) for each interval.

        Args:
          x: the covariates, without an intercept.
          y: the time under observation, above 0, and whether it ended with the event, 1 or 0. Padding
            rows of zeros have no time at risk.
        """
        time, event = y[0], y[1]
        lower = jnp.asarray([0.0, *self.cuts], y.dtype)
        upper = jnp.asarray([*self.cuts, math.inf], y.dtype)
        exposure = jnp.clip(time, lower, upper) - lower
        # An interval includes its end, as in R's Surv. A time was scaled by its bounds and back, so
        # rounding may have moved it past the end.
        slack = 1.0 + (1e-9 if y.dtype == jnp.float64 else 1e-6)
        here = (time > lower * slack) & (time <= upper * slack)
        outcomes = jnp.stack([event * here.astype(y.dtype), exposure / self.per], axis=-1)
        intervals = len(self.cuts) + 1
        covariates = jnp.broadcast_to(x[None, :], (intervals, x.shape[0]))
        return jnp.concatenate([jnp.eye(intervals, dtype=x.dtype), covariates], axis=1), outcomes

    def plausible(self, theta: Float[Array, " d"], x: Float[Array, " c"]) -> Float[Array, "2 2"]:
        """Returns an event at once, and none until a cumulative hazard of 3 or the end of follow-up."""
        intervals = len(self.cuts) + 1
        ends = jnp.minimum(jnp.asarray([0.0, *self.cuts, math.inf], x.dtype), self.end)
        hazard = rate(theta[:intervals] + theta[intervals:] @ x)[0] / self.per
        lengths = jnp.diff(ends)
        before = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(hazard[:-1] * lengths[:-1])])
        left = jnp.maximum(_LARGEST_HAZARD - before, 0.0)
        late = jnp.minimum(lengths, left / jnp.maximum(hazard, 1e-30)).sum()
        return jnp.array([[1e-6 * late, 1.0], [late, 0.0]])

    def quantities(self, columns: Columns) -> tuple[str, tuple[str, ...]]:
        """Names the probability to be without the event until each cut, or until the end without cuts."""
        labels = tuple(f"{cut:g}" for cut in self._times(columns))
        return (
            f"probability to be without {columns.names[1]} until each time, in the file's unit",
            labels,
        )

    def expected(self, theta: np.ndarray, x: np.ndarray, columns: Columns) -> np.ndarray:
        """Returns exp(−cumulative hazard) until each time, [S, n, m]; θ holds the log hazards first."""
        intervals, most = len(self.cuts) + 1, MOST_EXPONENT
        ends = np.array([0.0, *self.cuts, math.inf])
        times = np.array(self._times(columns))
        exposure = (np.clip(times[:, None], ends[:-1], ends[1:]) - ends[:-1]) / self.per
        along = theta[:, intervals:] @ x.T
        baseline = np.exp(np.clip(theta[:, :intervals], -most, most)) @ exposure.T
        hazard = baseline[:, None, :] * np.exp(np.clip(along, -most, most))[:, :, None]
        return np.asarray(np.exp(-hazard))

    def draw_rows(
        self, theta: np.ndarray, x: np.ndarray, columns: Columns, random: np.random.Generator
    ) -> list[np.ndarray]:
        """Draws times until the event, censored at the end of follow-up, and whether the event happened.

        The time is where the cumulative hazard passes an exponential draw.
        """
        intervals, most = len(self.cuts) + 1, MOST_EXPONENT
        target = random.exponential(size=len(x)) * np.exp(
            -np.clip(x @ theta[intervals:], -most, most)
        )
        hazards = np.exp(np.clip(theta[:intervals], -most, most)) / self.per
        ends = [0.0, *self.cuts, math.inf]
        time = np.full(len(x), math.inf)
        passed = np.zeros(len(x))
        for (low, high), hazard in zip(itertools.pairwise(ends), hazards, strict=True):
            within = low + (target - passed) / hazard
            here = np.isinf(time) & (within <= high)
            time = np.where(here, within, time)
            passed = passed + hazard * (high - low)
        last = columns.bounds[0][1]
        came = (time < last).astype(np.float64)
        return [(np.minimum(time, last) - columns.centres[0]) / columns.scales[0], came]

    def _times(self, columns: Columns) -> tuple[float, ...]:
        return self.cuts or (columns.bounds[0][1],)
