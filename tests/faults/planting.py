"""Makes a copy of the tree with one fault in it, and runs tests there."""

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from tests.faults.catalogue import Fault

__all__ = ["Search", "changed", "environment", "look_for", "plant"]

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "shared")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
# What makes tests stricter, or search wider, than somebody's `make test` does: `make nightly` sets some.
_NOT_HANDED_ON = {"CI", "HYPOTHESIS_PROFILE", "PYTEST_ADDOPTS", "FEDVI_TEST_TIMES"}
# Says on its first line whose fedvi it runs: an installed one would find nothing.
_RUN = """
import sys, pytest, fedvi
print(fedvi.__file__)
sys.exit(pytest.main(sys.argv[1:]))
"""


class Search(NamedTuple):
    """What tests found.

    Attributes:
      verdict: "found" if a test failed, "missed" if all passed, "broken" if none could be run.
      by: the test that failed first; what pytest said, where it is broken.
      seconds: of a processor.
    """

    verdict: Literal["found", "missed", "broken"]
    by: str
    seconds: float


def changed(fault: Fault, root: Path = ROOT) -> str:
    """Returns the file's text with the fault.

    Raises:
      ValueError: the file does not have the text to be replaced, or has it more than once.
    """
    text = (root / "fedvi" / fault.file).read_text(encoding="utf-8")
    count = text.count(fault.right)
    if count != 1:
        raise ValueError(
            f"fault {fault.name!r}: fedvi/{fault.file} has {fault.right!r} {count} times, expected once: "
            "the code changed, and the catalogue must follow"
        )
    return text.replace(fault.right, fault.wrong)


def plant(fault: Fault | None, folder: Path) -> None:
    """Lays a copy of the tree into an empty folder, and the fault in it; None plants nothing."""
    for entry in ROOT.iterdir():
        if entry.name in ("fedvi", "tests"):
            shutil.copytree(entry, folder / entry.name, ignore=_LEFT_OUT)
        elif not entry.name.startswith(".") and entry.name not in ("build", "dist"):
            (folder / entry.name).symlink_to(entry)
    if fault is not None:
        (folder / "fedvi" / fault.file).write_text(changed(fault), encoding="utf-8")


def look_for(tests: Iterable[str], folder: Path, marks: str, timeout: float = 900.0) -> Search:
    """Runs tests in a planted folder, up to the first that fails.

    Args:
      tests: files, or single tests.
      folder: see `plant`.
      marks: what pytest's ``-m`` selects.
      timeout: in seconds of the clock; tests that take longer tell nothing.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        *(sys.executable, "-c", _RUN, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("--rootdir", str(folder), "-c", str(folder / "pyproject.toml"), "-m", marks),
        *tests,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return Search("broken", f"tests did not end in {timeout:g} s", timeout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = done.stdout
    failed = _FAILED.search(said)
    if not said.startswith(str(folder)):
        return Search("broken", f"not the copy's fedvi: {said[:200]}{done.stderr[-500:]}", seconds)
    if done.returncode == 0:
        return Search("missed", "", seconds)
    # An error of a whole file is one of collecting it: no test was run.
    if done.returncode == 1 and failed is not None and "::" in failed[1]:
        return Search("found", failed[1], seconds)
    return Search("broken", f"pytest ended with {done.returncode}: {said[-1500:]}", seconds)


def environment(folder: Path) -> dict[str, str]:
    """Returns the variables of tests in a planted folder: those of `make test`, and that folder's fedvi."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
    return kept | {"PYTHONPATH": str(folder)}
