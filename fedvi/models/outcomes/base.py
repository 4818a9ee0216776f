"""What is asked of an outcome; a new one is a class that answers, in a file of its own.

To be fitted, an outcome has a density and its derivatives (``Response``): JAX. To be predicted it says its
mean (``Predicts``) and how it scatters around it (``Scatters``), to be made up it can be drawn (``Draws``):
NumPy in float64, of posteriors alone. What it does not say, the commands that need it refuse.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi.models.outcomes.accepted import Accepted
from fedvi.updates.conjugate import ConjugateModel

__all__ = [
    "MOST_EXPONENT",
    "TYPICAL_CURVATURE",
    "Columns",
    "Derivatives",
    "Draws",
    "DrawsRows",
    "Expects",
    "GivenLatents",
    "Observed",
    "Predictor",
    "Predicts",
    "Response",
    "Scatters",
    "Several",
    "Values",
    "WithOffset",
    "measured",
    "of_two_kinds",
    "quantile",
    "steepest",
    "typical_curvature",
]

TYPICAL_CURVATURE = 0.1
"""p(1 − p) of a yes or no is ¼ at most, and about this where a regression tells them apart."""

MOST_EXPONENT = 340.0
"""No rate of this world is e⁷⁰⁰, and its square overflows."""

_LARGEST_COUNT = 2.0**52

Predictor = Float[ArrayLike, "..."]
"""Linear predictors a."""

Observed = Shaped[ArrayLike, "..."]
"""Outcomes y; of several numbers on axes after those of the predictor."""

Values = Float[Array, "..."]

Derivatives = tuple[Values, Values, Values]
"""log p(y | a) and its first and second derivative in a."""


@runtime_checkable
class Response(Protocol):
    """How an outcome is distributed, given the linear predictor a of its row.

    Frozen and hashable: all of its fields are public. Outcomes of several numbers have them on
    axes after those of the predictor; otherwise both functions are elementwise and broadcast.
    """

    conjugate: ClassVar[bool]

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log p(y | a) in the dtype of a."""
        ...

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a."""
        ...


class Columns(NamedTuple):
    """What a study says of the columns that an outcome is made of.

    Attributes:
      text: the outcome as the formula has it.
      names: of the columns.
      bounds: of each, in the unit of the file; (0, 1) of one that is no number.
      centres, scales: of each, what 0 and 1 in the model are in the file; 0 and 1 of one that is no number.
    """

    text: str
    names: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]


@runtime_checkable
class Predicts(Protocol):
    """An outcome of one linear predictor that has a mean, increasing in the predictor.

    Attributes:
      accepts: what it is of.
      measured: how predictions are held against what came true: "binary", "binomial", "number" or "count".
    """

    accepts: ClassVar[Accepted]
    measured: ClassVar[str]

    def what(self, columns: Columns) -> str:
        """Returns of what ``mean`` is one, in words."""
        ...

    def mean(self, linear_predictor: np.ndarray) -> np.ndarray:
        """Returns E[y | a], elementwise."""
        ...


@runtime_checkable
class Scatters(Protocol):
    """An outcome that says how it scatters around its mean, so that it has intervals.

    Means are in the unit of the file, and ``unit`` is how many of these are 1 in the model.

    Attributes:
      whole: whether it is a whole number, at least 0.
    """

    whole: ClassVar[bool]

    def sd(self, means: np.ndarray, unit: float = 1.0) -> Any:
        """Returns the standard deviation of an outcome with such a mean; a scalar if all have the same."""
        ...

    def cdf(self, y: np.ndarray, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns P(Y ≤ y) of outcomes with such means; both broadcast."""
        ...


@runtime_checkable
class Draws(Protocol):
    """An outcome of one linear predictor that can be drawn.

    Attributes:
      keeps_total: whether a draw needs what its columns hold, because their sum stays.
    """

    keeps_total: ClassVar[bool]

    def draw(
        self,
        linear_predictor: np.ndarray,
        columns: Columns,
        random: np.random.Generator,
        given: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Returns one draw for each a [n]: of each column its values in the model, [n].

        ``given`` are the columns that it replaces where it ``keeps_total``; else it is empty.
        """
        ...


@runtime_checkable
class GivenLatents(Protocol):
    """An outcome that is Gaussian in θ given latents, so that the solver ``vips`` takes it."""

    def conjugate_form(self, **shared: Any) -> ConjugateModel:
        """Returns the regression of it, with what all of ``regression_statistics`` have in common."""
        ...


@runtime_checkable
class Several(Protocol):
    """Several outcomes of one record that are normal given θ, each with a block of coefficients of its own.

    Attributes:
      noise_scales: the known sd of each, in the unit of the model.
    """

    noise_scales: tuple[float, ...]


@runtime_checkable
class Expects(Protocol):
    """An outcome without one linear predictor, of which something can be told at each θ.

    Attributes:
      measured: as of ``Predicts``; "level", or "other" where no more than the likelihood is known.
    """

    measured: ClassVar[str]

    def quantities(self, columns: Columns) -> tuple[str, tuple[str, ...]]:
        """Returns what ``expected`` tells, in words, and a label for each quantity."""
        ...

    def expected(self, theta: np.ndarray, x: np.ndarray, columns: Columns) -> np.ndarray:
        """Returns the quantities [S, n, m] at draws θ [S, W], of rows x [n, C]."""
        ...


@runtime_checkable
class DrawsRows(Protocol):
    """An outcome without one linear predictor that can be drawn."""

    def draw_rows(
        self, theta: np.ndarray, x: np.ndarray, columns: Columns, random: np.random.Generator
    ) -> list[np.ndarray]:
        """Returns one draw for each row x [n, C] at one θ [W]: of each column its values, [n]."""
        ...


@dataclasses.dataclass(frozen=True)
class WithOffset:
    """``response`` where a known number is added to every linear predictor: y is (outcome, offset).

    Such as the log of the time over which events were counted. An outcome of several numbers has the
    offset after them.
    """

    response: Response
    conjugate: ClassVar[bool] = False

    @property
    def typical_curvature(self) -> float:
        """That of the response."""
        return typical_curvature(self.response)

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log p(outcome | a + offset)."""
        return self.response.log_density(*_moved(linear_predictor, y))

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(outcome | a + offset) and its first and second derivative in a."""
        return self.response.derivatives(*_moved(linear_predictor, y))

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values | None:
        """Returns how steep log p(outcome | a + offset) may be in a; see ``steepest`` of a model."""
        return steepest(self.response, *_moved(linear_predictor, y))


def typical_curvature(response: Any) -> float:
    """Returns a response's own ``typical_curvature``, or the usual one."""
    return float(getattr(response, "typical_curvature", TYPICAL_CURVATURE))


def measured(outcome: Any) -> str:
    """Returns how predictions of an outcome are held against what came true; "other" if it does not say."""
    return str(getattr(outcome, "measured", "other"))


def steepest(response: Any, linear_predictor: Any, y: Any) -> Any:
    """Asks a response how steep it may be; those of one's own need not say."""
    found = getattr(response, "steepest", None)
    return None if found is None else found(linear_predictor, y)


def quantile(
    law: Scatters, means: np.ndarray, weights: np.ndarray, probability: float, unit: float = 1.0
) -> np.ndarray:
    """Returns quantiles of mixtures of outcomes, [n], by bisection; of whole ones the least k that will do.

    Args:
      law: of the outcome.
      means: of the mixtures' parts, [S, n], in the unit of the file.
      weights: of the parts, [S]; they add up to 1.
      probability: below the quantile.
      unit: how many of the file's units are 1 in the model.
    """

    def below(y: np.ndarray) -> np.ndarray:
        return np.asarray(weights @ law.cdf(y, means, unit))

    if law.whole:
        low, high = np.full(means.shape[1], -1.0), np.ones(means.shape[1])
        while (short := (below(high) < probability) & (high < _LARGEST_COUNT)).any():
            high = np.where(short, 4.0 * high, high)
        while (high - low > 1.0).any():
            middle = np.floor(0.5 * (low + high))
            enough = below(middle) >= probability
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high
    mean = weights @ means
    widest = np.max(law.sd(means, unit), axis=0)
    reach = 40.0 * (widest + np.sqrt(weights @ (means - mean) ** 2))
    low, high = mean - reach, mean + reach
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = below(middle) >= probability
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return 0.5 * (low + high)


def _moved(linear_predictor: Any, y: Any) -> tuple[Any, Any]:
    a = jnp.asarray(linear_predictor)
    y = jnp.asarray(y).astype(a.dtype)
    return a + y[..., -1], y[..., 0] if y.shape[-1] == 2 else y[..., :-1]


def of_two_kinds(
    log_odds: Any, successes: Any, failures: Any, constant: Any
) -> tuple[Any, Any, Any]:
    """Returns s log σ(b) + f log σ(−b) + c, and its first and second derivative in b, elementwise.

    Args:
      log_odds: b.
      successes, failures: s and f, at least 0; whole or not.
      constant: c.
    """
    decay = jnp.exp(-jnp.abs(log_odds))
    larger = 1.0 / (1.0 + decay)
    smaller = decay * larger
    positive = log_odds >= 0.0
    success = jnp.where(positive, larger, smaller)
    failure = jnp.where(positive, smaller, larger)
    # log1p: trials multiply what log(1 + decay) would lose.
    softened = jnp.log1p(decay)
    value = (
        successes * (jnp.minimum(log_odds, 0.0) - softened)
        - failures * (jnp.maximum(log_odds, 0.0) + softened)
        + constant
    )
    # Not s − (s + f) σ(b), which cancels where nearly all trials are of one kind.
    slope = successes * failure - failures * success
    return value, slope, -(successes + failures) * larger * smaller
