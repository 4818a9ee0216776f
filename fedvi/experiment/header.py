"""The names of a file's columns and nothing else of it; come here to read another kind of file."""

import csv
import re
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.data.schema import as_number

__all__ = ["Header", "read_header"]

_LONGEST = 1_000_000
_SEPARATORS = (",", ";", "\t", "|")


class Header(NamedTuple):
    """The names of a file's columns, as it writes them, and what stands between its cells."""

    columns: tuple[str, ...]
    separator: str


def read_header(path: Path) -> Header:
    """Reads the first line of a CSV file in UTF-8, or the schema of a Parquet file; no record.

    The first line of a file without header is a record, so that no error shows what stands in it.

    Raises:
      DataError: there is no such file, it cannot be read, or its first line holds no names.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        return Header(_named(path, _parquet(path)), ",")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(_LONGEST)
    except OSError as error:
        raise errors.DataError(
            f"--from {path} cannot be read: {error.strerror}", "give the path of a CSV file"
        ) from None
    except ValueError:  # no UTF-8, or a path that no system has
        raise errors.DataError(
            f"--from {path} is no text in UTF-8", "save the file again as CSV in UTF-8"
        ) from None
    line = line.rstrip("\r\n")
    separator = max(_SEPARATORS, key=re.sub(r'"[^"]*"', "", line).count)  # none inside a name
    try:
        cells = next(csv.reader([line], delimiter=separator), []) if line.strip() else []
    except csv.Error:
        raise errors.DataError(
            f"--from {path}: the first line is none of a CSV file, expected the names of the columns",
            "is this the right file?",
        ) from None
    return Header(_named(path, [cell.strip() for cell in cells]), separator)


def _named(path: Path, columns: list[str]) -> tuple[str, ...]:
    if not columns:
        raise errors.DataError(
            f"--from {path}: the first line is empty, expected the names of the columns",
            "is this the right file?",
        )
    numbers = sum(as_number(name) is not None for name in columns)
    if numbers or "" in columns or len(set(columns)) < len(columns):
        what = (
            f"{numbers} of {len(columns)} cells of the first line are numbers"
            if numbers
            else "a cell of the first line is empty, or there twice"
        )
        raise errors.DataError(
            f"--from {path}: {what}, expected names of columns, each once",
            "a file without header: leave --from out, give --formula, and name its columns, in their "
            "order, as `columns` under [data]",
        )
    return tuple(columns)


def _parquet(path: Path) -> list[str]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise errors.DataError(
            f"--from {path}: Parquet needs pyarrow, which is not installed",
            "run: pip install 'fedvi[parquet]'",
        ) from None
    try:
        return list(parquet.read_schema(path).names)
    except (OSError, pyarrow.ArrowException):
        raise errors.DataError(
            f"--from {path} cannot be read as Parquet", "is this the right file?"
        ) from None
