"""`fedvi data`: looks at a table, and shares it out over simulated clients.

All of it is for whoever holds the records, at their own machine: no server and no client calls it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import click

from fedvi import errors
from fedvi.cli import _inspect
from fedvi.cli._flags import FOLDER, code_flags, seed_flag
from fedvi.cli._outputs import check_new
from fedvi.cli._table_flags import columns_flag, names_of, separator_flag
from fedvi.report import spreadsheets

__all__ = ["data"]

_PUBLIC = (
    "for simulations and public data: it looks at all records at once, which no federation can."
)


@click.group()
def data() -> None:
    """Inspect a table, alone or against a study, or split one among simulated clients.

    \b
      fedvi data inspect north.csv                         # what is in it
      fedvi data inspect study.toml --data north.csv       # how it fits a study
      fedvi data split all.csv --by hospital --out shards  # clients to simulate

    Both run on the machine that holds the records, and send nothing.
    """


@data.command()
@click.argument("source", metavar="STUDY|FILE", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "path",
    type=click.Path(path_type=Path),
    help="With a study: the file to check. [default: the file that the study names for --as]",
)
@click.option("--as", "name", metavar="NAME", help="With a study: the client whose file it is.")
@columns_flag
@separator_flag
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@code_flags
def inspect(
    source: Path,
    path: Path | None,
    name: str | None,
    columns: str | None,
    separator: str | None,
    as_json: bool,
) -> None:
    """Check how a file fits a study, or describe a file. Stays on this machine, and writes nothing.

    With a study, it prints for each declared column how many cells fit, are missing, are outside the
    bounds or are no declared level, with examples. It also prints how many records count as zero and
    because of which column, what share is clipped, and how many rows a patient has. Without a study,
    it prints likely types, ranges and levels.

    \b
      fedvi data inspect study.toml --data north.csv
      fedvi data inspect study.toml --as north
      fedvi data inspect north.csv
      fedvi data inspect old.data --columns age,sex,cp --json

    The exit code says only whether the file could be read: a site that decided by it whether to take
    part would reveal something about its records.
    """
    if source.suffix.lower() not in (".toml", ".json"):
        for flag, given in (("--data", path), ("--as", name)):
            if given is not None:
                raise errors.ConfigError(
                    f"{flag} is given beside {source}, which is no study",
                    f"write: fedvi data inspect STUDY.toml {flag} {given}; or leave {flag} out",
                )
        _inspect.file(source, names_of(source, columns, separator), columns is not None, as_json)
        return
    for flag, given in (("--columns", columns), ("--separator", separator)):
        if given is not None:
            raise errors.ConfigError(
                f"{flag} is given beside a study, which says how files are read",
                f"leave {flag} out: [data] of {source} has it",
            )
    _inspect.study(source, path, name, as_json)


@data.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--clients", type=click.IntRange(min=1), help="How many clients share the records.")
@click.option("--by", metavar="COLUMN", help="One client for each value of this column.")
@click.option("--balanced", is_flag=True, help="Shares of equal size, drawn at random.")
@click.option(
    "--size-skew",
    type=float,
    metavar="R",
    help="Half of the clients are small: (1 − R) of an equal share each, 0 ≤ R < 1.",
)
@click.option(
    "--label-skew",
    type=float,
    metavar="K",
    help="Small clients hold a share b + (1 − b) K of negatives, where b is that of all records: fewer "
    "positives than the rest if K > 0, more if K < 0. [default: 0]",
)
@click.option(
    "--label",
    metavar="COLUMN",
    help="The column of labels, which --label-skew needs; it has two values.",
)
@click.option(
    "--positive", metavar="CELL", help="Which of its two values is positive. [default: 1]"
)
@click.option(
    "--together",
    metavar="COLUMN",
    help="With --balanced: keep all rows of one patient, named by this column, at one client.",
)
@seed_flag("the random split")
@columns_flag
@separator_flag
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    help="Folder for the files CLIENT.csv; none is overwritten.",
)
def split(
    file: Path,
    clients: int | None,
    by: str | None,
    balanced: bool,
    size_skew: float | None,
    label_skew: float | None,
    label: str | None,
    positive: str | None,
    together: str | None,
    seed: int,
    columns: str | None,
    separator: str | None,
    out: Path,
) -> None:
    """Divide a table among simulated clients, one file each.

    It also prints the [[clients]] tables that a study of these files needs.

    \b
      fedvi data split all.csv --by hospital --out shards
      fedvi data split all.csv --clients 10 --balanced --out shards
      fedvi data split visits.csv --clients 4 --balanced --together patient \\
        --out shards
      fedvi data split adult.csv --clients 10 --size-skew 0.75 \\
        --label-skew 0.95 --label income --positive '>50K' --out shards

    The skewed split is that of the DP-PVI experiments (Heikkilä et al. 2023): half of the clients are
    small, and their labels are distributed otherwise. For simulations and public data: it looks at all
    records at once, which no federation can.
    """
    from fedvi.data import guess, splits, tables
    from fedvi.data.cells import Wanted

    ways = {"--by": by is not None, "--balanced": balanced, "--size-skew": size_skew is not None}
    chosen = [flag for flag, given in ways.items() if given]
    if len(chosen) != 1:
        raise errors.ConfigError(
            f"{' and '.join(chosen) or 'no way to split'} given, expected one of {', '.join(ways)}",
            "such as --by hospital, or --clients 10 --balanced",
        )
    _check_flags(chosen[0], clients, label_skew, label, positive, together)
    found = names_of(file, columns, separator)
    if columns is None:
        guess.check_names(file, found.columns, found.separator)
    for name in (by, label, together):
        if name is not None and name not in found.columns:
            raise errors.DataError(
                f"{file}: no column `{name}`", errors.did_you_mean(name, found.columns)
            )
    everything = frozenset(found.columns)
    given = None if columns is None else found.columns
    asked = Wanted(found.columns, given, found.separator, private=False, as_text=everything)
    table: dict[str, list[str]] = {name: [] for name in found.columns}
    for part in tables.chunks(file, asked):
        for name, cells in part.items():
            table[name] += [cell or "" for cell in guess.texts_of(cells)]

    import numpy as np

    generator = np.random.default_rng(seed)
    count = len(table[found.columns[0]])
    names = tuple(f"client-{number}" for number in range(1, (clients or 0) + 1))
    if by is not None:
        values, client = splits.by_column(table[by], clients)
        names = _client_names(values)
    elif together is not None:
        units, _ = splits.by_column(table[together])
        share = splits.balanced(generator, len(units), len(names))
        client = splits.together(table[together], share)
    elif balanced:
        client = splits.balanced(generator, count, len(names))
    else:
        marks = _positive(table[label], str(label), positive) if label else [False] * count
        client = splits.skewed(
            generator, np.array(marks, bool), len(names), size_skew or 0.0, label_skew or 0.0
        )
    rows = list(zip(*table.values(), strict=True))
    paths = [out / f"{name}.csv" for name in names]
    check_new("--out", *paths)
    for number, path in enumerate(paths):
        mine = [rows[index] for index in np.flatnonzero(client == number)]
        _write_table(path, found.columns if given is None else None, mine, found.separator)
        # TOML takes no pairs of surrogates, which JSON would write for some letters.
        shown = json.dumps(path.as_posix(), ensure_ascii=False)
        click.echo(f'[[clients]]\nname = "{names[number]}"\ndata = {shown}')
        click.echo(f"{path}: {len(mine)} records", err=True)
    click.echo(_PUBLIC, err=True)


def _check_flags(
    way: str,
    clients: int | None,
    label_skew: float | None,
    label: str | None,
    positive: str | None,
    together: str | None,
) -> None:
    if clients is None and way != "--by":
        raise errors.ConfigError(f"--clients is missing beside {way}", "such as --clients 10")
    belong = {
        "--label-skew": (label_skew, "--size-skew"),
        "--label": (label, "--size-skew"),
        "--positive": (positive, "--size-skew"),
        "--together": (together, "--balanced"),
    }
    for flag, (given, home) in belong.items():
        if given is not None and way != home:
            raise errors.ConfigError(f"{flag} is given beside {way}", f"it goes with {home}")
    if label_skew and label is None:
        raise errors.ConfigError(
            "--label is missing beside --label-skew", "name the column whose values are skewed"
        )


def _positive(cells: Sequence[str], label: str, positive: str | None) -> list[bool]:
    from fedvi.data.schema import as_code

    codes = [as_code(cell) for cell in cells]
    wanted = as_code(positive if positive is not None else "1")
    if wanted not in codes:
        raise errors.DataError(
            f"no record has {positive or '1'!r} in the column `{label}`",
            "say with --positive which cell is a positive label",
        )
    return [code == wanted for code in codes]


def _client_names(values: Sequence[str]) -> tuple[str, ...]:
    names = tuple(
        re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-.")[:64] or "client" for value in values
    )
    folded = [name.casefold() for name in names]
    for value, name in zip(values, folded, strict=True):
        if folded.count(name) > 1:
            raise errors.DataError(
                f"two values of the column, one of them {value!r}, give the same name of a client",
                "rename them in the file: names of clients are letters, digits, `.`, `_` and `-`",
            )
    return names


def _write_table(
    path: Path, header: Sequence[str] | None, rows: Sequence[Sequence[str]], separator: str
) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="") as handle:
            spreadsheets.write(handle, [*([] if header is None else [header]), *rows], separator)
    except OSError as error:
        raise errors.ConfigError(
            f"{path} cannot be written: {error.strerror}", "give another --out"
        ) from None
