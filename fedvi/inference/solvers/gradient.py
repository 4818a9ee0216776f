"""The non-private solver for any model: reparameterised gradients of the local objective."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.inference import whitened
from fedvi.inference.blocks import single_precision
from fedvi.inference.local_latents import Local, local_problem
from fedvi.inference.optimiser import adam, check_learning_rate
from fedvi.inference.usable import filled_rows, refuse_rows, usable_rows
from fedvi.models.base import Model
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
from fedvi.updates.finish import to_natural

__all__ = ["climber", "gradient", "local_optimum", "of_a_part"]

_WHAT = "natural parameters of an approximate local optimum"


def gradient(
    family: Any,
    model: Model,
    steps: int = 1000,
    draws: int = 8,
    learning_rate: float = 0.1,
) -> LocalSolver:
    """Returns the solver that maximises the local objective with Adam and reparameterised draws.

    It works in the coordinates z of the incoming q, θ = m + L z with L Lᵀ = J⁻¹, in which q is
    standard normal, so that one learning rate suits every problem. Draws come in antithetic pairs.
    The whole loop is one ``lax.scan`` in float32.

    Not private: what it releases is ``Unprotected``.

    Args:
      family: full, diagonal or low-rank Gaussian over the model's θ; low-rank uses no [D, D] array.
      model: any model, with or without site effects; a low-rank family takes none.
      steps: full-batch optimiser steps per visit.
      draws: Monte Carlo draws per step; rounded up to an even number.
      learning_rate: Adam's initial rate, in posterior sds; it falls to zero along a cosine.

    Raises, in a visit:
      DataError: the likelihood of a record, or its gradient, is not finite at the mean of the incoming q.
      SolverError: the objective did not stay finite.

    Source: Ashman et al. (2022), arXiv:2202.12275, the local objective.
    """
    return _solver(family, model, steps, draws, learning_rate, refuses=True)


def of_a_part(
    family: Any, model: Model, steps: int, draws: int, learning_rate: float
) -> LocalSolver:
    """Returns ``gradient`` for fits that are clipped and noised, and so may not refuse what records hold.

    A record that ``gradient`` would refuse counts as zero, and a q that does not stay finite as no change.
    """
    return _solver(family, model, steps, draws, learning_rate, refuses=False)


def _solver(
    family: Any, model: Model, steps: int, draws: int, learning_rate: float, refuses: bool
) -> LocalSolver:
    check_gaussian(family, "gradient", low_rank=True)
    for name, value in (("steps", steps), ("draws", draws)):
        if value < 1:
            raise errors.SolverError(f"{name} is {value}, expected at least 1")
    check_learning_rate(learning_rate)
    optimum = local_optimum(family, model, steps, draws, learning_rate, refuses)

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        value, info = optimum(key_of("guide"), task, shard)
        return state, disclose(value, _WHAT), info

    return LocalSolver(
        name="gradient",
        init=lambda eta: (),
        update=update,
        finish=finish_natural,
        cost=events.Unprotected(_WHAT),
        number_count=family.number_count,
    )


@compiled_once
def local_optimum(
    family: Any, model: Model, steps: int, draws: int, learning_rate: float, refuses: bool = False
) -> Callable[[Key, Task, Shard], tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Returns a function (key, task, shard) → (η of the approximate local optimum, info); see ``gradient``.

    Its results are computed from records and are not private. Equal settings share one compilation. Without
    ``refuses``, records that are not finite count as zero, and a q that does not stay finite as no change.
    """
    local = local_problem(family, model)
    climb = climber(local, steps, draws, learning_rate)
    usable_at = usable_rows(local.model)

    def solve(key: Key, task: Task, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        keep = np.asarray(shard.mask, bool)
        # A private part without records climbs too, as one whose records count as zero does.
        if local.says_nothing(keep) or (refuses and not keep.any()):
            return cavity(task)._asdict(), {}
        wide = local.widen(task)
        at = whitened.single(whitened.frame(local.family, wide))
        records = filled_rows(single_precision(local.records(shard.records)), keep)
        usable = keep & np.asarray(usable_at(at.mean, records))
        if refuses:
            refuse_rows(local.model, np.asarray(at.mean), records, keep, usable)
        if refuses and not usable.any():
            return cavity(task)._asdict(), {}
        location, raw, values = climb(key, at, filled_rows(records, usable), jnp.asarray(usable))
        location, raw = np.asarray(location, np.float64), np.asarray(raw, np.float64)
        if not (np.isfinite(location).all() and np.isfinite(raw).all()):
            # A likelihood that overflows at a draw of q leads here.
            if refuses:
                _refuse_overflow(np.asarray(values))
            location, raw = np.zeros_like(location), np.zeros_like(raw)
        optimum = to_natural(local.family, wide, location, raw)
        info = {"objective": np.asarray(values), **local.told(optimum)}
        return local.narrow(optimum)._asdict(), info

    return solve


def _refuse_overflow(values: np.ndarray) -> None:
    finite = np.isfinite(values)
    step = len(values) if finite.all() else int(np.argmin(finite)) + 1
    raise errors.SolverError(
        f"the objective or its gradient is not finite from step {step} of {len(values)} on, where it is "
        f"{values[step - 1]:g}, so that the posterior cannot move; each record is finite at its mean",
        "scale columns to about 1 in the model, or narrow its priors: e^(b·x) overflows where |b·x| is "
        "above 88; with a smaller learning_rate q stays nearer to where it is finite",
    )


def climber(local: Local, steps: int, draws: int, learning_rate: float) -> Callable[..., Any]:
    """Returns the compiled loop of ``gradient``, (key, frame, records, mask) → (a, raw, objectives)."""
    pairs = (draws + 1) // 2
    optimiser = adam(learning_rate, steps)

    def likelihood(theta: Any, records: Any, keep: Any) -> Any:
        terms = jax.vmap(local.model.log_likelihood, in_axes=(None, 0))(theta, records)
        return jnp.where(keep, terms, jnp.zeros_like(terms)).sum()

    @jax.jit
    def climb(key: Any, at: whitened.AnyFrame, records: Any, keep: Any) -> Any:
        def objective(parameters: Any, noise: Any) -> Any:
            theta = whitened.thetas(parameters, at, jnp.concatenate([noise, -noise]))
            fit = jax.vmap(likelihood, in_axes=(0, None, None))(theta, records, keep).mean()
            return fit + whitened.public_term(parameters, at) + local.scale_term(parameters, at)

        def step(carry: Any, step_key: Any) -> tuple[Any, Any]:
            parameters, state = carry
            noise = jax.random.normal(step_key, (pairs, at.mean.shape[0]), at.mean.dtype)
            value, slope = jax.value_and_grad(objective)(parameters, noise)
            return optimiser.ascend(slope, state, parameters), value

        start = whitened.start(at)
        keys = jax.random.split(key, steps)
        (parameters, _), values = jax.lax.scan(step, (start, optimiser.init(start)), keys)
        return *parameters, values

    compiled: Callable[..., Any] = climb
    return compiled
