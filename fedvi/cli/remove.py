"""`fedvi remove`: divides a client's factor out of a run, which goes on without it."""

from pathlib import Path

import click

from fedvi.cli import _remote
from fedvi.cli.status import show
from fedvi.server.watch.public_values import where

__all__ = ["remove"]


@click.command()
@_remote.addressed
@click.option("--client", required=True, metavar="NAME", help="The client to remove.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(
    state: Path | None,
    server: str | None,
    tls: Path | None,
    as_json: bool,
    client: str,
    yes: bool,
) -> None:
    """Remove a client from a running server's run, and take what it contributed out of the posterior.

    \b
      fedvi remove .fedvi/trauma/server --client north

    The client gets no more tasks. An answer that it still sends is charged and not used. What it was
    charged stays charged: its releases have been seen. The others get the new posterior with their next
    task. It is for good: do not remove a client that may come back. If the study has a deadline, the run
    goes on without it by itself.

    A study that publishes sums alone keeps no client's part, and refuses; `fedvi ca revoke` leaves a client
    out of later sums. One with masks that sites may miss can begin, or go on, without a client that is
    removed while keys of any client are missing, and `fedvi admit` takes it in later.

    STATE and --server are those of `fedvi status`.

    Exit codes: 0 done; 1 not confirmed; 2 there is no such client, or too few would be left; 3 no
    server answers; 4 not authorised; 6 the run is over.
    """
    from fedvi.transport._wire import admin_pb2 as pb

    with _remote.admin(state, server, tls) as stub:
        if not yes:
            run = stub.GetRun(pb.GetRunRequest(), timeout=_remote.CALL_SECONDS)
            for_now = run.let_go == "remove_for_now"
            how = " (`fedvi admit` can take it in later)" if for_now else " for good"
            told = _remote.run_as_dict(run)
            _remote.confirm(f"remove {client} from {told['study']} at {where(told)}{how}?")
        request = pb.RemoveClientRequest(client=client)
        run = stub.RemoveClient(request, timeout=_remote.CALL_SECONDS)
    show(_remote.run_as_dict(run), as_json)
