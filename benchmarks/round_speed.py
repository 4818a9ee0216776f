"""Times a synchronous round of 10 clients × 2,000 records × D = 20 with the `glm` solver.

Three things are measured in turn, interleaved, after compilation: a whole round through workers,
codec, ledger and coordinator; the ten solver calls alone, on the same tasks; and one fit of the
pooled records. Prints medians and ratios. Before that, each client's very first call: only the
first of them compiles, because all shards have one capacity.
"""

import statistics
import sys
import time

import numpy as np

from fedvi import models
from fedvi.client.worker import Worker
from fedvi.data.source import ArraySource
from fedvi.expfam import full_gaussian
from fedvi.inference.solvers import glm
from fedvi.privacy import ledger, random
from fedvi.run import loading, simulate
from fedvi.server.coordinator import Coordinator
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport.memory import MemoryLink
from fedvi.updates.base import Shard, Task

CLIENTS, RECORDS, SIZE, REPEATS, ROUNDS = 10, 2_000, 20, 5, 5


def study() -> build.Assembly:
    """Builds the study, without protection."""
    number = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}
    columns = {f"x{index}": number for index in range(SIZE)}
    raw = {
        "study": {"name": "round-speed"},
        "model": {"kind": "logistic", "formula": "y ~ 0 + " + " + ".join(columns)},
        "solver": {"kind": "glm"},
        "schedule": {"kind": "synchronous", "rounds": ROUNDS},
        "privacy": {"protection": "none"},
        "data": {"schema": {"y": {"type": "binary"}, **columns}},
        "clients": [{"name": f"c{index}"} for index in range(CLIENTS)],
    }
    return build.assemble(parse_study(raw))


def records() -> dict[str, ArraySource]:
    """Draws the records of each client from one logistic regression with shifted covariates."""
    generator = np.random.default_rng(0)
    theta = generator.normal(size=SIZE) / 2.0
    sources = {}
    for index in range(CLIENTS):
        x = generator.normal(size=(RECORDS, SIZE)) + 0.2 * generator.normal(size=SIZE)
        y = (generator.uniform(size=RECORDS) < 1.0 / (1.0 + np.exp(-x @ theta))).astype(float)
        sources[f"c{index}"] = ArraySource({"x": x, "y": y}, np.ones(RECORDS, bool))
    return sources


def run_rounds(assembly: build.Assembly, shards: dict[str, Shard]) -> list[float]:
    """Runs all rounds and returns the seconds of each."""
    stamps = [time.perf_counter()]
    coordinator = Coordinator(
        assembly.spec, MemoryServerStore(), lambda update: stamps.append(time.perf_counter())
    )
    link = MemoryLink(coordinator.handle)
    workers = {}
    for name, solver in assembly.solvers.items():
        header = assembly.header(name)
        workers[name] = Worker(
            client=name,
            study_digest=assembly.study.digest,
            link=link,
            solver=solver,
            shard=lambda shard=shards[name]: shard,
            root=random.insecure_root(0),
            store=MemoryClientStore(ledger.open_ledger(header)),
            budget=None,
        )
    latencies = dict.fromkeys(workers, lambda: 1.0)
    simulate.drive(workers, coordinator, latencies, 0, simulate.Clock())
    return list(np.diff(stamps))


def solver_only(assembly: build.Assembly, shards: dict[str, Shard]) -> list[float]:
    """Returns the seconds of one solver call a client, from the prior: the first round's arithmetic."""
    solver, family = assembly.solvers["c0"], assembly.family
    stamps = [time.perf_counter()]
    for name, shard in shards.items():
        task = Task(f"{name}/0", name, 0, 0, assembly.prior, family.zeros(), 1.0)
        solver.update(random.insecure_root(0).key, (), task, shard)
        stamps.append(time.perf_counter())
    return list(np.diff(stamps))


def pooled_fit(assembly: build.Assembly, sources: dict[str, ArraySource]) -> float:
    """Returns the seconds of one fit of all records together."""
    names = assembly.model.names
    solver = glm(full_gaussian(SIZE), models.logistic(names))
    x = np.concatenate([source.records["x"] for source in sources.values()])
    y = np.concatenate([source.records["y"] for source in sources.values()])
    shard = Shard({"x": x, "y": y}, np.ones(len(y), bool))
    task = Task("pooled/0", "pooled", 0, 0, assembly.prior, assembly.family.zeros(), 1.0)
    start = time.perf_counter()
    solver.update(random.insecure_root(0).key, (), task, shard)
    return time.perf_counter() - start


def main() -> int:
    """Prints the figures."""
    assembly, sources = study(), records()
    shards = loading.with_capacity(assembly, sources)
    first: list[float] = []
    later: list[float] = []
    alone: list[float] = []
    pooled: list[float] = []
    cold = solver_only(assembly, shards)
    for repeat in range(REPEATS + 1):
        rounds = run_rounds(assembly, shards)
        measured = sum(solver_only(assembly, shards)), pooled_fit(assembly, sources)
        if repeat:  # the first repeat compiles
            first.append(rounds[0])
            later += rounds[1:]
            alone.append(measured[0])
            pooled.append(measured[1])
    one, rest = statistics.median(first), statistics.median(later)
    base, together = statistics.median(alone), statistics.median(pooled)
    print(f"{CLIENTS} clients x {RECORDS} records x D = {SIZE}, glm, full covariance; medians")
    print(f"first call, cold    {1e3 * cold[0]:8.1f} ms   compiles")
    print(f"next nine, cold     {1e3 * max(cold[1:]):8.1f} ms   the slowest: no compilation")
    print(f"first round         {1e3 * one:8.1f} ms   {one / base:5.2f} x its solver calls alone")
    print(f"later rounds        {1e3 * rest:8.1f} ms   {rest / one:5.2f} x the first")
    print(f"solver calls alone  {1e3 * base:8.1f} ms")
    print(f"one pooled fit      {1e3 * together:8.1f} ms   {together / one:5.2f} x the first round")
    return 0


if __name__ == "__main__":
    sys.exit(main())
