"""Flags of commands that read a table: its columns' names, and what stands between its cells."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedvi import errors

if TYPE_CHECKING:
    from fedvi.data.names import Names

__all__ = ["columns_flag", "names_of", "separator_flag"]

columns_flag = click.option(
    "--columns",
    metavar="NAME,NAME,…",
    help="Names of all columns, in order, if the file's first line does not have them.",
)
separator_flag = click.option(
    "--separator",
    metavar="CHARACTER",
    help="The character between cells. [default: as in the first line]",
)


def names_of(
    path: Path | None, columns: str | None, separator: str | None, *, flag: str = ""
) -> "Names":
    """Returns a file's column names and separator, as flags give them or else its first line.

    Without a file, as flags give them; ``columns`` must then be there.

    Raises:
      ConfigError: a flag is wrong.
      DataError: the file cannot be read, or its first line has no names; or it has some beside ``columns``.
    """
    from fedvi.data.cells import is_separator
    from fedvi.data.guess import check_given
    from fedvi.data.names import Names, column_names, separator_of

    if separator is not None and not is_separator(separator):
        raise errors.ConfigError(
            f"--separator is {separator!r}, expected one character", 'use "," or ";"'
        )
    if columns is None:
        assert path is not None
        found = column_names(path, separator, flag=flag)
        for said in found.left_out:
            click.echo(f"warning: {path}: {said}: left out, since no study can name it", err=True)
        return found
    listed = tuple(name.strip() for name in columns.split(","))
    given = Names(listed, separator or ("," if path is None else separator_of(path)))
    if path is not None:
        check_given(path, listed, given.separator)
    return given
