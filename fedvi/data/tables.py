"""Chooses the reader of a table's file from its suffix."""

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, ModuleType

from fedvi.data import columns, delimited, parquet
from fedvi.data.cells import Table, Wanted, composed

__all__ = ["FORMATS", "chunks", "known_rows", "line_breaks", "why_broken"]

FORMATS = MappingProxyType(
    {
        ".csv": delimited,
        ".tsv": delimited,
        ".gz": delimited,
        ".parquet": parquet,
        ".pq": parquet,
        ".npz": columns,
        ".npy": columns,
    }
)
"""Suffix → a module with ``chunks(path, wanted)`` and ``known_rows(path)``. Other files are text with a
separator, and a folder holds Parquet files."""


def chunks(path: str | Path, wanted: Wanted) -> Iterator[Table]:
    """Returns an iterator over the wanted columns, ``wanted.rows`` records at a time; at least one table.

    In names, a letter such as "ä" is the same written as one character or as "a" and its mark.

    Raises:
      ConfigError, DataError: as the format's own ``chunks``.
    """
    path = Path(path)
    asked = wanted._replace(
        names=tuple(dict.fromkeys(map(composed, wanted.names))),
        columns=None if wanted.columns is None else tuple(map(composed, wanted.columns)),
        as_text=frozenset(map(composed, wanted.as_text)),
    )
    found: Iterator[Table] = _format(path).chunks(path, asked)
    return ({name: table[composed(name)] for name in wanted.names} for table in found)


def known_rows(path: str | Path) -> int | None:
    """Returns the number of records if a file has it in its metadata, else None; private.

    Raises:
      DataError: the file cannot be read.
    """
    path = Path(path)
    count: int | None = _format(path).known_rows(path)
    return count


def why_broken(path: str | Path, wanted: Wanted) -> str:
    """Says why lines of a text file cannot be read by themselves; "" for other formats. Private.

    Raises:
      DataError: as ``chunks``.
    """
    path = Path(path)
    return delimited.why_broken(path, wanted) if _format(path) is delimited else ""


def line_breaks(path: str | Path, wanted: Wanted) -> int:
    """Returns how many records of a well-formed text file have a cell with a line break; else 0. Private.

    Raises:
      DataError: the file cannot be read.
    """
    path = Path(path)
    return delimited.line_breaks(path, wanted) if _format(path) is delimited else 0


def _format(path: Path) -> ModuleType:
    return parquet if path.is_dir() else FORMATS.get(path.suffix.lower(), delimited)
