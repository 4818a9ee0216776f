"""Suggests how a study could declare a column of a file, for a person to confirm.

A suggestion has no bounds and no value of a single record. Bounds computed from the data reveal something
about them: the largest age in a file is one person's age, and everybody could read it in the study.
"""

import calendar
import math
import re
from collections.abc import Iterable
from typing import Any

from fedvi.data.cells import TRUTHS, has_decimal_comma
from fedvi.data.guess import Guess, often_missing
from fedvi.data.schema import as_number, is_printable

__all__ = ["may_be_codes", "spellings_of", "suggested", "values_of", "words_for_missing"]

_TRUTHS = frozenset(tuple(sorted(pair)) for pair in TRUTHS)
_MOST_WORDS = 12
# "Stage" + II + "b".
_ROMAN = re.compile(r"(.*?)\b([IVX]+)([a-d]?[0-9]?)", re.IGNORECASE)
# Words with an order of their own, where the alphabet would make `high` the reference.
_SCALES = (
    (
        "none",
        "very low",
        "low",
        "normal",
        "medium",
        "moderate",
        "intermediate",
        "high",
        "very high",
    ),
    ("none", "minimal", "mild", "moderate", "severe", "critical"),
    ("small", "medium", "large"),
    ("never", "former", "current"),
    ("poor", "fair", "good", "very good", "excellent"),
    ("none", "primary", "secondary", "tertiary"),
    tuple(map(str.casefold, calendar.month_abbr[1:])),
    tuple(map(str.casefold, calendar.month_name[1:])),
    tuple(map(str.casefold, calendar.day_abbr)),
    tuple(map(str.casefold, calendar.day_name)),
)
# A range of numbers: "[0-10)", "18 to 25", "<18", "under 18", "65+", "65 and over".
_BELOW, _ABOVE = r"<=?|≤|under|below|up to|less than", r">=?|≥|over|above|more than"
_RANGE = re.compile(
    rf"[\[(]?\s*(?P<opens>{_BELOW}|{_ABOVE})?\s*(?P<low>-?\d+(?:\.\d+)?)"
    r"(?:\s*(?:-|–|to|,|\.\.)\s*(?P<high>-?\d+(?:\.\d+)?))?\s*"
    r"(?P<ends>\+|and (?:over|more|older))?\s*[\])]?",
    re.IGNORECASE,
)
# More different whole numbers are no list of codes, unless the column's name says so.
_MOST_CODES = 20


def suggested(guess: Guess, kind: str | None = None) -> str | None:
    """Suggests a column's declaration, as TYPE or TYPE:…, for a person to confirm.

    It contains no bounds, and no level of a single record, which would reveal something about it.

    Args:
      guess: the column.
      kind: the type, if the model requires one.

    Returns:
      The text, as `fedvi init --column` takes it; None if nothing can be suggested.
    """
    looks = None if guess.commas or guess.kind in ("text", "empty") else guess.kind
    if looks == "number" and may_be_codes(guess) and kind in (None, "level"):
        if kind is None:
            return None  # only a person can tell
        looks = "level"
    if kind is None:
        kind = looks
    if looks == "level" and kind in ("binary", "level") and (said := _pair_of_spellings(guess)):
        return said
    if kind == "binary" and looks in ("level", "number"):
        return None  # the bare type means 1 and 0
    if kind not in ("binary", "level") or looks not in ("binary", kind):
        return kind
    values = list(values_of(guess))
    if kind == "level":
        plain = not any('"' in value or value != value.strip() for value in values)
        written = (f'"{value}"' if set(value) & set(",=") else value for value in values)
        return f"level:{','.join(written)}" if plain and len(values) > 1 else kind
    pair = sorted(value.casefold() for value, _ in guess.values)
    if pair == ["0", "1"]:
        return "binary:1/0"
    if len(values) < 2 or not _are_plain(values):
        return None
    if tuple(pair) in _TRUTHS:
        values.sort(key=_is_true)
    return f"binary:{values[1]}/{values[0]}"


def _pair_of_spellings(guess: Guess) -> str | None:
    """Suggests a yes or no where several spellings, such as "m" and "M", are two values."""
    values = values_of(guess)
    groups = sorted(spellings_of(values), key=lambda group: _is_true(group[0]))
    if len(groups) != 2 or len(values) == 2 or not _are_plain(values):
        return None
    return f"binary:{','.join(groups[1])}/{','.join(groups[0])}"


def _are_plain(values: Iterable[str]) -> bool:
    """Whether `binary:` can hold the values, and the other answer is not in another site's file."""
    return not any(set(value) & set(",/") or _unknown(value) for value in values)


def _is_true(value: str) -> bool:
    return any(value.casefold() == true for _, true in TRUTHS)


def spellings_of(values: Iterable[str]) -> list[list[str]]:
    """Groups values that differ in upper and lower case alone, in their order.

    >>> spellings_of(["f", "M", "m"])
    [['f'], ['M', 'm']]
    """
    found: dict[str, list[str]] = {}
    for value in values:
        found.setdefault(value.casefold(), []).append(value)
    return list(found.values())


def may_be_codes(guess: Guess) -> bool:
    """Whether a column that looks like numbers may have codes of a list, whose order means nothing.

    True of 3 to 20 different whole numbers, each of two records or more in the mean.
    """
    many = guess.cells - guess.missing - guess.unreadable
    few = 2 < guess.different <= min(_MOST_CODES, many // 2)
    return guess.kind in ("number", "level") and guess.whole and few and not guess.odd


def values_of(guess: Guess) -> tuple[str, ...]:
    """Returns the values of a column of levels, without values of a single record."""
    values = _in_order(text for text, count in guess.values if count > 1 and _is_word(text))
    # The first level is the reference, which "unknown" should not be.
    return tuple(sorted(values, key=_unknown))


def _unknown(value: str) -> bool:
    """Whether a level is a word for a value that is not known."""
    return as_number(value) is None and often_missing(value)


def words_for_missing(guess: Guess, kind: str) -> list[str]:
    """Returns a column's extra words for a missing cell, beside those that always count as missing.

    Of a single record, only a word that says nothing but that a value is not known.
    """
    if kind not in ("number", "count"):
        return list(guess.marks)
    words = (
        word for word, count in guess.odd if (count > 1 or often_missing(word)) and _is_word(word)
    )
    return sorted(words, key=_natural)[:_MOST_WORDS]


def _is_word(cell: str) -> bool:
    return all(map(is_printable, cell)) and not has_decimal_comma(cell)


def _natural(value: str) -> tuple[Any, ...]:
    """Sort key: numbers by value, other texts alphabetically, "T2" before "T10".

    >>> sorted(["T10", "beta", "10", "T2", "2", "alpha"], key=_natural)
    ['2', '10', 'alpha', 'beta', 'T2', 'T10']
    """
    number = as_number(value)
    if number is not None and math.isfinite(number):
        return (0, number)
    parts = re.split(r"([0-9]+)", value.casefold())
    # Texts and integers alternate, so that values of the same type are compared.
    return (1, [int(part) if place % 2 else part for place, part in enumerate(parts)], value)


def _in_order(values: Iterable[str]) -> list[str]:
    """Sorts values by their content, so that their order does not reveal frequencies.

    >>> _in_order(["IV", "I", "III", "II"]), _in_order(["Grade IIIB", "grade II"])
    (['I', 'II', 'III', 'IV'], ['grade II', 'Grade IIIB'])
    >>> _in_order(["High", "Low", "Medium"]), _in_order(["high", "low", "other"])
    (['Low', 'Medium', 'High'], ['high', 'low', 'other'])
    >>> _in_order(["[10-20)", "[100-110)", "[0-10)"]), _in_order(["65+", "18-64", "<18"])
    (['[0-10)', '[10-20)', '[100-110)'], ['<18', '18-64', '65+'])
    """
    values = sorted(values, key=_natural)
    for scale in _SCALES:
        if all(value.casefold() in scale for value in values):
            return sorted(values, key=lambda value: scale.index(value.casefold()))
    ranges = {value: ends for value in values if (ends := _as_range(value)) is not None}
    words = [value for value in values if value not in ranges]
    if ranges and all(map(_unknown, words)):
        return sorted(ranges, key=lambda value: ranges[value]) + words
    found = [_ROMAN.fullmatch(value) for value in values]
    if all(found) and len({match[1].casefold() for match in found if match}) == 1:
        values.sort(key=_as_roman)
    return values


def _as_range(value: str) -> tuple[float, float] | None:
    """Returns a range's least and largest number; None of any other text.

    >>> _as_range("[100-110)"), _as_range("<18"), _as_range("65+"), _as_range("T2")
    ((100.0, 110.0), (-inf, 18.0), (65.0, inf), None)
    """
    match = _RANGE.fullmatch(value.strip())
    low = None if match is None else as_number(match["low"])
    high = low if match is None or match["high"] is None else as_number(match["high"])
    if match is None or low is None or high is None:
        return None
    opens = match["opens"] or ""
    if opens and re.fullmatch(_BELOW, opens, re.IGNORECASE):
        return -math.inf, low
    return low, math.inf if opens or match["ends"] else high


def _as_roman(value: str) -> tuple[int, str]:
    match = _ROMAN.fullmatch(value)
    assert match is not None
    digits = [{"I": 1, "V": 5, "X": 10}[digit] for digit in match[2].upper()]
    total = sum(
        -digit if digit < following else digit
        for digit, following in zip(digits, [*digits[1:], 0], strict=True)
    )
    return total, match[3].casefold()
