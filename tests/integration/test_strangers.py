"""Attacks on a server with 1,024 open files: what each costs it, and everybody else.

The attackers dial from the honest client's own address, as from behind one NAT: the address that they share
is no help to the server.
"""

import contextlib
import json
import logging
import re
import resource
import shutil
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest

from fedvi.federation.messages import Hello
from fedvi.privacy import ledger as ledgers
from fedvi.run import server_plan
from fedvi.server.rpc.sockets import socket_address
from fedvi.transport import authority, identity, status
from fedvi.transport._wire import admin_pb2, admin_pb2_grpc, health_pb2, health_pb2_grpc
from fedvi.transport.grpc import GrpcLink
from tests import pki
from tests.integration.test_server_cli import fedvi, server, to_toml
from tests.servers import wait_for
from tests.studies import raw_study
from tests.unit.transport.test_bounded import BOMBS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server is measured in /proc")

FILES, CONNECTIONS, CALLS = 1024, 3000, 36
SECONDS, MEGABYTES = 2.0, 300
METHOD = "/fedvi.v1.FederationService/SubmitResult"


class Attacked:
    """A server, what attackers hold of it, and how it fares."""

    def __init__(self, running, state: Path, folders: dict[str, Path]) -> None:
        self.running, self.state, self.folders = running, state, folders
        host, port = running.listen.split(":")
        self.place = (host, int(port))
        self.plan = server_plan.read(state / server_plan.FILE)
        self.spec = server_plan.to_spec(self.plan)

    @property
    def megabytes(self) -> float:
        text = Path(f"/proc/{self.running.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.running.process.pid}/fd").iterdir()))

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        return identity.channel_credentials(self.folders[name])

    def waits(self) -> dict[str, float]:
        """Seconds until an operator, the probe and an honest client were answered, over new channels."""
        found = {}

        def timed(name, work):
            began = time.monotonic()
            work()
            found[name] = time.monotonic() - began

        def operator():
            with grpc.insecure_channel(socket_address(self.state)) as channel:
                stub = admin_pb2_grpc.AdminServiceStub(channel)
                stub.GetRun(admin_pb2.GetRunRequest(), timeout=30.0)

        def probe():
            with grpc.insecure_channel(socket_address(self.state)) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                stub.Check(health_pb2.HealthCheckRequest(), timeout=30.0)

        def client():
            credentials = self.credentials("south")
            link = GrpcLink(
                self.running.listen, "south", self.spec.prior, credentials, give_up_after=30.0
            )
            with contextlib.closing(link):
                book = ledgers.open_ledger(self.spec.headers["south"])
                link.handle(Hello("south", self.plan.digest, ledgers.anchor(book)))

        timed("status", operator)
        timed("health", probe)
        timed("client", client)
        return found


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    root = pki.authority_in(folder / "ca")
    folders = {name: pki.party(root, name) for name in ("south", "north", "gone")}
    tls = pki.party(root, "server", "server", hosts=("127.0.0.1",))
    authority.revoke(root, "gone")
    shutil.copy(root / identity.ROSTER, tls / identity.ROSTER)
    study = folder / "study.toml"
    raw = raw_study(["south", "north"], 2, schedule={"kind": "synchronous", "rounds": 2})
    study.write_text(to_toml(raw), encoding="utf-8")
    few = ("bash", "-c", f'ulimit -n {FILES}; exec "$@"', "few")
    with server(study, folder / "state", "--tls", str(tls), before=few) as running:
        yield Attacked(running, folder / "state", folders)


@pytest.fixture
def many_files():
    """Lets this process open as many connections as it holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + 1000
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"the attacker may open {hard} files, and needs {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(attacked, closing) -> socket.socket:
    return closing.enter_context(socket.create_connection(attacked.place, timeout=10.0))


def idle(attacked, closing, count: int = CONNECTIONS) -> None:
    """Connections that say nothing."""
    for _ in range(count):
        dial(attacked, closing)


def idle_from_everywhere(attacked, closing) -> None:
    """Connections that say nothing, from 250 addresses."""
    for at in range(CONNECTIONS):
        source = (f"127.0.1.{1 + at % 250}", 0)
        near = socket.create_connection(attacked.place, 10.0, source)
        closing.enter_context(near)


def half_shaken(attacked, closing) -> None:
    """TLS handshakes that stop after their first bytes."""
    for _ in range(500):
        with contextlib.suppress(OSError):
            dial(attacked, closing).sendall(b"\x16\x03\x01\x02\x00\x01\x00")


def junk(attacked, closing) -> None:
    """What speaks no TLS."""
    for _ in range(500):
        with contextlib.suppress(OSError):
            dial(attacked, closing).sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)


def revoked(attacked, closing, count: int = 300) -> None:
    """Finished handshakes with a revoked certificate, and no call."""
    folder = attacked.folders["gone"]
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    for _ in range(count):
        with contextlib.suppress(OSError):
            near = socket.create_connection(attacked.place, timeout=10.0)
            closing.enter_context(context.wrap_socket(near, server_hostname="127.0.0.1"))


def storm(attacked, closing) -> None:
    """Connections that are opened and closed as fast as it goes."""
    over = threading.Event()

    def work():
        while not over.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(attacked.place, timeout=10.0).close()

    thread = threading.Thread(target=work)
    thread.start()
    closing.callback(thread.join)
    closing.callback(over.set)


def bombs(attacked, closing, name: str = "gone", count: int = CALLS) -> None:
    """Calls with two million fields, half of them 4 kB of gzip; each over a channel of its own."""
    bomb = BOMBS["empty arrays"]
    for at in range(count):
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = closing.enter_context(
            grpc.secure_channel(attacked.running.listen, attacked.credentials(name), options)
        )
        compression = grpc.Compression.Gzip if at % 2 else None
        call = channel.stream_unary(METHOD).future(
            iter([bomb]), compression=compression, timeout=60.0
        )
        closing.callback(call.cancel)


ATTACKS = [idle, idle_from_everywhere, half_shaken, junk, revoked, storm, bombs]


def check(attacked, say: str) -> None:
    """Checks that everybody else is answered, and writes down what it was like."""
    found = attacked.waits()
    for _ in range(2):
        # A busy machine is slow at times; an attack that keeps others waiting does it each time.
        if max(found.values()) >= SECONDS:
            found = attacked.waits()
    row = {**found, "files": attacked.files, "megabytes": attacked.megabytes}
    # Shown by `pytest -rP`.
    logging.getLogger(__name__).warning(
        "%s: %s", say, ", ".join(f"{name} {number:.2f}" for name, number in row.items())
    )
    assert max(found.values()) < SECONDS, (say, found)
    assert attacked.files < FILES - 50, (say, attacked.files)
    assert attacked.megabytes < MEGABYTES, (say, attacked.megabytes)


@pytest.mark.nightly
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_keeps_nobody_waiting(attacked, many_files, attack):
    with contextlib.ExitStack() as closing:
        attack(attacked, closing)
        check(attacked, attack.__name__)


@pytest.mark.nightly
def test_3000_idle_connections_and_36_bombs_keep_nobody_waiting(attacked, many_files):
    with contextlib.ExitStack() as closing:
        idle(attacked, closing)
        bombs(attacked, closing)
        check(attacked, "both")
        assert fedvi("health", attacked.state).stdout == "serving\n"
        assert json.loads(fedvi("status", attacked.state, "--json").stdout)["status"] == "running"


@pytest.mark.nightly
def test_bombs_of_a_site_that_is_let_in_are_refused_and_cost_little(attacked):
    refused = []
    with contextlib.ExitStack() as closing:
        channel = closing.enter_context(
            grpc.secure_channel(attacked.running.listen, attacked.credentials("north"))
        )
        for bomb in BOMBS.values():
            for compression in (None, grpc.Compression.Gzip):
                call = channel.stream_unary(METHOD)
                with pytest.raises(grpc.RpcError) as caught:
                    call(iter([bomb]), compression=compression, timeout=60.0)
                refused.append(str(status.from_status(caught.value)))
        check(attacked, "insider")
    assert sum("more than 8192 fields" in text for text in refused) == len(BOMBS)
    assert sum("came compressed" in text for text in refused) == len(BOMBS)


@pytest.mark.nightly
def test_connections_that_no_admitted_call_comes_over_are_closed(attacked):
    with contextlib.ExitStack() as closing:
        silent = dial(attacked, closing)
        revoked(attacked, closing, 5)
        before = attacked.files
        silent.settimeout(30.0)
        assert silent.recv(1) == b""
        # Those with a revoked certificate have a little longer.
        wait_for(lambda: attacked.files <= before - 3 * 5, 60.0)


@pytest.mark.nightly
def test_after_all_that_the_log_is_short_and_the_socket_is_its_owners(attacked):
    assert sum(line["kind"] == "refused" for line in attacked.running.lines) < 200
    for name in ("admin.sock", "door.sock"):
        assert (attacked.state / name).stat().st_mode & 0o777 == 0o600
    (line,) = (
        line
        for line in attacked.running.lines
        if line["kind"] == "connections" and "open_files" in line
    )
    assert line["open_files"] == FILES
