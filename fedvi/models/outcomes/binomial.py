"""A binomial outcome: a record counts events and non-events of trials."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.models.outcomes.base import (
    TYPICAL_CURVATURE,
    Columns,
    Derivatives,
    Observed,
    Predictor,
    Values,
    of_two_kinds,
)
from fedvi.models.regression_statistics import PolyaGamma

__all__ = ["Binomial", "events_within"]


@dataclasses.dataclass(frozen=True)
class Binomial:
    """y = (successes s, failures f) with s ~ Binomial(s + f, σ(a)), a = xᵀθ the log odds.

    The number of trials belongs to the record and is taken as given; with 0 trials a record adds nothing.

    Attributes:
      typical_trials: s + f of a typical record, a public number. The likelihood does not depend on it: see
        ``binomial``.
    """

    typical_trials: float = 1.0
    conjugate: ClassVar[bool] = False
    concave: ClassVar[bool] = True
    accepts: ClassVar[Accepted] = ACCEPTED["binomial"]
    measured: ClassVar[str] = "binomial"
    keeps_total: ClassVar[bool] = True

    @property
    def typical_curvature(self) -> float:
        """The typical curvature of one trial times the typical number of trials."""
        return TYPICAL_CURVATURE * self.typical_trials

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns s log σ(a) + f log σ(−a) + log C(s + f, s), elementwise in a and along y's other axes."""
        a, successes, failures, ways = _terms(linear_predictor, y)
        return successes * jax.nn.log_sigmoid(a) + failures * jax.nn.log_sigmoid(-a) + ways

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        return of_two_kinds(*_terms(linear_predictor, y))

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns the slope for successes 1 + 3 sds off the mean, or all trials alike if smaller."""
        a, successes, failures, _ = _terms(linear_predictor, y)
        trials, likelier = successes + failures, jax.nn.sigmoid(jnp.abs(a))
        scatter = jnp.sqrt(trials * likelier * (1.0 - likelier))
        return jnp.minimum(trials * likelier, 1.0 + 3.0 * scatter)

    def what(self, columns: Columns) -> str:
        """Names the probability of one trial, since the trials of a new record are not known."""
        return f"probability that a trial counts among {columns.names[0]}"

    def mean(self, linear_predictor: np.ndarray) -> np.ndarray:
        """Returns σ(a), the mean of one trial."""
        return np.asarray(scipy.special.expit(linear_predictor))

    def draw(
        self,
        linear_predictor: np.ndarray,
        columns: Columns,
        random: np.random.Generator,
        given: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Draws successes and failures for the given numbers of trials."""
        trials = given[0] + given[1]
        events = events_within(trials, self.mean(linear_predictor), columns.bounds[:2], random)
        return [events, trials - events]

    def conjugate_form(self, **shared: Any) -> PolyaGamma:
        """Returns the regression with Pólya-Gamma latents."""
        return PolyaGamma(**shared, centred=True, trials=self.typical_trials, paired=True)


def events_within(
    trials: np.ndarray,
    chance: np.ndarray,
    bounds: Sequence[tuple[float | int, float | int]],
    random: np.random.Generator,
) -> np.ndarray:
    """Draws the number of successes of a record's trials, given that both counts are within their bounds.

    This keeps the number of trials, which clipping one count alone would change.

    Args:
      trials: whole numbers [n].
      chance: the probability of success of one trial, [n].
      bounds: the bounds of successes, and of failures.
      random: the generator.

    >>> random = np.random.default_rng(0)
    >>> events_within(np.full(3, 60.0), np.full(3, 0.5), [(0, 10), (0, 50)], random).tolist()
    [10.0, 10.0, 10.0]
    """
    from scipy.stats import binom

    (fewest, most), (fewest_others, most_others) = bounds
    low = np.maximum.reduce(
        [np.zeros_like(trials), trials - most_others, np.full_like(trials, fewest)]
    )
    high = np.minimum.reduce([trials, trials - fewest_others, np.full_like(trials, most)])
    before, until = binom.cdf(low - 1.0, trials, chance), binom.cdf(high, trials, chance)
    found = binom.ppf(before + random.uniform(size=len(trials)) * (until - before), trials, chance)
    # If the mass between the bounds rounds to 0, takes the nearest bound.
    return np.asarray(np.clip(np.nan_to_num(found), low, np.maximum(low, high)), np.float64)


def _terms(linear_predictor: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Returns a, successes, failures, and the log binomial coefficient, which does not depend on a."""
    a = jnp.asarray(linear_predictor)
    y = jnp.asarray(y).astype(a.dtype)
    successes, failures = y[..., 0], y[..., 1]
    ways = (
        jax.lax.lgamma(successes + failures + 1.0)
        - jax.lax.lgamma(successes + 1.0)
        - jax.lax.lgamma(failures + 1.0)
    )
    return a, successes, failures, ways
