"""`fedvi posterior RUN`: the posterior of a finished run, as a table or as files for other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli._flags import FILE, FOLDER, code_flags, seed_flag
from fedvi.cli._outputs import check_new, with_origin
from fedvi.report import tables
from fedvi.results import draws as draws_of
from fedvi.results import exports, finished
from fedvi.results.finished import Finished
from fedvi.study import remarks
from fedvi.study.spec import regressions
from fedvi.study.spec.coefficients import MOST, coefficients

__all__ = ["posterior"]


@click.command()
@click.argument("run", type=FOLDER)
@click.option(
    "--to",
    multiple=True,
    type=FILE,
    help="Write draws: .nc for ArviZ (needs fedvi[report]), .npz for NumPy, .csv for R and others. "
    "May be repeated.",
)
@click.option("--summary", type=FILE, help="Write the table to this .csv.")
@click.option(
    "--numpyro",
    type=FILE,
    help="Write the parameters of NumPyro's AutoMultivariateNormal, or AutoDiagonalNormal, to this .npz.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=4000,
    show_default=True,
    help="How many draws --to writes.",
)
@seed_flag("the draws; not secret")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@code_flags
def posterior(
    run: Path,
    to: tuple[Path, ...],
    summary: Path | None,
    numpyro: Path | None,
    draws: int,
    seed: int,
    as_json: bool,
) -> None:
    """Show the posterior of a finished run, or write it to files that other tools read.

    RUN is the --out folder of `fedvi simulate`, or the --state folder of a server.

    \b
      fedvi posterior run
      fedvi posterior run --summary coefficients.csv
      fedvi posterior run --to posterior.nc --to posterior.csv
      fedvi posterior run --numpyro guide.npz

    All of it is made from the posterior alone, which was released and paid for: it costs no further
    privacy. Draws are independent, and each number is in its own support. Each file says what the
    posterior cost: a .nc in its attributes, the others in FILE.json beside them. No file is overwritten.
    """
    for option, path, suffix in (("--summary", summary, ".csv"), ("--numpyro", numpyro, ".npz")):
        if path is not None and path.suffix.lower() != suffix:
            raise errors.ConfigError(
                f"{option} {path}: the name ends in {path.suffix!r}, expected {suffix!r}"
            )
    for option, paths in (("--to", to), ("--summary", [summary]), ("--numpyro", [numpyro])):
        for path in filter(None, paths):
            check_new(option, *with_origin(path))
    found = finished.read(run)
    rows = _rows(found)
    if to:
        parameters = draws_of.named(found.assembly, found.posterior, draws, seed)
        for path in to:
            exports.write_draws(found, parameters, seed, path)
    if summary is not None:
        # How far sites differ has columns of its own, which are empty for all others.
        names = list(dict.fromkeys(name for row in rows for name in row))
        exports.write_rows(summary, names, [[row.get(name) for name in names] for row in rows])
        exports.beside(summary, found, {"coefficients": len(rows)})
    guide = ("", "") if numpyro is None else exports.write_numpyro(found, numpyro)
    if as_json:
        content = tables.plain({**finished.origin(found), "coefficients": rows})
        tables.print_json(content)
        return
    _show(found, rows)
    for path in to:
        click.echo(f"{draws} draws written to {path}")
    if summary is not None:
        click.echo(f"the table written to {summary}")
    if numpyro is not None:
        click.echo(f"parameters of {guide[0]} written to {numpyro}")
        if guide[1]:
            click.echo(f"note: {guide[1]}")


def _rows(found: Finished) -> list[dict[str, Any]]:
    assembly = found.assembly
    return coefficients(
        assembly.family, found.posterior, assembly.model.names, assembly.units, assembly.study
    )


def _show(found: Finished, rows: Sequence[dict[str, Any]]) -> None:
    study = found.assembly.study
    console = tables.console()
    title, ratio = f"Posterior of {found.title}", regressions.ratio(study)
    console.print(tables.coefficient_table(rows, title, ratio, False, console.width), crop=False)
    lines = [*tables.ratio_notes(rows, ratio)]
    lines += remarks.remarks(study, found.assembly.family, rows)
    lines.append(found.claimed)
    if len(rows) == MOST < found.assembly.family.size:
        lines.append(f"the first {MOST} of {found.assembly.family.size} coordinates")
    tables.say(filter(None, lines))
