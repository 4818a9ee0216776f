"""Runs a study over a grid of settings, several times each, and keeps one table of all runs.

Each finished run is a file of its own, written as a whole, so a sweep that was stopped can continue. Its
results were computed from records. They are only for those who may see all records, as with simulated or
public data. They must not be used to choose the settings of a private study from its own records.
"""

import concurrent.futures
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvi import __version__, errors, plugins
from fedvi.report import spreadsheets
from fedvi.report.tables import plain
from fedvi.results import outcome
from fedvi.results.posterior import write_json
from fedvi.run.simulate import simulate
from fedvi.study.config import Study, parse_study
from fedvi.typing import INTERCEPT

__all__ = [
    "Cell",
    "Run",
    "coefficient_rows",
    "grid",
    "run_rows",
    "summary",
    "sweep",
    "write_tables",
]


class Cell(NamedTuple):
    """One run of a grid: a setting and a seed.

    Attributes:
      settings: dotted key of the study → its value here.
      seed: of the run; seeds count up from the study's own.
      study: with these settings and this seed.
    """

    settings: Mapping[str, Any]
    seed: int
    study: Study


class Run(NamedTuple):
    """A cell and its outcome.

    Attributes:
      cell: its settings and seed.
      told: the run as ``outcome.as_dict`` writes it; None if it failed.
      problem: why it failed; "" if it did not.
    """

    cell: Cell
    told: Mapping[str, Any] | None
    problem: str = ""


def grid(study: Study, settings: Mapping[str, Sequence[Any]], seeds: int = 1) -> list[Cell]:
    """Returns all runs, grouped by setting, so that each setting compiles once.

    Args:
      study: the study to vary.
      settings: dotted key, such as "privacy.epsilon" → its values; their product is run.
      seeds: number of runs per setting. Each has fresh noise, and a fresh order of arrival.

    Raises:
      ConfigError: a key is unknown, or a value does not fit it; before anything runs.
    """
    if seeds < 1:
        raise errors.ConfigError(f"--seeds is {seeds}, expected at least 1", "e.g. --seeds 20")
    cells = []
    for values in itertools.product(*settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        raw = study.as_dict()
        for key, value in chosen.items():
            _set(raw, key, value)
        for seed in range(study.study.seed, study.study.seed + seeds):
            raw["study"]["seed"] = seed
            cells.append(Cell(chosen, seed, parse_study(raw, study.parts)))
    return cells


def _set(raw: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value at a dotted key; ``parse_study`` checks both."""
    *sections, name = key.split(".")
    if not sections or key == "study.seed":
        raise errors.ConfigError(
            f"{key!r} cannot be varied",
            "name a key as SECTION.KEY, e.g. privacy.epsilon; seeds are given by --seeds",
        )
    table: Any = raw
    for section in sections:
        table = table.setdefault(section, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise errors.ConfigError(
                f"{key}: {section!r} is no table of this study",
                "name a key as SECTION.KEY, of a section that the study file has",
            )
    table[name] = value


def sweep(
    cells: Sequence[Cell],
    base: Path,
    folder: Path,
    *,
    pooled: bool = False,
    jobs: int = 1,
    on_run: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Makes the runs that are missing.

    Args:
      cells: from ``grid``.
      base: the folder that data paths are relative to.
      folder: where runs are kept. Runs of the same study on the same files are not repeated, so that a
        grid can grow.
      pooled: also fit all records pooled, without privacy, beside each run.
      jobs: number of processes.
      on_run: called with each run, including those that existed.

    Returns:
      One run per cell, in the order of ``cells``. A failed run holds its reason, and is repeated next
      time.

    Raises:
      ConfigError: the folder cannot be written.
      RunFailed: a process died, for lack of memory or by a signal.
    """
    place = folder / "runs"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.ConfigError(
            f"--out {folder}: {error.strerror}", "name a folder that you may write"
        ) from None
    files = [place / f"{_key(cell.study, base, pooled)}.json" for cell in cells]
    runs: dict[int, Run] = {}

    def done(index: int, problem: str) -> None:
        told = None if problem else json.loads(files[index].read_text(encoding="utf-8"))
        runs[index] = Run(cells[index], told, problem)
        if on_run is not None:
            on_run(runs[index])

    missing = []
    for index, file in enumerate(files):
        if file.exists():
            done(index, "")
        else:
            missing.append(index)
    work = [_work(cells[index].study, base, pooled, files[index]) for index in missing]
    for index, problem in zip(missing, _problems(work, jobs), strict=True):
        done(index, problem)
    return [runs[index] for index in range(len(cells))]


def _problems(work: Sequence[tuple[Any, ...]], jobs: int) -> Iterable[str]:
    """Yields, in order, why each piece of work failed; "" where it did not."""
    if jobs == 1 or len(work) < 2:
        yield from itertools.starmap(_make, work)
        return
    # Spawned: a fork of a process that runs JAX's threads may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(work)), context) as pool:
        try:
            yield from pool.map(_make, *zip(*work, strict=True))
        except concurrent.futures.BrokenExecutor:
            raise errors.RunFailed(
                "a process of the sweep ended before its run did",
                "it may have run out of memory: give fewer --jobs. The same command goes on with what "
                "is missing",
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _work(study: Study, base: Path, pooled: bool, file: Path) -> tuple[Any, ...]:
    """Returns the arguments of ``_make``, for this process or another."""
    parts = study.parts
    return study.as_dict(), (dict(parts.given), dict(parts.names), parts.policy), base, pooled, file


def _make(raw: dict[str, Any], parts: tuple[Any, ...], base: Path, pooled: bool, file: Path) -> str:
    """Makes one run and writes its file atomically; returns why it failed, or ""."""
    try:
        result = simulate(parse_study(raw, plugins.OutsideCode(*parts)), base, pooled=pooled)
    except errors.FedviError as error:
        return str(error)
    beside = file.with_suffix(f".{os.getpid()}.part")
    try:
        write_json(beside, outcome.as_dict(result))
        beside.replace(file)
    except OSError as error:
        raise errors.ConfigError(
            f"cannot write {file}: {error.strerror}",
            "the same command goes on with what is missing",
        ) from None
    finally:
        beside.unlink(missing_ok=True)
    return ""


def _key(study: Study, base: Path, pooled: bool) -> str:
    """Returns a run's file name, from its study, the files it reads and the version of fedvi."""
    stamps = []
    for client in study.clients:
        path = base / (client.data or "")
        state = path.stat() if client.data and path.exists() else None
        stamps.append(None if state is None else (state.st_size, state.st_mtime_ns))
    content = json.dumps([__version__, pooled, study.as_dict(), stamps], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def run_rows(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Returns one row per run: its settings, seed, price, end and duration."""
    rows = []
    for run in runs:
        told = run.told or {}
        claims = [
            claim
            for claim in told.get("consortium", ())
            if claim["relation"] == run.cell.study.privacy.relation
        ]
        claim = claims[0] if claims else {}
        rows.append(
            {
                **run.cell.settings,
                "seed": run.cell.seed,
                "problem": run.problem,
                **{name: claim.get(name) for name in ("epsilon", "delta", "relation", "view")},
                "rounds": told["history"][-1]["rounds"] if told.get("history") else None,
                "elapsed_seconds": told.get("elapsed_seconds"),
            }
        )
    return rows


def coefficient_rows(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Returns one row per run and coefficient: mean, sd, interval and, if made, the pooled fit's."""
    kept = ("name", "mean", "sd", "lower", "upper", "pooled_mean", "pooled_sd")
    return [
        {
            **run.cell.settings,
            "seed": run.cell.seed,
            **{name: row[name] for name in kept if name in row},
        }
        for run in runs
        if run.told is not None
        for row in run.told["coefficients"]
    ]


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns one row per setting, which summarises its runs over all coefficients and seeds.

    For each setting: the ``runs`` that ended and those that ``failed``; the median ``sd``; the mean number
    per run of effects ``clear`` of zero (both ends of the interval have one sign; intercepts excluded).
    Beside a pooled fit also: the median ``width`` as a multiple of the pooled fit's, and the root mean
    square ``distance`` of means from the pooled means, in pooled sds.
    """
    settings = list({json.dumps(run.cell.settings): run.cell.settings for run in runs}.values())
    return [_summed(chosen, [r for r in runs if r.cell.settings == chosen]) for chosen in settings]


def _summed(chosen: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    rows = coefficient_rows(runs)
    ended = sum(run.told is not None for run in runs)
    clear = [row for row in rows if row["lower"] * row["upper"] > 0 and row["name"] != INTERCEPT]
    beside = [row for row in rows if row.get("pooled_sd")]
    off = [((row["mean"] - row["pooled_mean"]) / row["pooled_sd"]) ** 2 for row in beside]
    return {
        **chosen,
        "runs": ended,
        "failed": len(runs) - ended,
        "sd": statistics.median(row["sd"] for row in rows) if rows else None,
        "clear": len(clear) / ended if ended else None,
        "width": statistics.median(row["sd"] / row["pooled_sd"] for row in beside)
        if beside
        else None,
        "distance": math.sqrt(sum(off) / len(off)) if off else None,
    }


def write_tables(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Writes ``runs`` and ``coefficients`` as CSV and, where pyarrow is installed, as Parquet.

    Returns:
      The files.
    """
    written = []
    for name, rows in (("runs", run_rows(runs)), ("coefficients", coefficient_rows(runs))):
        rows = [{key: _cell(value) for key, value in row.items()} for row in plain(rows)]
        path = folder / f"{name}.csv"
        beside = path.with_suffix(".part")
        with beside.open("w", encoding="utf-8", newline="") as file:
            names = list(dict.fromkeys(key for row in rows for key in row))
            spreadsheets.write(file, [names, *([row.get(key) for key in names] for row in rows)])
        beside.replace(path)
        written.append(path)
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            continue
        parquet.write_table(pyarrow.Table.from_pylist(rows), beside)
        beside.replace(path.with_suffix(".parquet"))
        written.append(path.with_suffix(".parquet"))
    return written


def _cell(value: Any) -> Any:
    """Writes a list or a table as JSON in one cell."""
    return json.dumps(value) if isinstance(value, list | dict) else value
