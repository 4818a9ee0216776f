"""Reads records that are stored as arrays in a NumPy file.

In a private study no error depends on a record: a record that does not fit counts as zero.
"""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvi.data.source import ArraySource
from fedvi.errors import DataError, did_you_mean

__all__ = ["checked_arrays", "read_arrays"]

Records = Mapping[str, NDArray[np.generic]]


def read_arrays(
    path: str | Path,
    layout: Mapping[str, tuple[int, ...]],
    sound: Callable[[Records], NDArray[np.bool_]],
    *,
    private: bool,
    where: str,
) -> ArraySource:
    """Reads a file written by ``numpy.savez``, with the records' arrays by name.

    Nothing in the file is run: arrays of Python objects are refused.

    Args:
      layout: name → shape of one record's array.
      sound: records → whether the model can use each: bool [N].
      private: whether the study states a privacy guarantee; if so, no record is refused.

    Raises:
      DataError: the file is missing, is not a NumPy file, or lacks an array; an array has the wrong shape,
        or does not hold numbers; in a study without privacy also, if there is no record or one that the
        model cannot use.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in layout if name in file.files}
            names = file.files
    except FileNotFoundError:
        raise DataError(f"{where}: no file at {path}", "is the path right?") from None
    except (OSError, TypeError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{where}: {path} is no file of arrays that NumPy can read",
            "write it with numpy.savez(path, name=array, …), and numbers alone in it",
        ) from error
    for name in layout:
        if name not in found:
            raise DataError(
                f"{where}: no array `{name}` in {path}, which the model needs",
                did_you_mean(name, names),
            )
    return checked_arrays(found, layout, sound, private=private, where=where)


def checked_arrays(
    found: Records,
    layout: Mapping[str, tuple[int, ...]],
    sound: Callable[[Records], NDArray[np.bool_]],
    *,
    private: bool,
    where: str,
) -> ArraySource:
    """Checks arrays in memory as ``read_arrays`` does; floats become float64, integers int64."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, shape in layout.items():
        array = found[name]
        if array.shape[1:] != shape or array.ndim == 0:
            raise DataError(
                f"{where}: array `{name}` has records of shape {array.shape[1:]}, expected {shape}",
                "the model's arguments in the study say how long a record is",
            )
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{where}: array `{name}` holds {array.dtype}, expected numbers",
                "levels are numbers from 0",
            )
        # Silent, since a warning would reveal something about a record.
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    sizes = {array.shape[0] for array in arrays.values()}
    if len(sizes) != 1:
        raise DataError(
            f"{where}: the arrays {', '.join(arrays)} differ in length",
            "every array needs one row for each record",
        )
    valid = np.asarray(sound(arrays), bool)
    if not private:
        if not len(valid):
            raise DataError(
                f"{where}: the shard is empty, expected at least one record",
                "is this the right file?",
            )
        if not valid.all():
            raise DataError(
                f"{where}: record {int(np.argmin(valid))}, counted from 0, is none that the model "
                "knows: a number is missing, or out of the range that the study's [model] declares",
                "correct it; in a private study it would count as zero",
            )
    return ArraySource(arrays, valid)
