"""`fedvi plan STUDY.toml`: how wide intervals will be, and what it takes to tell an effect from none."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvi import errors
from fedvi.cli._flags import FILE, code_flags, plot_flag
from fedvi.cli._outputs import check_new
from fedvi.planning import width_tables
from fedvi.planning.width_tables import effect_name, size

if TYPE_CHECKING:
    from fedvi.planning.scenarios import Cell, Needs
    from fedvi.planning.widths import Widths
    from fedvi.study.build import Assembly

__all__ = ["plan"]


@click.command()
@click.argument("study", type=FILE)
@click.option(
    "--effect",
    "effects",
    multiple=True,
    metavar="NAME=RATIO",
    help="Say which ε, how many records or how many sites it takes to tell this effect from no effect. "
    "NAME is a coefficient. RATIO is its odds (rate, hazard) ratio, or for a linear model its difference, "
    "for the unit in the table. May be repeated.",
)
@click.option(
    "--table",
    "with_table",
    is_flag=True,
    help="Also print the smallest effect for other ε, numbers of records and views.",
)
@plot_flag("what --table prints")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@code_flags
def plan(
    study: Path, effects: tuple[str, ...], with_table: bool, plot: Path | None, as_json: bool
) -> None:
    """Predict how wide the intervals of a study will be, from public numbers alone. Reads no data.

    For each coefficient it prints the expected width of the 95 % interval, beside that of a fit without
    noise, and the smallest effect whose interval would exclude "no effect" in four of five such studies.

    \b
      fedvi plan study.toml
      fedvi plan study.toml --effect diabetes=1.3 --table --plot plan.png

    State in the study what you expect of its records: it makes the plan better, and changes nothing else.
    A client has `expected_records`. A column has `expected`, such as { mean = 65, sd = 12 } of a number,
    { share = 0.1, auc = 0.8 } of a binary outcome, or { shares = [0.5, 0.3, 0.2] } of levels. What is
    assumed in their place is printed.
    """
    from fedvi.planning import advice, priors, scenarios
    from fedvi.planning.widths import why_not, widths
    from fedvi.study.build import assemble
    from fedvi.study.config import load_study

    check_new("--plot", plot)
    assembly = assemble(load_study(study))
    reason = why_not(assembly)
    if reason:
        raise errors.ConfigError(reason, "`fedvi check` compares the private modes of such a study")
    found = widths(assembly)
    asked = [scenarios.needs(assembly, *_effect(text, found)) for text in effects]
    cells = scenarios.table(assembly) if with_table or plot is not None else ()
    steps, help_ = priors.steps(assembly), advice.levers_in_words(scenarios.levers(assembly))
    warnings = (*assembly.warnings, *priors.quarrels(assembly))
    if plot is not None:
        _draw(cells, found.ratio, assembly.study.study.name, plot)
    if as_json:
        plain = found.as_dict() | {
            "effects": [one._asdict() for one in asked],
            "table": [_plain(cell._asdict()) for cell in cells],
            "prior": [step._asdict() for step in steps],
            "help": help_,
            "warnings": list(warnings),
        }
        click.echo(json.dumps(_plain(plain), indent=2, allow_nan=False))
        return
    from fedvi.report import tables

    _show(assembly, found, asked, cells)
    below = (width_tables.smallest_told(found), width_tables.guessed(found))
    tables.say(filter(None, (_prior(steps, found), help_, *below)))
    for line in warnings:
        click.echo(f"warning: {line}", err=True)
    if plot is not None:
        click.echo(f"drawn: {plot}")


def _effect(text: str, found: "Widths") -> tuple[str, float]:
    """Reads NAME=RATIO as a coefficient and its size."""
    name, _, value = text.rpartition("=")
    try:
        size = float(value)
        size = math.log(size) if found.ratio else size
    except ValueError:
        size = math.nan
    if not name or not 0.0 < abs(size) < width_tables.largest(found.ratio):
        what = "RATIO, a ratio above 0 other than 1" if found.ratio else "DIFFERENCE, other than 0"
        raise errors.ConfigError(
            f"--effect is {text!r}, expected NAME={what}, of a size that a study could look for",
            "e.g. --effect diabetes=1.3",
        )
    return name, size


def _show(
    assembly: "Assembly", found: "Widths", asked: "list[Needs]", cells: "tuple[Cell, ...]"
) -> None:
    from fedvi.report import tables

    console, study = tables.console(), assembly.study
    promise = study.privacy.promise
    said = f"ε = {promise.epsilon:g}, view {study.privacy.view}" if promise else "no protection"
    title = f"Plan of {study.study.name}: {found.records:,} records at {len(study.clients)} sites, {said}"
    names, rows, *_ = width_tables.table(found)
    console.print(tables.units_grid(names, rows, title, console.width), crop=False)
    tables.say(filter(None, (width_tables.worth(found), width_tables.clipped(found))))
    for line in (
        *_table(cells, found.ratio),
        *(_needs(one, assembly, found) for one in asked),
    ):
        if isinstance(line, str):
            tables.say([line])
        else:
            console.print(line, highlight=False, markup=False)


def _table(cells: "tuple[Cell, ...]", ratio: str) -> Iterator[Any]:
    from fedvi.planning.scenarios import VIEWS, rows_of
    from fedvi.report import tables

    for view in VIEWS:
        rows = [
            [f"{epsilon:g}", *(size(cell.detectable, ratio) for cell in row)]
            for epsilon, row in rows_of(cells, view)
        ]
        if rows:
            row = next(row for _, row in rows_of(cells, view))
            names = ["ε", *(f"{cell.records:,} records" for cell in row)]
            rows.append(["no noise", *(size(cell.open_detectable, ratio) for cell in row)])
            title = f"Smallest {effect_name(ratio)}, median covariate, view {view}"
            yield tables.grid(names, rows, title, ("ε",))


def _needs(found: "Needs", assembly: "Assembly", plan: "Widths") -> str:
    """Says what it takes to tell one effect from none."""
    from fedvi.planning.scenarios import MOST_EPSILON

    study, ratio = assembly.study, plan.ratio
    # Of a number, a ratio is one for a unit of the coefficient, which is seldom one of the file.
    unit = next((f" {row.unit}" for row in plan.rows if row.name == found.name and row.unit), "")
    far = size(abs(found.effect), ratio)
    if ratio and found.effect < 0.0:
        far = f"{math.exp(found.effect):.3g}, as far from 1 as {far},"
    elif found.effect < 0.0:
        far = f"-{far}"
    wanted = f"{found.name}, {effect_name(ratio)} {far}{unit}"
    stated = all(row.stated for row in plan.rows if row.name == found.name)
    now = f"smallest here {size(found.detectable, ratio, '' if stated else '≥ ')}"
    ways = [
        None if found.epsilon is None else f"ε = {found.epsilon:.2g} at these records",
        None
        if found.records is None
        else f"{found.records:,} records at each of {len(study.clients)} sites",
        None
        if found.sites is None
        else f"{found.sites} site{'s' if found.sites > 1 else ''} of this size",
    ]
    kept = [way for way in ways if way is not None]
    if not study.privacy.private:
        kept = kept[-2:]
    if study.privacy.private and found.epsilon is None:
        if found.open_detectable > abs(found.effect):
            now += ", and no ε is enough: the records are too few even without noise"
        else:
            now += f", and no ε up to {MOST_EPSILON:g} is enough with these records"
    return f"{wanted} ({now}): it takes " + (", or ".join(kept) if kept else "more than was tried")


def _prior(steps: Any, found: "Widths") -> str:
    # The table's unit is seldom the step, so that even a step of 1 is told, where a column has units.
    units = {row.name for row in found.rows if row.unit}
    said = [
        f"{step.name} {_short(step.low)} to {_short(step.high)}"
        + (f" per {step.per}" if step.step != 1.0 or step.name in units else "")
        for step in steps
    ]
    unit = f" in {steps[0].unit}" if steps and steps[0].unit else ""
    return (
        f"the prior says, of the {effect_name(found.ratio)}{unit} (95 %): " + "; ".join(said)
        if said
        else ""
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if 100.0 <= abs(value) < 1e6 else f"{value:.2g}"


def _draw(cells: "tuple[Cell, ...]", ratio: str, name: str, path: Path) -> None:
    from fedvi.planning.scenarios import VIEWS, rows_of
    from fedvi.report import plots

    views: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for view in VIEWS:
        for epsilon, row in rows_of(cells, view):
            for cell in row:
                line = views.setdefault(view, {}).setdefault(f"{cell.records:,} records", [])
                size = cell.detectable
                line.append(
                    (
                        epsilon,
                        math.exp(min(size, 700.0))
                        if ratio and size < 5
                        else size
                        if not ratio
                        else math.inf,
                    )
                )
    if not views:
        raise errors.ConfigError(
            "--plot has nothing to draw: widths can be predicted for none of the table's private studies",
            "leave --plot out; a study without protection has no such table",
        )
    plots.smallest_effects(
        views,
        f"smallest {effect_name(ratio)}",
        f"{name}: smallest effect that a study would find",
        path,
        is_ratio=bool(ratio),
    )


def _plain(value: Any) -> Any:
    """Writes what JSON cannot hold as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
