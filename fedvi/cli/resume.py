"""`fedvi resume`: let a paused server hand out tasks again."""

from pathlib import Path

import click

from fedvi.cli import _remote
from fedvi.cli.status import show

__all__ = ["resume"]


@click.command()
@_remote.addressed
def resume(state: Path | None, server: str | None, tls: Path | None, as_json: bool) -> None:
    """Let a paused server hand out tasks again.

    \b
      fedvi resume .fedvi/trauma/server

    A run that failed goes on too, if its server still runs; it waits for every client anew.

    STATE and --server are those of `fedvi status`.

    Exit codes: 0 done; 3 no server answers; 4 not authorised; 6 the run is over.
    """
    from fedvi.transport._wire import admin_pb2 as pb

    with _remote.admin(state, server, tls) as stub:
        run = stub.ResumeRun(pb.ResumeRunRequest(), timeout=_remote.CALL_SECONDS)
    show(_remote.run_as_dict(run), as_json)
