"""`fedvi predict RUN FILE`: what a finished run says of new records, with how sure it is."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from fedvi import data
from fedvi.cli._flags import FILE, FOLDER, code_flags, seed_flag
from fedvi.cli._outputs import check_new, with_origin
from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError, ModelError
from fedvi.models.capabilities import Latents, PredictsArrays, Tabular, TellsLatents
from fedvi.results import exports, finished, new_records
from fedvi.results.finished import Finished
from fedvi.results.predictions import Forecast, Predictor, predictor
from fedvi.typing import Eta
from fedvi.updates.conjugate import brings_family

__all__ = ["predict"]

_AT_ONCE = 10_000

_NOT_PRIVATE = (
    "not private about the new records: each line is computed from its record as it is. What the run's "
    "own records gave is protected as the run says; no more of them is spent"
)


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("file", type=FILE)
@click.option(
    "--out",
    required=True,
    type=FILE,
    help="The new .csv, one line per record, in the order of FILE. No file is overwritten.",
)
@click.option(
    "--level",
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Probability of the central intervals.",
)
@click.option(
    "--id",
    "id_column",
    help="A column of FILE to copy beside `row`; a cell that begins like a formula gets a ' before it.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    default=1000,
    show_default=True,
    help="How many draws of θ a prediction averages over, for models that need draws.",
)
@seed_flag("these draws")
@code_flags
def predict(
    run: Path, file: Path, out: Path, level: float, id_column: str | None, draws: int, seed: int
) -> None:
    """Predict new records from the posterior of a finished run, with uncertainty.

    \b
      fedvi predict run new-patients.csv --out predictions.csv --id patient

    RUN is the --out folder of `fedvi simulate`, or the --state folder of a server. FILE is a table (.csv,
    .tsv, .csv.gz, .parquet, .npz or .npy), read by the study's own schema and formula; it needs no column
    of the response. Topic models, factor analysis and `linear_unknown_noise` read .npz.

    \b
    Columns of the output:
      row                           number of the record; then the --id column
      mean, sd, lower, upper        of the predicted mean, over the posterior
      outcome_lower, outcome_upper  numbers, counts: interval of a new outcome
      outcome_error                 NumPyro models: standard error of these ends
      reason                        why a line is empty
      note                          which cells were clipped to the bounds

    With several quantities, such as levels or times, there is a column for each: mean[LEVEL],
    sd[LEVEL], …. The outcomes of a study's own NumPyro model are drawn by its own law, one for each
    draw of θ; four times as many --draws halve outcome_error. The law needs a finite mean and variance,
    or whole numbers for levels.

    The predictions are not private about the new records.
    """
    if out.suffix.lower() != ".csv":
        raise ConfigError(f"--out {out}: the name ends in {out.suffix!r}, expected '.csv'")
    check_new("--out", *with_origin(out))
    found = finished.read(run)
    model = found.assembly.model
    parts: Iterator[_Part]
    if brings_family(model) and not isinstance(model, PredictsArrays):
        told = _latents(model, found.posterior)
        parts = _of_latents(found, told, model, file, id_column)
        what, names, used = told.what, list(told.labels), 0
    else:
        how = predictor(found.assembly, found.posterior, level, draws, seed)
        parts = (
            _of_arrays(how, model, file, id_column)
            if isinstance(model, PredictsArrays)
            else _of_outcomes(found, how, file, id_column)
        )
        part = next(parts)
        what, names, used = how.what, _names(how, part), how.draws
        parts = itertools.chain([part], parts)
    if id_column in ("row", *names, "reason", "note"):
        raise ConfigError(
            f"--id {id_column}: {out.name} has a column of that name, expected another name",
            "rename the column of the file",
        )
    rows = empty = clipped = 0
    with exports.writing(out) as target:
        copied = [] if id_column is None else [id_column]
        exports.write_csv(target, [["row", *copied, *names, "reason", "note"]])
        for part in parts:
            exports.write_csv(target, _lines(part))
            rows, empty = rows + len(part.reasons), empty + sum(map(bool, part.reasons))
            clipped += sum(map(bool, part.notes))
    about = {"what": what, "level": level, "draws": used, "seed": seed, "rows": rows}
    about |= {"empty": empty, "clipped": clipped, "not_private": _NOT_PRIVATE}
    exports.beside(out, found, about)
    count = f"{rows - empty} of {rows}" if empty else f"{rows}"
    click.echo(f"{count} records predicted to {out}: {what}")
    if "outcome_error" in names:
        click.echo(
            f"intervals of a new outcome are made from {used} draws: see `outcome_error` in each line"
        )
    if empty:
        click.echo(f"{empty} do not fit the schema; their lines are empty, with the reason")
    if clipped:
        click.echo(f"{clipped} have cells outside the schema's bounds, clipped; see `note`")
    click.echo(f"the run: {found.claimed}")
    click.echo(_NOT_PRIVATE)


class _Part(NamedTuple):
    """What is told of some records.

    Attributes:
      first: the number of the first.
      ids: what stands in the --id column; None without one.
      values: a ``Forecast``, or latents [n, m].
      reasons, notes: as of ``new_records.Chunk``.
    """

    first: int
    ids: Sequence[str | None] | None
    values: Any
    reasons: Sequence[str]
    notes: Sequence[str]


def _of_outcomes(
    found: Finished, how: Predictor, file: Path, id_column: str | None
) -> Iterator[_Part]:
    """Predicts outcomes, some records at a time."""
    study, schema = found.assembly.study, found.assembly.schema
    also = [] if id_column is None else [id_column]
    for part in new_records.chunks(study, schema, how.needed, file, also):
        # A formula may need no column: this one tells how many records there are.
        columns = {**part.columns, "": np.zeros(len(part.reasons))}
        told = how.predict(columns)
        _check_known(how, told, part.fits, part.first, file)
        ids = None if id_column is None else part.cells[id_column]
        yield _Part(part.first, ids, told, part.reasons, part.notes)


def _of_arrays(
    how: Predictor, model: PredictsArrays, file: Path, id_column: str | None
) -> Iterator[_Part]:
    """Predicts outcomes from arrays, some records at a time."""
    layout = model.inputs
    if file.suffix.lower() != ".npz":
        raise ConfigError(f"{file.name} is no .npz, expected one with {', '.join(layout)}")
    _check_no_id(id_column)
    finite = new_records.all_finite
    source = data.read_arrays(file, layout, finite, private=True, where=file.name)
    if not source.size:
        raise DataError(f"{file} has no record", "is this the right file?")
    for place, part in enumerate(source.chunks(_AT_ONCE)):
        first, told = 1 + place * _AT_ONCE, how.predict(part.records)
        _check_known(how, told, part.valid, first, file)
        yield _Part(first, None, told, _reasons(part), [""] * part.size)


def _check_known(how: Predictor, told: Forecast, fits: np.ndarray, first: int, file: Path) -> None:
    """Refuses a record whose mean is no finite number."""
    unknown = np.flatnonzero(fits & ~np.isfinite(told.mean).all(axis=1))
    if len(unknown):
        raise ModelError(
            f"record {first + unknown[0]} of {file.name}: {how.unknown}",
            "a prediction is a mean with an sd: choose an outcome distribution that has both",
        )


def _check_no_id(id_column: str | None) -> None:
    if id_column is not None:
        raise ConfigError("--id is given beside a .npz, which has no column to copy")


def _latents(model: Any, posterior: Eta) -> Latents:
    """Asks a conjugate model how it tells the latents of new records."""
    if isinstance(model, TellsLatents):
        return model.latents(posterior)
    raise ConfigError(
        f"model {type(model).__name__} can predict neither an outcome nor latent values of new records",
        "`fedvi posterior` writes draws of its parameters; `fedvi synthesise` writes records of models of "
        "whole records",
    )


def _of_latents(
    found: Finished, told: Latents, model: Any, file: Path, id_column: str | None
) -> Iterator[_Part]:
    """Tells latents, some records at a time."""
    study, schema = found.assembly.study, found.assembly.schema
    if file.suffix.lower() == ".npz":
        _check_no_id(id_column)
        # As in a private study no record is refused: each says for itself that it does not fit.
        source = data.read_arrays(file, model.layout, model.sound, private=True, where=file.name)
        yield _Part(1, None, _told(told, source), _reasons(source), [""] * source.size)
        return
    names = tuple(schema)
    if len(names) != len(model.row if isinstance(model, Tabular) else ()):
        raise ConfigError(
            f"{file.name} is no .npz, expected one with {', '.join(model.layout)}",
            "a table serves where a record is one row of numbers, as many as [data.schema] has columns",
        )
    (array,) = model.layout
    also = [] if id_column is None else [id_column]
    for part in new_records.chunks(study, schema, names, file, also):
        rows = {array: np.stack([part.columns[name] for name in names], axis=1)}
        source = ArraySource(rows, part.fits & np.asarray(model.sound(rows), bool))
        reasons = [old or new for old, new in zip(part.reasons, _reasons(source), strict=True)]
        ids = None if id_column is None else part.cells[id_column]
        yield _Part(part.first, ids, _told(told, source), reasons, part.notes)


def _told(told: Latents, source: ArraySource) -> np.ndarray:
    """Returns the latents [n, m]; NaN where a record does not fit."""
    values = np.full((source.size, len(told.labels)), np.nan)
    if source.valid.any():
        values[source.valid] = told.values(source.take(np.flatnonzero(source.valid)))
    return values


def _reasons(source: ArraySource) -> list[str]:
    return ["" if fits else "it is no record that the model knows" for fits in source.valid]


def _names(how: Predictor, part: _Part) -> list[str]:
    """Names the columns of a forecast, quantity by quantity."""
    kinds = [name for name, value in part.values._asdict().items() if value is not None]
    return [f"{kind}[{label}]" if label else kind for label in how.labels for kind in kinds]


def _lines(part: _Part) -> list[list[Any]]:
    values = part.values
    if isinstance(values, Forecast):
        kinds = [each for each in values if each is not None]
        values = np.stack(kinds, axis=2).reshape(len(part.reasons), -1)
    return [
        [
            part.first + index,
            *([] if part.ids is None else [part.ids[index]]),
            *([None] * values.shape[1] if reason else values[index].tolist()),
            reason,
            note,
        ]
        for index, (reason, note) in enumerate(zip(part.reasons, part.notes, strict=True))
    ]
