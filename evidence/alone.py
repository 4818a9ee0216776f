"""Times steps and whole runs of `benchmarks/dpsvi.py` in processes of their own, each held to one core.

    python -m evidence.alone steps mixture 5          medians of five turns: seconds of a step, by candidate
    python -m evidence.alone svi mixture 1000         seconds of a whole run of NumPyro's own inference
    python -m evidence.alone private mixture 1000     seconds of a whole private run

Seconds are the processor's, so that other work does not count. A whole run begins when the table lies in
memory and ends when all steps are done. So it counts tracing and compiling and, for the private one, the
search for the noise of ε = 1.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from evidence.base import ROOT, script

__all__ = ["seconds"]


def seconds(what: str, case: str, count: int) -> dict[str, float]:
    """Returns what is printed; a whole run loads nothing that was compiled before."""
    command = [sys.executable, "-m", "evidence.alone", what, case, str(count)]
    cache = {} if what == "steps" else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **cache}, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def steps(dpsvi: Any, case: Any, turns: int) -> dict[str, float]:
    """Seconds of a step of each candidate, which take turns."""
    reference = dpsvi.plan(case)
    candidates = {
        "svi": dpsvi.plain(case, reference),
        "clipped": dpsvi.scans(case, dpsvi.plan(case, noise_multiplier=0.0)),
        "float": dpsvi.scans(case, dpsvi.plan(case, float_noise=True)),
        "integer": dpsvi.scans(case, reference),
    }
    for take in candidates.values():
        take()
    took: dict[str, list[float]] = {label: [] for label in candidates}
    for _ in range(turns):
        for label, take in candidates.items():
            began = time.process_time()
            take()
            took[label].append((time.process_time() - began) / case.steps)
    return {label: statistics.median(values) for label, values in took.items()}


def whole(dpsvi: Any, case: Any, is_private: bool) -> dict[str, float]:
    """Seconds of a whole run."""
    import fedvi

    reference = None if is_private else dpsvi.plan(case)
    began = time.process_time()
    if is_private:
        plan = fedvi.privacy.sgd(
            epsilon=1.0,
            delta=1e-6,
            steps=case.steps,
            max_records=len(case.data[0]),
            batch=case.batch,
        )
        dpsvi.scans(case, plan)()
    else:
        dpsvi.plain(case, reference)()
    return {"run": time.process_time() - began}


def main(what: str, name: str, count: str) -> None:
    """Measures, and prints."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import jax

    dpsvi = script("benchmarks/dpsvi.py")
    case = jax.block_until_ready(dpsvi.CASES[name]())
    found = (
        steps(dpsvi, case, int(count))
        if what == "steps"
        else whole(dpsvi, case._replace(steps=int(count)), what == "private")
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
