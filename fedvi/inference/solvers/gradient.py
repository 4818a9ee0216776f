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

__all__ = ["climber", "gradient", "local_optimum"]

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

    Source: Ashman et al. (2022), arXiv:2202.12275, the local objective.
    """
    check_gaussian(family, "gradient", low_rank=True)
    for name, value in (("steps", steps), ("draws", draws)):
        if value < 1:
            raise errors.SolverError(f"{name} is {value}, expected at least 1")
    check_learning_rate(learning_rate)
    optimum = local_optimum(family, model, steps, draws, learning_rate)

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
    family: Any, model: Model, steps: int, draws: int, learning_rate: float
) -> Callable[[Key, Task, Shard], tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Returns a function (key, task, shard) → (η of the approximate local optimum, info); see ``gradient``.

    Its results are computed from records and are not private. Equal settings share one compilation.
    """
    local = local_problem(family, model)
    climb = climber(local, steps, draws, learning_rate)

    def solve(key: Key, task: Task, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if local.says_nothing(shard.mask):
            return cavity(task)._asdict(), {}
        wide = local.widen(task)
        at = whitened.single(whitened.frame(local.family, wide))
        records = single_precision(local.records(shard.records))
        keep = jnp.asarray(shard.mask)
        location, raw, values = climb(key, at, records, keep)
        location, raw = np.asarray(location, np.float64), np.asarray(raw, np.float64)
        if not (np.isfinite(location).all() and np.isfinite(raw).all()):
            # A density that is infinite somewhere can lead here; q stays unchanged.
            location, raw = np.zeros_like(location), np.zeros_like(raw)
        optimum = to_natural(local.family, wide, location, raw)
        info = {"objective": np.asarray(values), **local.told(optimum)}
        return local.narrow(optimum)._asdict(), info

    return solve


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
