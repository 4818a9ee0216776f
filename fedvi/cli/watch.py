"""`fedvi watch`: what happens at a running server, line by line."""

import json
import time
from pathlib import Path
from typing import Any

import click

from fedvi.cli import _remote

__all__ = ["watch"]


@click.command()
@_remote.addressed
@click.option(
    "--after",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Only what came after this number.",
)
@click.option("--once", is_flag=True, help="Print what has happened so far, and end.")
def watch(
    state: Path | None,
    server: str | None,
    tls: Path | None,
    as_json: bool,
    after: int,
    once: bool,
) -> None:
    """Print what happened at a server, and what happens, until the run ends: who joined, left, is
    away or came back, each fold with who answered and who was missing, and what was refused.

    The log is in the server's state, so that it reaches back before a restart.

    STATE and --server are those of `fedvi status`. With --json each line is an object, and its
    `number` is what --after takes.

    Exit codes: 0 the run ended, or --once; 3 no server answers; 4 not authorised.
    """
    from fedvi.transport._wire import admin_pb2 as pb

    with _remote.admin(state, server, tls) as stub:
        for event in stub.WatchRun(pb.WatchRunRequest(cursor=after, once=once)):
            click.echo(json.dumps(_content(event), ensure_ascii=False) if as_json else _line(event))


def _content(event: Any) -> dict[str, Any]:
    return {
        "number": event.cursor,
        "time": round(event.time, 3),
        "kind": event.kind,
        "client": event.client,
        "text": event.text,
    }


def _line(event: Any) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    # What came from outside may hold what steers a terminal.
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in event.text)
    return f"{event.cursor:>6}  {moment}  {event.kind:<8}  {text}"
