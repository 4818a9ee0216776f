"""Noise on the message or on each data point, under three schedules, for four models.

    python -m evidence.comparison --out comparison      # tables, comparison.md and a plot of each model
    python -m evidence.comparison --quick               # one seed instead of five

Five clients of 500 to 2,000 records, whose covariates are centred and spread differently, promise each
record the same (ε, δ): a record may be substituted, every message of every client is seen, the number
of records is public. Settings are defaults or follow from public numbers (`MODES`, `PROBLEMS`) and are
the same for all ε. Seeds of data and noise are public, so that the tables can be made again.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.federation import schedules
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study

EPSILONS = (1.0, 4.0, 16.0)
DELTA = 1e-5
SCHEDULES = ("sequential", "synchronous", "asynchronous")
RECORDS = (500, 875, 1_250, 1_625, 2_000)
HELD_OUT = 1_000
SEEDS = 5
# The clock of the simulation: in asynchronous runs the first client answers twice as often as the last.
LATENCIES = (1.0, 1.25, 1.5, 1.75, 2.0)
# A mean that is so many prior sds away is no answer: the run is counted as diverged.
FARTHEST = 1e3
# Units of the network's one hidden layer, and of draws behind its predictions.
HIDDEN = 8
DRAWS = 400


class Data(NamedTuple):
    """One simulated problem: the clients' records, and what a run is judged by."""

    sources: dict[str, ArraySource]
    x: np.ndarray
    y: np.ndarray
    theta: np.ndarray


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model, its data, and the public numbers that its settings follow from.

    Attributes:
      name, slug: in titles, and in the names of files.
      size: covariates.
      model, family: sections of the study.
      scale: the noise of y, or None for a binary y.
      slope: the largest ‖∂f/∂θ‖ of a typical record, f its predictor.
      bend: the largest curvature of a record's log likelihood in its predictor.
      score: what `performance` is.
    """

    name: str
    slug: str
    size: int
    model: dict[str, Any]
    family: str
    scale: float | None
    slope: float
    bend: float
    score: str

    @property
    def is_network(self) -> bool:
        return ":" in self.model["kind"]

    @property
    def record_clip(self) -> float:
        """C of one record: 1.2 typical gradients, at a residual of 1 (binary) or 2 sds (numbers)."""
        residual = 1.0 if self.scale is None else 2.0 / self.scale
        return 1.2 * self.slope * residual

    @property
    def message_clip(self) -> float:
        """C of a message: the curvature that the largest client's records add up to, at prior sd 1."""
        return self.bend * self.slope**2 * max(RECORDS)


def _glm(name: str, slug: str, kind: str, size: int) -> Problem:
    binary = kind == "logistic"
    columns = " + ".join(f"x{index}" for index in range(size))
    return Problem(
        name=name,
        slug=slug,
        size=size,
        model={"kind": kind, "formula": f"y ~ 0 + {columns}"},
        family="full_gaussian",
        scale=None if binary else 1.0,
        slope=math.sqrt(size),
        bend=0.25 if binary else 1.0,
        score="mean log-likelihood" if binary else "RMSE",
    )


PROBLEMS = (
    _glm("Linear regression, D = 1", "linear-1", "linear", 1),
    _glm("Linear regression, D = 6", "linear-6", "linear", 6),
    _glm("Logistic regression, D = 6", "logistic-6", "logistic", 6),
    Problem(
        name=f"Bayesian network, one layer of {HIDDEN}, {3 * HIDDEN + 2} parameters",
        slug="network",
        size=1,
        model={
            "kind": "fedvi.models.bnn:regression",
            "formula": "y ~ 0 + x0",
            "hidden": [HIDDEN],
            "prior_scale": 2.0,
        },
        family="diagonal_gaussian",
        scale=0.3,
        # An output bias and weights of prior scale 2 on tanh units: of each about 2.
        slope=2.0 * math.sqrt(2.0),
        bend=1.0 / 0.3**2,
        score="RMSE",
    ),
)


class Mode(NamedTuple):
    """Where the noise is.

    Args:
      name: in tables.
      kind: of the solver; None takes what fits without noise.
      rounds: visits to each client, the same for all ε and schedules.
      settings: Problem → arguments of the solver.
      networks: whether the solver takes networks.
    """

    name: str
    kind: str | None
    rounds: int
    settings: Callable[[Problem], dict[str, Any]]
    networks: bool = True


def _fit(problem: Problem) -> dict[str, Any]:
    """Returns what a whole fit of a shard takes; a GLM's is deterministic."""
    return {"steps": 200, "draws": 2} if problem.is_network else {}


MODES = (
    Mode("none", None, 6, _fit),
    # Of T visits each has √T times the noise, and where the clip binds together no more than T times
    # the signal: one visit says as much as many.
    Mode(
        "message: perturbed_update",
        "perturbed_update",
        1,
        lambda problem: {"clip_norm": problem.message_clip, **_fit(problem)},
    ),
    # 20 to 50 rounds where noise is large, says its docstring.
    Mode(
        "data point: site_release",
        "site_release",
        20,
        lambda problem: {"clip_norm": problem.record_clip},
        networks=False,
    ),
    Mode(
        "data point: dp_optimisation",
        "dp_optimisation",
        4,
        lambda problem: {
            "clip_norm": problem.record_clip,
            "draws": 2,
            "sampler": {"kind": "poisson", "rate": 0.1},
        },
    ),
)


class Outcome(NamedTuple):
    """One run: held-out performance, KL to the pooled posterior, largest error in reported sds."""

    performance: float
    divergence: float
    error: float


DIVERGED = Outcome(math.nan, math.nan, math.nan)


class Cell(NamedTuple):
    """All runs of a mode at an ε, by schedule [seeds, 3]; and the price of what it released."""

    mode: Mode
    epsilon: float
    add_remove: float
    noise_multiplier: float | None
    outcomes: dict[str, np.ndarray]


def simulated(problem: Problem, seed: int) -> Data:
    """Draws the truth, and clients that differ in size, and in centre and spread of their covariates."""
    generator = np.random.default_rng(1_000 + seed)
    theta = generator.normal(size=problem.size)

    def outcome(x: np.ndarray) -> np.ndarray:
        signal = curve(x) if problem.is_network else x @ theta
        if problem.scale is None:
            chance = generator.uniform(size=len(x))
            return (chance < 1.0 / (1.0 + np.exp(-signal))).astype(float)
        return signal + problem.scale * generator.normal(size=len(x))

    parts = []
    for index, count in enumerate(RECORDS):
        if problem.is_network:
            # Each client sees another half of the curve's range.
            low = -2.0 + 0.5 * index
            x = generator.uniform(low, low + 2.0, size=(count, 1))
        else:
            centre = 0.5 * generator.normal(size=problem.size)
            x = centre + generator.uniform(0.5, 1.1) * generator.normal(size=(count, problem.size))
        parts.append((x, outcome(x)))
    sources = {
        f"c{index}": ArraySource({"x": x, "y": y}, np.ones(len(y), bool))
        for index, (x, y) in enumerate(parts)
    }
    if problem.is_network:
        x = generator.uniform(-2.0, 2.0, size=(HELD_OUT, 1))
    else:
        x = generator.normal(size=(HELD_OUT, problem.size))
    return Data(sources, x, outcome(x), theta)


def curve(x: np.ndarray) -> np.ndarray:
    """Returns what the network has to learn, [n] from [n, 1]."""
    return np.sin(2.0 * x[:, 0])


def study(problem: Problem, mode: Mode, epsilon: float, schedule: str, seed: int) -> dict[str, Any]:
    """Returns the tables of the study."""
    number = {"type": "number", "bounds": [-1e6, 1e6], "center": 0, "scale": 1}
    binary = {"type": "binary", "true": ["1"], "false": ["0"]}
    columns = [f"x{index}" for index in range(problem.size)]
    response = binary if problem.scale is None else number
    tables = {
        "study": {"name": "comparison", "seed": 1},
        "model": problem.model,
        "family": {"kind": problem.family},
        "solver": {
            "kind": mode.kind or ("gradient" if problem.is_network else "glm"),
            **mode.settings(problem),
        },
        "schedule": {"kind": schedule, "rounds": mode.rounds},
        "privacy": {"protection": "none"},
        "data": {
            "max_records": max(RECORDS),
            "schema": {"y": response, **dict.fromkeys(columns, number)},
        },
        "clients": [
            {"name": f"c{index}", "latency_seconds": latency}
            for index, latency in enumerate(LATENCIES)
        ],
        "simulation": {"insecure_seed": seed},
    }
    if not problem.is_network:
        tables["prior"] = {"scale": 1.0}
    if mode.kind is not None:
        tables["privacy"] = {
            "epsilon": epsilon, "delta": DELTA, "unit": "record", "relation": "substitute",
            "records_public": True,
        }  # fmt: skip
    return tables


def run(
    problem: Problem,
    mode: Mode,
    epsilon: float,
    data: list[Data],
    pooled: list[Any],
) -> Cell:
    """Runs a mode at an ε under all schedules, once for each data set.

    Args:
      pooled: by seed, η of the posterior of all records together; filled where it is empty.
    """
    made = build.assemble(parse_study(study(problem, mode, epsilon, SCHEDULES[0], 0)))
    runs: dict[str, list[Outcome]] = {schedule: [] for schedule in SCHEDULES}
    for schedule in SCHEDULES:
        for seed, given in enumerate(data):
            # The same solver for all of them, so that it is compiled once.
            assembly = dataclasses.replace(
                made,
                study=parse_study(study(problem, mode, epsilon, schedule, seed)),
                schedule=getattr(schedules, schedule)(mode.rounds),
            )
            wanted = len(pooled) == seed
            try:
                result = simulate.run(assembly, given.sources, pooled=wanted)
            except errors.ProtocolError:
                # The server refuses numbers beyond 1e30.
                runs[schedule].append(DIVERGED)
                continue
            if wanted:
                pooled.append(result.pooled)
            runs[schedule].append(judged(problem, result, given, pooled[seed]))
    add_remove = math.inf
    if mode.kind is not None:
        add_remove = made.accountant("pld", "add_remove").epsilon(made.planned, DELTA)
    return Cell(
        mode,
        epsilon if mode.kind else math.inf,
        add_remove,
        made.noise_multiplier,
        {schedule: np.array(found) for schedule, found in runs.items()},
    )


def judged(problem: Problem, result: Any, data: Data, pooled: Any) -> Outcome:
    """Compares a reported posterior with held-out records, the pooled posterior and the truth."""
    family, eta = result.assembly.family, result.posterior
    mean, sd = family.moments(eta)
    if np.abs(mean).max() > FARTHEST:
        return DIVERGED
    if problem.is_network:
        # Public draws, the same for all runs.
        noise = np.random.default_rng(0).normal(size=(DRAWS, len(mean)))
        outputs = network(result.assembly.model.names, mean + sd * noise, data.x, problem)
        centre, spread = outputs.mean(axis=0), outputs.std(axis=0)
        error = np.abs(centre - curve(data.x)) / spread
        return Outcome(_rmse(centre, data.y), math.nan, float(error.max()))
    error = float((np.abs(mean - data.theta) / sd).max())
    divergence = float(family.kl(eta, pooled))
    if problem.scale is not None:
        return Outcome(_rmse(data.x @ mean, data.y), divergence, error)
    return Outcome(likelihood(mean, np.linalg.inv(eta.J), data), divergence, error)


def _rmse(predicted: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predicted - y) ** 2)))


def likelihood(mean: np.ndarray, covariance: np.ndarray, data: Data) -> float:
    """Returns the mean log-likelihood of a logistic predictive, by Gauss–Hermite quadrature."""
    spread = np.sqrt(((data.x @ covariance) * data.x).sum(axis=1))
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    predictor = (data.x @ mean)[:, None] + spread[:, None] * nodes
    # In logarithms throughout, since a posterior may be sharp and far off.
    right = np.where(data.y == 1.0, 1.0, -1.0)[:, None] * predictor
    terms = np.log(weights / weights.sum()) - np.logaddexp(0.0, -right)
    return float(np.logaddexp.reduce(terms, axis=1).mean())


def network(names: Any, thetas: np.ndarray, x: np.ndarray, problem: Problem) -> np.ndarray:
    """Returns the network's outputs [draws, n], for one hidden layer as `fedvi.models.bnn` has it."""

    def of(site: str) -> np.ndarray:
        return thetas[:, [name.startswith(f"{site}[") for name in names]]

    scale = problem.model["prior_scale"]
    first = of("weights_0")[:, None, :] * x[None, :, :] + of("biases_0")[:, None, :]
    hidden = np.tanh(scale * first)
    last = (hidden * of("weights_1")[:, None, :]).sum(axis=2) / math.sqrt(HIDDEN)
    return scale * (last + of("biases_1"))


def table(problem: Problem, cells: list[Cell]) -> str:
    """Returns the Markdown table of one model."""
    measures = [(problem.score, 0), ("KL to pooled", 1), ("error in own sds", 2)]
    if problem.is_network:
        del measures[1]
    short = {"sequential": "seq.", "synchronous": "sync.", "asynchronous": "async."}
    heads = [f"{name}, {short[schedule]}" for name, _ in measures for schedule in SCHEDULES]
    lines = [
        f"### {problem.name}",
        "",
        "| noise on | ε | if add_remove | noise / C | " + " | ".join(heads) + " |",
        "|---|---|---|---|" + "---|" * len(heads),
    ]
    for cell in cells:
        entries = [_entry(cell.outcomes[s][:, k]) for _, k in measures for s in SCHEDULES]
        price = "–" if math.isinf(cell.add_remove) else f"{cell.add_remove:.3g}"
        noise = "–" if cell.noise_multiplier is None else f"{cell.noise_multiplier:.3g}"
        epsilon = "∞" if math.isinf(cell.epsilon) else f"{cell.epsilon:g}"
        lines.append(
            f"| {cell.mode.name} | {epsilon} | {price} | {noise} | {' | '.join(entries)} |"
        )
    return "\n".join(lines)


def _entry(values: np.ndarray) -> str:
    """Writes mean ± sd over the runs that ended, and how many diverged."""
    ended = values[np.isfinite(values)]
    lost = len(values) - len(ended)
    told = [f"{lost} of {len(values)} diverged"] if lost else []
    if len(ended):
        spread = f" ± {_short(float(ended.std(ddof=1)), 2)}" if len(ended) > 1 else ""
        told.insert(0, f"{_short(float(ended.mean()))}{spread}")
    return ", ".join(told)


def _short(value: float, digits: int = 3) -> str:
    """Writes a number; what is below 1e-9 is the rounding of float64."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def plot(problem: Problem, cells: list[Cell], seeds: int, path: Path) -> None:
    """Draws privacy against each measure: a colour and marker per mode, a line style per schedule."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullFormatter

    panels = [
        (f"held-out {problem.score}", 0, False),
        ("KL to the pooled posterior, nats", 1, True),
        ("largest error, in reported sds", 2, problem.is_network),
    ]
    if problem.is_network:
        del panels[1]
    # Okabe and Ito's colours, told apart by most colour-blind readers; markers say the same.
    looks = {"perturbed_update": ("#D55E00", "s"), "site_release": ("#0072B2", "o")}
    looks["dp_optimisation"] = ("#009E73", "^")
    lines = dict(zip(SCHEDULES, ("-", "--", ":"), strict=True))
    figure = Figure(figsize=(4.2 * len(panels), 4.6), layout="constrained")
    modes = [mode for mode in MODES if mode.kind and any(cell.mode is mode for cell in cells)]
    for axes, (label, index, is_log) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for number, (mode, schedule) in enumerate((m, s) for m in modes for s in SCHEDULES):
            given = [cell for cell in cells if cell.mode is mode]
            # Side by side, so that error bars can be told apart: modes, and schedules within them.
            group, within = divmod(number, len(SCHEDULES))
            shift = 0.25 * (group - (len(modes) - 1) / 2) + 0.065 * (within - 1)
            values = [cell.outcomes[schedule][:, index] for cell in given]
            means = np.array([_or_nan(np.mean, v) for v in values])
            spreads = np.array([_or_nan(_spread, v) for v in values])
            # On a log scale a bar must not reach below zero.
            down = np.minimum(spreads, 0.9 * means) if is_log else spreads
            colour, marker = looks[str(mode.kind)]
            axes.errorbar(
                np.arange(len(given)) + shift, means, (down, spreads), color=colour,
                marker=marker, markersize=5, linestyle=lines[schedule], linewidth=1.3,
                elinewidth=0.8, capsize=2,
            )  # fmt: skip
        reference = _or_nan(np.mean, cells[0].outcomes["sequential"][:, index])
        if index != 1:
            axes.axhline(reference, color="0.3", linewidth=0.9)
        epsilons = list(dict.fromkeys(cell.epsilon for cell in cells[1:]))
        axes.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        if is_log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("ε, from more private to less")
        axes.set_title(label, fontsize=10)
        axes.grid(axis="y", color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    keys = [
        Line2D(
            [], [], color=looks[str(mode.kind)][0], marker=looks[str(mode.kind)][1], label=mode.name
        )
        for mode in modes
    ]
    keys += [
        Line2D([], [], color="0.2", linestyle=style, label=f"{schedule} ({place})")
        for (schedule, style), place in zip(lines.items(), ("left", "middle", "right"), strict=True)
    ]
    keys.append(Line2D([], [], color="0.3", linewidth=0.9, label="no noise, sequential"))
    figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    bars = f"bars: one sd over {seeds} seeds" if seeds > 1 else "one seed"
    lost = sum(
        int(np.isnan(found[:, 0]).sum()) for cell in cells for found in cell.outcomes.values()
    )
    if lost:
        bars += f"; {lost} runs diverged and are left out"
    figure.suptitle(
        f"{problem.name}\nδ = {DELTA:g}, record, substitute, message view; {bars}", fontsize=11
    )
    figure.savefig(path, dpi=150)


def _or_nan(of: Callable[[np.ndarray], Any], values: np.ndarray) -> float:
    """Applies a statistic to the runs that ended; NaN, which no plot draws, if most diverged."""
    ended = values[np.isfinite(values)]
    return float(of(ended)) if 2 * len(ended) > len(values) else math.nan


def _spread(values: np.ndarray) -> float:
    """Returns the standard deviation over seeds, 0 of one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def settings() -> str:
    """Says what was run, from the same tables as the runs."""
    lines = [
        f"Five clients of {', '.join(map(str, RECORDS))} records, {HELD_OUT:,} held out. δ = {DELTA:g}, "
        "unit record, relation substitute, number of records public, view message; *if add_remove* is "
        "what the same noise would cost if the number were secret. Noisy posteriors are what the server "
        "makes of the answers, told their noise (`fedvi/updates/noise_aware.py`). The error is of a "
        "coefficient against the truth (of the curve, for the network), the largest of all.",
        "",
    ]
    for mode in MODES:
        for problem in PROBLEMS:
            if problem.is_network and not mode.networks:
                continue
            kind = mode.kind or ("gradient" if problem.is_network else "glm")
            given = {
                name: round(value, 2) if isinstance(value, float) else value
                for name, value in mode.settings(problem).items()
            }
            lines.append(f"- {problem.slug}, {kind}: {mode.rounds} rounds, {given or 'defaults'}")
    return "\n".join(lines)


def compare(
    problem: Problem, modes: tuple[Mode, ...], epsilons: tuple[float, ...], seeds: int
) -> list[Cell]:
    """Runs one model: the reference without noise first, then each private mode at each ε."""
    data = [simulated(problem, seed) for seed in range(seeds)]
    pooled: list[Any] = []
    cells = [run(problem, MODES[0], math.inf, data, pooled)]
    for mode in modes:
        if mode.kind is None or (problem.is_network and not mode.networks):
            continue
        cells += [run(problem, mode, epsilon, data, pooled) for epsilon in epsilons]
    return cells


def main() -> None:
    """Runs all, prints the tables and writes them, with the plots, into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed instead of five")
    parser.add_argument("--out", type=Path, help="folder for comparison.md and the plots")
    parser.add_argument(
        "--model", choices=[problem.slug for problem in PROBLEMS], action="append", help="only this"
    )
    given = parser.parse_args()
    seeds = 1 if given.quick else SEEDS
    started, parts = time.monotonic(), [settings()]
    print(parts[0], flush=True)
    for problem in PROBLEMS:
        if given.model and problem.slug not in given.model:
            continue
        cells = compare(problem, MODES, EPSILONS, seeds)
        parts.append(table(problem, cells))
        print(f"\n{parts[-1]}", flush=True)
        if given.out:
            write(problem, cells, seeds, parts, given.out)
    print(f"\n{seeds} seeds, {time.monotonic() - started:.0f} s")


def write(problem: Problem, cells: list[Cell], seeds: int, parts: list[str], folder: Path) -> None:
    """Writes what is known so far, and the model's plot if matplotlib is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    try:
        plot(problem, cells, seeds, folder / f"{problem.slug}.png")
    except ImportError:
        print("no plot: matplotlib is not installed; pip install 'fedvi[report]'")


if __name__ == "__main__":
    main()
