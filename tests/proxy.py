"""A proxy that loses, doubles, delays and reorders whole calls, at random as a seed says."""

import asyncio
import collections
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

FAULTS = ("delayed", "doubled", "reordered", "dropped")
_SHARE = 0.2
_HEALTH = "/grpc.health.v1"


class FaultyProxy(grpc.GenericRpcHandler):
    """Passes calls on as bytes, whatever their kind; a fifth of them meets each of the faults.

    Args:
      target: HOST:PORT of the server.
      seed: of what befalls whom.
    """

    def __init__(self, target: str, seed: int) -> None:
        self.target = target
        self.counts: collections.Counter[str] = collections.Counter()
        # Apart, so that the n-th call's fate depends on the seed alone.
        self._fates, self._random = random.Random(seed), random.Random(seed)
        self._late: set[asyncio.Task[Any]] = set()

    def service(self, details: Any) -> Any:
        method = details.method

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            # All of a call is here before its fate is decided.
            parts = [part async for part in requests]
            for reply in await self._answer(method, parts, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(handle)

    async def serve(self, ready: Any) -> None:
        """Runs until it is cancelled; calls ``ready`` with its address."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready(f"127.0.0.1:{port}")
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._late:
                task.cancel()
            await server.stop(0.0)

    async def _answer(self, method: str, parts: list[bytes], context: Any) -> list[bytes]:
        if method.startswith(_HEALTH):
            return await self._passed(method, parts, context)
        fates = {fault for fault in FAULTS if self._fates.random() < _SHARE}
        self.counts.update(["calls", *fates])
        if "delayed" in fates:
            await asyncio.sleep(self._random.uniform(0.0, 0.2))
        if "doubled" in fates:
            again = self._passed_late(method, parts)
            if self._random.random() < 0.5:
                self._later(again)
            else:
                await self._quickly(again)
        if "reordered" in fates:
            # It arrives after what the client does next.
            self._later(self._passed_late(method, parts))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "held back")
        if "dropped" in fates:
            if self._random.random() < 0.5:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way there")
            await self._quickly(self._passed_late(method, parts, 0.0))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way back")
        return await self._passed(method, parts, context)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _quickly(self, work: Any) -> None:
        """Waits for a call that nobody will hear of, unless it waits for work at the server."""
        self._later(task := asyncio.ensure_future(work))
        await asyncio.wait([task], timeout=0.3)

    async def _passed_late(
        self, method: str, parts: list[bytes], longest: float = 0.4
    ) -> list[bytes]:
        await asyncio.sleep(self._random.uniform(0.0, longest))
        with contextlib.suppress(grpc.RpcError):
            return await self._call(method, parts, 60.0)
        return []

    async def _passed(self, method: str, parts: list[bytes], context: Any) -> list[bytes]:
        try:
            return await self._call(method, parts, context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
            raise

    async def _call(self, method: str, parts: list[bytes], seconds: float | None) -> list[bytes]:
        async with grpc.aio.insecure_channel(self.target) as channel:
            call = channel.stream_stream(method)(iter(parts), timeout=seconds)
            return [reply async for reply in call]


@contextlib.contextmanager
def faulty(target: str, seed: int) -> Iterator[tuple[FaultyProxy, str]]:
    """Runs a proxy in a thread; yields it and its address."""
    proxy, ready = FaultyProxy(target, seed), threading.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()

    def note(found: str) -> None:
        address.append(found)
        ready.set()

    task = loop.create_task(proxy.serve(note))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        while left := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(left))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20.0)
        yield proxy, address[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20.0)
