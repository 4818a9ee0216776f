"""Reports, cell by cell, how a file fits a study's schema.

Everything here is computed from the records without protection: it is private to their owner. Nothing here
is used in a run, so that no run can depend on it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fedvi.data import tables
from fedvi.data.cells import TRUTHS, Table, Wanted, has_decimal_comma
from fedvi.data.guess import often_missing, spelt, texts_of
from fedvi.data.load import Clipped, Lost, as_declared, lost_in_words, prepare_chunk
from fedvi.data.remarks import Remarks
from fedvi.data.response import Response
from fedvi.data.schema import (
    Binary,
    Column,
    Impute,
    Level,
    Number,
    Schema,
    as_code,
    as_level,
    as_number,
)
from fedvi.data.units import is_missing
from fedvi.data.written import toml

__all__ = ["ColumnFit", "Fit", "UnitFit", "Verdict", "inspect_file", "verdict"]

Verdict = Literal["fits", "missing", "outside", "unknown", "unreadable"]
"""Of one cell: "outside" its bounds; "unknown": not a number, not an integer, or not a declared level;
"unreadable": its line cannot be read."""

_EXAMPLES = 5
_KEPT = 1_000


class ColumnFit(NamedTuple):
    """How well the cells of one declared column fit.

    Attributes:
      name: in the schema.
      column: in the file.
      used: whether the study's formula uses it.
      counts: verdict → cells.
      examples: verdict → the most frequent cells that do not fit, with their counts, at most 5.
      clipped: cells that are clipped to the bounds.
      dropped: records that count as zero because of this column, alone or with others.
      low, high: the least and largest number read, before clipping; None for other columns.
      done: verdict → what the schema does with such a cell, in words.
      commas: cells of a number that have a decimal comma, and are "unknown".
      advice: what to write into the column's table, where cells that do not fit are usual for missing, or
        are declared values in another spelling; "" where there are none.
    """

    name: str
    column: str
    used: bool
    counts: dict[str, int]
    examples: dict[str, list[tuple[str, int]]]
    clipped: int
    dropped: int
    low: float | None
    high: float | None
    done: dict[str, str]
    commas: int = 0
    advice: str = ""


class UnitFit(NamedTuple):
    """How many rows units, such as patients, have.

    Attributes:
      column: in the file.
      units: their number.
      without: rows without an identifier, which count as zero.
      rows: number of rows → number of units with that many.
      most: the most rows of one unit that are used.
      left_out: rows that count, but come after the first ``most`` of their unit.
    """

    column: str
    units: int
    without: int
    rows: dict[int, int]
    most: int
    left_out: int


class Fit(NamedTuple):
    """How well a file fits a schema.

    Attributes:
      rows: in the file.
      counting: rows that do not count as zero.
      columns: each declared column.
      units: None if each row is a unit.
      lost: if 1 % of the rows or more count as zero, a sentence with the column and the rule that caused
        most of it.
      remarks: what a site would be told of the file on its own screen, see ``Remarks``.
    """

    rows: int
    counting: int
    columns: tuple[ColumnFit, ...]
    units: UnitFit | None
    lost: str = ""
    remarks: tuple[str, ...] = ()


def inspect_file(
    path: Path,
    schema: Schema,
    used: Sequence[str],
    *,
    private: bool,
    columns: Sequence[str] | None = None,
    separator: str = ",",
    unit_column: str | None = None,
    most_rows: int = 1,
    response: Response | None = None,
    noise: Sequence[float] = (),
) -> Fit:
    """Reads a file as the study would, but refuses no record, and reports the result.

    Args:
      path: a file of a format in ``fedvi.data.tables``.
      used: columns used by the study's model; a row counts if all of them do.
      private: whether the study states a privacy guarantee; if not, some cells are refused.
      columns, separator: as in the study's ``[data]``.
      unit_column: in the file; None if each row is a unit.
      most_rows: the most rows of one unit that are used.
      response, noise: what the study's formula has left of ``~``, and its known noise, as for ``Remarks``.

    Raises:
      DataError: the file cannot be read, or lacks a column.
    """
    wanted = [schema[name].column for name in schema] + ([unit_column] if unit_column else [])
    asked = Wanted(
        tuple(dict.fromkeys(wanted)),
        columns,
        separator,
        private=True,
        as_text=frozenset({unit_column} if unit_column else ()),
        whole=not private,
    )
    seen = {name: _Seen(column) for name, column in schema.items()}
    owners: Counter[str] = Counter()
    lost, remarks = Lost(), Remarks(schema, used, response, noise)
    rows = counting = without = 0
    for part in tables.chunks(path, asked):
        for name, found in seen.items():
            found.add(part, name, schema)
        clipped: Clipped = {}
        source = prepare_chunk(
            part,
            schema,
            used,
            private=True,
            where=str(path),
            lost=lost,
            timed=() if response is None else response.timed,
            clipped=clipped,
        )
        remarks.add(source, clipped)
        rows += source.size
        counting += int(source.valid.sum())
        if unit_column is not None:
            for identity, valid in zip(texts_of(part[unit_column]), source.valid, strict=True):
                if identity is None or is_missing(identity):
                    without += 1
                    counting -= int(valid)
                else:
                    # A unit without a counting row is counted too.
                    owners[identity.strip()] += int(valid)
    said = lost_in_words(rows, counting, lost, schema, lambda: tables.why_broken(path, asked))
    units = None
    if unit_column is not None:
        left_out = sum(max(0, count - most_rows) for count in owners.values())
        counting -= left_out
        shared = dict(sorted(Counter(owners.values()).items()))
        units = UnitFit(unit_column, len(owners), without, shared, most_rows, left_out)
    fits = tuple(found.fit(name, name in used, private) for name, found in seen.items())
    return Fit(rows, counting, fits, units, said, tuple(remarks.lines()))


def verdict(column: Column, cell: str | None) -> Verdict:
    """Returns how a cell fits a column.

    >>> from fedvi.data.schema import parse_schema
    >>> schema = parse_schema({"age": {"type": "number", "bounds": [18, 100]}}, private=True)
    >>> [verdict(schema["age"], cell) for cell in ("30", "?", "130", "old", None)]
    ['fits', 'missing', 'outside', 'unknown', 'unreadable']
    """
    if cell is None:
        return "unreadable"
    text = cell.strip()
    number = as_number(text)
    code = as_level(text) if isinstance(column, Level) else as_code(text)
    unusable = isinstance(column, Number) and number is not None and not math.isfinite(number)
    if unusable or code in column.missing_values:
        return "missing"
    if isinstance(column, Number):
        if number is None or (column.whole and not number.is_integer()):
            return "unknown"
        return "fits" if column.bounds[0] <= number <= column.bounds[1] else "outside"
    known: Iterable[float | str] = (
        column.true | column.false if isinstance(column, Binary) else dict(column.codes)
    )
    return "fits" if code in known else "unknown"


class _Seen:
    """Statistics of a declared column so far."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.counts: Counter[str] = Counter()
        self.odd: dict[str, Counter[str]] = {}
        self.dropped = self.commas = 0
        self.low, self.high = math.inf, -math.inf

    def add(self, part: Table, name: str, schema: Schema) -> None:
        cells = as_declared(self.column, part[self.column.column])
        for cell, count in Counter(texts_of(cells)).items():
            found = verdict(self.column, cell)
            self.counts[found] += count
            if cell is None:
                continue
            if found in ("outside", "unknown"):
                kept = self.odd.setdefault(found, Counter())
                if cell in kept or len(kept) < _KEPT:
                    kept[cell] += count
            number = as_number(cell.strip())
            if isinstance(self.column, Number) and has_decimal_comma(cell.strip()):
                self.commas += count
            if (
                isinstance(self.column, Number)
                and found in ("fits", "outside")
                and number is not None
            ):
                self.low, self.high = min(self.low, number), max(self.high, number)
        alone = prepare_chunk(part, schema, [name], private=True, where=name)
        self.dropped += int((~alone.valid).sum())

    def fit(self, name: str, used: bool, private: bool) -> ColumnFit:
        column = self.column
        clips = isinstance(column, Number) and column.outside == "clip"
        some = self.low <= self.high
        return ColumnFit(
            name=name,
            column=column.column,
            used=used,
            counts=dict(self.counts),
            examples={found: odd.most_common(_EXAMPLES) for found, odd in self.odd.items()},
            clipped=self.counts["outside"] if clips else 0,
            dropped=self.dropped,
            low=self.low if some else None,
            high=self.high if some else None,
            done=_done(column, private),
            commas=self.commas,
            advice=_advice(column, [cell.strip() for odd in self.odd.values() for cell in odd]),
        )


def _advice(column: Column, odd: Sequence[str]) -> str:
    """Returns what to write for cells that often mean missing, or are declared in another spelling."""
    told = []
    usual = sorted(filter(often_missing, odd))
    if usual:
        either = " or ".join(map(repr, usual))
        told.append(f"if {either} means missing, add missing_values = {toml(usual)}")
    declared: dict[str, dict[str, str]] = {}  # key of the table → cell → what it means
    if isinstance(column, Level):
        declared["codes"] = {spelt(code): column.levels[index] for code, index in column.codes}
    elif isinstance(column, Binary):
        for key, codes in {"true": column.true, "false": column.false}.items():
            declared[key] = {spelt(code): key for code in sorted(codes, key=str)}
    spelt_too = []
    for key, cells in declared.items():
        alike = {word.casefold(): means for cell, means in cells.items() for word in (means, cell)}
        if isinstance(column, Binary):
            alike |= dict.fromkeys(_same_truth(column, odd)[key == "true"], key)
        more = {cell: alike[cell.casefold()] for cell in sorted(odd) if cell.casefold() in alike}
        if more:
            both = cells | more
            listed = toml(both if key == "codes" else list(both))
            spelt_too.append(f"{key} = {listed}")
    if spelt_too:
        told.append(f"to read the spelling of this file, too: {' and '.join(spelt_too)}")
    return "; ".join(told)


def _same_truth(column: Binary, odd: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns words of a file that mean false and true where the study has another such pair."""
    pairs = (("0", "1"), *TRUTHS)
    false, true = (
        {spelt(code).casefold() for code in codes} for codes in (column.false, column.true)
    )
    if any(no in false and yes in true for no, yes in pairs):
        seen = {cell.casefold() for cell in odd}
        for no, yes in pairs:
            if {no, yes} <= seen:
                return (no,), (yes,)
    return (), ()


def _done(column: Column, private: bool) -> dict[str, str]:
    zero = {"drop": "record counts as zero", "refuse": "refused"}
    if isinstance(column.missing, Impute):
        value = column.missing.value
        missing = f"taken as {value if isinstance(value, str) else f'{value:.12g}'}"
    elif column.missing == "indicator":
        missing = "has a coefficient of its own"
    else:
        missing = zero[column.missing]
    # `outside` does not apply to an unreadable cell, or one that is not a number.
    odd = zero["drop" if private else "refuse"]
    unknown = zero[column.outside] if isinstance(column, (Level, Binary)) else odd
    done = {"missing": missing, "unknown": unknown, "unreadable": odd}
    if isinstance(column, Number):
        done["outside"] = "clipped" if column.outside == "clip" else zero[column.outside]
    return done
