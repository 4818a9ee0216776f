"""What a file's owner is told: numbers outside their bounds, an outcome that says nothing, absent levels.

Each sentence follows from the records, so it is for the owner's own screen: nothing else may depend on
it, and nothing of it is sent. None holds a cell or a number of the file, as a screen may become a log.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvi.data.response import Response
from fedvi.data.schema import Level, Number, Schema
from fedvi.data.source import ArraySource

__all__ = ["MOST_UNTOLD", "Remarks"]

MOST_UNTOLD = 0.01
"""From this share of a file's records on, their owner is told what becomes of them."""

# Scaled numbers that span less are in another unit, or the bounds are far too wide: even with an sd of a
# hundredth of the scale, some records are further apart.
_NARROW = 0.02
# Fewer records than this may well be alike.
_FEW = 10
# A known noise of more than this many sds of the outcome makes intervals at least as many times too wide.
_LOUD = 2.0


class Remarks:
    """Looks at prepared records, chunk by chunk, and says what their owner should look at.

    Args:
      schema: of the study.
      names: the columns of the schema that are read.
      response: what is left of ``~``; None for a model without a formula.
      noise: the sd of each part of the outcome around its mean that is taken for known, scaled as the
        outcome is; none if none is.
    """

    def __init__(
        self,
        schema: Schema,
        names: Collection[str],
        response: Response | None,
        noise: Sequence[float] = (),
    ) -> None:
        self._schema, self._response, self._noise = schema, response, noise
        self._count = self._counting = 0
        self._below: dict[str, int] = {
            name: 0 for name in names if isinstance(schema.get(name), Number)
        }
        self._above = dict(self._below)
        self._low = dict.fromkeys(self._below, math.inf)
        self._high = dict.fromkeys(self._below, -math.inf)
        self._levels = {
            name: set(range(len(column.levels)))
            for name in names
            if isinstance(column := schema.get(name), Level)
        }
        # The least and largest of each part of the outcome, and the sums of it and of its square.
        self._ends: NDArray[np.float64] | None = None
        self._sums: Any = 0.0

    def add(self, chunk: ArraySource, clipped: dict[str, tuple[int, int]]) -> None:
        """Looks at some more records.

        Args:
          chunk: from ``prepare_chunk``, before a design lays it out.
          clipped: column → how many of its cells were below and above its bounds, and were clipped.
        """
        self._count += chunk.size
        self._counting += int(chunk.valid.sum())
        for name, (below, above) in clipped.items():
            self._below[name] += below
            self._above[name] += above
        if not chunk.valid.any():
            return
        for name in self._low:
            values = chunk.records[name][chunk.valid]
            self._low[name] = min(self._low[name], float(values.min()))
            self._high[name] = max(self._high[name], float(values.max()))
        for name, levels in self._levels.items():
            levels -= set(np.unique(chunk.records[name][chunk.valid]).tolist())
        if self._response is not None:
            y = self._response.outcome(chunk.records)[chunk.valid].reshape(
                int(chunk.valid.sum()), -1
            )
            self._sums = self._sums + np.stack([y.sum(axis=0), (y**2).sum(axis=0)])
            ends = np.stack([y.min(axis=0), y.max(axis=0)])
            known = ends if self._ends is None else self._ends
            self._ends = np.stack([np.minimum(known[0], ends[0]), np.maximum(known[1], ends[1])])

    def lines(self) -> Iterator[str]:
        """Yields the sentences, none if there is nothing to look at."""
        timed = () if self._response is None else self._response.timed
        for name in self._below:
            yield from self._of_bounds(name, name in timed)
        if self._counting >= _FEW:
            yield from self._of_outcome()
        if self._counting:
            for name, levels in self._levels.items():
                column = self._schema[name]
                if levels and isinstance(column, Level):
                    which = ", ".join(repr(column.levels[index]) for index in sorted(levels))
                    yield (
                        f"no record that counts has {which} in `{column.column}`: is it spelt otherwise?"
                    )

    def _of_bounds(self, name: str, timed: bool) -> Iterator[str]:
        column = self._schema[name]
        assert isinstance(column, Number)
        low, high = column.bounds
        called, bounds = f"`{column.column}`", f"[{low:.12g}, {high:.12g}]"
        # Times after the end of follow-up are censored there, as a study may mean it; but hardly of most.
        above = 0 if timed and 2 * self._above[name] < self._count else self._above[name]
        outside = self._below[name] + above
        if outside and outside >= MOST_UNTOLD * self._count:
            share = "at least one number in a hundred"
            if 2 * outside > self._count:
                share = "each number" if outside == self._count else "more than half of the numbers"
            taken = " and censored there" if timed and above else ""
            yield (
                f"{share} in {called} is outside the bounds {bounds} and is taken as the bound{taken}: "
                "is the file in another unit than the study, or are numbers missing that it marks so?"
            )
        elif self._counting >= _FEW and 0.0 < self._high[name] - self._low[name] < _NARROW:
            yield (
                f"all numbers in {called} that count lie within a fiftieth of `data.schema.{name}.scale`, "
                "which is half the width of the bounds if it is left out: is the file in another unit than "
                "the study, or are the bounds far too wide?"
            )

    def _of_outcome(self) -> Iterator[str]:
        response = self._response
        if response is None or self._ends is None:
            return
        for index, name in enumerate(response.columns):
            column, (low, high) = self._schema[name].column, self._ends[:, index]
            if response.timed and index:
                if high == 0.0:
                    yield (
                        f"no record that counts has the event `{column}` by the end of follow-up: of "
                        "hazards the file says no more than that they are low"
                    )
            elif low == high:
                yield (
                    f"all records that count have the same `{column}`, which is the outcome: of what "
                    "changes it the file says nothing"
                )
            elif index < len(self._noise):
                mean, square = self._sums[:, index] / self._counting
                if self._noise[index] > _LOUD * math.sqrt(max(square - mean**2, 0.0)):
                    yield (
                        "half of model.noise_scale, which is taken for known, is more than the sd of "
                        f"`{column}` in all records that count: intervals are far too wide. State what "
                        "earlier studies found"
                    )
