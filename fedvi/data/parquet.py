"""Reads Parquet files, or a folder of them, into columns of cells.

Needs the extra ``fedvi[parquet]``. A file is read in chunks of records, never as a whole. Errors depend
only on public facts: whether the file can be read, and the names and types of its columns.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedvi.data.cells import (
    WHERE_PATHS_START,
    Cells,
    Codes,
    Numbers,
    Wanted,
    composed,
    decoded,
    no_column_hint,
)
from fedvi.errors import ConfigError, DataError

__all__ = ["chunks", "files", "known_rows", "pyarrow_module"]

_BUFFER = 1 << 20
"""Bytes of a column read at a time, so that memory does not depend on the length of a row group."""


def known_rows(path: Path) -> int | None:
    """Returns the number of records, from the file's metadata; private.

    Raises:
      DataError: as ``chunks``.
    """
    return sum(_described(part)[1] for part in files(path))


def chunks(path: Path, wanted: Wanted) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns, at most ``wanted.rows`` records at a time; an empty table if none.

    Numbers stay numbers. Booleans become 1 and 0, or the schema's spelling. Text stays text, also in a
    dictionary or a category. A decimal becomes the text that it would be in a CSV. A null of any type is a
    missing cell. The parts of a folder are read in the order of their names, and each needs all columns.

    Raises:
      ConfigError: the extra is not installed.
      DataError: the file is missing or is not a complete Parquet file, or lacks a column; or a column holds
        neither numbers nor text, such as dates or lists.
    """
    parts = files(path)
    readers = {}
    for part in parts:
        schema, _ = _described(part)
        readers[part] = _readers(part, schema, wanted)
    told = False
    for part in parts:
        for batch in _batches(part, wanted):
            told = True
            yield {name: read(batch[name]) for name, read in readers[part].items()}
    if not told:
        nothing = Codes(np.zeros(0, np.intp), ())
        yield dict.fromkeys(wanted.names, nothing)


def pyarrow_module() -> Any:
    """Returns pyarrow, with what reads files.

    Raises:
      ConfigError: the extra is not installed.
    """
    try:
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet needs the extra `parquet`, which is not installed",
            "pip install 'fedvi[parquet]'",
        ) from error
    return pyarrow


def files(path: Path) -> list[Path]:
    """Returns the files behind a path, in the order of their names.

    Raises:
      DataError: a folder holds none.
    """
    if not path.is_dir():
        return [path]
    parts = sorted(part for part in path.glob("*.parquet") if not part.name.startswith(("_", ".")))
    if not parts:
        raise DataError(
            f"{path}: no file in this folder ends in .parquet",
            "name the folder whose parts lie side by side; those of further folders are not read",
        )
    return parts


def _guarded(path: Path, do: Callable[[], Any]) -> Any:
    """Calls ``do``. Drops errors of pyarrow, which may contain a piece of the file, and raises its own."""
    problem, hint = "", ""
    try:
        return do()
    except FileNotFoundError:
        problem, hint = "cannot be read (no such file)", WHERE_PATHS_START
    except MemoryError:
        raise
    except (OSError, ValueError, TypeError, NotImplementedError, KeyError, RuntimeError):
        problem = "no whole Parquet file, or one that pyarrow cannot read"
        hint = "was it copied to its end? write it again, such as with pyarrow.parquet.write_table"
    raise DataError(f"{path}: {problem}", hint)


def _opened(path: Path) -> Any:
    pyarrow = pyarrow_module()
    return pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)


def _described(path: Path) -> tuple[Any, int]:
    """Returns a file's schema and its number of records."""
    pyarrow_module()

    def look() -> tuple[Any, int]:
        with _opened(path) as file:
            return file.schema_arrow, file.metadata.num_rows

    found: tuple[Any, int] = _guarded(path, look)
    return found


def _batches(path: Path, wanted: Wanted) -> Iterator[dict[str, Any]]:
    file = _guarded(path, lambda: _opened(path))
    with file:
        names = {composed(name): name for name in file.schema_arrow.names}
        called = {name: names[name] for name in wanted.names}
        batches = _guarded(
            path,
            lambda: file.iter_batches(
                batch_size=wanted.rows, columns=list(called.values()), use_threads=False
            ),
        )
        while (batch := _guarded(path, lambda: next(batches, None))) is not None:
            _guarded(path, lambda: batch.validate())
            yield {name: batch.column(called[name]) for name in wanted.names}


def _readers(path: Path, schema: Any, wanted: Wanted) -> dict[str, Callable[[Any], Cells]]:
    """Returns, for each wanted column, a function from a piece of it to cells."""
    readers = {}
    for name in wanted.names:
        places = [place for place, held in enumerate(schema.names) if composed(held) == name]
        if not places:
            raise DataError(f"{path}: no column `{name}`", no_column_hint(name, schema.names))
        if len(places) > 1:
            raise DataError(
                f"{path}: two columns are called `{name}`", "rename or take out one of them"
            )
        kind = schema.field(places[0]).type
        read = _reader(kind, name in wanted.as_text)
        if read is None:
            raise DataError(
                f"{path}: column `{name}` holds {kind}, expected numbers or text",
                "write it as a number, such as days since a fixed day, or as text",
            )
        readers[name] = read
    return readers


def _reader(kind: Any, as_text: bool) -> Callable[[Any], Cells] | None:
    """Returns a function from arrays of this type to cells; None if it is neither number nor text."""
    types = pyarrow_module().types
    if types.is_dictionary(kind):
        inner = _reader(kind.value_type, as_text)
        if inner is None:
            return None
        if inner is _of_texts:
            return _of_dictionary
        return lambda array: inner(array.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _of_texts
    if types.is_decimal(kind) or (as_text and types.is_integer(kind)):
        return lambda array: _of_texts(array.cast("string"))
    if types.is_null(kind):
        return lambda array: Numbers(np.full(len(array), np.nan))
    if types.is_boolean(kind):
        return lambda array: _of_numbers(array.cast("uint8"))._replace(boolean=True)
    return _of_numbers if types.is_integer(kind) or types.is_floating(kind) else None


def _of_numbers(array: Any) -> Numbers:
    # Nulls become NaN; 64-bit integers round to the nearest float64, as their digits would.
    return Numbers(array.to_numpy(zero_copy_only=False).astype(np.float64))


def _of_texts(array: Any) -> Codes:
    return _of_dictionary(array.dictionary_encode())


def _of_dictionary(array: Any) -> Codes:
    found = array.indices.to_numpy(zero_copy_only=False)
    missing = array.indices.is_null().to_numpy(zero_copy_only=False)
    places = np.where(missing, -1, np.where(missing, 0, found)).astype(np.intp)
    # Decoded from bytes, so that text that is not UTF-8 stops no run.
    given = array.dictionary.cast("binary").to_pylist()
    # A category may itself be null.
    absent = [index for index, text in enumerate(given) if text is None]
    places[np.isin(places, absent)] = -1
    return Codes(places, tuple(None if text is None else decoded(text).strip() for text in given))
