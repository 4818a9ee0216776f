"""Guesses the type of each column of a file.

Everything here is computed from records as they are, and private: it is for whoever holds them.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedvi.data import tables
from fedvi.data.cells import Cells, Codes, Numbers, Table, Wanted, as_texts, has_decimal_comma
from fedvi.data.names import doubt, is_text
from fedvi.data.schema import as_code, as_number
from fedvi.errors import DataError

__all__ = [
    "BY_FLAG",
    "Guess",
    "check_names",
    "guess_columns",
    "is_identifier",
    "is_of_people",
    "repeats",
    "texts_of",
]

Kind = Literal["binary", "level", "number", "text", "empty"]

# What to do with a file that does not name its columns, where a command takes --columns.
BY_FLAG = "if it has none, name them in their order: --columns age,sex,…"
_MOST_LEVELS = 60
_MOST_WHOLE_LEVELS = 6
_MISSING = frozenset({"", "?", "NA"})
_KEPT = 100_000
# Of the cells of a column of numbers; the rest says what is missing in words, such as "<0.5".
_MOSTLY = 0.9


class Guess(NamedTuple):
    """One column of a file.

    Attributes:
      name: as the file has it.
      kind: "binary" (two values), "level" (few), "number", "text" (many different ones) or "empty".
      cells: how many there are.
      missing: how many of them are "", "?", "NA", NaN, infinite or absent.
      unreadable: how many stand on a line that cannot be read.
      different: how many different values the others have; at most 100,000 are told apart.
      low, high: the least and the largest number; None where a value is no number, but for ``odd``.
      values: the most frequent values with their counts, at most 60.
      whole: whether all values are whole numbers, but for ``odd``.
      marks: texts among the missing that are a NaN, such as "nan"; a schema of levels knows none of them.
      commas: whether all values are numbers and some have a decimal comma, which no study reads.
      odd: what is no number in a column of numbers, the most frequent first, with counts; at most 60.
    """

    name: str
    kind: Kind
    cells: int
    missing: int
    unreadable: int
    different: int
    low: float | None
    high: float | None
    values: tuple[tuple[str, int], ...]
    whole: bool
    marks: tuple[str, ...] = ()
    commas: bool = False
    odd: tuple[tuple[str, int], ...] = ()


def guess_columns(
    path: Path, names: Sequence[str], *, columns: Sequence[str] | None, separator: str
) -> tuple[Guess, ...]:
    """Looks at every cell of the columns ``names``; private.

    Args:
      path: a file of a format in ``fedvi.data.tables``.
      names: of the columns, as the file has them.
      columns: of all columns, for a file that does not name them.
      separator: of a text file.

    Raises:
      DataError: the file cannot be read, or lacks a column; or its first line is a record, see
        ``check_names``.
    """
    asked = Wanted(tuple(names), columns, separator, private=True)
    guesses = _guessed(asked, tables.chunks(path, asked))
    if columns is None and is_text(path):
        _check(path, guesses, BY_FLAG)
    return guesses


def check_names(path: Path, names: Sequence[str], separator: str, unnamed: str) -> None:
    """Refuses a text file whose first line is a record, as far as its first records tell; private.

    In a file of text alone, a first line of words may be names or a record. It is a record if its
    words stand again, each in its own column, in at least half of the columns whose cells repeat. A
    column of numbers under a word settles that the word is a name. The error says how many, and no
    cell. Where no cell repeats, nobody can tell.

    Args:
      path: any file; those that are no text name their columns themselves.
      names: of all columns, from the first line.
      separator: of a text file.
      unnamed: what to do with a file that does not name its columns, for the error.

    Raises:
      DataError: the first line is a record; or the file cannot be read.
    """
    if is_text(path):
        asked = Wanted(tuple(names), None, separator, private=True)
        _check(path, _guessed(asked, itertools.islice(tables.chunks(path, asked), 1)), unnamed)


def _guessed(asked: Wanted, parts: Iterable[Table]) -> tuple[Guess, ...]:
    seen = {name: _Seen() for name in asked.names}
    for part in parts:
        for name, cells in part.items():
            seen[name].add(texts_of(cells))
    return tuple(found.guess(name) for name, found in seen.items())


def _check(path: Path, guesses: Sequence[Guess], unnamed: str) -> None:
    numeric = (guess.name for guess in guesses if guess.low is not None or guess.commas)
    # `NA` over numbers may be the first of them, which is missing.
    if any(not doubt((name,)).values for name in numeric):
        return
    repeating = [guess for guess in guesses if guess.kind in ("binary", "level")]
    again = [guess for guess in repeating if any(guess.name == value for value, _ in guess.values)]
    if again and 2 * len(again) >= len(repeating):
        raise DataError(
            f"{path} does not begin with the names of its columns, or has them twice: {len(again)} of "
            f"the {len(guesses)} cells of its first line stand again further down, each in its own column",
            f"{unnamed}. If they are names, take the other line with them out, or give a column another "
            "name than its cells have",
        )


# Names of what tells people apart, and of what tells anything apart.
_PEOPLE = re.compile(
    r"(id|ids|mrn|(unique_?)?pid|nhs|ssn|(patient|subject|person|participant)s?(_?{key})?"
    r"|(pat|pt|u?subj|member|customer|client)_?{key}|(nhs|hospital|medical_?record)_?{no})".format(
        key="(id|ids|no|nr|nbr|num|number|key|code)", no="(no|nr|nbr|number)"
    )
)
_NAMED = re.compile(
    r".*_(id|uuid|guid|nbr)|.*(stay|encounter|admission|visit|episode|case|hospital|ward|unit|patient)id"
    r"|uuid|guid|record_?(no|nr|nbr|number)|name|surname"
)
_NEARLY_ALL = 0.95
_FEW = 20


def is_of_people(name: str) -> bool:
    """Whether a column's name says that it tells people apart.

    >>> [is_of_people(name) for name in ("Patient ID", "patient_nbr", "USUBJID", "hospital_id")]
    [True, True, True, False]
    """
    return _PEOPLE.fullmatch(_plain(name)) is not None


def repeats(guess: Guess) -> bool:
    """Whether two records have the same value; of more than 100,000 values, among the first ones."""
    return bool(guess.values) and guess.values[0][1] > 1


def is_identifier(guess: Guess) -> bool:
    """Whether a column seems to tell records or people apart: by its name, or as nearly all cells differ.

    Of numbers, only whole ones that all differ: measurements nearly all differ as well.
    """
    if guess.kind in ("empty", "binary"):
        return False
    if is_of_people(guess.name):
        return True
    if guess.kind == "level":
        return False  # such as the few sites of `hospital_id`
    if _NAMED.fullmatch(_plain(guess.name)):
        return True
    filled = guess.cells - guess.missing - guess.unreadable
    if filled < _FEW:
        return False
    if guess.low is None:
        return not guess.commas and guess.different >= _NEARLY_ALL * filled
    return guess.whole and not guess.odd and guess.different == min(filled, _KEPT)


def _plain(name: str) -> str:
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", snake.casefold()).strip("_")


def texts_of(cells: Cells) -> list[str | None]:
    """Returns cells as text: "" where the file has no value, None where a line cannot be read."""
    if isinstance(cells, Codes):
        texts = (*cells.texts, "")  # what is missing has the place −1
        return [texts[place] for place in cells.places]
    if isinstance(cells, Numbers):
        return [cell if cell is not None else "" for cell in as_texts(cells)]
    return list(cells)


class _Seen:
    """What was seen of a column so far."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.cells = self.missing = self.unreadable = self.numbers = 0
        self.low, self.high = np.inf, -np.inf
        self.numeric = self.whole = True
        self.marks: set[str] = set()
        self.commas = False
        self.numeric_but_commas = True

    def add(self, texts: Sequence[str | None]) -> None:
        self.cells += len(texts)
        for text, count in Counter(texts).items():
            number = None if text is None else as_number(text)
            if text is None:
                self.unreadable += count
            elif text in _MISSING or (number is not None and not np.isfinite(number)):
                self.missing += count
                if number is not None and np.isnan(number):
                    self.marks.add(text)
            else:
                self.numeric &= number is not None
                comma = number is None and has_decimal_comma(text)
                self.commas |= comma
                self.numeric_but_commas &= comma or number is not None
                if number is None:
                    if text in self.odd or len(self.odd) < _KEPT:
                        self.odd[text] += count
                else:
                    self.numbers += count
                    self.low, self.high = min(self.low, number), max(self.high, number)
                    self.whole &= number.is_integer()
                # One spelling for 1, 1.0 and 01, as a schema compares them.
                code = as_code(text)
                # All digits: two long numbers stay two.
                shown = code if isinstance(code, str) else _shortest(code)
                if shown in self.values or len(self.values) < _KEPT:
                    self.values[shown] += count

    def guess(self, name: str) -> Guess:
        kind = self._kind()
        if kind == "number" and self._are_codes(name):
            kind = "level"
        odd = kind == "number" and not self.numeric
        numeric = odd or (self.numeric and bool(self.values))
        return Guess(
            name=name,
            kind=kind,
            cells=self.cells,
            missing=self.missing,
            unreadable=self.unreadable,
            different=len(self.values),
            low=float(self.low) if numeric else None,
            high=float(self.high) if numeric else None,
            values=tuple(self.values.most_common(_MOST_LEVELS)),
            whole=numeric and self.whole,
            marks=tuple(sorted(self.marks)),
            commas=self.commas and self.numeric_but_commas,
            odd=tuple(self.odd.most_common(_MOST_LEVELS)) if odd else (),
        )

    def _are_codes(self, name: str) -> bool:
        """Whether numbers are codes of a list, such as `admission_type_id`: few, and nobody's own."""
        few = self.numeric and self.whole and len(self.values) <= _MOST_LEVELS
        often = 2 * len(self.values) <= self.values.total()
        return (
            few and often and not is_of_people(name) and _NAMED.fullmatch(_plain(name)) is not None
        )

    def _kind(self) -> Kind:
        different = len(self.values)
        if different == 0:
            return "empty"
        if different == 2:
            return "binary"
        few = self.whole and different - len(self.odd) <= _MOST_WHOLE_LEVELS
        if self.numeric:
            return "level" if few and different > 2 else "number"
        others = self.cells - self.missing - self.unreadable - self.numbers
        # Few whole numbers and a word are levels: grades, and one for none. Commas are for `commas`.
        words = not few and not self.numeric_but_commas
        if words and others <= (1.0 - _MOSTLY) * (others + self.numbers):
            return "number"
        # Texts of which nearly every record has its own tell records apart.
        return (
            "level"
            if 2 * different <= self.values.total() and different <= _MOST_LEVELS
            else "text"
        )


def _shortest(number: float) -> str:
    """Returns the digits that tell a number from all others; those of whole ones without a point."""
    return repr(number).removesuffix(".0")
