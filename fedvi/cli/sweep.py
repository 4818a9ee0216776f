"""`fedvi sweep STUDY.toml`: the same study under several settings, several times each, in one table."""

import importlib.util
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedvi import errors
from fedvi.cli._flags import FILE, FOLDER, code_flags
from fedvi.report import plots, tables
from fedvi.results import sweeps
from fedvi.study.config import load_study
from fedvi.study.implausible import implausible

__all__ = ["sweep"]


@click.command()
@click.argument("study", type=FILE)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE,VALUE…",
    help="A key of the study, as SECTION.KEY, and its values, written as in the study file (text needs no "
    "quotes). May be repeated: all combinations are run.",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each setting."
)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    help="Folder for the runs and their tables. Runs that it holds already are not run again.",
)
@click.option(
    "--pooled",
    is_flag=True,
    help="Also fit all clients' records pooled, WITHOUT privacy, beside each run. Only for data that may "
    "be pooled.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs in parallel."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@code_flags
def sweep(
    study: Path,
    settings: tuple[str, ...],
    seeds: int,
    out: Path,
    pooled: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Simulate a study under several settings, several times each, and put all runs in one table.

    \b
      fedvi sweep study.toml --set privacy.epsilon=0.5,1,2 --seeds 20 \\
        --pooled --out by-epsilon

    This prints a summary, and writes by-epsilon/runs.csv (one row per run) and coefficients.csv (one per
    run and coefficient), both also as Parquet with pyarrow, and coefficients.svg with fedvi[report]. The
    same command continues after an interruption; a larger grid keeps the runs that are there.

    A sweep is for simulated or public data: to choose the settings of a private study by its own
    records would be one more release, which no ledger counts.
    """
    description = load_study(study)
    cells = sweeps.grid(description, _settings(settings), seeds)
    for line in dict.fromkeys(line for cell in cells for line in implausible(cell.study, None)):
        click.echo(f"warning: {line}", err=True)
    console = tables.console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]}"),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as bar:
        task = bar.add_task("runs", total=len(cells), failed="")
        failed: list[str] = []

        def on_run(run: sweeps.Run) -> None:
            failed.extend([run.problem] if run.problem else [])
            bar.update(task, advance=1, failed=f"{len(failed)} failed" if failed else "")

        runs = sweeps.sweep(cells, study.parent, out, pooled=pooled, jobs=jobs, on_run=on_run)
    written = [*sweeps.write_tables(runs, out), *_drawn(runs, description.study.name, pooled, out)]
    rows = sweeps.summary(runs)
    if as_json:
        tables.print_json(rows)
    else:
        _show(rows, description.study.name, pooled)
        click.echo("kept in " + ", ".join(map(str, written)))
    for problem in dict.fromkeys(failed):
        click.echo(f"{failed.count(problem)} of {len(runs)} runs failed: {problem}", err=True)
    if failed:
        raise errors.RunFailed(
            f"{len(failed)} of {len(runs)} runs failed",
            "the others are kept; see the reasons above",
        )


def _drawn(runs: list[sweeps.Run], name: str, pooled: bool, out: Path) -> list[Path]:
    """Draws what the runs found, where matplotlib is installed and a run came to an end."""
    found: dict[str, list[dict[str, Any]]] = {}
    places: dict[str, int] = {}
    for run in runs:
        words = "\n".join(f"{key} {value}" for key, value in run.cell.settings.items()) or "study"
        place = places.setdefault(words, len(places))
        for row in sweeps.coefficient_rows([run]):
            found.setdefault(row["name"], []).append({**row, "setting": place})
    if not found or importlib.util.find_spec("matplotlib") is None:
        return []
    path = out / "coefficients.svg"
    title = f"Sweep of {name}: means and intervals" + (
        ", lines: pooled (not private)" if pooled else ""
    )
    plots.sweep(list(places), found, title, path)
    return [path]


def _settings(given: Iterable[str]) -> dict[str, list[Any]]:
    """Reads "privacy.epsilon=0.5,1" as the values of a key."""
    found: dict[str, list[Any]] = {}
    for item in given:
        key, equals, text = (part.strip() for part in item.partition("="))
        if not (key and equals and text) or key in found:
            raise errors.ConfigError(
                f"--set is {item!r}, expected SECTION.KEY=VALUE,VALUE…, once for a key",
                "e.g. --set privacy.epsilon=0.5,1,2",
            )
        found[key] = _values(text)
    return found


def _values(text: str) -> list[Any]:
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [_value(part.strip()) for part in text.split(",")]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


_WORDS = {
    "runs": "runs",
    "failed": "failed",
    "sd": "median sd",
    "clear": "effects clear of 0",
    "width": "width ÷ pooled",
    "distance": "off, pooled sds",
}


def _show(rows: list[dict[str, Any]], name: str, pooled: bool) -> None:
    """Prints a line a setting."""
    left_out = {"failed"} if not any(row["failed"] for row in rows) else set()
    left_out |= set() if pooled else {"width", "distance"}
    keys = [key for key in rows[0] if key not in left_out]
    cells = [
        [
            tables.number(row[key], 3) if isinstance(row[key], float | None) else str(row[key])
            for key in keys
        ]
        for row in rows
    ]
    settings = tuple(key for key in keys if key not in _WORDS)
    title = f"Sweep of {name}" + (" (pooled columns: not private)" if pooled else "")
    console = tables.console()
    console.print(
        tables.grid([_WORDS.get(key, key) for key in keys], cells, title, settings), crop=False
    )
