"""Writes all CSV files of fedvi, so that a spreadsheet takes no cell for a formula.

Names of sites, columns and levels come from files of other people, and a spreadsheet computes a text that
begins as a formula does: ``=HYPERLINK(…)`` opens an address, ``=cmd|…`` may start a program.
"""

import csv
from collections.abc import Iterable
from typing import Any, Protocol

from fedvi.data.cells import FORMULA

__all__ = ["inert", "write"]


class _Writable(Protocol):
    def write(self, text: str, /) -> object: ...


def inert(cell: object) -> object:
    """Returns a cell of a CSV, with a ' before a text that a spreadsheet would compute as a formula.

    Numbers stay as they are, also a text that is one, such as "-1.5". A text that has a ' before what
    begins a formula gets another one, so that ``data.cells.without_quote`` gives every text back. Where
    semicolons separate cells, as in spreadsheets of many countries, one may also begin after a semicolon.

    >>> inert("=1+1"), inert("-1.5"), inert("-1.5+1"), inert("ann"), inert("a;=1+1")
    ("'=1+1", '-1.5', "'-1.5+1", 'ann', "a;'=1+1")
    """
    if not isinstance(cell, str) or (found := FORMULA.sub("'", cell)) == cell:
        return cell
    try:
        float(cell)
    except ValueError:
        return found
    return cell


def write(file: _Writable, rows: Iterable[Iterable[Any]], separator: str = ",") -> None:
    """Adds lines of CSV to a file, names of columns among them; None is an empty cell.

    Floats keep every bit.
    """
    writer = csv.writer(file, delimiter=separator, lineterminator="\n")
    writer.writerows([inert(cell) for cell in row] for row in rows)
