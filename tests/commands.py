"""Commands, run in the process of a test."""

from typing import Any

from click.testing import CliRunner, Result

from fedvi.cli.main import main

__all__ = ["invoked", "succeeded"]


def invoked(*arguments: object, **options: Any) -> Result:
    """Runs a command; a traceback is never an answer."""
    given = [str(argument) for argument in arguments]
    return CliRunner().invoke(main, given, catch_exceptions=False, **options)


def succeeded(*arguments: object, code: int = 0) -> Result:
    """Runs a command, which must end with this exit code."""
    result = invoked(*arguments)
    assert result.exit_code == code, result.output
    return result
