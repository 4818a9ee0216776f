"""The link within one process, which simulations use instead of a network."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from fedvi.federation.messages import Reply, Request

__all__ = ["Link", "MemoryLink"]


@runtime_checkable
class Link(Protocol):
    """Carries a request to the coordinator and brings back its reply."""

    def handle(self, request: Request) -> Reply:
        """Sends one request and waits for its reply."""


class MemoryLink:
    """Passes each request to a coordinator's ``handle``.

    Requests and replies are immutable, and payloads are bytes, so no mutable state is shared.
    """

    def __init__(self, handle: Callable[[Request], Reply]) -> None:
        self._handle = handle

    def handle(self, request: Request) -> Reply:
        """Passes the request on."""
        return self._handle(request)
