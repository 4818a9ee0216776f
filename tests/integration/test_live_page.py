"""The server's page in a real browser, over a real run: it follows by itself, and shows text as text."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedvi import errors
from fedvi.federation.messages import Goodbye, Hello, NextTask, Offer, Submit
from fedvi.privacy import accountants, events
from fedvi.privacy.ledger import Budget, Header
from fedvi.report import tables
from fedvi.server.app import Settings
from fedvi.server.core.protocol import ServerSpec
from fedvi.server.store.durable import SqliteServerStore
from tests import browser as browsers
from tests.servers import Running, encoded, greeting, make_spec, running, values

if TYPE_CHECKING:
    from playwright.sync_api import Page

browser, page = browsers.browser, browsers.page

COST = events.Gaussian(12.0)
BUDGET = Budget(2.0, 1e-5, accountants.pld("substitute"))
EVENT = json.dumps(events.to_json(COST), sort_keys=True, separators=(",", ":"))
HOSTILE = "<img src=//attacker.example/x onerror=alert(1)>"


def protected(*names: str, rounds: int = 6) -> ServerSpec:
    """A run with a budget, whose answers cost what a private solver's do."""
    promise = {"planned": events.repeat(COST, rounds), "epsilon": 2.0, "delta": 1e-5}
    return make_spec(
        names,
        rounds=rounds,
        costs=dict.fromkeys(names, COST),
        budget=BUDGET,
        headers={
            name: Header(
                "test", "ab12", name, "record", "substitute", "message", True, accountant="pld",
                **promise,
            )
            for name in names
        },
    )  # fmt: skip


class Sites:
    """Clients that answer a round when they are told to."""

    def __init__(self, server: Running, spec: ServerSpec) -> None:
        self.links = {name: server.link(spec, name) for name in spec.clients}
        for name, link in self.links.items():
            link.handle(greeting(spec, name))
        self._seed = 0

    def answer(self) -> None:
        tasks = {}
        for name, link in self.links.items():
            offer = link.handle(NextTask(name))
            assert isinstance(offer, Offer)
            tasks[name] = offer.task
        for name, task in tasks.items():
            self._seed += 1
            answer = encoded(values(task, self._seed), EVENT)
            self.links[name].handle(Submit(name, task.task_id, answer))


@contextlib.contextmanager
def shown(folder: Path, *names: str, **settings) -> Iterator[tuple[Running, Sites]]:
    spec = protected(*names)
    with running(spec, folder, page="127.0.0.1:0", linger_seconds=0.0, **settings) as server:
        yield server, Sites(server, spec)


def address(server: Running) -> str:
    return f"http://{server.addresses.page}/"


def test_the_page_follows_a_run_by_itself_and_asks_nobody_else(
    tmp_path: Path, page: "Page"
) -> None:
    seen = browsers.watch(page)
    with shown(tmp_path, "south", "north") as (server, sites):
        loads = []
        page.on("load", lambda: loads.append(page.url))
        page.goto(address(server))
        said = page.locator("main [role=status]")
        assert said.inner_text() == "running, round 0 of 6, version 0"
        # What a reader has before her stays the same elements, though their text changes.
        kept = [page.query_selector(name) for name in ("main [role=status]", "h2", "tbody th")]
        sites.answer()
        page.get_by_text("running, round 1 of 6, version 1").wait_for()
        sites.answer()
        page.get_by_text("running, round 2 of 6, version 2").wait_for()
        assert page.title() == "test: round 2 of 6, running"
        assert all(element.evaluate("e => e.isConnected") for element in kept)
        assert len(loads) == 1
        # ε of two releases of each, once it is priced: in the table, in words and in the plot.
        twice = BUDGET.accountant.epsilon(events.repeat(COST, 2), 1e-5)
        page.locator("figcaption", has_text="all 2 clients: ε = ").wait_for()
        page.locator(f"svg.plot text:text-is('{tables.bound(twice)}')").wait_for()
        rows = page.locator("tbody").nth(1).locator("tr")
        assert rows.count() == 2
        assert "south, north" in rows.first.inner_text()
        assert page.locator("table.events").get_by_text("version 2", exact=False).count() == 1
        assert browsers.overflow(page) == 0
        page.set_viewport_size({"width": 390, "height": 844})
        assert browsers.overflow(page) == 0
        # No column is out of sight: each cell says which it is of.
        hidden = "found => found.filter(box => box.scrollWidth > box.clientWidth).length"
        assert page.locator(".scroll").evaluate_all(hidden) == 0
        named = "found => found.map(cell => getComputedStyle(cell, '::before').content)"
        for head in ("State", "Answers folded", "Releases charged", "Last heard"):
            assert f'"{head}"' in page.locator("tbody td").evaluate_all(named)
    assert seen.complaints == []
    assert {urllib.parse.urlsplit(asked).netloc for asked in seen.fetched} == {
        server.addresses.page
    }


def test_hostile_names_and_errors_are_text(tmp_path: Path, page: "Page") -> None:
    seen, dialogs = browsers.watch(page), []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    with shown(tmp_path, HOSTILE, "north") as (server, sites):
        page.goto(address(server))
        with pytest.raises(errors.ProtocolError):
            sites.links["north"].handle(Hello("north", "<b>x</b>"))
        sites.answer()
        sites.links[HOSTILE].handle(Goodbye(HOSTILE))
        page.locator("table.events").get_by_text("read another study: digest <b>x</b>,").wait_for()
        page.locator("table.events").get_by_text(f"{HOSTILE} is away: left", exact=True).wait_for()
        assert page.locator("tbody th", has_text=HOSTILE).count() == 1
        assert page.locator("img").count() == 0
    assert dialogs == []
    assert seen.complaints == []
    assert not [a for a in seen.fetched if "attacker" in a]


def test_it_says_so_when_the_server_is_gone(tmp_path: Path, page: "Page") -> None:
    with shown(tmp_path, "south", "north") as (server, _):
        page.goto(address(server))
        assert page.locator("#silence").inner_text() == ""
    page.locator("#silence", has_text="The server has not answered since").wait_for()
    assert page.locator("h1").inner_text() == "test"


def test_a_reader_of_the_screen_finds_her_way(tmp_path: Path, page: "Page") -> None:
    with shown(tmp_path, "south", "north") as (server, sites):
        sites.answer()
        page.goto(address(server))
        heads = page.locator("h1, h2").evaluate_all("found => found.map(h => h.tagName)")
        assert heads == ["H1", "H2", "H2", "H2", "H2"]
        assert page.locator("table").count() == page.locator("table > caption").count() == 3
        assert page.locator("th:not([scope])").count() == 0
        # Whoever has no mouse can scroll a wide table: each is a region with a name.
        regions = page.locator("div.scroll[role=region][tabindex='0']")
        assert regions.count() == 3
        page.locator("svg.plot").wait_for()
        described = page.locator("svg.plot").get_attribute("aria-labelledby").split()
        assert all(page.locator(f"#{name}").text_content() for name in described)
        assert page.locator("html").get_attribute("lang") == "en-GB"


def test_without_a_script_the_page_reloads_itself(tmp_path: Path, browser) -> None:
    with shown(tmp_path, "south", "north") as (server, _):
        context = browser.new_context(java_script_enabled=False)
        plain = context.new_page()
        plain.goto(address(server))
        assert plain.locator("main [role=status]").inner_text().startswith("running")
        refresh = plain.locator("meta[http-equiv=refresh]")
        assert refresh.get_attribute("content") == "10"
        context.close()


def test_looking_changes_nothing_and_shows_what_operators_see(tmp_path: Path) -> None:
    with shown(tmp_path, "south", "north") as (server, sites):
        sites.answer()
        before = server.app._coordinator.state
        for method in ("POST", "PUT", "DELETE"):
            request = urllib.request.Request(address(server), b"pause", method=method)
            with pytest.raises(urllib.error.HTTPError, match="405") as caught:
                urllib.request.urlopen(request)
            caught.value.close()
        with urllib.request.urlopen(f"{address(server)}run.json") as reply:
            run = json.load(reply)
        assert server.app._coordinator.state is before
    assert (run["version"], run["rounds"], run["epsilon_budget"]) == (1, 1, 2.0)
    assert run["folds"][0]["clients"] == ["south", "north"]
    assert {row["name"]: row["charged"] for row in run["clients"]} == {"south": 1, "north": 1}
    assert [event["kind"] for event in run["events"]] == ["folded", "joined", "joined"]
    # Names, counts and public figures: no number of a posterior, no factor, no answer.
    assert set(run) == {
        "server", "study", "digest", "fedvi", "status", "reason", "tls", "schedule", "version",
        "rounds", "rounds_planned", "stage", "gap", "damping", "uptime_seconds", "awaited",
        "deadline_seconds", "let_go", "epsilon_budget", "unpriced", "clients", "time", "promise", "members",
        "folds", "folds_earlier", "spending", "events",
    }  # fmt: skip


def test_a_restarted_server_shows_what_came_before(tmp_path: Path) -> None:
    spec = protected("south", "north")
    with contextlib.closing(SqliteServerStore(tmp_path, spec)) as store:
        with running(spec, tmp_path, store) as server:
            Sites(server, spec).answer()
        with running(spec, tmp_path, store, page="127.0.0.1:0") as server:

            def told() -> dict:
                with urllib.request.urlopen(f"{address(server)}run.json") as reply:
                    return json.load(reply)

            until = time.monotonic() + 20.0
            while not (run := told())["spending"] or run["clients"][0]["epsilon"] is None:
                assert time.monotonic() < until
                time.sleep(0.2)
    once = BUDGET.accountant.epsilon(COST, 1e-5)
    assert run["spending"] == [{"clients": ["south", "north"], "points": [[1, once]]}]
    assert [row["epsilon"] for row in run["clients"]] == [once, once]
    assert [event["kind"] for event in run["events"]] == ["folded", "joined", "joined"]


def test_slow_readers_hold_up_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvi.server.watch.page._Handler.timeout", 60.0)
    with shown(tmp_path, "south", "north") as (server, sites):
        host, port = server.addresses.page.split(":")
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                lazy = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
                lazy.sendall(b"GET /run.json HTTP/1.1\r\n")  # and no more
            began = time.monotonic()
            sites.answer()
            sites.answer()
            assert time.monotonic() - began < 30.0
            assert server.app._coordinator.state.version == 2
        assert threading.active_count() < 80


@pytest.mark.parametrize(
    "where", ["0.0.0.0:0", "[::]:0", "fedvi.example.org:7480", "10.0.0.1:7480"]
)
def test_it_listens_on_this_machine_alone(tmp_path: Path, where: str) -> None:
    for insecure in (False, True):
        with pytest.raises(
            errors.ConfigError, match="can be reached from other machines"
        ) as caught:
            Settings(tmp_path, "test", page=where, insecure=insecure).check()
        assert "ssh -L" in caught.value.hint


@pytest.mark.nightly
def test_a_port_that_is_taken_is_an_error_before_the_run(tmp_path: Path) -> None:
    with shown(tmp_path / "a", "south", "north") as (server, _):
        taken = server.addresses.page
        with (
            pytest.raises(errors.TransportError, match=r"--page .* cannot be bound"),
            running(make_spec(), tmp_path / "b", page=taken),
        ):
            pytest.fail("it ran")
        with urllib.request.urlopen(address(server)) as reply:
            assert reply.status == 200


@pytest.mark.nightly
def test_the_command_serves_it_says_where_and_refuses_other_machines(tmp_path: Path) -> None:
    study, state = "examples/heart-disease/study.toml", str(tmp_path)
    command = [sys.executable, "-c", "from fedvi.cli.main import main; main()", "server", study]
    command += ["--state", state, "--listen", "127.0.0.1:0", "--log-format", "json", "--page"]
    done = subprocess.run([*command, "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--page 0.0.0.0:0 can be reached from other machines" in done.stderr
    with subprocess.Popen([*command, "127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = map(json.loads, process.stderr)
            ready = next(line for line in lines if line["kind"] == "ready")
            assert f"to be watched at http://{ready['page']}" in ready["message"]
            with urllib.request.urlopen(f"http://{ready['page']}/") as reply:
                assert b"<h1>heart-disease</h1>" in reply.read()
        finally:
            process.terminate()
        assert process.wait(20.0) == 0
