"""Makes shards that differ in one record, and records meant to do harm."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedvi.updates.base import Shard

__all__ = ["few", "filled", "first", "groups", "hostile", "spread", "stained", "tried", "without"]

_MOST = 32
"""Shards with one record taken away, and groups of slots, at most."""


def spread(shard: Shard) -> Shard:
    """Moves the records to slots all over the shard, so that no part of it is left untried."""
    valid = np.flatnonzero(shard.mask)
    capacity = len(shard.mask)
    places = np.linspace(0, capacity - 1, len(valid)).round().astype(int)
    mask = np.zeros(capacity, bool)
    mask[places] = True
    records = {}
    for name, column in shard.records.items():
        moved = np.zeros_like(np.asarray(column))
        moved[places] = np.asarray(column)[valid]
        records[name] = moved
    return Shard(records, mask)


def without(shard: Shard) -> list[Shard]:
    """The shard without one of its records, each of up to 32 in turn, evenly spread."""
    valid = np.flatnonzero(shard.mask)
    return [_masked(shard, valid[valid != slot]) for slot in tried(shard)]


def tried(shard: Shard) -> np.ndarray:
    """The slots of the records that ``without`` takes away."""
    valid = np.flatnonzero(shard.mask)
    places = np.linspace(0, len(valid) - 1, min(len(valid), _MOST)).round().astype(int)
    return np.asarray(valid[places])


def few(shard: Shard, changed: int) -> list[Shard]:
    """An empty shard, and one of the record in slot ``changed`` alone."""
    return [_masked(shard, []), _masked(shard, [changed])]


def stained(shard: Shard, changed: int) -> Shard:
    """The same records, and a copy of that of slot ``changed`` in every slot that holds none."""
    copied = filled(shard, changed, np.arange(len(shard.mask))).records
    records = {
        name: np.where(shard.mask.reshape(-1, *[1] * (np.ndim(column) - 1)), column, copied[name])
        for name, column in shard.records.items()
    }
    return Shard(records, shard.mask)


def first(shard: Shard, slots: int) -> Shard:
    """The first records of a shard, in one of so few slots."""
    chosen = np.flatnonzero(shard.mask)[:slots]
    room = slots - len(chosen)
    records = {
        name: np.concatenate(
            [np.asarray(column)[chosen], np.zeros((room, *column.shape[1:]), column.dtype)]
        )
        for name, column in shard.records.items()
    }
    return Shard(records, np.arange(slots) < len(chosen))


def groups(slots: int, rate: float) -> list[np.ndarray]:
    """Up to 32 disjoint groups of slots, all slots together where the rate allows it.

    A group is so small that it is expected at most once in a batch: else it would always show, and
    a slot that is drawn too often would not be told from the others.
    """
    size = max(1, min(math.ceil(slots / _MOST), math.floor(1.0 / rate)))
    order = np.random.default_rng(0).permutation(slots)
    return [np.sort(order[i : i + size]) for i in range(0, slots, size)][:_MOST]


def filled(shard: Shard, changed: int, slots: Sequence[int] | np.ndarray) -> Shard:
    """A shard with a copy of the record of slot ``changed`` in each of ``slots``, and nothing else."""
    records = {}
    for name, column in shard.records.items():
        copied = np.zeros_like(np.asarray(column))
        copied[slots] = np.asarray(column)[changed]
        records[name] = copied
    mask = np.zeros(len(shard.mask), bool)
    mask[slots] = True
    return Shard(records, mask)


def hostile(shard: Shard, changed: int) -> Iterator[tuple[str, Shard]]:
    """Shards in which the record of slot ``changed`` became another, as bad as its dtype allows."""
    other = next(slot for slot in np.flatnonzero(shard.mask) if slot != changed)

    def edited(fn: Callable[[np.ndarray], Any]) -> Shard:
        records = {}
        for name, column in shard.records.items():
            column = np.array(column)
            column[changed] = fn(column[changed])
            records[name] = column
        return Shard(records, shard.mask)

    def all_of(value: float) -> Callable[[np.ndarray], Any]:
        # Indices and flags stay in the range that the schema allows.
        return lambda old: np.full_like(old, value) if old.dtype.kind == "f" else old

    yield "1e30", edited(all_of(1e30))
    yield "-1e30", edited(all_of(-1e30))
    yield "NaN", edited(all_of(math.nan))
    yield "infinity", edited(all_of(math.inf))
    yield "zeros", edited(np.zeros_like)
    yield "opposite sign", edited(lambda old: -old if old.dtype.kind == "f" else old)
    yield "1e4 times", edited(lambda old: 1e4 * old if old.dtype.kind == "f" else old)
    yield "a copy", _copied(shard, int(other), changed)


def _copied(shard: Shard, source: int, target: int) -> Shard:
    records = {}
    for name, column in shard.records.items():
        column = np.array(column)
        column[target] = column[source]
        records[name] = column
    return Shard(records, shard.mask)


def _masked(shard: Shard, kept: Any) -> Shard:
    """Only the records in ``kept``; the rows of the others are zero, as a shard's padding is."""
    mask = np.zeros_like(np.asarray(shard.mask, bool))
    mask[np.asarray(kept, int)] = True
    records = {}
    for name, column in shard.records.items():
        column = np.array(column)
        column[~mask] = 0
        records[name] = column
    return Shard(records, mask)
