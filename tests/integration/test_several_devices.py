"""A simulation on several devices has the bits of one; here JAX is told to count a processor as three."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, json
import jax, numpy as np
from fedvi.client import fleet
from fedvi.data.source import ArraySource
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study

used, computed = set(), fleet._computed

def watched(call):
    found = computed(call)
    used.update(*(leaf.devices() for leaf in jax.tree.leaves(found[1])))
    return found

fleet._computed, fleet._FEW = watched, 2
number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
names = [f"c{index}" for index in range(7)]
assembly = build.assemble(parse_study({
    "study": {"name": "devices", "seed": 3},
    "model": {"kind": "logistic", "formula": "y ~ 0 + a + b"},
    "solver": {"kind": "site_release"},
    "schedule": {"kind": "synchronous", "rounds": 2},
    "privacy": {"unit": "record", "relation": "add_remove", "epsilon": 1.0, "delta": 1e-5},
    "simulation": {"insecure_seed": 3},
    "data": {"max_records": 30, "schema": {"y": {"type": "binary"}, "a": number, "b": number}},
    "clients": [{"name": name} for name in names],
}))
generator = np.random.default_rng(0)
sources = {
    name: ArraySource(
        {"x": generator.normal(size=(30, 2)), "y": generator.integers(0, 2, 30).astype(float)},
        np.ones(30, bool),
    )
    for name in names
}
found = simulate.run(assembly, sources)
# Entries hold the digests of what was sent.
books = repr([found.ledgers[name].entries for name in names])
assert books.count("sealed") >= 14
text = found.posterior.h.tobytes() + found.posterior.J.tobytes() + books.encode()
print(json.dumps([len(used), hashlib.sha256(text).hexdigest()]))
"""


@pytest.mark.parametrize("devices", [3])
def test_sites_on_several_devices_answer_with_the_bits_of_one(devices: int) -> None:
    def run(count: int) -> list[object]:
        flags = f"--xla_force_host_platform_device_count={count}"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[object] = json.loads(done.stdout.splitlines()[-1])
        return found

    alone, spread = run(1), run(devices)
    assert (alone[0], spread[0]) == (1, devices)
    assert alone[1:] == spread[1:]
