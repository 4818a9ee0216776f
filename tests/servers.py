"""A server in a thread of the test's process, and what talks to it over real gRPC on the loopback."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from fedvi import expfam
from fedvi.federation import damping, schedules
from fedvi.federation.messages import Done, Hello, NextTask, Offer, Payload, Reply, Submit
from fedvi.privacy import events
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Header
from fedvi.privacy.release import disclose
from fedvi.server import app as apps
from fedvi.server.core import protocol
from fedvi.store.memory import MemoryServerStore
from fedvi.transport import codec
from fedvi.transport._wire import admin_pb2_grpc, federation_pb2_grpc, health_pb2_grpc
from fedvi.transport.grpc import GrpcLink
from fedvi.updates.base import finish_natural

COST = events.Unprotected("q")


def make_spec(
    clients: tuple[str, ...] = ("south", "north"),
    size: int = 2,
    kind: str = "synchronous",
    rounds: int = 2,
    **fields: Any,
) -> protocol.ServerSpec:
    """A run without protection, over ``size`` coordinates."""
    family = expfam.full_gaussian(size)
    spec = protocol.ServerSpec(
        study_digest="ab12",
        clients=clients,
        family=family,
        prior=family.isotropic(2.0),
        schedule=getattr(schedules, kind)(rounds),
        step_rule=damping.adaptive(),
        finish=dict.fromkeys(clients, finish_natural),
        costs=dict.fromkeys(clients, COST),
        headers={name: header(name) for name in clients},
    )
    return spec._replace(**fields)


def header(client: str) -> Header:
    return Header("test", "ab12", client, "record", "substitute", "message", False)


def greeting(spec: protocol.ServerSpec, name: str) -> Hello:
    """A Hello of a client that was charged nothing yet."""
    return Hello(name, spec.study_digest, ledgers.anchor(ledgers.open_ledger(spec.headers[name])))


def values(task: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """A factor of its own for each seed, quick to make in any size."""
    generator = np.random.default_rng(seed)
    return {
        "h": np.asarray(task.posterior.h) + generator.standard_normal(task.posterior.h.shape),
        "J": np.asarray(task.posterior.J) + np.eye(len(task.posterior.h)) * generator.uniform(),
    }


def answer(task: Any, seed: int = 0, **changed: np.ndarray) -> Payload:
    """What a client would send."""
    return codec.encode(disclose({**values(task, seed), **changed}, "q"))


def encoded(arrays: dict[str, np.ndarray], event: str | None = None) -> Payload:
    """What no client of ours would send: arrays of any kind, with the right digest."""
    tensors = tuple(
        codec.Tensor(name, array.dtype.newbyteorder("<").str, array.shape, array.tobytes())
        for name, array in sorted(arrays.items())
    )
    if event is None:
        event = codec.encode(disclose({"x": np.zeros(1)}, "q")).event
    return Payload(tensors, event, codec.digest(event, tensors))


class Running:
    """A server that runs, and channels to it."""

    def __init__(self, app: apps.App, closing: contextlib.ExitStack) -> None:
        self.app, self.addresses = app, apps.Addresses("", "", None, None)
        self.outcome: apps.Outcome | None = None
        self._closing = closing

    def channel(self, address: str, credentials: Any = None, options: Any = None) -> grpc.Channel:
        return self._closing.enter_context(
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )

    def federation(
        self, credentials: Any = None, options: Any = None
    ) -> federation_pb2_grpc.FederationServiceStub:
        channel = self.channel(self.addresses.listen, credentials, options)
        return federation_pb2_grpc.FederationServiceStub(channel)

    def admin(self) -> admin_pb2_grpc.AdminServiceStub:
        return admin_pb2_grpc.AdminServiceStub(self.channel(self.addresses.socket))

    def health(self) -> health_pb2_grpc.HealthStub:
        return health_pb2_grpc.HealthStub(self.channel(self.addresses.socket))

    def link(self, spec: protocol.ServerSpec, name: str, **options: Any) -> GrpcLink:
        options = {"delays": (0.01, 0.1), "give_up_after": 20.0, **options}
        link = GrpcLink(self.addresses.listen, name, spec.prior, **options)
        self._closing.callback(link.close)
        return link

    def work(
        self, spec: protocol.ServerSpec, name: str, seed: int = 0, answers: int | None = None
    ) -> list[Reply]:
        """Does what a client does, to the end of the run or so many answers; returns the replies."""
        link, replies = self.link(spec, name), []
        replies.append(link.handle(greeting(spec, name)))
        while answers is None or answers > 0:
            reply = link.handle(NextTask(name))
            replies.append(reply)
            match reply:
                case Offer(task):
                    sent = link.handle(Submit(name, task.task_id, answer(task, seed)))
                    replies.append(sent)
                    answers = None if answers is None else answers - 1
                case Done():
                    break
        return replies


@contextlib.contextmanager
def running(
    spec: protocol.ServerSpec,
    folder: Path,
    store: Any = None,
    on_end: Callable[..., None] | None = None,
    beside: Callable[..., None] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Runs a server until the block is left, or its run has ended."""
    ready = threading.Event()

    def on_ready(addresses: apps.Addresses) -> None:
        server.addresses = addresses
        ready.set()

    app = apps.App(
        spec,
        store if store is not None else MemoryServerStore(),
        apps.Settings(folder, "test", **{"listen": "127.0.0.1:0", **settings}),
        journal=store if hasattr(store, "record_event") else None,
        on_ready=on_ready,
        on_end=on_end,
        beside=beside,
    )
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            server.outcome = asyncio.run(app.run())
        except BaseException as error:
            failures.append(error)
            ready.set()

    with contextlib.ExitStack() as closing:
        server = Running(app, closing)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert ready.wait(20.0)
            if not failures:
                yield server
        finally:
            app.stop()
            thread.join(20.0)
            assert not thread.is_alive()
        if failures:
            raise failures[0]


def wait_for(happened: Callable[[], bool], seconds: float = 60.0) -> float:
    """Waits until something is so, and returns how long it took."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began
