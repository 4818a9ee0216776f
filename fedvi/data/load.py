"""Turns cells into arrays by the study's schema.

In a private study no error shows a cell or depends on a record: a record that does not fit the schema
counts as zero, and so does a line that is not CSV, or has too many or too few cells. Errors
depend only on public facts: whether the file exists, and the names of its columns.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvi.data.cells import (
    TRUTHS,
    Cells,
    Codes,
    Numbers,
    Table,
    as_codes,
    count_of,
    has_decimal_comma,
    truth_of,
)
from fedvi.data.formula import Design
from fedvi.data.remarks import MOST_UNTOLD, Remarks
from fedvi.data.schema import (
    Binary,
    Code,
    Column,
    Impute,
    Level,
    Number,
    Schema,
    as_code,
    as_level,
    as_number,
    indicator_name,
    later_name,
)
from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError, did_you_mean

__all__ = [
    "Lost",
    "as_declared",
    "check_some",
    "lost_in_words",
    "prepare_chunk",
    "prepare_columns",
    "prepared",
]

Lost = Counter[tuple[str, str]]
"""How many records count as zero, by column of the schema and reason in words; private."""

Clipped = dict[str, tuple[int, int]]
"""How many cells of a column were below and above its bounds, and were clipped; private."""


def prepare_columns(
    table: Table,
    schema: Schema,
    names: Iterable[str],
    *,
    private: bool,
    where: str,
    timed: Collection[str] = (),
) -> ArraySource:
    """Applies the schema to a table, for models that take columns instead of a formula.

    Numbers become (value - center) / scale in float64, levels their index in int32, binary
    columns 0 or 1 in float64. A column with missing = "indicator" adds another one, 1.0 where the
    cell is missing: `chol_missing` for `chol`.

    Args:
      table: cells by the file's column names, from ``tables.chunks``.
      names: the wanted columns of the schema.
      private: whether the study states a privacy guarantee; if so, no record is refused.
      timed: numbers whose cells above the upper bound are marked: a bool column ``later_name`` for each.

    Returns:
      Records by name, see above; a record counts as zero if any of its columns makes it so.

    Raises:
      DataError: a column is missing; in a study without privacy also if the schema refuses a cell, or
        there is no record.

    >>> from fedvi.data.schema import parse_schema
    >>> raw = {"age": {"type": "number", "bounds": [18, 100], "center": 50, "scale": 10}}
    >>> schema = parse_schema(raw, private=True)
    >>> source = prepare_columns(
    ...     {"age": ["60", "?", "120"]}, schema, ["age"], private=True, where="north"
    ... )
    >>> source.records["age"], source.valid
    (array([1., 0., 5.]), array([ True, False,  True]))
    """
    source = prepare_chunk(table, schema, names, private=private, where=where, timed=timed)
    if not private:
        check_some(source.size, bool(source.valid.any()), where)
    return source


def prepare_chunk(
    table: Table,
    schema: Schema,
    names: Iterable[str],
    *,
    private: bool,
    where: str,
    before: int = 0,
    lost: Lost | None = None,
    timed: Collection[str] = (),
    clipped: Clipped | None = None,
) -> ArraySource:
    """Does the same as ``prepare_columns`` for a chunk of records, which may be empty.

    Each record's arrays depend only on its own cells, so the division of a file into chunks makes no
    difference.

    Args: as for ``prepare_columns``; ``before`` is the number of earlier records, for errors; records that
      count as zero are added to ``lost``, once for each column that makes them so; cells that are clipped
      are counted in ``clipped``.
    """
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in schema:
            raise ConfigError(
                f"`{name}` is not declared under [data.schema]", did_you_mean(name, schema)
            )
        if schema[name].column not in table:
            raise DataError(
                f"{where}: no column `{schema[name].column}`, which `data.schema.{name}` needs",
                did_you_mean(schema[name].column, table),
            )
    lengths = {count_of(table[schema[name].column]) for name in wanted}
    if len(lengths) != 1:
        raise DataError(
            f"{where}: the columns of the table are none, or differ in length",
            "every column needs one cell for each record",
        )
    (count,) = lengths
    records: dict[str, NDArray[np.generic]] = {}
    valid = np.ones(count, dtype=bool)
    for name in wanted:
        column = schema[name]
        found = _judged(name, column, table[column.column])
        if not private and found.refused is not None:
            _refuse(where, name, column, before, found.refused)
        kind = np.int32 if isinstance(column, Level) else np.float64
        records[name] = found.values.astype(kind)
        if name in timed:
            records[later_name(name)] = found.clipped > 0
        valid &= found.valid
        if lost is not None:
            for why, dropped in found.lost.items():
                lost[name, why] += int(dropped)
        if clipped is not None and isinstance(column, Number):
            clipped[name] = int((found.clipped < 0).sum()), int((found.clipped > 0).sum())
        if column.missing == "indicator":
            records[indicator_name(name)] = found.missing.astype(np.float64)
    return ArraySource(records, valid)


def prepared(
    tables: Iterable[Table],
    schema: Schema,
    names: Iterable[str],
    design: Design | None,
    *,
    private: bool,
    where: str,
    tell: Callable[[str], None] | None = None,
    broken: Callable[[], str] | None = None,
    noise: Sequence[float] = (),
) -> Iterator[ArraySource]:
    """Prepares a file that comes in chunks; see ``tables.chunks``.

    Args:
      tables: one or more, any of which may be empty.
      schema, names, private, where: as for ``prepare_columns``.
      design: lays columns out as {"x": float64 [n, D], "y": float64 [n] or [n, k]}, see
        ``Design.outcome``; None leaves them as they are.
      tell: called with a sentence if 1 % of the records or more count as zero, and with each of
        ``Remarks``. They depend on the records, so only their owner may see them; nothing else may depend
        on them.
      broken: says why lines cannot be read, as ``tables.why_broken``; called only for ``tell``.
      noise: as for ``Remarks``.

    Raises:
      DataError: as ``prepare_columns``.
    """
    wanted, count, counting, lost = list(names), 0, 0, Lost()
    timed = () if design is None else design.timed
    remarks = Remarks(schema, wanted, None if design is None else design.response, noise)
    for table in tables:
        clipped: Clipped = {}
        chunk = prepare_chunk(
            table,
            schema,
            wanted,
            private=private,
            where=where,
            before=count,
            lost=lost,
            timed=timed,
            clipped=clipped,
        )
        if tell is not None:
            remarks.add(chunk, clipped)
        count, counting = count + chunk.size, counting + int(chunk.valid.sum())
        if design is not None:
            x, y = design.matrix(chunk.records), design.outcome(chunk.records)
            chunk = ArraySource({"x": x, "y": y}, chunk.valid)
        yield chunk
    if not private:
        check_some(count, counting > 0, where, lost_in_words(count, counting, lost, schema))
    if tell is not None:
        said = lost_in_words(count, counting, lost, schema, broken)
        for line in (*filter(None, [said]), *remarks.lines()):
            tell(f"{where}: {line}")


def lost_in_words(
    count: int,
    counting: int,
    lost: Lost,
    schema: Schema,
    broken: Callable[[], str] | None = None,
) -> str:
    """Reports that records count as zero, with the main column and reason; "" if fewer than 1 % do.

    The text contains no cell, and no number unless ``broken`` is given, since it may end up in a log.

    Args:
      broken: says why lines cannot be read, if most records are lost by that.
    """
    if count - counting < MOST_UNTOLD * count or not lost:
        return ""
    (name, why), _ = max(lost.items(), key=lambda item: item[1])
    share = "at least one record in a hundred counts as zero"
    if 2 * counting < count:
        share = (
            "no record counts" if counting == 0 else "more than half of the records count as zero"
        )
    if why == _UNREADABLE and broken is not None and (said := broken()):
        count = lost[name, why]
        return f"{share}, also in a pooled fit, most of all because {count:,} lines cannot be read: {said}"
    column = schema[name].column
    called = f"`{column}`" if column == name else f"`{column}` (data.schema.{name})"
    return f"{share}, most of all because of the column {called}: {why}"


def check_some(count: int, valid: bool, where: str, why: str = "") -> None:
    """Refuses a shard in which no record counts; never used in a private study.

    Raises:
      DataError: there is no record, or none is valid.
    """
    if count == 0:
        raise DataError(
            f"{where}: the shard is empty, expected at least one record",
            "take this client out of the study, or check that its file is complete",
        )
    if not valid:
        raise DataError(
            f"{where}: every record was dropped, expected at least one that counts"
            + (f"; {why}" if why else ""),
            'look for `missing` or `outside` = "drop" under [data.schema]; "refuse" shows the '
            "first record that does not fit",
        )


@dataclass(frozen=True)
class _Cell:
    """The result of one cell; ``refused`` says why the schema refuses it, ``hint`` what to do.

    For a cell that is not valid, ``lost`` names the rule. ``clipped`` is −1 or 1 for a cell that was below
    or above the bounds and is clipped, else 0.
    """

    value: float
    valid: bool = True
    missing: bool = False
    refused: str = ""
    hint: str = ""
    lost: str = ""
    clipped: int = 0


_UNREADABLE = "its line cannot be read, for example since a cell has a line break or an open quote"
_MISSING = 'cells are missing, and missing = "drop"'
_OUTSIDE = 'numbers are outside the bounds, and outside = "drop"'
_REFUSED = 'numbers are outside the bounds, and outside = "refuse"'
_NO_NUMBER = "cells are no numbers"
_COMMA = "cells have decimal commas, and only numbers with a point are read"
_NOT_WHOLE = "cells are no whole numbers"
_UNKNOWN = "cells are none of those that the schema declares"


def _read(name: str, column: Column, cell: str | None) -> _Cell:
    if cell is None:
        return _Cell(0.0, valid=False, lost=_UNREADABLE)
    text = cell.strip()
    number = as_number(text)
    unusable = isinstance(column, Number) and number is not None and not math.isfinite(number)
    code = as_level(text) if isinstance(column, Level) else as_code(text)
    if unusable or code in column.missing_values:
        return _missing(name, column)
    if isinstance(column, Number):
        return _number(name, column, number, comma=has_decimal_comma(text))
    return _code(name, column, code)


def _missing(name: str, column: Column) -> _Cell:
    rule = column.missing
    if isinstance(rule, Impute):
        if isinstance(column, Number):
            return _Cell(_scaled(column, float(rule.value)))
        if isinstance(column, Level):
            return _Cell(float(column.levels.index(str(rule.value))))
        return _Cell(float(rule.value))
    if rule == "indicator":
        return _Cell(0.0, missing=True)
    if rule == "drop":
        return _Cell(0.0, valid=False, lost=_MISSING)
    return _Cell(
        0.0,
        valid=False,
        lost=_MISSING,
        refused="which means missing",
        hint=f"declare what to do: `data.schema.{name}.missing` = {{ impute = VALUE }}, "
        '"indicator" or "drop"',
    )


def _number(name: str, column: Number, value: float | None, *, comma: bool = False) -> _Cell:
    if value is None:
        return _Cell(
            0.0,
            valid=False,
            lost=_COMMA if comma else _NO_NUMBER,
            refused="expected a number",
            hint=f"if it means missing, list it in `data.schema.{name}.missing_values`; decimals "
            "are written with a point",
        )
    if column.whole and not value.is_integer():
        return _Cell(
            0.0,
            valid=False,
            lost=_NOT_WHOLE,
            refused="expected a whole number",
            hint=f'correct the record, or declare [data.schema.{name}] with type = "number"',
        )
    low, high = column.bounds
    if low <= value <= high:
        return _Cell(_scaled(column, value))
    if column.outside == "clip":
        return _Cell(_scaled(column, min(max(value, low), high)), clipped=1 if value > high else -1)
    if column.outside == "drop":
        return _Cell(0.0, valid=False, lost=_OUTSIDE)
    return _Cell(
        0.0,
        valid=False,
        lost=_REFUSED,
        refused=f"outside the bounds [{low:.12g}, {high:.12g}]",
        hint=f"correct the record or `data.schema.{name}.bounds`, or set "
        f'`data.schema.{name}.outside` to "clip" or "drop"',
    )


def _code(name: str, column: Level | Binary, code: Code) -> _Cell:
    if isinstance(column, Level):
        codes: dict[Code, float] = dict(column.codes)
    else:
        codes = dict.fromkeys(column.true, 1.0) | dict.fromkeys(column.false, 0.0)
    if code in codes:
        return _Cell(float(codes[code]))
    if column.outside == "drop":
        return _Cell(0.0, valid=False, lost=_UNKNOWN)
    keys = "`codes`" if isinstance(column, Level) else "`true` or `false`"
    return _Cell(
        0.0,
        valid=False,
        lost=_UNKNOWN,
        refused=f"which is no declared {'level' if isinstance(column, Level) else 'value'}",
        hint=f"{did_you_mean(_shown(code), map(_shown, codes))}; declare it with {keys} or "
        f'`missing_values` of [data.schema.{name}], or set `outside` = "drop"',
    )


def _scaled(column: Number, value: float) -> float:
    return (value - column.center) / column.scale


def _shown(code: Code) -> str:
    return code if isinstance(code, str) else f"{code:.12g}"


class _Refused(NamedTuple):
    """The first cell of a column that the schema refuses; ``row`` from 0."""

    row: int
    shown: str
    cell: _Cell


class _Judged(NamedTuple):
    """The result of a column: arrays [n] of float64 and bool, like the fields of ``_Cell``.

    ``lost`` has the number of records that are not valid, by rule.
    """

    values: NDArray[np.float64]
    valid: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    refused: _Refused | None
    lost: dict[str, int]
    clipped: NDArray[np.int8]


def as_declared(column: Column, cells: Cells) -> Cells:
    """Replaces a file's booleans by the schema's spelling of true and false; returns other cells unchanged.

    True becomes 1 if the schema declares that, else its first word for true, such as "True".

    >>> from fedvi.data.schema import parse_schema
    >>> raw = {"died": {"type": "binary", "true": ["Yes"], "false": ["No"]}}
    >>> column = parse_schema(raw, private=True)["died"]
    >>> as_declared(column, Numbers(np.array([1.0, 0.0]), boolean=True))
    Codes(places=array([1, 0]), texts=('No', 'Yes'))
    """
    if isinstance(column, Number) or not isinstance(cells, Numbers) or not cells.boolean:
        return cells
    if isinstance(column, Level):
        known: set[Code] = {code for code, _ in column.codes}
    else:
        known = set(column.true | column.false)
    known |= column.missing_values
    missing = np.isnan(cells.values)
    places = np.where(missing, -1, np.where(missing, 0.0, cells.values)).astype(np.intp)
    return Codes(places, (_spelling(False, known), _spelling(True, known)))


def _spelling(truth: bool, known: Collection[Code]) -> str:
    number = float(truth)
    if number in known:
        return f"{number:.0f}"
    words = [pair[truth] for pair in TRUTHS]
    found = [code for code in known if isinstance(code, str) and truth_of(code) is truth]
    return min(
        found, key=lambda code: (words.index(code.casefold()), code), default=f"{number:.0f}"
    )


def _judged(name: str, column: Column, cells: Cells) -> _Judged:
    cells = as_declared(column, cells)
    if isinstance(cells, Numbers):
        if isinstance(column, Number):
            return _judged_numbers(name, column, cells.values)
        # Each distinct number is read as its text would be in a text file.
        given, places = np.unique(cells.values, return_inverse=True)
        shown = [None if math.isnan(value) else repr(value) for value in given.tolist()]
        gone = _missing(name, column)
        each = [gone if text is None else _read(name, column, text) for text in shown]
        return _by_place(places.reshape(-1), each, shown)
    # Columns repeat a few distinct cells many times, so each is read once.
    codes = cells if isinstance(cells, Codes) else as_codes(cells)
    each = [_read(name, column, cell) for cell in codes.texts]
    # The last entry is for −1, the index of missing cells.
    return _by_place(codes.places, [*each, _missing(name, column)], [*codes.texts, None])


def _by_place(
    places: NDArray[np.intp], each: Sequence[_Cell], shown: Sequence[str | None]
) -> _Judged:
    values = np.array([cell.value for cell in each], np.float64)
    valid = np.array([cell.valid for cell in each], bool)
    missing = np.array([cell.missing for cell in each], bool)
    bad = np.array([bool(cell.refused) for cell in each], bool)
    refused = None
    if bad.any() and bad[places].any():
        row = int(np.argmax(bad[places]))
        refused = _Refused(row, repr(shown[places[row]]), each[places[row]])
    lost: Counter[str] = Counter()
    if not valid.all():
        counts = np.bincount(places % len(each), minlength=len(each))  # −1 is the last
        for cell, count in zip(each, counts.tolist(), strict=True):
            if not cell.valid and count:
                lost[cell.lost] += count
    clipped = np.array([cell.clipped for cell in each], np.int8)
    return _Judged(values[places], valid[places], missing[places], refused, lost, clipped[places])


def _judged_numbers(name: str, column: Number, values: NDArray[np.float64]) -> _Judged:
    """Vectorises ``_read`` over the numbers of a column, with results equal to the last bit."""
    gone = _missing(name, column)
    marks = [code for code in column.missing_values if isinstance(code, float)]
    missing = ~np.isfinite(values) | np.isin(values, marks)
    low, high = column.bounds
    here = np.where(missing, low, values)
    inside = (here >= low) & (here <= high)
    refused = missing & bool(gone.refused)
    valid = ~missing | gone.valid
    lost = {_MISSING: int((~valid).sum())}
    if column.whole:
        fraction = here != np.floor(here)
        refused |= fraction
        lost[_NOT_WHOLE] = int(fraction.sum())
        valid &= ~fraction
    if column.outside != "clip":
        why = _OUTSIDE if column.outside == "drop" else _REFUSED
        lost[why] = int((valid & ~inside).sum())
        valid &= inside
        if column.outside == "refuse":
            refused |= ~inside
    # Silent, since a warning would reveal something about a record.
    with np.errstate(all="ignore"):
        scaled = (
            np.where(inside, here, np.where(here < low, low, high)) - column.center
        ) / column.scale
    scaled[missing] = gone.value
    scaled[~valid] = 0.0
    first = None
    if refused.any():
        row = int(np.argmax(refused))
        value = float(values[row])
        cell = gone if missing[row] else _number(name, column, value)
        first = _Refused(row, repr(repr(value)), cell)  # as for a text file
    clipped = np.where(valid, (here > high).astype(np.int8) - (here < low), 0).astype(np.int8)
    return _Judged(scaled, valid, missing & gone.missing, first, lost, clipped)


def _refuse(where: str, name: str, column: Column, before: int, refused: _Refused) -> None:
    """Raises for the first refused record. The error shows the cell: never call it in a private study."""
    called = "" if column.column == name else f" (`{name}`)"
    raise DataError(
        f"{where}: record {before + refused.row + 1}: column `{column.column}`{called} holds "
        f"{refused.shown}, {refused.cell.refused}",
        refused.cell.hint,
    )
