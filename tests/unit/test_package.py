"""What holds for every file of the package, and for the locks it is installed from."""

import ast
import importlib
import importlib.metadata
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedvi

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fedvi"
GENERATED = "fedvi.transport._wire"

# Loading any of these runs what its sender wrote.
RUNS_CODE = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def is_generated(module: str) -> bool:
    return module == GENERATED or module.startswith(GENERATED + ".")


FOUND = sorted(found.name for found in pkgutil.walk_packages(fedvi.__path__, "fedvi."))
MODULES = ["fedvi", *(name for name in FOUND if not is_generated(name))]
LOCKS = ["requirements.lock", "requirements-dev.lock"]
ALL_LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` in a fresh interpreter: what it imported says nothing about ours."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
        timeout=120,
        check=False,
    )


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``fedvi *arguments``; its last line of standard error says whether JAX was loaded."""
    return run(
        "import sys\n"
        "from fedvi.cli.main import main\n"
        f"sys.argv = ['fedvi', *{list(arguments)!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('jax' if 'jax' in sys.modules else 'no jax', file=sys.stderr)\n"
    )


def imported_modules(tree: ast.AST) -> set[str]:
    """Names the first part of every module imported anywhere in a file, by statement."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names


def test_the_version_is_printed_without_importing_jax():
    done = run_command("--version")
    assert done.returncode == 0, done.stderr
    assert fedvi.__version__ in done.stdout.split()
    assert done.stderr == "no jax\n"


def test_the_help_is_printed_without_importing_jax():
    done = run_command("--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: fedvi")
    assert "simulate" in done.stdout
    assert "check" in done.stdout
    assert done.stderr == "no jax\n"


def test_importing_the_package_imports_no_jax():
    done = run("import sys, fedvi; sys.exit('jax' in sys.modules)")
    assert done.returncode == 0, done.stderr


# import-linter follows `import` statements; this also meets what an `__init__` drags in.
@pytest.mark.parametrize(
    "module",
    [
        "fedvi.privacy.accountants",
        "fedvi.privacy.accountants.pld",
        "fedvi.privacy.accountants.rdp",
        "fedvi.privacy.filter",
        "fedvi.privacy.historical",
        "fedvi.privacy.calibrate",
        "fedvi.privacy.events",
        "fedvi.privacy.ledger",
        "fedvi.privacy.statement",
    ],
)
def test_what_a_budget_is_checked_with_imports_no_jax(module):
    done = run(f"import sys, {module}; sys.exit('jax' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_the_installed_command_and_version_are_those_of_this_clone():
    distribution = importlib.metadata.distribution("fedvi")
    commands = distribution.entry_points.select(group="console_scripts", name="fedvi")
    assert distribution.version == fedvi.__version__
    assert [command.value for command in commands] == ["fedvi.cli.main:main"]
    assert Path(fedvi.__file__).parent == PACKAGE


def test_every_module_says_what_it_is_for_and_what_it_offers():
    for module in MODULES:
        loaded = importlib.import_module(module)
        assert loaded.__doc__, f"{module} opens without a docstring"
        names = loaded.__all__
        assert len(set(names)) == len(names), module
        assert [name for name in names if not hasattr(loaded, name)] == [], module


def test_no_file_imports_what_would_run_a_sender_s_code():
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert imported_modules(tree) & RUNS_CODE == set(), path
        allowed = [
            node.arg
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle"
            if not (isinstance(node.value, ast.Constant) and node.value.value is False)
        ]
        assert allowed == [], path


def test_shapes_are_checked_in_every_file_that_declares_them():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (listed,) = (
        option.removeprefix("--jaxtyping-packages=").split(",")
        for option in options["tool"]["pytest"]["ini_options"]["addopts"]
        if option.startswith("--jaxtyping-packages=")
    )
    for path in sorted(PACKAGE.rglob("*.py")):
        if "jaxtyping" not in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert any(f"{module}.".startswith(f"{package}.") for package in listed), module


def test_every_folder_with_code_in_it_is_a_package():
    # pkgutil, the wheel's type checker and import-linter all pass over a folder without __init__.
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("lock", ALL_LOCKS)
def test_a_lock_holds_no_address(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    # A scheme, a mail-like or direct reference, an option that names an index or a folder.
    assert re.findall(r"(?im)^.*(?:://|\bhttps?\b|@|--(?!hash=)).*$", text) == []
    # A host or a path: outside hashes and comments, a line is `name==version`, markers, `\`.
    pins = [line for line in text.splitlines() if not re.match(r"\s|#|$", line)]
    assert pins
    pin = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.+!]*(?: ; [a-zA-Z0-9_.<>=!' ()]+)? \\")
    assert [line for line in pins if not pin.fullmatch(line)] == []
    comments = "\n".join(line for line in text.splitlines() if "#" in line)
    assert re.findall(r"[\w-]+\.(?:com|org|net|io|dev|local)\b", comments) == []


@pytest.mark.parametrize("lock", ALL_LOCKS)
def test_every_pin_of_a_lock_has_a_hash(lock):
    entries = re.split(r"(?m)^(?=\w)", (ROOT / lock).read_text(encoding="utf-8"))[1:]
    assert len(entries) > (20 if lock in LOCKS else 4)
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_development_lock_holds_the_same_versions_and_more():
    core, development = (
        set(re.findall(r"(?m)^(\S+==\S+)", (ROOT / lock).read_text(encoding="utf-8")))
        for lock in LOCKS
    )
    assert core < development


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_can_build_the_project_without_a_download(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert re.search(r"(?m)^hatchling==", text)
    assert re.search(r"(?m)^editables==", text)


def test_the_citation_and_the_package_name_the_same_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^version: (.+)$", citation) == [fedvi.__version__]
