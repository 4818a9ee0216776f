"""Times private rounds of 10 clients × 2,000 records × D = 20: `dp_optimisation`, 100 steps a visit.

Whole studies run through `fedvi.simulate`, from files, with ledgers, noise and prices as they are in a
deployment. In turn with them, the bare arithmetic: steps of `DPSVI` on the same model, sampler, clip norm
and noise, a few visits' worth, scaled to as many as the rounds have. The first of all runs compiles and
is not counted; what counts is the time from the first fold of a run to its last, scaled to all rounds,
and the whole call beside it. On a busy machine compare the times of the cores, not those on the clock.

    python benchmarks/private_rounds.py                 # Poisson batches of 200
    python benchmarks/private_rounds.py --full          # all records at every step
    python benchmarks/private_rounds.py --draws 1       # of θ a step; 8 is the solver's default
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Trace_ELBO, autoguide

import fedvi

CLIENTS, RECORDS, SIZE, STEPS, ROUNDS, REPEATS = 10, 2_000, 20, 100, 10, 3
VISITS = 10
CLIP_NORM = 4.0


class Spent(NamedTuple):
    """Seconds on the clock, and of all cores together."""

    clock: float
    cores: float


def now() -> Spent:
    """Returns both clocks."""
    return Spent(time.perf_counter(), time.process_time())


def since(start: Spent) -> Spent:
    """Returns what has been spent since."""
    return Spent(*(after - before for after, before in zip(now(), start, strict=True)))


def study(folder: Path, family: str, rate: float | None, draws: int) -> Any:
    """Writes a logistic study and its clients' files, and reads it."""
    generator = np.random.default_rng(0)
    theta = generator.normal(size=SIZE) / 2.0
    names = [f"x{index}" for index in range(SIZE)]
    for client in range(CLIENTS):
        x = generator.normal(size=(RECORDS, SIZE)) + 0.2 * generator.normal(size=SIZE)
        y = generator.uniform(size=RECORDS) < 1.0 / (1.0 + np.exp(-x @ theta))
        table = np.column_stack([x, y])
        header = ",".join([*names, "y"])
        np.savetxt(folder / f"c{client}.csv", table, "%.6g", ",", header=header, comments="")
    number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
    sampler: Any = "full" if rate is None else {"kind": "poisson", "rate": rate}
    raw = {
        "study": {"name": "private-rounds"},
        "model": {"kind": "logistic", "formula": "y ~ 0 + " + " + ".join(names)},
        "family": {"kind": family},
        "solver": {
            "kind": "dp_optimisation", "steps": STEPS, "draws": draws, "clip_norm": CLIP_NORM,
            "sampler": sampler,
        },
        "schedule": {"kind": "synchronous", "rounds": ROUNDS},
        "privacy": {
            "epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "add_remove",
        },
        "data": {
            "max_records": RECORDS,
            "schema": {
                "y": {"type": "binary", "true": ["1"], "false": ["0"]},
                **dict.fromkeys(names, number),
            },
        },
        "clients": [
            {"name": f"c{client}", "data": f"c{client}.csv"} for client in range(CLIENTS)
        ],
    }  # fmt: skip
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return fedvi.load_study(path)


def federation(study: Any, folder: Path) -> tuple[Spent, Spent, float]:
    """Runs the study; returns the time of all rounds, of the whole call, and the noise multiplier."""
    stamps: list[Spent] = []
    start = now()
    result = fedvi.simulate(study, folder, on_moment=lambda _: stamps.append(now()))
    whole = since(start)
    # The first fold comes after planning and reading, so it is the others that are measured.
    rounds = [
        (after - before) * ROUNDS / (ROUNDS - 1)
        for before, after in zip(stamps[0], stamps[-1], strict=True)
    ]
    return Spent(*rounds), whole, result.assembly.noise_multiplier


def bare(
    folder: Path, family: str, rate: float | None, draws: int, noise: float
) -> Callable[[], Spent]:
    """Returns what takes all steps of all clients with `DPSVI`, and nothing else."""
    tables = [
        np.loadtxt(folder / f"c{client}.csv", delimiter=",", skiprows=1).astype(np.float32)
        for client in range(CLIENTS)
    ]
    shards = [(jnp.asarray(table[:, :-1]), jnp.asarray(table[:, -1])) for table in tables]

    def model(x: Any, y: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, 2.5).expand([SIZE]).to_event(1))
        with numpyro.plate("records", RECORDS, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)

    guides = {
        "full_gaussian": autoguide.AutoMultivariateNormal,
        "diagonal_gaussian": autoguide.AutoDiagonalNormal,
    }
    privacy = fedvi.privacy.sgd(
        steps=STEPS * VISITS * (REPEATS + 1), max_records=RECORDS, relation="add_remove", delta=1e-5,
        noise_multiplier=noise, clip_norm=CLIP_NORM, rate=rate,
        sampler="poisson" if rate else "full",
    )  # fmt: skip
    svi = fedvi.DPSVI(
        model, guides[family](model), numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=draws),
        privacy,
    )  # fmt: skip
    held = [svi.init(jax.random.key(0), *shards[0])]

    def take() -> Spent:
        start = now()
        for visit in range(VISITS):
            shard = shards[visit % CLIENTS]
            result = svi.run(
                jax.random.key(0), STEPS, *shard, progress_bar=False, init_state=held[0]
            )
            held[0] = jax.block_until_ready(result.state)
        return Spent(*(CLIENTS * ROUNDS / VISITS * part for part in since(start)))

    return take


def main() -> int:
    """Prints the figures of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=8, help="of theta, a step")
    parser.add_argument("--full", action="store_true", help="all records at every step")
    parser.add_argument("--family", choices=["full_gaussian", "diagonal_gaussian"], action="append")
    given = parser.parse_args()
    print(
        f"{CLIENTS} clients x {RECORDS} records x D = {SIZE}, {ROUNDS} rounds of {STEPS} steps, "
        f"{given.draws} draws a step; medians of {REPEATS}, s on the clock (s of all cores)"
    )
    rate = None if given.full else 0.1
    for family in given.family or ["diagonal_gaussian", "full_gaussian"]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            made = study(folder, family, rate, given.draws)
            *_, noise = federation(made, folder)
            take = bare(folder, family, rate, given.draws, noise)
            take()
            turns = [(*federation(made, folder)[:2], take()) for _ in range(REPEATS)]
        rounds, whole, steps = (
            Spent(*(statistics.median(part) for part in zip(*column, strict=True)))
            for column in zip(*turns, strict=True)
        )
        batch = RECORDS if rate is None else round(rate * RECORDS)
        each = 1e6 / (CLIENTS * ROUNDS * STEPS * batch)
        print(
            f"{family}, batches of {batch}: rounds {rounds.clock:.2f} ({rounds.cores:.2f}); the whole "
            f"call {whole.clock:.2f} ({whole.cores:.2f}); bare DPSVI steps {steps.clock:.2f} "
            f"({steps.cores:.2f}), ratio {rounds.clock / steps.clock:.2f} "
            f"({rounds.cores / steps.cores:.2f}); a record's gradient {each * rounds.clock:.2f} us "
            f"({each * rounds.cores:.2f})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
