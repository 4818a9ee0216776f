"""Many sites, or the records of one, on several devices have the bits of one.

JAX is told to count a processor as three devices.
"""

import json
import os
import subprocess
import sys

import pytest

# The check of programs, which has tests of its own, takes longer than what is tested here.
UNCHECKED = """
from fedvi.inference import compiler, rows_alike
compiler.check, rows_alike.check = lambda: None, lambda *given: None
"""
SITES = (
    UNCHECKED
    + """
import hashlib, json
import jax, numpy as np
from fedvi.client import fleet
from fedvi.data.source import ArraySource
from fedvi.inference import parallel_parts
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study

used, inside = set(), parallel_parts.side_by_side

def watched(*rest):
    for found in inside(*rest):
        used.update(*(leaf.devices() for leaf in jax.tree.leaves(found[1])))
        yield found

parallel_parts.side_by_side, fleet._FEW = watched, 2
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
)


# Of 170,000 records, which are added up in blocks. ``formed`` makes the parts of a multinomial short.
RECORDS = (
    UNCHECKED
    + """
import hashlib, json, sys
import jax, numpy as np
from fedvi.data.source import ArraySource
from fedvi.inference import parallel_parts
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study

used, inside = set(), parallel_parts.side_by_side
model, solver, protection, rows, formed = json.loads(sys.argv[1])
site_release = sys.modules["fedvi.inference.solvers.site_release"]
site_release._FORMED = formed

def watched(*rest):
    for found in inside(*rest):
        used.update(*(leaf.devices() for leaf in jax.tree.leaves(found)))
        yield found

released = site_release.release

def watched_release(key, bounded, mechanism):
    jax.debug.inspect_array_sharding(
        bounded.total["gradient"], callback=lambda found: used.update(found.device_set)
    )
    return released(key, bounded, mechanism)

parallel_parts.side_by_side, site_release.release = watched, watched_release
number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
levels = ["p", "q", "r"] if model == "multinomial" else None
outcome = {"type": "level", "levels": levels} if levels else {"type": "binary"}
assembly = build.assemble(parse_study({
    "study": {"name": "devices", "seed": 3},
    "model": {"kind": model, "formula": "y ~ a + b"},
    "solver": {"kind": solver},
    "schedule": {"kind": "synchronous", "rounds": 2},
    "privacy": protection,
    **({} if "protection" in protection else {"simulation": {"insecure_seed": 3}}),
    "data": {"max_records": rows, "schema": {"y": outcome, "a": number, "b": number}},
    "clients": [{"name": "north"}],
}))
generator = np.random.default_rng(0)
x = generator.normal(size=(rows, 3)) * [0, 1, 2] + [1, 0, 3]
y = generator.integers(0, 3 if levels else 2, rows).astype(int if levels else float)
found = simulate.run(assembly, {"north": ArraySource({"x": x, "y": y}, np.ones(rows, bool))})
text = found.posterior.h.tobytes() + found.posterior.J.tobytes()
text += repr(found.ledgers["north"].entries).encode()
print(json.dumps([len(used), hashlib.sha256(text).hexdigest()]))
"""
)
PRIVATE = {"unit": "record", "relation": "add_remove", "epsilon": 1.0, "delta": 1e-7}


def spread(count: int, program: str, *arguments: str) -> list[object]:
    """Returns how many devices of ``count`` were used, and the digest of what was computed."""
    flags = f"--xla_force_host_platform_device_count={count}"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_sites_on_several_devices_answer_with_the_bits_of_one() -> None:
    alone, apart = spread(1, SITES), spread(3, SITES)
    assert (alone[0], apart[0]) == (1, 3)
    assert alone[1:] == apart[1:]


@pytest.mark.nightly(but=("regression",))
@pytest.mark.parametrize(
    ("model", "solver", "protection", "rows", "formed"),
    [
        pytest.param("logistic", "site_release", PRIVATE, 170_000, 1 << 22, id="regression"),
        pytest.param("multinomial", "site_release", PRIVATE, 1_000, 5_000, id="multinomial"),
        pytest.param("logistic", "vips", PRIVATE, 170_000, 1 << 22, id="statistics"),
        pytest.param("logistic", "glm", {"protection": "none"}, 170_000, 1 << 22, id="without"),
    ],
)
def test_records_of_a_site_on_several_devices_have_the_bits_of_one(
    model: str, solver: str, protection: dict[str, object], rows: int, formed: int
) -> None:
    text = json.dumps([model, solver, protection, rows, formed])
    alone, apart = spread(1, RECORDS, text), spread(3, RECORDS, text)
    assert (alone[0], apart[0]) == (1, 3)
    assert alone[1:] == apart[1:]
