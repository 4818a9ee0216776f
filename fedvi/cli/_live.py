"""Draws the screen with which `fedvi watch` follows a run on a terminal.

It hears of events as they come, and asks where the run stands every second; a server that is started
again is found again.
"""

import collections
import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import grpc
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedvi import errors
from fedvi.cli import _remote
from fedvi.report import tables
from fedvi.server.watch.public_values import printable, remarks, run_as_dict, span, state_of, where

__all__ = ["Screen", "follow"]

_SECONDS = 1.0
# Many events at once are drawn together.
_AT_LEAST_SECONDS = 0.2
_OVER = ("stopped", "completed", "budget_exhausted", "failed")
# Lines of the log that are kept, and those that a small terminal shows at least.
_KEPT, _FEWEST = 200, 5
_MOST_REMARKS = 3
_METER = 10
# A text of the head takes at most so many lines, and a client's reason so many characters.
_MOST_LINES, _LONGEST_REASON = 3, 40

_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

Connect = Callable[[], AbstractContextManager[Any]]


def follow(connect: Connect, console: Console) -> None:
    """Shows a run until it ends; then leaves what it came to on the terminal.

    Args:
      connect: opens a stub of the AdminService; called anew after a failure.
      console: on a terminal.

    Raises:
      TransportError: no server answers at first. One that was there is waited for.
      FedviError: what the server refused.
      SystemExit: with 130 after an interrupt, 143 after SIGTERM; the terminal is as it was.
    """
    watched = _Watched()
    with connect() as stub:
        watched.ask(stub)
        if watched.is_over():
            watched.listen(stub)
    with _ending() as check:
        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:

            def draw() -> None:
                check()
                live.update(watched.screen(), refresh=True)

            draw()
            while not watched.is_over():
                try:
                    with connect() as stub:
                        while not watched.is_over():
                            watched.listen(stub, draw)
                            check()
                            watched.ask(stub)
                            draw()
                        watched.listen(stub)
                except errors.TransportError:
                    watched.lose()
                    draw()
                    time.sleep(_SECONDS)
        console.print(watched.screen(tall=False))


class _Watched:
    """What is known of a run, and since when nothing is."""

    def __init__(self) -> None:
        self._run: dict[str, Any] = {}
        self._events: deque[Any] = deque(maxlen=_KEPT)
        self._cursor, self._silent = 0, ""

    def is_over(self) -> bool:
        """Whether the run has ended; a server that only stopped may be started again."""
        return self._run["status"] in _OVER

    def ask(self, stub: Any) -> None:
        """Asks where the run stands."""
        from fedvi.transport._wire import admin_pb2 as pb

        run = stub.GetRun(pb.GetRunRequest(), timeout=_remote.CALL_SECONDS)
        self._run, self._silent = run_as_dict(run), ""

    def listen(self, stub: Any, draw: Callable[[], None] = lambda: None) -> None:
        """Hears what happens, for a second or until the run ends.

        Args:
          draw: called now and then.
        """
        from fedvi.transport._wire import admin_pb2 as pb

        drawn = time.monotonic()
        # As a stream, so that a server that ends with its run can tell of the end.
        request = pb.WatchRunRequest(cursor=self._cursor)
        try:
            for event in stub.WatchRun(request, timeout=_SECONDS):
                self._events.append(event)
                self._cursor = event.cursor
                if time.monotonic() - drawn > _AT_LEAST_SECONDS:
                    draw()
                    drawn = time.monotonic()
            # A server that stops ends the stream at once, and may be there for some more seconds.
            time.sleep(_AT_LEAST_SECONDS)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise

    def lose(self) -> None:
        """Notes that the server does not answer; after the end of the run it need not."""
        self._silent = self._silent or time.strftime("%H:%M:%S")
        told = next((event for event in reversed(self._events) if event.kind == "status"), None)
        said = "" if told is None else told.text.removeprefix("the run is ").replace(" ", "_")
        if said in _OVER:
            self._run, self._silent = {**self._run, "status": said, "awaited": []}, ""

    def screen(self, tall: bool = True) -> "Screen":
        """Returns what is known, to be drawn."""
        return Screen(self._run, tuple(self._events), self._silent, tall)


class Screen:
    """Where a run stands, within the width and height that there are.

    Args:
      run: as ``run_as_dict`` returns it.
      events: of the log, oldest first, each with time, kind and text.
      silent: since when the server does not answer; empty if it does.
      tall: whether to fill the height of the console; else all clients are shown, and few events.
    """

    def __init__(
        self, run: dict[str, Any], events: Sequence[Any], silent: str = "", tall: bool = True
    ) -> None:
        self._run, self._events, self._silent, self._tall = run, events, silent, tall

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        run, width = self._run, options.max_width
        head = Group(*self._head(width, _MOST_REMARKS))
        if not self._tall:
            clients = self._clients(run["clients"], width)
            yield Group(head, Text(), clients, Text(), *self._log(_FEWEST, width))
            return
        height = console.height
        for most in reversed(range(_MOST_REMARKS)):
            if 2 * len(console.render_lines(head, options)) > height:
                head = Group(*self._head(width, most))
        # Beside clients and events: the foot, and two lines between.
        left = height - len(console.render_lines(head, options)) - 3
        room = max(1, left - min(_FEWEST, len(self._events)))
        count, longest = min(len(run["clients"]), room), _LONGEST_REASON
        while True:
            rows = self._chosen(count)
            clients, hidden = self._clients(rows, width, longest), len(run["clients"]) - count
            taken = len(console.render_lines(clients, options)) + bool(hidden)
            if taken <= room or (count < 2 and not longest):
                break
            # Rather more clients than the whole reason of one.
            if longest:
                longest = longest // 2 if longest > 10 else 0
            else:
                count -= min(count - 1, max(1, (taken - room) // _MOST_LINES))
        parts: list[RenderableType] = [head, Text(), clients]
        if hidden:
            parts.append(
                _line(f"… and {hidden} more: {_tally(run['clients'], rows)}", width, "dim")
            )
        room = max(0, left - taken)
        log = self._log(room, width)
        parts += [Text(), *log, *[Text() for _ in range(room - len(log))]]
        parts.append(_line("Ctrl-C leaves this view; the run goes on", width, "dim"))
        yield Group(*parts)

    def _head(self, width: int, most: int) -> Iterator[Text]:
        run = self._run
        status = run["status"].replace("_", " ") + (f" ({run['reason']})" if run["reason"] else "")
        lines = _MOST_LINES * width
        title = Text(printable(run["study"]), style="bold")
        title.append(f": {_short(printable(status), lines - len(run['study']))}", "not bold")
        yield title
        secured = "mutual TLS" if run["tls"] == "mtls" else "clear text"
        yield _text(
            f"{run['schedule']}, {where(run)}, version "
            f"{run['version']}, {secured}, up {span(run['uptime_seconds'])}",
            lines,
        )
        over, planned = run["rounds"], run["rounds_planned"]
        if run["stage"] is not None:
            over, planned = run["stage"]["round"], run["stage"]["rounds"]
        if planned:
            yield Text(_meter(min(1.0, over / planned), max(1, width)))
        if run["gap"] is not None:
            yield _text(tables.gap_in_words(run["gap"]), lines)
        if run["awaited"]:
            left = run["deadline_seconds"]
            until = "" if left is None else f" for {span(left)}"
            names = ", ".join(run["awaited"])
            if len(run["awaited"]) > 8 or len(names) > lines - 2 * _MOST_LINES - len(until):
                names = str(len(run["awaited"]))
            yield _text(f"awaits {names}{until}", lines)
        for line in remarks(run)[:most]:
            yield _text(line, lines, "bold")
        if self._silent:
            silent = f"THE SERVER DOES NOT ANSWER since {self._silent}; asking again"
            yield _text(silent, lines, "bold")

    def _chosen(self, count: int) -> list[dict[str, Any]]:
        """Returns so many clients, in their order: first whoever is waited for."""
        rows = self._run["clients"]

        def interest(row: dict[str, Any]) -> int:
            if row["silent"] or row["name"] in self._run["awaited"]:
                return 0
            return 1 if row["state"] == "away" else 2

        names = {row["name"] for row in sorted(rows, key=interest)[:count]}
        return [row for row in rows if row["name"] in names]

    def _clients(
        self, rows: Sequence[dict[str, Any]], width: int, longest: int = _LONGEST_REASON
    ) -> Table:
        run, budget = self._run, self._run["epsilon_budget"]
        spent = "ε charged" if budget is None else f"ε charged of {tables.number(budget)}"
        names = ["client", "state", "folded", "charged", spent, "", "last heard"]
        cells = []
        for row in rows:
            # What is wrong with a client stands behind its reason.
            state = state_of({**row, "reason": _short(row["reason"], longest)})
            state += " ←" if row["name"] in run["awaited"] else ""
            epsilon, seen = row["epsilon"], row["seen_seconds"]
            share = None if not budget or epsilon is None else min(1.0, epsilon / budget)
            meter = "" if share is None else _meter(share, _METER)
            cells.append(
                [
                    printable(row["name"]),
                    printable(state),
                    f"{row['visits']} of {run['rounds_planned']}",
                    str(row["charged"]),
                    tables.bound(epsilon),
                    meter,
                    "–" if seen is None else f"{span(seen)} ago",
                ]
            )
        words = (
            max(map(len, [*name.split(), *column]))
            for name, *column in zip(names, *cells, strict=True)
        )
        if cells and sum(words) + 2 * len(names) > width:
            for line in (names, *cells):
                del line[-2]  # the meter: only where nothing wraps
        table = tables.grid(names, cells, "", ("client", "state"))
        table.box, table.padding, table.pad_edge = None, (0, 2, 0, 0), False
        for column in table.columns[:2]:
            column.min_width = 8
        return table

    def _log(self, most: int, width: int) -> list[Text]:
        events = (
            self._events[len(self._events) - most :] if most < len(self._events) else self._events
        )
        return [
            _line(
                f"{time.strftime('%H:%M:%S', time.localtime(event.time))}  {event.kind:<8}  {event.text}",
                width,
            )
            for event in events
        ]


def _line(text: str, width: int, style: str = "") -> Text:
    """Makes one line, however long the text; what came from outside cannot steer the terminal."""
    return _text(text, width, style, no_wrap=True)


def _text(text: str, most: int, style: str = "", no_wrap: bool = False) -> Text:
    return Text(printable(_short(text, most)), style=style, no_wrap=no_wrap, overflow="fold")


def _short(text: str, most: int) -> str:
    """Cuts a text between words, so that no number loses digits.

    >>> _short("away since 12:30", 13), _short("away since 12:30", 16)
    ('away since …', 'away since 12:30')
    """
    if len(text) <= most or not most:
        return text[:most]
    start, blank, _ = text[: most - 1].rpartition(" ")
    return (start if blank else text[: most - 2]) + " …"


def _meter(share: float, width: int) -> str:
    """Draws a share of 1 in characters; above 0 it is never empty.

    >>> _meter(0.5, 10), _meter(0.001, 4)
    ('█████░░░░░', '█░░░')
    """
    full = min(width, max(1 if share > 0.0 else 0, round(share * width)))
    return "█" * full + "░" * (width - full)


def _tally(rows: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]]) -> str:
    """Counts the states of those who are not shown."""
    names = {row["name"] for row in shown}
    counts = collections.Counter(row["state"] for row in rows if row["name"] not in names)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


@contextlib.contextmanager
def _ending() -> Iterator[Callable[[], None]]:
    """Ends the process with the usual codes once the terminal is as it was; yields what asks for it.

    An exception that a signal raises within gRPC may be dropped there, or leave a lock behind that the
    channel waits for when it is closed. So a signal is kept, and asked for at every frame, within a second
    or so. A second one raises at once, for a server that hangs.
    """
    came: list[int] = []

    def ended(number: int, _: Any) -> None:
        came.append(_CODES[signal.Signals(number)])
        if len(came) > 1:
            sys.exit(came[0])

    def asked() -> None:
        if came:
            sys.exit(came[0])

    before = {number: signal.signal(number, ended) for number in _CODES}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
