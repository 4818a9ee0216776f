"""What a claim is, how it is run, and the result file that figure, table and text are drawn from."""

import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from evidence.figures import Chart
from evidence.pictures import Pictures

__all__ = [
    "DATA",
    "OWN",
    "ROOT",
    "VERDICTS",
    "Claim",
    "Result",
    "Row",
    "Setting",
    "complete",
    "load",
    "of",
    "plain",
    "run",
    "said",
]

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
_PACKAGES = ("jax", "jaxlib", "numpy", "numpyro", "scipy", "dp-accounting")
# The heading of fedvi's own claims.
OWN = "Beyond the papers"
VERDICTS = ("reproduced", "corrected", "not reproduced")

Row = Mapping[str, Any]
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, and what it takes to judge it.

    Texts are templates: ``{name}`` is filled from ``setting`` and from ``numbers``. What fedvi found may
    hold no other digit, so that every number on the page comes from the result file.

    Attributes:
      paper: the heading that it stands under.
      title: the claim, in one sentence.
      source: where the paper says it.
      says: what the paper says, or fedvi.
      price: template; what the setting is and costs: relation, sampler, view, both ε.
      finds: template; what fedvi finds.
      verdict: "reproduced", "corrected" or "not reproduced".
      why: template; the verdict's reason. The page's table of verdicts has its first sentence.
      alt: template; what the figure shows, for who does not see it.
      setting: what all runs share; part of the result file. Changing it makes the result stale.
      quick: what ``--quick`` changes of it.
      run: (setting, seed) → rows, each with the same keys.
      numbers: (rows, setting) → name → number as text.
      table: rows → heads and lines of text.
      figure: rows → a chart, or rows of pictures.
      seeds: of the runs; one, where nothing is drawn.
      by: a list of ``setting``, whose items are run one by one.
      files: of ``../shared/data``, without which the claim is left out.
      modules: to be imported; without them it is left out.
      peers: to be imported, or with an environment of their own (``python_of``); without one, a line
        says so, and the rest runs.
      chosen: on what its settings were chosen.
    """

    paper: str
    title: str
    source: str
    says: str
    price: str
    finds: str
    verdict: str
    why: str
    alt: str
    setting: Setting
    run: Callable[[Setting, int], Iterable[Row]]
    numbers: Callable[[Sequence[Row], Setting], Mapping[str, str]]
    table: Callable[[Sequence[Row]], tuple[list[str], list[list[str]]]]
    figure: Callable[[Sequence[Row]], Chart | Pictures]
    seeds: tuple[int, ...] = (0, 1, 2)
    quick: Setting = field(default_factory=dict)
    by: str = ""
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    chosen: str = "nothing was chosen"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict is {self.verdict!r}, expected one of {VERDICTS}")
        for name in ("price", "finds", "why", "alt"):
            bare = re.sub(r"\{[^}]*\}", "", getattr(self, name))
            if found := re.search(r"(?<![A-Za-z])\d", bare):
                raise ValueError(
                    f"{name} of {self.title!r} holds the number {found[0]!r} itself, expected a "
                    "{name} of `setting` or of `numbers`: it could not be traced to a result"
                )

    def parts(self, setting: Setting, is_quick: bool = False) -> dict[str, tuple[int, Setting]]:
        """Returns what is run, and kept, by itself: name → seed, and the setting of this part.

        An item of ``by`` with all seeds comes before the next, so that what is compiled serves again.
        The cut version has the first seed alone.
        """
        seeds = self.seeds[:1] if is_quick else self.seeds
        if not self.by:
            return {f"{seed}": (seed, setting) for seed in seeds}
        return {
            f"{seed}, {self.by} {index}": (seed, {**setting, self.by: [item]})
            for index, item in enumerate(setting[self.by])
            for seed in seeds
        }

    def absent(self, data: Path = DATA) -> str:
        """Returns what is not there of what the claim needs; empty if all is."""
        tables = [name for name in self.files if not (data / name).exists()]
        return ", ".join([f"no table {name}" for name in tables] + not_installed(self.modules))


def not_installed(modules: Iterable[str]) -> list[str]:
    """Returns a line for each module that cannot be imported."""
    return [
        f"{name} is not installed" for name in modules if importlib.util.find_spec(name) is None
    ]


def python_of(peer: str) -> Path | None:
    """Returns the interpreter of a peer's environment, which `benchmarks/rivals.py` makes."""
    found = ROOT / ".benchmarks" / peer / "bin" / "python"
    return found if found.exists() else None


@dataclass(frozen=True)
class Result:
    """What a result file holds: rows by seed, and how they came about."""

    setting: Setting
    made: Mapping[str, Any]
    rows: tuple[Row, ...]
    seconds: Mapping[str, float]

    def fits(self, claim: Claim, setting: Setting, is_quick: bool = False) -> bool:
        """Whether the rows are of this setting, and of all its parts."""
        setting = plain(setting)
        parts = claim.parts(setting, is_quick)
        return self.setting == setting and set(self.seconds) == set(parts)


def load(name: str) -> Claim:
    """Returns the claim of a name."""
    claim = importlib.import_module(f"evidence.claims.{name}").CLAIM
    assert isinstance(claim, Claim)
    return claim


def plain(value: Any) -> Any:
    """Returns a value as JSON gives it back."""
    return json.loads(json.dumps(value))


def read(path: Path) -> Result | None:
    """Reads a result file; None if there is none."""
    if not path.is_file():
        return None
    told = json.loads(path.read_text(encoding="utf-8"))
    rows = tuple(dict(zip(told["columns"], row, strict=True)) for row in told["rows"])
    return Result(told["setting"], told["made"], rows, told["seconds"])


def write(path: Path, result: Result) -> None:
    """Writes a result file, one row a line, as a whole or not at all."""
    columns = list(result.rows[0]) if result.rows else []
    rows = ",\n  ".join(
        json.dumps([_short(row[name]) for name in columns], ensure_ascii=False)
        for row in result.rows
    )
    head = {
        "made": result.made,
        "seconds": {part: round(value, 1) for part, value in result.seconds.items()},
        "setting": result.setting,
        "columns": columns,
    }
    lines = [f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in head.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    text = "{\n" + ",\n".join(lines) + ',\n "rows": [\n  ' + rows + "\n ]\n}\n"
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _short(value: Any) -> Any:
    if isinstance(value, float) or hasattr(value, "dtype"):
        value = float(value)
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def complete(
    name: str,
    results: Path,
    build: Path,
    data: Path,
    is_quick: bool,
    is_again: bool,
    machine: str,
    jobs: int = 1,
) -> None:
    """Runs a claim into its result file, unless it has its result; says what is left out of it, and why."""
    claim = load(name)
    if missing := claim.absent(data):
        print(f"{name}: left out: {missing}", flush=True)
        return
    for line in not_installed([peer for peer in claim.peers if python_of(peer) is None]):
        print(f"{name}: left out of it: {line}", flush=True)
    path = results / f"{name}.json"
    # Seeds that are done survive a stop; what is committed changes only as a whole.
    part = path if is_quick else build / f"{name}.json"
    setting = {**claim.setting, **(claim.quick if is_quick else {})}
    done = read(path)
    if done is not None and done.fits(claim, setting, is_quick) and not is_again:
        print(f"{name}: has its result", flush=True)
        return
    if is_again:
        part.unlink(missing_ok=True)
    run(name, claim, part, is_quick, machine, jobs)
    if part != path:
        results.mkdir(parents=True, exist_ok=True)
        part.replace(path)


def run(name: str, claim: Claim, path: Path, is_quick: bool, machine: str, jobs: int = 1) -> Result:
    """Runs the parts that a result file lacks; each is kept as soon as those before it are done."""
    setting = plain({**claim.setting, **(claim.quick if is_quick else {})})
    result = read(path)
    if result is None or result.setting != setting:
        result = Result(setting, {}, (), {})
    command = f"python -m evidence {name}" + (" --quick" if is_quick else "")
    parts = claim.parts(setting, is_quick)
    left = {part: given for part, given in parts.items() if part not in result.seconds}
    for part, (rows, seconds) in zip(left, _done(name, claim, left, jobs), strict=True):
        # Of the last part, where they ran on different days.
        made = {"command": command, "commit": _commit(), "machine": machine, **_versions()}
        result = Result(setting, made, (*result.rows, *rows), {**result.seconds, part: seconds})
        write(path, result)
        print(f"{name}: seed {part} took {seconds:.0f} s", flush=True)
    found = read(path)
    assert found is not None
    return found


def _done(
    name: str, claim: Claim, parts: Mapping[str, tuple[int, Setting]], jobs: int
) -> Iterator[tuple[list[Row], float]]:
    """Yields rows and seconds of parts in their order; several jobs are processes of their own."""
    if jobs == 1:
        yield from (_timed(claim, seed, given) for seed, given in parts.values())
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        seeds, settings = zip(*parts.values(), strict=True) if parts else ((), ())
        yield from pool.map(_timed_by_name, [name] * len(parts), seeds, settings)


def _timed(claim: Claim, seed: int, setting: Setting) -> tuple[list[Row], float]:
    began = time.perf_counter()
    rows = [{"seed": seed, **row} for row in claim.run(setting, seed)]
    return rows, time.perf_counter() - began


def _timed_by_name(name: str, seed: int, setting: Setting) -> tuple[list[Row], float]:
    return _timed(load(name), seed, setting)


def _commit() -> str:
    """The commit that ran, with a + where code differed from it; no git, no commit."""
    ours = ["fedvi", "benchmarks", "examples", "evidence", ":!evidence/results"]
    try:
        commit, differs = (
            subprocess.run(
                ["git", *ask], capture_output=True, text=True, cwd=ROOT, check=True
            ).stdout
            for ask in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--", *ours])
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("+" if differs else "")


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **found}


def default_machine() -> str:
    """What a result says of the machine, where nothing else is told."""
    return f"{os.cpu_count()} cores"


# What claims say of rows.


def of(rows: Iterable[Row], column: str, **where: Any) -> list[float]:
    """Returns a column of the rows where other columns have these values.

    Raises:
      KeyError: there is no such row: a claim must not speak of what was not run.
    """
    found = [row[column] for row in rows if all(row[k] == v for k, v in where.items())]
    if not found:
        raise KeyError(f"no row with {where}")
    return [math.nan if value is None else value for value in found]


def said(values: Sequence[float], digits: int = 3, spread: bool = True) -> str:
    """Writes the mean, and the sd over seeds where there are several and they differ."""
    mean = statistics.fmean(values)
    if not math.isfinite(mean):
        return "–"
    text = number(mean, digits)
    if spread and len(values) > 1 and max(values) > min(values):
        return f"{text} ± {number(statistics.stdev(values), 2)}"
    return text


def number(value: float, digits: int = 3) -> str:
    """Writes a number to so many significant digits, in words where it is out of range."""
    if not math.isfinite(value):
        return "none" if math.isinf(value) else "–"
    if value == 0.0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    if size >= 6:
        return f"{value:.{digits - 1}e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.{max(0, digits - 1 - size)}f}".replace("-", "−")


def script(path: str) -> Any:
    """Returns a script of this repository as a module, such as an example's."""
    file = ROOT / path
    sys.path.insert(0, str(file.parent))
    try:
        spec = importlib.util.spec_from_file_location(f"_script_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module
