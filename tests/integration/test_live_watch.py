"""`fedvi watch` on a terminal: a screen of 80 columns that follows a run, and gives the terminal back."""

import contextlib
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from fedvi.cli import _live, status
from fedvi.cli.main import main
from fedvi.federation.messages import NextTask, Offer, Submit
from fedvi.report import tables
from fedvi.server import app as apps
from fedvi.server.core.run_events import RunEvent
from fedvi.transport._wire import admin_pb2 as pb
from tests.servers import answer, greeting, make_spec, running

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
CODE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def client(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": "working",
        "visits": 1,
        "charged": 2,
        "reason": "",
        "seen_seconds": 3.0,
        "usual_seconds": 3.0,
        "silent": False,
        "epsilon": 0.5,
        **fields,
    }


def run(**fields: Any) -> dict[str, Any]:
    return {
        "study": "heart",
        "status": "running",
        "reason": "",
        "tls": "mtls",
        "schedule": "synchronous",
        "version": 3,
        "rounds": 3,
        "rounds_planned": 4,
        "stage": None,
        "gap": 1.25,
        "uptime_seconds": 300.0,
        "awaited": ["north"],
        "deadline_seconds": 60.0,
        "epsilon_budget": 2.0,
        "clients": [client("north"), client("south")],
        **fields,
    }


def event(text: str, number: int = 1) -> pb.RunEvent:
    return pb.RunEvent(cursor=number, time=1_700_000_000.0 + number, kind="folded", text=text)


def drawn(screen: _live.Screen, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(screen)
    return console.export_text(styles=True).splitlines()


def plain(lines: list[str]) -> list[str]:
    return [CODE.sub("", line).rstrip() for line in lines]


def test_it_shows_the_stage_of_a_script_and_how_far_that_is():
    stage = {"number": 2, "stages": 3, "schedule": "synchronous", "round": 1, "rounds": 2}
    shown = run(schedule="scripted", rounds=0, rounds_planned=40, stage=stage)
    lines = plain(drawn(_live.Screen(shown, [])))
    text = "\n".join(lines)
    assert "scripted, stage 2 of 3, synchronous, round 1 of 2, version 3, mutual TLS" in text
    assert "█" * 40 + "░" * 40 in text


def test_it_shows_the_run_its_clients_and_what_happened_within_80_columns():
    lines = plain(drawn(_live.Screen(run(), [event(f"line {n}", n) for n in range(40)])))
    text = "\n".join(lines)
    for words in (
        "heart: running",
        "synchronous, round 3 of 4, version 3, mutual TLS, up 5 min",
        "gap 1.2 posterior sd: the last round's largest move of a mean, or missed aim",
        "awaits north for 60 s",
        "ε charged of 2",
        "0.5  ██░░░░░░░░",
        "1 of 4",
        "3 s ago",
        "line 39",
        "Ctrl-C leaves this view",
    ):
        assert words in text
    assert text.index("line 38") < text.index("line 39")
    bar = next(line for line in lines if set(line) == {"█", "░"})
    assert (len(bar), bar.count("█")) == (80, 60)


@pytest.mark.parametrize("count", [0, 1, 10, 200])
@pytest.mark.parametrize("size", [(80, 24), (80, 50), (60, 20), (200, 60)])
def test_it_fills_the_screen_and_no_more(count, size):
    width, height = size
    clients = [client(f"site-{n:03}", state="away", reason="left " * 30) for n in range(count)]
    events = [event("word " * 100, n) for n in range(100)]
    awaited = [row["name"] for row in clients]
    screen = _live.Screen(run(clients=clients, awaited=awaited), events, silent="12:00:00")
    lines = plain(drawn(screen, width, height))
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert sum("folded" in line for line in lines) >= 4
    assert "DOES NOT ANSWER since 12:00:00" in "\n".join(lines)


WIDE = run(
    status="failed",
    reason="st-elsewhere-hospital cannot go on: its ledger would exceed 1.98765 at delta 1.25e-05",
    rounds=117,
    rounds_planned=200,
    gap=12345.678,
    epsilon_budget=0.98765,
    awaited=["st-elsewhere-hospital", "north"],
    clients=[
        client(
            "st-elsewhere-hospital",
            state="away",
            reason="lost its link 31 times in 1234 s, last at 14:05:37",
            silent=True,
            epsilon=0.98712,
            visits=117,
            charged=118,
            seen_seconds=432.0,
        ),
        client("north", silent=True, seen_seconds=300.0, charged=117, visits=117),
        client("south", state="away", reason="left: epsilon 0.999149 at delta 1e-05, not 0.5"),
    ],
)
LONG = "version 117  round 117/200  north, st-elsewhere-hospital  damping 0.51234  gap 0.123456 sd"


def numbers(text: str) -> set[str]:
    return {word.strip(".,;:()'{}[]\"") for word in text.split() if word[0].isdigit()}


@pytest.mark.parametrize("height", [24, 30, 60])
@pytest.mark.parametrize("tall", [True, False])
def test_a_wide_state_takes_more_lines_and_no_number_loses_digits(height, tall):
    screen = _live.Screen(WIDE, [event(LONG)] * 9, silent="12:00:00", tall=tall)
    lines = plain(drawn(screen, 80, height))
    assert max(map(len, lines)) <= 80
    assert len(lines) == height or not tall
    text = "\n".join(lines)
    first = next(line for line in lines if line.startswith("st-elsew") and "of 200" in line)
    assert re.search(r"117 of 200 +118 +0\.9872 +7 min ago$", first)
    assert text.count("SILENT") >= 2
    known = numbers(f"{WIDE} {LONG} 1.2e+04 5 7 60 0.9872 0.9877")
    clock = re.compile(r"\d\d:\d\d:\d\d")
    assert {word for word in numbers(text) - known if not clock.fullmatch(word)} == set()


def test_status_says_of_the_gap_what_the_screen_says_within_80_columns(monkeypatch, capsys):
    monkeypatch.setattr(tables, "console", lambda: Console(width=80, force_terminal=True))
    status.show({**WIDE, "server": "running", "fedvi": "1", "unpriced": None}, False)
    lines = plain(capsys.readouterr().out.splitlines())
    assert max(map(len, lines)) <= 80
    said = "gap 1.2e+04 posterior sd: the last round's largest move of a mean, or missed aim"
    assert said in lines
    assert said in plain(drawn(_live.Screen(WIDE, [])))


def test_of_many_clients_those_that_are_awaited_come_first():
    clients = [client(f"site-{n:03}", state="idle") for n in range(100)]
    screen = _live.Screen(run(clients=clients, awaited=["site-099"]), [])
    text = "\n".join(plain(drawn(screen)))
    assert "site-099" in text
    shown = len(re.findall(r"site-\d+ ", text.partition("ε charged")[2]))
    assert f"… and {100 - shown} more: {100 - shown} idle" in text


def test_what_came_from_outside_cannot_steer_the_terminal():
    bad = "\x1b[2J\x07[bold]\u202e\n"
    hostile = run(
        study=bad, reason=bad, schedule=bad, awaited=[bad], clients=[client(bad, reason=bad)]
    )
    for tall in (True, False):
        lines = drawn(_live.Screen(hostile, [event(bad)], tall=tall), 120)
        text = "\n".join(lines)
        assert "[2J" in text
        assert "[bold]" in text  # as it is, and no markup
        assert not {"\x07", "\u202e"} & set(text)
        assert not re.search(r"\x1b\[(?![0-9;]*m)", text)  # colours of our own at most


# In a terminal.


# A new session's terminal; and Ctrl-C as people's shells leave it, however these tests were started.
BEGIN = (
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from fedvi.cli.main import main; main()"
)


class Terminal:
    """`fedvi watch` in a terminal of 80 by 24, and all that it wrote."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.written = b""
        self._file, end = pty.openpty()
        ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        # Not pty.fork: JAX has threads where other tests have imported it.
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, "watch", *arguments],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(end)

    @property
    def frame(self) -> bytes:
        """What was drawn last as a whole."""
        return self.written.rsplit(b"\x1b[H", 2)[-2]

    def read(self, until: bytes | Callable[[], bool] | None = None) -> None:
        """Reads until something was written, or is so, or to the end."""
        last = time.monotonic() + 20.0
        is_there = until if callable(until) else lambda: until is not None and until in self.written
        while not is_there():
            assert time.monotonic() < last, self.written[-3000:]
            if not select.select([self._file], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(self._file, 65536)
            except OSError:  # the other end is gone
                return
            if not part:
                return
            self.written += part

    def type(self, keys: bytes) -> None:
        os.write(self._file, keys)

    def end(self) -> int:
        """Reads to the end, and returns the exit code."""
        self.read()
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._file)


@contextlib.contextmanager
def watching(folder: Path, **environment: str) -> Iterator[Terminal]:
    terminal = Terminal(str(folder), **environment)
    try:
        yield terminal
    finally:
        terminal.close()


def round_of(links: dict[str, Any]) -> None:
    """Has all clients answer once."""
    offers = {name: link.handle(NextTask(name)) for name, link in links.items()}
    for seed, (name, offer) in enumerate(offers.items()):
        assert isinstance(offer, Offer)
        links[name].handle(Submit(name, offer.task.task_id, answer(offer.task, seed)))


def restored(written: bytes) -> bool:
    """Whether the other screen was left, and the cursor is to be seen."""
    return (
        written.count(ENTER) == written.count(LEAVE) == 1
        and written.rfind(LEAVE) > written.find(ENTER)
        and written.rfind(SHOW) > written.rfind(HIDE)
    )


def test_the_screen_follows_a_run_to_its_end_and_leaves_what_it_came_to(tmp_path):
    spec = make_spec()
    # The server is gone soon after its run: a view that asks once a second must still hear of the end.
    with running(spec, tmp_path, linger_seconds=1.5) as server, watching(tmp_path) as terminal:
        terminal.read(b"round 0 of 2")
        assert ENTER in terminal.written
        links = {name: server.link(spec, name) for name in spec.clients}
        for name, link in links.items():
            link.handle(greeting(spec, name))
        round_of(links)
        terminal.read(b"round 1 of 2")
        round_of(links)
        assert terminal.end() == 0
    assert restored(terminal.written)
    after = terminal.written.rpartition(LEAVE)[2].decode()
    assert "test: completed" in CODE.sub("", after)
    assert "version 2  round 2/2" in after
    # Never cleared in between: that would flicker.
    assert b"\x1b[2J" not in terminal.written
    assert b"Traceback" not in terminal.written


@pytest.mark.parametrize(("number", "code"), [(None, 130), (signal.SIGTERM, 143)])
def test_whoever_leaves_gets_the_terminal_back_and_the_run_goes_on(tmp_path, number, code):
    with running(make_spec(), tmp_path) as server, watching(tmp_path) as terminal:
        terminal.read(b"Ctrl-C leaves")
        if number is None:
            terminal.type(b"\x03")
        else:
            terminal.process.send_signal(number)
        assert terminal.end() == code
        assert server.app._coordinator.state.status == "running"
    assert restored(terminal.written)
    assert b"Traceback" not in terminal.written
    assert b"Aborted" not in terminal.written


def test_a_server_that_went_away_is_waited_for(tmp_path):
    with contextlib.ExitStack() as closing:
        first = closing.enter_context(contextlib.ExitStack())
        first.enter_context(running(make_spec(), tmp_path))
        terminal = closing.enter_context(watching(tmp_path))
        terminal.read(b"Ctrl-C leaves")
        first.close()
        terminal.read(b"DOES NOT ANSWER since")
        closing.enter_context(running(make_spec(), tmp_path))
        terminal.read(lambda: b"DOES NOT ANSWER" not in terminal.frame)
        assert b"test\x1b[0m: running" in terminal.frame
        terminal.type(b"\x03")
        assert terminal.end() == 130
    assert restored(terminal.written)


def test_what_is_no_terminal_gets_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with running(make_spec(), tmp_path) as server:
        told(server, "north\x1b[2J said hello")
        done = CliRunner().invoke(main, ["watch", str(tmp_path), "--once"])
        lines = CliRunner().invoke(main, ["watch", str(tmp_path), "--lines", "--once"])
        live = CliRunner().invoke(main, ["watch", str(tmp_path), "--live"])
    assert re.fullmatch(
        r" {5}1  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  refused   north\ufffd\[2J said hello\n",
        done.output,
    )
    assert lines.output == done.output
    assert live.exit_code == 2
    assert "--live is given and this is no terminal" in live.output


def told(server: Any, text: str) -> None:
    """Has something told, as if a client had caused it."""
    app: apps.App = server.app
    app._run_log.tell(RunEvent("refused", "", text))


@pytest.mark.parametrize("option", ["--json", "--once", "--after=3"])
def test_a_screen_has_no_lines(tmp_path, option):
    done = CliRunner().invoke(main, ["watch", str(tmp_path), "--live", option])
    assert done.exit_code == 2
    assert "--live is given beside --json, --once or --after" in done.output


def test_a_dumb_terminal_gets_lines_and_no_server_is_said_at_once(tmp_path):
    with running(make_spec(), tmp_path) as server:
        told(server, "north said hello")
        with watching(tmp_path, TERM="dumb") as terminal:
            terminal.read(b"north said hello")
            assert b"\x1b" not in terminal.written
    with watching(tmp_path) as terminal:
        assert terminal.end() == 3
    assert ENTER not in terminal.written
    assert b"no server runs on" in terminal.written
