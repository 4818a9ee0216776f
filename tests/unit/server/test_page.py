"""The page over HTTP: who is answered, what is refused, and that nobody can hold it up."""

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fedvi import errors
from fedvi.server import logs
from fedvi.server.watch import page, places

CONTENT: dict[str, Any] = {"study": "test", "gap": float("inf"), "clients": [{"epsilon": 0.5}]}


@contextlib.contextmanager
def serving(content=lambda: CONTENT, render=lambda run: f"<p>{run['study']}</p>") -> Iterator[Any]:
    running = page.Page("127.0.0.1:0", content, render)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def served() -> Iterator[page.Page]:
    with serving() as running:
        yield running


def ask(served, path="/", method="GET", hosts=("localhost",), body=None):
    """Sends one request; returns status, headers and body."""
    connection = http.client.HTTPConnection(served.address, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for host in hosts:
            connection.putheader("Host", host)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()


def test_there_is_a_page_its_style_its_script_and_the_same_as_json(served):
    status, headers, body = ask(served)
    assert (status, headers["Content-Type"], body) == (
        200,
        "text/html; charset=utf-8",
        b"<p>test</p>",
    )
    assert ask(served, "/page.css")[1]["Content-Type"].startswith("text/css")
    assert b"DOMParser" in ask(served, "/page.js")[2]
    status, headers, body = ask(served, "/run.json")
    assert headers["Content-Type"].startswith("application/json")
    # JSON has no infinity.
    assert json.loads(body) == {"study": "test", "gap": None, "clients": [{"epsilon": 0.5}]}
    assert ask(served, method="HEAD")[::2] == (200, b"")


@pytest.mark.parametrize(
    "path", ["/index.html", "/page.py", "/assets/page.css", "/../app.py", "/?a=b", "*"]
)
def test_there_is_nothing_else(served, path):
    assert ask(served, path)[0] == 404


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PAUSE"]
)
def test_it_is_read_only(served, method):
    status, headers, body = ask(served, "/", method, body=b"x" * 5000)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert b"read only" in body


@pytest.mark.parametrize(
    "hosts",
    [
        ("attacker.example",),
        ("attacker.example:7480",),
        ("localhost.attacker.example",),
        ("127.0.0.1.attacker.example",),
        ("0.0.0.0",),
        ("unix:7480",),
        ("localhost", "attacker.example"),
        ("",),
        (),
    ],
)
def test_a_name_that_was_made_to_lead_here_is_refused(served, hosts):
    for path in ("/", "/run.json", "/page.js"):
        status, _, body = ask(served, path, hosts=hosts)
        assert status == 421
        assert b"test" not in body
        assert b"attacker" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:7480"])
def test_a_tunnel_may_have_another_port(served, host):
    assert ask(served, hosts=(host,))[0] == 200


def test_every_answer_forbids_the_browser_all_that_the_page_does_not_need(served):
    for path, hosts in (("/", ("localhost",)), ("/nowhere", ("localhost",)), ("/", ("x.example",))):
        headers = ask(served, path, hosts=hosts)[1]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Server"] == "fedvi"
        assert "Access-Control-Allow-Origin" not in headers


def test_what_is_no_http_is_refused_and_not_repeated(served):
    for line in (b"hello <b>\r\n\r\n", b"GET / HTTP/9.9 <b>\r\n\r\n", b"GET /" + b"a" * 70_000):
        with socket.create_connection(served.address.split(":"), timeout=10) as caller:
            caller.sendall(line)
            caller.shutdown(socket.SHUT_WR)
            reply = b""
            with contextlib.suppress(ConnectionResetError):
                while part := caller.recv(65536):
                    reply += part
        assert b"<b>" not in reply
        assert b" 200 " not in reply
    assert ask(served)[0] == 200


def test_what_goes_wrong_is_told_by_its_kind_alone(caplog):
    def content():
        raise ValueError("a record: 31415")

    logging.getLogger(logs.LOGGER).propagate = True
    with serving(content) as served:
        status, _, body = ask(served)
    assert status == 500
    assert b"31415" not in body
    assert "the page failed: ValueError" in caplog.text
    assert "31415" not in caplog.text


def test_who_says_nothing_holds_up_nobody(served, monkeypatch):
    monkeypatch.setattr(places, "WHOLE_SECONDS", 0.6)
    monkeypatch.setattr(page._Handler, "timeout", 60.0)  # a slow one may send a byte now and then
    host, port = served.address.split(":")
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((host, port), timeout=10))
            for _ in range(places.PLACES)
        ]
        silent[0].sendall(b"GET / HT")
        wait_for(lambda: ask(served)[0] == 503)  # all places are taken
        # Those who take too long are cut off, whatever they have sent.
        wait_for(lambda: ask(served)[0] == 200)
        assert silent[0].recv(10) == b""


def test_who_does_not_read_is_cut_off_and_the_page_closes_at_once(monkeypatch):
    monkeypatch.setattr(page._Handler, "timeout", 60.0)
    with serving(render=lambda run: "x" * (64 << 20)) as served:
        host, port = served.address.split(":")
        with socket.create_connection((host, port), timeout=10) as lazy:
            lazy.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert lazy.recv(8)
            assert ask(served, "/page.css")[0] == 200
            began = time.monotonic()
            served.close()
            assert time.monotonic() - began < 20.0
    wait_for(lambda: not [t for t in threading.enumerate() if "process_request" in t.name])


def test_what_is_shown_is_gathered_once_for_all_who_ask():
    calls = []

    def content():
        calls.append(time.monotonic())
        return CONTENT

    with serving(content) as served:
        asking = [threading.Thread(target=ask, args=(served,)) for _ in range(8)]
        began = time.monotonic()
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(10.0)
        took = time.monotonic() - began
    assert len(calls) <= 1 + took / page._FRESH_SECONDS


def test_a_port_that_is_taken_is_said_to_be(served):
    with pytest.raises(
        errors.TransportError, match=r"--page 127\.0\.0\.1:\d+ cannot be bound"
    ) as caught:
        page.Page(served.address, lambda: CONTENT, str)
    assert "choose another port" in caught.value.hint
    assert ask(served)[0] == 200


def wait_for(happened, seconds=10.0):
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
