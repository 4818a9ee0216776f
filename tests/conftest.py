"""Sets how every test runs: JAX's strictness, its platform, and where data is found.

The warnings that count as errors, and the shapes checked at run time, are in ``pyproject.toml``.
Doctests run as a reader would run them, without the rules for JAX below.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

from tests import compiled

# JAX reads these when it is first imported. What one process compiled the next one loads: the many
# servers, clients and commands that tests start would otherwise compile the same functions again.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled.folder())
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# OpenBLAS would take every core for matrices of three rows, and pytest's workers have them already.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest
from hypothesis import settings

# Imports fedvi, which sets flags before JAX computes anything.
from fedvi.run.compiled import keep_passes
from tests.tiers import FAST, LIMIT, Tiers

ROOT = Path(__file__).resolve().parent.parent

# The compiler is checked once a machine, not once a worker.
keep_passes()

_MANY_MAPS = 20_000

# The same examples on every machine and at every run: a red build can be run again and stays red.
# No deadline, because the first example of a jitted function pays for its compilation.
# `HYPOTHESIS_PROFILE=search` looks for new ones.
settings.register_profile("quick", derandomize=True, deadline=None, database=None, max_examples=25)
settings.register_profile("nightly", settings.get_profile("quick"), max_examples=200)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    # fedvi refuses states and keys that others can reach, and tests make folders for them.
    os.umask(0o077)
    # On CI alone, so that no change is refused because somebody's machine is slow.
    limited = config.option.markexpr == FAST and "CI" in os.environ
    config.pluginmanager.register(Tiers(LIMIT if limited else None), "tiers")
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        # ArviZ writes a file at its first import of a day, and workers would trip over one another.
        subprocess.run([sys.executable, "-W", "ignore", "-c", "import arviz"], check=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test and its fixtures where mixed ranks and mixed dtypes are errors.

    Not where the mark ``numpyro`` says that NumPyro's own arithmetic runs, which mixes both, and not in
    doctests: this is called for all tests, wherever they stand.
    """
    with ExitStack() as rules:
        if item.get_closest_marker("numpyro") is None and not isinstance(item, pytest.DoctestItem):
            rules.enter_context(jax.numpy_rank_promotion("raise"))
            rules.enter_context(jax.numpy_dtype_promotion("strict"))
        return (yield)


@pytest.fixture(autouse=True)
def unchecked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the check of compiled steps on made-up records, which takes longer than most tests.

    Not where the mark ``checks_rows`` asks for it, not in processes that a test starts, and not in the
    nightly tier.
    """
    is_nightly = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
    if is_nightly or request.node.get_closest_marker("checks_rows") is not None:
        return
    monkeypatch.setattr("fedvi.inference.svi_steps.Steps.checked", lambda *given: None)
    monkeypatch.setattr("fedvi.inference.rows_alike.check", lambda *given: None)


@pytest.fixture(scope="session", autouse=True)
def away_from_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    """Keeps ledgers for life out of the developer's home, also where fixtures of a module make them."""
    folder = tmp_path_factory.getbasetemp() / "life"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDVI_LIFE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def life(
    away_from_home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of ledgers for life, another one for each test; made by whoever begins a ledger."""
    folder = away_from_home.with_name(f"life-{abs(hash(request.node.nodeid)):x}")
    monkeypatch.setenv("FEDVI_LIFE", str(folder))
    return folder


@pytest.fixture(scope="module", autouse=True)
def room_for_programs() -> Generator[None, None, None]:
    """Forgets compiled programs before they fill the process.

    XLA maps memory for each, Linux has 65,530 maps a process by default, and one more is a crash.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MANY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def references() -> Path:
    """The folder of published and independently computed numbers, each with its origin."""
    return ROOT / "tests" / "references"


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of example studies."""
    return ROOT / "examples"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ``../shared`` of large datasets; skips where a clone stands without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the datasets of ../shared, which this clone stands without")
    return folder
