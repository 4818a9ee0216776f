"""Guesses the type of each column of a file.

Everything here is computed from the records without protection: it is private to their owner.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedvi.data import tables
from fedvi.data.cells import (
    Cells,
    Codes,
    Numbers,
    Table,
    Wanted,
    as_texts,
    composed,
    has_decimal_comma,
    may_be_thousands,
)
from fedvi.data.names import BY_FLAG, doubt, is_text
from fedvi.data.schema import Code, as_code, as_level, as_number
from fedvi.errors import DataError

__all__ = [
    "Guess",
    "check_given",
    "check_names",
    "guess_columns",
    "is_identifier",
    "is_of_people",
    "often_missing",
    "repeats",
    "spelt",
    "texts_of",
]

Kind = Literal["binary", "level", "number", "text", "empty"]

_MOST_LEVELS = 60
_MOST_WHOLE_LEVELS = 6
_MISSING = frozenset({"", "?", "NA"})
# Numbers that often stand for a missing value; public, whatever a file holds.
_STAND_INS = ("-9999", "-999", "-99", "-9", "-1", "99", "999", "9999", "99999")
# Usual words for an unknown value, which reveal nothing else about the record.
_NOT_KNOWN = frozenset({
    *("unknown", "missing", "null", "none", "-", "--", ".", "na", "n/a", "n.a.", "nd", "n/d"),
    *("not known", "not done", "not available", "unbekannt", "inconnu"),
})  # fmt: skip
# Codes such as 0117, which are no numbers.
_PADDED = re.compile(r"[+-]?0\d")
_KEPT = 100_000
# The least share of numbers in a column of numbers; the rest are words for missing values, such as "<0.5".
_MOSTLY = 0.9


class Guess(NamedTuple):
    """One column of a file.

    Attributes:
      name: in the file.
      kind: "binary" (two values), "level" (few), "number", "text" (many different ones) or "empty".
      cells: their number.
      missing: how many of them are "", "?", "NA", NaN, infinite or absent.
      unreadable: how many are on a line that cannot be read.
      different: the number of distinct values among the others; counted up to 100,000.
      low, high: the least and the largest number; None if a value is not a number, except for ``odd``.
      values: the most frequent values with their counts, at most 60.
      whole: whether all values are integers, except for ``odd``.
      marks: missing cells that mean NaN, such as "nan"; a schema of levels does not know them.
      commas: whether all values are numbers and some have a decimal comma, which studies do not support.
      odd: cells in a column of numbers that are not numbers, with counts, most frequent first; at most 60.
      thousands: whether each point stands before three digits, and all other numbers have three digits at
        most, so that 1.234 may be 1234.
      stand_ins: numbers such as -9 or 999, with counts, that lie far beyond all other numbers, and may mean
        missing; none of a single record.
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
    stand_ins: tuple[tuple[str, int], ...] = ()
    thousands: bool = False


def guess_columns(
    path: Path, names: Sequence[str], *, columns: Sequence[str] | None, separator: str
) -> tuple[Guess, ...]:
    """Examines every cell of the columns ``names``; private.

    Args:
      path: a file of a format in ``fedvi.data.tables``.
      names: of the columns, in the file.
      columns: of all columns, for a file without names.
      separator: of a text file.

    Raises:
      DataError: the file cannot be read, or lacks a column; or its first line is a record, see
        ``check_names``.
    """
    asked = Wanted(tuple(names), columns, separator, private=True, whole=True)
    guesses = _guessed(asked, tables.chunks(path, asked))
    if is_text(path):
        _check_some(asked, path, guesses)
        if columns is None:
            _check(path, guesses)
    return guesses


def check_names(path: Path, names: Sequence[str], separator: str) -> None:
    """Refuses a text file whose first line appears to be a record, judged by its first records; private.

    If all columns are text, a first line of words may be names or a record. It is taken as a record if its
    words occur again, each in its own column, in at least half of the columns with repeated values. A
    column of numbers under a word proves that the word is a name. The error gives counts, but no cell. If
    no value repeats, the case cannot be decided.

    Args:
      path: any file; other formats than text contain their columns' names.
      names: of all columns, from the first line.
      separator: of a text file.

    Raises:
      DataError: the first line is a record; or the file cannot be read.
    """
    if is_text(path):
        asked = Wanted(tuple(names), None, separator, private=True, whole=True)
        guesses = _guessed(asked, itertools.islice(tables.chunks(path, asked), 1))
        _check_some(asked, path, guesses)
        _check(path, guesses)


def check_given(path: Path, columns: Sequence[str], separator: str) -> None:
    """Refuses names of columns beside a text file that has its own, judged by its first records; private.

    Its first line would be read as a record. It has names if it holds one of ``columns``, or if none of its
    cells is a number, and one stands over numbers alone. The error gives counts, but no cell.

    Args:
      path: any file; one whose cells do not fit the columns is not judged.
      columns: of all columns, as given.
      separator: of a text file.

    Raises:
      ConfigError: a name is given twice, or the separator cannot be used.
      DataError: the first line has names; or the file cannot be read.
    """
    if not is_text(path):
        return
    asked = Wanted(tuple(columns), tuple(columns), separator, private=True, whole=True)
    part = {name: texts_of(cells) for name, cells in next(tables.chunks(path, asked)).items()}
    first = {name: cells[0] for name, cells in part.items() if cells and cells[0] is not None}
    known = set(map(str.casefold, map(composed, columns)))
    again = sum(composed(cell).casefold() in known for cell in first.values())
    over = 0
    if all(as_number(cell) is None for cell in first.values()):
        for name, cell in first.items():
            below = [text for text in part[name][1:] if text is not None and text not in _MISSING]
            numbers = sum(as_number(text) is not None for text in below)
            over += cell not in _MISSING and not often_missing(cell) and 1 < numbers == len(below)
    if again or over:
        why = (
            f"{over} of them stand over numbers alone"
            if over
            else f"{again} of them are among yours"
        )
        raise DataError(
            f"{path} begins with names of columns, which would be read as a record: {why}",
            "leave --columns out; a column without a name, such as the row numbers that R and pandas "
            "write, needs none. To give columns other names, change the first line",
        )


def _guessed(asked: Wanted, parts: Iterable[Table]) -> tuple[Guess, ...]:
    seen = {name: _Seen() for name in asked.names}
    for part in parts:
        for name, cells in part.items():
            seen[name].add(texts_of(cells))
    return tuple(found.guess(name, asked.separator) for name, found in seen.items())


def _check_some(asked: Wanted, path: Path, guesses: Sequence[Guess]) -> None:
    """Refuses a file of which no line can be read, and says why."""
    if not guesses or any(guess.cells > guess.unreadable or not guess.cells for guess in guesses):
        return
    after = " after the first" if asked.columns is None else ""
    raise DataError(
        f"{path}: no line{after} can be read: {tables.why_broken(path, asked)}",
        "every line needs one cell for each column; check the separator, too",
    )


def _check(path: Path, guesses: Sequence[Guess]) -> None:
    numeric = (guess.name for guess in guesses if guess.low is not None or guess.commas)
    # `NA` over numbers may be a record's missing cell.
    if any(not doubt((name,)).values for name in numeric):
        return
    repeating = [guess for guess in guesses if guess.kind in ("binary", "level")]
    again = [guess for guess in repeating if any(guess.name == value for value, _ in guess.values)]
    if again and 2 * len(again) >= len(repeating):
        raise DataError(
            f"{path} does not begin with the names of its columns, or has them twice: {len(again)} of "
            f"the {len(guesses)} cells of its first line stand again further down, each in its own column",
            f"{BY_FLAG}. If they are names, take the other line with them out, or give a column another "
            "name than its cells have",
        )


# Names of columns that identify people, and of columns that identify anything.
_PEOPLE = re.compile(
    r"(id|ids|mrn|(unique_?)?pid|nhs|ssn|(patient|subject|person|participant)s?(_?{key})?"
    r"|(pat|pt|u?subj|member|customer|client)_?{key}|(nhs|hospital|medical_?record)_?{no})".format(
        key="(id|ids|no|nr|nbr|num|number|key|code)", no="(no|nr|nbr|number)"
    )
)
_NAMED = re.compile(
    r".*_(id|uuid|guid|nbr)|.*(stay|encounter|admission|visit|episode|case|hospital|ward|unit|patient)id"
    r"|uuid|guid|name|surname"
    r"|(record|row|case|sample|specimen|accession)_?(no|nr|nbr|num|number|key|code)(_?(no|number))?"
)
_NEARLY_ALL = 0.95
_FEW = 20


def is_of_people(name: str) -> bool:
    """Whether a column's name means that it identifies people.

    >>> [is_of_people(name) for name in ("Patient ID", "patient_nbr", "USUBJID", "hospital_id")]
    [True, True, True, False]
    """
    return _PEOPLE.fullmatch(_plain(name)) is not None


def _is_named_identifier(guess: Guess) -> bool:
    """Whether a column's name means that it identifies records or people, and its cells can."""
    if is_of_people(guess.name):
        return guess.kind not in ("empty", "binary")
    few = guess.kind in ("empty", "binary", "level")  # for instance the few sites of `hospital_id`
    return not few and _NAMED.fullmatch(_plain(guess.name)) is not None


def often_missing(cell: str) -> bool:
    """Whether a cell is a usual word or number for a missing value, whatever a file holds.

    >>> [often_missing(cell) for cell in ("Unknown", "-9", "999.0", "120")]
    [True, True, True, False]
    """
    return cell.casefold() in _NOT_KNOWN or spelt(as_code(cell)) in _STAND_INS


def repeats(guess: Guess) -> bool:
    """Whether two records have the same value; with more than 100,000 values, among the first ones."""
    return bool(guess.values) and guess.values[0][1] > 1


def is_identifier(guess: Guess) -> bool:
    """Whether a column seems to identify records or people: by its name, or since nearly all cells differ.

    Numbers qualify only if they are integers and all differ, since nearly all measurements differ too.
    """
    if _is_named_identifier(guess):
        return True
    if guess.kind in ("empty", "binary", "level"):
        return False
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
        texts = (*cells.texts, "")  # a missing cell has index −1
        return [texts[place] for place in cells.places]
    if isinstance(cells, Numbers):
        return [cell if cell is not None else "" for cell in as_texts(cells)]
    return list(cells)


class _Seen:
    """Statistics of a column so far."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.cells = self.missing = self.unreadable = self.numbers = 0
        self.low, self.high = np.inf, -np.inf
        self.numeric = self.whole = True
        self.marks: set[str] = set()
        self.commas = self.points = False
        self.numeric_but_commas = self.may_be_thousands = True

    def add(self, texts: Sequence[str | None]) -> None:
        self.cells += len(texts)
        for text, count in Counter(texts).items():
            number = None if text is None or _PADDED.match(text) else as_number(text)
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
                    pointed = may_be_thousands(text)
                    self.points |= pointed
                    self.may_be_thousands &= pointed or (
                        text.lstrip("+-").isdecimal() and number < 1e3
                    )
                # As a schema compares levels: one spelling for 1 and 1.0, and another for 01.
                shown = spelt(as_level(text))
                if shown in self.values or len(self.values) < _KEPT:
                    self.values[shown] += count

    def guess(self, name: str, separator: str) -> Guess:
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
            stand_ins=tuple(self._stand_ins()) if numeric else (),
            # Files with commas between cells have decimal points.
            thousands=numeric and self.points and self.may_be_thousands and separator != ",",
        )

    def _stand_ins(self) -> Iterator[tuple[str, int]]:
        """Yields numbers that may mean missing: half a range beyond others, or negative where none is."""
        held: Counter[float] = Counter()
        for text, count in self.values.items():
            if (number := as_number(text)) is not None:
                held[number] += count
        others = held.keys() - set(map(float, _STAND_INS))
        low, high = min(others, default=0.0), max(others, default=0.0)
        for text in _STAND_INS if others else ():
            value = float(text)
            is_far = max(value - high, low - value) > (high - low) / 2 or value < 0.0 <= low
            if held[value] > 1 and is_far:
                yield text, held[value]

    def _are_codes(self, name: str) -> bool:
        """Whether numbers are codes of a list, such as `admission_type_id`: few values, not personal."""
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
        # Few integers and a word are levels, such as grades and "none". `commas` handles commas.
        words = not few and not self.numeric_but_commas
        if words and others <= (1.0 - _MOSTLY) * (others + self.numbers):
            return "number"
        # Texts that nearly all differ identify records.
        return (
            "level"
            if 2 * different <= self.values.total() and different <= _MOST_LEVELS
            else "text"
        )


def spelt(code: Code) -> str:
    """Writes a cell; of a number the shortest digits that identify it, without a point for integers."""
    return code if isinstance(code, str) else repr(code).removesuffix(".0")
