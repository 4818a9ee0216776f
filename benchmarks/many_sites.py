"""Times rounds of many small sites in one process: `fedvi simulate` as a user runs it, all in memory.

    python benchmarks/many_sites.py 10 100 300 1000 10000
    python benchmarks/many_sites.py --records 50 --size 3 100000 1000000

Each count is a run of its own: a private logistic regression, `site_release`, synchronous, with
ledgers, prices and folds. Prints the median seconds of a round after the first, which compiles, what
that is a site, and the peak of the process's memory: a million sites take some 6 GiB. ``--profile`` prints
where the time of the last count went.
"""

import argparse
import cProfile
import pstats
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from fedvi.data.source import ArraySource
from fedvi.run import simulate
from fedvi.run.whole_rounds import WholeRounds
from fedvi.study import build
from fedvi.study.config import parse_study

ROUNDS, SEED = 4, 0


def study(sites: int, records: int, size: int, rounds: int = ROUNDS) -> build.Assembly:
    """Builds the study: a logistic regression of ``size`` coefficients, ε = 1 for each site."""
    number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
    columns = {f"x{index}": number for index in range(size)}
    raw = {
        "study": {"name": "many-sites", "seed": SEED},
        "model": {"kind": "logistic", "formula": "y ~ 0 + " + " + ".join(columns)},
        "family": {"kind": "full_gaussian"},
        "solver": {"kind": "site_release"},
        "schedule": {"kind": "synchronous", "rounds": rounds},
        "privacy": {
            "unit": "record",
            "relation": "add_remove",
            "epsilon": 1.0,
            "delta": 1e-5,
        },
        "simulation": {"insecure_seed": SEED},
        "data": {"max_records": records, "schema": {"y": {"type": "binary"}, **columns}},
        "clients": [{"name": f"c{index:07}"} for index in range(sites)],
    }
    return build.assemble(parse_study(raw))


def sources(sites: int, records: int, size: int) -> dict[str, ArraySource]:
    """Draws the records of each site from one logistic regression."""
    generator = np.random.default_rng(SEED)
    theta = generator.normal(size=size) / 2.0
    found, valid = {}, np.ones(records, bool)
    for index in range(sites):
        x = generator.normal(size=(records, size)).astype(np.float32)
        y = (generator.uniform(size=records) < 1.0 / (1.0 + np.exp(-x @ theta))).astype(np.float32)
        found[f"c{index:07}"] = ArraySource({"x": x, "y": y}, valid)
    return found


def rounds_of(
    assembly: build.Assembly, held: dict[str, ArraySource], clock: Callable[[], float]
) -> list[float]:
    """Runs the study and returns the seconds of each round, and of what follows the last."""
    stamps = [clock()]
    simulate.run(assembly, held, on_moment=lambda _: stamps.append(clock()))
    return list(np.diff([*stamps, clock()]))


def main() -> None:
    """Prints a line for each count of sites."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sites", type=int, nargs="*", default=[10, 100, 300, 1000])
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--size", type=int, default=20)
    parser.add_argument(
        "--cpu", action="store_true", help="seconds of processor time, on a busy machine"
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--apart", action="store_true", help="beside one worker a site")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu else time.perf_counter
    for count in arguments.sites:
        began = clock()
        assembly = study(count, arguments.records, arguments.size)
        held = sources(count, arguments.records, arguments.size)
        ready = clock()
        profile = cProfile.Profile()
        if arguments.profile and count == arguments.sites[-1]:
            profile.enable()
        seconds = rounds_of(assembly, held, clock)
        profile.disable()
        middle = statistics.median(seconds[1:-1])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{count:8} sites: {middle:8.3f} s a round, {1e6 * middle / count:8.0f} us a site; "
            f"first {seconds[0]:.2f} s, building {ready - began:.2f} s, end {seconds[-1]:.2f} s, "
            f"peak {peak:.0f} MiB",
            flush=True,
        )
        if arguments.apart:
            together, WholeRounds.go = WholeRounds.go, lambda *_: None
            middle = statistics.median(rounds_of(assembly, held, clock)[1:-1])
            WholeRounds.go = together
            print(f"{'apart':>8}: {middle:14.3f} s a round, {1e6 * middle / count:8.0f} us a site")
        if arguments.profile and count == arguments.sites[-1]:
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
