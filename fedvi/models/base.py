"""The interface of a model, and functions that recognise a Gaussian prior."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Float64, Shaped

from fedvi.updates.base import compiled_once

__all__ = ["Model", "Record", "Wrapped", "diagonal_prior", "gaussian_prior"]

# Agreement of two float64 evaluations of one quadratic: 1e-16, times the length of the sums and
# a condition number, with room.
_RTOL = 1e-9

Record = Mapping[str, Shaped[ArrayLike, "..."]]
"""ONE record: named arrays without a record axis."""


@runtime_checkable
class Model(Protocol):
    """A prior over θ ∈ ℝᴰ and the likelihood of one record.

    θ is the unconstrained flattening of all global latents. Solvers choose the dtype: every
    function computes and returns in the dtype of ``theta``. All functions are pure; solvers vmap
    ``log_likelihood`` over records.
    """

    @property
    def size(self) -> int:
        """D, the number of unconstrained coordinates."""

    @property
    def names(self) -> tuple[str, ...]:
        """The D coordinates' names, for tables."""

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns log p₀(θ), including the Jacobian of the transforms to ℝᴰ."""

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Returns log p(record | θ) of ONE record."""

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns each latent, by name, in its own support."""


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """Delegates to ``model``; a subclass overrides parts of it, such as the likelihood."""

    model: Model

    @property
    def size(self) -> int:
        """D, the number of unconstrained coordinates."""
        return self.model.size

    @property
    def names(self) -> tuple[str, ...]:
        """The D coordinates' names."""
        return self.model.names

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns log p₀(θ)."""
        return self.model.log_prior(theta)

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns each latent, by name, in its own support."""
        return self.model.constrain(theta)


@compiled_once  # a plan asks for it again for each mode, and compiling takes a tenth of a second
def gaussian_prior(
    model: Model,
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, "d d"]] | None:
    """Returns (h, J) with log p₀(θ) = hᵀθ − ½ θᵀJθ + const if that is exact, otherwise None.

    The prior is evaluated in float64 whatever JAX's default is. It counts as Gaussian if its
    Hessian is the same at the origin and at four random points, J is positive definite, and
    gradients and values agree with it. Two points are near the origin and two at the prior's own
    scale, each pair on opposite sides, so that neither a wide Student t nor a kink at the centre passes.

    Args:
      model: any model; its prior must be twice differentiable.

    Returns:
      h [D] and the symmetric J [D, D], read-only; None for any other prior, proper or not.

    >>> from fedvi.models import logistic
    >>> h, J = gaussian_prior(logistic(["(Intercept)", "age"], prior_scale=0.5))
    >>> J.tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    # A fixed public seed: the points only have to be in general position.
    random = np.random.default_rng(20240229)
    with jax.enable_x64(True):
        at = jax.jit(lambda theta: _derivatives(model, theta))
        near = random.normal(size=model.size)
        points = [np.zeros(model.size), near, -near]
        found = [jax.device_get(at(theta)) for theta in points]
        if not _all_finite(found):
            return None
        # At the origin the gradient is h without cancellation; 0.0 − x rather than −x: no −0.0.
        _, shift, hessian = found[0]
        precision = 0.0 - 0.5 * (hessian + hessian.T)
        root = _scaled_root(precision)
        if root is None:
            return None
        centre = np.linalg.solve(precision, shift)
        offset = np.linalg.solve(root.T, 2.0 * random.normal(size=model.size))
        points += [centre + offset, centre - offset]
        found += [jax.device_get(at(theta)) for theta in points[3:]]
    if not _all_finite(found) or not _is_quadratic(points, found, shift, precision):
        return None
    shift = np.array(shift)
    for shared in (shift, precision):
        shared.flags.writeable = False
    return shift, precision


def diagonal_prior(
    model: Model,
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]] | None:
    """Returns (h, j) with log p₀(θ) = hᵀθ − ½ Σ jᵢθᵢ² + const if that is exact, otherwise None.

    The same as ``gaussian_prior`` for a prior without correlations, without an array [D, D]. It uses
    products with the Hessian: with a vector of ones for the row sums, and at five points with random
    vectors. No other matrix with these row sums gives the same products.

    Args:
      model: any model; its prior must be twice differentiable.

    Returns:
      h and j, [D] each, float64.

    >>> from fedvi.models import logistic
    >>> diagonal_prior(logistic(["(Intercept)", "age"], prior_scale=0.5))[1].tolist()
    [4.0, 4.0]
    """
    random, size = np.random.default_rng(20240229), model.size
    with jax.enable_x64(True):
        slope = jax.grad(model.log_prior)
        at = jax.jit(
            lambda theta, vector: (
                model.log_prior(theta),
                *jax.jvp(slope, (theta,), (vector,)),
            )
        )
        _, shift, row_sums = jax.device_get(at(np.zeros(size), np.ones(size)))
        precision = 0.0 - row_sums
        if not (np.isfinite(shift).all() and np.isfinite(precision).all()):
            return None
        if not (precision > 0.0).all():
            return None
        scales = np.sqrt(precision)
        near, offset = random.normal(size=size), 2.0 * random.normal(size=size) / scales
        centre, constants, sizes = shift / precision, [], []
        for theta in (np.zeros(size), near, -near, centre + offset, centre - offset):
            units = random.normal(size=size)
            value, gradient, product = jax.device_get(at(theta, units / scales))
            reach = np.abs(shift) + precision * np.abs(theta)
            # NaN and inf fail each of these.
            if not (np.abs(product + scales * units) <= _RTOL * scales * np.abs(units).sum()).all():
                return None
            if not (np.abs(gradient - (shift - precision * theta)) <= _RTOL * reach).all():
                return None
            constants.append(value - theta @ (shift - 0.5 * precision * theta))
            sizes.append(1.0 + np.abs(value) + np.abs(theta) @ reach)
    if not np.ptp(constants) <= _RTOL * max(sizes):
        return None
    return np.array(shift), precision


def _derivatives(model: Model, theta: Any) -> tuple[Any, Any, Any]:
    value, gradient = jax.value_and_grad(model.log_prior)(theta)
    return value, gradient, jax.hessian(model.log_prior)(theta)


def _all_finite(found: list[tuple[Any, Any, Any]]) -> bool:
    return all(np.all(np.isfinite(item)) for items in found for item in items)


def _scaled_root(precision: Any) -> Any:
    """Returns L with L Lᵀ = J, or None if J is not positive definite."""
    diagonal = np.diag(precision)
    if not np.all(diagonal > 0.0):
        return None
    scales = np.sqrt(diagonal)
    try:
        # Scaled to a unit diagonal: units of coordinates may differ by many orders of magnitude.
        return scales[:, np.newaxis] * np.linalg.cholesky(precision / np.outer(scales, scales))
    except np.linalg.LinAlgError:
        return None


def _is_quadratic(
    points: list[Any], found: list[tuple[Any, Any, Any]], shift: Any, precision: Any
) -> bool:
    """Returns whether Hessians, gradients and values at the points are those of hᵀθ − ½ θᵀJθ + const."""
    scales = np.sqrt(np.diag(precision))
    constants, sizes = [], []
    for theta, (value, gradient, hessian) in zip(points, found, strict=True):
        if np.any(np.abs(hessian + precision) > _RTOL * np.outer(scales, scales)):
            return False
        size = np.abs(shift) + np.abs(precision) @ np.abs(theta)
        if np.any(np.abs(gradient - (shift - precision @ theta)) > _RTOL * size):
            return False
        constants.append(value - theta @ (shift - 0.5 * precision @ theta))
        sizes.append(1.0 + np.abs(value) + np.abs(theta) @ size)
    return bool(np.ptp(constants) <= _RTOL * max(sizes))
