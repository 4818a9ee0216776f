"""`fedvi synthesise RUN`: synthetic records from the posterior of a finished run, free of further cost."""

from pathlib import Path

import click

from fedvi.cli._flags import FILE, FOLDER, code_flags, seed_flag
from fedvi.cli._outputs import check_new, with_origin
from fedvi.errors import ConfigError
from fedvi.results import exports, finished, public_files
from fedvi.results.finished import FREE, Finished
from fedvi.results.synthesis import Synthetic
from fedvi.results.synthesis import synthesise as drawn

__all__ = ["synthesise"]

_POOLING = (
    "never analyse several sets as one table, nor one as if it were the records: intervals would be too "
    "narrow. Analyse each set by itself and combine the answers: fedvi.report.combine"
)
_GIVEN = "; beside the posterior, the file of --given was read as it is, and must be public"


@click.command()
@click.argument("run", type=FOLDER)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    help="How many records a set has; with --given, as many as that has.",
)
@click.option(
    "--out",
    required=True,
    type=FILE,
    help="A new .csv, or .npz where records are arrays. Several sets: NAME-1.csv, NAME-2.csv, …. "
    "No file is overwritten.",
)
@click.option(
    "--sets",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many sets, each from its own draw of the posterior.",
)
@click.option(
    "--given",
    type=FILE,
    help="For a regression: a public file with the covariates, to draw outcomes for: a table such as .csv, "
    "or .npz where the study's records are arrays.",
)
@seed_flag("all draws; not secret")
@code_flags
def synthesise(
    run: Path, records: int | None, out: Path, sets: int, given: Path | None, seed: int
) -> None:
    """Write synthetic records that the model of a finished run could have produced.

    RUN is the --out folder of `fedvi simulate`, or the --state folder of a server. This costs no
    further privacy: the posterior was paid for, and what is made from it alone is as private. A
    synthetic record belongs to nobody.

    \b
      fedvi synthesise run --records 1000 --sets 10 --out synthetic.csv
      fedvi synthesise run --given public-x.csv --out synthetic.csv

    Models of whole records (mixtures, networks, chains, topics, factors, and NumPyro models that observe
    every column) write whole records. A regression draws its outcome for the columns of --given, which
    must be a public file; a site's own is refused.

    Synthetic records contain what the model contains: what it leaves out, such as an interaction, they
    lack. Do not analyse one set alone: write several, analyse each, and combine the answers.
    """
    suffix = out.suffix.lower()
    if suffix not in (".csv", ".npz"):
        raise ConfigError(
            f"--out {out}: the name ends in {out.suffix!r}, expected '.csv' or '.npz'"
        )
    paths = (
        [out]
        if sets == 1
        else [out.with_name(f"{out.stem}-{k + 1}{out.suffix}") for k in range(sets)]
    )
    check_new("--out", *paths, *with_origin(out)[1:])
    found = finished.read(run)
    if given is not None:
        public_files.check(found.assembly.study, run, given, "--given")
    # All are drawn before one is written: an error leaves no half of them.
    made = list(drawn(found.assembly, found.posterior, records, sets, seed, given))
    count = 0
    for path, synthetic in zip(paths, made, strict=True):
        count = _write(found, synthetic, path)
    said = {"sets": sets, "records": count, "seed": seed, "files": [path.name for path in paths]}
    cost = FREE + (_GIVEN if given is not None else "")
    exports.beside(out, found, {**said, "pooling": _POOLING}, cost)
    where = str(out) if sets == 1 else f"{paths[0]} to {paths[-1].name}"
    click.echo(f"{sets} {'set' if sets == 1 else 'sets'} of {count} records written to {where}")
    click.echo(f"the posterior: {found.claimed}")
    click.echo(cost)
    click.echo(_POOLING)


def _write(found: Finished, synthetic: Synthetic, path: Path) -> int:
    """Writes one set, and returns how many records it has."""
    if path.suffix.lower() == ".npz":
        if synthetic.arrays is None:
            raise ConfigError(f"--out {path}: the study's records are a table, expected a .csv")
        exports.write_arrays(path, synthetic.arrays)
        return len(next(iter(synthetic.arrays.values())))
    if synthetic.columns is None:
        arrays = ", ".join(synthetic.arrays or ())
        raise ConfigError(
            f"--out {path}: records of model {found.assembly.study.model.kind!r} are no table but the "
            f"arrays {arrays}",
            "name a .npz",
        )
    columns = list(synthetic.columns.values())
    exports.write_rows(path, list(synthetic.columns), list(zip(*columns, strict=True)))
    return len(columns[0])
