"""From a file to arrays, by the study's schema; come here to read another kind of file.

In a private study no error shows a cell, and none depends on what a record holds: a record that
does not fit counts as zero, and so does a line that is no CSV, no UTF-8, or has too many or too few
cells. What can still refuse is public: whether the file is there, and the names of its columns.
"""

import codecs
import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvi.data.formula import Design
from fedvi.data.schema import (
    Binary,
    Code,
    Column,
    Impute,
    Level,
    Number,
    Schema,
    as_code,
    as_number,
    indicator_name,
)
from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError, did_you_mean

__all__ = ["prepare", "prepare_columns", "read_table"]


def read_table(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    separator: str = ",",
    names: Iterable[str],
    private: bool = False,
) -> dict[str, list[str | None]]:
    """Reads the columns ``names`` of a CSV file in UTF-8, as text without surrounding blanks.

    Empty lines are skipped. No error shows a cell, in any study; names from the first line are
    shown only where at least half of ``names`` are in it, because the first line of a file
    without a header is a record.

    In a private study every line is read by itself, so that what one line holds, such as a quote
    that is never closed, decides about no other: there, a cell cannot go on in the next line. A
    line that cannot be read is a record of None, which counts as zero.

    Args:
      path: the file.
      columns: names of all columns of a file without header; None: the first line has them.
      separator: one character.
      names: the columns wanted, as the file calls them.
      private: whether the study states a privacy guarantee: then no record is refused.

    Returns:
      For each of ``names`` its cells, one a record. Empty lists if there is no record.

    Raises:
      ConfigError: ``columns`` or ``separator`` cannot be used.
      DataError: the file is not there, or lacks a column; in other than private studies also if a
        line cannot be read.
    """
    wanted = list(dict.fromkeys(names))
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(
            f"data.separator: {separator!r}, expected one character",
            'use ",", ";" or "\\t"; blanks around a cell are taken off anyway',
        )
    rows = _lone_rows(path, separator) if private else _rows(path, separator)
    if columns is None:
        header = next((row for _, row in rows if row != [""]), [])
        if header is None:
            raise DataError(
                f"{path}: the first line cannot be read, expected the names of the columns",
                "save the file as CSV in UTF-8, with every name on the first line",
            )
        if not header:
            raise DataError(
                f"{path}: the file is empty, expected a line with the names of the columns",
                "is this the right file? a file without header needs `data.columns`",
            )
    else:
        _check_declared(columns, wanted)
        header = list(columns)
    places = _places(path, header, wanted)

    table: dict[str, list[str | None]] = {name: [] for name in wanted}
    for line, row in rows:
        if row == [""] and len(header) > 1:
            continue
        if row is not None and len(row) != len(header):
            if not private:
                # Counts of cells are left out: a separator inside a cell is part of a record.
                raise DataError(
                    f"{path}: line {line} has {'more' if len(row) > len(header) else 'fewer'} cells "
                    f"than the {len(header)} columns",
                    "is a separator or a quote inside a cell? put such cells in double quotes, and "
                    "check `data.separator`",
                )
            row = None
        for name, place in places.items():
            table[name].append(None if row is None else row[place])
    return table


def prepare(
    table: Mapping[str, Sequence[str | None]],
    schema: Schema,
    design: Design,
    *,
    private: bool,
    where: str,
) -> ArraySource:
    """Applies the schema to a table and lays it out for a formula.

    Args:
      table: cells by the file's column names, from ``read_table``; None where a line could not be
        read, which counts as zero.
      schema: the study's declared columns.
      design: the study's parsed formula.
      private: whether the study states a privacy guarantee: then no record is refused.
      where: the client or file, for errors.

    Returns:
      Records {"x": float64 [n, D], "y": float64 [n] or [n, k], see ``Design.outcome``}; a record
      counts as zero if any of its used columns says so.

    Raises:
      DataError: a column is missing; in other than private studies also a cell that the schema
        refuses, or no record at all.
    """
    columns = prepare_columns(table, schema, design.columns, private=private, where=where)
    x = design.matrix(columns.records)
    y = design.outcome(columns.records)
    return ArraySource({"x": x, "y": y}, columns.valid)


def prepare_columns(
    table: Mapping[str, Sequence[str | None]],
    schema: Schema,
    names: Iterable[str],
    *,
    private: bool,
    where: str,
) -> ArraySource:
    """Applies the schema to a table, for models that take columns instead of a formula.

    Numbers become (value - center) / scale in float64, levels their index in int32, binary
    columns 0 or 1 in float64. A column with missing = "indicator" brings one more, 1.0 where the
    cell is missing: `chol_missing` for `chol`.

    Args: as for ``prepare``; ``names`` are the columns of the schema that are wanted.

    >>> from fedvi.data.schema import parse_schema
    >>> raw = {"age": {"type": "number", "bounds": [18, 100], "center": 50, "scale": 10}}
    >>> schema = parse_schema(raw, private=True)
    >>> source = prepare_columns(
    ...     {"age": ["60", "?", "120"]}, schema, ["age"], private=True, where="north"
    ... )
    >>> source.records["age"], source.valid
    (array([1., 0., 5.]), array([ True, False,  True]))
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
    lengths = {len(table[schema[name].column]) for name in wanted}
    if len(lengths) != 1:
        raise DataError(
            f"{where}: the columns of the table are none, or differ in length",
            "every column needs one cell for each record",
        )
    (count,) = lengths
    if count == 0 and not private:
        raise DataError(
            f"{where}: the shard is empty, expected at least one record",
            "take this client out of the study, or check that its file is complete",
        )

    records: dict[str, NDArray[np.generic]] = {}
    valid = np.ones(count, dtype=bool)
    for name in wanted:
        cells = table[schema[name].column]
        # Columns repeat few cells many times: each is read once.
        results = {cell: _read(name, schema[name], cell) for cell in dict.fromkeys(cells)}
        if not private:
            _check_refused(where, name, schema[name], cells, results)
        kind = np.int32 if isinstance(schema[name], Level) else np.float64
        records[name] = np.array([results[cell].value for cell in cells], dtype=kind)
        valid &= np.array([results[cell].valid for cell in cells], dtype=bool)
        if schema[name].missing == "indicator":
            missing = [results[cell].missing for cell in cells]
            records[indicator_name(name)] = np.array(missing, dtype=np.float64)
    if not private and not valid.any():
        raise DataError(
            f"{where}: every record was dropped, expected at least one that counts",
            'look for `missing` or `outside` = "drop" under [data.schema]; "refuse" shows the '
            "first record that does not fit",
        )
    return ArraySource(records, valid)


@dataclass(frozen=True)
class _Cell:
    """What one cell becomes; ``refused`` says why the schema refuses it, ``hint`` what to do."""

    value: float
    valid: bool = True
    missing: bool = False
    refused: str = ""
    hint: str = ""


_DROPPED = _Cell(0.0, valid=False)


def _read(name: str, column: Column, cell: str | None) -> _Cell:
    if cell is None:
        return _DROPPED
    text = cell.strip()
    number = as_number(text)
    unusable = isinstance(column, Number) and number is not None and not math.isfinite(number)
    if unusable or as_code(text) in column.missing_values:
        return _missing(name, column)
    if isinstance(column, Number):
        return _number(name, column, number)
    return _code(name, column, as_code(text))


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
        return _DROPPED
    return _Cell(
        0.0,
        valid=False,
        refused="which means missing",
        hint=f"declare what to do: `data.schema.{name}.missing` = {{ impute = VALUE }}, "
        '"indicator" or "drop"',
    )


def _number(name: str, column: Number, value: float | None) -> _Cell:
    if value is None:
        return _Cell(
            0.0,
            valid=False,
            refused="expected a number",
            hint=f"if it means missing, list it in `data.schema.{name}.missing_values`; decimals "
            "are written with a point",
        )
    if column.whole and not value.is_integer():
        return _Cell(
            0.0,
            valid=False,
            refused="expected a whole number",
            hint=f'correct the record, or declare [data.schema.{name}] with type = "number"',
        )
    low, high = column.bounds
    if low <= value <= high:
        return _Cell(_scaled(column, value))
    if column.outside == "clip":
        return _Cell(_scaled(column, min(max(value, low), high)))
    if column.outside == "drop":
        return _DROPPED
    return _Cell(
        0.0,
        valid=False,
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
        return _DROPPED
    keys = "`codes`" if isinstance(column, Level) else "`true` or `false`"
    return _Cell(
        0.0,
        valid=False,
        refused=f"which is no declared {'level' if isinstance(column, Level) else 'value'}",
        hint=f"{did_you_mean(_shown(code), map(_shown, codes))}; declare it with {keys} or "
        f'`missing_values` of [data.schema.{name}], or set `outside` = "drop"',
    )


def _scaled(column: Number, value: float) -> float:
    return (value - column.center) / column.scale


def _shown(code: Code) -> str:
    return code if isinstance(code, str) else f"{code:.12g}"


def _check_refused(
    where: str,
    name: str,
    column: Column,
    cells: Sequence[str | None],
    results: Mapping[str | None, _Cell],
) -> None:
    """Raises for the first refused record. It shows the cell: never call it in a private study."""
    for row, cell in enumerate(cells, start=1):
        result = results[cell]
        if result.refused:
            called = "" if column.column == name else f" (`{name}`)"
            raise DataError(
                f"{where}: record {row}: column `{column.column}`{called} holds {cell!r}, "
                f"{result.refused}",
                result.hint,
            )


def _lone_rows(path: str | Path, separator: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yields (line number, cells) of each line that is not empty, read by itself.

    The cells are None where the line cannot be read.
    """
    problem = ""
    number = 0
    try:
        with open(path, "rb") as file:
            # Bytes: a line that is not UTF-8 would stop a decoder for all that follow.
            for block in file:
                for line in block.splitlines():
                    number += 1
                    row = _lone_row(line.removeprefix(_MARK) if number == 1 else line, separator)
                    if row is None or row:
                        yield number, row
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    if problem:
        raise DataError(f"{path}: {problem}", _WHERE_PATHS_START)


def _lone_row(line: bytes, separator: str) -> list[str] | None:
    """Reads one line; None if it is not UTF-8 or not CSV, an empty list if it is empty."""
    try:
        rows = list(csv.reader([line.decode()], **_dialect(separator)))
    except (csv.Error, UnicodeDecodeError):
        return None
    return [cell.strip() for row in rows for cell in row]


def _dialect(separator: str) -> dict[str, Any]:
    # With strict, a quote that is never closed is an error, not one very long cell.
    return {"delimiter": separator, "skipinitialspace": separator != " ", "strict": True}


_MARK = codecs.BOM_UTF8
_WHERE_PATHS_START = "paths are relative to the folder of the study file"


def _rows(path: str | Path, separator: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yields (line number, cells) of each line that is not empty; blanks alone are one cell."""
    # What csv and the decoder raise may hold a piece of the file. It is left behind before ours
    # is raised, so that not even a traceback with all its causes shows it.
    problem = hint = ""
    line = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, **_dialect(separator))
            for row in reader:
                line = reader.line_num
                if row:
                    yield line, [cell.strip() for cell in row]
    except csv.Error:
        problem = f"line {line + 1} or one after it is not CSV"
        hint = "look for a quote that is not closed, or text after a closing quote"
    except UnicodeDecodeError:
        problem, hint = "not a text file in UTF-8", "save it again in that encoding"
    except OSError as error:
        problem, hint = f"cannot be read ({error.strerror})", _WHERE_PATHS_START
    if problem:
        raise DataError(f"{path}: {problem}", hint)


def _check_declared(columns: Sequence[str], wanted: Sequence[str]) -> None:
    for name in columns:
        if list(columns).count(name) > 1:
            raise ConfigError(
                f"data.columns: `{name}` is there twice", "give every column its own name"
            )
    for name in wanted:
        if name not in columns:
            raise ConfigError(
                f"data.columns: no `{name}`, which the schema needs", did_you_mean(name, columns)
            )


def _places(path: str | Path, header: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    absent = [name for name in wanted if name not in header]
    if absent:
        # A first line with none of the names is probably a record, and stays out of the text.
        is_header = 2 * len(absent) <= len(wanted)
        raise DataError(
            f"{path}: no column `{absent[0]}` in the first line",
            did_you_mean(absent[0], header)
            if is_header
            else "is this the right `data.separator`? does the file begin with the names of its "
            "columns? if it has none, list them in `data.columns`",
        )
    for name in wanted:
        if list(header).count(name) > 1:
            raise DataError(
                f"{path}: two columns are called `{name}`", "rename or take out one of them"
            )
    return {name: header.index(name) for name in wanted}
