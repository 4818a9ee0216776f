"""`fedvi evaluate RUN TEST.csv`: how well a finished run predicts records that need no protection."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.models.conjugate import brings_family
from fedvi.report import plots, tables
from fedvi.results import evaluation, finished, held_out, public_files
from fedvi.results import posterior as posteriors
from fedvi.results.evaluation import Evaluation, Run
from fedvi.results.held_out import HeldOut
from fedvi.results.scores import Classes

__all__ = ["evaluate"]

_WARNING = (
    "not private: these figures are computed from the test records as they are. Use a file that is "
    "public or the server's own, with no record of any client"
)


@click.command()
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.argument("test", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    help="Draws of θ, for a model whose predictions have no quadrature and no closed form. [default: 1000; "
    "200 for models of whole records]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the reliability curve to this file (.png, .svg, .pdf). Needs fedvi[report].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def evaluate(run: Path, test: Path, draws: int | None, plot: Path | None, as_json: bool) -> None:
    """Hold the posterior of a finished run against test records, read by the study's own schema and
    formula: accuracy, AUC, likelihood, calibration, and how often intervals hold what came true. Of
    conjugate models of whole records: their mean log-likelihood, the perplexity of documents, or the
    share of units that a belief network reads off right.

    RUN is the folder of `fedvi simulate --out`, or of a server's --state.

    The figures are not protected: the test file must be public or the server's own, and hold no record
    of any client. Of a run with protection, a file that a site of the study names is refused.
    """
    done = finished.read(run)
    found = Run(done.assembly, done.posterior, done.mark)
    public_files.check(found.assembly.study, run, test, "TEST")
    records = evaluation.read_records(found.assembly, test)
    model = found.assembly.model
    if brings_family(model):
        figures = held_out.measure(model, found.posterior, records, draws or 200)
        _whole_records(found, figures, plot, as_json)
        return
    told = evaluation.evaluate(found.assembly, found.posterior, records, draws or 1000)
    if plot is not None:
        _plot(found, told, plot)
    if as_json:
        _echo(found, told.as_dict())
        return
    _show(found, told)
    if plot is not None:
        click.echo(f"drawn to {plot}")


def _echo(found: Run, figures: dict[str, Any]) -> None:
    content = {
        "study": found.assembly.study.study.name,
        "digest": found.assembly.study.digest,
        "mark": found.mark,
        "private": False,
        **figures,
    }
    click.echo(json.dumps(content, indent=2, allow_nan=False))


def _whole_records(found: Run, figures: HeldOut, plot: Path | None, as_json: bool) -> None:
    """Prints what a conjugate model says of whole records."""
    if plot is not None:
        raise errors.ConfigError(
            f"--plot {plot} is given, but the model is of whole records, expected one of an outcome",
            "a reliability curve is of probabilities of classes: leave --plot out",
        )
    if as_json:
        _echo(found, posteriors.plain(figures._asdict() | {"beside": dict(figures.beside)}))
        return
    left_out = f"; {figures.left_out} more do not fit" if figures.left_out else ""
    how = f" ({figures.draws} draws)" if figures.draws else ""
    rows = [
        ("test records", f"{figures.rows}{left_out}"),
        (figures.measure, f"{tables.number(figures.value)}{'' if figures.beside else how}"),
        *((name, tables.number(value)) for name, value in figures.beside),
    ]
    console = tables.console()
    console.print(tables.plan_table(rows, _title(found)))
    console.print(_WARNING, highlight=False, soft_wrap=True, markup=False)


def _title(found: Run) -> str:
    return f"Predictions of {found.assembly.study.study.name}" + (
        f" — {found.mark}" if found.mark else ""
    )


def _plot(found: Run, figures: Evaluation, path: Path) -> None:
    if figures.classes is None:
        raise errors.ConfigError(
            f"--plot {path} is given, but the outcome is of kind {figures.outcome!r}, expected classes",
            "a reliability curve is of probabilities: leave --plot out",
        )
    rows, predicted, observed = zip(*figures.classes.groups, strict=True)
    plots.reliability(predicted, observed, rows, _title(found), path)


def _show(found: Run, figures: Evaluation) -> None:
    console = tables.console()
    console.print(tables.plan_table(list(_rows(figures)), _title(found)))
    if figures.classes is not None:
        cells = [
            [str(group.rows), f"{group.predicted:.3f}", f"{group.observed:.3f}"]
            for group in figures.classes.groups
        ]
        title = "Calibration, by tenths of the predicted probability"
        what = "trials" if figures.outcome == "binomial" else "records"
        console.print(tables.grid([what, "predicted", "came true"], cells, title, ()))
    console.print(_WARNING, highlight=False, soft_wrap=True, markup=False)


def _rows(figures: Evaluation) -> Iterator[tuple[str, str]]:
    left_out = f"; {figures.left_out} more do not fit the schema" if figures.left_out else ""
    yield "test records", f"{figures.rows}{left_out}"
    how = f" ± {tables.number(figures.error, 2)} ({figures.draws} draws)" if figures.draws else ""
    per = tables.DENSITY_PER.get(figures.density_per)
    value = f"{tables.number(figures.mean_log_likelihood)}{how}"
    yield "mean log-likelihood", value if per is None else f"{value}: {per}"
    if figures.classes is not None:
        if figures.outcome == "binomial":
            yield "trials", f"{sum(group.rows for group in figures.classes.groups)}"
        yield from _of_classes(figures.classes)
    numbers = figures.numbers
    if numbers is not None:
        constant = f"(sd of the outcomes: {tables.number(numbers.spread)})"
        yield "root mean squared error", f"{tables.number(numbers.rmse)} {constant}"
        kind = "at least 50 %" if figures.outcome in ("binomial", "count") else "50 %"
        yield f"within intervals of {kind}", _percent(numbers.coverage_50)
        yield f"within intervals of {kind.replace('50', '95')}", _percent(numbers.coverage_95)


def _of_classes(classes: Classes) -> Iterator[tuple[str, str]]:
    constant = f"(always the most frequent class: {_percent(classes.majority)})"
    yield "accuracy", f"{_percent(classes.accuracy)} {constant}"
    if classes.auc is not None:
        yield "AUC", tables.number(classes.auc)
    yield "Brier score", tables.number(classes.brier)
    yield "calibration error", tables.number(classes.calibration_error, 3)


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"
