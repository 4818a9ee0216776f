"""Reads NumPy files of columns, ``.npz`` and ``.npy``, into cells.

Errors depend only on public facts: whether the file can be read, and its arrays' names, types and lengths.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from fedvi.errors import DataError

__all__ = ["chunks", "known_rows"]


def known_rows(path: Path) -> int | None:
    """Returns the number of records if the file is one array, None otherwise; private.

    Raises:
      DataError: as ``chunks``.
    """
    return len(_mapped(path)) if path.suffix.lower() == ".npy" else None


def chunks(path: Path, wanted: Wanted) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns, ``wanted.rows`` records at a time; an empty table if there are none.

    A ``.npz`` holds one array [n] per column, by name, and is read as a whole. A ``.npy`` holds one array
    with named fields (a structured dtype); or a matrix [n, k] of numbers, whose columns the study names in
    ``data.columns``. It may be larger than memory. Numbers stay numbers. Booleans become 1 and 0, or the
    schema's spelling. Text stays text. NaN is a missing cell.

    Raises:
      DataError: the file is missing or is not a NumPy file, or lacks a column; or a column holds neither
        numbers nor text, or is not an array [n].
    """
    if path.suffix.lower() == ".npy":
        count, piece = _of_array(path, wanted)
    else:
        count, piece = _of_archive(path, wanted)
    for start in range(0, max(count, 1), wanted.rows):
        part = slice(start, min(start + wanted.rows, count))
        yield {name: _cells(piece(name, part), name in wanted.as_text) for name in wanted.names}


_Piece = Callable[[str, slice], NDArray[Any]]


def _of_archive(path: Path, wanted: Wanted) -> tuple[int, _Piece]:
    problem = hint = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(map(composed, file.files))
            found = {
                name: file[file.files[names.index(name)]] for name in wanted.names if name in names
            }
    except FileNotFoundError:
        problem, hint = "cannot be read (no such file)", WHERE_PATHS_START
    except (OSError, TypeError, ValueError, AttributeError, EOFError, zipfile.BadZipFile):
        # NumPy's error may contain a piece of the file, so it is dropped.
        problem = "no file of arrays that NumPy can read"
        hint = "write it with numpy.savez(path, age=…, sex=…), numbers or text alone in it"
    if problem:
        raise DataError(f"{path}: {problem}", hint)
    _check_names(path, wanted, names)
    _check_columns(path, {name: (found[name].shape, found[name].dtype) for name in wanted.names})
    return len(found[wanted.names[0]]), lambda name, part: found[name][part]


def _of_array(path: Path, wanted: Wanted) -> tuple[int, _Piece]:
    whole = _mapped(path)
    count, fields = len(whole), whole.dtype.names
    if fields is not None and whole.ndim == 1:
        found = list(map(composed, fields))
        _check_names(path, wanted, found)
        held = {name: fields[found.index(name)] for name in wanted.names}
        _check_columns(path, {name: ((count,), whole.dtype[held[name]]) for name in held})
        # Mapped again for each piece, since the pages read from a mapping would stay in memory.
        return count, lambda name, part: np.array(_mapped(path)[part][held[name]])
    names = wanted.columns
    if names is None or whole.ndim != 2 or whole.shape[1] != len(names):
        shape = "×".join(map(str, whole.shape[1:])) or "one number"
        raise DataError(
            f"{path}: an array without named fields, of {shape} a record, expected named fields, or as "
            "many numbers a record as `data.columns` has names",
            "write a .npz with numpy.savez(path, age=…, sex=…), or name its columns in `data.columns`",
        )
    _check_names(path, wanted, list(names))
    _check_columns(path, dict.fromkeys(wanted.names, ((count,), whole.dtype)))
    places = {name: list(names).index(name) for name in wanted.names}
    return count, lambda name, part: np.array(_mapped(path)[part, places[name]])


def _mapped(path: Path) -> Any:
    problem, hint = "cannot be read (no such file)", WHERE_PATHS_START
    try:
        found = np.lib.format.open_memmap(path, mode="r")
        if found.ndim > 0:
            return found
    except FileNotFoundError:
        raise DataError(f"{path}: {problem}", hint) from None
    except (OSError, TypeError, ValueError, AttributeError, EOFError):
        # NumPy's error may contain a piece of the file, so it is dropped.
        pass
    try:  # an array without records cannot be mapped
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray) and found.ndim > 0 and not len(found):
            return found
    except (OSError, TypeError, ValueError, AttributeError, EOFError, zipfile.BadZipFile):
        pass
    raise DataError(
        f"{path}: no array that NumPy can read",
        "write it with numpy.save, of numbers, or of fields that are numbers or text",
    )


def _check_names(path: Path, wanted: Wanted, names: list[str]) -> None:
    for name in wanted.names:
        if name not in names:
            raise DataError(f"{path}: no column `{name}`", no_column_hint(name, names))
        if names.count(name) > 1:
            raise DataError(
                f"{path}: two columns are called `{name}`", "rename or take out one of them"
            )


def _check_columns(path: Path, found: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
    for name, (shape, dtype) in found.items():
        if len(shape) != 1:
            raise DataError(
                f"{path}: array `{name}` has {len(shape)} axes, expected 1",
                "a column has one number or text a record; give each column an array of its own",
            )
        if dtype.kind not in "biufUS" or (dtype.kind == "f" and dtype.itemsize > 8):
            raise DataError(
                f"{path}: column `{name}` holds {dtype}, expected numbers or text",
                "write it as a number, such as days since a fixed day, or as text",
            )
    if len({shape for shape, _ in found.values()}) != 1:
        raise DataError(
            f"{path}: the arrays {', '.join(found)} differ in length",
            "every column needs one cell for each record",
        )


def _cells(array: NDArray[Any], as_text: bool) -> Cells:
    if array.dtype.kind in "US":
        given, places = np.unique(array, return_inverse=True)
        texts = given.tolist() if array.dtype.kind == "U" else map(decoded, given.tolist())
        return Codes(places.reshape(-1), tuple(text.strip() for text in texts))
    if as_text and array.dtype.kind in "iu":
        return [str(value) for value in array.tolist()]
    # Silent, since a warning about an invalid number would reveal something about a record.
    with np.errstate(all="ignore"):
        return Numbers(array.astype(np.float64), boolean=array.dtype.kind == "b")
