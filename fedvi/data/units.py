"""Groups rows into units, such as all rows of a patient."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvi.data.source import ArraySource
from fedvi.errors import DataError
from fedvi.typing import IDS, ROWS

__all__ = ["by_unit", "check_identities", "is_missing"]

_MISSING = frozenset({"", "?", "na", "nan", "null", "none"})


def is_missing(identity: str | None) -> bool:
    """Whether a cell names no unit: the line was unreadable, or it is empty, "?", NA, NaN or null.

    Otherwise rows of different people would be taken for one unit, and clipped together.
    """
    return identity is None or identity.strip().lower() in _MISSING


def by_unit(
    source: ArraySource, identities: Sequence[str | None], rows_per_unit: int
) -> ArraySource:
    """Lays all rows of a unit side by side, so that a unit is one record.

    Units come in the order of their first rows, and a unit's rows in the order of the file. A unit
    keeps its first ``rows_per_unit`` valid rows; the rest count as zero. So do rows without an
    identity, and rows that are not valid. Which rows of a unit are kept depends on that unit alone,
    and no unit is refused for having more.

    Guarantee: take two files that differ in one unit, whose rows were replaced by any rows of a
    unit that is not in the file. Up to the order of slots, the results differ in one slot. The
    order itself can differ, since a unit's slot follows from where its first row stands, but it
    has no influence on the law of what is released: every sampler of ``fedvi.privacy.sampling``
    picks slots by a law that no renaming of slots changes (all of them; each by its own coin; a
    uniformly random set of fixed size), anew for each step, a contribution depends on what the
    slot holds and not on its number, and contributions are added up. So rename the slots of one
    file until only one slot differs from the other: the releases of the renamed file have the same
    law as before, and those of the two files are as far apart as one slot can make them. (For a
    keyed permutation the law is uniform under its computational assumption.)

    Args:
      source: one record per row, for instance from ``prepared``.
      identities: the unit of each row; compared as text. See ``is_missing``.
      rows_per_unit: R, public.

    Returns:
      Arrays [units, R, …], zero where there is no row, and a column ``ROWS``, bool [units, R]. A unit
      is valid if it has a valid row.

    Raises:
      DataError: the number of identities differs from the number of rows.

    >>> rows = ArraySource({"y": np.array([1.0, 2.0, 3.0])}, np.array([True, True, True]))
    >>> units = by_unit(rows, ["a", "b", "a"], 2)
    >>> units.records["y"].tolist(), units.records[ROWS].tolist()
    ([[1.0, 3.0], [2.0, 0.0]], [[True, True], [True, False]])
    """
    if len(identities) != source.size:
        raise DataError(
            "identities: not as many as there are rows",
            "every row needs one, though it may be None",
        )
    numbers: dict[str, int] = {}
    unit = np.full(source.size, -1, dtype=np.intp)
    for row, identity in enumerate(identities):
        if identity is not None and not is_missing(identity):
            unit[row] = numbers.setdefault(identity.strip(), len(numbers))
    (kept,) = np.nonzero(source.valid & (unit >= 0))
    kept = kept[np.argsort(unit[kept], kind="stable")]
    place = _rank_in_runs(unit[kept])
    kept, place = kept[place < rows_per_unit], place[place < rows_per_unit]
    slots = (unit[kept], place)
    shape = (len(numbers), rows_per_unit)
    records: dict[str, NDArray[np.generic]] = {}
    for name, column in source.records.items():
        grouped = np.zeros((*shape, *column.shape[1:]), column.dtype)
        grouped[slots] = column[kept]
        # A unit's rows share the hash of its identity, and the unit has one.
        records[name] = grouped[:, 0] if name == IDS else grouped
    stands = np.zeros(shape, bool)
    stands[slots] = True
    return ArraySource({**records, ROWS: stands}, np.asarray(stands.any(axis=1)))


def check_identities(identities: Sequence[str | None], column: str, where: str) -> int:
    """Checks that every row names its unit, and counts the units; never used in a private study.

    Raises:
      DataError: naming the first row without an identity.
    """
    for row, identity in enumerate(identities, start=1):
        if is_missing(identity):
            raise DataError(
                f"{where}: record {row}: column `{column}` does not name its unit",
                "every row needs an identity in `data.unit_column`; complete it, or take it out",
            )
    return len({identity.strip() for identity in identities if identity is not None})


def _rank_in_runs(values: NDArray[np.intp]) -> NDArray[np.intp]:
    """Numbers the entries of each run of equal values from 0."""
    index = np.arange(len(values))
    starts = np.r_[True, values[1:] != values[:-1]] if len(values) else np.zeros(0, bool)
    return index - np.maximum.accumulate(np.where(starts, index, 0))
