"""Connects operators' commands to a server: by the socket in its folder, or over the network.

Kept light: these commands start within 0.3 s, and import neither JAX nor NumPy.
"""

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import grpc

from fedvi import errors
from fedvi.cli._flags import FOLDER
from fedvi.server.rpc.sockets import SOCKET, socket_address
from fedvi.server.watch.public_values import run_as_dict
from fedvi.transport import status

__all__ = [
    "CALL_SECONDS",
    "addressed",
    "admin",
    "calling",
    "confirm",
    "connected",
    "only_state",
    "run_as_dict",
    "runs",
    "states",
]

CALL_SECONDS = 10.0


def addressed(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the arguments that say which server is meant."""
    decorators = (
        click.argument("state", required=False, type=FOLDER),
        click.option(
            "--server",
            metavar="HOST:PORT",
            help="The server's --admin address, instead of its state folder.",
        ),
        click.option(
            "--tls",
            type=FOLDER,
            help="With --server: the folder that `fedvi enroll --role admin` made.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def confirm(question: str) -> None:
    """Asks whether to go on; where nobody can answer, names the flag that does.

    Raises:
      click.Abort: the answer is no, or there is none.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            click.echo("\nnot confirmed; where nobody can answer, give --yes", err=True)
        raise


@contextlib.contextmanager
def connected(state: Path | None, server: str | None, tls: Path | None) -> Iterator[grpc.Channel]:
    """Opens a channel to a server, and turns what it refuses into the errors of this package.

    Raises:
      ConfigError: the options contradict one another, no folder is given and not exactly one is found
        here, or the server speaks TLS and no certificate is given.
      TransportError: there is no server, or it speaks no TLS and this command does.
      FedviError: what the server answered.
    """
    if server is None:
        if tls is not None:
            raise errors.ConfigError("--tls is given without --server", "add --server HOST:PORT")
        channel = grpc.insecure_channel(_socket_of(state if state is not None else only_state()))
    elif state is not None:
        raise errors.ConfigError("--server is given beside a state folder", "give one of the two")
    elif tls is None:
        channel = grpc.insecure_channel(server)
    else:
        # Certificates cost 0.1 s of imports.
        from fedvi.transport import identity

        channel = grpc.secure_channel(server, identity.channel_credentials(tls))
    with channel:
        try:
            with calling():
                yield channel
        except errors.TransportError as error:
            if server is None:
                raise
            from fedvi.transport import probe

            raise probe.mismatch(server, tls) or error from None


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Turns a failed call into the error that the server raised."""
    try:
        yield
    except grpc.RpcError as error:
        raise status.from_status(error) from None


@contextlib.contextmanager
def admin(state: Path | None, server: str | None, tls: Path | None) -> Iterator[Any]:
    """Yields a stub of the AdminService; see ``connected``.

    Raises:
      ConfigError: also where another machine would be called without certificates, which no server
        listens for: somebody else would answer.
    """
    if server is not None and tls is None:
        from fedvi.transport import identity

        if not identity.is_loopback(server):
            raise errors.ConfigError(
                f"--server {server} is on another machine, and --tls is not given",
                "give --tls, the folder that `fedvi enroll --role admin` made",
            )
    from fedvi.transport._wire import admin_pb2_grpc

    with connected(state, server, tls) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


def runs(folder: Path) -> bool:
    """Says whether some server listens on the socket in a state folder; a killed one leaves it there."""
    path = socket_address(folder).removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(CALL_SECONDS)
        try:
            trial.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # there is one, which takes no calls at the moment, or none of ours
    return True


def states() -> list[Path]:
    """Returns the servers' folders below the current one, where `fedvi server` makes them by default."""
    names = (SOCKET, "state.sqlite")
    return sorted(
        {path.parent for name in names for path in Path(".fedvi").glob(f"*/server/{name}")}
    )


def only_state() -> Path:
    """Returns the one server's folder below the current one.

    Raises:
      ConfigError: there is none, or there are several.
    """
    found = states()
    if len(found) == 1:
        return found[0]
    raise errors.ConfigError(
        "no state folder is given, and "
        + (f"{len(found)} are found" if found else "none is found")
        + " in .fedvi/*/server",
        "name the server's state folder, or its --server address",
    )


def _socket_of(folder: Path) -> str:
    if not runs(folder):
        raise errors.TransportError(
            f"no server runs on {folder}: nobody listens on its {SOCKET}",
            "name the folder of a server that runs on this machine, or use --server; of one that has "
            "ended, `fedvi status` shows what it saved; of a simulation, `fedvi report` shows all",
        )
    return socket_address(folder)
