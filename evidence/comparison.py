"""Noise on the message beside noise on each data point, under three schedules, for four models.

Five clients of 500 to 2,000 records, whose covariates are centred and spread differently, promise each
record the same (ε, δ): a record may be substituted, every message of every client is seen, the number
of records is public. Settings are defaults or follow from public numbers (`MODES`, `PROBLEMS`) and are
the same for all ε. Seeds of data and noise are public, so that the results can be made again.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.federation import schedules
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study

DELTA = 1e-5
SCHEDULES = ("sequential", "synchronous", "asynchronous")
RECORDS = (500, 875, 1_250, 1_625, 2_000)
HELD_OUT = 1_000
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
            "kind": "bnn_regression",
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
