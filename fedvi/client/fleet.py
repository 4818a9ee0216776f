"""Computes the visits of many clients that are in one process, together where their solver can.

    Worker.begin ─► Visit ─┐
    Worker.begin ─► Visit ─┼─► Fleet.computed ─► Outcome ─► Worker.end, one by one
    Worker.begin ─► Visit ─┘

Charges, secrets, noise and seals are each worker's own; what is computed is bit for bit the same.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.client.worker import Outcome, Visit
from fedvi.inference.blocks import single_precision
from fedvi.inference.many_visits import apart
from fedvi.privacy import random
from fedvi.privacy.release import Released
from fedvi.updates.base import LocalSolver, Shard, Task

__all__ = ["Fleet"]

# How many bytes of records are computed in one call.
_BLOCK_BYTES = 64 << 20
# Fewer visits than this are one block.
_FEW = 16


class _Block(NamedTuple):
    """Which visits are computed in one call, and to how many they are filled up."""

    places: list[int]
    length: int


class Fleet:
    """Computes visits; remembers records in the form that solvers take, for the rounds to come."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, ...], tuple[tuple[Shard, ...], Shard]] = {}

    def computed(self, visits: Sequence[Visit]) -> list[Outcome | Exception]:
        """Returns the outcome of each visit, or what went wrong with it, in order."""
        alike: dict[Any, list[int]] = collections.defaultdict(list)
        for place, visit in enumerate(visits):
            alike[(id(visit.solver), *_form(visit.shard))].append(place)
        cut = [
            block for places in alike.values() for block in _blocks(visits[places[0]].shard, places)
        ]
        inside = [[visits[place] for place in block.places] for block in cut]
        begun = [self._begun(*each) for each in zip(inside, cut, strict=True)]
        outcomes: list[Any] = [None] * len(visits)
        for block, mine, found in zip(cut, inside, begun, strict=True):
            for place, outcome in zip(block.places, _ended(mine, found), strict=True):
                outcomes[place] = outcome
        return outcomes

    def together(
        self, solver: LocalSolver, secrets: Sequence[bytes], task: Task, shards: Sequence[Shard]
    ) -> list[tuple[int, Released]] | None:
        """Computes visits of clients whose solver, task, layout of records and empty state are one.

        Returns:
          Of successive clients how many they are, and what they released, filled up; None where these
          visits are computed one by one, or one of them cannot be computed.
        """
        begun = []
        for block in _blocks(shards[0], list(range(len(shards)))):
            places = block.places
            visits = [Visit(solver, "", secrets[at], (), task, shards[at]) for at in places]
            found = self._begun(visits, block)
            if found is None:
                return None
            begun.append((len(places), found[1]))
        return begun

    def _begun(self, visits: list[Visit], block: "_Block") -> Any:
        """Starts to compute visits that are alike, filled up to a block; None if they are not to be.

        JAX computes while the next blocks are begun.
        """
        solver = visits[0].solver
        if solver.update_many is None or block.length == 1:
            return None
        # Filled up by a repetition, whose outcome is the same and is dropped: one compilation for all.
        filled = [*visits, *[visits[0]] * (block.length - len(visits))]
        try:
            return solver.update_many(
                lambda purpose: random.keys([visit.secret for visit in filled], purpose),
                [visit.before for visit in filled],
                [visit.task for visit in filled],
                self._stack(tuple(visit.shard for visit in filled)),
            )
        except Exception:  # of one of them: whose, is found out one by one, with the same numbers
            return None

    def _stack(self, shards: tuple[Shard, ...]) -> Shard:
        """Returns records side by side, in single precision; made once for the same shards."""
        name = tuple(map(id, shards))
        if name not in self._stacks:
            if len(set(map(_form, shards))) > 1:
                raise ValueError("records of several layouts cannot lie side by side")
            records = {
                column: np.stack([np.asarray(shard.records[column]) for shard in shards])
                for column in shards[0].records
            }
            mask = np.stack([shard.mask for shard in shards])
            # The shards are kept, so that no other has their names.
            self._stacks[name] = shards, Shard(single_precision(records), mask)
        return self._stacks[name][1]


def _alone(visit: Visit) -> Outcome | Exception:
    try:
        return visit.computed()
    except Exception as error:  # told of by the worker
        return error


def _form(shard: Shard) -> tuple[Any, ...]:
    """Returns the shapes and types of a shard's columns: what is compiled for."""
    columns = shard.records.items()
    found = ((name, column.shape, str(column.dtype)) for name, column in columns)
    return (len(shard.mask), *sorted(found))


def _blocks(shard: Shard, places: list[int]) -> list["_Block"]:
    """Cuts visits that are alike into blocks of one length: a power of two, or 1 of a large shard.

    Few enough fill the last one up in vain, and several are computed at a time.
    """
    size = sum(int(np.prod(c.shape)) * c.dtype.itemsize for c in shard.records.values())
    most = max(1, _BLOCK_BYTES // max(1, size))
    length = min(max(_FEW, _power(len(places)) // 8), 1 << (most.bit_length() - 1))
    length = min(length, _power(len(places)))
    starts = range(0, len(places), length)
    return [_Block(places[start : start + length], length) for start in starts]


def _ended(visits: list[Visit], found: Any) -> list[Outcome | Exception]:
    """Takes apart what was begun together; if that failed, each is computed by itself."""
    if found is None:
        return [_alone(visit) for visit in visits]
    states, released, told = found
    try:
        parts = apart(released)[: len(visits)]
    except Exception:  # JAX tells what went wrong when the numbers are asked for
        return [_alone(visit) for visit in visits]
    return [
        (states[place], one, {name: value[place] for name, value in told.items()})
        for place, one in enumerate(parts)
    ]


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()
