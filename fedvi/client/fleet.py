"""Computes the visits of many clients in one process, in batches if their solver supports that.

    Worker.begin ─► Visit ─┐
    Worker.begin ─► Visit ─┼─► Fleet.computed ─► Outcome ─► Worker.end, one by one
    Worker.begin ─► Visit ─┘

Each worker keeps its own charges, secrets, noise and seals; results are the same bit for bit.
"""

import collections
import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvi.client.worker import Outcome, Visit
from fedvi.inference.blocks import single_precision
from fedvi.inference.many_visits import apart
from fedvi.inference.parallel_parts import on_devices, thread_count
from fedvi.privacy import random
from fedvi.privacy.release import Released
from fedvi.updates.base import Shard

__all__ = ["Fleet"]

# How many bytes of records are computed in one call.
_BLOCK_BYTES = 16 << 20
# How many bytes of stacked records are kept for later rounds; further blocks are stacked in each round.
_KEPT_BYTES = 32 << 20
# Fewer visits than this are one block.
_FEW = 16


class _Block(NamedTuple):
    """The visits of one call, and the length to which the batch is padded."""

    places: list[int]
    length: int


class Fleet:
    """Computes visits; caches stacked records for later rounds, as far as they are few."""

    def __init__(self) -> None:
        self._kept_bytes = 0
        self._stacks: dict[tuple[int, ...], tuple[tuple[Shard, ...], Shard | None]] = {}

    def computed(self, visits: Sequence[Visit]) -> list[Outcome | Exception]:
        """Returns the outcome of each visit, or the exception that it raised, in order."""
        alike: dict[Any, list[int]] = collections.defaultdict(list)
        for place, visit in enumerate(visits):
            alike[(id(visit.solver), *_form(visit.shard))].append(place)
        cut = [
            block for places in alike.values() for block in _blocks(visits[places[0]].shard, places)
        ]
        inside = [[visits[place] for place in block.places] for block in cut]
        outcomes: list[Any] = [None] * len(visits)
        with contextlib.closing(self._found(zip(inside, cut, strict=True), len(cut))) as found:
            for block, mine, each in zip(cut, inside, found, strict=True):
                for place, outcome in zip(block.places, _ended(mine, each), strict=True):
                    outcomes[place] = outcome
        return outcomes

    def together(
        self, shard: Shard, count: int, visits_at: Callable[[Sequence[int]], list[Visit]]
    ) -> Generator[tuple[int, Released] | None, None, None]:
        """Computes visits of clients that share solver, task and layout of records, and have empty state.

        Args:
          shard: of any of them.
          count: how many there are.
          visits_at: returns the visits of some places; called for successive places, as late as possible.

        Yields:
          For each block of successive clients, their number and their padded release, while later blocks
          are computed; None, and nothing more, if these visits must be computed one by one.
        """
        cut = _blocks(shard, list(range(count)))
        inside = ((visits_at(block.places), block) for block in cut)
        with contextlib.closing(self._found(inside, len(cut))) as results:
            for block, found in zip(cut, results, strict=True):
                if found is None:
                    yield None
                    return
                yield len(block.places), found[1]

    def forget(self) -> None:
        """Frees the stacked records."""
        self._stacks, self._kept_bytes = {}, 0

    def _found(
        self, blocks: Iterable[tuple[list[Visit], _Block]], count: int
    ) -> Generator[Any, None, None]:
        """Yields the result of each block, in order; None where its visits must be computed one by one."""
        threads = min(thread_count(most=None), count)
        return on_devices(lambda each: _computed(self._call(*each)), blocks, threads)

    def _call(self, visits: list[Visit], block: _Block) -> Callable[[], Any] | None:
        """Prepares the call for one padded block of visits of the same form; None if there is none."""
        solver = visits[0].solver
        if solver.update_many is None or block.length == 1:
            return None
        # Pad with copies of the first visit, whose results are dropped: blocks share one compilation.
        filled = [*visits, *[visits[0]] * (block.length - len(visits))]
        try:
            return solver.update_many(
                lambda purpose: random.keys([visit.secret for visit in filled], purpose),
                [visit.before for visit in filled],
                [visit.task for visit in filled],
                self._stack(tuple(visit.shard for visit in filled)),
            )
        except Exception:  # recomputing one by one, with the same numbers, finds the failed visit
            return None

    def _stack(self, shards: tuple[Shard, ...]) -> Shard:
        """Stacks the shards' records in single precision; cached by shard, up to ``_KEPT_BYTES``."""
        name = tuple(map(id, shards))
        if name not in self._stacks:
            if len(set(map(_form, shards))) > 1:
                raise ValueError("records of several layouts cannot lie side by side")
            # Keep the shards alive, so that no other object gets their ids.
            self._stacks[name] = shards, None
        elif (kept := self._stacks[name][1]) is not None:
            return kept
        records = {
            column: _side_by_side([shard.records[column] for shard in shards])
            for column in shards[0].records
        }
        stacked = Shard(single_precision(records), _side_by_side([shard.mask for shard in shards]))
        size = sum(column.nbytes for column in (*stacked.records.values(), stacked.mask))
        if self._kept_bytes + size <= _KEPT_BYTES:
            self._kept_bytes += size
            self._stacks[name] = shards, stacked
        return stacked


def _computed(call: Callable[[], Any] | None) -> Callable[[], Any]:
    """Returns a call that returns None if ``call`` is None or fails."""

    def found() -> Any:
        try:
            return None if call is None else jax.block_until_ready(call())
        except Exception:  # found again, and reported, when the visits are computed one by one
            return None

    return found


def _alone(visit: Visit) -> Outcome | Exception:
    try:
        return visit.computed()
    except Exception as error:  # reported by the worker
        return error


def _side_by_side(columns: list[Any]) -> np.ndarray:
    """Stacks columns of one shape, in a third of the time of ``np.stack``."""
    return np.concatenate(columns).reshape(len(columns), *columns[0].shape)


def _form(shard: Shard) -> tuple[Any, ...]:
    """Returns the shapes and dtypes of a shard's columns, which determine the compilation."""
    columns = shard.records.items()
    found = ((name, column.shape, column.dtype.str) for name, column in columns)
    return (len(shard.mask), *sorted(found))


def _blocks(shard: Shard, places: list[int]) -> list["_Block"]:
    """Cuts visits of the same form into blocks of one length: a power of two, and 1 for a large shard.

    The length keeps the padding of the last block small and leaves several blocks to run concurrently.
    """
    size = sum(int(np.prod(c.shape)) * c.dtype.itemsize for c in shard.records.values())
    most = max(1, _BLOCK_BYTES // max(1, size))
    length = min(max(_FEW, _power(len(places)) // 8), 1 << (most.bit_length() - 1))
    length = min(length, _power(len(places)))
    starts = range(0, len(places), length)
    return [_Block(places[start : start + length], length) for start in starts]


def _ended(visits: list[Visit], found: Any) -> list[Outcome | Exception]:
    """Splits the result of a block into outcomes; if the block failed, computes each visit by itself."""
    if found is None:
        return [_alone(visit) for visit in visits]
    states, released, told = found
    return [
        (states[place], one, {name: value[place] for name, value in told.items()})
        for place, one in enumerate(apart(released)[: len(visits)])
    ]


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()
