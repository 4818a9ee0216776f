"""Defines the cells of a column as a file's reader returns them: texts, or numbers."""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvi.errors import DataError, did_you_mean

__all__ = [
    "FORMULA",
    "TRUTHS",
    "WHERE_PATHS_START",
    "Cells",
    "Codes",
    "Numbers",
    "Table",
    "Wanted",
    "as_codes",
    "as_texts",
    "bare",
    "check_first",
    "composed",
    "count_of",
    "decoded",
    "has_decimal_comma",
    "is_separator",
    "may_be_thousands",
    "no_column_hint",
    "truth_of",
    "without_quote",
]

# Where a spreadsheet may see the beginning of a formula: at the beginning of a cell or a line, or after a
# separator of cells in other countries. From OWASP's "CSV injection"; the last four are full-width forms.
FORMULA = re.compile("(?<![^;\\t\\r\\n])(?=[' ]*[-=+@\\t\\r\\n\uff1d\uff0b\uff0d\uff20])")
_QUOTED = re.compile(FORMULA.pattern.replace("(?=", "'(?="))

WHERE_PATHS_START = "paths are relative to the folder of the study file"
"""The hint where a file cannot be read."""

TRUTHS = (
    ("false", "true"),
    ("f", "t"),
    ("no", "yes"),
    ("n", "y"),
    ("nein", "ja"),
    ("n", "j"),
    ("falsch", "wahr"),
    ("non", "oui"),
    ("faux", "vrai"),
    ("nee", "ja"),
    ("nej", "ja"),
    ("no", "sí"),
    ("no", "si"),
    ("off", "on"),
)
"""Pairs of words that mean false and true, in lower case; common spellings of programs come first."""


class Numbers(NamedTuple):
    """Cells that a file holds as numbers.

    Attributes:
      values: float64 [n]; NaN where the file has no value.
      boolean: whether the file has true and false, which are 1 and 0 here.
    """

    values: NDArray[np.float64]
    boolean: bool = False


class Codes(NamedTuple):
    """Cells with few distinct texts, each of which is stored once.

    Attributes:
      places: integers [n]: each cell's index in ``texts``; −1 if the file has no value.
      texts: None stands for an unreadable cell, whose record counts as zero.
    """

    places: NDArray[np.intp]
    texts: tuple[str | None, ...]


Cells = Sequence[str | None] | Numbers | Codes
"""One column; a sequence holds one text per record, None if the record cannot be read."""

Table = Mapping[str, Cells]
"""Columns of equal length, by their names in the file."""


class Wanted(NamedTuple):
    """A request to a file's reader, for any format.

    Attributes:
      names: the wanted columns, by their names in the file.
      columns: names of all columns of a file that has no names; None if it has.
      separator: between the cells of a text file, see ``is_separator``.
      private: whether the study states a privacy guarantee; if so, no record is refused.
      rows: how many records to return at a time.
      as_text: those of ``names`` that are compared as text, such as a patient's identifier, so that
        integers keep all their digits.
      whole: whether a text file that is well formed is read whole in a private study too, so that a cell
        may hold a line break. Only where nothing is released: one cell then decides how the rest is read.
    """

    names: tuple[str, ...]
    columns: Sequence[str] | None = None
    separator: str = ","
    private: bool = False
    rows: int = 65_536
    as_text: frozenset[str] = frozenset()
    whole: bool = False


def count_of(cells: Cells) -> int:
    """Returns the number of records."""
    if isinstance(cells, Numbers):
        return len(cells.values)
    return len(cells.places) if isinstance(cells, Codes) else len(cells)


def truth_of(code: float | str) -> bool | None:
    """Returns the truth value of a code that means true or false, in any case; else None.

    >>> truth_of(1.0), truth_of("FALSE"), truth_of("Ja"), truth_of("m")
    (True, False, True, None)
    """
    if isinstance(code, float):
        return bool(code) if code in (0.0, 1.0) else None
    word = code.casefold()
    return next((word == pair[1] for pair in TRUTHS if word in pair), None)


_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+", re.ASCII)
# A point before three digits and no 0: a decimal point, or one between thousands.
_POINT = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}", re.ASCII)
# Letters that nobody sees, and blanks that are none of the keyboard's.
_UNSEEN = {ord(each): "" for each in "\u00ad\u200b\u2060\ufeff"} | {
    ord(each): " " for each in "\u00a0\u2007\u202f"
}


def is_separator(text: str) -> bool:
    """Whether a text can stand between cells: one character, and no quote, line break or NUL."""
    return len(text) == 1 and text not in '"\r\n\0'


def has_decimal_comma(text: str) -> bool:
    """Whether a text is a number with a decimal comma, as "3,5" or "1.234,5"; "1,500" may also be 1500.

    >>> [has_decimal_comma(text) for text in ("-3,5", "1.234,5", "3.5", "a,b")]
    [True, True, False, False]
    """
    return _COMMA.fullmatch(text) is not None


def may_be_thousands(text: str) -> bool:
    """Whether the point of a number may stand between thousands, as in "1.234".

    >>> [may_be_thousands(text) for text in ("1.234", "0.234", "1.23", "1234")]
    [True, False, False, False]
    """
    return _POINT.fullmatch(text) is not None


def decoded(text: bytes) -> str:
    """Decodes a cell or a line, whatever others hold: as UTF-8 or, where it is not UTF-8, as Windows-1252.

    Windows-1252 includes Latin-1. A text in it with an "ä" between ASCII letters is never UTF-8.
    """
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("cp1252", errors="replace")


def composed(name: str) -> str:
    """Returns a column's name as names are compared: in Unicode's NFC, without letters that nobody sees.

    Those are byte order marks, soft hyphens and blanks without width. Blanks that break no line are blanks.

    >>> composed("a\u0308"), composed("\ufeffage\u00a0")
    ('ä', 'age')
    """
    return unicodedata.normalize("NFC", name.translate(_UNSEEN)).strip()


def check_first(path: object, cells: Sequence[str]) -> None:
    """Refuses a first line that is an instruction to a spreadsheet or a comment, and no names of columns.

    Raises:
      DataError: the line begins as Excel's `sep=;` does, or is one cell that begins with #.
    """
    said = ""
    if _SEPARATOR.fullmatch(cells[0]) and all(not cell for cell in cells[1:]):
        said = "says what the separator is (sep=), as Excel writes it"
    elif cells[0].startswith("#") and len(cells) == 1:
        said = "begins with #, as a comment does"
    if said:
        raise DataError(
            f"{path}: the first line {said}, expected the names of the columns",
            "take out all lines before the names",
        )


_SEPARATOR = re.compile(r"sep=.?", re.IGNORECASE)


def no_column_hint(name: str, columns: Sequence[str]) -> str:
    """Returns a hint for a missing column: the file's longer name for it, or else a similar name.

    >>> no_column_hint("age", ["Age (years)", "stage"])
    'if "Age (years)" is meant, write it so; in the schema, column = "Age (years)" under [data.schema.age]'
    >>> no_column_hint("chlo", ["chol"])
    'did you mean `chol`? known: `chol`'
    """
    words = _words(name)
    meant = [column for column in columns if words.strip() and words in _words(column)]
    if not meant:
        return did_you_mean(name, columns)
    called = json.dumps(min(meant, key=len), ensure_ascii=False)
    # A name with a blank comes from a study's `column`, and is not the name of a table.
    table = f"[data.schema.{name}]" if re.fullmatch(r"\w+", name, re.ASCII) else "its table"
    return f"if {called} is meant, write it so; in the schema, column = {called} under {table}"


def _words(text: str) -> str:
    """Returns the words of a text in lower case, with a blank around each."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


_WORD = re.compile(r"[^\W_]+")


def as_codes(cells: Sequence[str | None]) -> Codes:
    """Stores each distinct text once.

    >>> as_codes(["m", "f", "m"])
    Codes(places=array([0, 1, 0]), texts=('m', 'f'))
    """
    known: dict[str | None, int] = {}
    places = np.fromiter(
        (known.setdefault(cell, len(known)) for cell in cells), np.intp, count=len(cells)
    )
    return Codes(places, tuple(known))


def as_texts(cells: Cells) -> list[str | None]:
    """Returns one text per record, None if it has no value; integers have no decimal point.

    >>> as_texts(Numbers(np.array([17.0, 0.5, np.nan])))
    ['17', '0.5', None]
    """
    if isinstance(cells, Codes):
        texts = (*cells.texts, None)  # a missing cell has index −1
        return [texts[place] for place in cells.places]
    if isinstance(cells, Numbers):
        return [
            None if value != value else f"{value:.0f}" if value.is_integer() else repr(value)
            for value in cells.values.tolist()
        ]
    return list(cells)


def without_quote(cell: str) -> str:
    """Takes off the ' that fedvi writes before a text which a spreadsheet would compute as a formula.

    >>> without_quote("'=1+1"), without_quote("'n/a"), without_quote("''-x")
    ('=1+1', "'n/a", "'-x")
    """
    return _QUOTED.sub("", cell) if "'" in cell else cell


def bare(cell: str) -> str:
    """Takes off every such ': cells of files and of a study are compared without them.

    >>> bare("''-x"), bare("'n/a")
    ('-x', "'n/a")
    """
    while (found := without_quote(cell)) != cell:
        cell = found
    return cell
