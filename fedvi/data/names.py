"""Reads the column names of a file, without reading its records."""

import codecs
import csv
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvi.data import parquet
from fedvi.data.cells import (
    TRUTHS,
    check_first,
    composed,
    decoded,
    has_decimal_comma,
    without_quote,
)
from fedvi.data.schema import as_number
from fedvi.errors import DataError

__all__ = ["BY_FLAG", "Doubt", "Names", "column_names", "doubt", "is_text", "separator_of"]

# What to do with a file without column names, where a command takes --columns.
BY_FLAG = "if it has none, name them in their order: --columns age,sex,…"
_SEPARATORS = (",", ";", "\t", "|")
_LONGEST = 1_000_000
_SAVE_AGAIN = "save it again as CSV in UTF-8"
_VALUES = frozenset({"true", "false", "na", "n/a", "nan", "null", "none", "?"})
# Seldom a column's name, but sometimes: "No" counts rows, and "t" is a time.
_WORDS = frozenset({word for pair in TRUTHS for word in pair if len(word) > 1} - _VALUES) | {
    *("m", "f", "male", "female", "man", "woman", "unknown", "missing"),
    *("männlich", "weiblich", "homme", "femme"),
}
_QUOTED_BY_BLANKS = re.compile(r'"[^"]*"( "[^"]*")+')
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}([T ].*)?)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")


class Names(NamedTuple):
    """A file's column names and separator.

    Attributes:
      columns: their names, in the form in which names are compared.
      separator: between the cells of a text file; "," for other files.
      left_out: columns of a text file without a name of their own, in words: no study can name them.
    """

    columns: tuple[str, ...]
    separator: str
    left_out: tuple[str, ...] = ()


def column_names(path: Path, separator: str | None = None, *, flag: str = "") -> Names:
    """Reads the first line of a text file, or the column names in another format.

    In a file without a header, the first line is a record, so no error shows its content. A line of words
    only is taken as names: see ``doubt``.

    Args:
      path: a file of a format in ``fedvi.data.tables``, or a folder of Parquet files.
      separator: of a text file; None takes the most frequent of `,`, `;`, `|` and tab in its first line.
      flag: the option that gave the path, for errors.

    Raises:
      DataError: the file cannot be read, or has no column names.
      ConfigError: the file is Parquet, and pyarrow is not installed.
    """
    try:
        if not is_text(path):
            read = _numpy if path.suffix.lower() in (".npz", ".npy") else _parquet
            return Names(_checked(path, read(path)), ",")
        found = separator or separator_of(path)
        try:
            line, blank = _first_line(path), found != " "
            # Without a separator, it is one name, such as "blood pressure", or R left the quotes out.
            words = [] if any(sign in line for sign in _SEPARATORS) else line.split(" ")
            lone = len(words) > 1 and all(as_number(word) is None for word in words)
            if separator is None and (lone or _QUOTED_BY_BLANKS.fullmatch(line.strip())):
                raise DataError(
                    f"{path} has blanks between the names of its columns, as R's write.table writes them",
                    "use write.csv(table, file, row.names = FALSE)"
                    + ("; if it has one column, give --separator ," if lone else ""),
                )
            cells = next(csv.reader([line], delimiter=found, skipinitialspace=blank), [])
        except csv.Error:  # a name that is far too long
            cells = [""]
        columns = [composed(without_quote(cell.strip())) for cell in cells]
        return Names(_checked(path, columns), found, tuple(_nameless(columns)))
    except DataError as error:
        raise DataError(f"{flag} {error.message}".strip(), error.hint) from None


class Doubt(NamedTuple):
    """How many names of columns look like cells of a record.

    Attributes:
      values: dates, numbers, and programs' spellings of true, false and missing.
      words: other words that are seldom names: yes, male.
    """

    values: int
    words: int


def doubt(columns: Sequence[str]) -> Doubt:
    """Counts suspicious names in a first line; whoever has the file must look at it.

    >>> doubt(["age", "sex", "died"]), doubt(["m", "stage II", "2024-01-31"])
    (Doubt(values=0, words=0), Doubt(values=1, words=1))
    """
    values = [
        as_number(name) is not None
        or has_decimal_comma(name)
        or name.casefold() in _VALUES
        or _DATE.fullmatch(name) is not None
        for name in columns
    ]
    words = [name.casefold() in _WORDS for name in columns]
    return Doubt(sum(values), sum(words))


def separator_of(path: Path) -> str:
    """Returns the most frequent of `,`, `;`, `|` and tab in a text file's first line; else ",".

    Raises:
      DataError: the file cannot be read.
    """
    if not is_text(path):
        return ","
    outside = re.sub(r'"[^"]*"', "", _first_line(path))  # none inside a name
    return max(_SEPARATORS, key=outside.count)


def is_text(path: Path) -> bool:
    """Whether a file is text, judged by its name; its first line may then be names or a record."""
    return not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq", ".npz", ".npy")


def _first_line(path: Path) -> str:
    hint = "give the path of a table of records"
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as packed:
            # Bytes: a decoder would read on into the records. Some programs end lines with \r alone.
            line = b"".join(packed.readline(_LONGEST).splitlines()[:1])
        # UTF-16 has a byte order mark, or else a NUL in every other byte.
        if b"\0" not in line and not line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return decoded(line.removeprefix(codecs.BOM_UTF8))
        problem, hint = "it is no text in UTF-8", _SAVE_AGAIN
    except OSError as error:
        problem = error.strerror or "it is no whole .gz"
    except (EOFError, zlib.error):
        problem = "it is no whole .gz"
    raise DataError(f"{path} cannot be read: {problem}", hint)


def _nameless(columns: Sequence[str]) -> Iterator[str]:
    """Yields, in words, columns without a name, and names that several have."""
    empty = [str(place) for place, name in enumerate(columns, 1) if not name]
    if empty:
        yield f"column {', '.join(empty)} has no name"
    for name in dict.fromkeys(columns):
        if name and columns.count(name) > 1:
            yield f"{columns.count(name)} columns are called {name!r}"


def _checked(path: Path, columns: list[str]) -> tuple[str, ...]:
    """Returns the names that one column has each, where the line has no sign of a record."""
    if not columns and is_text(path):
        raise DataError(
            f"{path} does not begin with the names of its columns: the first line is empty",
            "is this the right file?",
        )
    # Blanks separate cells only if declared: otherwise a line of numbers is one cell, and a record.
    if columns:
        check_first(path, columns)
    cells = [name.split() for name in columns]
    numbers = sum(any(cell) and all(as_number(part) is not None for part in cell) for cell in cells)
    own = tuple(name for name in columns if name and columns.count(name) == 1)
    # Names with a gap look like a record with a missing cell, and repeated ones like equal cells.
    like_cells = len(own) < len(columns) and any(doubt(columns))
    if not own or numbers or like_cells:
        what = "a name is empty, or there twice"
        if not columns:
            what = "it has none"
        elif numbers:
            what = f"{numbers} of {len(columns)} are numbers"
            if any(len(cell) > 1 for cell in cells):
                what += ", with blanks between them"
        raise DataError(
            f"{path} does not begin with the names of its columns, each once: {what}", BY_FLAG
        )
    return own


def _numpy(path: Path) -> list[str]:
    try:
        # Memory-mapped if it is not an archive, since it may be larger than memory.
        with np.load(path, mmap_mode="r", allow_pickle=False) as file:
            return list(file.files)
    except (OSError, TypeError, ValueError, AttributeError, EOFError, zipfile.BadZipFile):
        pass
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
        return list(mapped.dtype.names or ())
    except (OSError, TypeError, ValueError, AttributeError, EOFError):
        pass
    raise DataError(
        f"{path} cannot be read: it is no file of arrays", "write it with numpy.savez(path, age=…)"
    )


def _parquet(path: Path) -> list[str]:
    pyarrow = parquet.pyarrow_module()
    first = parquet.files(path)[0]
    try:
        return list(pyarrow.parquet.read_schema(first).names)
    except (OSError, pyarrow.ArrowException):
        pass
    raise DataError(f"{path} cannot be read as Parquet", "is this the right file?")
