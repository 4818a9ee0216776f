"""`fedvi health`: does a server serve? For containers, scripts and load balancers' exec probes."""

import json
import time
from pathlib import Path

import click

from fedvi import errors
from fedvi.cli import _remote

__all__ = ["health"]


# A file of this name is touched whenever the server answered a client; `fedvi.client.app` says so, whose
# import takes longer than this command may.
_HEARD = "heard"
# A client at rest is answered every 25 seconds, one at work every third of a lease.
_SILENT_SECONDS = 90.0


@click.command()
@_remote.addressed
@click.option(
    "--client",
    is_flag=True,
    help="STATE is a client's: say whether its server answered it in the last 90 seconds.",
)
def health(
    state: Path | None, server: str | None, tls: Path | None, as_json: bool, client: bool
) -> None:
    """Ask a server whether it serves, by the standard grpc.health.v1.

    \b
      fedvi health .fedvi/trauma/server
      fedvi health --client .fedvi/trauma/north

    STATE is the --state folder of a server on this machine. Here --server may also be its address for
    clients, and --tls may hold any certificate of its authority. With --client, STATE is the folder of
    a client on this machine, and no server is called.

    Exit codes: 0 it serves; 3 it does not, or does not answer.
    """
    if client:
        _client(state, as_json)
        return
    from fedvi.transport._wire import health_pb2 as pb
    from fedvi.transport._wire import health_pb2_grpc

    with _remote.connected(state, server, tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(pb.HealthCheckRequest(), timeout=_remote.CALL_SECONDS)
    word = pb.HealthCheckResponse.ServingStatus.Name(reply.status).lower().replace("_", " ")
    if as_json:
        click.echo(json.dumps({"status": word}))
    else:
        click.echo(word)
    if reply.status != pb.HealthCheckResponse.SERVING:
        raise errors.TransportError(f"the server is {word}", "it is starting or stopping")


def _client(state: Path | None, as_json: bool) -> None:
    """Says how long ago the server answered a client on this machine."""
    if state is None:
        raise errors.ConfigError("--client is given without STATE", "name the client's --state")
    try:
        silent = max(0.0, time.time() - (state / _HEARD).stat().st_mtime)
    except FileNotFoundError:
        raise errors.TransportError(
            f"no server has answered the client of {state}", "is it running, and is --server right?"
        ) from None
    if silent > _SILENT_SECONDS:
        raise errors.TransportError(
            f"the server last answered {silent:.0f} s ago, expected at most {_SILENT_SECONDS:.0f} s",
            "the client waits for it by itself; `fedvi doctor` says what is wrong",
        )
    click.echo(json.dumps({"status": "serving"}) if as_json else "serving")
