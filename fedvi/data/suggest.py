"""Suggests how a study could declare a column of a file, for a person to confirm.

A suggestion has no bounds and no value of a single record. Bounds computed from the data reveal something
about them: the largest age in a file is one person's age, and everybody could read it in the study.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

from fedvi.data.cells import TRUTHS, has_decimal_comma
from fedvi.data.guess import Guess, often_missing
from fedvi.data.schema import as_number, is_printable

__all__ = ["suggested", "values_of", "words_for_missing"]

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
)


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
    if kind is None:
        kind = looks
    if kind == "binary" and looks in ("level", "number"):
        return None  # the bare type means 1 and 0
    if kind not in ("binary", "level") or looks not in ("binary", kind):
        return kind
    values = list(values_of(guess))
    if kind == "level":
        plain = not any('"' in value or value != value.strip() for value in values)
        written = (f'"{value}"' if "," in value else value for value in values)
        return f"level:{','.join(written)}" if plain and len(values) > 1 else kind
    pair = sorted(value.casefold() for value, _ in guess.values)
    if pair == ["0", "1"]:
        return "binary:1/0"
    if len(values) < 2 or any(set(value) & set(",/") for value in values):
        return None
    if any(map(_unknown, values)):
        return None  # the other answer may be in another site's file
    if tuple(pair) in _TRUTHS:
        values.sort(key=lambda value: any(value.casefold() == true for _, true in TRUTHS))
    return f"binary:{values[1]}/{values[0]}"


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
    """
    values = sorted(values, key=_natural)
    for scale in _SCALES:
        if all(value.casefold() in scale for value in values):
            return sorted(values, key=lambda value: scale.index(value.casefold()))
    found = [_ROMAN.fullmatch(value) for value in values]
    if all(found) and len({match[1].casefold() for match in found if match}) == 1:
        values.sort(key=_as_roman)
    return values


def _as_roman(value: str) -> tuple[int, str]:
    match = _ROMAN.fullmatch(value)
    assert match is not None
    digits = [{"I": 1, "V": 5, "X": 10}[digit] for digit in match[2].upper()]
    total = sum(
        -digit if digit < following else digit
        for digit, following in zip(digits, [*digits[1:], 0], strict=True)
    )
    return total, match[3].casefold()
