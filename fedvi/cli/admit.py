"""`fedvi admit`: takes a client into a study of masked sums that began without it."""

from pathlib import Path

import click

from fedvi.cli import _remote
from fedvi.cli.status import show
from fedvi.server.watch.public_values import where

__all__ = ["admit"]


@click.command()
@_remote.addressed
@click.option("--client", required=True, metavar="NAME", help="The client that joins.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def admit(
    state: Path | None,
    server: str | None,
    tls: Path | None,
    as_json: bool,
    client: str,
    yes: bool,
) -> None:
    """Take a client into a running server's run that began without it: one that the study names, and that
    was removed before it had sent the keys for its masks.

    \b
      fedvi admit .fedvi/trauma/server --client north

    When the round is over all sites agree on keys anew, and compare the digest of the roster again. A site
    that is away keeps the others waiting then: start it, or remove it. The client takes part in the rounds
    that are left. It is for studies of masked sums whose rounds clients may miss; where each client's
    factor is folded, `fedvi server --extend` adds clients.

    STATE and --server are those of `fedvi status`.

    Exit codes: 0 done; 1 not confirmed; 2 there is no such client, or the study is another kind; 3 no
    server answers; 4 not authorised; 6 the run is over.
    """
    from fedvi.transport._wire import admin_pb2 as pb

    with _remote.admin(state, server, tls) as stub:
        if not yes:
            run = stub.GetRun(pb.GetRunRequest(), timeout=_remote.CALL_SECONDS)
            told = _remote.run_as_dict(run)
            _remote.confirm(
                f"admit {client} to {told['study']} at {where(told)}, for which all sites "
                "agree on keys anew?"
            )
        request = pb.AdmitClientRequest(client=client)
        run = stub.AdmitClient(request, timeout=_remote.CALL_SECONDS)
    show(_remote.run_as_dict(run), as_json)
