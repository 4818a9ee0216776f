"""Holds the records of one client as arrays, to use whole or in chunks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvi.errors import DataError
from fedvi.typing import IDS, ROWS

__all__ = ["ArraySource", "concatenate"]

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, eq=False, repr=False)
class ArraySource:
    """Records held in memory, and which of them are valid.

    A record that is not valid counts as zero: its rows are overwritten with zeros here, so that nothing of
    it can leak, and solvers exclude it by the mask. The arrays are copies that nobody can make writable
    again. In a private study neither the number of rows nor that of valid ones is public.

    Args:
      records: by name, arrays whose leading axis is the record. A record may be a unit of several
        rows, see ``by_unit``.
      valid: one bool for each record.

    >>> source = ArraySource({"y": np.array([1.0, 5.0])}, np.array([True, False]))
    >>> arrays, mask = source.padded(3)
    >>> arrays["y"], mask
    (array([1., 0., 0.]), array([ True, False, False]))
    """

    records: Mapping[str, NDArray[np.generic]]
    valid: NDArray[np.bool_]

    def __post_init__(self) -> None:
        valid = np.array(self.valid, dtype=bool)
        if valid.ndim != 1:
            raise DataError(
                f"valid: an array of {valid.ndim} axes, expected 1", "give one bool for each record"
            )
        records = {}
        for name, values in self.records.items():
            array = np.asarray(values)
            if array.shape[:1] != valid.shape:
                # The lengths stay out of the message, since they may be private.
                raise DataError(
                    f"records[{name!r}]: the leading axis is not as long as `valid`",
                    "every array needs one row for each record",
                )
            if array.dtype.hasobject:
                raise DataError(f"records[{name!r}]: Python objects, expected numbers")
            if not valid.all():
                array = array.copy()
                array[~valid] = 0
            records[name] = _unwritable(array)
        object.__setattr__(self, "records", MappingProxyType(records))
        object.__setattr__(self, "valid", _unwritable(valid))

    def __repr__(self) -> str:
        # Only names, since reprs end up in logs: no values and no counts.
        return f"ArraySource({', '.join(self.records)})"

    @property
    def size(self) -> int:
        """Number of records, valid or not."""
        return len(self.valid)

    def take(self, indices: ArrayLike) -> dict[str, NDArray[np.generic]]:
        """Returns the records at ``indices``; ``valid[indices]`` says which of them count."""
        chosen = np.asarray(indices, dtype=np.intp)
        return {name: array[chosen] for name, array in self.records.items()}

    def chunks(self, rows: int) -> Iterator["ArraySource"]:
        """Yields the records in order, at most ``rows`` at a time."""
        if rows < 1:
            raise DataError(f"rows: {rows}, expected 1 or more", "ask for at least one record")
        for start in range(0, self.size, rows):
            part = slice(start, start + rows)
            yield ArraySource(
                {name: array[part] for name, array in self.records.items()}, self.valid[part]
            )

    def first(self, count: int) -> "ArraySource":
        """Returns the first ``count`` records; all of them if there are fewer."""
        if self.size <= count:
            return self
        return ArraySource(
            {name: array[:count] for name, array in self.records.items()}, self.valid[:count]
        )

    def flat(self) -> "ArraySource":
        """Returns one record per row, unit by unit, for a source from ``by_unit``; without ids.

        For a fit without privacy, which needs neither units nor ids.
        """
        named = {name: array for name, array in self.records.items() if name != IDS}
        if ROWS not in self.records:
            return self if len(named) == len(self.records) else ArraySource(named, self.valid)
        units, rows = self.records[ROWS].shape
        records = {
            name: array.reshape(units * rows, *array.shape[2:])
            for name, array in named.items()
            if name != ROWS
        }
        return ArraySource(records, self.records[ROWS].reshape(-1).astype(bool))

    def padded(
        self, capacity: int, *, where: str = ""
    ) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.bool_]]:
        """Returns the records followed by zeros up to ``capacity`` rows, and the mask.

        All clients of a study pad to one public capacity, so that they share one compilation.

        Args:
          capacity: the declared largest number of records of any client.
          where: whose records these are, for the error.

        Returns:
          Arrays with ``capacity`` rows, and a bool for each row: true for a valid record. They are
          read-only: the source's own if it has so many rows, else new ones.

        Raises:
          DataError: there are more records than ``capacity``; the message does not give their number.
        """
        if self.size > capacity:
            raise DataError(
                f"{where}{': ' if where else ''}more records than the study declares with "
                f"`data.max_records` = {capacity}",
                "declare a larger public bound, in the study file of everybody, and start again",
            )
        arrays = {name: _pad(array, capacity) for name, array in self.records.items()}
        return arrays, _pad(self.valid, capacity)


def concatenate(sources: Sequence[ArraySource]) -> ArraySource:
    """Joins several sources into one, for the pooled fit of a simulation.

    >>> a = ArraySource({"y": np.array([1.0])}, np.array([True]))
    >>> b = ArraySource({"y": np.array([2.0])}, np.array([False]))
    >>> concatenate([a, b]).records["y"]
    array([1., 0.])
    """
    if not sources:
        raise DataError("no sources to join", "give one source or more")
    first = sources[0]
    for source in sources[1:]:
        if _layout(source) != _layout(first):
            raise DataError(
                f"{source!r} does not fit {first!r}",
                "joined sources need the same names, shapes of one record, and types",
            )
    return ArraySource(
        {
            name: np.concatenate([source.records[name] for source in sources])
            for name in first.records
        },
        np.concatenate([source.valid for source in sources]),
    )


def _layout(source: ArraySource) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape[1:], array.dtype.str) for name, array in source.records.items()}


def _unwritable(array: NDArray[_T]) -> NDArray[_T]:
    """Returns a copy over ``bytes``: an array that owns its memory can be made writable again."""
    found = np.frombuffer(array.tobytes(), array.dtype)
    return found if array.ndim == 1 else found.reshape(array.shape)


def _pad(array: NDArray[_T], capacity: int) -> NDArray[_T]:
    if len(array) == capacity:
        return array
    padded = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
    padded[: len(array)] = array
    padded.setflags(write=False)
    return padded
