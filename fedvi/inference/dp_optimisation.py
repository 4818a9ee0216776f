"""Local DP-VI: the local objective climbed with clipped, noised per-record gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.gaussian import FullGaussian
from fedvi.inference.base import (
    Change,
    LocalSolver,
    Shard,
    Task,
    cavity,
    check_shapes,
    compiled_once,
)
from fedvi.inference.gradient import single_precision
from fedvi.inference.optimiser import adam
from fedvi.models.base import Model
from fedvi.privacy import events
from fedvi.privacy.release import (
    Mechanism,
    Released,
    Sampler,
    Shift,
    clipped_sum,
    post_process,
    release,
    repeat,
)
from fedvi.typing import Key

__all__ = ["dp_optimisation"]


def dp_optimisation(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float = 1.0,
    steps: int = 100,
    learning_rate: float = 0.05,
    draws: int = 4,
) -> LocalSolver:
    """Returns the solver that runs DP-SGD on the local objective, ``steps`` releases a visit.

    Per step: a batch from ``sampler``; per record the gradient of E_q[log p(yₙ|θ)] with respect to
    q's location and log-scale (or Cholesky factor), averaged over ``draws`` shared draws, then
    clipped to ``clip_norm``; the noised sum divided by the public sampling rate. The gradient of
    ⟨η_c, E_q[T]⟩ + H(q) touches no data: it is exact, outside the clip, without noise. The
    parameters are those of θ = m + s ∘ ε (or m + S ε); Adam starts anew at each visit, from q.

    Guarantee: one visit costs ``Repeated(sampler.event(mechanism.event(shift)), steps)``, where the
    shift is C when a record is added or removed and 2C when it is substituted. Every iterate counts
    as released; the cavity, the optimiser and the factor are post-processing of earlier releases.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: any model.
      sampler: one of ``fedvi.privacy.sampling``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      clip_norm: C, the L2 bound on one record's gradient.
      steps: optimiser steps a visit, fixed in advance.
      learning_rate: Adam's, at the start; it falls to zero along a cosine.
      draws: Monte Carlo draws averaged before the clip.

    Source: specs/pvi.md §2.1; Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749; Heikkilä et al.
    (2023), arXiv:2209.11595, "DP optimisation".
    """
    if steps < 1:
        raise errors.SolverError(f"steps is {steps}, expected at least 1")
    if draws < 1:
        raise errors.SolverError(f"draws is {draws}, expected at least 1")
    if not clip_norm > 0.0:
        raise errors.SolverError(f"clip_norm is {clip_norm}, expected a number above 0")
    if not learning_rate > 0.0:
        raise errors.SolverError(f"learning_rate is {learning_rate}, expected a number above 0")
    full = isinstance(family, FullGaussian)
    climb = _climber(family, model, sampler, mechanism, clip_norm, steps, learning_rate, draws)
    one_step = sampler.event(mechanism.event(Shift(clip_norm, clip_norm, 2.0 * clip_norm)))

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        without = cavity(task)
        mean, root = _start(family, task.posterior)
        arrays = (jnp.asarray(a, jnp.float32) for a in (without.h, without.J))
        keys = tuple(
            jax.random.split(key_of(purpose), steps) for purpose in ("sampling", "guide", "noise")
        )
        start = (jnp.asarray(mean, jnp.float32), jnp.asarray(root, jnp.float32))
        released = climb(
            keys, start, *arrays, single_precision(shard.records), jnp.asarray(shard.mask)
        )
        return state, post_process(_to_float64, released), {}

    def finish(value: dict[str, np.ndarray], task: Task) -> Change:
        check_shapes(value, {"location": task.posterior.h.shape, "scale": task.posterior.J.shape})
        if full:
            raw = np.tril(value["scale"])
            np.fill_diagonal(raw, np.exp(np.diagonal(raw)))
            optimum = family.from_moments(value["location"], raw @ raw.T)
        else:
            optimum = family.from_moments(value["location"], np.exp(2.0 * value["scale"]))
        return Change(tree.subtract(optimum, task.posterior))

    return LocalSolver(
        name="dp_optimisation",
        init=lambda eta: (),
        update=update,
        finish=finish,
        cost=events.repeat(one_step, steps),
        number_count=family.number_count,
        clip_norm=clip_norm,
        mark=mechanism.mark,
    )


@compiled_once
def _climber(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    steps: int,
    learning_rate: float,
    draws: int,
) -> Callable[..., Released]:
    """Returns the compiled loop of ``dp_optimisation``, one for equal settings."""
    full = isinstance(family, FullGaussian)
    optimiser = adam(learning_rate, steps)

    def draw(parameters: Any, noise: Any) -> Any:
        location, raw = parameters
        if full:
            spread = jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))
            return location[None, :] + noise @ spread.T
        return location[None, :] + noise * jnp.exp(raw)[None, :]

    def record_term(parameters: Any, noise: Any, record: Any) -> Any:
        thetas = draw(parameters, noise)
        return jax.vmap(model.log_likelihood, in_axes=(0, None))(thetas, record).mean()

    def public_term(parameters: Any, h: Any, precision: Any) -> Any:
        location, raw = parameters
        if full:
            spread = jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))
            quadratic = location @ precision @ location + ((precision @ spread) * spread).sum()
            return h @ location - 0.5 * quadratic + jnp.diagonal(raw).sum()
        quadratic = (precision * (location**2 + jnp.exp(2.0 * raw))).sum()
        return h @ location - 0.5 * quadratic + raw.sum()

    @jax.jit
    def climb(keys: Any, start: Any, h: Any, precision: Any, records: Any, valid: Any) -> Released:
        def step(value: Any, step_keys: Any) -> Released:
            parameters, state = value
            sampling_key, guide_key, noise_key = step_keys
            batch = sampler.draw(sampling_key, valid)
            rows = jax.tree.map(lambda column: column[batch.indices], records)
            noise = jax.random.normal(guide_key, (draws, h.shape[0]), h.dtype)
            gradients = jax.vmap(jax.grad(record_term), in_axes=(None, None, 0))(
                parameters, noise, rows
            )
            noised = release(noise_key, clipped_sum(gradients, clip_norm, batch), mechanism)

            def climb_on(total: Any) -> Any:
                exact = jax.grad(public_term)(parameters, h, precision)
                # Divided by the public rate, never by the realised size of the batch.
                slope = jax.tree.map(lambda t, e: t / sampler.rate + e, total, exact)
                return optimiser.ascend(slope, state, parameters)

            return post_process(climb_on, noised)

        def parameters(value: Any) -> dict[str, Any]:
            location, raw = value[0]
            raw = jnp.tril(raw) if full else raw
            # A client that fell silent would leak: where the noise drove the optimiser beyond
            # float32, the answer is the starting point. All of it is post-processing.
            usable = jnp.isfinite(location).all() & jnp.isfinite(raw).all()
            return {
                "location": jnp.where(usable, location, start[0]),
                "scale": jnp.where(usable, raw, start[1]),
            }

        return post_process(parameters, repeat(step, (start, optimiser.init(start)), keys))

    return climb


def _start(family: Any, posterior: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the guide's parameters at the broadcast q: location, and log-scale or Cholesky factor
    with its diagonal in logs."""
    if isinstance(family, FullGaussian):
        mean, root = family.location_root(posterior)
        raw = np.array(root)
        np.fill_diagonal(raw, np.log(np.diagonal(root)))
        return mean, raw
    mean, scale = family.moments(posterior)
    return mean, np.log(scale)


def _to_float64(value: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array, np.float64) for name, array in value.items()}
