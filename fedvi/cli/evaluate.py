"""`fedvi evaluate RUN TEST.csv`: how well a finished run predicts records that need no protection."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli._flags import FILE, FOLDER, code_flags, plot_flag
from fedvi.cli._outputs import check_new
from fedvi.report import plots, tables
from fedvi.results import evaluation, finished, public_files
from fedvi.results.evaluation import Evaluation
from fedvi.results.finished import Finished
from fedvi.results.held_out import HeldOut
from fedvi.results.scores import Classes

__all__ = ["evaluate"]

_WARNING = (
    "not private: these figures are computed from the test records as they are. Use a file that is "
    "public or the server's own, with no record of any client"
)


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("test", type=FILE)
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    help="Draws of θ, for models whose predictions have neither quadrature nor closed form. "
    "[default: 1000; 200 for models of whole records]",
)
@plot_flag("the reliability curve")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@code_flags
def evaluate(run: Path, test: Path, draws: int | None, plot: Path | None, as_json: bool) -> None:
    """Compare the posterior of a finished run with test records, read by the study's own schema and
    formula: accuracy, AUC, likelihood, calibration, and how often intervals contain the outcome. For
    conjugate models of whole records: their mean log-likelihood, the perplexity of documents, or the
    share of units that a belief network gets right.

    \b
      fedvi evaluate run public.csv --plot calibration.png

    RUN is the --out folder of `fedvi simulate`, or the --state folder of a server.

    The figures are not protected. The test file must be public or the server's own, without a record of
    any client. In a run with protection, a file that a site of the study names is refused.
    """
    check_new("--plot", plot)
    found = finished.read(run)
    public_files.check(found.assembly.study, run, test, "TEST")
    records = evaluation.read_records(found.assembly, test)
    told = evaluation.held_against(found, records, draws)
    if plot is not None:
        _plot(found, told, plot)
    if as_json:
        _echo(found, told.as_dict())
        return
    if isinstance(told, HeldOut):
        _whole_records(found, told)
    else:
        _show(found, told)
    if plot is not None:
        click.echo(f"drawn to {plot}")


def _echo(found: Finished, figures: dict[str, Any]) -> None:
    content = {
        "study": found.assembly.study.study.name,
        "digest": found.assembly.study.digest,
        "mark": found.mark,
        "private": False,
        **figures,
    }
    tables.print_json(content)


def _whole_records(found: Finished, figures: HeldOut) -> None:
    """Prints what a conjugate model says of whole records."""
    left_out = f"; {figures.left_out} more do not fit" if figures.left_out else ""
    how = f" ({figures.draws} draws)" if figures.draws else ""
    rows = [
        ("test records", f"{figures.rows}{left_out}"),
        (figures.measure, f"{tables.number(figures.value)}{'' if figures.beside else how}"),
        *((name, tables.number(value)) for name, value in figures.beside),
    ]
    console = tables.console()
    console.print(tables.plan_table(rows, _title(found)))
    tables.say([_WARNING])


def _title(found: Finished) -> str:
    return f"Predictions of {found.title}"


def _plot(found: Finished, figures: Evaluation | HeldOut, path: Path) -> None:
    if isinstance(figures, HeldOut):
        raise errors.ConfigError(
            f"--plot {path} is given, but the model describes whole records and predicts no outcome",
            "the plot compares predicted probabilities with outcomes: leave --plot out",
        )
    if figures.classes is None:
        raise errors.ConfigError(
            f"--plot {path} is given, but the outcome is of kind {figures.outcome!r}, expected classes",
            "the plot compares predicted probabilities with outcomes: leave --plot out",
        )
    rows, predicted, observed = zip(*figures.classes.groups, strict=True)
    plots.reliability(predicted, observed, rows, _title(found), path)


def _show(found: Finished, figures: Evaluation) -> None:
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
    tables.say([_WARNING])


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
