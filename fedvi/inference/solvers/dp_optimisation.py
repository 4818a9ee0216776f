"""Local DP-VI: maximises the local objective with clipped, noised per-record gradients."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import FactoredGaussian, is_full
from fedvi.inference import whitened
from fedvi.inference.blocks import is_large, rows_at, single_precision
from fedvi.inference.checked_visits import check_of
from fedvi.inference.clipping import LARGEST_BATCH, Parts, clipped, longest_part
from fedvi.inference.local_latents import Local, local_problem
from fedvi.inference.optimiser import LONGEST_STEP, adam, check_learning_rate
from fedvi.inference.predictor import gradients, has_predictor
from fedvi.inference.usable import told_units
from fedvi.models.base import Model
from fedvi.privacy import events
from fedvi.privacy.base import Batch, Mechanism, Sampler, Shift
from fedvi.privacy.bounded import Bounded, clipped_sum
from fedvi.privacy.release import Released, decoded, post_process, release, repeat, repeat_outside
from fedvi.typing import Key
from fedvi.updates.base import LocalSolver, Shard, Task, check_gaussian, compiled_once
from fedvi.updates.finish import SHARPEST, finish_low_rank, finish_whitened, to_low_rank
from fedvi.updates.limits import Limit

__all__ = ["dp_optimisation"]

# A released location is at most this many broadcast sds away; for its scale see `SHARPEST`.
_FARTHEST = 1e3
# Below this many rows per float32 sum, gradients are formed.
_SHORT_BLOCK = 32
# One program: operation by operation it takes as long as the ten steps of a small visit.
_split = jax.jit(jax.random.split, static_argnums=1)


def dp_optimisation(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float = 1.0,
    steps: int = 100,
    learning_rate: float = 0.1,
    draws: int = 8,
) -> LocalSolver:
    """Returns the solver that runs DP-SGD on the local objective, with ``steps`` releases a visit.

    Each step draws a batch from ``sampler``. Per record it takes the gradient of E_q[log p(yₙ|θ)] with
    respect to q's location in θ and its scale in units of the broadcast q (log-scales, or a Cholesky
    factor), averages it over ``draws`` shared draws, and clips it to ``clip_norm``. The noised sum is
    divided by the public sampling rate. The gradient of ⟨η_c, E_q[T]⟩ + H(q) touches no data: it is exact,
    neither clipped nor noised. Adam restarts at each visit from the broadcast q. Its steps are in units of
    q's standard deviations, and are shortened by the estimated share of signal in the gradient. So where
    noise outweighs the records, q stays as it was and intervals stay wide.

    Guarantee: one visit costs ``Repeated(sampler.event(mechanism.event(shift)), steps)``, where the
    shift is C when a record is added or removed and 2C when it is substituted (``clipping.clipped`` where
    a record has one linear predictor, else ``clipped_sum``). Every iterate counts
    as released; the cavity, the optimiser and the factor are post-processing of earlier releases.

    With site effects u (``local_latents``) the guide is over (θ, u), and the guarantee is the same, with
    the same event: a record's gradient is one vector over the guide of (θ, u), clipped as a
    whole to C, so that the noised sum over θ's and u's coordinates together moves by C, or 2C. The terms
    log p(u | τ), entropy and cavity touch no data. All iterates of both are functions of noised sums and
    public numbers; so is the message, which is the θ part of the last iterate. u is not kept: each visit
    starts it again from its prior, so that a visit depends on records only through what was released.

    Args:
      family: full, diagonal or low-rank Gaussian over the model's θ.
      model: any model, with or without site effects; a low-rank family takes none.
      sampler: one of ``fedvi.privacy.sampling``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      clip_norm: C, the L2 bound on one record's gradient.
      steps: optimiser steps per visit, fixed in advance.
      learning_rate: Adam's initial rate, in sds of the broadcast q; it falls to zero along a cosine.
      draws: Monte Carlo draws averaged before clipping.

    Source: docs/proofs/updates.md §5; Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749; Heikkilä et al.
    (2023), arXiv:2209.11595, "DP optimisation".
    """
    check_gaussian(family, "dp_optimisation", low_rank=True)
    if steps < 1:
        raise errors.SolverError(f"steps is {steps}, expected at least 1")
    if draws < 1:
        raise errors.SolverError(f"draws is {draws}, expected at least 1")
    if not clip_norm > 0.0:
        raise errors.SolverError(f"clip_norm is {clip_norm}, expected a number above 0")
    check_learning_rate(learning_rate)
    local = local_problem(family, model)
    low_rank = isinstance(family, FactoredGaussian)
    climb = _climber(local, sampler, mechanism, clip_norm, steps, learning_rate, draws)
    numbers = family.size * (1 + (family.size if is_full(family) else 1))
    # Each number starts at 0 and moves with Adam, whose rates along the cosine add up to this.
    farthest = LONGEST_STEP * learning_rate * (steps + 1) / 2
    one_step = sampler.event(mechanism.event(Shift(clip_norm, clip_norm, 2.0 * clip_norm)))

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        keys = tuple(_split(key_of(purpose), steps) for purpose in ("sampling", "guide", "noise"))
        wide = local.widen(task)
        at = whitened.single(whitened.frame(local.family, wide))
        valid = jnp.asarray(shard.mask)
        if is_large(shard.mask):
            found = climb.by_steps(keys, at, shard.records, valid)
        else:
            found = climb.at_once(keys, at, single_precision(local.records(shard.records)), valid)
        guide = post_process(_to_float64, found)
        told: dict[str, Any] = told_units(local, at.mean, shard)
        told |= local.told_whitened(wide, guide.value)
        if low_rank:
            # The directions belong to the study, so this is post-processing too.
            return state, post_process(functools.partial(_in_family, family, task), guide), told
        return state, post_process(local.narrow_whitened, guide), told

    return LocalSolver(
        name="dp_optimisation",
        init=lambda eta: (),
        update=update,
        # A server knows the shapes of a posterior but not its directions: a low-rank answer is already η.
        finish=functools.partial(finish_low_rank, farthest=farthest)
        if low_rank
        else finish_whitened,
        cost=events.repeat(one_step, steps),
        number_count=family.number_count,
        noised_count=local.family.number_count,
        # With effects, the first numbers of a guide over both are what is released.
        limit=None if low_rank else Limit(math.sqrt(numbers) * farthest, 0.0, numbers, farthest),
        clip_norm=clip_norm,
        mark=mechanism.mark,
        # The gradients of a larger batch would not fit into memory together.
        streams=sampler.capacity <= LARGEST_BATCH,
        check=check_of(
            functools.partial(_of_first_sums, family, model, clip_norm, draws),
            sampler, mechanism, clip_norm, tree.to_numpy(family.isotropic(1.0)),
        ),
    )  # fmt: skip


def _of_first_sums(
    family: Any, model: Model, clip_norm: float, draws: int, *, sampler: Any, mechanism: Any
) -> Callable[[Key, Task, Shard], Released]:
    """Returns a function that releases the sum of a visit's first step, for the check of all steps."""
    local = local_problem(family, model)
    climb = _climber(local, sampler, mechanism, clip_norm, 1, 1.0, draws)

    def of(key: Key, task: Task, shard: Shard) -> Released:
        at = whitened.single(whitened.frame(local.family, local.widen(task)))
        records = single_precision(local.records(shard.records))
        return climb.first_sum(_split(key, 3), at, records, jnp.asarray(shard.mask))

    return of


class _Climb(NamedTuple):
    """The steps of a visit: in one program for a shard in memory, or batch by batch for a large one.

    ``first_sum`` returns the noised sum of the first step alone.
    """

    at_once: Callable[..., Released]
    by_steps: Callable[..., Released]
    first_sum: Callable[..., Released]


@compiled_once
def _climber(
    local: Local,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    steps: int,
    learning_rate: float,
    draws: int,
) -> _Climb:
    """Returns the compiled loops of ``dp_optimisation``, one for equal settings."""
    optimiser = adam(learning_rate, steps)
    # Noise sd of one entry of the gradient, after the division by the rate; public.
    noise_std = (
        mechanism.noise_multiplier * clip_norm / sampler.rate if mechanism.noise_multiplier else 0.0
    )

    def record_term(guide: Any, at: whitened.AnyFrame, noise: Any, record: Any) -> Any:
        # The location's gradient is taken in θ, where a record's contribution does not depend on how
        # sharp q is; whitening the steps is post-processing.
        thetas = whitened.around(guide, at, noise)
        return jax.vmap(local.model.log_likelihood, in_axes=(0, None))(thetas, record).mean()

    def public_term(guide: Any, at: whitened.AnyFrame) -> Any:
        return whitened.public_term(guide, at) + local.scale_term(guide, at)

    # Each visit restarts the effects, so their gradients are large; β's shares must not follow from those.
    shares_of = _signal if local.effects is None else functools.partial(_signals, local.predicting)
    each_gradient = jax.vmap(jax.grad(record_term), in_axes=(None, None, None, 0))

    def bounded_sum(
        guide: Any, at: whitened.AnyFrame, noise: Any, rows: Any, batch: Batch
    ) -> Bounded:
        if not has_predictor(local.model) or isinstance(at, whitened.LowRankFrame):
            found = each_gradient(guide, at, noise, rows)
            return clipped_sum(found, clip_norm, batch, mechanism)
        records = gradients(local.model, guide, at, noise, rows)
        count = batch.mask.shape[0]
        if longest_part(count) < _SHORT_BLOCK:
            # A loop over very many short blocks takes longer than to form every gradient.
            return clipped_sum(records.formed(), clip_norm, batch, mechanism)
        return clipped(Parts(lambda _: records, 1, count), clip_norm, "flat", batch, mechanism)

    def began(at: whitened.AnyFrame) -> Any:
        start = whitened.start(at)
        energy = jnp.zeros((3 if local.effects is None else 5,), at.mean.dtype)
        return start, optimiser.init(start), energy

    def summed(
        at: whitened.AnyFrame, parameters: Any, step_keys: Any, batch: Batch, rows: Any
    ) -> Released:
        guide_key, noise_key = step_keys
        noise = jax.random.normal(guide_key, (draws, at.mean.shape[0]), at.mean.dtype)
        guide = whitened.to_theta(at, parameters[0][None, :])[0], parameters[1]
        return release(noise_key, bounded_sum(guide, at, noise, rows, batch), mechanism)

    def step_on(
        at: whitened.AnyFrame, value: Any, step_keys: Any, batch: Batch, rows: Any
    ) -> Released:
        parameters, state, energy = value
        noised = decoded(summed(at, parameters, step_keys, batch, rows))

        def climb_on(total: Any) -> Any:
            # Divided by the public rate, never by the realised size of the batch.
            fit = whitened.pull_back(
                at, *(part / sampler.rate for part in local.without_scales(total))
            )
            exact = jax.grad(public_term)(parameters, at)
            slope = jax.tree.map(jnp.add, fit, exact)
            moved, new_state = optimiser.ascend(slope, state, parameters)
            shares, new_energy = shares_of(at, slope, noise_std, energy)
            shrunk = jax.tree.map(
                lambda new, old, share: old + share * (new - old), moved, parameters, shares
            )
            return shrunk, new_state, new_energy

        return post_process(climb_on, noised)

    def answer(value: Any) -> dict[str, Any]:
        location, raw = value[0]
        # A client that does not answer would leak. So an answer beyond float32 is replaced by the
        # broadcast q, and every other is clipped to a valid precision. All of it is post-processing.
        usable = jnp.isfinite(location).all() & jnp.isfinite(raw).all()
        location = jnp.where(usable, location, jnp.zeros_like(location))
        raw = jnp.where(usable, raw, jnp.zeros_like(raw))
        return {
            "location": jnp.clip(location, -_FARTHEST, _FARTHEST),
            "scale": jnp.clip(raw, -SHARPEST, SHARPEST),
        }

    def drawn(key: Any, records: Any, valid: Any) -> tuple[Batch, Any]:
        batch = sampler.draw(key, valid)
        return batch, jax.tree.map(lambda column: column[batch.indices], records)

    @jax.jit
    def first_sum(keys: Any, at: whitened.AnyFrame, records: Any, valid: Any) -> Released:
        return summed(at, whitened.start(at), keys[1:], *drawn(keys[0], records, valid))

    @jax.jit
    def at_once(keys: Any, at: whitened.AnyFrame, records: Any, valid: Any) -> Released:
        def step(value: Any, step_keys: Any) -> Released:
            return step_on(at, value, step_keys[1:], *drawn(step_keys[0], records, valid))

        return post_process(answer, repeat(step, began(at), keys))

    draw, one_step, begin, end = (jax.jit(part) for part in (sampler.draw, step_on, began, answer))

    def by_steps(keys: Any, at: whitened.AnyFrame, records: Any, valid: Any) -> Released:
        def step(value: Any, step_keys: Any) -> Released:
            batch = draw(step_keys[0], valid)
            rows = local.records(rows_at(records, np.asarray(batch.indices)))
            found: Released = one_step(at, value, step_keys[1:], batch, single_precision(rows))
            return found

        each = [tuple(part[index] for part in keys) for index in range(steps)]
        return post_process(end, repeat_outside(step, begin(at), each))

    return _Climb(at_once, by_steps, first_sum)


def _signal(at: whitened.AnyFrame, slope: Any, noise_std: float, energy: Any) -> tuple[Any, Any]:
    """Estimates the share of the gradient's energy that is signal: max(0, 1 − noise / total), by block.

    The mean square of the noise is public. The total's is a running mean over about 20 steps and all
    coordinates of a block (location, scale). Steps are shortened by the share, as in a Wiener filter.
    Adam alone normalises pure noise to full steps, and the factor would drift at every visit until the
    posterior is sharp and wrong.

    Args:
      energy: running means of both blocks and their total weight, [3].

    Returns:
      (share of the location, share of the scale), and the new running means.
    """
    location, raw = slope
    squares = (location**2).mean(), (raw**2).sum() / whitened.scale_count(raw)
    keep = 0.95
    new = keep * energy + (1.0 - keep) * jnp.stack([*squares, jnp.ones_like(squares[0])])
    total = new[:2] / new[2]
    noise = jnp.stack(
        [whitened.noise_in_frame(at, noise_std), jnp.full_like(total[0], noise_std**2)]
    )
    share = jnp.clip(1.0 - noise / jnp.maximum(total, 1e-30), 0.0, 1.0)
    return (share[0], share[1]), new


def _signals(
    size: int, at: whitened.AnyFrame, slope: Any, noise_std: float, energy: Any
) -> tuple[Any, Any]:
    """Does the same as ``_signal``, with separate shares for the first ``size`` coordinates, β.

    Args:
      energy: running means of β's two blocks and of the other two, and their total weight, [5].

    Returns:
      shares in the shapes of (location, scale), and the new running means.
    """
    location, raw = slope
    first = jnp.arange(location.shape[0]) < size
    # In a triangle, the entries of the other coordinates are their rows.
    inner = jnp.broadcast_to(first[:, None] if raw.ndim == 2 else first, raw.shape)
    count = whitened.scale_count(raw)
    shared = whitened.scale_count(raw[:size, :size] if raw.ndim == 2 else raw[:size])
    own, rest = jnp.where(first, location, 0.0) ** 2, jnp.where(first, 0.0, location) ** 2
    squares = (
        own.sum() / size,
        (jnp.where(inner, raw, 0.0) ** 2).sum() / shared,
        rest.sum() / (location.shape[0] - size),
        (jnp.where(inner, 0.0, raw) ** 2).sum() / (count - shared),
    )
    keep = 0.95
    new = keep * energy + (1.0 - keep) * jnp.stack([*squares, jnp.ones_like(squares[0])])
    total = new[:4] / new[4]
    assert isinstance(at, whitened.Frame)  # a low-rank family takes no effects
    # The root is block diagonal, so noise on the location is pulled back block by block.
    rows = (at.root**2).reshape(location.shape[0], -1).sum(axis=1) * noise_std**2
    plain = jnp.full_like(total[0], noise_std**2)
    noise = jnp.stack([rows[:size].mean(), plain, rows[size:].mean(), plain])
    share = jnp.clip(1.0 - noise / jnp.maximum(total, 1e-30), 0.0, 1.0)
    return (jnp.where(first, share[0], share[2]), jnp.where(inner, share[1], share[3])), new


def _in_family(
    family: FactoredGaussian, task: Task, value: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    return to_low_rank(family, task, value["location"], value["scale"])._asdict()


def _to_float64(value: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array, np.float64) for name, array in value.items()}
