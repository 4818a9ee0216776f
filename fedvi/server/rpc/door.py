"""Accepts connections for gRPC, so that no stranger takes the places of others.

    other machines ──► Door ──► gRPC's socket in the state folder

gRPC in Python takes every connection, and keeps a silent one for two minutes. A door accepts in its place:
it counts connections by address and in all, dials gRPC only once the first bytes came, and then passes
bytes on in both directions. It sees no content, since TLS ends at gRPC.

A connection is admitted once a call over it was (``Access``). The others wait. They have little time, and
are closed first where places are short; those that sent nothing before those that did. So an honest client,
whose first call takes a few round trips, comes in beside any number of silent connections.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import itertools
import logging
import os
import random
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.server import logs

__all__ = [
    "KEPT_BACK",
    "MOST",
    "PER_ADDRESS",
    "Counts",
    "Door",
    "descriptors",
    "room",
]

MOST = 4096
"""Connections at once, if the limit of open files allows it."""

PER_ADDRESS = 64
"""Connections of one address that wait to be admitted. Admitted ones are not counted here, so that many
sites may share an address."""

KEPT_BACK = 160
"""Open files that connections leave to the state, metrics, the page, gRPC and operators' commands."""

SILENT_SECONDS = 10.0
"""How long a connection may take to send its first byte."""

WAITING_SECONDS = 20.0
"""How long it may take to make a call that is admitted, or to make the next one after a refused call."""

_HELD = 16
"""Admitted connections of one certificate; a newer one closes the oldest."""

# Of each connection: that to the caller, both ends of that to gRPC, and an upload.
_FILES_EACH = 4
_FEWEST = 8
_CLOSING_SECONDS = 10.0
_SWEEP_SECONDS = 0.5
_REPORT_SECONDS = 60.0
# Connections that are accepted before the loop looks at others; each may be one file too many for a moment.
_AT_ONCE = 16
_BACKLOG = 4096
# What may wait to be written to a slow end before the other end is read no further.
_BUFFER = 64 << 10


def descriptors(most: int | None = None) -> int:
    """Raises this process's limit of open files as far as it may and need be; returns the limit.

    Args:
      most: connections at once; None for ``MOST``.
    """
    import resource

    needed = KEPT_BACK + _FILES_EACH * (MOST if most is None else most)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        # A Mac has a lower limit than the one it names.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return needed if soft == resource.RLIM_INFINITY else soft


def room(limit: int, most: int | None = None) -> int:
    """Returns how many connections may be open at once under a limit of open files.

    Args:
      limit: from ``descriptors``.
      most: as asked for; None for ``MOST``.

    Raises:
      ConfigError: more are asked for than the limit has room for, or it has room for fewer than 8.
    """
    left, least = (limit - KEPT_BACK) // _FILES_EACH, _FEWEST if most is None else most
    if left < least:
        raise errors.ConfigError(
            f"the limit of open files is {limit}, expected at least "
            f"{KEPT_BACK + _FILES_EACH * least} for {least} connections",
            "raise it (`ulimit -n`, `ulimits` of a container), or give fewer --connections",
        )
    return min(left, MOST) if most is None else most


class Counts(NamedTuple):
    """The connections of a door: open now, and closed so far since places or time were short."""

    admitted: int
    waiting: int
    closed: int


class Door:
    """Accepts connections in a thread of its own.

    Args:
      most: connections at once, of all addresses and ports together.
      per_address: of one address, and of one /64 of IPv6, that are not admitted.
    """

    def __init__(self, most: int = MOST, per_address: int = PER_ADDRESS) -> None:
        self._most, self._per_address = most, per_address
        # Address → its connections that wait, oldest first; certificate → those that were admitted.
        self._waiting: dict[str, dict[_Connection, None]] = {}
        self._admitted: dict[str, dict[_Connection, None]] = {}
        # As gRPC names the far end of a connection.
        self._by_peer: dict[str, _Connection] = {}
        self._open = self._closed = self._told = 0
        self._told_at = -_REPORT_SECONDS
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        # The caller is gone; what it sent is still being written to gRPC.
        self.ending: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Counts:
        """How many connections there are."""
        waiting = sum(map(len, list(self._waiting.values())))
        return Counts(self._open - waiting, waiting, self._closed)

    def bind(self, address: str) -> tuple[list[socket.socket], str]:
        """Binds an address; no connection is accepted before ``listen``.

        Args:
          address: HOST:PORT; port 0 takes a free one.

        Returns:
          The sockets, and the address with its port.

        Raises:
          TransportError: it cannot be bound.
        """
        host, _, port = address.rpartition(":")
        try:
            found = _bound(host.removeprefix("[").removesuffix("]"), int(port))
        except OSError as error:
            raise errors.TransportError(
                f"{address} cannot be bound: another process has the port, or it is not this machine's",
                "is another server running there? name another port; 0 takes a free one",
            ) from error
        self._listeners += found
        return found, f"{host}:{found[0].getsockname()[1]}"

    def listen(self, listeners: list[socket.socket], target: str) -> None:
        """Accepts connections from now on, and passes their bytes on.

        Args:
          listeners: from ``bind``.
          target: the path of gRPC's socket.
        """
        for one in listeners:
            one.setblocking(False)
            one.listen(_BACKLOG)
            self._loop.call_soon_threadsafe(self._read, one, target)

    def admit(self, peer: str, certificate: str) -> None:
        """Notes that a call was admitted; may be called in any thread.

        Args:
          peer: gRPC's name of the call's connection.
          certificate: its fingerprint; "" in clear text, where connections are not counted by it.
        """
        connection = self._by_peer.get(peer)
        if connection is not None and connection.certificate != certificate:
            connection.certificate = certificate
            self._soon(self._promote, connection)

    def refuse(self, peer: str) -> None:
        """Notes that a call was refused for its certificate: its connection has to wait again."""
        connection = self._by_peer.get(peer)
        if connection is not None and connection.certificate is not None:
            connection.certificate = None
            self._soon(self._demote, connection)

    def shut(self) -> None:
        """Accepts no more connections; those that are open stay."""

        async def work() -> None:
            for one in self._listeners:
                self._loop.remove_reader(one)
                one.close()
            self._listeners.clear()

        asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def close(self) -> None:
        """Ends all connections, and the thread."""
        self.shut()

        async def work() -> None:
            for groups in (self._waiting, self._admitted):
                for connection in [one for group in groups.values() for one in group]:
                    self._cut(connection)
            for connection in self.ending:
                connection.abort()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # the loop closes what was aborted

        asyncio.run_coroutine_threadsafe(work(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What follows runs in the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._sweep)
        self._loop.run_forever()

    def _soon(self, work: Callable[..., object], *arguments: object) -> None:
        # The loop is closed at the end, when calls may still come.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *arguments)

    def _accept(self, listener: socket.socket, target: str) -> None:
        for _ in range(_AT_ONCE):
            try:
                near, place = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                # No descriptor is left: nobody can be let in for the moment.
                logs.log("connections", f"none can be accepted: {error.strerror}", logging.ERROR)
                self._loop.remove_reader(listener)
                self._loop.call_later(1.0, self._read, listener, target)
                return
            address = _group(place[0])
            if not self._has_room(address):
                self._closed += 1
                near.close()
                continue
            near.setblocking(False)
            connection = _Connection(self, near, address, target)
            self._put(connection, self._waiting, address)
            self._open += 1
            # Many say nothing: asyncio's objects are made once there is something to read.
            self._loop.add_reader(near, connection.begin)

    def _read(self, listener: socket.socket, target: str) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener, target)

    def start(self, work: Any) -> None:
        """Starts a task, and keeps it from being collected."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a connection that broke off; its protocol has heard of it

    def _has_room(self, address: str) -> bool:
        """Makes room for one more connection, if it can."""
        if len(self._waiting.get(address, ())) >= self._per_address:
            self._give_up(self._waiting[address])
        if self._open >= self._most:
            # Of an address with the most of them: one address cannot drive out the others.
            if not (most := max(map(len, self._waiting.values()), default=0)):
                return False
            groups = [group for group in self._waiting.values() if len(group) == most]
            silent = (group for group in groups if any(one.is_silent for one in group))
            self._give_up(next(silent, {}) or random.choice(groups))
        return True

    def _give_up(self, group: "dict[_Connection, None]") -> None:
        """Closes one of some connections: the oldest without a byte, or else any.

        Any, not the oldest: among many that keep coming, an honest one would be the oldest before its
        handshake is done, again and again.
        """
        silent = (one for one in group if one.is_silent)
        self._cut(next(silent, None) or random.choice(list(group)))

    def _cut(self, connection: "_Connection") -> None:
        self._closed += 1
        connection.abort()
        self.forget(connection)

    def _promote(self, connection: "_Connection") -> None:
        certificate = connection.certificate
        if connection.is_gone or certificate is None:
            return
        self._put(connection, self._admitted, certificate)
        held = self._admitted[certificate]
        if certificate and len(held) > _HELD:
            self._cut(next(iter(held)))

    def _demote(self, connection: "_Connection") -> None:
        if connection.is_gone or connection.certificate is not None:
            return
        connection.since = self._loop.time()
        self._put(connection, self._waiting, connection.address)

    def _put(
        self, connection: "_Connection", groups: "dict[str, dict[_Connection, None]]", name: str
    ) -> None:
        """Moves a connection to another group, as its newest."""
        self._leave_group(connection)
        groups.setdefault(name, {})[connection] = None
        connection.group = groups, name

    def _leave_group(self, connection: "_Connection") -> None:
        if connection.group is None:
            return
        groups, name = connection.group
        del groups[name][connection]
        if not groups[name]:
            del groups[name]
        connection.group = None

    def forget(self, connection: "_Connection") -> None:
        """Takes a connection off the books; may be called twice."""
        if connection.is_gone:
            return
        connection.is_gone = True
        self._open -= 1
        self._leave_group(connection)
        self._by_peer.pop(connection.peer, None)

    def dialled(self, connection: "_Connection", peer: str) -> None:
        """Notes what gRPC will call a connection."""
        if not connection.is_gone:
            connection.peer = peer
            self._by_peer[peer] = connection

    def _sweep(self) -> None:
        """Closes connections that wait for too long, and says where places were short."""
        now = self._loop.time()
        late = [
            one
            for group in self._waiting.values()
            for one in group
            if now - one.since > (SILENT_SECONDS if one.is_silent else WAITING_SECONDS)
        ]
        for one in late:
            self._cut(one)
        if self._closed > self._told and now - self._told_at > _REPORT_SECONDS:
            said = f"{self._closed - self._told} connections were closed: no call over them was admitted"
            logs.log(
                "connections", f"{said}; {self._open} of {self._most} are open", logging.WARNING
            )
            self._told, self._told_at = self._closed, now
        self._loop.call_later(_SWEEP_SECONDS, self._sweep)


class _End(asyncio.Protocol):
    """One end of a connection, which writes what comes to the other end."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: _End | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        # What was read is still written, such as TLS's reason for a refusal.
        if self.other is not None:
            self.other.finish()

    def finish(self) -> None:
        """Closes this end once all is written, or after a while."""
        if self.transport is not None:
            self.transport.close()
            asyncio.get_running_loop().call_later(_CLOSING_SECONDS, self.transport.abort)


class _Connection(_End):
    """The end at the caller.

    Attributes:
      address: of the caller.
      group: the groups that it is in, and the name of its own.
      since: when it began to wait.
      certificate: of the last admitted call; None while it waits.
      is_silent: whether no byte came.
      is_gone: whether it is off the books.
      peer: gRPC's name of it; "" before gRPC was dialled.
    """

    def __init__(self, door: Door, near: socket.socket, address: str, target: str) -> None:
        super().__init__()
        self._door, self._near, self._target = door, near, target
        self._has_begun = self._has_dialled = False
        self.address, self.since = address, asyncio.get_running_loop().time()
        self.group: tuple[dict[str, dict[_Connection, None]], str] | None = None
        self.certificate: str | None = None
        self.is_silent, self.is_gone, self.peer = True, False, ""
        self._first: bytes | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.is_gone:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._has_dialled:
            super().data_received(data)
            return
        self._has_dialled, self._first = True, data
        self.transport.pause_reading()
        self._door.start(self._dial())

    def eof_received(self) -> bool:
        # A caller that sends no more may still read: gRPC hears of it, and ends the connection.
        if self.other is None:
            return False
        with contextlib.suppress(OSError):
            self.other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._door.forget(self)
        if self.other is not None and not self.other.transport.is_closing():
            self._door.ending.add(self)
        super().connection_lost(error)

    def finish(self) -> None:
        # gRPC's end is lost.
        self._door.ending.discard(self)
        super().finish()

    def begin(self) -> None:
        """Reads from now on, if there is a first byte; at the end, or without one, it is gone at once."""
        try:
            first = self._near.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.abort()
            self._door.forget(self)
            return
        asyncio.get_running_loop().remove_reader(self._near)
        self._has_begun, self.is_silent = True, False
        self._door.start(self._take())

    async def _take(self) -> None:
        if self.is_gone:
            self._near.close()
        else:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._near)

    def abort(self) -> None:
        """Closes both ends at once."""
        if not self._has_begun:
            asyncio.get_running_loop().remove_reader(self._near)
            self._near.close()
        for end in (self, self.other):
            if end is not None and end.transport is not None:
                end.transport.abort()

    async def _dial(self) -> None:
        loop, far = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX)
        try:
            far.setblocking(False)
            with _named(far) as peer:
                self._door.dialled(self, peer)
                await self._reach(far)
            other = _End()
            other.other = self
            await loop.create_unix_connection(lambda: other, sock=far)
        except BaseException:
            far.close()
            self.transport.abort()
            raise
        if self.is_gone:
            other.transport.abort()
            return
        self.other = other
        assert self._first is not None
        other.transport.write(self._first)
        self._first = None
        if other.transport.get_write_buffer_size() <= _BUFFER:  # else ``other`` resumes it
            self.transport.resume_reading()

    async def _reach(self, far: socket.socket) -> None:
        """Connects to gRPC, which may be slower than callers.

        Raises:
          OSError: it does not listen any more, or this connection is gone.
        """
        while True:
            if self.is_gone:
                raise ConnectionAbortedError
            try:
                far.connect(self._target)
                return
            except BlockingIOError:
                await asyncio.sleep(0.01)


_numbers = itertools.count()


@contextlib.contextmanager
def _named(far: socket.socket, is_abstract: bool = sys.platform == "linux") -> Any:
    """Gives a socket a name that no other has, and yields what gRPC calls a caller of that name."""
    if is_abstract:
        far.bind("")  # Linux picks a name outside of the file system
        yield f"unix-abstract:{far.getsockname()[1:].decode()}"
        return
    path = Path(tempfile.gettempdir()) / f"fedvi{os.getpid()}.{next(_numbers)}"
    far.bind(str(path))
    try:
        yield f"unix:{path}"
    finally:
        path.unlink(missing_ok=True)


@functools.lru_cache(maxsize=1024)
def _group(host: str) -> str:
    """Returns what a caller's connections count for: its address, or its /64 of IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def _bound(host: str, port: int) -> list[socket.socket]:
    """Binds all addresses of a host to one port; a wildcard is one socket for IPv4 and IPv6.

    Raises:
      OSError: one cannot be bound.
    """
    if host in ("0.0.0.0", "::") and socket.has_dualstack_ipv6():
        try:
            return [_server(socket.AF_INET6, "::", port, dualstack_ipv6=True)]
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    found: list[socket.socket] = []
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, place in dict.fromkeys((entry[0], str(entry[4][0])) for entry in entries):
            port = found[0].getsockname()[1] if found else port
            with contextlib.suppress(_Absent):
                found.append(_server(family, place, port))
    except OSError:
        for one in found:
            one.close()
        raise
    if not found:
        raise OSError(errno.EADDRNOTAVAIL, "no address of this host can be bound")
    return found


class _Absent(Exception):
    """An address of a host that this machine does not have, such as ::1 without IPv6."""


def _server(family: int, place: str, port: int, **options: bool) -> socket.socket:
    try:
        # It listens once it is known where to; the smallest queue till then.
        return socket.create_server((place, port), family=family, backlog=1, **options)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and not options:
            raise _Absent from error
        raise
