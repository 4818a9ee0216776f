"""The grpc.health.v1 service, which load balancers, containers and `fedvi health` query."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fedvi.transport._wire import health_pb2 as pb

__all__ = ["Health"]


class Health:
    """The health service of one port; reports "not serving" until ``set(True)``.

    Args:
      services: the full names that may be queried, besides "" for the whole server.
    """

    def __init__(self, *services: str) -> None:
        self._services = ("", *services)
        self._serving = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        """Sets whether the server is serving; call it in the event loop."""
        self._serving = serving
        old, self._changed = self._changed, asyncio.Event()
        old.set()

    async def Check(self, request: Any, context: Any) -> Any:
        """Returns whether a service is serving."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._status(request.service)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Streams the status, now and at every change."""
        while True:
            changed = self._changed
            yield self._status(request.service)
            await changed.wait()

    def _status(self, service: str) -> Any:
        kinds = pb.HealthCheckResponse
        if service not in self._services:
            return pb.HealthCheckResponse(status=kinds.SERVICE_UNKNOWN)
        return pb.HealthCheckResponse(status=kinds.SERVING if self._serving else kinds.NOT_SERVING)
