"""Claims about the programs that commands keep: private, without records, and no hindrance to a command."""

import os
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

COMMAND = "from fedvi.cli.main import main; main()"
# A write beyond it fails, and leaves what was written: a full disk. The program limits itself, since a
# function between fork and exec would fork a process that may run JAX.
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); " + COMMAND
STUDY = """
[study]
name = "kept"
seed = 3
[model]
kind = "logistic"
formula = "y ~ a + b + c"
[family]
kind = "full_gaussian"
[prior]
scale = 1.0
{settings}
[schedule]
kind = "synchronous"
rounds = 1
[data]
max_records = 60
{columns}
[data.schema.y]
type = "binary"
true = [1]
false = [0]
[[clients]]
name = "one"
data = "one.csv"
[[clients]]
name = "two"
data = "two.csv"
"""
COLUMN = """
[data.schema.{name}]
type = "number"
bounds = [-4, 4]
center = 0
scale = 1
"""
PRIVATE = """
[privacy]
epsilon = 4.0
delta = 1e-5
relation = "substitute"
unit = "record"
disjoint = true
"""
SETTINGS = {
    "glm": '[solver]\nkind = "glm"\n[privacy]\nprotection = "none"\n',
    "gradient": '[solver]\nkind = "gradient"\nsteps = 3\n[privacy]\nprotection = "none"\n',
    "site_release": f'[solver]\nkind = "site_release"\n{PRIVATE}',
    "dp_optimisation": '[solver]\nkind = "dp_optimisation"\nsteps = 2\nclip_norm = 1.0\n' + PRIVATE,
}


def a_study(folder: Path, solver: str) -> np.ndarray:
    """Writes a study and its records; returns them, [2, n, 3], as the programs are given them."""
    columns = "".join(COLUMN.format(name=name) for name in "abc")
    (folder / "study.toml").write_text(STUDY.format(settings=SETTINGS[solver], columns=columns))
    random = np.random.default_rng(5)
    x = random.normal(size=(2, 50, 3)).clip(-3.9, 3.9)
    for name, rows in zip(("one", "two"), x, strict=True):
        lines = [f"{a!r},{b!r},{c!r},{int(a > 0)}" for a, b, c in rows.tolist()]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return x


def run(folder: Path, *arguments: str, limit: int | None = None, **environment: str):
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT", "FEDVI_"))
    }
    variables |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(folder / "caches"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND if limit is None else LIMITED.format(limit), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    return done


def kept(folder: Path) -> list[Path]:
    return [*(folder / "caches" / "fedvi" / "jax").glob("*-cache")]


def programs(folder: Path) -> dict[str, bytes]:
    return {entry.name: zlib.decompress(entry.read_bytes()) for entry in kept(folder)}


def holds(program: bytes, x: np.ndarray) -> bool:
    """Whether two neighbouring numbers of the records stand in it, along a record or a column."""
    for kind in (np.float32, np.float64):
        wide = x.astype(kind)
        pairs = [*np.stack([wide[..., :-1], wide[..., 1:]], -1).reshape(-1, 2)]
        pairs += [*np.stack([wide[:, :-1], wide[:, 1:]], -1).reshape(-1, 2)]
        if any(pair.tobytes() in program for pair in pairs):
            return True
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("solver", SETTINGS)
def test_programs_that_are_kept_hold_no_record_and_are_found_again(tmp_path: Path, solver: str):
    x = a_study(tmp_path, solver)
    # Programs of any size, so that all are looked at.
    environment = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    run(tmp_path, "simulate", "study.toml", **environment)
    found = programs(tmp_path)
    assert found
    assert not [name for name, program in found.items() if holds(program, x)]
    for folder in (tmp_path / "caches" / "fedvi", tmp_path / "caches" / "fedvi" / "jax"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {entry: entry.stat().st_mtime_ns for entry in kept(tmp_path)}
    run(tmp_path, "simulate", "study.toml", **environment)
    assert {entry: entry.stat().st_mtime_ns for entry in before} == before
    # A busy machine may have taken long over others, this time or that.
    assert {entry.name for entry in kept(tmp_path) if "at_once" in entry.name} <= found.keys()


def test_a_program_that_closes_over_records_would_be_seen(tmp_path: Path):
    """So that the claim above can be false."""
    x = np.random.default_rng(5).normal(size=(2, 50, 3))
    script = (
        "import jax, jax.numpy as jnp, numpy as np, fedvi\n"
        "fedvi.compilation_cache('caches/fedvi/jax')\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\n"
        "x = np.random.default_rng(5).normal(size=(2, 50, 3)).astype(np.float32)\n"
        "jax.jit(lambda w: jnp.tanh(x @ w))(np.ones(3, np.float32))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert any(holds(program, x) for program in programs(tmp_path).values())


@pytest.mark.nightly
def test_on_a_full_disk_a_command_says_so_once_and_leaves_nothing_half_written(tmp_path: Path):
    a_study(tmp_path, "glm")
    done = run(tmp_path, "simulate", "study.toml", limit=2_000)
    (line,) = [line for line in done.stderr.splitlines() if "compiled programs" in line]
    assert line.startswith(
        "warning: compiled programs are not kept, and the next start takes longer"
    )
    assert not programs(tmp_path)


@pytest.mark.nightly
def test_an_entry_that_was_cut_off_is_compiled_and_kept_again(tmp_path: Path):
    a_study(tmp_path, "glm")
    run(tmp_path, "simulate", "study.toml")
    whole = programs(tmp_path)
    for name in whole:
        entry = tmp_path / "caches" / "fedvi" / "jax" / name
        entry.write_bytes(entry.read_bytes()[:100])
    done = run(tmp_path, "simulate", "study.toml")
    assert "persistent compilation cache" not in done.stderr
    # What takes about a tenth of a second may be kept once and not again.
    again = programs(tmp_path)
    assert [name for name in whole if "at_once" in name and name in again]


@pytest.mark.parametrize("open_to_all", [True, False])
def test_a_folder_that_others_write_to_is_not_used(tmp_path: Path, open_to_all: bool):
    a_study(tmp_path, "glm")
    folder = tmp_path / "caches" / "fedvi" / "jax"
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        each.chmod(0o777 if open_to_all else 0o700)
    done = run(tmp_path, "check", "study.toml")
    assert ("others may write" in done.stderr) == open_to_all


def test_the_switch_turns_it_off(tmp_path: Path):
    a_study(tmp_path, "glm")
    run(tmp_path, "check", "study.toml", FEDVI_COMPILATION_CACHE="off")
    assert not (tmp_path / "caches").exists()
