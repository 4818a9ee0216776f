"""Claims about shards on the disk: the same bits as in memory, in memory that does not grow with them."""

import functools
import importlib
import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.client.inputs import fingerprint
from fedvi.data.source import ArraySource
from fedvi.data.stored import StoredColumn, StoredSource
from fedvi.errors import ConfigError, DataError
from fedvi.inference.blocks import blocks_of, is_large, length_of
from fedvi.inference.clipping import MOST_ROWS
from fedvi.privacy import bounded as bounds
from fedvi.privacy import random, release, sampling
from fedvi.run import loading, simulate, site
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.updates.base import Shard, Task

# Above `MOST_ROWS`, from which on records are added up in blocks, wherever they lie.
RECORDS, CAPACITY = 190_000, 210_000
# A run of records that do not count, longer than a block.
SILENT = slice(60_000, 130_000)
SEED = 11


def table(records: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, records))
    y = (rng.random(records) < 1.0 / (1.0 + np.exp(-(0.7 * a - 0.4 * b)))).astype(np.int8)
    return {"y": y, "a": a.astype(np.float32), "b": b}


def raw(solver: dict[str, Any], private: bool = True, **data: Any) -> dict[str, Any]:
    number = {"type": "number", "bounds": [-4, 4], "center": 0, "scale": 1}
    missing = {} if private else {"missing": "drop"}
    promise = {"epsilon": 2.0, "delta": 1e-7, "unit": "record", "relation": "add_remove"}
    return {
        "study": {"name": "large", "seed": 3},
        "model": {"kind": "logistic", "formula": "y ~ a + b"},
        "prior": {"scale": 1.0},
        "solver": solver,
        "schedule": {"kind": "synchronous", "rounds": 2},
        "privacy": promise | {"disjoint": True} if private else {"protection": "none"},
        "simulation": {"insecure_seed": SEED} if private else {},
        "data": {
            "max_records": CAPACITY,
            "schema": {"y": {"type": "binary"}, "a": number | missing, "b": number | missing},
            **data,
        },
        "clients": [{"name": "north", "data": "north.parquet"}],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    columns = table(RECORDS)
    absent = np.zeros(RECORDS, bool)
    absent[SILENT] = True
    absent[::17] = True
    found = pa.table(
        {
            "y": pa.array(columns["y"]),
            "a": pa.array(columns["a"], mask=absent),
            "b": pa.array(columns["b"]),
        }
    )
    pq.write_table(found, folder / "north.parquet", row_group_size=70_001)
    return folder


SAMPLED = {"noise_multiplier": 1.0, "sampler": {"kind": "poisson", "rate": 0.02}}
# Kind and arguments; and whether the study promises anything, which takes long to price where it samples.
SOLVERS: dict[str, tuple[dict[str, Any], bool]] = {
    "site_release": ({"kind": "site_release", "clip_norm": 1.5}, True),
    "site_release, sampled": ({"kind": "site_release", **SAMPLED}, False),
    "vips": ({"kind": "vips", "clip_norm": 2.0}, True),
    "dp_optimisation": ({"kind": "dp_optimisation", "steps": 3, "draws": 2, **SAMPLED}, False),
    "glm": ({"kind": "glm"}, False),
}


@pytest.mark.nightly(but=("vips",))
@pytest.mark.parametrize("name", SOLVERS)
def test_a_run_from_the_disk_has_the_bits_of_one_in_memory(folder: Path, name: str) -> None:
    solver, private = SOLVERS[name]
    study = parse_study(raw(solver, private))
    here = simulate.simulate(study, folder)
    there = simulate.simulate(study, folder, cache=folder)
    for one, other in zip(
        jax.tree.leaves(here.posterior), jax.tree.leaves(there.posterior), strict=True
    ):
        assert one.tobytes() == other.tobytes()
    digests = [[e.digest for e in r.ledgers["north"].entries] for r in (here, there)]
    assert digests[0] == digests[1]


@pytest.mark.nightly(but=("vips",))
@pytest.mark.parametrize("name", SOLVERS)
def test_blocks_give_what_the_whole_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solver, private = SOLVERS[name]
    if name == "site_release":
        # In float32 the limit that records are clipped to is lower, by some percent: none are clipped.
        solver = solver | {"clip_norm": 50.0}
    study = raw(solver, private)
    study["data"]["max_records"] = 3000
    columns = table(2500)
    x = np.stack([np.ones(2500), columns["a"], columns["b"]], axis=1)
    valid = np.arange(2500) % 7 != 0
    source = ArraySource({"x": x, "y": columns["y"].astype(float)}, valid)
    assembly = build.assemble(parse_study(study))

    def fitted() -> tuple[np.ndarray, np.ndarray]:
        eta = simulate.run(assembly, {"north": source}).posterior
        return np.linalg.solve(eta.J, eta.h), np.linalg.cholesky(eta.J)

    mean, root = fitted()
    module = importlib.import_module(f"fedvi.inference.solvers.{solver['kind']}")
    monkeypatch.setattr(module, "is_large", lambda mask: True)
    monkeypatch.setattr("fedvi.inference.blocks.BLOCK", 512)
    other, other_root = fitted()
    # In sds: sums in float32 differ in their last digits, and the noise is the same.
    assert np.abs(root.T @ (mean - other)).max() < 2e-3
    np.testing.assert_allclose(root, other_root, rtol=1e-2, atol=1e-3 * np.abs(root).max())


def shards(folder: Path, study: Any) -> tuple[Shard, Shard]:
    """The same records in memory, and on the disk."""
    assembly = build.assemble(study)
    path = folder / "north.parquet"
    source = loading.load_shard(assembly, "north", path)
    return (
        site.shard_of(assembly, "north", source)(),
        site.file_shard(assembly, "north", path, cache=folder)(),
    )


def task_of(assembly: Any) -> Task:
    return Task("north/0", "north", 0, 0, assembly.prior, assembly.family.zeros(), 1.0)


def vectors(
    shard: Shard, mean: np.ndarray, covariance: np.ndarray, weight: float, clip: float = math.inf
) -> np.ndarray:
    """Each counting record's (gradient, weighed curvature) in float64, by the definition alone.

    With a clip norm, weighed so that none would be longer for either outcome.
    """
    x, y = (np.asarray(shard.records[name])[shard.mask] for name in ("x", "y"))
    points, shares = np.polynomial.hermite_e.hermegauss(8)
    shares = shares / shares.sum()
    spread = np.minimum(np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x)), 1.0)
    chance = 1.0 / (1.0 + np.exp(-(x @ mean)[:, None] - spread[:, None] * points))
    slope, bend = (y[:, None] - chance) @ shares, (chance * (1.0 - chance)) @ shares
    rows, columns = np.tril_indices(x.shape[1])
    twice = np.where(rows == columns, 1.0, np.sqrt(2.0))
    curvature = bend[:, None] * x[:, rows] * x[:, columns] * twice * weight
    longest = np.maximum(chance, 1.0 - chance) @ shares * np.linalg.norm(x, axis=1)
    longest = np.hypot(longest, np.linalg.norm(curvature, axis=1))
    kept = np.minimum(1.0, (1.0 - 2.0**-8) * clip / longest)
    return kept[:, None] * np.concatenate([slope[:, None] * x, curvature], axis=1)


def test_the_sum_that_is_noised_is_that_of_every_counting_record_once(folder: Path) -> None:
    study = parse_study(raw(SOLVERS["site_release"][0]))
    assembly = build.assemble(study)
    captured: list[Any] = []

    class Watched:
        """The study's mechanism, with the totals that it is given written down."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def perturb(self, key: Any, total: Any, clip_norm: float) -> Any:
            jax.debug.callback(captured.append, total)
            return self.inner.perturb(key, total, clip_norm)

    solver = assembly.solver_with(Watched)
    task, clip = task_of(assembly), 1.5
    covariance = np.linalg.inv(task.posterior.J)
    weight = 4.0 / clip * np.sqrt(0.2 / 0.8)
    in_memory, on_disk = shards(folder, study)
    # What stands in a row that does not count is nobody's business.
    x = np.array(in_memory.records["x"])
    x[~in_memory.mask] = 3.0
    in_memory = in_memory._replace(records=in_memory.records | {"x": x})
    key_of = functools.partial(random.key, b"s" * 32)
    step = None
    for shard in (in_memory, on_disk):
        _, released, _ = solver.update(key_of, (), task, shard)
        step = released.value.step
        jax.block_until_ready(released.value.integers)
    jax.effects_barrier()
    wanted = vectors(in_memory, np.zeros(3), covariance, weight, clip)
    assert (
        np.abs(wanted).sum()
        < 0.99 * np.abs(vectors(in_memory, np.zeros(3), covariance, weight)).sum()
    )
    assert np.linalg.norm(wanted, axis=1).max() < clip
    wanted = wanted.sum(axis=0)
    assert len(captured) == 2
    assert step is not None
    for total in captured:
        found = np.concatenate([np.asarray(total["gradient"]), np.asarray(total["curvature"])])
        # The limit is lower than C for what rounding may add, by up to 1e-3 of it; predictors are float32.
        np.testing.assert_allclose(found * step, wanted, atol=2e-3 * np.abs(wanted).max())
    one, other = captured
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.nightly
def test_a_visit_without_noise_is_the_newton_step_of_the_whole_table(folder: Path) -> None:
    study = parse_study(raw({"kind": "glm", "tolerance": 1e-9}, private=False))
    assembly = build.assemble(study)
    _, on_disk = shards(folder, study)
    _, released, info = assembly.solvers["north"].update(
        functools.partial(random.key, b"s" * 32), (), task_of(assembly), on_disk
    )
    eta = released.value
    mean, covariance = np.linalg.solve(eta["J"], eta["h"]), np.linalg.inv(eta["J"])
    assert info["residual"] < 1e-9
    # At the optimum the gradient is that of the prior, and the precision its plus Σ curvatures.
    found = vectors(on_disk, mean, covariance, 1.0).sum(axis=0)
    np.testing.assert_allclose(found[:3], mean, atol=1e-5)
    rows, columns = np.tril_indices(3)
    wanted = (eta["J"] - np.eye(3))[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))
    np.testing.assert_allclose(found[3:], wanted, rtol=1e-7)


def test_records_have_one_digest_wherever_they_lie(folder: Path) -> None:
    in_memory, on_disk = shards(folder, parse_study(raw(SOLVERS["site_release"][0])))
    assert isinstance(on_disk.records["x"], StoredColumn)
    assert is_large(on_disk.mask)
    assert on_disk.mask.tobytes() == in_memory.mask.tobytes()
    digest = fingerprint(b"k", "records", on_disk)
    assert digest == fingerprint(b"k", "records", in_memory)
    changed = {name: np.array(column) for name, column in in_memory.records.items()}
    changed["x"][RECORDS - 1, 1] += 1e-9
    assert digest != fingerprint(b"k", "records", in_memory._replace(records=changed))


def test_the_rows_of_a_shard_go_by_in_blocks_of_one_length_and_once_each() -> None:
    rng = np.random.default_rng(0)
    rows, mask = rng.normal(size=1000), rng.random(1000) < 0.5
    mask[300:600] = False
    for most in (64, 128, 333, 1000, 5000):
        length = length_of(1000, most)
        found = list(blocks_of({"x": rows}, np.arange(1000), mask, length))
        assert {len(block.mask) for block in found} == {length}
        assert length % 64 == 0
        seen = np.concatenate([block.records["x"][block.mask] for block in found])
        np.testing.assert_array_equal(seen, rows[mask])
    nothing = list(blocks_of({"x": rows}, np.arange(1000), np.zeros(1000, bool), 128))
    assert len(nothing) == 1
    assert not nothing[0].mask.any()


def test_more_blocks_than_there_are_or_none_at_all_are_no_sum() -> None:
    assembly = build.assemble(parse_study(raw(SOLVERS["site_release"][0])))
    part = {"gradient": np.ones(3)}

    def total(parts: list[Any], blocks: int) -> bounds.Bounded:
        mechanism: list[Any] = []
        assembly.solver_with(lambda inner: mechanism.append(inner) or inner)
        return bounds.float_sum_of(parts, blocks, 64, 1.5, 100, sampling.full(100), mechanism[0])

    assert total([part, part], 2).shift.substitute == 3.0
    for parts in ([], [part] * 3):
        with pytest.raises(release.errors.PrivacyError, match=r"block sums, expected 1 to 2"):
            total(parts, 2)
    with pytest.raises(release.errors.PrivacyError, match=r"dtype float32, expected float64"):
        total([{"gradient": np.ones(3, np.float32)}], 2)
    infinite = {"gradient": np.array([np.inf, 1.0, np.nan])}
    assert np.asarray(total([infinite], 2).total["gradient"]).tolist()[::2] == [0, 0]


def test_the_command_line_gives_one_answer_with_the_cache_and_without(
    folder: Path, tmp_path: Path
) -> None:
    study = folder / "study.json"
    study.write_text(json.dumps(raw(SOLVERS["site_release"][0])))
    answers = []
    for more in ([], ["--cache", str(tmp_path)]):
        done = CliRunner().invoke(main, ["simulate", str(study), "--json", "--quiet", *more])
        assert done.exit_code == 0, done.output
        answers.append(json.loads(done.stdout)["coefficients"])
    assert answers[0] == answers[1]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_work_from_the_disk_is_refused_by_name(folder: Path) -> None:
    by_patient = raw(SOLVERS["site_release"][0], unit_column="who")
    by_patient["privacy"]["unit"] = "patient"
    for study in (raw({"kind": "gradient"}, private=False), by_patient):
        with pytest.raises(ConfigError, match=r"records cannot be worked on from the disk"):
            simulate.simulate(parse_study(study), folder, cache=folder)


def test_records_go_to_the_disk_by_themselves_where_they_would_take_much_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = build.assemble(parse_study(raw(SOLVERS["site_release"][0])))
    path = folder / "north.parquet"
    for limit, stored in ((CAPACITY * 4 * 8, False), (CAPACITY * 4 * 8 - 1, True)):
        monkeypatch.setattr(loading, "_IN_MEMORY", limit)
        source = loading.load_shard(assembly, "north", path, disk=loading.Disk())
        assert isinstance(source, StoredSource) is stored
    assert isinstance(source, StoredSource)


def test_a_folder_that_cannot_be_written_to_says_what_to_do(folder: Path) -> None:
    assembly = build.assemble(parse_study(raw(SOLVERS["site_release"][0])))
    absent = loading.Disk(folder / "absent", always=True)
    with pytest.raises(DataError, match=r"cannot be kept on the disk") as caught:
        loading.load_shard(assembly, "north", folder / "north.parquet", disk=absent)
    assert "--cache DIR" in caught.value.hint


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    # Both runs are of one study, so that the programs are the same.
    rows = {"small": 140_000, "large": 600_000}
    for name, count in rows.items():
        columns = table(count)
        wide = {f"c{index}": np.roll(columns["b"], index).astype(np.float32) for index in range(20)}
        pq.write_table(pa.table({"y": columns["y"], **wide}), tmp_path / f"{name}.parquet")
    script = textwrap.dedent(
        """
        import functools, resource, sys
        from pathlib import Path
        from fedvi.study import build
        from fedvi.run import site
        from fedvi.study.config import parse_study
        from fedvi.updates.base import Task
        from fedvi.privacy import random
        import json
        assembly = build.assemble(parse_study(json.loads(sys.argv[1])))
        task = Task("north/0", "north", 0, 0, assembly.prior, assembly.family.zeros(), 1.0)
        for name in ("small", "large"):
            path = Path(sys.argv[2]) / f"{name}.parquet"
            shard = site.file_shard(assembly, "north", path, cache=Path(sys.argv[2]))()
            key_of = functools.partial(random.key, b"s" * 32)
            assembly.solvers["north"].update(key_of, (), task, shard)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """
    )
    study = raw(SOLVERS["site_release"][0])
    number = study["data"]["schema"]["a"]
    names = [f"c{index}" for index in range(20)]
    study["model"]["formula"] = "y ~ " + " + ".join(names)
    study["data"]["schema"] = {"y": {"type": "binary"}, **dict.fromkeys(names, number)}
    study["data"]["max_records"] = rows["large"]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(study), str(tmp_path)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    small, large = (int(line) * 1024 for line in done.stdout.split())
    prepared = (rows["large"] - rows["small"]) * (21 + 1) * 8
    # What grows is the mask, and pieces of the file.
    assert large - small < prepared / 3, (large - small, prepared)


def test_the_bound_of_a_large_shard_is_the_one_that_solvers_go_by() -> None:
    assert not is_large(np.zeros(MOST_ROWS, bool))
    assert is_large(np.zeros(MOST_ROWS + 1, bool))


@pytest.mark.nightly
@pytest.mark.parametrize("most", [65_536, 65_537, 90_000, 120_000, 167_744])
def test_a_study_runs_on_either_side_of_the_number_of_records_from_which_on_blocks_are_used(
    most: int,
) -> None:
    study = raw({"kind": "site_release"}, max_records=most)
    columns, count = table(most - 7), most - 7
    x = np.stack([np.ones(count), columns["a"], columns["b"]], axis=1)
    source = ArraySource({"x": x, "y": columns["y"].astype(float)}, np.ones(count, bool))
    eta = simulate.run(build.assemble(parse_study(study)), {"north": source}).posterior
    np.testing.assert_allclose(np.linalg.solve(eta.J, eta.h), [0.0, 0.7, -0.4], atol=0.1)
