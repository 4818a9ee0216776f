"""The interfaces of an outcome; a new outcome is a class in its own file that implements some of them.

A fit needs a density and its derivatives (``Response``), in JAX. Predictions need a mean (``Predicts``) and
the distribution around it (``Scatters``), and simulations need draws (``Draws``): NumPy in float64, from
posteriors alone. A command reports an error if the outcome lacks an interface that it needs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi import errors
from fedvi.models.outcomes.accepted import Accepted
from fedvi.updates.conjugate import ConjugateModel
from fedvi.updates.coordinates import Outcome

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
    "check_steepest",
    "curvature_at",
    "measured",
    "of_two_kinds",
    "quantile",
    "sharpest",
    "steepest",
    "surveyed",
    "typical_curvature",
]

TYPICAL_CURVATURE = 0.1
"""The usual p(1 − p) of a binary outcome with an informative regression; it is at most ¼."""

MOST_EXPONENT = 340.0
"""The largest log rate: the square of a larger rate would overflow, and no real rate is larger."""

_LARGEST_COUNT = 2.0**52

# Predictors at which an outcome without ``steepest`` is looked at, and how many sds its outcomes are from
# the mean. Between them the slope is interpolated, and beyond them it stays.
_AT = np.linspace(-30.0, 30.0, 481)
_SDS = 3.0

Predictor = Float[ArrayLike, "..."]
"""Linear predictors a."""

Observed = Shaped[ArrayLike, "..."]
"""Outcomes y; those of several numbers have them on axes after those of the predictor."""

Values = Float[Array, "..."]

Derivatives = tuple[Values, Values, Values]
"""log p(y | a) and its first and second derivative in a."""


@runtime_checkable
class Response(Protocol):
    """The distribution of an outcome given the linear predictor a of its row.

    Frozen and hashable: all fields are public. Outcomes of several numbers have them on
    axes after those of the predictor; otherwise both functions are elementwise and broadcast.
    A response whose log p(y | a) is not concave in a says ``concave = False``: Newton steps are then
    advised against. One that says ``concave = True`` must never return a second derivative above 0: a
    server refuses curvatures that are more negative than noise can make them.

    ``steepest(a, y)`` and ``sharpest(a, y)``, see ``GeneralisedLinearModel``, are optional where the
    response has a ``mean`` and an ``sd``, of which they are made then.
    """

    conjugate: ClassVar[bool]

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log p(y | a) in the dtype of a."""

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(y | a) and its first and second derivative in a."""


class Columns(NamedTuple):
    """A study's declarations for the columns of an outcome.

    Attributes:
      text: the outcome as written in the formula.
      names: the names of the columns.
      bounds: the bounds of each column, in the unit of the file; (0, 1) if it is not numeric.
      centres, scales: for each column, value in the file = centre + scale · value in the model; 0 and 1 if
        it is not numeric.
    """

    text: str
    names: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]


@runtime_checkable
class Predicts(Protocol):
    """An outcome of one linear predictor whose mean increases in the predictor.

    Attributes:
      accepts: its entry in ``ACCEPTED``.
      measured: how predictions are evaluated: as "binary", "binomial", "number" or "count".
    """

    accepts: ClassVar[Accepted]
    measured: ClassVar[str]

    def what(self, columns: Columns) -> str:
        """Describes in words what ``mean`` is the mean of."""

    def mean(self, linear_predictor: np.ndarray) -> np.ndarray:
        """Returns E[y | a], elementwise."""


@runtime_checkable
class Scatters(Protocol):
    """An outcome with a known distribution around its mean, which gives intervals.

    Means are in the unit of the file, and ``unit`` is how many of the file's units are 1 in the model.

    Attributes:
      whole: whether it is a whole number, at least 0.
    """

    whole: ClassVar[bool]

    def sd(self, means: np.ndarray, unit: float = 1.0) -> Any:
        """Returns the sd of outcomes with these means; a scalar if it is the same for all."""

    def cdf(self, y: np.ndarray, means: np.ndarray, unit: float = 1.0) -> np.ndarray:
        """Returns P(Y ≤ y) for outcomes with these means; both broadcast."""


@runtime_checkable
class Draws(Protocol):
    """An outcome of one linear predictor that can be drawn.

    Attributes:
      keeps_total: whether a draw keeps the sum of its columns, and so needs their present values.
    """

    keeps_total: ClassVar[bool]

    def draw(
        self,
        linear_predictor: np.ndarray,
        columns: Columns,
        random: np.random.Generator,
        given: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Returns one draw for each a [n]: a list of columns in the model's unit, [n] each.

        ``given`` holds the columns to replace if it ``keeps_total``; else it is empty.
        """


@runtime_checkable
class GivenLatents(Protocol):
    """An outcome that is Gaussian in θ given latents, so that the solver ``vips`` takes it."""

    def conjugate_form(self, **shared: Any) -> ConjugateModel:
        """Returns its regression; ``shared`` are the fields common to all of ``regression_statistics``."""


@runtime_checkable
class Several(Protocol):
    """Several outcomes of one record that are normal given θ, each with its own block of coefficients.

    Attributes:
      noise_scales: the known sd of each, in the unit of the model.
    """

    noise_scales: tuple[float, ...]


@runtime_checkable
class Expects(Protocol):
    """An outcome without a single linear predictor that has quantities to report at each θ.

    Attributes:
      measured: as in ``Predicts``; or "level", or "other" if only the likelihood is known.
    """

    measured: ClassVar[str]

    def quantities(self, columns: Columns) -> tuple[str, tuple[str, ...]]:
        """Returns a description of ``expected`` in words, and a label for each quantity."""

    def expected(self, theta: np.ndarray, x: np.ndarray, columns: Columns) -> np.ndarray:
        """Returns the quantities [S, n, m] at draws θ [S, W], of rows x [n, C]."""


@runtime_checkable
class DrawsRows(Protocol):
    """An outcome without a single linear predictor that can be drawn."""

    def draw_rows(
        self, theta: np.ndarray, x: np.ndarray, columns: Columns, random: np.random.Generator
    ) -> list[np.ndarray]:
        """Returns one draw for each row x [n, C] at one θ [W]: a list of columns, [n] each."""


@dataclasses.dataclass(frozen=True)
class WithOffset:
    """``response`` with a known number added to every linear predictor: y is (outcome, offset).

    The offset may be the log of the time over which events were counted. It comes last if the outcome has
    several numbers.
    """

    response: Response
    conjugate: ClassVar[bool] = False

    @property
    def typical_curvature(self) -> float:
        """The typical curvature of the response."""
        return typical_curvature(self.response)

    def curvature_at(self, mean: float) -> float | None:
        """The response's own, at a mean that an offset is part of."""
        return curvature_at(self.response, mean)

    @property
    def surveyed(self) -> Outcome | None:
        """The response's own."""
        return surveyed(self.response)

    def surveyed_value(self, y: Observed, most: float) -> Values:
        """Returns ``surveyed_value`` of the response, for a number less the offset."""
        a = jnp.zeros(jnp.shape(y)[:-1])
        shift, outcome = _moved(a, y)
        response: Any = self.response
        return response.surveyed_value(
            outcome - shift if self.response.conjugate else outcome, most
        )

    def log_density(self, linear_predictor: Predictor, y: Observed) -> Values:
        """Returns log p(outcome | a + offset)."""
        return self.response.log_density(*_moved(linear_predictor, y))

    def derivatives(self, linear_predictor: Predictor, y: Observed) -> Derivatives:
        """Returns log p(outcome | a + offset) and its first and second derivative in a."""
        return self.response.derivatives(*_moved(linear_predictor, y))

    def steepest(self, linear_predictor: Predictor, y: Observed) -> Values | None:
        """Returns ``steepest`` of the response at a + offset."""
        return steepest(self.response, *_moved(linear_predictor, y))

    def sharpest(self, linear_predictor: Predictor, y: Observed) -> Values | None:
        """Returns ``sharpest`` of the response at a + offset."""
        return sharpest(self.response, *_moved(linear_predictor, y))


def surveyed(response: Any) -> Outcome | None:
    """Returns what a survey may learn of a response's outcomes; None if it does not say."""
    return getattr(response, "surveyed", None)


def typical_curvature(response: Any) -> float:
    """Returns a response's own ``typical_curvature``, or the default."""
    return float(getattr(response, "typical_curvature", TYPICAL_CURVATURE))


def curvature_at(response: Any, mean: float) -> float | None:
    """Returns ``typical_curvature`` where outcomes have this mean; None if the response cannot say."""
    found = getattr(response, "curvature_at", None)
    return None if found is None else float(found(mean))


def measured(outcome: Any) -> str:
    """Returns how predictions of an outcome are evaluated; "other" if the outcome does not define it."""
    return str(getattr(outcome, "measured", "other"))


def steepest(response: Any, linear_predictor: Any, y: Any) -> Any:
    """Returns ``steepest`` of a response, or None if its outcomes scatter symmetrically around the mean.

    A response that does not define it has that of an outcome three sds from its mean. Clipping without it
    would shorten skewed slopes on one side, and move the intercept.

    Raises:
      ModelError: the response defines neither ``steepest``, nor ``mean`` and ``sd`` of one number.
    """
    found = getattr(response, "steepest", None)
    if found is not None:
        return found(linear_predictor, y)
    return None if response.conjugate else _interpolated(linear_predictor, _extremes(response)[0])


def sharpest(response: Any, linear_predictor: Any, y: Any) -> Any:
    """Returns a response's ``sharpest``; None if its curvature does not depend on the outcome.

    A response that defines neither it nor ``steepest`` has that of an outcome three sds from its mean.
    """
    found = getattr(response, "sharpest", None)
    if found is not None:
        return found(linear_predictor, y)
    if response.conjugate or hasattr(response, "steepest"):
        return None
    return _interpolated(linear_predictor, _extremes(response)[1])


def check_steepest(response: Any) -> None:
    """Rejects a response for which there is no ``steepest``, before a solver needs it; errors as there."""
    own: Any = response.response if isinstance(response, WithOffset) else response
    if not (own.conjugate or hasattr(own, "steepest")):
        _extremes(own)


def _interpolated(linear_predictor: Any, values: np.ndarray) -> Values:
    a = jnp.asarray(linear_predictor)
    return jnp.interp(a, jnp.asarray(_AT, a.dtype), jnp.asarray(values, a.dtype))


@functools.lru_cache(maxsize=64)
def _extremes(response: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the largest |slope| and −curvature at ``_AT``, of outcomes ``_SDS`` sds from the mean.

    Outcomes outside of the support, where these are not finite, do not count.
    """
    name = type(response).__name__
    hint = (
        f"give {name} a method steepest(self, linear_predictor, y): the largest |∂ log p / ∂a| that a "
        "plausible outcome has, whatever y is (docs/add/model.md); return None only if outcomes scatter "
        "symmetrically around their mean"
    )
    columns = getattr(getattr(response, "accepts", None), "columns", ())
    if not (hasattr(response, "mean") and hasattr(response, "sd") and len(columns) == 1):
        raise errors.ModelError(
            f"outcome {name} has no `steepest`, expected it, or `mean` and `sd` of an outcome of one "
            "number: without it clipping would move the intercept",
            hint,
        )
    with np.errstate(all="ignore"), jax.enable_x64(True), jax.ensure_compile_time_eval():
        means = np.asarray(response.mean(_AT), np.float64)
        reach = _SDS * np.broadcast_to(response.sd(means), means.shape)
        ends = [
            response.derivatives(jnp.asarray(_AT), jnp.asarray(means + side * reach))
            for side in (-1, 1)
        ]
        slopes, bends = (np.stack([np.asarray(end[which]) for end in ends]) for which in (1, 2))
    sound = np.isfinite(slopes) & np.isfinite(bends)
    if not sound.any(axis=0).all():
        raise errors.ModelError(
            f"outcome {name}: the derivatives at outcomes three sds from the mean are not finite, so that "
            "there is no `steepest`",
            hint,
        )
    return tuple(np.where(sound, values, 0.0).max(axis=0) for values in (np.abs(slopes), -bends))


def quantile(
    law: Scatters, means: np.ndarray, weights: np.ndarray, probability: float, unit: float = 1.0
) -> np.ndarray:
    """Returns quantiles of mixtures of outcomes, [n], by bisection; for whole outcomes the least such k.

    Args:
      law: the distribution of the outcome.
      means: the means of the mixtures' components, [S, n], in the unit of the file.
      weights: the weights of the components, [S]; they add up to 1.
      probability: the level of the quantile.
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
    # log1p, since the number of trials multiplies the rounding error of log(1 + decay).
    softened = jnp.log1p(decay)
    value = (
        successes * (jnp.minimum(log_odds, 0.0) - softened)
        - failures * (jnp.maximum(log_odds, 0.0) + softened)
        + constant
    )
    # Not s − (s + f) σ(b), which cancels where nearly all trials are of one kind.
    slope = successes * failure - failures * success
    return value, slope, -(successes + failures) * larger * smaller
