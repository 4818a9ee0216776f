"""New records from a file, a part at a time, each with what is wrong with it; change what is said here.

For whoever holds the records: a reason shows a cell. Nothing here runs at a client of a study, where no
error may tell of a record.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import data
from fedvi.data.schema import Schema
from fedvi.errors import DataError, did_you_mean
from fedvi.experiment.config import Study

__all__ = ["Part", "parts"]

_ROWS = 10_000
_BROKEN = "the line cannot be read"


class Part(NamedTuple):
    """Some records, one after the other as in the file.

    Attributes:
      first: the number of the first, from 1.
      cells: column of the file → what stands there; None where the line cannot be read.
      columns: the prepared columns, zeros where a record does not fit.
      reasons: of each record why it does not fit; empty if it does.
    """

    first: int
    cells: Mapping[str, Sequence[str | None]]
    columns: Mapping[str, np.ndarray]
    reasons: Sequence[str]

    @property
    def fits(self) -> np.ndarray:
        """Whether each record fits: bool [n]."""
        return np.array([not reason for reason in self.reasons], bool)


def parts(
    study: Study,
    schema: Schema,
    names: Iterable[str],
    path: Path,
    also: Iterable[str] = (),
    rows: int = _ROWS,
) -> Iterator[Part]:
    """Reads a CSV by the study's schema, some records at a time; no record is refused or left out.

    The first line is a header if it has all columns that are wanted; otherwise the file is one without,
    whose columns the study names in ``data.columns``. Empty lines are skipped.

    Args:
      study: whose separator and columns.
      schema: the study's.
      names: columns of the schema that are needed.
      path: the file, in UTF-8.
      also: columns of the file that are copied, such as one with names.
      rows: how many records at a time.

    Raises:
      DataError: the file is not there, is empty, or lacks a column.
    """
    needed = list(dict.fromkeys(names))
    kept = list(dict.fromkeys([*(schema[name].column for name in needed), *also]))
    first = 1
    for lines in _lines(path, study, kept, rows):
        cells = {
            name: [None if line is None else line[index] for line in lines]
            for index, name in enumerate(kept)
        }
        yield _part(schema, needed, cells, first, path.name, len(lines))
        first += len(lines)
    if first == 1:
        raise DataError(f"{path} has no record", "is this the right file?")


def _part(
    schema: Schema,
    names: Sequence[str],
    cells: dict[str, list[str | None]],
    first: int,
    where: str,
    count: int,
) -> Part:
    reasons = [""] * count
    columns: dict[str, Any] = {}
    for name in names:
        column = schema[name].column
        # As in a private study no record is refused: each says for itself that it does not fit.
        found = data.prepare_columns(cells, schema, [name], private=True, where=where)
        columns |= found.records
        for index in np.flatnonzero(~found.valid).tolist():
            if not reasons[index]:
                cell = cells[column][index]
                shown = _BROKEN if cell is None else f"`{column}` holds {cell!r}"
                reasons[index] = shown if cell is None else f"{shown}, which the schema drops"
    for index in range(count):
        if not reasons[index] and any(values[index] is None for values in cells.values()):
            reasons[index] = _BROKEN
    return Part(first, cells, columns, reasons)


def _lines(
    path: Path, study: Study, wanted: Sequence[str], rows: int
) -> Iterator[list[list[str] | None]]:
    """Yields lists of at most so many lines, each the cells of the wanted columns; None if unreadable."""
    separator = study.data.separator
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror})", "is the path right?"
        ) from error
    with file:
        places: list[int] | None = None
        width, batch = 0, []
        for number, raw in enumerate(file):
            line = _cells(raw, separator, is_first=number == 0)
            if line == []:
                continue
            if places is None:
                header = line or []
                declared = study.data.columns
                has_header = set(wanted) <= set(header)
                if not wanted and declared is not None:
                    # Nothing to look for: then any of the study's names makes a line of names.
                    has_header = not set(declared).isdisjoint(header)
                if not has_header and declared is None:
                    missing = next(name for name in wanted if name not in header)
                    raise DataError(
                        f"{path}: no column `{missing}` in the first line",
                        did_you_mean(missing, header)
                        if header
                        else "save the file as CSV in UTF-8",
                    )
                header = header if has_header or declared is None else declared
                places = [_place(path, header, name) for name in wanted]
                width = len(header)
                if has_header:
                    continue
            fits = line is not None and len(line) == width
            batch.append([line[place] for place in places] if line is not None and fits else None)
            if len(batch) == rows:
                yield batch
                batch = []
        if batch:
            yield batch


def _place(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise DataError(f"{path}: no column `{name}`", did_you_mean(name, header))
    if list(header).count(name) > 1:
        raise DataError(f"{path}: two columns are called `{name}`", "rename one of them")
    return list(header).index(name)


def _cells(raw: bytes, separator: str, is_first: bool) -> list[str] | None:
    """Reads one line by itself; [] if it is empty, None if it is not UTF-8 or not CSV."""
    try:
        text = raw.decode("utf-8-sig" if is_first else "utf-8").rstrip("\r\n")
        if not text.strip():
            return []
        blanks = separator != " "
        (line,) = csv.reader([text], delimiter=separator, skipinitialspace=blanks, strict=True)
    except (csv.Error, UnicodeDecodeError, ValueError):
        return None
    return [cell.strip() for cell in line]
