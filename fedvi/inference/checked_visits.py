"""Checks what a solver's ``update`` sums, on made-up records, before a client computes its first answer."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedvi.expfam import tree
from fedvi.inference import compiler, rows_alike
from fedvi.inference.blocks import BLOCK, is_large, length_of
from fedvi.inference.clipping import MOST_ROWS
from fedvi.inference.parallel_parts import devices, is_wide
from fedvi.privacy import events, random
from fedvi.privacy.base import Batch, Grid, Mechanism, Sampler, Shift, filled
from fedvi.privacy.release import Released
from fedvi.typing import ROWS, Eta, Key
from fedvi.updates.base import LocalSolver, Shard, Task
from fedvi.updates.conjugate import FromFile
from fedvi.updates.coordinates import Coordinates

__all__ = ["check_of", "check_of_changes", "visits"]

# How many records a model is asked for.
_VALID = 12
# What has passed in this process, by settings and layout; an audit that plants faults clears it.
_passed: set[Any] = set()


def check_of(
    make: Callable[..., Callable[[Key, Task, Shard], Released]],
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    posterior: Eta,
    coordinates: Sequence[Coordinates | None] = (None,),
    model: Any = None,
) -> Callable[[Shard], None] | None:
    """Returns ``LocalSolver.check`` for a solver that adds up one clipped vector for each row of a batch.

    It goes through the solver's own releases, made with the same settings, a mechanism that adds no noise,
    and a sampler that takes the first rows of a shard: the same programs on the same shapes. Equal settings
    and layouts of records are checked once a process.

    Args:
      make: (sampler, mechanism) → a function (key, task, shard) → the release of one sum; see `visits`.
      sampler, mechanism, clip_norm: those of the solver.
      posterior: a proper η, which the made-up task carries.
      coordinates: those of the made-up tasks, one for each kind of answer.
      model: makes up valid records itself if it can (``FromFile``).

    Returns:
      the check; it raises PrivacyError as `rows_alike.check` does. None where noise has no guarantee.
    """
    grid = mechanism.grid(clip_norm) if math.isfinite(clip_norm) else None
    if grid is None or not mechanism.noise_multiplier:
        return None
    name, unit = _name(make, sampler, mechanism), math.sqrt(grid.bound)

    def check(shard: Shard) -> None:
        compiler.check()
        layout = {
            column: jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
            for column, values in shard.records.items()
        }
        shapes = [(column, row.shape, str(row.dtype)) for column, row in layout.items()]
        kind = (name, _how(), len(shard.mask), *shapes)
        if kind in _passed:
            return
        valid = jax.ShapeDtypeStruct(shard.mask.shape, bool)
        drawn = jax.eval_shape(sampler.draw, jax.random.key(0), valid)
        rows_alike.whole_groups(drawn.mask.shape[0], sampler)
        slots, rows = _sizes(sampler, shard)
        released = make(sampler=_FirstRows(sampler.rate, rows, slots), mechanism=_Silent(mechanism))
        made_up = rows_alike.catalogue(list(layout.values()), _valid(model, layout))
        nothing = tree.map_leaves(np.zeros_like, posterior)
        key = random.insecure_root(0).key("check")
        for at in coordinates:
            task = Task("check", "check", 0, 0, posterior, nothing, 1.0, at)

            def total(choice: np.ndarray, mask: np.ndarray, task: Task = task) -> np.ndarray:
                records = {
                    column: _padded(values[choice], slots)
                    for column, values in zip(layout, made_up.columns, strict=True)
                }
                found = released(key, task, Shard(records, _padded(mask, slots)))
                leaves = jax.tree.leaves(found.value)
                return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])

            def totals(choices: np.ndarray, masks: np.ndarray, total: Any = total) -> np.ndarray:
                return np.stack([total(*pair) for pair in zip(choices, masks, strict=True)])

            rows_alike.check(totals, rows, made_up, unit, "the compiled sum of a visit")
        _passed.add(kind)

    return check


def check_of_changes(
    make: Callable[[Mechanism], Callable[[Key, Any, Any], Released]],
    mechanism: Mechanism,
    clip_norm: float,
    parts: int,
    size: int,
) -> Callable[[Shard], None] | None:
    """Returns ``LocalSolver.check`` for a solver that adds up one clipped change for each part of a shard.

    Each part's change is computed by a call of its own, so that only their sum may mix them up.

    Args:
      make: mechanism → a function (key, changes float32 [K, d], mask bool [K]) → the release of their sum.
      mechanism, clip_norm: those of the solver.
      parts: K.
      size: d.

    Returns:
      the check; it raises PrivacyError as `rows_alike.check` does. None where noise has no guarantee.
    """
    grid = mechanism.grid(clip_norm) if math.isfinite(clip_norm) else None
    if grid is None or not mechanism.noise_multiplier:
        return None
    settings = ("changes", mechanism, clip_norm, parts, size)
    name, unit = _hashed(settings), math.sqrt(grid.bound)

    def check(shard: Shard) -> None:
        compiler.check()
        kind = (name, _how())
        if kind in _passed:
            return
        released = make(_Silent(mechanism))
        made_up = rows_alike.catalogue([jax.ShapeDtypeStruct((size,), np.float32)])
        # In clip norms, so that some are clipped and some are not, however large C is.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            vectors = made_up.columns[0] * np.float32(clip_norm)
        key = random.insecure_root(0).key("check")

        def totals(choices: np.ndarray, masks: np.ndarray) -> np.ndarray:
            changes = vectors[choices]
            sides = [released(key, *pair).value for pair in zip(changes, masks, strict=True)]
            return np.stack([np.concatenate(jax.tree.leaves(side)) for side in sides])

        rows_alike.check(totals, parts, made_up, unit, "the compiled sum of a visit")
        _passed.add(kind)

    return check


def visits(make: Callable[..., LocalSolver], **settings: Any) -> Callable[..., Any]:
    """Returns ``make`` of `check_of` for a solver whose answer is the noised sum itself.

    Args:
      make: the solver's factory.
      settings: all of its arguments but the sampler and the mechanism.
    """
    return functools.partial(_visit, make, tuple(settings.items()))


def _visit(
    make: Callable[..., LocalSolver], settings: Any, *, sampler: Any, mechanism: Any
) -> Callable[[Key, Task, Shard], Released]:
    solver = make(**dict(settings), sampler=sampler, mechanism=mechanism)

    def of(key: Key, task: Task, shard: Shard) -> Released:
        _, released, _ = solver.update(
            lambda purpose: key, solver.init(task.posterior), task, shard
        )
        return released

    return of


@dataclasses.dataclass(frozen=True)
class _Silent:
    """Stands in for a mechanism, and adds no noise."""

    inner: Mechanism
    mark: ClassVar[str] = ""

    @property
    def noise_multiplier(self) -> float:
        return self.inner.noise_multiplier

    def grid(self, clip_norm: float) -> Grid | None:
        return self.inner.grid(clip_norm)

    def event(self, shift: Shift) -> events.Event:
        return self.inner.event(shift)

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        return total


@dataclasses.dataclass(frozen=True)
class _FirstRows:
    """Stands in for a sampler: every batch has the first slots, as many as one of its batches."""

    rate: float
    capacity: int
    max_records: int

    def draw(self, key: Key, valid: Any) -> Batch:
        first = jnp.arange(self.capacity, dtype=jnp.int32)
        return filled(Batch(first, jnp.asarray(valid, bool)[: self.capacity], self))

    def event(self, inner: events.Event) -> events.Event:
        return inner


def _how() -> Any:
    """Returns what else decides which programs are compiled."""
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return is_wide(), tuple(map(str, devices())), str(precision)


def _name(make: Any, *settings: Any) -> Any:
    """Returns what identifies a solver's settings; a new object where they cannot be hashed."""
    try:
        return _hashed((make.func, make.args, *sorted(make.keywords.items()), *settings))
    except AttributeError:
        return object()


def _hashed(settings: Any) -> Any:
    """Returns the settings; a new object where they cannot be hashed, as a mechanism from outside."""
    try:
        hash(settings)
    except TypeError:
        return object()
    return settings


def _sizes(sampler: Sampler, shard: Shard) -> tuple[int, int]:
    """Returns how many slots a made-up shard has, and how many rows of it are in a batch."""
    slots = len(shard.mask)
    if not is_large(shard.mask):
        return slots, min(sampler.capacity, slots)
    # Of a shard that is added up in blocks, a few blocks of the same length.
    together = shard.records[ROWS].shape[1] if ROWS in shard.records else 1
    length = length_of(slots, max(BLOCK // together, 64))
    few = length * (MOST_ROWS // length + 1)
    return few, min(sampler.capacity, few)


def _valid(model: Any, layout: Mapping[str, jax.ShapeDtypeStruct]) -> list[list[np.ndarray]]:
    """Returns records that the model makes up, cut or padded to the widths of the shard."""
    if not isinstance(model, FromFile):
        return []
    made = model.made_up(_VALID, np.random.default_rng(0))
    if not set(layout) <= set(made):
        return []
    return [
        [_fitted(made[name][row], shape.shape) for name, shape in layout.items()]
        for row in range(_VALID)
    ]


def _fitted(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if values.ndim != len(shape) or not shape:
        return np.broadcast_to(values, shape)
    cut = values[tuple(slice(size) for size in shape)]
    return np.pad(cut, [(0, size - have) for size, have in zip(shape, cut.shape, strict=True)])


def _padded(column: np.ndarray, slots: int) -> np.ndarray:
    room = slots - len(column)
    return np.pad(column, [(0, room)] + [(0, 0)] * (column.ndim - 1))
