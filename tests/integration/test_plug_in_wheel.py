"""The page on plug-ins, to the letter: a wheel is built, installed beside fedvi, and allowed by name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedvi.plugins import source_digest
from tests.conftest import ROOT
from tests.plug_ins import declare

ADD = ROOT / "docs" / "add"
STUDY = """
[study]
name = "waiting"
[model]
kind = "my_lab.waiting"
formula = "wait ~ age"
[solver]
kind = "glm"
[schedule]
kind = "synchronous"
rounds = 2
[privacy]
protection = "none"
[data.schema.wait]
type = "number"
bounds = [0.0, 60.0]
center = 0
scale = 2
[data.schema.age]
type = "number"
bounds = [-3, 3]
center = 0
scale = 1
[[clients]]
name = "north"
"""


def block(page: str, kind: str, start: str) -> str:
    found = re.findall(rf"```{kind}\n(.*?)```", (ADD / page).read_text(), re.DOTALL)
    (text,) = (item for item in found if item.startswith(start))
    return text


def fedvi(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT), str(folder / "site")])
    return subprocess.run(
        [sys.executable, "-c", "from fedvi.cli.main import main; main()", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_the_ten_lines_of_the_page_make_a_wheel_that_runs_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    text = block("plug-in.md", "toml", "[build-system]")
    assert len(text.splitlines()) <= 10
    (source / "pyproject.toml").write_text(text)
    (source / "waiting.py").write_text(block("model.md", "python", "# waiting.py"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    build = ["wheel", "--no-build-isolation", "--wheel-dir", tmp_path / "dist", source]
    subprocess.run([*pip, *build, *offline], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("my_lab_waiting-1.0-*.whl")
    install = ["install", "--target", site, wheel]
    subprocess.run([*pip, *install, *offline], check=True, capture_output=True)
    study = tmp_path / "study.toml"
    study.write_text(STUDY)

    refused = fedvi(tmp_path, "check", study)
    assert refused.returncode == 2
    assert "the installed plug-in waiting:Waiting, which nobody allowed here" in refused.stderr
    assert f"({study}, line 5)" in refused.stderr
    assert "`--allow-code my_lab.waiting`" in refused.stderr
    allowed = fedvi(tmp_path, "check", study, "--allow-code", "my_lab.waiting")
    assert allowed.returncode == 0, allowed.stderr
    assert "my_lab.waiting, D = 2" in allowed.stdout

    monkeypatch.syspath_prepend(site)
    digest, policy = source_digest("waiting"), tmp_path / "policy.toml"
    for pinned, code in ((digest, 5), ("0" * 64, 5)):
        policy.write_text(
            "[run]\nepsilon = 1.0\ndelta = 1e-5\n[[allow.custom]]\n"
            f'name = "my_lab.waiting"\nsha256 = "{pinned}"\n'
        )
        judged = fedvi(tmp_path, "check", study, "--policy", policy)
        assert judged.returncode == code
        # The code is let in if it is what was read; then the study itself is judged: it has no noise.
        assert ("without protection" in judged.stderr) == (pinned == digest), judged.stderr
        assert ("whose file has SHA-256" in judged.stderr) == (pinned != digest)
    elsewhere = fedvi(
        tmp_path, "privacy", study, "--policy", policy, "--allow-code", "my_lab.waiting"
    )
    assert "whose file has SHA-256" in elsewhere.stderr  # a flag adds nothing to a policy


def test_a_command_of_a_plug_in_runs_only_if_it_is_allowed_before_its_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "hello_command.py").write_text(
        "import click\n@click.command()\ndef hello(): click.echo('it ran')\n"
    )
    declare(site, commands={"hello": "hello_command:hello"})
    refused = fedvi(tmp_path, "hello")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the installed plug-in hello_command:hello, which nobody allowed here" in refused.stderr
    assert "fedvi --allow-code hello hello" in refused.stderr
    allowed = fedvi(tmp_path, "--allow-code", "hello", "hello")
    assert (allowed.returncode, allowed.stdout) == (0, "it ran\n")
    # A built-in command is never taken over.
    declare(site, commands={"status": "hello_command:hello"})
    assert "it ran" not in fedvi(tmp_path, "--allow-code", "status", "status", "--help").stdout
