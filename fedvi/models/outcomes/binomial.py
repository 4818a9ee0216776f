"""Events out of trials, both counted in a record."""

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

    The number of trials is the record's own, and taken as given: where it is 0, a record says nothing.

    Attributes:
      typical_trials: s + f of a typical record, a public number. The likelihood does not depend on it: see
        ``binomial``.
    """

    typical_trials: float = 1.0
    conjugate: ClassVar[bool] = False
    accepts: ClassVar[Accepted] = ACCEPTED["binomial"]
    measured: ClassVar[str] = "binomial"
    keeps_total: ClassVar[bool] = True

    @property
    def typical_curvature(self) -> float:
        """That of as many yes-or-no answers as a record typically has."""
        return TYPICAL_CURVATURE * self.typical_trials

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns s log σ(a) + f log σ(−a) + log C(s + f, s), elementwise in a and along y's other axes."""
        a, successes, failures, ways = _terms(linear_predictor, y)
        return successes * jax.nn.log_sigmoid(a) + failures * jax.nn.log_sigmoid(-a) + ways

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        return of_two_kinds(*_terms(linear_predictor, y))

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns the slope of successes three standard deviations, and one, off; of all trials at most."""
        a, successes, failures, _ = _terms(linear_predictor, y)
        trials, likelier = successes + failures, jax.nn.sigmoid(jnp.abs(a))
        scatter = jnp.sqrt(trials * likelier * (1.0 - likelier))
        return jnp.minimum(trials * likelier, 1.0 + 3.0 * scatter)

    def what(self, columns: Columns) -> str:
        """Names the probability: how many trials a new record has, nobody says."""
        return f"probability that a trial counts among {columns.names[0]}"

    def mean(self, linear_predictor: np.ndarray) -> np.ndarray:
        """Returns σ(a), of one trial."""
        return np.asarray(scipy.special.expit(linear_predictor))

    def draw(
        self,
        linear_predictor: np.ndarray,
        columns: Columns,
        random: np.random.Generator,
        given: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Draws successes and failures of as many trials as are given."""
        trials = given[0] + given[1]
        events = events_within(trials, self.mean(linear_predictor), columns.bounds[:2], random)
        return [events, trials - events]

    def conjugate_form(self, **shared: Any) -> PolyaGamma:
        """Returns the regression of Pólya-Gamma latents."""
        return PolyaGamma(**shared, centred=True, trials=self.typical_trials, paired=True)


def events_within(
    trials: np.ndarray,
    chance: np.ndarray,
    bounds: Sequence[tuple[float | int, float | int]],
    random: np.random.Generator,
) -> np.ndarray:
    """Draws how many of a record's trials come out, given that both counts are within their bounds.

    So the number of trials stays, as clipping one count alone would not leave it.

    Args:
      trials: whole numbers [n].
      chance: of one trial, [n].
      bounds: of those that come out, and of the others.
      random: where draws come from.

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
    # Where that has no mass that a float tells from 0, the bound that is nearest.
    return np.asarray(np.clip(np.nan_to_num(found), low, np.maximum(low, high)), np.float64)


def _terms(linear_predictor: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Returns a, successes, failures, and the log of the number of their orders, which has no a."""
    a = jnp.asarray(linear_predictor)
    y = jnp.asarray(y).astype(a.dtype)
    successes, failures = y[..., 0], y[..., 1]
    ways = (
        jax.lax.lgamma(successes + failures + 1.0)
        - jax.lax.lgamma(successes + 1.0)
        - jax.lax.lgamma(failures + 1.0)
    )
    return a, successes, failures, ways
