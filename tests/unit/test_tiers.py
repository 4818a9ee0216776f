"""Which tests a tier runs, and what it says of their time."""

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests import compiled
from tests.tiers import FAST

ROOT = Path(__file__).parents[2]
CONFTEST = """
    import os

    from tests.tiers import FAST, Tiers

    def pytest_configure(config):
        limited = config.option.markexpr == FAST and "CI" in os.environ
        config.pluginmanager.register(Tiers(0.3 if limited else None))
"""
TESTS = """
    import time

    import pytest

    def busy(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def test_quick():
        time.sleep(0.5)

    @pytest.mark.nightly
    def test_long():
        busy(0.5)

    @pytest.mark.nightly(but=("a-1", "b-2"))
    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_of_cases(letter, number):
        pass

    @pytest.mark.nightly(only=("b",))
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_of_two(letter):
        pass
"""


def run(folder, *arguments, ci=False, tests=TESTS):
    """Runs pytest over tests of our own, with our rules, and returns its status and what it said."""
    (folder / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (folder / "test_some.py").write_text(textwrap.dedent(tests))
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = nightly\naddopts = -p no:cacheprovider\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = inherited | {"PYTHONPATH": str(ROOT)} | ({"CI": "true"} if ci else {})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_fast_tier_keeps_the_cases_that_a_mark_names(tmp_path):
    status, said = run(tmp_path, "-m", "not nightly", ci=True)
    assert status == 0, said
    assert "4 passed, 4 deselected" in said
    for name in ("test_quick", "test_of_cases[a-1]", "test_of_cases[b-2]", "test_of_two[a]"):
        assert f"{name} PASSED" in said
    assert "4 tests took 0:" in said


def test_the_nightly_tier_runs_what_the_fast_one_leaves(tmp_path):
    # Nothing there is too long.
    status, said = run(tmp_path, "-m", "nightly", ci=True)
    assert status == 0, said
    assert "4 passed, 4 deselected" in said


@pytest.mark.nightly(but=("False-workers1",))
@pytest.mark.parametrize(("ci", "workers"), [(True, ("-n", "1")), (False, ())])
def test_a_long_test_in_the_fast_tier_fails_on_ci_alone(tmp_path, ci, workers):
    tests = TESTS.replace("    @pytest.mark.nightly\n", "")
    status, said = run(tmp_path, "-m", "not nightly", *workers, ci=ci, tests=tests)
    assert status == int(ci), said
    assert ("FAILED test_some.py::test_long: took 0." in said) is ci
    # Whoever sleeps needs no processor.
    assert "FAILED test_some.py::test_quick" not in said


def test_a_fixture_of_one_test_counts_and_one_that_tests_share_does_not(tmp_path):
    tests = (
        TESTS
        + """
    @pytest.fixture(scope="module")
    def shared():
        busy(0.5)

    @pytest.fixture
    def of_one():
        busy(0.5)

    def test_with_a_long_fixture(shared, of_one):
        pass

    def test_with_a_shared_fixture(shared):
        pass
"""
    )
    status, said = run(tmp_path, "-m", "not nightly", "-k", "fixture", ci=True, tests=tests)
    assert status == pytest.ExitCode.TESTS_FAILED, said
    assert "FAILED test_some.py::test_with_a_long_fixture: took 0.5" in said
    assert "FAILED test_some.py::test_with_a_shared" not in said


# `make test` has workers, who tell the process that reports no error of their own.
@pytest.mark.nightly(but=("2",))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mark_that_names_a_case_which_is_not_there_is_refused(tmp_path, workers):
    tests = TESTS.replace('"b-2"', '"b-3"')
    status, said = run(tmp_path, "-m", "not nightly", "-n", str(workers), tests=tests)
    assert status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED), said
    assert "name cases that there are not: test_some.py::test_of_cases[b-3]" in said


@pytest.mark.nightly(but=('"a-1", "b-2"',))
@pytest.mark.parametrize("inside", ['but="a-1"', 'butt=("a-1",)', '"a-1", "b-2"', "but=()"])
def test_a_mark_that_is_not_as_it_should_be_is_refused(tmp_path, inside):
    tests = TESTS.replace('but=("a-1", "b-2")', inside)
    status, said = run(tmp_path, "-m", "not nightly", tests=tests)
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "test_some.py::test_of_cases has " in said


def test_a_case_cannot_be_kept_of_a_file_that_is_nightly(tmp_path):
    tests = TESTS + "\n    pytestmark = pytest.mark.nightly\n"
    status, said = run(tmp_path, "-m", "not nightly", tests=tests)
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "test_some.py::test_of_two has a second mark" in said


def test_what_failed_last_can_be_run_again_without_the_other_cases(tmp_path):
    tests = (
        TESTS
        + """
    @pytest.mark.nightly(but=("a",))
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_that_fails(letter):
        assert letter == "a"
"""
    )
    with_cache = ("-o", "addopts=", "-k", "that_fails")
    run(tmp_path, *with_cache, tests=tests)
    status, said = run(tmp_path, *with_cache, "--lf", tests=tests)
    assert status == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed" in said


def test_both_tiers_are_run_by_what_readme_and_ci_name():
    rules = (ROOT / "Makefile").read_text()
    assert f'-m "{FAST}"' in rules
    assert '-m "nightly or hypothesis"' in rules
    assert "-m nightly tests/integration" in rules
    script = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in script if line.startswith("make")] == ["make test", "make end-to-end"]
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert any(line.startswith("nightly") for line in markers["markers"])


def test_a_folder_of_programs_that_another_run_removes_meanwhile_stops_no_run(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    chosen = compiled.folder()
    # A link to nothing is listed, and is not there.
    (chosen.parent / "removed").symlink_to(tmp_path / "nowhere")
    assert compiled.folder() == chosen
