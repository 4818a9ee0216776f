"""An HTTP server that answers few callers at once, and none of them for long."""

import contextlib
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

__all__ = ["PLACES", "SILENT_SECONDS", "WHOLE_SECONDS", "Places", "Served"]

PLACES = 16
"""The most connections at once; each serves one answer, and a browser opens six at most."""

SILENT_SECONDS = 5.0
"""The longest silence of a caller; handlers set it as their ``timeout``."""

WHOLE_SECONDS = 20.0
"""The longest duration of a connection."""

_SURE_SECONDS = 1.0
"""How long a caller keeps its place where others wait for one; an answer takes far less."""

_LOOK_SECONDS = 0.25
"""How often the serving thread checks whether to stop, and cuts slow callers."""


class Places(socketserver.ThreadingMixIn, HTTPServer):
    """Answers each connection in a thread of its own, at most ``PLACES`` at once.

    Args:
      port: 0 takes a free one.
    """

    closing = False
    daemon_threads = True
    block_on_close = False
    # With fewer, simultaneous callers wait a second for their connection.
    request_queue_size = 64

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.host = host
        self._places = threading.BoundedSemaphore(PLACES)
        self._open: dict[socket.socket, float] = {}
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        # HTTPServer would query DNS for the machine's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, if a place is free, or if an earlier caller takes too long."""
        if not self._places.acquire(blocking=False) and not self._makes_room():
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 2\r\n\r\n")
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can start
            self._leave(request)
            self.shutdown_request(request)

    def _makes_room(self) -> bool:
        """Cuts the oldest connection, if it is old, and takes its place."""
        oldest, since = min(list(self._open.items()), key=lambda item: item[1], default=(None, 0.0))
        if oldest is None or time.monotonic() - since < _SURE_SECONDS:
            return False
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return self._places.acquire(timeout=_LOOK_SECONDS)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def service_actions(self) -> None:
        """Cuts slow connections; ``serve_forever`` calls it regularly."""
        self.cut(WHOLE_SECONDS)

    def cut(self, seconds: float) -> None:
        """Cuts connections that are older than ``seconds``."""
        late = time.monotonic() - seconds
        for request, since in list(self._open.items()):
            if since <= late:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: the caller went away. Handlers log their own errors where they happen."""

    def _leave(self, request: Any) -> None:
        if self._open.pop(request, None) is not None:
            self._places.release()


class Served:
    """Runs a server in a thread until closed.

    Attributes:
      address: HOST:PORT.
    """

    def __init__(self, server: Places, host: str, name: str) -> None:
        self._server, self.address = server, f"{host}:{server.server_port}"
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_LOOK_SECONDS,), name=name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops serving, and cuts open connections."""
        self._server.closing = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut(0.0)
