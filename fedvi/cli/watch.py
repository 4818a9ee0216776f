"""`fedvi watch`: what happens at a running server, on a screen that follows it or line by line."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli import _remote
from fedvi.server.watch.public_values import printable

__all__ = ["watch"]


@click.command()
@_remote.addressed
@click.option(
    "--after",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Show only events after this number; implies --lines.",
)
@click.option(
    "--once", is_flag=True, help="Print what has happened so far, and end; implies --lines."
)
@click.option(
    "--live/--lines",
    "live",
    default=None,
    help="A screen that shows where the run stands, or a line for each event. "
    "[default: the screen on a terminal, lines elsewhere and with --json]",
)
def watch(
    state: Path | None,
    server: str | None,
    tls: Path | None,
    as_json: bool,
    after: int,
    once: bool,
    live: bool | None,
) -> None:
    """Follow what happens at a server until the run ends: who joined, left, is away or came back, each
    fold with who answered and who was missing, and what was refused.

    \b
      fedvi watch .fedvi/heart-disease/server
      fedvi watch .fedvi/heart-disease/server --once --json

    On a terminal it is a screen: where the run stands, what each client did and was charged, its budget,
    and the last events. It waits for a server that is restarted. Elsewhere, and with --lines, each event
    is a line. Events from before a restart are kept.

    STATE and --server are those of `fedvi status`. With --json each line is an object, and its
    `number` is what --after takes.

    Exit codes: 0 the run ended, or --once; 2 --live without a terminal; 3 no server answers; 4 not
    authorised; 130 the screen was left by Ctrl-C.
    """
    lines = as_json or once or after > 0
    if live and (lines or not _is_terminal()):
        raise errors.ConfigError(
            "--live is given "
            + ("beside --json, --once or --after" if lines else "and this is no terminal"),
            "leave out --live: each event is a line then",
        )
    if live or (live is None and not lines and _is_terminal()):
        from rich.console import Console

        from fedvi.cli import _live

        _live.follow(lambda: _remote.admin(state, server, tls), Console())
        return
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
    return f"{event.cursor:>6}  {moment}  {printable(event.kind):<8}  {printable(event.text)}"


def _is_terminal() -> bool:
    # Not rich's answer, which an environment variable can turn: a pipe gets lines.
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
