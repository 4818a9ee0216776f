"""With which code a command ends: what `fedvi --help` and the guide say, and what commands do."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "troubleshooting.md"


def test_the_guide_the_help_and_the_errors_have_the_same_codes() -> None:
    told = CliRunner().invoke(main, ["--help"]).stdout.partition("Exit codes:")[2]
    helped = {int(code) for code in re.findall(r"(?:^|;)\s+(\d+)\s", told.partition("\n\n")[0])}
    section = GUIDE.read_text("utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    guided = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    kinds = [getattr(errors, name) for name in errors.__all__]
    raised = {kind.exit_code for kind in kinds if isinstance(kind, type)}
    assert helped == guided == {0, 130} | raised


def interrupted_question(*_: Any) -> None:
    # As click.confirm and click.prompt do it.
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise click.Abort() from None


@pytest.mark.parametrize(
    ("ends", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (interrupted_question, 130, "stopped by Ctrl-C"),
        (click.Abort(), 1, "Aborted!"),
        (errors.RunFailed("it failed"), 6, "error: it failed"),
    ],
)
def test_a_command_ends_with_the_code_of_what_ended_it(
    ends: Any, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: Any) -> None:
        if isinstance(ends, BaseException):
            raise ends
        ends()

    monkeypatch.setattr("fedvi.cli.check.load_study", end)
    done = CliRunner().invoke(main, ["check", "study.toml"])
    assert (done.exit_code, done.stderr.strip()) == (code, words)


def test_what_breaks_while_the_interpreter_ends_does_not_change_the_code() -> None:
    # As threads of a compilation do, which nobody can stop.
    program = (
        "import atexit, os, fedvi.cli.check as command; from fedvi.cli.main import main\n"
        "def end(_): raise KeyboardInterrupt\n"
        "command.load_study = end; atexit.register(os.abort); print('said'); main()"
    )
    arguments = [sys.executable, "-c", program, "check", "study.toml"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "said\n")
