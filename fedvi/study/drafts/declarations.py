"""Reads what flags and answers say of columns, and of keys of the model, in a draft of a study."""

import re
from collections.abc import Mapping
from typing import Any

from fedvi import errors

__all__ = ["cell_of", "cells_of", "parse_column", "parse_setting", "parse_type"]

_TYPES = ("binary", "count", "level", "number")
# Between commas; one that has a comma stands in quotes.
_LEVELS = re.compile(r'\s*"([^"]*)"\s*(?=,|$)|([^,]+)')
# A cell and a word for it; "<=5" is a level by itself.
_WORDED = re.compile(r"\s*([^=<>]*[^=<>\s])\s*=\s*([^=]*[^=\s])\s*")
_SPELLINGS = (
    "write number:LOW..HIGH, count:LOW..HIGH, level:FIRST,SECOND or binary:TRUE/FALSE; what follows "
    "the colon may be left out, and stated in the file"
)


def parse_column(text: str) -> tuple[str, dict[str, Any]]:
    """Reads a value of ``--column``; its bounds are checked with the schema.

    Raises:
      ConfigError: it has no name, no known type, or wrong details for the type.

    >>> parse_column("age=number:18..100")
    ('age', {'type': 'number', 'bounds': [18, 100]})
    >>> parse_column("ill=binary:1,2,yes/0")
    ('ill', {'type': 'binary', 'true': [1, 2, 'yes'], 'false': [0]})
    >>> parse_column('stage=level:I, "II, late"')
    ('stage', {'type': 'level', 'levels': ['I', 'II, late']})
    >>> parse_column("odor=level:a=almond,c=sharp,p=sharp")[1]["codes"]
    {'a': 'almond', 'c': 'sharp', 'p': 'sharp'}
    """
    name, equals, rest = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise errors.ConfigError(
            f"--column is {text!r}, expected NAME=TYPE", "such as age=number:18..100"
        )
    with errors.given_by(f"--column {name}"):
        return name, parse_type(rest)


def parse_type(text: str) -> dict[str, Any]:
    """Reads a column's type with its details, such as "number:18..100".

    Raises:
      ConfigError: there is no such type, or its details are wrong.
    """
    kind, colon, detail = text.strip().partition(":")
    kind = kind.strip()
    if kind not in _TYPES:
        raise errors.ConfigError(
            f"the type is {kind!r}, expected one of {', '.join(_TYPES)}",
            _SPELLINGS,
        )
    return {"type": kind} | (_detail(kind, detail) if colon else {})


def cells_of(table: Mapping[str, Any]) -> frozenset[str]:
    """Returns the listed cells of a column's declaration, without names of columns.

    >>> sorted(cells_of({"type": "binary", "true": ["m", 1], "false": ["f"]}))
    ['1', 'f', 'm']
    """
    listed = (table.get(key, []) for key in ("true", "false", "codes", "levels"))
    return frozenset(str(cell) for cells in listed for cell in cells)


def _detail(kind: str, text: str) -> dict[str, Any]:
    if kind == "level":
        return _levels(text)
    parts = [item.strip() for item in text.split("/" if kind == "binary" else "..")]
    if kind == "binary" and len(parts) == 2 and all(parts):
        true, false = ([cell_of(cell.strip()) for cell in part.split(",")] for part in parts)
        return {"true": true, "false": false}
    if kind != "binary" and len(parts) == 2:
        try:
            return {"bounds": [_number(part) for part in parts]}
        except ValueError:
            pass
    expected = "TRUE/FALSE, cells that mean it" if kind == "binary" else "LOW..HIGH, two numbers"
    raise errors.ConfigError(f"after {kind}: stands {text!r}, expected {expected}", _SPELLINGS)


def _levels(text: str) -> dict[str, Any]:
    """Reads levels between commas, each as the file writes it or as CELL=WORD."""
    levels, codes = [], {}
    for quoted, plain in _LEVELS.findall(text):
        worded = _WORDED.fullmatch(plain)
        cell, word = worded.groups() if worded else [(quoted or plain).strip()] * 2
        if word and not (worded and word in levels):  # several cells may mean one level
            levels.append(word)
        if word:
            codes[cell] = word
    differ = any(cell != word for cell, word in codes.items())
    return {"levels": levels} | ({"codes": codes} if differ else {})


def parse_setting(text: str) -> tuple[str, Any]:
    """Reads a value of ``--setting`` for ``[model]``: a number, or for ``cuts`` a list of numbers.

    Raises:
      ConfigError: it is not KEY=NUMBER.

    >>> parse_setting("cuts=30,90"), parse_setting("dispersion=0.5")
    (('cuts', [30, 90]), ('dispersion', 0.5))
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    try:
        numbers = [_number(item) for item in rest.split(",")]
    except ValueError:
        numbers = []
    if not equals or not key or not numbers:
        raise errors.ConfigError(
            f"--setting is {text!r}, expected KEY=NUMBER, or several numbers between commas",
            "write, for example, --setting cuts=30,90,365",
        )
    return key, numbers if key == "cuts" or len(numbers) > 1 else numbers[0]


def _number(text: str) -> int | float:
    try:
        whole = int(text)
    except ValueError:
        return float(text)
    return whole if abs(whole) < 2**63 else float(text)  # as TOML has it


def cell_of(text: str) -> int | str:
    """Reads a cell as a study writes it: a whole number, or a text."""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else text
