"""Formats what `fedvi data inspect` prints about a file for the person who holds it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvi import errors
from fedvi.report import tables

if TYPE_CHECKING:
    from fedvi.data.guess import Guess
    from fedvi.data.inspect import ColumnFit, Fit
    from fedvi.data.names import Names
    from fedvi.data.response import Response
    from fedvi.study.config import Study

__all__ = ["file", "study"]

_PRIVATE = (
    "PRIVATE: computed from records as they are, with no noise. It is for whoever holds them: nothing "
    "was written, and nothing of this may be sent on."
)

_COMMAS = "numbers have decimal commas, which no study reads: save the file again with points"
_POINTS = (
    "points may stand between thousands or before decimals, as in 1.234; fedvi takes them for decimal "
    "points: save the file again without points between thousands"
)
_SHOWN = 12


def file(path: Path, names: "Names", named: bool, as_json: bool) -> None:
    """Prints what a file looks like.

    Args:
      named: whether they were given, because the file does not have them.
    """
    from fedvi.data import guess
    from fedvi.data import tables as files
    from fedvi.data.cells import Wanted

    given = names.columns if named else None
    guesses = guess.guess_columns(path, names.columns, columns=given, separator=names.separator)
    if as_json:
        content = {"private": True, "file": str(path), "columns": guesses}
        tables.print_json(content | {"warning": _PRIVATE})
        return
    click.echo(_PRIVATE)
    rows = [
        [
            guess.name,
            guess.kind,
            str(guess.cells),
            str(guess.missing),
            str(guess.different),
            _values(guess),
        ]
        for guess in guesses
    ]
    head = ["column", "looks like", "cells", "missing", "different", "values"]
    table = tables.grid(head, rows, str(path), ("column", "looks like", "values"))
    tables.console().print(table, crop=False)
    unreadable = max((guess.unreadable for guess in guesses), default=0)
    asked = Wanted(names.columns, given, names.separator, private=True)
    if unreadable:
        click.echo(
            f"{unreadable} lines cannot be read: in a private study such records count as zero; "
            f"{files.why_broken(path, asked)}"
        )
    elif files.line_breaks(path, asked):
        click.echo(
            f"in a private study such records count as zero: {files.why_broken(path, asked)}"
        )
    for column in guesses:
        if column.commas:
            click.echo(f"{_printable(column.name)}: {_COMMAS}")
        if column.thousands:
            click.echo(f"{_printable(column.name)}: {_POINTS}")
        if column.odd:
            shown = ", ".join(f"{cell!r} ({count})" for cell, count in column.odd[:_SHOWN])
            click.echo(f"{_printable(column.name)}: no number, such as {shown}")
        if column.stand_ins:
            shown = ", ".join(f"{code} ({count})" for code, count in column.stand_ins)
            click.echo(
                f"{_printable(column.name)}: far beyond the other values, and may mean missing: {shown}"
            )
    click.echo(f"to draft a study of such tables: fedvi init my-study --from {path}")


def study(source: Path, path: Path | None, name: str | None, as_json: bool) -> None:
    """Prints how a file fits a study.

    Args:
      source: the study.
      path: the file; None takes the one that the study names.
      name: of the client whose file it is; None if ``path`` is given.

    Raises:
      ConfigError: the study cannot be read, or names no such client or file.
      DataError: the file cannot be read.
    """
    from fedvi.data.inspect import inspect_file
    from fedvi.data.schema import parse_schema
    from fedvi.study.config import load_study
    from fedvi.study.spec.coefficients import known_noise

    described = load_study(source)
    if not described.data.columns_schema:
        raise errors.ConfigError(
            f"{source} declares no columns under [data.schema], so that no file can be compared with it",
            "leave the study out to see what a table looks like: fedvi data inspect FILE",
        )
    declared = parse_schema(described.data.columns_schema, private=described.privacy.private)
    path = _path(described, source, path, name)
    unit = described.data.unit_column
    used, response = _used(described, declared)
    found = inspect_file(
        path,
        declared,
        used,
        private=described.privacy.private,
        columns=described.data.columns,
        separator=described.data.separator,
        unit_column=unit,
        most_rows=described.data.rows_per_unit if unit else 1,
        response=response,
        noise=known_noise(described),
    )
    if as_json:
        content = {
            "private": True,
            "study": described.study.name,
            "file": str(path),
            **found._asdict(),
        }
        tables.print_json(content | {"warning": _PRIVATE})
        return
    _show(found, str(path), described)


def _values(guess: "Guess") -> str:
    if guess.kind in ("binary", "level"):
        shown = ", ".join(
            f"{_printable(value)} ({count})" for value, count in guess.values[:_SHOWN]
        )
        more = guess.different - _SHOWN
        return f"{shown}, and {more} more" if more > 0 else shown
    if guess.low is None or guess.high is None:
        return ""
    digits = ".15g" if guess.whole else ".6g"
    return f"{guess.low:{digits}} to {guess.high:{digits}}" + (", whole" if guess.whole else "")


def _printable(value: str) -> str:
    """Returns a cell that cannot steer a terminal."""
    return value if value.isprintable() else repr(value)


def _path(study: "Study", source: Path, path: Path | None, name: str | None) -> Path:
    clients = {client.name: client for client in study.clients}
    if name is not None and name not in clients:
        raise errors.ConfigError(
            f"--as {name} is none of the study's clients", errors.did_you_mean(name, clients)
        )
    if path is not None:
        return path
    named = clients[name].data if name is not None else None
    if named is None:
        raise errors.ConfigError(
            "--data is missing, and the study names no file"
            + (f" of {name}" if name else " without --as"),
            f"write: fedvi data inspect {source} --data FILE",
        )
    return source.parent / named


def _used(study: "Study", declared: Any) -> "tuple[tuple[str, ...], Response | None]":
    """Returns the columns that the formula uses, and its outcome; without one, all that are declared."""
    from fedvi.data.formula import parse_formula

    if study.formula is None:
        return tuple(declared), None
    design = parse_formula(study.formula, declared)
    return design.columns, design.response


def _show(found: "Fit", title: str, study: "Study") -> None:
    click.echo(_PRIVATE)
    verdicts = ("fits", "missing", "outside", "unknown", "unreadable")
    rows = [
        [
            column.name,
            "yes" if column.used else "no",
            *(str(column.counts.get(verdict, 0)) for verdict in verdicts),
            tables.share(column.clipped / found.rows if found.rows else 0.0),
            str(column.dropped),
            "" if column.low is None else f"{column.low:.6g} to {column.high:.6g}",
        ]
        for column in found.columns
    ]
    # Broken here, where a word can be broken: a terminal of 80 columns has no room for it.
    heads = ("fits", "miss-\ning", "out-\nside", "un-\nknown", "unread-\nable")
    names = ["column", "used", *heads, "clip-\nped", "records\nlost", "range"]
    console = tables.console()
    console.print(tables.grid(names, rows, title, ("column", "used", "range")), crop=False)
    for column in found.columns:
        for line in _remarks(column):
            click.echo(line)
    share = tables.share(found.counting / found.rows if found.rows else None)
    click.echo(f"{found.rows} rows, of which {found.counting} count ({share})")
    if found.lost:
        click.echo(f"warning: {found.lost}")
    for line in found.remarks:
        click.echo(f"warning: {line}")
    units = found.units
    if units is None:
        _warn_of_size(found.rows, "rows", study)
        return
    spread = ", ".join(f"{count} with {rows}" for rows, count in units.rows.items())
    click.echo(f"{units.units} units in `{units.column}`: {spread or 'none'} (rows that count)")
    first = "first" if units.most == 1 else f"first {units.most}"
    click.echo(f"{units.left_out} rows come after the {first} of their unit, and are left out")
    if units.without:
        click.echo(f"{units.without} rows do not say whose they are, and count as zero")
    _warn_of_size(units.units, "units", study)


def _warn_of_size(count: int, what: str, study: "Study") -> None:
    most = study.data.max_records
    if most is not None and count > most:
        click.echo(f"more {what} than the study declares with data.max_records = {most}")


def _unknown(column: "ColumnFit") -> str:
    from fedvi.data.schema import as_number

    if "outside" not in column.done:  # only a number can be outside its bounds
        return "of no declared value"
    examples = column.examples.get("unknown", [])
    numbers = [cell for cell, _ in examples if as_number(cell.strip()) is not None]
    return "that are no whole number" if numbers else "that are no number"


def _remarks(column: "ColumnFit") -> list[str]:
    words = {
        "missing": "missing",
        "outside": "outside the bounds",
        "unknown": _unknown(column),
    }
    lines = []
    for verdict, said in words.items():
        count = column.counts.get(verdict, 0)
        if count:
            examples = ", ".join(
                f"{cell!r} ({times})" for cell, times in column.examples.get(verdict, [])
            )
            shown = f", such as {examples}" if examples else ""
            lines.append(f"{column.name}: {count} {said}: {column.done[verdict]}{shown}")
    if column.commas:
        lines.append(f"{column.name}: {_COMMAS}")
    if column.advice:
        lines.append(f"{column.name}: {column.advice}")
    return lines
