"""Drafts a `[data]` section of a study from a file.

Bounds computed from the data reveal something about them: the largest age in a file is one person's age,
and everybody could read it in the study. So a draft leaves bounds out, and a study does not run without
them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedvi.data.cells import TRUTHS, has_decimal_comma
from fedvi.data.guess import Guess, is_named_identifier, often_missing
from fedvi.data.schema import as_number, is_printable
from fedvi.data.written import key as written_key
from fedvi.data.written import named, toml
from fedvi.errors import ConfigError, did_you_mean

__all__ = [
    "Draft",
    "Options",
    "draft_schema",
    "rounded_out",
    "suggested",
    "values_of",
    "words_for_missing",
]


class Options(NamedTuple):
    """A person's choices for a draft.

    Attributes:
      source: the file's name, for the first line.
      response: the model's outcome column; or None.
      bounds: column → stated public bounds.
      from_data: whether other bounds are taken from the file; only for data that need no protection.
      columns: names of the columns of a file that has none; else None.
      separator: between cells.
    """

    source: str
    response: str | None = None
    bounds: Mapping[str, tuple[float, float]] = {}
    from_data: bool = False
    columns: Sequence[str] | None = None
    separator: str = ","


class Draft(NamedTuple):
    """A drafted section.

    Attributes:
      text: TOML.
      open: keys that a person must state before a study can run.
      confirm: keys whose values were found in the file, and must be confirmed.
      formula: for the response, or None.
    """

    text: str
    open: tuple[str, ...]
    confirm: tuple[str, ...]
    formula: str | None


def draft_schema(guesses: Sequence[Guess], options: Options) -> Draft:
    """Writes ``[data]`` and a table for each column.

    Raises:
      ConfigError: bounds or the response name an unknown column, or one of the wrong type.
    """
    names = [guess.name for guess in guesses if all(map(is_printable, guess.name))]
    for given in (*options.bounds, *([options.response] if options.response else [])):
        if given not in names:
            raise ConfigError(
                f"{'--bounds' if given in options.bounds else '--response'} names the column "
                f"{given!r}, which the file does not have",
                did_you_mean(given, names),
            )
    called = {column: name for name, column in named(names).items()}
    lines = _head(options)
    still_open: list[str] = []
    confirm: list[str] = []
    terms: list[str] = []
    for guess in guesses:
        if guess.name not in called:
            lines += ["", *_UNPRINTABLE]
            continue
        name = called[guess.name]
        stated = options.bounds.get(guess.name)
        if stated is not None and guess.low is None and guess.kind != "empty":
            raise ConfigError(
                f"--bounds {guess.name}={stated[0]:g},{stated[1]:g} is of a column that "
                + ("has decimal commas" if guess.commas else "holds text"),
                "save the file again with points: 3.5 for 3,5"
                if guess.commas
                else "bounds are of a column where nine in ten of the cells or more are numbers",
            )
        if guess.kind in ("text", "empty") or guess.commas:
            if guess.name == options.response:
                text = "has decimal commas" if guess.commas else "holds text of many kinds"
                raise ConfigError(
                    f"--response names the column {guess.name!r}, which "
                    + ("has no value" if guess.kind == "empty" else text),
                    "save the file again with points: 3.5 for 3,5"
                    if guess.commas
                    else "an outcome is a number, a count, true or false, or one of a few levels",
                )
            lines += ["", *_left_out(guess)]
            continue
        explains = not (_is_same(guess) or is_named_identifier(guess))
        if stated is None and guess.name != options.response and not explains:
            lines += ["", *_left_out(guess)]
            continue
        table = _table(guess, name, options)
        lines += ["", *table.lines]
        still_open += table.open
        confirm += table.confirm
        if guess.name != options.response:
            terms.append(name)
    formula = None
    if options.response is not None:
        formula = f"{called[options.response]} ~ {' + '.join(terms) or '1'}"
    return Draft("\n".join(lines) + "\n", tuple(still_open), tuple(confirm), formula)


def rounded_out(low: float, high: float) -> tuple[float, float]:
    """Widens an interval to whole steps of the power of ten below its width.

    >>> rounded_out(29.0, 77.0), rounded_out(0.4, 6.2), rounded_out(5.0, 5.0)
    ((20.0, 80.0), (0.0, 7.0), (4.0, 6.0))
    """
    if not low < high:
        return low - 1.0, high + 1.0
    power = math.floor(math.log10(high - low))
    step = 10.0**power
    least, largest = math.floor(low / step) * step, math.ceil(high / step) * step
    # Rounded once more, since 3 × 0.1 is not 0.3.
    return round(least, -power), round(largest, -power)


class _Table(NamedTuple):
    lines: list[str]
    open: list[str]
    confirm: list[str]


_TRUTHS = frozenset(tuple(sorted(pair)) for pair in TRUTHS)
_UNPRINTABLE = (
    "# A column's name has characters that cannot be seen, or turn the direction of reading, and no study",
    "# may hold it: rename it in the file.",
)
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
_STATE = "STATE ME"
_CONFIRM = "CONFIRM"
_FROM_DATA = "FROM THE DATA"


def _head(options: Options) -> list[str]:
    lines = [
        f"# Drafted from {toml(options.source)} by `fedvi data schema`: a start, and no study yet.",
        "#",
        f"# {_STATE}: nobody may take it from the data. Bounds such as the largest age in a file tell",
        "#   about the record that has it, and everybody reads a study: state what the quantity can be.",
        f"# {_CONFIRM}: found in the file. Keep it if it is public knowledge that a cell can hold it; add",
        "#   what could occur and did not, and take out what only one record has.",
    ]
    if options.from_data:
        lines += [
            f"# {_FROM_DATA}: bounds that are not private. For data that need no protection, or a try.",
        ]
    lines += [
        "#",
        "# A cell that is missing: left out, the record counts as zero in a private study. In place of it",
        '# write missing = { impute = VALUE }, a public constant, or missing = "indicator".',
        "[data]",
    ]
    if options.columns is not None:
        lines.append(f"columns = {toml(list(options.columns))}")
    if options.separator != ",":
        lines.append(f"separator = {toml(options.separator)}")
    lines.append(
        f"# max_records = 1000   # {_STATE}, for a private study: the most records of any client"
    )
    return lines


def _is_same(guess: Guess) -> bool:
    return guess.kind == "level" and guess.different == 1


def _left_out(guess: Guess) -> list[str]:
    if guess.kind == "empty":
        return [f"# {toml(guess.name)} has no value in this file."]
    if _is_same(guess):
        return [
            f"# {toml(guess.name)} is the same in all records of this file, and explains nothing."
        ]
    if guess.commas:
        return [
            f"# {toml(guess.name)} holds numbers with decimal commas, which no study reads: save the file",
            "# again with points, and draft once more.",
        ]
    what = (
        "identifies records or people, by its name"
        if is_named_identifier(guess)
        else "holds text that differs from record to record"
    )
    return [
        f"# {toml(guess.name)} {what}, and is no covariate. If it",
        f"# says whose a row is: unit_column = {toml(guess.name)} under [data].",
    ]


def _table(guess: Guess, name: str, options: Options) -> _Table:
    key = f"data.schema.{name}"
    lines = [f"[data.schema.{written_key(name)}]"]
    if name != guess.name:
        lines.append(f"column = {toml(guess.name)}")
    stated = options.bounds.get(guess.name)
    if guess.kind == "number" or stated is not None:
        more, still_open = _number(guess, key, stated, options)
        words, confirm = _odd(guess, key)
        more += words
    else:
        more, still_open, confirm = _codes(guess, key)
    lines += more
    if guess.marks and guess.kind in ("binary", "level") and stated is None:
        lines.append(f"missing_values = {toml(guess.marks)}")
    if guess.name == options.response:
        lines.append('missing = "drop"   # an outcome is never made up')
    return _Table(lines, still_open, confirm)


def _number(
    guess: Guess, key: str, stated: tuple[float, float] | None, options: Options
) -> tuple[list[str], list[str]]:
    counts = guess.whole and guess.name == options.response and (guess.low or 0.0) >= 0.0
    lines = [
        'type = "count"   # or "number", if it does not count anything'
        if counts
        else 'type = "number"'
    ]
    if stated is not None:
        lines.append(f"bounds = {toml(list(stated))}")
    elif options.from_data and guess.low is not None and guess.high is not None:
        low, high = rounded_out(guess.low, guess.high)
        bounds = [max(0.0, low), high] if counts else [low, high]
        lines.append(f"bounds = {toml(bounds)}   # {_FROM_DATA}")
    else:
        why = "lowest and highest that it can be, in the unit of the file"
        return [*lines, f"bounds = []   # {_STATE}: {why}"], [f"{key}.bounds"]
    return lines, []


def _odd(guess: Guess, key: str) -> tuple[list[str], list[str]]:
    """Drafts cells of a column of numbers that may mean missing, without those of a single record."""
    words, numbers = _known(guess), [int(text) for text, _ in guess.stand_ins]
    lines = []
    if words or numbers:
        why = "taken as missing" if numbers else "no numbers, and taken as missing"
        lines.append(f"missing_values = {toml([*words, *numbers])}   # {_CONFIRM}: {why}")
    if len(words) < len(guess.odd):
        lines += [
            "# More cells are no numbers: `fedvi data inspect` shows them. Mend them in the file, or add",
            "# what is public knowledge to missing_values. Their records count as zero in a private study.",
        ]
    return lines, [f"{key}.missing_values"] if words or numbers else []


def _known(guess: Guess) -> list[str]:
    words = (
        word for word, count in guess.odd if (count > 1 or often_missing(word)) and _is_word(word)
    )
    return sorted(words, key=_natural)[:_MOST_WORDS]


def values_of(guess: Guess) -> tuple[str, ...]:
    """Returns the values of a column of levels, without values of a single record."""
    return tuple(_in_order(text for text, count in guess.values if count > 1 and _is_word(text)))


def words_for_missing(guess: Guess, kind: str) -> list[str]:
    """Returns a column's extra words for a missing cell, beside those that always count as missing."""
    return _known(guess) if kind in ("number", "count") else list(guess.marks)


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
        plain = not any("," in value or value != value.strip() for value in values)
        return f"level:{','.join(values)}" if plain and len(values) > 1 else kind
    pair = sorted(value.casefold() for value, _ in guess.values)
    if pair == ["0", "1"]:
        return "binary:1/0"
    if len(values) < 2 or any(set(value) & set(",/") for value in values):
        return None
    if tuple(pair) in _TRUTHS:
        values.sort(key=lambda value: any(value.casefold() == true for _, true in TRUTHS))
    return f"binary:{values[1]}/{values[0]}"


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


def _codes(guess: Guess, key: str) -> tuple[list[str], list[str], list[str]]:
    """Drafts levels and binary columns."""
    values = _in_order(value for value, _ in guess.values)
    if guess.kind == "binary":
        if set(values) == {"0", "1"}:
            return ['type = "binary"   # 1 is true, 0 is false'], [], []
        if tuple(sorted(value.casefold() for value in values)) in _TRUTHS:
            values.sort(key=lambda value: any(value.casefold() == true for _, true in TRUTHS))
            lines = ['type = "binary"', f"false = [{toml(values[0])}]"]
            return [*lines, f"true = [{toml(values[1])}]   # as the words say"], [], []
        lines = [
            'type = "binary"',
            f"false = [{toml(values[0])}]   # {_CONFIRM}, and which of the two it is",
            f"true = [{toml(values[1])}]",
        ]
        return lines, [], [f"{key}.true"]
    numbers = guess.low is not None
    lines = [
        'type = "level"   # of few whole numbers: or "number" with bounds, if they are a quantity'
        if numbers
        else 'type = "level"',
        f"levels = {toml(values)}   # {_CONFIRM}; the first is the reference",
    ]
    return lines, [], [f"{key}.levels"]
