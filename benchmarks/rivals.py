"""Times fedvi's `DPSVI` beside d3p, Opacus, jax-privacy and NumPyro's own `SVI`, all in one run.

    python benchmarks/rivals.py --set-up          makes the rivals' environments, once (5 GB)
    python benchmarks/rivals.py                   all cases
    python benchmarks/rivals.py --case vae        one of: vae, logistic, hierarchical

Each candidate is a process of its own, from `benchmarks/rivals/`, in an environment of its own; fedvi and
the newer NumPyro run in the one that runs this script. After a warm-up they take turns, some steps each,
round by round: nobody else's steps run meanwhile. All have Adam at 1e-3, clip norm 1, the same synthetic
tables and noise multipliers; Poisson batches have the expected size that fixed ones have exactly.
"""

import argparse
import itertools
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
RUNNERS = HERE / "rivals"
CACHE = HERE.parent / ".benchmarks"
RIVALS = ("d3p", "opacus", "jax_privacy")
BASE, OURS = "SVI, NumPyro 0.22, Poisson", "fedvi, integer noise, Poisson"


class Candidate(NamedTuple):
    """What the table calls it, whose environment it runs in ("": this one), its options, steps a turn.

    ``runner`` is the script that runs it, of those beside `run_fedvi.py`; left out, its environment's.
    """

    label: str
    environment: str
    options: tuple[str, ...]
    steps: int
    runner: str = ""


def ours(steps: int, *options: str) -> list[Candidate]:
    """Returns both `SVI` and the four of fedvi, by noise and batches."""
    kinds = {
        BASE: ("svi",),
        "SVI, NumPyro 0.22, Feistel": ("svi", "feistel"),
        "fedvi, float noise, Poisson": ("float",),
        OURS: (),
        "fedvi, float noise, Feistel": ("float", "feistel"),
        "fedvi, integer noise, Feistel": ("feistel",),
    }
    return [Candidate(label, "", (*kind, *options), steps) for label, kind in kinds.items()]


def d3p(steps: int, plain: int) -> list[Candidate]:
    """Returns d3p, and `SVI` of the NumPyro that it runs on, on d3p's batches."""
    return [
        Candidate("d3p, Feistel", "d3p", (), steps),
        Candidate("SVI, NumPyro 0.11, d3p's batches", "d3p", ("svi",), plain),
    ]


CASES = {
    "vae": [
        *ours(30),
        *d3p(2, 30),
        Candidate("Opacus, ghost clipping, Poisson", "opacus", ("ghost",), 20),
        Candidate("Opacus, grad samples, Poisson", "opacus", ("samples",), 5),
        Candidate("jax-privacy, fixed size", "jax_privacy", (), 2),
        Candidate("jax-privacy, microbatches of 16", "jax_privacy", ("16",), 4),
    ],
    "logistic": [
        *ours(2_000, "aligned"),
        Candidate("fedvi, full gradients, Feistel", "", ("feistel",), 2_000),
        *d3p(500, 2_000),
        Candidate("Opacus, ghost clipping, MAP", "opacus", ("ghost",), 500),
        Candidate("Opacus, grad samples, MAP", "opacus", ("samples",), 500),
        Candidate("jax-privacy, fixed size, MAP", "jax_privacy", (), 2_000),
    ],
    "hierarchical": [
        *ours(100_000),
        Candidate("fedvi, aligned, Feistel", "", ("feistel", "aligned"), 100_000),
        *d3p(100_000, 100_000),
    ],
}
TITLES = {
    "vae": "VAE 784-400-50, 688,884 parameters, 128 of 60,000 records",
    "logistic": "logistic regression, d = 100, 256 of 50,000 records; MAP: a plain loss, no posterior",
    "hierarchical": "hierarchical regression of the d3p paper, 10 of 500 records, 100,000 steps a turn",
}


def set_up(python: str, names: tuple[str, ...] = RIVALS) -> None:
    """Makes the environments that are missing or whose requirements have changed."""
    for name in names:
        wanted, home = RUNNERS / f"{name}.txt", CACHE / name
        done = home / wanted.name  # a copy of what was installed, written last
        if done.exists() and done.read_text() == wanted.read_text():
            continue
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", home], check=True)
        # Each file names all that is needed, and no more: no GPU's compiler, no bound that has expired.
        install = [
            home / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--requirement",
            wanted,
        ]
        subprocess.run(install, check=True)
        shutil.copy(wanted, done)


def started(case: str, candidate: Candidate) -> Any:
    """Starts a candidate's process; what it complains of goes to a log."""
    name = candidate.environment or "fedvi"
    python = CACHE / name / "bin" / "python" if candidate.environment else sys.executable
    log = CACHE / "-".join(("log", name, case, *candidate.options))
    command = [python, RUNNERS / f"run_{candidate.runner or name}.py", case, *candidate.options]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with log.open("w") as complaints:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=environment,
        )


def ask(process: Any, candidate: Candidate) -> None:
    """Tells a process to take its steps."""
    process.stdin.write(f"{candidate.steps}\n")
    process.stdin.flush()


def told(process: Any, candidate: Candidate) -> tuple[float, float]:
    """Waits for the steps; returns the seconds of one, of the clock and of the processor."""
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"{candidate.label} stopped: see the log in {CACHE.name}")
    clock, processor = map(float, answer.split())
    return clock / candidate.steps, processor / candidate.steps


def opened(case: str, candidates: list[Candidate], one_core: bool = False) -> dict[Candidate, Any]:
    """Starts those candidates that have an environment, which take a first turn to warm up.

    With ``one_core`` each process is held to one: threads then wait for no core that other work has.
    """
    CACHE.mkdir(exist_ok=True)
    taking_part = [c for c in candidates if not c.environment or has_environment(c.environment)]
    all_cores = os.sched_getaffinity(0) if one_core and hasattr(os, "sched_getaffinity") else ()
    processes = {}
    try:
        for candidate, core in zip(taking_part, itertools.cycle(all_cores or [None]), strict=False):
            if core is not None:
                os.sched_setaffinity(0, {core})  # a process has the cores of who starts it
            processes[candidate] = started(case, candidate)
    finally:
        if all_cores:
            os.sched_setaffinity(0, all_cores)
    for candidate, process in processes.items():
        ask(process, candidate)
    for candidate, process in processes.items():
        told(process, candidate)
    return processes


def timed(
    processes: dict[Candidate, Any], rounds: int
) -> dict[Candidate, list[tuple[float, float]]]:
    """Lets candidates take turns; returns seconds of a step in each, of the clock and the processor."""
    seconds: dict[Candidate, list[tuple[float, float]]] = {c: [] for c in processes}
    for _ in range(rounds):
        for candidate, process in processes.items():
            ask(process, candidate)
            seconds[candidate].append(told(process, candidate))
    return seconds


def closed(processes: dict[Candidate, Any]) -> None:
    """Ends the processes."""
    for process in processes.values():
        process.stdin.close()
        process.wait()
        process.stdout.close()


def measure(case: str, rounds: int) -> None:
    """Times all candidates of a case in turn, and prints medians and their ratios."""
    load = os.getloadavg()[0]
    processes = opened(case, CASES[case])
    seconds = {candidate.label: values for candidate, values in timed(processes, rounds).items()}
    closed(processes)
    print(f"\n{case}: {TITLES[case]}")
    print(f"  load {load:.1f} before, {os.getloadavg()[0]:.1f} after; medians of {rounds} rounds")
    print(f"  {'':34} {'us a step':>12} {'of CPU':>12} {'/ SVI':>8} {'/ fedvi':>8}   range")
    middles = {
        label: [statistics.median(kind) for kind in zip(*values, strict=True)]
        for label, values in seconds.items()
    }
    for label, (clock, processor) in middles.items():
        clocks = [1e6 * value[0] for value in seconds[label]]
        print(
            f"  {label:34} {1e6 * clock:12,.1f} {1e6 * processor:12,.1f}"
            f" {clock / middles[BASE][0]:8.2f} {clock / middles[OURS][0]:8.2f}"
            f"   {min(clocks):,.1f} to {max(clocks):,.1f}",
            flush=True,
        )


def has_environment(name: str) -> bool:
    """Tells whether a rival's environment was made, to the end."""
    return (CACHE / name / f"{name}.txt").exists()


def main() -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set-up", action="store_true", help="make the rivals' environments")
    parser.add_argument("--python", default="python3.11", help="makes them; d3p needs 3.11")
    parser.add_argument("--case", choices=CASES, help="one case alone")
    parser.add_argument(
        "--rounds", type=int, default=7, choices=range(1, 10), metavar="N", help="turns, 1 to 9"
    )
    chosen = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    if chosen.set_up:
        set_up(chosen.python)
        return 0
    missing = [name for name in RIVALS if not has_environment(name)]
    for name in missing:
        print(f"{name} is left out: it has no environment; --set-up makes one")
    if len(missing) == len(RIVALS):
        return 0
    for case in [chosen.case] if chosen.case else CASES:
        measure(case, chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
