"""Runs the server as a process: opens its ports, serves until the run ends, and shuts down.

clients ──► door ──► access ──► Federation ──► dispatcher ──► coordinator ──► store
operators ──► door ──► access ──► Admin ────────┘ (one thread: the single writer)
"""

import asyncio
import contextlib
import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import Reply, Request
from fedvi.server import logs
from fedvi.server.coordinator import Coordinator, ServerStore
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.server.rpc import door
from fedvi.server.rpc.access import CALLS_A_SECOND, CALLS_AT_ONCE, Access
from fedvi.server.rpc.admin import Admin, describe
from fedvi.server.rpc.calls import Calls, Reading
from fedvi.server.rpc.dispatcher import Dispatcher
from fedvi.server.rpc.door import Door
from fedvi.server.rpc.health import Health
from fedvi.server.rpc.service import Federation
from fedvi.server.rpc.sockets import SOCKET, check_address, socket_address
from fedvi.server.store.journal import Journal, MemoryJournal
from fedvi.server.store.uploads import Full, Uploads
from fedvi.server.watch.metrics import Metrics
from fedvi.server.watch.page import Page
from fedvi.server.watch.page_content import Contents
from fedvi.server.watch.page_html import check_installed, render
from fedvi.server.watch.run_log import RunLog
from fedvi.transport import identity
from fedvi.transport._wire import admin_pb2_grpc, federation_pb2_grpc, health_pb2_grpc
from fedvi.transport.bundle import MESSAGE_LIMIT, PAYLOAD_LIMIT
from fedvi.transport.roster import Roster

__all__ = ["Addresses", "App", "Outcome", "Settings", "payload_limit", "serve"]

# How long calls in progress may take to end when the server stops; requests for work end at once.
_GRACE_SECONDS = 5.0

# gRPC's sockets in the state folder, to which the door passes what clients and operators send.
_DOORS = ("door.sock", "door2.sock")

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.max_concurrent_streams", 64),
    # What comes compressed stays so, and is refused: 4 kB may unfold to gigabytes.
    ("grpc.per_message_decompression", 0),
    # A TLS handshake takes a few round trips.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Two servers on one port would each see half of the calls.
    ("grpc.so_reuseport", 0),
    # Clients ping every 30 s while a call is open, so that no middlebox drops the connection.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def payload_limit(spec: ServerSpec) -> int:
    """Returns the most bytes that an answer to a study may have, with room to spare.

    A release is about as large as the natural parameters, with at most 8 bytes a number. Twice that plus
    64 KiB refuses no honest solver, and keeps oversized uploads off the disk.
    """
    size = sum(np.asarray(leaf).nbytes for leaf in tree.leaves(spec.family.zeros()))
    return min(PAYLOAD_LIMIT, 2 * size + 2**16)


@dataclass(frozen=True)
class Settings:
    """Operational settings of a server; they do not affect results.

    Attributes:
      folder: the state folder, which also holds uploads and the operators' socket.
      study: its name.
      listen: HOST:PORT for clients; port 0 takes a free one.
      tls: the server's folder of certificates; None for plaintext.
      roster: the file of admitted certificates; if None, the one in ``tls``.
      insecure: allows plaintext beyond this machine.
      admin: HOST:PORT for remote operators, who need admin certificates; None to disable.
      metrics: HOST:PORT of the metrics for Prometheus; None to disable.
      page: HOST:PORT, on this machine, of the read-only page; None to disable.
      linger_seconds: how long an ended run waits for clients to hear of it.
      payload_limit: the most bytes of an answer.
      calls_a_second: the most calls a second from one client.
      connections: the most connections at once; None for as many as the limit of open files allows.
      connections_per_address: the most from one address that are not admitted yet.
    """

    folder: Path
    study: str
    listen: str = "127.0.0.1:7443"
    tls: Path | None = None
    roster: Path | None = None
    insecure: bool = False
    admin: str | None = None
    metrics: str | None = None
    page: str | None = None
    linger_seconds: float = 60.0
    payload_limit: int = PAYLOAD_LIMIT
    calls_a_second: float = CALLS_A_SECOND
    connections: int | None = None
    connections_per_address: int = door.PER_ADDRESS

    def check(self) -> None:
        """Checks the settings before anything is computed.

        Raises:
          ConfigError: an address is invalid; a plaintext port would be reachable from other machines
            without ``insecure``; or the socket's path is too long.
          IdentityError: the server's certificate cannot be used.
        """
        socket_address(self.folder)
        for option in ("listen", "admin", "metrics", "page"):
            address = getattr(self, option)
            if address is not None and not (option == "listen" and address.startswith("unix:")):
                check_address(f"--{option}", address)
        if self.page is not None:
            if not identity.is_loopback(self.page):
                # Not with --tls either: browsers do not trust our certificates.
                port = self.page.rpartition(":")[2]
                raise errors.ConfigError(
                    f"--page {self.page} can be reached from other machines, and the page has no "
                    "authentication",
                    f"give 127.0.0.1:{port}, and look from elsewhere through `ssh -L {port}:127.0.0.1:"
                    f"{port} HOST`, or by `fedvi watch --server`",
                )
            check_installed()
        if self.tls is not None:
            identity.holding(self.tls, "server")
            return
        hint = "give --tls, the folder of the server's certificates"
        if self.admin is not None and not identity.is_loopback(self.admin):
            # Not with --insecure either: anybody could end the run.
            raise errors.ConfigError(
                f"--admin {self.admin} can be reached from other machines, and there is no --tls",
                hint,
            )
        if not self.insecure and not identity.is_loopback(self.listen):
            raise errors.ConfigError(
                f"--listen {self.listen} can be reached from other machines, and there is no --tls",
                f"{hint}; or --insecure, and everybody can read and change what is sent",
            )


class Addresses(NamedTuple):
    """Addresses of a server for clients, local and remote operators, Prometheus and browsers."""

    listen: str
    socket: str
    admin: str | None
    metrics: str | None
    page: str | None = None


class Outcome(NamedTuple):
    """How a server ended.

    Attributes:
      status: of the run; "running" or "paused" if only the server was stopped.
      state: as last saved.
      unheard: clients that were present and did not hear of the end.
    """

    status: str
    state: ServerState
    unheard: tuple[str, ...]


class App:
    """A server over one run.

    Args:
      store: holds its state; the caller closes it.
      journal: the operational log; in memory if None.
      on_ready: called once the ports are open.
      on_end: called, in a thread, once the run has ended, before the server waits for clients.
      beside: does the prior's work in a thread of its own; called with a function that answers requests.

    Raises:
      ConfigError: the addresses would expose the run, or the socket's path is too long.
      LedgerError: the state belongs to another run.
    """

    def __init__(
        self,
        spec: ServerSpec,
        store: ServerStore,
        settings: Settings,
        journal: Journal | None = None,
        on_ready: Callable[[Addresses], None] | None = None,
        on_end: Callable[[ServerState], None] | None = None,
        beside: Callable[[Callable[[Request], Reply]], None] | None = None,
    ) -> None:
        settings.check()
        spec = spec._replace(keep=_saving(spec.keep), record=_saving(spec.record))
        self._spec, self._settings = spec, settings
        self._socket = socket_address(settings.folder)
        self._on_ready, self._on_end, self._beside = on_ready, on_end, beside
        self._coordinator = Coordinator(spec, _Saving(store))
        self._run_log = RunLog(spec, lambda: self._coordinator.state, journal or MemoryJournal())
        self._started = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._broken: BaseException | None = None
        self._calls: Calls | None = None

    def stop(self) -> None:
        """Stops the server, from any thread; the run can be continued later."""
        if self._loop is not None:
            # The loop is closed if the server has already ended.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> Outcome:
        """Serves until the run has ended, or the server is stopped.

        Raises:
          TransportError: a port cannot be bound.
          FedviError: certificates or the roster cannot be used; or the prior's work failed.
        """
        self._loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            # Signal handlers work only in the main thread; elsewhere the caller stops the server.
            with contextlib.suppress(RuntimeError, ValueError):
                self._loop.add_signal_handler(name, self._stopping.set)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._run_log.close)
            roster = self._roster()
            revoked = frozenset if roster is None else roster.revoked
            dispatcher = Dispatcher(self._spec, self._coordinator, self._run_log.tell, revoked)
            stack.callback(dispatcher.close)
            addresses = await self._open(dispatcher, roster, stack)
            if self._on_ready is not None:
                self._on_ready(addresses)
            if self._beside is not None:
                threading.Thread(target=self._run_beside, args=(dispatcher,), daemon=True).start()
            time_keeper = asyncio.create_task(dispatcher.keep_time())
            stack.push_async_callback(_cancel, time_keeper)
            try:
                unheard = await self._until_ended(dispatcher, time_keeper)
            finally:
                # The exit stack now closes, in this order: ports, time keeper, dispatcher, log.
                dispatcher.closing = True
                dispatcher.ring()
        if self._broken is not None:
            raise self._broken
        return Outcome(dispatcher.state.status, dispatcher.state, unheard)

    def _roster(self) -> Roster | None:
        settings = self._settings
        if settings.tls is None:
            return None
        return Roster(settings.roster or settings.tls / identity.ROSTER)

    async def _open(
        self, dispatcher: Dispatcher, roster: Roster | None, stack: contextlib.AsyncExitStack
    ) -> Addresses:
        """Opens all ports, those of operators first."""
        settings = self._settings
        calls = self._calls = Calls(dispatcher.post)
        entry = self._entry(stack)
        access = Access(self._spec.clients, roster, settings.calls_a_second, door=entry)
        uploads = Uploads(settings.folder / "uploads", settings.payload_limit)
        accepted = dispatcher.state.accepted.items()
        uploads.sweep((task_id.rpartition("/")[0], sha256) for task_id, sha256 in accepted)
        federation = Federation(dispatcher, access, uploads, calls)

        def describe_run() -> Any:
            return describe(
                dispatcher,
                self._run_log.prices,
                settings.study,
                settings.tls is not None,
                self._started,
                federation.uploading,
            )

        def admin(guard: Access | None) -> Admin:
            return Admin(dispatcher, guard, describe_run, self._run_log.journal, calls)

        health = Health("fedvi.v1.FederationService", "fedvi.v1.AdminService")
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A killed server may have left its socket; the store's lock excludes another running server.
        (settings.folder / SOCKET).unlink(missing_ok=True)
        # Callers on the socket have no certificates, so they have no limit.
        local = self._server(health, calls, Access((), None), hurries=False)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin(None), local)
        await _listen(local, self._socket, None, stack)
        (settings.folder / SOCKET).chmod(0o600)
        remote_address = None
        if settings.admin is not None:
            remote = self._server(health, calls, access, hurries=False)
            admin_pb2_grpc.add_AdminServiceServicer_to_server(admin(access), remote)
            remote_address = await self._listen(remote, settings.admin, _DOORS[1], entry, stack)
        public = self._server(health, calls, access, hurries=True)
        federation_pb2_grpc.add_FederationServiceServicer_to_server(federation, public)
        address = await self._listen(public, settings.listen, _DOORS[0], entry, stack)
        metrics = None
        if settings.metrics is not None:
            metrics = Metrics(settings.metrics, describe_run, calls, lambda: entry.counts)
            stack.callback(metrics.close)
        page = None
        if settings.page is not None:
            journal = self._run_log.journal
            contents = Contents(self._spec, lambda: dispatcher.state, describe_run, journal)
            stack.callback(contents.close)
            page = Page(settings.page, contents, render)
            stack.callback(page.close)
        # Price the ledgers now, so that earlier charges show before the next fold.
        self._run_log.prices.update(dispatcher.state.ledgers)
        health.set(True)
        stack.callback(health.set, False)
        return Addresses(
            address,
            self._socket,
            remote_address,
            None if metrics is None else metrics.address,
            None if page is None else page.address,
        )

    def _entry(self, stack: contextlib.AsyncExitStack) -> Door:
        """Opens the door of the ports for other machines, as wide as the limit of open files allows."""
        settings, clients = self._settings, len(self._spec.clients)
        limit = door.descriptors(settings.connections)
        most = door.room(limit, settings.connections)
        needed = 2 * CALLS_AT_ONCE + 4 * clients
        said = f"at most {most} connections at once: the limit of open files is {limit}"
        if most < needed:
            logs.log(
                "connections",
                f"{said}, which is little for {clients} clients; raise it (`ulimit -n`, `ulimits` of a "
                "container)",
                logging.WARNING,
            )
        else:
            logs.log("connections", said, connections=most, open_files=limit)
        entry = Door(most, settings.connections_per_address)
        stack.callback(entry.close)
        return entry

    async def _listen(
        self, server: Any, address: str, inner: str, entry: Door, stack: contextlib.AsyncExitStack
    ) -> str:
        """Starts a server behind a door; returns the address with the port it got."""
        settings = self._settings
        if address.startswith("unix:"):  # guarded by the permissions of its folder
            return await _listen(server, address, settings.tls, stack)
        found, bound = entry.bind(address)
        path = settings.folder / inner
        path.unlink(missing_ok=True)
        target = socket_address(settings.folder, inner)
        await _listen(server, target, settings.tls, stack)
        path.chmod(0o600)
        entry.listen(found, target.removeprefix("unix:"))
        # Before the server stops: calls end in its grace, and no new ones come.
        stack.callback(entry.shut)
        return bound

    def _server(self, health: Health, calls: Calls, access: Access, hurries: bool) -> Any:
        clients = len(self._spec.clients)
        server = grpc.aio.server(
            interceptors=[Reading(calls, access, hurries)],
            options=_OPTIONS,
            # Room for all clients at their own limit, and for some other callers.
            maximum_concurrent_rpcs=64 + CALLS_AT_ONCE * clients,
        )
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        return server

    async def _until_ended(
        self, dispatcher: Dispatcher, time_keeper: asyncio.Task[None]
    ) -> tuple[str, ...]:
        """Waits until the run has ended and clients have heard of it, or until the server is stopped.

        Returns:
          The clients that were present and did not hear of the end.
        """
        while not self._stopping.is_set():
            change = dispatcher.change()
            if dispatcher.ended:
                if self._on_end is not None:
                    await asyncio.to_thread(self._on_end, dispatcher.state)
                if await self._farewell(dispatcher):
                    return _unheard(dispatcher)
            await _first_of(change.wait(), self._stopping.wait(), time_keeper)
            if time_keeper.done():
                _refuse_to_go_on(time_keeper)
        return ()

    async def _farewell(self, dispatcher: Dispatcher) -> bool:
        """Waits until all present clients have heard of the end; False if the run goes on."""
        until = time.monotonic() + self._settings.linger_seconds
        while not self._stopping.is_set() and dispatcher.ended:
            change, left = dispatcher.change(), until - time.monotonic()
            if not _unheard(dispatcher) or left <= 0.0:
                return True
            # The roster may revoke awaited clients without a change of the state: look again every second.
            await _first_of(change.wait(), self._stopping.wait(), asyncio.sleep(min(1.0, left)))
        return dispatcher.ended

    def _run_beside(self, dispatcher: Dispatcher) -> None:
        assert self._beside is not None
        try:
            self._beside(dispatcher.handle_blocking)
        except BaseException as error:
            # Without the prior's factor the run would wait forever.
            if not dispatcher.closing:
                self._broken = error
                self.stop()


def serve(app: App) -> Outcome:
    """Runs a server to its end; see ``App.run``."""
    return asyncio.run(app.run())


class _Saving:
    """A store that reports its failures as temporary, so that clients send their requests again."""

    def __init__(self, store: ServerStore) -> None:
        self._store = store

    def load(self) -> Any:
        """Returns the state as last saved, or None."""
        return self._store.load()

    def save(self, state: Any) -> Any:
        """Saves the state; see ``_saving``."""
        return _saving(self._store.save)(state)


def _saving(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function: its errors go to the server's log, and callers get ``Full`` instead."""

    def saved(*values: Any) -> Any:
        try:
            return save(*values)
        except errors.FedviError as error:
            logs.log("store", str(error), logging.ERROR)
            raise Full(
                "the server could not save its state; nothing was changed",
                "its log says why; the client tries again by itself",
            ) from error

    return saved


async def _listen(
    server: Any, address: str, tls: Path | None, stack: contextlib.AsyncExitStack
) -> str:
    """Binds a server to an address and starts it; returns the address with the port it got."""
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.server_credentials(tls))
    except RuntimeError as error:
        raise errors.TransportError(
            f"{address} cannot be bound: another process has the port, or it is not this machine's",
            "is another server running there? name another port; 0 takes a free one",
        ) from error
    await server.start()
    stack.push_async_callback(server.stop, _GRACE_SECONDS)
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _refuse_to_go_on(time_keeper: asyncio.Task[None]) -> None:
    """Ends a server whose time keeper failed, since it would miss deadlines and revocations."""
    error = time_keeper.exception()
    if error is None:
        return
    # As in ``Calls``: the text of an unexpected error may hold anything, so it is not shown.
    name, last = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
    where = "".join(traceback.format_tb(error.__traceback__))
    place = f"{Path(last.filename).name}:{last.lineno}"
    logs.log(
        "error",
        f"the time keeper failed ({name} at {place}): the server stops",
        logging.ERROR,
        where=where,
    )
    raise errors.FedviError(
        f"the server failed: {name} at {place}",
        "what was saved is as it was: start the server again with the same state",
    ) from error


def _unheard(dispatcher: Dispatcher) -> tuple[str, ...]:
    """Returns the clients with records that are admitted and present, and have not heard of the end."""
    others = dispatcher.heard.union(dispatcher.state.away, dispatcher.shut_out())
    return tuple(name for name in dispatcher.spec.members if name not in others)


async def _first_of(*waits: Any) -> None:
    """Waits for the first of several awaitables; cancels the others, except tasks of the caller."""
    tasks = [
        wait if isinstance(wait, asyncio.Task) else asyncio.ensure_future(wait) for wait in waits
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
