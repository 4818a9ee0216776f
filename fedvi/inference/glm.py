"""The deterministic solver for generalised linear models: Gauss–Hermite expectations, Newton steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam.gaussian import FullGaussian, GaussianEta
from fedvi.inference.base import LocalSolver, Shard, Task, cavity, finish_natural
from fedvi.models.base import Model
from fedvi.models.glm import GeneralisedLinearModel
from fedvi.privacy import events
from fedvi.privacy.release import Released, disclose
from fedvi.typing import Key

__all__ = ["glm"]

_WHAT = "natural parameters of the local optimum"


class _Point(NamedTuple):
    """A proper q with its objective, and the q that a full Newton step leads to."""

    mean: Any
    precision: Any
    objective: Any
    target_mean: Any
    target_precision: Any
    residual: Any


class _Search(NamedTuple):
    point: _Point
    step: Any
    evaluations: Any


def glm(
    family: Any,
    model: Model,
    nodes: int = 20,
    tolerance: float = 1e-8,
    evaluations: int = 200,
) -> LocalSolver:
    """Returns the solver that maximises the local objective of a GLM to numerical precision.

    The objective is F(q) = Σₙ E_q[log p(yₙ|xₙᵀθ)] + ⟨η_c, E_q[T]⟩ + H(q), finite for improper
    cavities too. It depends on q through (xₙᵀm, xₙᵀSxₙ) only, so the expectations are one-dimensional
    and deterministic. With g = E_q[∇ log p] and H = −E_q[∇² log p], a step leads to

        full:      J = J_c + H,       m = m + J⁻¹ (h_c − J_c m + g)      (the natural gradient)
        diagonal:  j = j_c + diag H,  m = m + (diag j_c + H)⁻¹ (h_c − j_c m + g)

    and is halved until F does not fall: undamped Newton steps diverge on small sites.

    Not private: what it releases is ``Unprotected``.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: a built-in GLM.
      nodes: Gauss–Hermite nodes per record.
      tolerance: stops when the remaining step, in q's standard deviations, is shorter.
      evaluations: upper bound on evaluations of F. If it is reached, the best q so far is the
        answer: F never falls, so it is still an improvement.

    Source: specs/pvi.md §1.2; Khan and Rue (2023), arXiv:2107.04562, §3 for the natural gradient.
    """
    if not isinstance(model, GeneralisedLinearModel):
        raise errors.SolverError(
            f"solver `glm` needs a generalised linear model, found {type(model).__name__}",
            "use solver kind `gradient`, which takes any model",
        )
    solve = _compiled(family, model, nodes, tolerance, evaluations)

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        mean, precision = _mean_form(family, task.posterior)
        without = cavity(task)
        with jax.enable_x64(True):
            point, count = solve(
                mean,
                precision,
                without.h,
                without.J,
                jnp.asarray(shard.records["x"], jnp.float64),
                jnp.asarray(shard.records["y"], jnp.float64),
                jnp.asarray(shard.mask),
            )
            point = jax.device_get(point)
        optimum = _natural_form(family, point.mean, point.precision)
        info = {"residual": float(point.residual), "evaluations": int(count)}
        return state, disclose({"h": optimum.h, "J": optimum.J}, _WHAT), info

    return LocalSolver(
        name="glm",
        init=lambda eta: (),
        update=update,
        finish=finish_natural,
        cost=events.Unprotected(_WHAT),
        number_count=family.number_count,
    )


@functools.lru_cache(maxsize=64)
def _compiled(
    family: Any, model: Model, nodes: int, tolerance: float, evaluations: int
) -> Callable[..., tuple[_Point, Any]]:
    """Returns the compiled iteration, one for equal settings, so that studies share it too."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    return jax.jit(
        functools.partial(_solve, family, model, points, weights, tolerance, evaluations)
    )


def _mean_form(family: Any, eta: GaussianEta) -> tuple[np.ndarray, np.ndarray]:
    full = isinstance(family, FullGaussian)
    return (np.linalg.solve(eta.J, eta.h) if full else eta.h / eta.J), np.asarray(eta.J)


def _natural_form(family: Any, mean: np.ndarray, precision: np.ndarray) -> GaussianEta:
    full = isinstance(family, FullGaussian)
    return GaussianEta(precision @ mean if full else precision * mean, precision)


def _solve(
    family: Any,
    model: GeneralisedLinearModel,
    nodes: np.ndarray,
    weights: np.ndarray,
    tolerance: float,
    evaluations: int,
    mean: Any,
    precision: Any,
    cavity_h: Any,
    cavity_precision: Any,
    x: Any,
    y: Any,
    mask: Any,
) -> tuple[_Point, Any]:
    """Runs the damped Newton iteration; all arrays float64."""
    full = isinstance(family, FullGaussian)
    keep = mask.astype(x.dtype)
    density = model.log_density
    slope = jax.grad(density)
    curvature = jax.grad(slope)

    def over_nodes(fn: Any) -> Any:
        return jax.vmap(jax.vmap(fn, in_axes=(0, None)), in_axes=(0, 0))

    def times(matrix: Any, vector: Any) -> Any:
        return matrix @ vector if full else matrix * vector

    def evaluate(mean: Any, precision: Any) -> _Point:
        if full:
            root = jnp.linalg.cholesky(precision)
            # xᵀJ⁻¹x = ‖R⁻¹x‖² with J = RRᵀ.
            spread = jax.scipy.linalg.solve_triangular(root, x.T, lower=True)
            variance = (spread * spread).sum(axis=0)
            log_determinant = 2.0 * jnp.log(jnp.diagonal(root)).sum()
            inverse_root = jax.scipy.linalg.solve_triangular(
                root, jnp.eye(root.shape[0], dtype=x.dtype), lower=True
            )
            covariance = inverse_root.T @ inverse_root
            cavity_trace = (cavity_precision * covariance).sum()
        else:
            variance = (x * x) @ (1.0 / precision)
            log_determinant = jnp.log(precision).sum()
            covariance = 1.0 / precision
            cavity_trace = (cavity_precision / precision).sum()
        predictor = (x @ mean)[:, None] + jnp.sqrt(variance)[:, None] * nodes[None, :]
        value = (over_nodes(density)(predictor, y) @ weights) @ keep
        first = (over_nodes(slope)(predictor, y) @ weights) * keep
        second = -(over_nodes(curvature)(predictor, y) @ weights) * keep
        hessian = (x * second[:, None]).T @ x
        pull = times(cavity_precision, mean)
        objective = (
            value + cavity_h @ mean - 0.5 * (mean @ pull + cavity_trace) - 0.5 * log_determinant
        )
        gradient = cavity_h - pull + first @ x
        if full:
            target_precision = cavity_precision + hessian
            metric = target_precision
        else:
            target_precision = cavity_precision + jnp.diagonal(hessian)
            metric = jnp.diag(cavity_precision) + hessian
        # Where the cavity is so improper that the Newton metric is not positive, q's own precision
        # takes its place: still a direction of ascent, and the search shortens it.
        newton_root = jnp.linalg.cholesky(metric)
        newton = jax.scipy.linalg.cho_solve((newton_root, True), gradient)
        fallback = times(covariance, gradient)
        move = jnp.where(jnp.isfinite(newton).all(), newton, fallback)
        change = target_precision - precision
        whitened = (
            covariance @ change @ covariance * change if full else (change * covariance) ** 2
        ).sum()
        residual = jnp.sqrt(move @ times(precision, move) + 0.5 * whitened)
        usable = jnp.isfinite(objective) & jnp.isfinite(log_determinant)
        objective = jnp.where(usable, objective, -jnp.inf)
        return _Point(mean, precision, objective, mean + move, target_precision, residual)

    def go_on(search: _Search) -> Any:
        unfinished = search.point.residual > tolerance
        return unfinished & (search.evaluations < evaluations) & (search.step > 1e-10)

    def body(search: _Search) -> _Search:
        here, step = search.point, search.step
        candidate = evaluate(
            here.mean + step * (here.target_mean - here.mean),
            here.precision + step * (here.target_precision - here.precision),
        )
        # The slack is float64 rounding of a sum of this size; without it the last steps stall.
        slack = 1e-12 * (1.0 + jnp.abs(here.objective))
        better = candidate.objective >= here.objective - slack
        point = jax.tree.map(lambda new, old: jnp.where(better, new, old), candidate, here)
        return _Search(
            point,
            jnp.where(better, jnp.minimum(1.0, 2.0 * step), 0.5 * step),
            search.evaluations + 1,
        )

    start = _Search(evaluate(mean, precision), jnp.ones((), x.dtype), jnp.ones((), jnp.int64))
    search = jax.lax.while_loop(go_on, body, start)
    return search.point, search.evaluations
