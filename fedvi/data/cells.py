"""What a file's reader hands on of a column: texts, or numbers as they are; come here to add a third."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "Codes", "Numbers", "Table", "Wanted", "as_codes", "as_texts", "count_of"]


class Numbers(NamedTuple):
    """Cells that a file holds as numbers.

    Attributes:
      values: float64 [n]; NaN where the file has no value.
    """

    values: NDArray[np.float64]


class Codes(NamedTuple):
    """Cells that repeat few texts, each of which is kept once.

    Attributes:
      places: whole numbers [n]: which of ``texts`` a cell is; −1 where the file has no value.
      texts: None stands for what cannot be read: a record with such a cell counts as zero.
    """

    places: NDArray[np.intp]
    texts: tuple[str | None, ...]


Cells = Sequence[str | None] | Numbers | Codes
"""One column; a sequence holds one text a record, None where the record cannot be read."""

Table = Mapping[str, Cells]
"""Columns of equal length by the names that the file has for them."""


class Wanted(NamedTuple):
    """What is asked of a file, whatever its format.

    Attributes:
      names: the columns, as the file calls them.
      columns: names of all columns of a file that does not name them; None if it does.
      separator: between the cells of a text file.
      private: whether the study states a privacy guarantee: then no record is refused.
      rows: how many records to hand on at a time.
      as_text: those of ``names`` that are compared as text, such as the identity of a patient: whole
        numbers keep all their digits.
    """

    names: tuple[str, ...]
    columns: Sequence[str] | None = None
    separator: str = ","
    private: bool = False
    rows: int = 65_536
    as_text: frozenset[str] = frozenset()


def count_of(cells: Cells) -> int:
    """Returns the number of records."""
    if isinstance(cells, Numbers):
        return len(cells.values)
    return len(cells.places) if isinstance(cells, Codes) else len(cells)


def as_codes(cells: Sequence[str | None]) -> Codes:
    """Keeps each text once.

    >>> as_codes(["m", "f", "m"])
    Codes(places=array([0, 1, 0]), texts=('m', 'f'))
    """
    known: dict[str | None, int] = {}
    places = np.fromiter(
        (known.setdefault(cell, len(known)) for cell in cells), np.intp, count=len(cells)
    )
    return Codes(places, tuple(known))


def as_texts(cells: Cells) -> list[str | None]:
    """Returns one text a record, None where there is none; whole numbers without a point.

    >>> as_texts(Numbers(np.array([17.0, 0.5, np.nan])))
    ['17', '0.5', None]
    """
    if isinstance(cells, Codes):
        texts = (*cells.texts, None)  # what is missing has the place −1
        return [texts[place] for place in cells.places]
    if isinstance(cells, Numbers):
        return [
            None if value != value else f"{value:.0f}" if value.is_integer() else repr(value)
            for value in cells.values.tolist()
        ]
    return list(cells)
