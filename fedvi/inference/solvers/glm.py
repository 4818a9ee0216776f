"""The deterministic solver for generalised linear models: Gauss–Hermite expectations, Newton steps."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam.base import is_full
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference.blocks import Block, blocks_of, is_large, length_of
from fedvi.inference.local_latents import Local, local_problem
from fedvi.inference.parallel_parts import compiled_calls, on_devices, thread_count
from fedvi.models.base import Model
from fedvi.models.capabilities import Regression
from fedvi.privacy import events
from fedvi.privacy.release import Released, disclose
from fedvi.typing import Key
from fedvi.updates.base import (
    LocalSolver,
    Shard,
    Task,
    cavity,
    check_gaussian,
    compiled_once,
    finish_natural,
)

__all__ = ["glm"]

_WHAT = "natural parameters of the local optimum"


class _Point(NamedTuple):
    """A q as (mean, precision), its objective, and the target of a full Newton step."""

    mean: Any
    precision: Any
    objective: Any
    target_mean: Any
    target_precision: Any
    residual: Any
    covariance: Any = None


class _Search(NamedTuple):
    """The state of an iteration; ``moves`` and ``changes`` are the latest ones, zero where there is none.

    A move leads from one point to the next. Its change is the difference of their remaining full steps.
    """

    point: _Point
    step: Any
    evaluations: Any
    moves: tuple[Any, Any]
    changes: tuple[Any, Any]
    mark: tuple[Any, Any]  # objective and residual at the last progress
    idle: Any  # evaluations since then


_REMEMBERED = 3  # moves; more gain almost nothing
# With too few nodes for a wide q, F and its derivatives disagree and no step reaches the tolerance.
# So the search ends without progress: a residual that halves, or an objective that grows by this share.
_LEAST_GAIN = 1e-9
_MOST_IDLE = 30
# In posterior sds. From further away, many small gains may still lead to the optimum.
_NEAR = 10.0


def glm(
    family: Any,
    model: Model,
    nodes: int = 20,
    tolerance: float = 1e-6,
    evaluations: int = 200,
) -> LocalSolver:
    """Returns the solver that maximises the local objective of a GLM, deterministically.

    The objective is F(q) = Σₙ E_q[log p(yₙ|xₙᵀθ)] + ⟨η_c, E_q[T]⟩ + H(q), finite for improper
    cavities too. It depends on q through (xₙᵀm, xₙᵀSxₙ) only, so the expectations are one-dimensional
    and deterministic. With g = E_q[∇ log p] and H = −E_q[∇² log p], a step leads to

        full:      J = J_c + H,       m = m + J⁻¹ (h_c − J_c m + g)      (the natural gradient)
        diagonal:  j = j_c + diag H,  m = m + (diag j_c + H)⁻¹ (h_c − j_c m + g)

    and is halved until F does not fall: undamped Newton steps diverge on small sites. Near the optimum
    steps are extrapolated from the latest three, which halves their number.

    Not private: what it releases is ``Unprotected``.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: a built-in GLM, with site effects or without. Effects are further coefficients here, and a
        learnt τ adds E_q[log p(u | τ)] and its derivatives to F, g and H (``local_latents``).
      nodes: Gauss–Hermite nodes per record. 20 resolve a linear predictor of sd up to about 5. With
        a handful of records under a wide prior the search stalls early, and ends after 30 evaluations
        without progress; ``info["residual"]`` is the distance from the optimum, in posterior sds.
      tolerance: stops when the remaining step, in q's standard deviations, is shorter.
      evaluations: upper bound on evaluations of F. If it is reached, the best q so far is the
        answer: F never falls, so it is still an improvement.

    Raises, in a visit:
      SolverError: the likelihood is not finite at any q that was tried.

    Source: docs/proofs/updates.md §2; Khan and Rue (2023), arXiv:2107.04562, §3 for the natural gradient.
    """
    check_gaussian(family, "glm")
    local = local_problem(family, model)
    regression = local.regression
    if regression is None:
        raise errors.SolverError(
            f"solver `glm` needs a generalised linear model, found {type(model).__name__}",
            "use solver kind `gradient`, which takes any model",
        )
    if not 2 <= nodes <= 200:
        raise errors.SolverError(f"nodes is {nodes}, expected 2 to 200")
    if evaluations < 1:
        raise errors.SolverError(f"evaluations is {evaluations}, expected at least 1")
    if not 0.0 < tolerance < 1.0:
        raise errors.SolverError(f"tolerance is {tolerance}, expected between 0 and 1")
    solve = _compiled(local, regression, nodes, tolerance, evaluations)

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        if local.says_nothing(shard.mask):
            return state, disclose(cavity(task)._asdict(), _WHAT), {}
        wide = local.widen(task)
        mean, precision = _mean_form(local.family, wide.posterior)
        without = cavity(wide)
        given = (mean, precision, without.h, without.J)
        with jax.enable_x64(True):
            if is_large(shard.mask):
                point, count = solve.by_blocks(*given, shard)
            else:
                records = local.records(shard.records)
                point, count = solve.at_once(
                    *given,
                    jnp.asarray(records["x"], jnp.float64),
                    jnp.asarray(records["y"], jnp.float64),
                    jnp.asarray(shard.mask),
                )
            point = jax.device_get(point)
        if not np.isfinite(point.objective):
            raise errors.SolverError(
                "the log likelihood of the records is not finite at any q that was tried, so that the "
                "posterior cannot move",
                "does the outcome's density hold at every value that its column may have, as at 0? Recode "
                "the column, or declare bounds within the outcome's support",
            )
        optimum = _natural_form(local.family, point.mean, point.precision)
        info = {"residual": float(point.residual), "evaluations": int(count)}
        info |= local.told(optimum)
        optimum = local.narrow(optimum)
        return state, disclose({"h": optimum.h, "J": optimum.J}, _WHAT), info

    return LocalSolver(
        name="glm",
        init=lambda eta: (),
        update=update,
        finish=finish_natural,
        cost=events.Unprotected(_WHAT),
        number_count=family.number_count,
        streams=True,
    )


class _Solve(NamedTuple):
    """The iteration: in one program for a shard in memory, or over blocks of rows for a large one."""

    at_once: Callable[..., tuple[_Point, Any]]
    by_blocks: Callable[..., tuple[_Point, Any]]


@compiled_once
def _compiled(
    local: Local, model: Regression, nodes: int, tolerance: float, evaluations: int
) -> _Solve:
    """Returns the compiled iteration, one for equal settings, also across studies."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    full = is_full(local.family)
    sums_of = functools.partial(_sums, model, points, weights, full)
    iterate = functools.partial(_solve, local, tolerance, evaluations)

    def at_once(
        mean: Any, precision: Any, cavity_h: Any, cavity_precision: Any, x: Any, y: Any, mask: Any
    ) -> tuple[_Point, Any]:
        def sums(mean: Any, scale: Any) -> tuple[Any, Any, Any]:
            return sums_of(mean, scale, x, y, mask)

        loops = _Loops(jax.lax.while_loop, jax.lax.cond)
        return iterate(loops, sums, mean, precision, cavity_h, cavity_precision)

    prepared = compiled_calls(jax.jit(sums_of))

    def by_blocks(
        mean: Any, precision: Any, cavity_h: Any, cavity_precision: Any, shard: Shard
    ) -> tuple[_Point, Any]:
        rows = len(shard.mask)
        indices, length = np.arange(rows), length_of(rows)

        def sums(mean: Any, scale: Any) -> tuple[Any, ...]:
            def call(block: Block) -> Callable[[], Any]:
                drawn = local.records(block.records)
                wide = (jnp.asarray(drawn[name], jnp.float64) for name in ("x", "y"))
                return prepared(*scaled, *wide, jnp.asarray(block.mask))

            scaled = jax.tree.map(np.asarray, (mean, scale))  # one copy for all devices
            blocks = blocks_of(shard.records, indices, shard.mask, length)
            total: list[Any] = [0.0, 0.0, 0.0]
            with contextlib.closing(on_devices(call, blocks, thread_count())) as parts:
                for found in parts:
                    total = [old + np.asarray(new) for old, new in zip(total, found, strict=True)]
            return tuple(jnp.asarray(part) for part in total)

        given = (jnp.asarray(part) for part in (mean, precision, cavity_h, cavity_precision))
        return iterate(_Loops(_while, _choose), sums, *given)

    return _Solve(jax.jit(at_once), by_blocks)


class _Loops(NamedTuple):
    """The loop and the branch of the iteration: within one program, or in Python."""

    repeat: Callable[..., Any]
    choose: Callable[..., Any]


def _while(go_on: Callable[[Any], Any], body: Callable[[Any], Any], value: Any) -> Any:
    while bool(go_on(value)):
        value = body(value)
    return value


def _choose(condition: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], value: Any) -> Any:
    return yes(value) if bool(condition) else no(value)


def _sums(
    model: Regression,
    nodes: np.ndarray,
    weights: np.ndarray,
    full: bool,
    mean: Any,
    scale: Any,
    x: Any,
    y: Any,
    mask: Any,
) -> tuple[Any, Any, Any]:
    """Returns E[log p] over q, its gradient in the mean [D], and minus its Hessian [D, D], over records.

    Args:
      mean: that of q, [D].
      scale: R⁻¹ of q's precision J = RRᵀ, or q's variances in the diagonal family; None evaluates at the
        mean alone.
      x, y, mask: records, float64.
    """
    x, y, mask = model.rows(x, y, mask)
    centre = x @ mean
    if scale is None:
        value, first, second = model.derivatives(centre, y)
    else:
        # xᵀJ⁻¹x = ‖R⁻¹x‖².
        variance = ((x @ scale.T) ** 2).sum(axis=1) if full else (x * x) @ scale
        spread = jnp.sqrt(variance)
        predictor = centre[None, :] + nodes[:, None] * spread[None, :]
        parts = model.derivatives(predictor, y[None])
        value, first, second = (jnp.asarray(weights) @ part for part in parts)
    # A padded row is all zeros, where a custom outcome need not be finite: 0 · NaN would be NaN.
    value, first, second = (
        jnp.where(mask, part, jnp.zeros_like(part)) for part in (value, first, second)
    )
    return value.sum(), first @ x, -(x * second[:, None]).T @ x


def _mean_form(family: Any, eta: GaussianEta) -> tuple[np.ndarray, np.ndarray]:
    full = is_full(family)
    return (np.linalg.solve(eta.J, eta.h) if full else eta.h / eta.J), np.asarray(eta.J)


def _natural_form(family: Any, mean: np.ndarray, precision: np.ndarray) -> GaussianEta:
    full = is_full(family)
    return GaussianEta(precision @ mean if full else precision * mean, precision)


def _solve(
    local: Local,
    tolerance: float,
    evaluations: int,
    loops: _Loops,
    sums: Callable[[Any, Any], tuple[Any, Any, Any]],
    mean: Any,
    precision: Any,
    cavity_h: Any,
    cavity_precision: Any,
) -> tuple[_Point, Any]:
    """Runs the damped Newton iteration; all arrays float64. ``sums`` is ``_sums`` over all records.

    Far from the optimum it first finds the mode of the tilted density, with one node per record. It
    starts from the mode and the curvature there if that q is better. From a wide prior the
    precision would otherwise grow by only a small factor a step.
    """
    full = is_full(local.family)

    def times(matrix: Any, vector: Any) -> Any:
        return matrix @ vector if full else matrix * vector

    def newton(mean: Any, gradient: Any, hessian: Any, covariance: Any) -> tuple[Any, Any, Any]:
        target = cavity_precision + (hessian if full else jnp.diagonal(hessian))
        metric = target if full else jnp.diag(cavity_precision) + hessian
        # If the cavity is so improper that the Newton metric is not positive definite, q's covariance
        # takes its place. The direction is still one of ascent, and the search shortens the step.
        move = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(metric), True), gradient)
        move = jnp.where(jnp.isfinite(move).all(), move, times(covariance, gradient))
        return mean + move, target, move

    def evaluate_mode(point: _Point, covariance: Any) -> _Point:
        """Evaluates log p(y, θ) at the mean alone; ``precision`` is the curvature there."""
        value, gradient, hessian = sums(point.mean, None)
        pull = times(cavity_precision, point.mean)
        objective = value + cavity_h @ point.mean - 0.5 * point.mean @ pull
        gradient = gradient + cavity_h - pull
        target_mean, target, move = newton(point.mean, gradient, hessian, covariance)
        residual = jnp.sqrt(jnp.abs(gradient @ move))
        objective = jnp.where(jnp.isfinite(objective), objective, -jnp.inf)
        return _Point(point.mean, target, objective, target_mean, target, residual, covariance)

    def evaluate(point: _Point) -> _Point:
        mean, precision = point.mean, point.precision
        if full:
            root = jnp.linalg.cholesky(precision)
            inverse_root = jax.scipy.linalg.solve_triangular(
                root, jnp.eye(root.shape[0], dtype=mean.dtype), lower=True
            )
            log_determinant = 2.0 * jnp.log(jnp.diagonal(root)).sum()
            covariance = inverse_root.T @ inverse_root
        else:
            inverse_root = 1.0 / precision
            log_determinant = jnp.log(precision).sum()
            covariance = 1.0 / precision
        value, gradient, hessian = sums(mean, inverse_root)
        if local.learns_scales:
            more = local.scale_moments(mean, covariance)
            value, gradient, hessian = value + more[0], gradient + more[1], hessian + more[2]
        pull = times(cavity_precision, mean)
        trace = (cavity_precision * covariance).sum()
        objective = value + cavity_h @ mean - 0.5 * (mean @ pull + trace + log_determinant)
        gradient = gradient + cavity_h - pull
        target_mean, target, move = newton(mean, gradient, hessian, covariance)
        change = target - precision
        spread = covariance @ change @ covariance * change if full else (change * covariance) ** 2
        residual = jnp.sqrt(move @ times(precision, move) + 0.5 * spread.sum())
        usable = jnp.isfinite(objective) & jnp.isfinite(log_determinant)
        objective = jnp.where(usable, objective, -jnp.inf)
        return _Point(mean, precision, objective, target_mean, target, residual, covariance)

    def extrapolated(search: _Search) -> tuple[Any, Any]:
        """Returns the step to the limit predicted from the latest moves, by Anderson mixing.

        H depends on q's covariance, so J converges only linearly. Let f be the remaining full step. The
        combination of the latest changes that is nearest to f, in q's metric, is subtracted.

        Source: Walker and Ni (2011), doi:10.1137/10078356X, §2.
        """
        point = search.point
        left = _left(point)
        means, precisions = search.changes
        lowered = jax.vmap(lambda mean: times(point.precision, mean))(means)
        sandwich = jax.vmap(
            lambda each: (
                point.covariance @ each @ point.covariance
                if full
                else point.covariance * each * point.covariance
            )
        )(precisions)

        def along(mean: Any, precision: Any) -> Any:
            rest = (sandwich * precision[None]).reshape(_REMEMBERED, -1).sum(axis=1)
            return lowered @ mean + 0.5 * rest

        gram = jax.vmap(along)(means, precisions)
        # The ridge makes shares 0 where nothing is remembered, and small where two changes are alike.
        ridge = 1e-10 * jnp.trace(gram) + float(np.finfo(np.float64).tiny)
        share = jnp.linalg.solve(gram + ridge * jnp.eye(_REMEMBERED), along(*left))
        return jax.tree.map(
            lambda f, moves, changes: f - jnp.tensordot(share, moves + changes, 1),
            left,
            search.moves,
            search.changes,
        )

    def climb(measure: Any, start: _Point, goal: Any, mixes: bool = True) -> _Search:
        """Halves the step until the objective does not fall, and doubles it again afterwards."""

        def go_on(search: _Search) -> Any:
            residual = search.point.residual
            stands_still = (search.idle >= _MOST_IDLE) & (residual < _NEAR)
            unfinished = (residual > goal) & ~stands_still
            return unfinished & (search.evaluations < evaluations) & (search.step > 1e-10)

        def body(search: _Search) -> _Search:
            here, step = search.point, search.step
            left = _left(here)
            towards = jax.tree.map(lambda each: step * each, left)
            remembers = jnp.any(search.changes[1] != 0.0)
            if mixes:
                further = extrapolated(search)
                towards = jax.tree.map(
                    lambda far, near: jnp.where(remembers, far, near), further, towards
                )
            candidate = measure(
                here._replace(mean=here.mean + towards[0], precision=here.precision + towards[1])
            )
            # The slack is float64 rounding of a sum of this size; without it the last steps stall.
            slack = 1e-12 * (1.0 + jnp.abs(here.objective))
            better = candidate.objective >= here.objective - slack
            point = jax.tree.map(lambda new, old: jnp.where(better, new, old), candidate, here)
            # If extrapolation lowered the objective, memory is cleared and the next step is plain.
            shorter = jnp.where(remembers, step, 0.5 * step)
            step = jnp.where(better, jnp.minimum(1.0, 2.0 * step), shorter)
            keeps = better & (search.step == 1.0) if mixes else False

            def remember(old: Any, new: Any) -> Any:
                return jnp.where(keeps, jnp.concatenate([new[None], old[:-1]]), jnp.zeros_like(old))

            changes = jax.tree.map(jnp.subtract, _left(candidate), left)
            best, smallest = search.mark
            gains = point.objective > best + _LEAST_GAIN * (1.0 + jnp.abs(best))
            gains |= point.residual < 0.5 * smallest
            mark = jax.tree.map(
                lambda new, old: jnp.where(gains, new, old),
                (point.objective, point.residual),
                search.mark,
            )
            return _Search(
                point,
                step,
                search.evaluations + 1,
                jax.tree.map(remember, search.moves, towards),
                jax.tree.map(remember, search.changes, changes),
                mark,
                jnp.where(gains, 0, search.idle + 1),
            )

        empty = jax.tree.map(
            lambda each: jnp.zeros((_REMEMBERED, *each.shape), each.dtype), _left(start)
        )
        one = jnp.ones((), jnp.int64)
        mark = start.objective, start.residual
        begun = _Search(start, jnp.ones((), mean.dtype), one, empty, empty, mark, 0 * one)
        return loops.repeat(go_on, body, begun)

    nothing = jnp.zeros((), mean.dtype)
    given = evaluate(_Point(mean, precision, nothing, mean, precision, nothing))

    def from_mode(given: _Point) -> _Point:
        covariance = jnp.linalg.inv(precision) if full else 1.0 / precision
        measure = functools.partial(evaluate_mode, covariance=covariance)
        mode = climb(measure, measure(given), 1e-3, mixes=False).point
        found = evaluate(mode)
        better = found.objective > given.objective
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, given)

    # Within a posterior sd of the optimum the given q is the better start. log p(u | τ) has no mode.
    if local.learns_scales:
        search = climb(evaluate, given, tolerance)
        return search.point, search.evaluations
    start = loops.choose(given.residual > 1.0, from_mode, lambda point: point, given)
    search = climb(evaluate, start, tolerance)
    return search.point, search.evaluations


def _left(point: _Point) -> tuple[Any, Any]:
    """Returns the remaining full step of the mean and of the precision."""
    return point.target_mean - point.mean, point.target_precision - point.precision
