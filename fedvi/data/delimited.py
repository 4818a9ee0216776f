"""Reads CSV and other delimited text into columns of texts.

In a private study no error depends on a record: a line counts as zero if it is not CSV, or has too many or
too few cells.
"""

import codecs
import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvi.data.cells import (
    WHERE_PATHS_START,
    Wanted,
    check_first,
    composed,
    decoded,
    is_separator,
    no_column_hint,
    without_quote,
)
from fedvi.errors import ConfigError, DataError, did_you_mean

__all__ = ["chunks", "known_rows", "line_breaks", "why_broken"]

Texts = dict[str, list[str | None]]


def known_rows(path: Path) -> int | None:
    """Returns None: the number is unknown until the last line is read."""
    return None


def chunks(path: Path, wanted: Wanted) -> Iterator[Texts]:
    """Yields the wanted columns, ``wanted.rows`` records at a time; one empty table if there are none.

    A name that ends in ``.gz`` is unpacked. In a file named ``.tsv`` the default separator is a tab. Empty
    lines are skipped. Blanks around a cell are removed, and so is the ' that fedvi writes before a text
    that begins as a formula does. A line that is not UTF-8 is read as Windows-1252, which
    includes Latin-1. No error shows a cell, in any study. Names
    from the first line are shown only if at least half of the wanted names are in it, because the first
    line of a file without a header is a record.

    In a private study every line is parsed by itself, so that its content, such as an unclosed quote,
    affects no other line. So there a cell cannot continue in the next line, unless ``wanted.whole`` and the
    file is well formed. A line that cannot be read becomes a record of None, which counts as zero.

    Raises:
      ConfigError: ``columns`` or ``separator`` cannot be used.
      DataError: the file is missing, lacks a column, or is compressed and damaged; in a study without
        privacy also if a line cannot be read.
    """
    private = wanted.private
    separator = _separator(path, wanted)
    alone = private and not (wanted.whole and line_breaks(path, wanted))
    named = wanted.columns is None
    rows = _lone_rows(path, separator, named) if alone else _rows(path, separator)
    if wanted.columns is None:
        _check_separator(path, wanted, separator)
    else:
        _check_declared(wanted.columns, wanted.names)
    header = _header(path, wanted, rows)
    places = _places(path, header, wanted.names)

    table: Texts = {name: [] for name in wanted.names}
    count, told = 0, False
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
                    "check `data.separator`"
                    + (f". {_R}" if named and len(row) == len(header) + 1 else ""),
                )
            row = None
        for name, place in places.items():
            table[name].append(None if row is None else row[place])
        count += 1
        if count == wanted.rows:
            yield table
            table, count, told = {name: [] for name in wanted.names}, 0, True
    if count or not told:
        yield table


_R = (
    "R's write.table writes no name over the names of rows: use write.csv(table, file, row.names = FALSE). "
    "Other programs end each record with a separator: take it out"
)


def line_breaks(path: Path, wanted: Wanted) -> int:
    """Returns how many records have a cell with a line break; 0 if the file is not well formed. Private.

    In a well-formed file all quotes are closed, and records of several lines have a cell for each column.

    Raises:
      ConfigError, DataError: the file or the separator cannot be read.
    """
    found, before = 0, 0
    size = None if wanted.columns is None else len(wanted.columns)
    try:
        # Of a file without a header the first line is a record, and must not stop a run.
        lines = _lines(path, told=wanted.columns is None)
        reader = csv.reader(map(_short, lines), **_dialect(_separator(path, wanted)))
        for row in reader:
            size = len(row) if size is None and row else size
            # An empty line may come between the two ends of one.
            if reader.line_num > before + 1 and any("\n" in cell or "\r" in cell for cell in row):
                if len(row) != size:
                    return 0
                found += 1
            before = reader.line_num
    except csv.Error:
        return 0
    return found


def why_broken(path: Path, wanted: Wanted) -> str:
    """Says why lines cannot be read by themselves; "" if all can. Private.

    Raises:
      ConfigError, DataError: as ``chunks``.
    """
    if broken := line_breaks(path, wanted):
        return (
            f"{broken:,} records have a cell with a line break, and a private study reads line by line, so "
            "that no record changes another; take the line breaks out, or save the table as Parquet"
        )
    separator = _separator(path, wanted)
    rows = _lone_rows(path, separator, wanted.columns is None)
    size, sizes = len(_header(path, wanted, rows)), Counter[int]()
    for _, row in rows:
        if row != [""] or size == 1:
            sizes[-1 if row is None else len(row)] += 1
    bad = {cells: count for cells, count in sizes.items() if cells != size}
    if not bad:
        return ""
    if set(sizes) == {size + 1} and wanted.columns is None:
        return f"each has one cell more than the first line has names. {_R}"
    most = max(bad, key=lambda cells: bad[cells])
    if most < 0:
        return "most of them have an open quote, or text after a closing one"
    return (
        f"most of them have {'more' if most > size else 'fewer'} cells than there are columns: is a "
        "separator inside a cell, or a comment among the records?"
    )


def _separator(path: Path, wanted: Wanted) -> str:
    separator = wanted.separator
    if not is_separator(separator):
        raise ConfigError(
            f"separator is {separator!r}, expected one character, and no quote or line break",
            'use ",", ";" or "\\t"',
        )
    return "\t" if separator == "," and ".tsv" in path.suffixes[-2:] else separator


def _header(path: Path, wanted: Wanted, rows: Iterator[tuple[int, list[str] | None]]) -> list[str]:
    """Returns the names of all columns, from the first row or as declared."""
    if wanted.columns is not None:
        return list(wanted.columns)
    header = next((row for _, row in rows if row != [""]), [])
    if header is None:
        raise DataError(
            f"{path}: the first line cannot be read, expected the names of the columns",
            "save the file as CSV, with every name on the first line",
        )
    if not header:
        raise DataError(
            f"{path}: the file is empty, expected a line with the names of the columns",
            "is this the right file? a file without header needs `data.columns`",
        )
    check_first(path, header)
    return list(map(composed, header))


def _lone_rows(path: Path, separator: str, named: bool) -> Iterator[tuple[int, list[str] | None]]:
    """Yields (line number, cells) of each line that is not empty, parsed by itself.

    The cells are None if the line cannot be read.

    Args:
      named: whether the first line has the names of the columns. If not, it is a record, and no error
        may depend on it.
    """
    for number, line in enumerate(_lines(path, named), 1):
        row = None if line is None else _lone_row(line.rstrip("\r\n"), separator)
        if row is None or row:
            yield number, row


def _lines(path: Path, told: bool = True) -> Iterator[str | None]:
    """Yields lines with their ends, \\n, \\r or both; None for a line longer than 16 MiB.

    So no record can fill the memory and thereby stop a run. An empty line may come between \\r and \\n.

    Raises:
      DataError: the file cannot be read, or is compressed and damaged; if ``told``, also if it begins as
        UTF-16 does.
    """
    problem = hint = ""
    first = True
    try:
        with _opened(path) as file:
            for line in _byte_lines(file):
                if told and first and line is not None and line.startswith(_WIDE_MARKS):
                    problem, hint = "a text in UTF-16", "save it again as CSV in UTF-8"
                    break
                bare = line.removeprefix(_MARK) if first and line is not None else line
                yield None if bare is None else decoded(bare)
                first = False
    except _BROKEN:
        problem, hint = _PACKED, _PACK_AGAIN
    except OSError as error:
        problem, hint = f"cannot be read ({error.strerror})", WHERE_PATHS_START
    if problem:
        raise DataError(f"{path}: {problem}", hint)


def _byte_lines(file: Any) -> Iterator[bytes | None]:
    rest, lost = b"", False
    while piece := file.read(_PIECE):
        lines = (rest + piece).splitlines(keepends=True)
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        for line in lines:
            # Decided by the line's length alone: the end of a piece depends on other records.
            yield None if lost or len(line.rstrip(b"\r\n")) > _LONGEST else line
            lost = False
        lost = lost or len(rest) > _LONGEST
        rest = b"" if lost else rest
    if lost or rest:
        yield None if lost else rest


_PIECE = 1 << 20
_LONGEST = 1 << 24


def _lone_row(line: str, separator: str) -> list[str] | None:
    """Reads one line; None if it is not CSV, an empty list if it is empty."""
    try:
        rows = list(csv.reader([line], **_dialect(separator)))
    except csv.Error:
        return None
    cells = [cell.strip() for row in rows for cell in row]
    return [without_quote(cell) for cell in cells] if "'" in line else cells


def _dialect(separator: str) -> dict[str, Any]:
    # With strict, an unclosed quote is an error, not one very long cell.
    return {"delimiter": separator, "skipinitialspace": separator != " ", "strict": True}


_MARK = codecs.BOM_UTF8
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)
_PACKED, _PACK_AGAIN = "no whole gzip file", "was it copied to its end? pack it again with gzip"


def _rows(path: Path, separator: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yields (line number, cells) of each record that is not empty; a line of blanks is one cell."""
    # An error of csv may contain a piece of the file. It is dropped before our own is raised, so that not
    # even a traceback with all its causes shows it.
    problem = hint = ""
    line = 0
    try:
        reader = csv.reader(map(_short, _lines(path)), **_dialect(separator))
        for row in reader:
            line = reader.line_num
            if row:
                yield line, [without_quote(cell.strip()) for cell in row]
    except csv.Error:
        problem = f"line {line + 1} or one after it is not CSV"
        hint = "look for a quote that is not closed, or text after a closing quote"
    if problem:
        raise DataError(f"{path}: {problem}", hint)


def _short(line: str | None) -> str:
    if line is None:
        raise csv.Error
    return line


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


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


def _check_separator(path: Path, wanted: Wanted, separator: str) -> None:
    """Refuses a file whose first line has the wanted names between other separators than the study's.

    Raises:
      DataError: it has, which the error says; or the file cannot be read.
    """
    words = {";": "semicolons", ",": "commas", "\t": "tabs", "|": "vertical bars", " ": "blanks"}
    line = next((line for line in _lines(path) if line is None or line.strip()), None)
    names = set(wanted.names)

    def has_all(sign: str) -> bool:
        cells = None if line is None else _lone_row(line.rstrip("\r\n"), sign)
        return cells is not None and names <= set(map(composed, cells))

    if not names or has_all(separator):
        return
    other = next((said for sign, said in words.items() if has_all(sign)), None)
    if other is not None:
        raise DataError(
            f"{path}: no column `{wanted.names[0]}` in the first line, which has {other} between the names"
            + (", as R's write.table writes them" if other == "blanks" else ""),
            "use write.csv(table, file, row.names = FALSE)"
            if other == "blanks"
            else "save the file again with the separator of the study, and with decimal points; or, if the "
            "files of all sites have it, change `data.separator`",
        )


def _places(path: Path, header: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    absent = [name for name in wanted if name not in header]
    if absent:
        # A first line with none of the names is probably a record, so the error does not show it.
        folded = {name.casefold() for name in header}
        is_header = 2 * sum(name.casefold() not in folded for name in wanted) <= len(wanted)
        raise DataError(
            f"{path}: no column `{absent[0]}` in the first line",
            no_column_hint(absent[0], header)
            if is_header
            else "is this the right `data.separator`? does the file begin with the names of its "
            "columns? if it has none, list them in `data.columns`; if it calls them otherwise, say so with "
            '`column`, such as column = "Age (years)" under [data.schema.age]',
        )
    for name in wanted:
        if list(header).count(name) > 1:
            raise DataError(
                f"{path}: two columns are called `{name}`", "rename or take out one of them"
            )
    return {name: header.index(name) for name in wanted}
