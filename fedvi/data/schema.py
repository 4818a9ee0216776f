"""Defines a study's declarations about the columns of its tables."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from fedvi.data.cells import bare
from fedvi.data.expected import parse_expected
from fedvi.data.written import NAME, is_number
from fedvi.errors import ConfigError, all_of, did_you_mean

__all__ = [
    "LONGEST_WORD",
    "Binary",
    "Code",
    "Column",
    "Impute",
    "Level",
    "Missing",
    "Number",
    "Outside",
    "Schema",
    "as_code",
    "as_level",
    "as_number",
    "indicator_name",
    "is_printable",
    "later_name",
    "parse_schema",
]

Code = float | str
"""A cell in the form in which it is compared: a float if the text is a number, so "1.0" equals "1"."""

Outside = Literal["clip", "drop", "refuse"]
"""What to do with an undeclared value. "drop": the record counts as zero."""


@dataclass(frozen=True)
class Impute:
    """Replaces a missing cell by ``value``, a public constant.

    Args:
      value: in the unit of the file for a number; a level's name; 1.0 or 0.0 for a binary column.
    """

    value: float | str


Missing = Impute | Literal["indicator", "drop", "refuse"]
"""What to do with a missing cell. "indicator": use the centre, the reference level or false, and add a
coefficient for an indicator that is 1 where the cell is missing."""


@dataclass(frozen=True)
class Number:
    """A number with public bounds, used as (value - center) / scale; or a count, used as it is.

    Args:
      column: name in the file.
      bounds: (lowest, highest) in the unit of the file.
      center: public constant that becomes 0.
      scale: public constant, above 0, that becomes 1.
      outside: "clip" to the bounds, "drop" or "refuse".
      missing: see ``Missing``.
      missing_values: cells that mean missing; texts for NaN and infinity always do.
      whole: whether it is a count: 0, 1, … within integer bounds, with center 0 and scale 1.
      unit: of the file's numbers, such as "years", for tables and reports; may be empty.
    """

    column: str
    bounds: tuple[float, float]
    center: float
    scale: float
    outside: Outside
    missing: Missing
    missing_values: frozenset[Code]
    whole: bool = False
    unit: str = ""

    @property
    def by_bounds(self) -> bool:
        """Whether centre and scale are those of the bounds; any other are meant to standardise it."""
        low, high = self.bounds
        return (self.center, self.scale) == ((low + high) / 2.0, (high - low) / 2.0)


@dataclass(frozen=True)
class Level:
    """One of several declared levels; the first is the reference of the coefficients.

    Args:
      column: name in the file.
      levels: names, as coefficients show them.
      codes: (cell, index in ``levels``) pairs: the cells in the file for each level.
      outside: "drop" or "refuse".
      missing: see ``Missing``.
      missing_values: cells that mean missing.
    """

    column: str
    levels: tuple[str, ...]
    codes: tuple[tuple[Code, int], ...]
    outside: Outside
    missing: Missing
    missing_values: frozenset[Code]


@dataclass(frozen=True)
class Binary:
    """True or false, used as 1 or 0.

    Args:
      column: name in the file.
      true: cells that mean true.
      false: cells that mean false.
      outside: "drop" or "refuse".
      missing: see ``Missing``.
      missing_values: cells that mean missing.
      words: what true and false mean, such as ("male", "female"), for reports.
    """

    column: str
    true: frozenset[Code]
    false: frozenset[Code]
    outside: Outside
    missing: Missing
    missing_values: frozenset[Code]
    words: tuple[str, str] | None = None


Column = Number | Level | Binary

Schema = Mapping[str, Column]
"""Columns by their name in the study, in declared order."""


def parse_schema(raw: Any, *, private: bool) -> Schema:
    """Reads the tables ``[data.schema.NAME]`` of a study file.

    Whether a private study runs must not depend on one record, since that would reveal something. So
    "refuse" exists only in other studies, where it is the default for a missing cell and an undeclared
    level. In private ones it is "drop": the record counts as zero. Both clip a number to its bounds.

    Args:
      raw: the table ``data.schema``, as returned by a TOML reader.
      private: whether the study states a privacy guarantee.

    Raises:
      ConfigError: names the key by its path, its value, and the expected value.

    >>> schema = parse_schema({"age": {"type": "number", "bounds": [18, 100]}}, private=True)
    >>> schema["age"].center, schema["age"].scale, schema["age"].missing
    (59.0, 41.0, 'drop')
    """
    if not isinstance(raw, Mapping) or not raw:
        raise ConfigError(
            f"data.schema: {_shown(raw)}, expected a table for each column",
            'declare one, such as [data.schema.age] with type = "number" and bounds = [18, 100]',
        )
    steps = (partial(_parse_column, name, table, private) for name, table in raw.items())
    schema: dict[str, Column] = dict(zip(raw, all_of(*steps), strict=True))
    for name, column in schema.items():
        if column.missing == "indicator" and indicator_name(name) in schema:
            raise ConfigError(
                f"data.schema.{indicator_name(name)}: this name is taken by the indicator of "
                f"`data.schema.{name}`",
                "give the column another name, and say what the file calls it with `column`",
            )
    return MappingProxyType(schema)


def indicator_name(name: str) -> str:
    """Returns the name of the 0/1 indicator column for missing cells.

    >>> indicator_name("chol")
    'chol_missing'
    """
    return f"{name}_missing"


def later_name(name: str) -> str:
    """Returns the name of the bool column for times above the upper bound; no column of a study has it.

    >>> later_name("days")
    'days, later'
    """
    return f"{name}, later"


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)


def as_number(text: str) -> float | None:
    """Reads a decimal number, NaN or infinity; None for any other text.

    Stricter than ``float``, which also takes "1_000" and digits of other scripts.

    >>> as_number("1e3"), as_number("1_000"), as_number("1,5"), as_number("-inf")
    (1000.0, None, None, -inf)
    """
    text = bare(text)
    if _NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return float(text)
    return None


def as_code(text: str) -> Code:
    """Returns a cell in the form in which it is compared: its number if finite, else its text.

    A letter such as "ä" is the same written as one character or as "a" and its mark (Unicode's NFC).

    >>> as_code("1.0") == as_code("1"), as_code("typical"), as_code("ä") == as_code("a\u0308")
    (True, 'typical', True)
    """
    text = bare(text)
    number = as_number(text)
    if number is None or not math.isfinite(number):
        return text if text.isascii() else unicodedata.normalize("NFC", text)
    return number


def as_level(text: str) -> Code:
    """Returns a cell of a level column in the form in which it is compared; stricter than ``as_code``.

    0117 and 117 are two codes of a list, and so are 250.0 and 250.00, or 1E3 and 1000. A number is what a
    program writes for it: an integer, also with "." or ".0", or a fraction without zeros at its end.

    >>> as_level("0117"), as_level("117"), as_level("117.0"), as_level("250.00"), as_level("1E3")
    ('0117', 117.0, 117.0, '250.00', '1E3')
    """
    text = bare(text)
    code = as_code(text)
    return text if isinstance(code, float) and not _WRITTEN.fullmatch(text) else code


_WRITTEN = re.compile(
    r"-?(0|[1-9]\d*)(\.0?|\.\d*[1-9])?|-?\.\d*[1-9]|-?[1-9](\.\d*[1-9])?e[+-]\d\d+", re.ASCII
)

_DEFAULT_MISSING_VALUES = ("", "?", "NA")
_TYPES = ("binary", "count", "level", "number")
_COMMON_KEYS = ("column", "expected", "missing", "missing_values", "outside", "type")
_KEYS = {
    "binary": (*_COMMON_KEYS, "false", "true", "words"),
    "count": (*_COMMON_KEYS, "bounds", "unit"),
    "level": (*_COMMON_KEYS, "codes", "levels"),
    "number": (*_COMMON_KEYS, "bounds", "center", "scale", "unit"),
}
LONGEST_WORD = 30
# Half of it is the scale, which numbers are divided by.
_LEAST_WIDTH = 1e-300


def _parse_column(name: str, table: Any, private: bool) -> Column:
    path = f"data.schema.{_escaped(name)}"
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{path}: {_shown(name)} cannot be written in a formula",
            "use a letter, then letters, digits, `_` or `.`; if the file calls the column "
            f"{_shown(name)}, say so with `column`",
        )
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{path}: {_shown(table)}, expected a table",
            f'write [{path}] with type = "number", "count", "level" or "binary"',
        )
    kind = _choice(table, path, "type", _TYPES)
    for key in table:
        if key not in _KEYS[kind]:
            raise ConfigError(
                f"{path}.{_escaped(str(key))}: unknown key of a {kind} column",
                did_you_mean(key, _KEYS[kind]),
            )
    column = table.get("column", name)
    if not isinstance(column, str) or not column.strip():
        raise ConfigError(
            f"{path}.column: {_shown(column)}, expected the column's name in the file",
            f"leave it out if the file says {_shown(name)} too",
        )
    column = unicodedata.normalize("NFC", column.strip())
    _check_printable(column, f"{path}.column", "rename the column in the file, such as", name)
    made: Column
    if kind in ("count", "number"):
        made = _parse_number(table, path, column, private, whole=kind == "count")
    elif kind == "level":
        made = _parse_level(table, path, column, private)
    else:
        made = _parse_binary(table, path, column, private)
    parse_expected(table, path)  # checked here; only planning uses it
    return made


def _parse_number(
    table: Mapping[str, Any], path: str, column: str, private: bool, *, whole: bool
) -> Number:
    bounds = table.get("bounds")
    if (
        not isinstance(bounds, (list, tuple))
        or len(bounds) != 2
        or not all(is_number(bound) for bound in bounds)
        or not bounds[0] < bounds[1]
    ):
        found = "missing" if "bounds" not in table else _shown(bounds)
        raise ConfigError(
            f"{path}.bounds: {found}, expected [lowest, highest]",
            "state bounds that are known without looking at the data, such as [18, 100] for age",
        )
    low, high = float(bounds[0]), float(bounds[1])
    if not _LEAST_WIDTH < high - low < math.inf:
        raise ConfigError(
            f"{path}.bounds: {_shown(bounds)}, a width of {high - low:g}, expected a finite one above "
            f"{_LEAST_WIDTH:g}",
            "write them in a unit in which both are ordinary numbers, such as [18, 100]",
        )
    if whole and not (low >= 0.0 and low.is_integer() and high.is_integer()):
        raise ConfigError(
            f"{path}.bounds: {_shown(bounds)}, expected whole numbers from 0 up for a count",
            'write, for example, [0, 20]; what is no count has type = "number"',
        )
    center = 0.0 if whole else _constant(table, path, "center", (low + high) / 2)
    scale = 1.0 if whole else _constant(table, path, "scale", (high - low) / 2)
    if not scale > 0:
        raise ConfigError(
            f"{path}.scale: {_shown(table['scale'])}, expected a number above 0",
            f"leave it out for half the width of the bounds, {(high - low) / 2:g}",
        )
    outside = _outside(table, path, ("clip", "drop", "refuse"), "clip", private)

    def fill(value: Any) -> float:
        if not is_number(value) or not low <= value <= high:
            raise ConfigError(
                f"{path}.missing.impute: {_shown(value)}, expected a number within the bounds "
                f"[{low:g}, {high:g}]",
                "impute a public constant, in the unit of the file",
            )
        return float(value)

    missing = _missing(table, path, private, fill)
    values = _missing_values(table, path, taken=())
    unit = _word(table["unit"], f"{path}.unit", "years") if "unit" in table else ""
    return Number(column, (low, high), center, scale, outside, missing, values, whole, unit)


def _parse_level(table: Mapping[str, Any], path: str, column: str, private: bool) -> Level:
    levels = tuple(_text(item) for item in _codes(table, path, "levels"))
    if len(levels) < 2 or len(set(levels)) < len(levels) or "" in levels:
        raise ConfigError(
            f"{path}.levels: {_shown(list(levels))}, expected two or more different names",
            "list each level once; the first is the reference",
        )
    for index, level in enumerate(levels):
        hint = "name it for people, and let `codes` say how the file writes it, such as"
        _check_printable(level, f"{path}.levels", hint, f"level {index + 1}")
    codes = _level_codes(table, path, levels)
    outside = _outside(table, path, ("drop", "refuse"), None, private)

    def fill(value: Any) -> str:
        return levels[_level_index(value, levels, f"{path}.missing.impute")]

    missing = _missing(table, path, private, fill)
    if missing == "indicator" and "missing" in levels:
        raise ConfigError(
            f'{path}.levels: "missing" would have the same coefficient as missing = "indicator"',
            f'declare the missing cells as that level: missing = {{ impute = "missing" }} '
            f"under [{path}]",
        )
    values = _missing_values(table, path, taken=[code for code, _ in codes], read=as_level)
    return Level(column, levels, codes, outside, missing, values)


def _level_codes(
    table: Mapping[str, Any], path: str, levels: tuple[str, ...]
) -> tuple[tuple[Code, int], ...]:
    raw = table.get("codes", {level: level for level in levels})
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"{path}.codes: {_shown(raw)}, expected a table from cells of the file to levels",
            f'write, for example, codes = {{ "1" = "{levels[0]}", "2" = "{levels[1]}" }}',
        )
    codes: dict[Code, int] = {}
    for cell, level in raw.items():
        index = _level_index(level, levels, f"{path}.codes.{_escaped(str(cell))}")
        code = as_level(str(cell).strip())
        if code in codes:
            raise ConfigError(
                f"{path}.codes: {_shown(cell)} is declared twice",
                "1 and 1.0 are the same, 1 and 01 are not; an ' before what begins a formula, as in '=1, "
                "is ignored",
            )
        codes[code] = index
    for index, level in enumerate(levels):
        if index not in codes.values():
            raise ConfigError(
                f"{path}.codes: no cell means the level {_shown(level)}",
                f'add one, such as "{level}" = "{level}", or take the level out of `levels`',
            )
    return tuple(codes.items())


def _level_index(value: Any, levels: tuple[str, ...], path: str) -> int:
    level = _text(value) if _is_code(value) else None
    if level not in levels:
        raise ConfigError(
            f"{path}: {_shown(value)}, expected one of the levels", did_you_mean(str(value), levels)
        )
    return levels.index(level)


def _parse_binary(table: Mapping[str, Any], path: str, column: str, private: bool) -> Binary:
    given = [key for key in ("true", "false") if key in table]
    if len(given) == 1:
        other = "false" if given == ["true"] else "true"
        raise ConfigError(
            f"{path}.{other}: missing, expected a list of cells, as for `{given[0]}`",
            "declare both, or neither for true = [1] and false = [0]",
        )
    true, false = (
        frozenset(as_code(_text(item)) for item in _codes(table, path, key, default))
        for key, default in (("true", [1]), ("false", [0]))
    )
    if true & false:
        both = ", ".join(
            sorted(f"{code:g}" if isinstance(code, float) else code for code in true & false)
        )
        raise ConfigError(
            f"{path}.true: {both} is also in `{path}.false`",
            "cells that are numbers are compared as numbers: 1 and 1.0 are the same",
        )
    outside = _outside(table, path, ("drop", "refuse"), None, private)

    def fill(value: Any) -> float:
        if not isinstance(value, bool):
            raise ConfigError(
                f"{path}.missing.impute: {_shown(value)}, expected true or false",
                "write { impute = false }",
            )
        return float(value)

    missing = _missing(table, path, private, fill)
    values = _missing_values(table, path, taken=true | false)
    words = table.get("words")
    if words is not None:
        if not isinstance(words, (list, tuple)) or len(words) != 2 or words[0] == words[1]:
            raise ConfigError(
                f"{path}.words: {_shown(words)}, expected two words: what true and false mean",
                'write, for example, words = ["male", "female"]',
            )
        words = (
            _word(words[0], f"{path}.words", "male"),
            _word(words[1], f"{path}.words", "female"),
        )
    return Binary(column, true, false, outside, missing, values, words)


def _word(value: Any, path: str, example: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_WORD:
        raise ConfigError(
            f"{path}: {_shown(value)}, expected 1 to {LONGEST_WORD} characters",
            f'a word for tables and reports, such as "{example}"',
        )
    _check_printable(value, path, "write it with letters, such as", example)
    return value.strip()


def _outside(
    table: Mapping[str, Any],
    path: str,
    choices: tuple[str, ...],
    default: str | None,
    private: bool,
) -> Any:
    """Reads a rule; ``default`` None means "drop" in a private study, "refuse" in others."""
    if default is None:
        default = "drop" if private else "refuse"
    outside = _choice(table, path, "outside", choices, default)
    if outside == "refuse" and private:
        allowed = " or ".join(f'"{choice}"' for choice in choices if choice != "refuse")
        raise ConfigError(
            f'{path}.outside: "refuse" in a private study, expected {allowed}',
            "whether a private study runs may not depend on one record; "
            '"drop" lets the record count as zero',
        )
    return outside


def _missing(
    table: Mapping[str, Any], path: str, private: bool, fill: Callable[[Any], float | str]
) -> Missing:
    raw = table.get("missing", "drop" if private else "refuse")
    if isinstance(raw, Mapping):
        for key in raw:
            if key != "impute":
                raise ConfigError(
                    f"{path}.missing.{key}: unknown key", did_you_mean(key, ["impute"])
                )
        if "impute" not in raw:
            raise ConfigError(f"{path}.missing: an empty table", "write { impute = VALUE }")
        return Impute(fill(raw["impute"]))
    if raw not in ("indicator", "drop", "refuse"):
        hint = 'use { impute = VALUE }, "indicator" or "drop"'
        raise ConfigError(
            f"{path}.missing: {_shown(raw)}, expected a rule for missing cells",
            hint if private else hint + ', or "refuse"',
        )
    if raw == "refuse" and private:
        raise ConfigError(
            f'{path}.missing: "refuse" in a private study, expected {{ impute = VALUE }}, '
            '"indicator" or "drop"',
            "whether a private study runs may not depend on one record; "
            '"drop" lets the record count as zero',
        )
    return raw


def _missing_values(
    table: Mapping[str, Any],
    path: str,
    taken: Iterable[Code],
    read: Callable[[str], Code] = as_code,
) -> frozenset[Code]:
    """Reads missing values. A declared code overrides a default for missing: "NA" may be a country."""
    taken = set(taken)
    declared = {read(_text(item)) for item in _codes(table, path, "missing_values", [])}
    if declared & taken:
        both = ", ".join(str(code) for code in declared & taken)
        raise ConfigError(
            f"{path}.missing_values: {both} is also declared as a value",
            "a cell can mean missing or a value, not both",
        )
    return frozenset(declared | ({read(item) for item in _DEFAULT_MISSING_VALUES} - taken))


def is_printable(character: str) -> bool:
    """Says whether a character may be shown: not if it controls a terminal or the direction of text.

    Refused are controls, invisible characters, such as those that change the direction of text, and
    characters that XML forbids. The two zero-width joiners, which some scripts need, are allowed.

    >>> [is_printable(sign) for sign in ("é", " ", "\\x1b", "\\u202e")]
    [True, True, False, False]
    """
    if character.isprintable() or character in "\u200c\u200d":
        return True
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return False
    # Noncharacters. Merely unassigned characters differ between versions of Python.
    code = ord(character)
    return code & 0xFFFE != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF


def _check_printable(value: str, path: str, hint: str, example: str) -> None:
    if not all(map(is_printable, value)):
        raise ConfigError(
            f"{path}: {_shown(value)}, expected a name without characters that control a terminal or the "
            "direction of reading",
            f'{hint} "{_readable(value) or example}"',
        )


def _readable(value: str) -> str:
    return "".join(filter(is_printable, value)).strip()


def _escaped(text: str) -> str:
    """Escapes unprintable characters as Python does: they might control the terminal showing the error."""
    return "".join(c if is_printable(c) else c.encode("unicode_escape").decode() for c in text)


def _choice(
    table: Mapping[str, Any],
    path: str,
    key: str,
    choices: tuple[str, ...],
    default: str | None = None,
) -> str:
    value = table.get(key, default)
    if value not in choices:
        found = "missing" if key not in table else _shown(value)
        expected = ", ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(
            f"{path}.{key}: {found}, expected one of {expected}",
            did_you_mean(str(value), choices) if key in table else f'add {key} = "{choices[-1]}"',
        )
    return str(value)


def _constant(table: Mapping[str, Any], path: str, key: str, default: float) -> float:
    value = table.get(key, default)
    if not is_number(value):
        raise ConfigError(
            f"{path}.{key}: {_shown(value)}, expected a finite number",
            f"state a public constant, or leave it out for {default:g}",
        )
    return float(value)


def _codes(
    table: Mapping[str, Any], path: str, key: str, default: list[Any] | None = None
) -> list[str | int | float]:
    value = table.get(key, default)
    if not isinstance(value, (list, tuple)) or not all(_is_code(item) for item in value):
        found = "missing" if key not in table else _shown(value)
        raise ConfigError(
            f"{path}.{key}: {found}, expected a list of texts or numbers",
            f'write, for example, {key} = ["a", "b"]',
        )
    if not value and default != []:
        raise ConfigError(
            f"{path}.{key}: an empty list, expected texts or numbers",
            f'write, for example, {key} = ["a", "b"]',
        )
    return list(value)


def _is_code(value: Any) -> bool:
    return isinstance(value, str) or is_number(value)


def _text(value: str | int | float) -> str:
    return value.strip() if isinstance(value, str) else repr(value)


def _shown(value: Any) -> str:
    return f'"{_escaped(value)}"' if isinstance(value, str) else repr(value)
