"""`fedvi pause`: stop a running server from handing out tasks, for a while."""

from pathlib import Path

import click

from fedvi.cli import _remote
from fedvi.cli.status import show

__all__ = ["pause"]


@click.command()
@_remote.addressed
def pause(state: Path | None, server: str | None, tls: Path | None, as_json: bool) -> None:
    """Stop a running server from handing out tasks, for a while.

    \b
      fedvi pause .fedvi/trauma/server

    Clients are told to wait. Answers to tasks that were handed out are still folded, and no turn is
    skipped. `fedvi resume` goes on.

    STATE and --server are those of `fedvi status`.

    Exit codes: 0 done; 3 no server answers; 4 not authorised; 6 the run is over.
    """
    from fedvi.transport._wire import admin_pb2 as pb

    with _remote.admin(state, server, tls) as stub:
        run = stub.PauseRun(pb.PauseRunRequest(), timeout=_remote.CALL_SECONDS)
    show(_remote.run_as_dict(run), as_json)
