"""Keeps prepared records of a shard larger than memory in unnamed files.

The files contain the records themselves, unencrypted, on their owner's machine. They have no name in any
folder, so no other process can open them, and the system frees their space when the process ends, however
it ends.
"""

import math
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvi.data.source import ArraySource
from fedvi.errors import DataError

__all__ = ["StoredColumn", "StoredSource", "store"]

_GATHERED = 4096
"""The number of drawn rows read together; the pages they touch are released after each batch."""
_PIECE = 1 << 23
"""The most bytes in memory while a whole column is read."""


class StoredColumn:
    """One array of the records; only slices and drawn rows are loaded into memory.

    It acts as a read-only array [capacity, …], with zeros after the stored records. NumPy and JAX accept
    it as an array, and read all of it.

    >>> source = ArraySource({"y": np.array([1.0, 2.0, 3.0])}, np.ones(3, bool))
    >>> column = store(iter([source]), None, "north").padded(4)[0]["y"]
    >>> column[1:4], column[np.array([2, 0])], column.shape
    (array([2., 3., 0.]), array([3., 1.]), (4,))
    """

    def __init__(
        self,
        file: "_File",
        rows: int,
        record: tuple[int, ...],
        dtype: np.dtype[Any],
        capacity: int | None = None,
    ) -> None:
        self._file, self._rows, self._record = file, rows, record
        self.dtype = dtype
        self.shape = (rows if capacity is None else capacity, *record)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        # Reprs end up in logs: no values and no counts.
        return "StoredColumn()"

    def __getitem__(self, key: slice | NDArray[np.integer[Any]]) -> NDArray[Any]:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                raise DataError(f"a slice of records has step {step}, expected 1")
            return self._slice(start, max(start, stop))
        return self._gather(np.asarray(key))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self._slice(0, len(self))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def resized(self, count: int, capacity: int) -> "StoredColumn":
        """Returns the first ``count`` records, with zeros up to ``capacity``; the file is shared."""
        kept = min(self._rows, count)
        return StoredColumn(self._file, kept, self._record, self.dtype, capacity)

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yields the whole array in order, a few MiB at a time."""
        step = max(1, _PIECE // max(1, self.dtype.itemsize * math.prod(self._record)))
        for start in range(0, len(self), step):
            yield self._slice(start, min(start + step, len(self)))

    def _slice(self, start: int, stop: int) -> NDArray[Any]:
        found = np.zeros((stop - start, *self._record), self.dtype)
        there = max(0, min(stop, self._rows) - start)
        if there and found.size:
            # Read, not mapped, since mapped pages count as memory of this process.
            self._file.read(start * self.dtype.itemsize * math.prod(self._record), found[:there])
        return found

    def _gather(self, indices: NDArray[Any]) -> NDArray[Any]:
        found = np.zeros((len(indices), *self._record), self.dtype)
        if not self._rows or not found.size:
            return found
        if indices[-1] - indices[0] == len(indices) - 1 and (np.diff(indices) == 1).all():
            return self._slice(int(indices[0]), int(indices[-1]) + 1)
        for start in range(0, len(indices), _GATHERED):
            lot = indices[start : start + _GATHERED]
            there = lot < self._rows
            mapped = self._file.mapped(self.dtype, (self._rows, *self._record))
            found[start : start + _GATHERED][there] = mapped[lot[there]]
        return found


class _File:
    """An unnamed file, closed and thereby deleted with the last column that reads it."""

    def __init__(self, folder: Path | None) -> None:
        self._raw = tempfile.TemporaryFile(dir=folder, prefix="fedvi-", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._raw.close)

    def write(self, array: NDArray[Any]) -> None:
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while view:
            view = view[self._raw.write(view) :]

    def read(self, start: int, into: NDArray[Any]) -> None:
        self._raw.seek(start)
        view = into.reshape(-1).view(np.uint8).data
        while view:
            count = self._raw.readinto(view)
            if not count:
                raise DataError(
                    "records that were put on the disk are not there any more",
                    "start again: they are prepared anew from their file",
                )
            view = view[count:]

    def mapped(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return np.memmap(self._raw, dtype, mode="r", shape=shape)


class StoredSource(ArraySource):
    """An ``ArraySource`` whose arrays are ``StoredColumn``, made by ``store``."""

    def __init__(self, records: Mapping[str, Any], valid: NDArray[np.bool_]) -> None:
        # Not copied or overwritten: the chunks were ``ArraySource`` when they were written.
        valid.setflags(write=False)
        object.__setattr__(self, "records", MappingProxyType(dict(records)))
        object.__setattr__(self, "valid", valid)

    def first(self, count: int) -> "StoredSource":
        """Returns the first ``count`` records; all of them if there are fewer."""
        if self.size <= count:
            return self
        return StoredSource(_resized(self.records, count, count), self.valid[:count].copy())

    def flat(self) -> ArraySource:
        """Returns the records in memory, which must have room for them."""
        return ArraySource(
            {name: np.asarray(column) for name, column in self.records.items()}, self.valid
        ).flat()

    def padded(self, capacity: int, *, where: str = "") -> tuple[dict[str, Any], NDArray[np.bool_]]:
        """Does the same as ``ArraySource.padded``; the arrays stay on disk.

        Raises:
          DataError: there are more records than ``capacity``; the message does not give their number.
        """
        _, mask = ArraySource({}, self.valid).padded(capacity, where=where)
        return _resized(self.records, self.size, capacity), mask

    def take(self, indices: ArrayLike) -> dict[str, NDArray[np.generic]]:
        """Returns the records at ``indices``; ``valid[indices]`` says which of them count."""
        chosen = np.asarray(indices, dtype=np.intp)
        return {name: column[chosen] for name, column in self.records.items()}


def store(chunks: Iterator[ArraySource], folder: Path | None, where: str) -> StoredSource:
    """Writes prepared records to disk, chunk by chunk, and returns them as one source.

    Args:
      chunks: at least one; all with the same names, shapes of a record and types.
      folder: a folder on the disk to use; None: the system's folder for temporary files.

    Raises:
      DataError: the folder does not exist, cannot be written to, or the disk is full.
    """
    valid: list[NDArray[np.bool_]] = []
    files: dict[str, _File] = {}
    layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for chunk in chunks:
        found = {name: (a.shape[1:], a.dtype) for name, a in chunk.records.items()}
        if valid and found != layout:
            raise DataError(
                f"{where}: chunks of records differ in names, shapes or types",
                "joined records need the same names, shapes of one record, and types",
            )
        layout = found
        try:
            for name, array in chunk.records.items():
                if name not in files:
                    files[name] = _File(folder)
                files[name].write(array)
        except OSError as error:
            raise DataError(
                f"{where}: the records cannot be kept on the disk while they are worked on "
                f"({error.strerror})",
                "name a folder on a disk with room for them with --cache DIR",
            ) from None
        valid.append(chunk.valid)
    together = np.concatenate(valid) if valid else np.zeros(0, bool)
    columns = {
        name: StoredColumn(file, len(together), *layout[name]) for name, file in files.items()
    }
    return StoredSource(columns, together)


def _resized(columns: Mapping[str, Any], count: int, capacity: int) -> dict[str, StoredColumn]:
    return {name: column.resized(count, capacity) for name, column in columns.items()}
