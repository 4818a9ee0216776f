"""The door of a server's ports: who is let in, who is closed, and that bytes pass unchanged."""

import contextlib
import errno
import hashlib
import os
import socket
import socketserver
import threading
import time
from pathlib import Path

import grpc
import pytest
import yaml

from fedvi import errors
from fedvi.server import logs
from fedvi.server.rpc import door as doors
from fedvi.server.rpc.door import Door, room
from tests.servers import wait_for


class Echo(socketserver.ThreadingUnixStreamServer):
    """In gRPC's place: sends back what it gets, and remembers the names of its callers."""

    daemon_threads = True
    block_on_close = True
    request_queue_size = 200
    pours_for = 0.3


class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        name = self.request.getpeername()
        self.server.names.append(
            f"unix-abstract:{name[1:].decode()}" if isinstance(name, bytes) else f"unix:{name}"
        )
        while data := self.request.recv(1 << 16):
            if data == b"pour":
                self.request.settimeout(self.server.pours_for)
                with contextlib.suppress(TimeoutError):
                    self.request.sendall(bytes(64 << 20))
                return
            self.request.sendall(data)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a door to an echo, and yields what dials it."""
    with contextlib.ExitStack() as closing:

        def work(**limits):
            echo = closing.enter_context(Echo(str(tmp_path / "echo.sock"), Answer))
            echo.names = []
            thread = threading.Thread(target=echo.serve_forever, args=(0.01,))
            thread.start()
            closing.callback(thread.join)
            closing.callback(echo.shutdown)
            found = Door(**limits)
            closing.callback(found.close)
            listeners, address = found.bind("127.0.0.1:0")
            found.listen(listeners, str(tmp_path / "echo.sock"))
            host, port = address.split(":")

            def dial(said=b"", source="127.0.0.1"):
                near = socket.create_connection((host, int(port)), 20.0, (source, 0))
                closing.callback(near.close)
                if said:
                    near.sendall(said)
                    assert near.recv(100) == said
                return near

            return found, dial, echo

        yield work


def is_open(near: socket.socket) -> bool:
    """Whether nothing has closed a connection so far."""
    near.setblocking(False)
    try:
        return near.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        near.settimeout(20.0)


def is_closed(near: socket.socket) -> bool:
    return not is_open(near)


def test_bytes_pass_unchanged_in_both_directions_also_to_a_slow_reader(opened):
    _, dial, _ = opened()
    near, sent = dial(), os.urandom(8 << 20)
    thread = threading.Thread(target=lambda: (near.sendall(sent), near.shutdown(socket.SHUT_WR)))
    thread.start()
    found = bytearray()
    while data := near.recv(1 << 12 if len(found) < 1 << 18 else 1 << 18):
        found += data
    thread.join()
    assert hashlib.sha256(found).digest() == hashlib.sha256(sent).digest()


def test_a_caller_waits_where_its_first_bytes_are_more_than_the_server_takes(opened, monkeypatch):
    reach = doors._Connection._reach

    async def narrowly(connection, far):
        # As on a Mac, whose sockets for one machine take 8 kB.
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        await reach(connection, far)

    monkeypatch.setattr(doors._Connection, "_reach", narrowly)
    monkeypatch.setattr(doors, "_BUFFER", 1 << 12)
    # The echo sends all back, which nobody reads, and so reads no more itself.
    found, dial, _ = opened()
    found._loop.call_soon_threadsafe(time.sleep, 0.3)  # till much has come
    near, sent = dial(), 0
    near.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while sent < 64 << 20:
            sent += near.send(bytes(1 << 20))
    (connection,) = found._by_peer.values()
    assert connection.other.transport.get_write_buffer_size() < 1 << 20
    near.settimeout(20.0)
    near.shutdown(socket.SHUT_WR)
    assert sum(iter(lambda: len(near.recv(1 << 20)), 0)) == sent


def test_the_end_of_one_side_is_the_end_of_the_other(opened):
    found, dial, _ = opened()
    near = dial(b"hello")
    near.close()
    wait_for(lambda: found.counts[:2] == (0, 0))


def test_of_one_address_the_oldest_silent_connection_makes_room(opened):
    found, dial, _ = opened(per_address=3)
    speaking, silent, newer = dial(b"hello"), dial(), dial()
    wait_for(lambda: found.counts.waiting == 3)
    newest = dial(b"hello")
    wait_for(lambda: is_closed(silent))
    assert all(map(is_open, (speaking, newer, newest)))
    last = dial(b"hello")
    wait_for(lambda: is_closed(newer))
    # Where all have spoken, one of them goes.
    latest = dial(b"hello")
    assert is_open(latest)
    wait_for(lambda: sum(map(is_open, (speaking, newest, last))) == 2)
    assert found.counts == (0, 3, 3)


def test_connections_that_are_opened_and_closed_at_once_drive_out_none_that_speaks(opened):
    found, dial, _ = opened(per_address=4)
    speaking = dial(b"hello")
    for _ in range(300):
        dial().close()
    wait_for(lambda: found.counts.waiting == 1)
    assert is_open(speaking)


def test_connections_of_one_address_drive_out_none_of_another(opened):
    found, dial, _ = opened(most=6, per_address=5)
    other = dial(b"hello", "127.0.0.2")
    for _ in range(20):
        dial()
    wait_for(lambda: found.counts.closed == 15)
    assert is_open(other)
    assert found.counts == (0, 6, 15)


def test_silent_connections_of_many_addresses_drive_out_none_that_speaks(opened):
    found, dial, _ = opened(most=4)
    speaking = dial(b"hello")
    silent = [dial(source=f"127.0.1.{1 + at}") for at in range(3)]
    wait_for(lambda: found.counts.waiting == 4)
    silent += [dial(source=f"127.0.1.{4 + at}") for at in range(20)]
    wait_for(lambda: found.counts.closed == 20)
    assert is_open(speaking)
    assert sum(map(is_open, silent)) == 3


def test_admitted_connections_stay_and_are_not_counted_by_address(opened):
    found, dial, echo = opened(per_address=2)
    admitted = []
    for _ in range(5):
        admitted.append(dial(b"hello"))
        found.admit(echo.names[-1], "certificate")
    wait_for(lambda: found.counts == (5, 0, 0))
    for _ in range(20):
        dial()
    wait_for(lambda: found.counts == (5, 2, 18))
    assert all(map(is_open, admitted))


def test_with_no_place_left_by_admitted_connections_a_new_one_is_closed(opened):
    found, dial, echo = opened(most=8)
    admitted = [dial(b"hello") for _ in range(8)]
    for name in echo.names:
        found.admit(name, name)
    wait_for(lambda: found.counts.admitted == 8)
    late = dial()
    wait_for(lambda: is_closed(late))
    assert all(map(is_open, admitted))


def test_one_certificate_cannot_hold_all_places(opened):
    found, dial, echo = opened()
    held = [dial(b"hello") for _ in range(17)]
    for name in echo.names:
        found.admit(name, "certificate")
    wait_for(lambda: found.counts == (16, 0, 1))
    assert is_closed(held[0])
    assert all(map(is_open, held[1:]))


def test_in_clear_text_connections_are_not_counted_by_certificate(opened):
    found, dial, echo = opened()
    held = [dial(b"hello") for _ in range(17)]
    for name in echo.names:
        found.admit(name, "")
    wait_for(lambda: found.counts == (17, 0, 0))
    assert all(map(is_open, held))


def test_a_connection_that_is_refused_waits_again_and_is_closed_in_the_end(opened, monkeypatch):
    monkeypatch.setattr(doors, "WAITING_SECONDS", 3.0)
    found, dial, echo = opened()
    refused, admitted = dial(b"hello"), dial(b"hello")
    wait_for(lambda: len(echo.names) == 2)
    for name in echo.names:
        found.admit(name, "certificate")
    wait_for(lambda: found.counts.admitted == 2)
    found.refuse(echo.names[0])
    wait_for(lambda: found.counts[:2] == (1, 1))
    assert wait_for(lambda: is_closed(refused)) > 1.0
    assert is_open(admitted)


def test_a_silent_connection_is_closed_sooner_than_one_that_speaks(opened, monkeypatch):
    monkeypatch.setattr(doors, "SILENT_SECONDS", 1.0)
    _, dial, echo = opened()
    speaking, silent = dial(b"hello"), dial()
    wait_for(lambda: is_closed(silent))
    assert is_open(speaking)
    # gRPC was not even dialled.
    assert len(echo.names) == 1


def test_a_caller_that_reads_nothing_is_gone_once_the_server_has_ended_it(opened, monkeypatch):
    monkeypatch.setattr(doors, "_CLOSING_SECONDS", 0.5)
    found, dial, _ = opened()
    dial().sendall(b"pour")  # what comes back is never read
    wait_for(lambda: found.counts.waiting == 1)
    wait_for(lambda: found.counts[:2] == (0, 0))


def test_a_door_that_closes_waits_for_no_server_that_takes_nothing(opened, tmp_path):
    _, _, echo = opened()
    echo.pours_for = 5.0
    found = Door()
    listeners, address = found.bind("127.0.0.1:0")
    found.listen(listeners, str(tmp_path / "echo.sock"))
    host, port = address.split(":")
    # The caller is gone, and much of what it sent is not taken yet.
    near = socket.create_connection((host, int(port)))
    near.sendall(b"pour")
    near.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        near.sendall(bytes(16 << 20))
    near.close()
    wait_for(lambda: found.ending)
    (far,) = (connection.other.transport for connection in found.ending)
    assert far.get_write_buffer_size() > 0
    found.close()
    assert far.get_write_buffer_size() == 0
    assert not found.ending


def test_no_descriptor_is_left_open_by_connections_that_are_gone(opened):
    found, dial, _ = opened(per_address=4)
    dial(b"hello").close()
    wait_for(lambda: found.counts[:2] == (0, 0))
    before = len(os.listdir("/dev/fd"))
    for at in range(100):
        dial(b"hello" if at % 2 else b"").close()
    wait_for(lambda: found.counts[:2] == (0, 0))
    wait_for(lambda: len(os.listdir("/dev/fd")) <= before)


def test_what_closes_many_connections_is_logged_once_a_minute(opened, monkeypatch):
    lines = []
    monkeypatch.setattr(logs, "log", lambda *line, **_: lines.append(line))
    monkeypatch.setattr(doors, "_SWEEP_SECONDS", 0.01)
    found, dial, _ = opened(per_address=1)
    for _ in range(5):
        dial()
    wait_for(lambda: len(lines) == 1)
    for _ in range(50):
        dial()
    wait_for(lambda: found.counts.closed >= 54)
    ends = time.monotonic() + 0.1
    wait_for(lambda: time.monotonic() > ends)
    assert len(lines) == 1
    assert "no call over them was admitted" in lines[0][1]


@pytest.mark.parametrize("is_abstract", [True, False])
def test_grpc_names_a_caller_as_the_door_does(tmp_path, is_abstract):
    if is_abstract and not os.path.exists("/proc"):
        pytest.skip("only Linux has names outside of the file system")
    seen = []

    class Naming(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(request, context):
                seen.append(context.peer())
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    from concurrent import futures

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Naming(),))
    server.add_insecure_port(f"unix:{tmp_path}/grpc.sock")
    server.start()
    listener = socket.create_server(("127.0.0.1", 0))

    def relay():
        near, _ = listener.accept()
        with near, socket.socket(socket.AF_UNIX) as far:
            with doors._named(far, is_abstract) as name:
                seen.append(name)
                far.connect(f"{tmp_path}/grpc.sock")
            back = threading.Thread(target=pump, args=(far, near))
            back.start()
            pump(near, far)
            back.join()

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=relay)
    thread.start()
    with grpc.insecure_channel(f"127.0.0.1:{listener.getsockname()[1]}") as channel:
        channel.unary_unary("/a/b")(b"", timeout=20.0)
    thread.join(20.0)
    listener.close()
    server.stop(None).wait()
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::]"])
def test_every_address_of_a_host_is_bound_to_one_port(host):
    with contextlib.closing(Door()) as found, contextlib.closing(Door()) as again:
        try:
            listeners, address = found.bind(f"{host}:0")
        except errors.TransportError:
            pytest.skip("this machine has no IPv6")
        ports = {one.getsockname()[1] for one in listeners}
        assert address == f"{host}:{ports.pop()}"
        assert not ports
        port = int(address.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), 5.0).close()
        with pytest.raises(errors.TransportError, match=r"cannot be bound: another process"):
            again.bind(address)


def test_an_address_of_another_machine_cannot_be_bound():
    with (
        contextlib.closing(Door()) as found,
        pytest.raises(errors.TransportError, match=r"192\.0\.2\.1:0 cannot be bound"),
    ):
        found.bind("192.0.2.1:0")


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_counts_alone_and_a_network_of_ipv6_as_one(host, group):
    assert doors._group(host) == group


def test_connections_leave_descriptors_to_everything_else():
    assert room(1024) == (1024 - doors.KEPT_BACK) // 4
    assert room(1 << 20) == doors.MOST
    assert room(1024, most=100) == 100
    with pytest.raises(errors.ConfigError, match=r"limit of open files is 1024, expected at least"):
        room(1024, most=400)
    with pytest.raises(errors.ConfigError, match=r"for 8 connections") as caught:
        room(64)
    assert "ulimit" in caught.value.hint


@pytest.mark.parametrize("name", ["compose.yaml", "coordinator.yaml"])
def test_the_files_for_containers_set_the_limit_that_their_servers_need(name):
    text = (Path(__file__).parents[3] / "docker" / name).read_text(encoding="utf-8")
    server = yaml.safe_load(text)["services"]["server"]
    most = int(server["command"][server["command"].index("--connections") + 1])
    for limit in server["ulimits"]["nofile"].values():
        assert room(limit, most) == most


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_and_need_be(monkeypatch):
    import resource

    limit = [256, 1000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, found: limit.__setitem__(0, found[0]))
    assert doors.descriptors() == 1000
    limit[:] = [256, resource.RLIM_INFINITY]
    assert doors.descriptors() == doors.KEPT_BACK + 4 * doors.MOST
    limit[:] = [1 << 20, 1 << 20]
    assert doors.descriptors() == 1 << 20

    def refuse(*_):
        raise ValueError("not allowed")

    limit[:] = [256, 1000]
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert doors.descriptors() == 256


def test_without_descriptors_nobody_is_let_in_for_a_moment_and_the_door_goes_on(
    opened, monkeypatch
):
    lines, accept = [], socket.socket.accept
    monkeypatch.setattr(logs, "log", lambda *line, **_: lines.append(line))
    failures = [OSError(errno.EMFILE, "Too many open files")]

    def failing(self):
        if failures and threading.current_thread().name == "door":
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    _, dial, _ = opened()
    dial(b"hello")
    assert lines[0][1] == "none can be accepted: Too many open files"
