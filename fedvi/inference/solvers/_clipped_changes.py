"""Shared by the solvers that clip a whole change Δη: divides a shard into parts, fits each part, keeps
its clean factor, and releases the noised sum of all changes."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import checked_visits, whitened
from fedvi.inference.local_latents import local_problem, takes_newton
from fedvi.inference.prior_frame import prior_frame
from fedvi.inference.solvers.glm import glm
from fedvi.inference.solvers.gradient import of_a_part
from fedvi.inference.units import UnitModel
from fedvi.inference.usable import told_units
from fedvi.models.base import Model
from fedvi.privacy import events
from fedvi.privacy.base import Batch, Mechanism, Sampler, filled
from fedvi.privacy.bounded import Bounded, clipped_changes, clipped_sum
from fedvi.privacy.release import Released, post_process, release
from fedvi.privacy.sampling import full
from fedvi.typing import IDS, Key
from fedvi.updates.base import Change, CleanState, LocalSolver, Shard, Task, compiled_once
from fedvi.updates.finish import finish_change
from fedvi.updates.limits import limit_of
from fedvi.updates.noise_aware import of_changes
from fedvi.updates.whitened_changes import PriorFrame, from_vector, to_vector

__all__ = [
    "Door",
    "change_of",
    "clipped",
    "committed",
    "divided",
    "door",
    "fitter",
    "keys_of_part",
    "moved_by_one",
    "nothing_yet",
    "or_nothing",
    "part_capacity",
    "proposed",
    "solver_of",
]

_STEPS = 1000


def fitter(
    family: Any, model: Model, steps: int | None, draws: int, learning_rate: float
) -> LocalSolver:
    """Returns the solver that fits a part: ``glm`` for a generalised linear model, else ``gradient``.

    Args:
      steps: those of ``gradient``, which is then used for every model. Left out, 1,000 where it is used.
      draws, learning_rate: see ``gradient``.

    Raises:
      SolverError: as those two.
    """
    if steps is None and takes_newton(model):
        return glm(family, model)
    return of_a_part(family, model, _STEPS if steps is None else steps, draws, learning_rate)


def moved_by_one(model: Model, parts: int, by_place: bool) -> tuple[int, int]:
    """Returns how many of K parts may change if one unit is (added or removed, substituted).

    By ids, a unit is in the part that its own id names, whatever the other units. Adding or
    removing it changes that part: 1. Substituting it by a unit with another id changes the part that it
    leaves and the part that the other enters: 2 (1 if K = 1; a substitution that
    keeps the id would change one part, but this is not promised).

    By places, the record in row i is in part i mod K. Substituting it in its place changes
    that part: 1. Adding or removing it moves all later records to other parts: K.

    If there are more than ``max_records``, removing one may admit the next, which changes
    two parts by ids: the price of ``substitute``, as the claims say.

    Raises:
      SolverError: unless ``parts`` is 1 or more; or for units by places, since a unit's place
        follows from the rows of the units before it.
    """
    if parts < 1:
        raise errors.SolverError(f"parts is {parts}, expected at least 1")
    if not by_place:
        return 1, min(2, parts)
    if isinstance(model, UnitModel):
        raise errors.SolverError(
            "by_place is true where a unit has several rows, expected false",
            "units are told apart by data.unit_column; leave by_place out",
        )
    return parts, 1


def part_capacity(capacity: int, parts: int) -> int:
    """Returns the largest number of records of a part that are used; public.

    Hashed ids put a record in each part with probability 1 / K. By Chernoff's bound a part of mean
    size m has more than m + 6√m + 6 records with a probability below 1e-7, unless ids repeat.
    """
    mean = capacity / parts
    return min(capacity, math.ceil(mean + 6.0 * math.sqrt(mean) + 6.0))


def divided(shard: Shard, parts: int, by_place: bool) -> list[Shard]:
    """Divides a shard into K parts of one capacity, each packed from its first slot on.

    Guarantee: the content of a part, to the last bit and slot, is a function of the records whose own
    id (or place) names it, in the order of the shard: of no other record, and of no count of others.
    A part that is too full loses its last records, which is a function of that part as well. So one
    unit changes as many parts as ``moved_by_one`` says, and all others are the same arrays.

    Repeated ids are no error: their records share a part. No model sees ids.

    Raises:
      SolverError: a shard without ids that is not divided by place.
    """
    capacity = len(shard.mask)
    if by_place:
        names = np.arange(capacity, dtype=np.uint64)
    elif IDS in shard.records:
        names = np.asarray(shard.records[IDS], np.uint64)
    else:
        raise errors.SolverError(
            "records without ids, expected one for each: parts are divided by them",
            "name data.id_column, the column that tells records apart; see `fedvi.data.with_ids`",
        )
    part_of = (names % np.uint64(parts)).astype(np.int64)
    columns = {name: np.asarray(column) for name, column in shard.records.items() if name != IDS}
    room = part_capacity(capacity, parts)

    def of(part: int) -> Shard:
        rows = np.flatnonzero(np.asarray(shard.mask, bool) & (part_of == part))[:room]
        records = {}
        for name, column in columns.items():
            packed = np.zeros((room, *column.shape[1:]), column.dtype)
            packed[: len(rows)] = column[rows]
            records[name] = packed
        return Shard(records, np.arange(room) < len(rows))

    return [of(part) for part in range(parts)]


def keys_of_part(key_of: Callable[[str], Key], part: int) -> Callable[[str], Key]:
    """Returns the keys of one part's own randomness, independent of other parts' keys and of the noise."""
    return lambda purpose: key_of(f"{purpose} of part {part}")


def change_of(
    fit: LocalSolver, family: Any, key_of: Callable[[str], Key], task: Task, shard: Shard
) -> GaussianEta:
    """Fits one part and returns Δη = η(q*) − η of the broadcast q; zero if the fit fails.

    A failure, from hostile records or an improper cavity, must not be visible: a client that does not
    answer would reveal something of a record. So a fit that is improper, not finite, or raises an
    arithmetic error counts as no change. The fit depends on these arguments alone.
    """
    try:
        with np.errstate(all="ignore"):
            # The fit's Released stays here: its value is clipped and noised before anything leaves.
            value = fit.update(key_of, fit.init(task.posterior), task, shard)[1].value
            found = GaussianEta(value["h"], value["J"])
            usable = family.is_proper(found)
    except (ArithmeticError, ValueError, errors.SolverError):  # LinAlgError is a ValueError
        usable = False
    return GaussianEta(*(tree.subtract(found, task.posterior) if usable else family.zeros()))


def clipped(frame: PriorFrame, changes: Sequence[GaussianEta], clip_norm: float) -> np.ndarray:
    """Returns each change in the prior's coordinates, clipped to norm C; float64 [K, d].

    Changes that are not finite there count as zero.
    """
    with np.errstate(all="ignore"):
        vectors = np.stack([to_vector(frame, change) for change in changes])
        vectors[~np.isfinite(vectors).all(axis=1)] = 0.0
        # Scaled by the largest entry first: the squares of 1e200 overflow.
        largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-300)
        norms = largest * np.linalg.norm(vectors / largest, axis=1, keepdims=True)
        return np.asarray(vectors * np.minimum(1.0, clip_norm / norms))


def or_nothing(vectors: np.ndarray, shard: Shard) -> np.ndarray:
    """Returns the changes, or zeros if the client's shard has no usable record.

    Without this, such a client would take back its factor, by a change of norm up to C, and clients with
    and without records would be 2C apart.
    """
    return vectors if np.asarray(shard.mask, bool).any() else np.zeros_like(vectors)


def nothing_yet(family: Any, parts: int) -> CleanState:
    """Returns the state before the first answer."""
    nothing = _stacked([family.zeros()] * parts)
    return CleanState(np.array(-1, np.int64), nothing, nothing)


def committed(state: CleanState, task: Task, parts: int) -> GaussianEta:
    """Returns the parts' clean factors at the start of a visit, [K, …]; see ``CleanState``."""
    passed = task.visit - int(state.visit)
    if state.visit < 0 or passed not in (0, 1):
        # At visit 0 this client is in no sum, whatever other clients have answered.
        whole = task.factor if task.visit > 0 else tree.map_leaves(np.zeros_like, task.factor)
        return _stacked([tree.scale(whole, 1.0 / parts)] * parts)
    if passed == 0:
        return state.factors
    return GaussianEta(*tree.add_scaled(state.factors, state.proposed, task.damping))


def proposed(
    task: Task, factors: GaussianEta, frame: PriorFrame, vectors: np.ndarray, weight: float
) -> CleanState:
    """Returns the state after an answer with clipped changes [K, d] times a weight."""
    changes = _stacked([from_vector(frame, weight * vector) for vector in vectors])
    return CleanState(np.array(task.visit, np.int64), factors, changes)


def _stacked(etas: list[Any]) -> GaussianEta:
    return GaussianEta(np.stack([eta.h for eta in etas]), np.stack([eta.J for eta in etas]))


def solver_of(
    name: str,
    family: Any,
    model: Model,
    fit: LocalSolver,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    parts: int,
    moved: tuple[int, int] | None,
    weight: float,
    noise_sd: float,
    divide: Callable[[Shard], list[Shard]],
    clean: bool,
) -> LocalSolver:
    """Returns the solver that fits each part by itself, clips the changes, and releases their noised sum.

    Args:
      name: the solver's kind.
      fit: the solver for one part.
      sampler, mechanism, clip_norm, parts, moved, weight: see ``door``. With ``moved`` None the unit is the
        client, which answers zero without a usable record.
      noise_sd: the noise sd of one number of the weighted sum, in the prior's coordinates.
      divide: shard → parts.
      clean: whether parts keep clean factors, see ``CleanState``.

    Raises:
      SolverError, PrivacyError: as ``door``; SolverError also for a family that is not Gaussian.
    """
    frame, local = prior_frame(family, model), local_problem(family, model)
    out = door(frame, family, sampler, mechanism, clip_norm, parts, moved, weight)

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        factors = committed(state, task, parts) if clean else None
        changes = []
        for part, own in enumerate(divide(shard)):
            given = task
            if factors is not None:
                given = task._replace(factor=GaussianEta(factors.h[part], factors.J[part]))
            changes.append(change_of(fit, family, keys_of_part(key_of, part), given, own))
        vectors = clipped(frame, changes, clip_norm)
        if moved is None:
            vectors = or_nothing(vectors, shard)
        released = out.leave(key_of("noise"), vectors)
        if factors is not None:
            state = proposed(task, factors, frame, vectors, weight)
        wide = local.widen(task)
        mean = whitened.single(whitened.frame(local.family, wide)).mean
        told = told_units(local, mean, shard)
        return state, released, {**told, "change_norms": np.linalg.norm(vectors, axis=1)}

    return LocalSolver(
        name=name,
        init=lambda eta: nothing_yet(family, parts) if clean else (),
        update=update,
        finish=out.finish,
        cost=out.cost,
        number_count=family.number_count,
        clip_norm=clip_norm,
        mark=mechanism.mark,
        stand=functools.partial(of_changes, noise_sd=noise_sd),
        limit=limit_of(parts, clip_norm, mechanism.noise_multiplier, family.number_count),
        adds_up=out.shapes if clean else None,
        # A part is fitted by itself and may change in any way: what is checked is the sum of the parts.
        check=checked_visits.check_of_changes(
            lambda silent: _compiled(silent, clip_norm, parts, moved),
            mechanism,
            clip_norm,
            parts,
            family.number_count,
        ),
    )


class Door(NamedTuple):
    """The release of clipped changes: adds, noises, prices and decodes them.

    Attributes:
      cost: the event of ``leave``.
      leave: (noise key, clipped changes float64 [K, d]) → Released of Σₖ Δₖ + noise in the prior's
        coordinates, as ``change`` [d], on the mechanism's grid where it has one.
      finish: run by the server; turns that sum, times the weight, into a change of the factor.
      shapes: the shapes of the released arrays.
    """

    cost: events.Event
    leave: Callable[[Key, np.ndarray], Released]
    finish: Callable[[dict[str, np.ndarray], Task], Change]
    shapes: Mapping[str, tuple[int, ...]]


def door(
    frame: PriorFrame,
    family: Any,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    parts: int,
    moved: tuple[int, int] | None,
    weight: float,
) -> Door:
    """Returns the release of K clipped changes, of which one unit affects ``moved`` (``moved_by_one``).

    With ``moved`` None each change is a unit itself, and zero if the unit is absent. The sum is then from
    ``clipped_sum``: a unit moves it by C if it is added or removed, and by 2C if it is substituted.

    Guarantee: for ``leave``, that of ``clipped_changes``, whose noise is in the prior's coordinates.
    The server applies the weight and the way back to η, which are public: post-processing.

    Raises:
      SolverError: for a clip norm that is not positive, or a sampler other than ``full``.
      PrivacyError: if the mechanism's grid is too coarse for so many numbers.
    """
    if not clip_norm > 0.0:
        raise errors.SolverError(f"clip_norm is {clip_norm}, expected a number above 0")
    probe = events.Gaussian(1.0)
    if sampler.event(probe) != probe:
        raise errors.SolverError(
            f"sampler is {type(sampler).__name__}, expected full: a part's fit reads all its records",
            'write sampler = "full", or leave it out',
        )
    leave = _compiled(mechanism, clip_norm, parts, moved)
    like = jax.ShapeDtypeStruct((parts, family.number_count), np.float32)
    every = np.ones(parts, bool)
    bounded = jax.eval_shape(_bound(mechanism, clip_norm, parts, moved), like, every)
    root = frame.root
    if root.ndim == 2 and np.array_equal(root, np.diag(np.diagonal(root))):
        root = np.diagonal(root)

    def out(key: Key, changes: np.ndarray) -> Released:
        noised = leave(key, jnp.asarray(changes, jnp.float32), every)
        return post_process(lambda total: {"change": total}, noised)

    return Door(
        sampler.event(mechanism.event(bounded.shift)),
        out,
        functools.partial(
            finish_change, mean=frame.mean.tolist(), root=root.tolist(), weight=weight
        ),
        {"change": (family.number_count,)},
    )


def _bound(
    mechanism: Mechanism,
    clip_norm: float,
    parts: int,
    moved: tuple[int, int] | None,
) -> Callable[[Any, Any], Bounded]:
    # A batch of parts, not of records: all of them, as the sampler takes all records.
    every = full(parts)

    def bound(changes: Any, mask: Any) -> Bounded:
        batch = filled(Batch(jnp.arange(parts), jnp.asarray(mask), every))
        changes = jnp.pad(changes, ((0, batch.mask.shape[0] - parts), (0, 0)))
        if moved is None:
            return clipped_sum(changes, clip_norm, batch, mechanism)
        return clipped_changes(changes, clip_norm, batch, mechanism, *moved)

    return bound


@compiled_once
def _compiled(
    mechanism: Mechanism,
    clip_norm: float,
    parts: int,
    moved: tuple[int, int] | None,
) -> Callable[[Key, Any, Any], Released]:
    bound = _bound(mechanism, clip_norm, parts, moved)
    # The mask is an argument, so that the check can leave parts out of this program.
    return jax.jit(lambda key, changes, mask: release(key, bound(changes, mask), mechanism))
