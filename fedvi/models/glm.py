"""Linear and logistic regression, and what all generalised linear models share.

A new likelihood of a linear predictor is a file of its own: a ``Response``, and a factory.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi.models.arguments import Scale, checked_names, checked_scale, prior_scales

__all__ = [
    "TYPICAL_CURVATURE",
    "Bernoulli",
    "GeneralisedLinearModel",
    "Layout",
    "Normal",
    "Response",
    "WithOffset",
    "linear",
    "logistic",
    "normal_log_prior",
    "regression",
]

TYPICAL_CURVATURE = 0.1
"""p(1 − p) of a yes or no is ¼ at most, and about this where a regression tells them apart."""

_LOG_2PI = math.log(2.0 * math.pi)


@runtime_checkable
class Response(Protocol):
    """How an outcome is distributed, given the linear predictor a of its row.

    Frozen and hashable: all of its fields are public. Outcomes of several numbers have them on
    axes after those of the predictor; otherwise both functions are elementwise and broadcast.
    """

    conjugate: ClassVar[bool]

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns log p(y | a) in the dtype of a."""
        ...

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a."""
        ...


@runtime_checkable
class Layout(Protocol):
    """How ONE record becomes several rows, each with a linear predictor of its own.

    Frozen and hashable: all of its fields are public, and so is the number of rows.
    """

    def rows(
        self, x: Float[Array, " c"], y: Float[Array, "..."]
    ) -> tuple[Float[Array, "k d"], Float[Array, "k ..."]]:
        """Returns the design and the outcomes of a record's k rows."""
        ...


@dataclasses.dataclass(frozen=True)
class Bernoulli:
    """y in {0, 1} with log odds a = xᵀθ; a fraction in [0, 1] counts as that share of a record."""

    conjugate: ClassVar[bool] = False

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns y log σ(a) + (1 − y) log σ(−a), elementwise."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        # Not y a − log(1 + eᵃ), which cancels: here every term is accurate relative to itself.
        return y * jax.nn.log_sigmoid(a) + (1.0 - y) * jax.nn.log_sigmoid(-a)

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a, from one exponential."""
        a = jnp.asarray(linear_predictor)
        y = jnp.asarray(y).astype(a.dtype)
        decay = jnp.exp(-jnp.abs(a))
        scale = 1.0 / (1.0 + decay)
        positive = jnp.maximum(a, 0.0)
        # log(1 + decay), not log1p: its absolute error of 1e-16 vanishes in a sum, at 2/3 the time.
        value = y * (a - positive) - (1.0 - y) * positive - jnp.log(1.0 + decay)
        slope = y - jnp.where(a >= 0.0, scale, decay * scale)
        return value, slope, -decay * scale**2

    def steepest(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns the steeper slope of the two outcomes, max(σ(a), σ(−a))."""
        return jax.nn.sigmoid(jnp.abs(jnp.asarray(linear_predictor)))


@dataclasses.dataclass(frozen=True)
class Normal:
    """y ~ N(a, noise_scale²) with a = xᵀθ and a known noise."""

    noise_scale: float
    conjugate: ClassVar[bool] = True

    @property
    def typical_curvature(self) -> float:
        """1 / noise_scale², of every record."""
        return float(self.noise_scale**-2.0)

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns log N(y; a, noise_scale²), elementwise."""
        a = jnp.asarray(linear_predictor)
        residual = (jnp.asarray(y).astype(a.dtype) - a) / self.noise_scale
        return -0.5 * residual**2 - (math.log(self.noise_scale) + 0.5 * _LOG_2PI)

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a."""
        a = jnp.asarray(linear_predictor)
        slope = (jnp.asarray(y).astype(a.dtype) - a) / self.noise_scale**2
        return self.log_density(a, y), slope, jnp.full_like(a, -(self.noise_scale**-2.0))


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
        return _typical(self.response)

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... k"]
    ) -> Float[Array, "..."]:
        """Returns log p(outcome | a + offset)."""
        return self.response.log_density(*_moved(linear_predictor, y))

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... k"]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(outcome | a + offset) and its first and second derivative in a."""
        return self.response.derivatives(*_moved(linear_predictor, y))

    def steepest(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "... k"]
    ) -> Float[Array, "..."] | None:
        """Returns how steep log p(outcome | a + offset) may be in a; see ``steepest`` of a model."""
        return _steepest(self.response, *_moved(linear_predictor, y))


def _typical(response: Any) -> float:
    return float(getattr(response, "typical_curvature", TYPICAL_CURVATURE))


def _steepest(response: Any, linear_predictor: Any, y: Any) -> Any:
    """Asks a response how steep it may be; those of one's own need not say."""
    found = getattr(response, "steepest", None)
    return None if found is None else found(linear_predictor, y)


def _moved(linear_predictor: Any, y: Any) -> tuple[Any, Any]:
    a = jnp.asarray(linear_predictor)
    y = jnp.asarray(y).astype(a.dtype)
    return a + y[..., -1], y[..., 0] if y.shape[-1] == 2 else y[..., :-1]


@dataclasses.dataclass(frozen=True)
class GeneralisedLinearModel:
    """Coefficients with independent N(0, scale²) priors, and outcomes given linear predictors.

    A record is ``{"x": [C], "y": [...]}``. Without a layout it is one row: C = D, and y is a scalar
    or what the response takes. With one it is the k rows that the layout makes of it, independent
    given θ, and still ONE record: what is clipped is their sum.

    All fields are public knowledge; two models with equal fields are equal, so a model can be a
    static argument of ``jax.jit``. Make one with ``logistic`` or another factory of
    ``fedvi.models``, which check their arguments.
    """

    names: tuple[str, ...]
    prior_scales: tuple[float, ...]
    response: Response
    layout: Layout | None = None

    @property
    def size(self) -> int:
        """D, the number of coefficients."""
        return len(self.names)

    @property
    def conjugate(self) -> bool:
        """Whether the likelihood is Gaussian in θ, so that the ``exact`` solver applies."""
        return self.response.conjugate

    @property
    def typical_curvature(self) -> float:
        """w: what a typical record adds to the precision of a coefficient whose column has variance 1.

        A public guess, from the response alone; ``TYPICAL_CURVATURE`` where that does not say.
        """
        return _typical(self.response)

    @property
    def noise_scale(self) -> float | None:
        """The known standard deviation of a row's noise; None for other than linear models."""
        return self.response.noise_scale if isinstance(self.response, Normal) else None

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns Σ_d log N(θ_d; 0, prior_scales[d]²)."""
        return normal_log_prior(theta, self.prior_scales)

    def log_density(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."]:
        """Returns log p(y | a), elementwise in the linear predictor a and y."""
        return self.response.log_density(linear_predictor, y)

    def derivatives(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """Returns log p(y | a) and its first and second derivative in a, elementwise."""
        return self.response.derivatives(linear_predictor, y)

    def steepest(
        self, linear_predictor: Float[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "..."] | None:
        """Returns how large |∂ log p(y | a) / ∂a| may well be, whatever the outcome, elementwise.

        It depends on a and on what is no outcome in y (an offset, a number of trials), but not on what came
        out. So slopes weighed by it still have the mean 0, which clipped slopes would not. None where
        outcomes scatter evenly to both sides, or the response does not say.
        """
        return _steepest(self.response, linear_predictor, y)

    def log_likelihood(
        self, theta: Float[ArrayLike, " d"], record: Mapping[str, Shaped[ArrayLike, "..."]]
    ) -> Float[Array, ""]:
        """Returns log p(y | a = xᵀθ) of ONE record ``{"x": [C], "y": [...]}``, over all its rows."""
        theta = jnp.asarray(theta)
        x = jnp.asarray(record["x"]).astype(theta.dtype)
        # HIGHEST: on a GPU the default would round x and θ to TF32.
        precision = jax.lax.Precision.HIGHEST
        if self.layout is None:
            return self.log_density(jnp.vdot(x, theta, precision=precision), record["y"])
        design, outcomes = self.layout.rows(x, jnp.asarray(record["y"]).astype(theta.dtype))
        return self.log_density(jnp.matmul(design, theta, precision=precision), outcomes).sum()

    def rows(
        self, x: Float[Array, "n c"], y: Float[Array, "n ..."], mask: Shaped[Array, " n"]
    ) -> tuple[Float[Array, "m d"], Float[Array, "m ..."], Shaped[Array, " m"]]:
        """Returns all rows of n records, record by record: what a solver that clips nothing sums over.

        Without a layout that is what was given. ``mask`` is repeated for the rows of a record.
        """
        if self.layout is None:
            return x, y, mask
        design, outcomes = jax.vmap(self.layout.rows)(x, y)
        count = design.shape[1]
        return (
            design.reshape(-1, self.size),
            outcomes.reshape(-1, *outcomes.shape[2:]),
            jnp.repeat(mask, count),
        )

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns ``{"coefficients": θ}``: θ has no transform."""
        return {"coefficients": jnp.asarray(theta)}


def normal_log_prior(theta: Float[ArrayLike, " d"], scales: Sequence[float]) -> Float[Array, ""]:
    """Returns Σ_d log N(θ_d; 0, scales[d]²)."""
    theta = jnp.asarray(theta)
    whitened = theta / jnp.asarray(scales, theta.dtype)
    constant = sum(math.log(scale) for scale in scales) + 0.5 * len(scales) * _LOG_2PI
    return -0.5 * jnp.sum(whitened**2) - constant


def logistic(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
) -> GeneralisedLinearModel:
    """Makes Bayesian logistic regression: y ~ Bernoulli(σ(xᵀθ)), θ_d ~ N(0, scale_d²).

    Args:
      names: the D coefficients, in the order of the columns of x.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: that of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (outcome, offset), see ``WithOffset``.

    Raises:
      ModelError: no names, a repeated one, or a scale that is not a positive number.

    >>> logistic(["(Intercept)", "age"], intercept_scale=10.0).prior_scales
    (10.0, 2.5)
    """
    return regression(names, prior_scale, intercept_scale, Bernoulli(), offset)


def linear(
    names: Sequence[str],
    noise_scale: Scale = 1.0,
    prior_scale: Scale | Sequence[Scale] = 2.5,
    intercept_scale: Scale | None = None,
    offset: bool = False,
) -> GeneralisedLinearModel:
    """Makes Bayesian linear regression: y ~ N(xᵀθ, noise_scale²), θ_d ~ N(0, scale_d²).

    The noise is known, so the model is conjugate and, without an offset, the ``exact`` solver applies.

    Args:
      names: the D coefficients, in the order of the columns of x.
      noise_scale: standard deviation of y around xᵀθ, in the unit of y.
      prior_scale: prior standard deviation of every coefficient, or one for each.
      intercept_scale: that of the coefficient named ``(Intercept)``, if different.
      offset: whether records hold y as (outcome, offset), see ``WithOffset``.

    Raises:
      ModelError: no names, a repeated one, or a scale that is not a positive number.

    >>> linear(["(Intercept)", "dose"], noise_scale=0.3).conjugate
    True
    """
    response = Normal(checked_scale("noise_scale", noise_scale))
    return regression(names, prior_scale, intercept_scale, response, offset)


def regression(
    names: Sequence[str],
    prior_scale: Scale | Sequence[Scale],
    intercept_scale: Scale | None,
    response: Response,
    offset: bool,
) -> GeneralisedLinearModel:
    """Makes the model of one row a record from the arguments that all factories share."""
    checked = checked_names(names)
    return GeneralisedLinearModel(
        checked,
        prior_scales(checked, prior_scale, intercept_scale),
        WithOffset(response) if offset else response,
    )
