"""`fedvi stop`: ends a run for good."""

from pathlib import Path

import click

from fedvi.cli import _remote
from fedvi.cli.status import show
from fedvi.server.watch.public_values import where

__all__ = ["stop"]


@click.command()
@_remote.addressed
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def stop(
    state: Path | None, server: str | None, tls: Path | None, as_json: bool, yes: bool
) -> None:
    """End a run for good: its clients are told, and its posterior is left as it is.

    \b
      fedvi stop .fedvi/trauma/server

    What was charged stays charged. To stop only the server, send it SIGTERM: it goes on when it is
    started again.

    A failed run could still go on with `fedvi resume`, and its clients keep what they need for that. If
    you stop the run, each client erases this once it hears. If the server has ended, start it again with
    a long --linger.

    STATE and --server are those of `fedvi status`.

    Exit codes: 0 done, or it was stopped before; 1 not confirmed; 3 no server answers; 4 not
    authorised; 6 the run is over, and did not fail.
    """
    from fedvi.transport._wire import admin_pb2 as pb

    with _remote.admin(state, server, tls) as stub:
        if not yes:
            run = stub.GetRun(pb.GetRunRequest(), timeout=_remote.CALL_SECONDS)
            told = _remote.run_as_dict(run)
            _remote.confirm(f"end {told['study']} at {where(told)} for good?")
        run = stub.StopRun(pb.StopRunRequest(), timeout=_remote.CALL_SECONDS)
    show(_remote.run_as_dict(run), as_json)
