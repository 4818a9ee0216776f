"""Reads new records from a file in chunks, and says what is wrong with each record.

For the records' owner only, since a reason shows a cell. Nothing here runs at a study's client, where
errors must not reveal records.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import data
from fedvi.data.cells import Cells, Codes, Numbers, count_of
from fedvi.data.load import as_declared
from fedvi.data.schema import Column, Number, Schema, as_code, as_number
from fedvi.errors import DataError
from fedvi.study.config import Study

__all__ = ["Chunk", "all_finite", "chunks"]

_ROWS = 10_000
_BROKEN = "the line cannot be read"


class Chunk(NamedTuple):
    """Some consecutive records of a file.

    Attributes:
      first: the number of the first record, from 1.
      cells: column of the file → its cells; None for a cell without a value, or that cannot be read.
      columns: the prepared columns, zeros where a record does not fit.
      reasons: for each record, why it does not fit the schema; empty if it does.
      notes: for each record that fits, which cells were clipped to the schema's bounds; empty if none.
    """

    first: int
    cells: Mapping[str, Sequence[str | None]]
    columns: Mapping[str, np.ndarray]
    reasons: Sequence[str]
    notes: Sequence[str]

    @property
    def fits(self) -> np.ndarray:
        """Whether each record fits: bool [n]."""
        return np.array([not reason for reason in self.reasons], bool)


def chunks(
    study: Study,
    schema: Schema,
    names: Iterable[str],
    path: Path,
    also: Iterable[str] = (),
    rows: int = _ROWS,
) -> Iterator[Chunk]:
    """Reads a file by the study's schema, in chunks; no record is refused or left out.

    Every format of ``data.tables`` works. If the file names all needed columns, its names are used;
    otherwise the study's, from ``data.columns``. Empty lines are skipped. A text file that is well formed
    is read whole, so that a cell may hold a line break. Of others each line is parsed by itself, so that a
    broken line affects no other.

    Args:
      study: gives the separator and the columns' names.
      schema: the study's.
      names: columns of the schema that are needed.
      path: the file.
      also: columns of the file that are copied, such as names of persons.
      rows: records per chunk.

    Raises:
      ConfigError: the format needs a package that is not installed.
      DataError: the file is missing, cannot be read, is empty, or lacks a column.
    """
    if not path.exists():
        raise DataError(f"{path}: cannot be read (no such file)", "is the path right?")
    needed, also = list(dict.fromkeys(names)), list(also)
    wanted = _wanted(study, schema, path, [*(schema[name].column for name in needed), *also], also)
    first = 1
    for table in data.chunks(path, wanted._replace(rows=rows)):
        count = count_of(next(iter(table.values())))
        if count:
            yield _chunk(schema, needed, table, first, path.name)
        first += count
    if first == 1:
        raise DataError(f"{path} has no record", "is this the right file?")


def all_finite(records: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns, for each record of some arrays, whether all of its numbers are finite: bool [n]."""
    each = [np.isfinite(array) for array in records.values()]
    return np.all([known.all(axis=tuple(range(1, known.ndim))) for known in each], axis=0)


def _wanted(
    study: Study, schema: Schema, path: Path, names: Sequence[str], as_text: Sequence[str]
) -> data.Wanted:
    """Returns the columns to read from a file, after testing whether the file names its columns."""
    declared = study.data.columns
    wanted = data.Wanted(
        tuple(dict.fromkeys(names)),
        None,
        study.data.separator,
        # As in a private study, no record is refused: bad records are marked instead.
        private=True,
        as_text=frozenset(as_text),
        whole=True,
    )
    if wanted.names:
        # Names that the study does not declare either are looked for in the file; their absence raises.
        if declared is None or not {*wanted.names} <= {*declared} or _has(path, wanted):
            return wanted
        return wanted._replace(columns=declared)
    # Any one column gives the number of records, and shows whether there is a header line.
    known = declared if declared is not None else [column.column for column in schema.values()]
    one = (wanted._replace(names=(name,)) for name in known)
    found = next((asked for asked in one if _has(path, asked)), None)
    return found or wanted._replace(names=(known[0],), columns=declared)


def _has(path: Path, wanted: data.Wanted) -> bool:
    """Whether a file itself names all columns that are wanted."""
    try:
        next(data.chunks(path, wanted._replace(rows=1, whole=False)))
    except DataError:
        return False
    return True


def _chunk(
    schema: Schema, names: Sequence[str], table: data.Table, first: int, where: str
) -> Chunk:
    broken = np.any([_is_unreadable(cells) for cells in table.values()], axis=0)
    reasons = [_BROKEN if each else "" for each in broken]
    notes: list[list[str]] = [[] for _ in reasons]
    cells = {name: data.as_texts(column) for name, column in table.items()}
    columns: dict[str, Any] = {}
    for name in names:
        column = schema[name]
        cells[column.column] = data.as_texts(as_declared(column, table[column.column]))
        found = data.prepare_columns(table, schema, [name], private=True, where=where)
        columns |= found.records
        for index in np.flatnonzero(~found.valid).tolist():
            reasons[index] = reasons[index] or _reason(column, cells[column.column][index])
        for index, note in _clipped(column, found.records[name], cells[column.column]):
            notes[index].append(note)
    said = ["" if reason else "; ".join(each) for reason, each in zip(reasons, notes, strict=True)]
    return Chunk(first, cells, columns, reasons, said)


def _is_unreadable(cells: Cells) -> np.ndarray:
    """Returns which cells are in a line that cannot be read, bool [n]; an empty cell can be read."""
    if isinstance(cells, Numbers):
        return np.zeros(len(cells.values), bool)
    if isinstance(cells, Codes):
        unread = np.array([text is None for text in (*cells.texts, "")], bool)
        return unread[cells.places]
    return np.array([cell is None for cell in cells], bool)


def _reason(column: Column, cell: str | None) -> str:
    said = "has no value" if cell is None else f"holds {cell!r}"
    return f"`{column.column}` {said}, which the schema drops"


def _clipped(
    column: Column, values: np.ndarray, cells: Sequence[str | None]
) -> Iterator[tuple[int, str]]:
    """Yields each record with a cell that was clipped to the bounds, and a note on it."""
    if not isinstance(column, Number) or column.outside != "clip":
        return
    low, high = column.bounds
    ends = [(bound - column.center) / column.scale for bound in column.bounds]
    for index in np.flatnonzero(np.isin(values, ends)).tolist():
        text = cells[index] or ""
        number = as_number(text)
        if number is None or not math.isfinite(number) or as_code(text) in column.missing_values:
            continue
        if not low <= number <= high:
            bound = low if number < low else high
            yield index, f"`{column.column}` holds {text}, clipped to {bound:.12g}"
