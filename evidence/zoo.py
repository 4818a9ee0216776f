"""Made-up tables of every kind of outcome, whose truth is known, and what drafted studies find in them.

A study is as `fedvi init --yes` drafts it, but for the view. A cell is one way to set all `FACTORS`; in
each of its runs three sites hold new records. `python -m evidence.zoo` runs cells with as many runs as
wanted, keeps each cell as a line of a file, and goes on from there after a stop.
"""

import argparse
import collections
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from click.testing import CliRunner

from evidence import base

Columns = dict[str, Any]

# Stated sds from the truth that no run should have; sds by which units of the file may move a result.
FAR, SAME = 4.0, 1e-6
Z95 = 1.959964
# How alarms say that noise hides effects, which is so where intervals are nearly as wide as the prior's: no
# false alarm. All others are, of clean records.
HIDES = re.compile(
    "wide as before any record|wider than before any|the records say nothing about|the run learnt nothing|"
    "as wide as the prior's|cannot tell (its|one) effect"
)
SITES = {"a": 0.4, "b": 0.35, "c": 0.25}
AGE, WEIGHT, ARM, GRADES = 0.15, 0.1, -0.5, {"II": 0.4, "III": 0.8}
RIGHT = "age + weight + arm + grade"
YES, DAYS = "binary:1/0", 365.25
# Shares of the grades I (the reference), II and III.
LEVELS = {
    "usual": (0.5, 0.4, 0.1),
    "rare": (0.6, 0.39, 0.01),
    "reference": (0.1, 0.6, 0.3),
}
FACTORS: Mapping[str, tuple[Any, ...]] = {
    "epsilon": (0.5, 1.0, 2.0, 4.0),
    "records": (1_000, 3_400, 30_000),
    "level": tuple(LEVELS),
    "event": ("usual", "rare"),
    "unit": ("days and kilograms", "years and grams"),
    "relation": ("substitute", "add_remove"),
    "view": ("message", "aggregate"),
}


class Kind(NamedTuple):
    """One kind of outcome.

    Attributes:
      model: the kind that the study names.
      left: the formula's left side.
      columns: the outcome's columns and its exposure: name → what `fedvi init --column` takes, or, of
        numbers, bounds in the unit that they are drawn in.
      draw: (generator, effects [N], whether events are rare) → those columns, [N] each.
      predictors: whether events are rare → before the colon of a coefficient's name → the constant, and
        by how much effects are multiplied.
      exposure: the column of the offset; empty: none.
      time: the column whose unit the constant is of, per unit of it; empty: none.
      rare_columns: what differs of ``columns`` where events are rare.
      settings: keys of the model, in the unit that numbers are drawn in → values.
    """

    model: str
    left: str
    columns: Mapping[str, Any]
    draw: Callable[[np.random.Generator, np.ndarray, bool], Columns]
    predictors: Callable[[bool], Mapping[str, tuple[float, float]]]
    exposure: str = ""
    time: str = ""
    rare_columns: Mapping[str, Any] = {}
    settings: Mapping[str, Sequence[float]] = {}


def covariates(random: np.random.Generator, count: int, level: str) -> Columns:
    """Draws the columns that every kind has."""
    return {
        "age": random.normal(58.0, 12.0, count).clip(20, 95).round(),
        "weight": random.normal(80.0, 15.0, count).clip(40, 160).round(1),
        "arm": random.integers(0, 2, count),
        "grade": random.choice(["I", "II", "III"], count, p=LEVELS[level]),
    }


def effects(table: Columns) -> np.ndarray:
    """Returns what covariates add to a predictor: nothing at 60 years and 80 kg, in arm 0 and grade I."""
    along = AGE * (table["age"] - 60.0) / 10.0 + WEIGHT * (table["weight"] - 80.0) / 10.0
    return along + ARM * table["arm"] + np.vectorize({"I": 0.0, **GRADES}.get)(table["grade"])


# Differences, by how much effects are multiplied: where events are rare, bounds are five times too wide.
PRESSURE, PULSE = 8.0, 4.0
# A constant of the log odds, and of each rate a day or a month: usual events, and about 3 % of records.
ODDS, RATE, COUNT = (-1.5, -3.7), (1 / 1200.0, 1 / 40_000.0), (0.3, 0.004)


def _linear(random, along, rare):
    return {"sbp": (128.0 + PRESSURE * along + random.normal(0.0, 11.0, len(along))).round(1)}


def _logistic(random, along, rare):
    return {"died": 1 * (random.random(len(along)) < 1 / (1 + np.exp(-ODDS[rare] - along)))}


def _binomial(random, along, rare):
    trials = random.integers(1, 11, len(along))
    events = random.binomial(trials, 1 / (1 + np.exp(-ODDS[rare] - along)))
    return {"events": events, "others": trials - events}


def _multinomial(random, along, rare):
    logits = [0.0 * along, -0.3 - along, ODDS[rare] + along]
    drawn = np.stack(logits, axis=1) + random.gumbel(size=(len(along), 3))
    return {"ward": np.array(["u", "v", "w"])[drawn.argmax(axis=1)]}


def _multivariate(random, along, rare):
    pulse = 75.0 + PULSE * along + random.normal(0.0, 8.0, len(along))
    return _linear(random, along, rare) | {"pulse": pulse.round(1)}


def _survival(random, along, rare):
    """A constant hazard, and follow-up that ends at the event or by chance."""
    time = random.exponential(np.exp(-along) / RATE[rare])
    end = random.uniform(300.0, 2800.0, len(along))
    return {"time": np.minimum(time, end).clip(1.0).round(2), "died": 1 * (time <= end)}


def _person_time(random, along, rare):
    """Person-time that ends at the event."""
    time = random.exponential(np.exp(-along) / RATE[rare])
    return {"events": 1 * (time <= 1000.0), "time": np.clip(time, 1.0, 1000.0).round(2)}


def _counts(is_fixed: bool, dispersion: float = 0.0):
    def draw(random, along, rare):
        many = len(along)
        months = np.full(many, 6.0) if is_fixed else random.uniform(1.0, 12.0, many).round(2)
        mean = COUNT[rare] * months * np.exp(along)
        if dispersion:
            mean = mean * random.gamma(1.0 / dispersion, dispersion, many)
        # In days, so that the unit is that of all times here.
        return {"events": random.poisson(mean), "time": months * DAYS / 12.0}

    return draw


def _log_rate(rare: bool) -> Mapping[str, tuple[float, float]]:
    return {"": (math.log(RATE[rare]), 1.0)}


def _log_count(rare: bool) -> Mapping[str, tuple[float, float]]:
    return {"": (math.log(COUNT[rare] * 12.0 / DAYS), 1.0)}


_BINARY = {"died": YES}
_BLOOD = {"sbp": (60.0, 220.0)}, {"sbp": (0.0, 800.0)}
_HEART = {"pulse": (30.0, 150.0)}, {"pulse": (0.0, 600.0)}
_EVENTS = {"events": "count:0..60", "time": (15.0, 400.0)}
_FEW = {"events": "count:0..10"}
KINDS = {
    "linear": Kind(
        "linear", "sbp", _BLOOD[0], _linear,
        lambda rare: {"": (128.0, PRESSURE)}, rare_columns=_BLOOD[1],
    ),
    "multivariate": Kind(
        "multivariate_linear", "cbind(sbp, pulse)", _BLOOD[0] | _HEART[0], _multivariate,
        lambda rare: {"sbp": (128.0, PRESSURE), "pulse": (75.0, PULSE)},
        rare_columns=_BLOOD[1] | _HEART[1], settings={"noise_scale": (11.0, 8.0)},
    ),
    "logistic": Kind(
        "logistic", "died", _BINARY, _logistic, lambda rare: {"": (ODDS[rare], 1.0)},
    ),
    "binomial": Kind(
        "binomial", "cbind(events, others)",
        {"events": "count:0..10", "others": "count:0..10"}, _binomial,
        lambda rare: {"": (ODDS[rare], 1.0)},
    ),
    "multinomial": Kind(
        "multinomial", "ward", {"ward": "level:u,v,w"}, _multinomial,
        lambda rare: {"v": (-0.3, -1.0), "w": (ODDS[rare], 1.0)},
    ),
    "person-time": Kind(
        "poisson", "events", {"events": "count:0..1", "time": (0.5, 1000.0)}, _person_time,
        _log_rate, "time", "time",
    ),
    "counts, fixed time": Kind(
        "poisson", "events", _EVENTS, _counts(True), _log_count, "time", "time", _FEW,
    ),
    "counts, random time": Kind(
        "poisson", "events", _EVENTS, _counts(False), _log_count, "time", "time", _FEW,
    ),
    "negative binomial, fixed time": Kind(
        "negative_binomial", "events", _EVENTS, _counts(True, 0.5), _log_count, "time", "time", _FEW,
    ),
    "negative binomial, random time": Kind(
        "negative_binomial", "events", _EVENTS, _counts(False, 0.5), _log_count, "time", "time", _FEW,
    ),
    "survival": Kind(
        "survival", "Surv(time, died)", {"time": (0.5, 2800.0), "died": YES}, _survival,
        _log_rate, time="time",
    ),
    "survival in pieces": Kind(
        "survival", "Surv(time, died)", {"time": (0.5, 2800.0), "died": YES}, _survival,
        _log_rate, time="time", settings={"cuts": (400.0, 1000.0)},
    ),
}  # fmt: skip
NUMBERS = {"age": (18.0, 100.0), "weight": (35.0, 165.0)}
# Units of the file: column → how many of what is drawn make one.
UNITS: Mapping[str, Mapping[str, float]] = {
    "days and kilograms": {},
    "years and grams": {"time": DAYS, "weight": 1e-3},
}


class Cell(NamedTuple):
    """One way to set all factors; see ``FACTORS``."""

    kind: str
    epsilon: float = 1.0
    records: int = 3_400
    level: str = "usual"
    event: str = "usual"
    unit: str = "days and kilograms"
    relation: str = "substitute"
    view: str = "message"


def design(kinds: Sequence[str] = tuple(KINDS)) -> list[Cell]:
    """Returns cells in which each two settings of two factors meet: kinds × ε, all else spread over them.

    >>> len(design()), len(KINDS) * len(FACTORS["epsilon"])
    (48, 48)
    """
    factors = {"kind": tuple(kinds), **FACTORS}
    others = [name for name in factors if name not in ("kind", "epsilon")]
    choices = list(itertools.product(*(factors[name] for name in others)))
    # How often two settings met: cells are chosen one by one, each where they met least.
    met: dict[Any, int] = {}
    found = []
    for kind, epsilon in itertools.product(factors["kind"], factors["epsilon"]):
        # Of equals, one that is another from cell to cell.
        turn = len(found) * 37 % len(choices)
        cell = max(
            (Cell(kind, epsilon, *rest) for rest in (*choices[turn:], *choices[:turn])),
            key=lambda one: sum(2.0 ** -met.get(pair, 0) for pair in _pairs(one)),
        )
        for pair in _pairs(cell):
            met[pair] = met.get(pair, 0) + 1
        found.append(cell)
    return found


def _pairs(cell: Cell) -> list[Any]:
    return list(itertools.combinations(cell._asdict().items(), 2))


def same(kind: str) -> float:
    """Returns by how many sds units of the file may move a result of a kind.

    Times of survival are rounded to single precision in the unit of the file, which may move a sum that
    is released by a step of its grid.
    """
    return 100.0 * SAME if KINDS[kind].model == "survival" else SAME


def full() -> list[Cell]:
    """Returns all cells."""
    return [Cell(*each) for each in itertools.product(KINDS, *FACTORS.values())]


def drafted(cell: Cell, folder: pathlib.Path, per: Mapping[str, float]) -> dict[str, Any]:
    """Lets `fedvi init --yes` draft the study of a cell.

    Args:
      cell: to be drafted.
      folder: new.
      per: column → how many of the units that it is drawn in make one of the file's.
    """
    from fedvi.cli.main import main as fedvi
    from fedvi.study.config import load_study

    kind = KINDS[cell.kind]
    formula = f"{kind.left} ~ {RIGHT}"
    formula += f" + offset(log({kind.exposure}))" if kind.exposure else ""
    asked = ["init", folder, "--yes", "--disjoint", "--kind", kind.model, "--formula", formula]
    asked += ["--clients", ",".join(SITES), "--max-records", int(0.45 * cell.records)]
    asked += ["--epsilon", cell.epsilon, "--relation", cell.relation]
    columns = {**kind.columns, **(kind.rare_columns if cell.event == "rare" else {})}
    columns |= {**NUMBERS, "arm": YES, "grade": "level:I,II,III"}
    for name, told in columns.items():
        if not isinstance(told, str):
            told = "number:" + "..".join(repr(end / per.get(name, 1.0)) for end in told)
        asked += ["--column", f"{name}={told}"]
    for key, values in kind.settings.items():
        by = [kind.time] * len(values) if kind.time else list(kind.columns)
        told = ",".join(repr(v / per.get(name, 1.0)) for v, name in zip(values, by, strict=True))
        asked += ["--setting", f"{key}={told}"]
    done = CliRunner().invoke(fedvi, list(map(str, asked)))
    if done.exit_code:
        raise SystemExit(done.output)
    raw = dict(load_study(folder / "study.toml").as_dict())
    raw["privacy"]["view"] = cell.view
    return raw


def write(
    cell: Cell, folder: pathlib.Path, random: np.random.Generator, per: Mapping[str, float]
) -> None:
    """Draws a run's records, and writes each site's file."""
    rare = cell.event == "rare"
    for site, share in SITES.items():
        table = covariates(random, int(share * cell.records), cell.level)
        drawn = KINDS[cell.kind].draw(random, effects(table), rare)
        table = {name: _written(name, of, per) for name, of in (drawn | table).items()}
        lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        (folder / f"{site}.csv").write_text("\n".join([",".join(table), *lines, ""]))


def _written(name: str, values: np.ndarray, per: Mapping[str, float]) -> list[Any]:
    return [repr(float(value) / per[name]) for value in values] if name in per else values.tolist()


def truth(cell: Cell, name: str, per: Mapping[str, float]) -> float:
    """Returns what endless records without noise would say of a coefficient, in the unit of the file.

    Raises:
      KeyError: no such coefficient is known.
    """
    kind = KINDS[cell.kind]
    before, _, term = name.rpartition(": ")
    constant, factor = kind.predictors(cell.event == "rare")[before]
    if term in NUMBERS:
        step = (NUMBERS[term][1] - NUMBERS[term][0]) / 2.0
        found = factor * {"age": AGE, "weight": WEIGHT}[term] * step / 10.0
    elif term.startswith("arm"):
        found = factor * ARM
    elif term.startswith("grade"):
        found = factor * GRADES[term.removeprefix("grade[").removesuffix("]")]
    elif term == "(Intercept)" or term.startswith("baseline"):
        middle = {name: np.mean(ends) for name, ends in NUMBERS.items()}
        along = AGE * (middle["age"] - 60.0) / 10.0 + WEIGHT * (middle["weight"] - 80.0) / 10.0
        found = constant + factor * along + math.log(per.get(kind.time, 1.0))
    else:
        raise KeyError(f"no truth of {name!r}")
    return found / per.get(_outcome(cell, name), 1.0)


def _outcome(cell: Cell, name: str) -> str:
    """Returns the column whose unit a coefficient is in, if the outcome is a number."""
    return name.rpartition(": ")[0] or KINDS[cell.kind].left


class Run(NamedTuple):
    """What one run found.

    Attributes:
      away: (mean − truth) ÷ sd, by coefficient.
      sds: by coefficient, in the units that columns are drawn in.
      width: median over coefficients of sd ÷ that of the pooled fit; nan if there was none.
      alarms: of the verdict, as a terminal prints them.
    """

    away: Mapping[str, float]
    sds: Mapping[str, float]
    width: float
    alarms: tuple[str, ...]

    @property
    def worst(self) -> str:
        """The name of the coefficient that is farthest from the truth, in stated sds."""
        return max(self.away, key=lambda name: abs(self.away[name]))

    def apart(self, other: "Run") -> float:
        """Returns how far two results are apart, in sds, or in sd ÷ sd − 1 where that is more."""
        places = np.subtract([*self.away.values()], [*other.away.values()])
        widths = np.divide([*self.sds.values()], [*other.sds.values()]) - 1.0
        return float(max(np.abs(places).max(), np.abs(widths).max()))


def run(
    cell: Cell,
    seed: int,
    noise: int | None,
    raw: dict[str, Any],
    folder: pathlib.Path,
    per: Mapping[str, float],
    pooled: bool = False,
) -> Run:
    """Simulates a drafted study of a cell.

    Args:
      cell: of the study.
      seed: of the records.
      noise: the seed that noise is drawn from; None: it is the operating system's, as a study's must be.
      raw: from ``drafted``.
      folder: for the sites' files.
      per: see ``drafted``.
      pooled: whether to fit all records without privacy, too.
    """
    import fedvi
    from fedvi.results import outcome
    from fedvi.study.config import parse_study
    from fedvi.study.spec.coefficients import in_file_units

    write(cell, folder, np.random.default_rng([seed, cell.records, [*KINDS].index(cell.kind)]), per)
    # Noise that can be drawn again, as no study with records to protect may have it.
    seeded = {} if noise is None else {"simulation": {"insecure_seed": noise}}
    study = parse_study({**raw, **seeded})
    result = fedvi.simulate(study, folder, pooled=pooled, on_warning=None)
    rows, width = outcome.record(result).rows(), math.nan
    if result.pooled is not None:
        known = in_file_units(result.assembly.study, result.assembly.model.names)
        best = known.moments(*result.assembly.family.moments(result.pooled))[1]
        width = statistics.median(row["sd"] / sd for row, sd in zip(rows, best, strict=True))
    units = {row["name"]: per.get(_outcome(cell, row["name"]), 1.0) for row in rows}
    return Run(
        {r["name"]: float((r["mean"] - truth(cell, r["name"], per)) / r["sd"]) for r in rows},
        {row["name"]: float(row["sd"]) * units[row["name"]] for row in rows},
        float(width),
        result.verdict.alarms,
    )


class Judged(NamedTuple):
    """What the runs of a cell found; in columns of a result file.

    Attributes:
      runs: how many there were.
      beyond: those in which a coefficient is more than ``FAR`` stated sds from the truth.
      worst: the largest distance of all, in stated sds.
      farthest: its coefficient, and the seed of its run.
      hits: by coefficient, in how many runs a 95 % interval covers the truth.
      alarmed: runs whose verdict raises a false alarm, one that is not of ``HIDES``.
      hidden: runs whose verdict says that noise hides effects.
      alarms: these, each once, with the number of runs that raised it.
      width: median over runs of ``Run.width``.
      apart: how far the first run is from the same one with files in the other unit; see ``Run.apart``.
    """

    runs: int
    beyond: int
    worst: float
    farthest: str
    hits: list[int]
    alarmed: int
    hidden: int
    alarms: dict[str, int]
    width: float
    apart: float


def judged(cell: Cell, seeds: Sequence[int]) -> Judged:
    """Runs a cell's study once for each seed, of records and of noise."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        raws = {unit: drafted(cell, folder / str(k), UNITS[unit]) for k, unit in enumerate(UNITS)}
        for seed in seeds:
            given = raws[cell.unit], folder, UNITS[cell.unit]
            found.append(run(cell, seed, seed, *given, pooled=True))
        (other,) = (unit for unit in UNITS if unit != cell.unit)
        again = run(cell, seeds[0], seeds[0], raws[other], folder, UNITS[other])
    away = np.abs([[*one.away.values()] for one in found])
    at = int(away.max(axis=1).argmax())
    told = collections.Counter(alarm for one in found for alarm in one.alarms)
    return Judged(
        len(found),
        int((away.max(axis=1) > FAR).sum()),
        float(away.max()),
        f"{found[at].worst}, {seeds[at]}",
        (away < Z95).sum(axis=0).tolist(),
        sum(any(not HIDES.search(alarm) for alarm in one.alarms) for one in found),
        sum(any(map(HIDES.search, one.alarms)) for one in found),
        dict(told.most_common()),
        statistics.median(one.width for one in found),
        found[0].apart(again),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs cells; see the module."""
    parser = argparse.ArgumentParser(prog="python -m evidence.zoo", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each cell (10)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first run (0)")
    parser.add_argument("--full", action="store_true", help="all cells, not a design of pairs")
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=[*KINDS], help="all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (one a core)")
    parser.add_argument(
        "--into", type=pathlib.Path, default=base.ROOT / "build" / "evidence" / "zoo.jsonl",
        help="where each cell is a line; those of these sources, with as many runs, are not run again",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    given.into.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(given.into.parent / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    about = {"sources": _sources(), "first": given.first, "runs": given.runs}
    done = {Cell(**line["cell"]) for line in _lines(given.into) if about.items() <= line.items()}
    cells = [cell for cell in (full() if given.full else design()) if cell.kind in given.kind]
    left = [cell for cell in cells if cell not in done]
    print(f"{len(left)} of {len(cells)} cells to run", flush=True)
    # What one process compiled serves it again: of one model, in sites of one size.
    alike = collections.defaultdict(list)
    for cell in left:
        alike[KINDS[cell.kind].model, cell.records].append(cell)
    tasks = sorted(alike.values(), key=len, reverse=True)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(_kept, cells, about, given.into) for cells in tasks]
        for part in parts:
            part.result()
    wanted = [line for line in _lines(given.into) if about.items() <= line.items()]
    for line in wanted:
        cell, found = Cell(**line["cell"]), line["found"]
        if found["beyond"] or found["alarmed"] or found["apart"] > same(cell.kind):
            print(
                *cell,
                f"beyond {FAR:g} sds: {found['beyond']} of {found['runs']}, ",
                sep=", ",
                end="",
            )
            print(f"alarms: {found['alarmed']}, units apart: {found['apart']:.1e}")


def _sources() -> str:
    """Returns a digest of the code that runs: of a commit, with what differs from it."""
    found = hashlib.sha256()
    for path in sorted([*(base.ROOT / "fedvi").rglob("*.py"), pathlib.Path(__file__)]):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _kept(cells: Sequence[Cell], about: Mapping[str, Any], into: pathlib.Path) -> None:
    for cell in cells:
        began = time.perf_counter()
        found = judged(cell, range(about["first"], about["first"] + about["runs"]))
        seconds = round(time.perf_counter() - began, 1)
        line = {**about, "seconds": seconds, "cell": cell._asdict(), "found": found._asdict()}
        # One write, so that lines of several processes do not mix.
        with into.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        told = (
            f"beyond {found.beyond}, worst {found.worst:.1f}, alarms {found.alarmed}, {seconds} s"
        )
        print(*cell, told, sep=", ", flush=True)


if __name__ == "__main__":
    main()
