"""Makes neighbouring shards, which differ in one record, and hostile records."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedvi.updates.base import Shard

__all__ = ["few", "filled", "first", "groups", "hostile", "spread", "stained", "tried", "without"]

_MOST = 32
"""The most shards with one record removed, and the most groups of slots."""


def spread(shard: Shard) -> Shard:
    """Spreads the records over all slots of the shard, so that every part of it is tested."""
    valid = np.flatnonzero(shard.mask)
    places = np.linspace(0, len(shard.mask) - 1, len(valid)).round().astype(int)
    return _placed(shard, places, valid)


def without(shard: Shard) -> list[Shard]:
    """Returns up to 32 shards, each without one record; the removed records are evenly spread."""
    valid = np.flatnonzero(shard.mask)
    left = [valid[valid != slot] for slot in tried(shard)]
    return [_placed(shard, kept, kept) for kept in left]


def tried(shard: Shard) -> np.ndarray:
    """Returns the slots of the records that ``without`` removes."""
    valid = np.flatnonzero(shard.mask)
    places = np.linspace(0, len(valid) - 1, min(len(valid), _MOST)).round().astype(int)
    return np.asarray(valid[places])


def few(shard: Shard, changed: int) -> list[Shard]:
    """Returns an empty shard, and a shard with only the record of slot ``changed``."""
    none, one = np.array([], int), np.array([changed])
    return [_placed(shard, none, none), _placed(shard, one, one)]


def stained(shard: Shard, changed: int) -> Shard:
    """Returns the shard with a copy of the record of slot ``changed`` in every empty slot."""
    copied = filled(shard, changed, np.arange(len(shard.mask))).records
    records = {
        name: np.where(shard.mask.reshape(-1, *[1] * (np.ndim(column) - 1)), column, copied[name])
        for name, column in shard.records.items()
    }
    return Shard(records, shard.mask)


def first(shard: Shard, slots: int) -> Shard:
    """Returns a shard of ``slots`` slots with the first records."""
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
    """Returns up to 32 disjoint groups of slots, which cover all slots if the rate allows it.

    A group is so small that a batch is expected to hold at most one of its slots. A larger group would be
    in almost every batch, and hide a slot that is drawn too often.
    """
    size = max(1, min(math.ceil(slots / _MOST), math.floor(1.0 / rate)))
    order = np.random.default_rng(0).permutation(slots)
    return [np.sort(order[i : i + size]) for i in range(0, slots, size)][:_MOST]


def filled(shard: Shard, changed: int, slots: Sequence[int] | np.ndarray) -> Shard:
    """Returns a shard with copies of the record of slot ``changed`` in ``slots`` and no other record."""
    return _placed(shard, slots, changed)


def hostile(shard: Shard, changed: int) -> Iterator[tuple[str, Shard]]:
    """Yields named shards in which a hostile record replaces that of slot ``changed``."""
    other = next(int(slot) for slot in np.flatnonzero(shard.mask) if slot != changed)

    def edited(fn: Callable[[np.ndarray], Any], slot: int = changed) -> Shard:
        records = {}
        for name, column in shard.records.items():
            column = np.array(column)
            column[changed] = fn(column[slot])
            records[name] = column
        return Shard(records, shard.mask)

    def all_of(value: float) -> Callable[[np.ndarray], Any]:
        # Indices and flags must stay in the schema's range.
        return lambda old: np.full_like(old, value) if old.dtype.kind == "f" else old

    yield "1e30", edited(all_of(1e30))
    yield "-1e30", edited(all_of(-1e30))
    yield "NaN", edited(all_of(math.nan))
    yield "infinity", edited(all_of(math.inf))
    yield "zeros", edited(np.zeros_like)
    yield "opposite sign", edited(lambda old: -old if old.dtype.kind == "f" else old)
    yield "1e4 times", edited(lambda old: 1e4 * old if old.dtype.kind == "f" else old)
    yield "a copy", edited(np.copy, other)


def _placed(shard: Shard, places: Sequence[int] | np.ndarray, sources: int | np.ndarray) -> Shard:
    """Puts the records of slots ``sources`` into ``places``; other rows are zero, like padding."""
    mask = np.zeros(len(shard.mask), bool)
    mask[places] = True
    records = {}
    for name, column in shard.records.items():
        column = np.asarray(column)
        moved = np.zeros_like(column)
        moved[places] = column[sources]
        records[name] = moved
    return Shard(records, mask)
