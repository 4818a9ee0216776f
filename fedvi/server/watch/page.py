"""Serves the read-only page over HTTP.

The page has its own port, since browsers do not speak gRPC. It has no authentication. So it listens on
this machine alone, answers only requests that address it by a loopback name, and offers no method that
changes anything. Remote operators use `ssh -L`, or `fedvi watch --server` with their certificate.
"""

import contextlib
import errno
import importlib.resources
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from fedvi import errors
from fedvi.server import logs
from fedvi.server.watch.places import SILENT_SECONDS, Places, Served
from fedvi.transport import identity

__all__ = ["Page"]

# How long gathered contents are reused.
_FRESH_SECONDS = 0.5

_FILES = {
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}

# The page loads only its own style and script, and no other page may frame it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# A request with a body is refused, but this much of the body is read, so that the refusal arrives.
_BODY_BYTES = 1 << 16


class Page(Served):
    """Serves the page until closed, in threads of its own, so that slow readers block nobody.

    Args:
      address: HOST:PORT on this machine; port 0 takes a free one.
      content: returns the contents as plain values; called in these threads.
      render: turns the contents into HTML.

    Raises:
      TransportError: the address cannot be bound.
    """

    def __init__(
        self,
        address: str,
        content: Callable[[], dict[str, Any]],
        render: Callable[[dict[str, Any]], str],
    ) -> None:
        host, _, port = address.rpartition(":")
        try:
            server = _Server(host.strip("[]"), int(port), _Snapshot(content), render)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise errors.TransportError(
                f"--page {address} cannot be bound: {os.strerror(error.errno or 0)}",
                "another program listens there: choose another port, or 0 for a free one"
                if taken
                else "expected HOST:PORT, of this machine",
            ) from error
        super().__init__(server, host, "page")


class _Snapshot:
    """Caches the contents for ``_FRESH_SECONDS``, however many callers ask."""

    def __init__(self, content: Callable[[], dict[str, Any]]) -> None:
        self._content, self._lock = content, threading.Lock()
        self._until, self._kept = 0.0, {}  # type: tuple[float, dict[str, Any]]

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._kept = self._content()
                self._until = time.monotonic() + _FRESH_SECONDS
            return self._kept


class _Server(Places):
    def __init__(
        self,
        host: str,
        port: int,
        content: Callable[[], dict[str, Any]],
        render: Callable[[dict[str, Any]], str],
    ) -> None:
        self.content, self.render = content, render
        super().__init__(host, port, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    # One request per connection, so that idle connections hold no place.
    protocol_version = "HTTP/1.0"
    timeout = SILENT_SECONDS

    def do_GET(self) -> None:
        """Answers with the content of a path."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _is_here(hosts[0].strip()):
            # DNS rebinding: a foreign page whose name resolves to this machine could read the answer.
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST,
                "open this page by a loopback address, such as http://localhost; from another "
                "machine through ssh -L\n",
            )
        elif self.path == "/":
            self._made(lambda: self.server.render(self.server.content()), "text/html")
        elif self.path == "/run.json":
            self._made(
                lambda: json.dumps(_finite(self.server.content()), indent=1) + "\n",
                "application/json",
            )
        elif self.path in _FILES:
            name, kind = _FILES[self.path]
            asset = importlib.resources.files("fedvi.server").joinpath("assets", name)
            self._send(HTTPStatus.OK, kind, asset.read_bytes())
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is / and /run.json\n")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses a request without quoting it."""
        # The base class calls this for methods without a do_METHOD here, and for invalid HTTP.
        if code != HTTPStatus.NOT_IMPLEMENTED:
            self._refuse(HTTPStatus(code), "this is no request that can be answered\n")
            return
        with contextlib.suppress(ValueError, OSError):
            length = int(self.headers.get("Content-Length", "0"))
            self.rfile.read(max(0, min(length, _BODY_BYTES)))
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page is read only\n", Allow="GET, HEAD")

    def version_string(self) -> str:
        """Hides software versions from callers."""
        return "fedvi"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Keeps requests out of the log."""

    def _made(self, make: Callable[[], str], kind: str) -> None:
        try:
            body = make().encode("utf-8", "replace")
        except Exception as error:
            # The text of an unexpected error may hold anything, so the caller gets none of it.
            if not self.server.closing:
                logs.log("error", f"the page failed: {type(error).__name__}", logging.ERROR)
            self._refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says where\n"
            )
            return
        self._send(HTTPStatus.OK, f"{kind}; charset=utf-8", body)

    def _refuse(self, status: HTTPStatus, text: str, **headers: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text.encode(), **headers)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, **headers: str) -> None:
        self.close_connection = True
        self.send_response(status)
        length = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in {**_HEADERS, **length, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_here(host: str) -> bool:
    """Whether a Host header names this machine's loopback."""
    # To a browser `unix:7480` is a machine named unix, not a socket.
    return not host.lower().startswith("unix:") and identity.is_loopback(host)


def _finite(value: Any) -> Any:
    """Replaces non-finite numbers by null, since JSON has none."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
