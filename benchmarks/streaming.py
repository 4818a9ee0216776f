"""How fast does one client go through a table that is larger than its memory, and in how much of it?

    $ python benchmarks/streaming.py
    $ python benchmarks/streaming.py --records 50000000 --folder /disk/with/room

Makes a Parquet file of made-up records (20 numbers and a binary outcome, float32), and runs one client's
visits of `site_release` in a process of its own: the file is prepared by the schema on to the disk, and
each visit goes through all of it. Nothing is in the caches of JAX before.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = 20
GROUP = 1 << 20
VISITS = 2


def study(records: int) -> dict[str, Any]:
    """A private logistic regression of one client."""
    names = [f"x{index}" for index in range(COLUMNS)]
    number = {"type": "number", "bounds": [-4.0, 4.0], "center": 0.0, "scale": 1.0}
    return {
        "study": {"name": "streaming", "seed": 1},
        "model": {"kind": "logistic", "formula": "y ~ " + " + ".join(names)},
        "prior": {"scale": 2.5},
        "solver": {"kind": "site_release", "clip_norm": 5.0},
        "schedule": {"kind": "synchronous", "rounds": VISITS},
        "privacy": {
            "epsilon": 1.0,
            "delta": 1e-10,
            "unit": "record",
            "relation": "add_remove",
            "disjoint": True,
        },
        "data": {
            "max_records": records,
            "schema": {"y": {"type": "binary"}, **dict.fromkeys(names, number)},
        },
        "clients": [{"name": "north"}],
    }


def truth() -> np.ndarray:
    """The coefficients that the records are made with."""
    return np.linspace(-0.5, 0.5, COLUMNS)


def make(path: Path, records: int) -> None:
    """Writes the table, one row group after another."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(2026)
    names = [f"x{index}" for index in range(COLUMNS)]
    schema = pa.schema([("y", pa.bool_()), *((name, pa.float32()) for name in names)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, records, GROUP):
            count = min(GROUP, records - start)
            x = rng.standard_normal((COLUMNS, count), np.float32)
            chance = 1.0 / (1.0 + np.exp(-(truth() @ x - 0.3)))
            y = rng.random(count) < chance
            writer.write_table(pa.table([pa.array(y), *map(pa.array, x)], schema=schema), GROUP)


def client(path: Path, records: int, folder: Path) -> dict[str, Any]:
    """Runs the visits, as `fedvi simulate` would, and tells how long each part took."""
    from fedvi.privacy import ledger
    from fedvi.run import site
    from fedvi.server.coordinator import Coordinator
    from fedvi.store.memory import MemoryClientStore, MemoryServerStore
    from fedvi.study import build
    from fedvi.study.config import parse_study
    from fedvi.transport.memory import MemoryLink

    assembly = build.assemble(parse_study(study(records)))
    marks = [_now()]
    shard = site.file_shard(assembly, "north", path, cache=folder)
    shard()
    marks.append(_now())
    coordinator = Coordinator(assembly.spec, MemoryServerStore())
    store = MemoryClientStore(ledger.open_ledger(assembly.header("north")))
    worker = site.client_worker(assembly, "north", MemoryLink(coordinator.handle), store, shard)
    while (outcome := worker.tick()) != "done":
        if outcome == "solved":
            marks.append(_now())
    names = ("prepare", "first visit", "visit")
    found = {
        name: (end[0] - start[0], end[1] - start[1])
        for name, start, end in zip(names, marks, marks[1:], strict=False)
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak, "parts": found}


def _now() -> tuple[float, float]:
    """Seconds on the clock, and of all cores."""
    return time.perf_counter(), time.process_time()


def main() -> None:
    """Makes the table, and measures the client in a child process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="where there is room: 13 GB for 50 million")
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        print(json.dumps(client(options.client, options.records, options.folder)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "north.parquet"
        make(path, options.records)
        command = [sys.executable, __file__, "--records", str(options.records)]
        command += ["--folder", folder, "--client", str(path)]
        single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | single
        )
        size = path.stat().st_size
    found = json.loads(done.stdout.splitlines()[-1])
    count = options.records
    print(f"{count:,} records of {COLUMNS} numbers: Parquet {size / 2**30:.2f} GiB")
    print("             on the clock, s   of all cores, s   M records a second of these")
    for name, (clock, cores) in found["parts"].items():
        print(f"{name:12} {clock:15.1f} {cores:17.1f} {count / cores / 1e6:25.2f}")
    print(f"peak memory  {found['peak'] / 2**30:8.2f} GiB")


if __name__ == "__main__":
    main()
