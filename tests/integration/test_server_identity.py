"""Who is let in, by a real TLS handshake on the loopback: each that is not, with its own sentence."""

import contextlib
import threading
import time
from concurrent import futures

import grpc
import pytest

from fedvi import errors
from fedvi.federation.messages import Goodbye, Hello, NextTask, Offer, Submit
from fedvi.privacy import ledger as ledgers
from fedvi.server.rpc import access, calls, service
from fedvi.transport import authority, bundle, certificates, enrolment, identity, status, wire
from fedvi.transport import roster as rosters
from fedvi.transport._wire import admin_pb2, admin_pb2_grpc, health_pb2, health_pb2_grpc
from fedvi.updates.base import Task
from tests import pki
from tests.servers import answer, greeting, make_spec, running, wait_for


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """The roster is looked at again at every call, however close calls follow one another."""
    monkeypatch.setattr(rosters, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def folders(tmp_path):
    """An authority, a server and two clients; the server has the authority's roster."""
    root = pki.authority_in(tmp_path / "ca", at=pki.NOW - 30 * pki.DAY)
    found = {"ca": root, "server": pki.party(root, "server", "server", hosts=("127.0.0.1",))}
    found |= {name: pki.party(root, name) for name in ("south", "north")}
    return found


def serving(folders, tmp_path, spec, **settings):
    roster = folders["ca"] / identity.ROSTER
    return running(spec, tmp_path / "state", tls=folders["server"], roster=roster, **settings)


def link(server, spec, name, folder):
    return server.link(
        spec, name, credentials=identity.channel_credentials(folder), give_up_after=3.0
    )


def test_an_enrolled_client_is_let_in(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        south = link(server, spec, "south", folders["south"])
        south.handle(greeting(spec, "south"))
        assert isinstance(south.handle(NextTask("south")), Offer)
        run = server.admin().GetRun(admin_pb2.GetRunRequest())
        assert run.tls


@pytest.mark.parametrize("method", ["Hello", "NextTask", "QueryTask", "RenewLease", "Goodbye"])
def test_a_client_cannot_pass_for_another_in_any_call(folders, tmp_path, method):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        link(server, spec, "south", folders["south"]).handle(greeting(spec, "south"))
        stub = server.federation(identity.channel_credentials(folders["north"]))
        kind = getattr(wire.pb, f"{method}Request")
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stub, method)(kind(client="south"))
        found = status.from_status(caught.value)
        assert isinstance(found, errors.IdentityError)
        assert "'north' was used by a caller that claims to be 'south'" in str(found)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_client_cannot_pass_for_another_in_streams(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        stub = server.federation(identity.channel_credentials(folders["north"]))
        header = wire.pb.SubmitHeader(client="south", task_id="south/0")
        for call in (
            lambda: stub.SubmitResult(iter([wire.pb.SubmitPart(header=header)])),
            lambda: list(stub.GetPayload(wire.pb.GetPayloadRequest(client="south"))),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert isinstance(status.from_status(caught.value), errors.IdentityError)


def test_a_revoked_client_is_out_at_its_next_call_and_no_other_is(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        south, north = (link(server, spec, name, folders[name]) for name in ("south", "north"))
        south.handle(greeting(spec, "south"))
        north.handle(greeting(spec, "north"))
        authority.revoke(folders["ca"], "south")
        with pytest.raises(errors.IdentityError, match=r"'south' was revoked on"):
            south.handle(NextTask("south"))
        told = list(server.admin().WatchRun(admin_pb2.WatchRunRequest(once=True)))
        assert "NextTask refused: the certificate of 'south' was revoked" in told[-1].text
        assert isinstance(north.handle(NextTask("north")), Offer)


def test_a_certificate_that_is_on_no_roster_is_refused(folders, tmp_path):
    spec, root = make_spec(("south", "north", "east")), folders["ca"]
    before = (root / identity.ROSTER).read_bytes()
    east = pki.party(root, "east")
    (root / identity.ROSTER).write_bytes(before)
    refused = pytest.raises(errors.IdentityError, match=r"'east' .* is not on the server's roster")
    with serving(folders, tmp_path, spec) as server, refused:
        link(server, spec, "east", east).handle(Hello("east", "ab12"))


def test_an_admin_is_no_client_and_a_client_no_admin(folders, tmp_path):
    spec = make_spec()
    operator = pki.party(folders["ca"], "operator", "admin")
    with serving(folders, tmp_path, spec, admin="127.0.0.1:0") as server:
        with pytest.raises(errors.IdentityError, match=r"has the role admin, expected client"):
            link(server, spec, "operator", operator).handle(Hello("operator", "ab12"))
        found = []
        for folder in (operator, folders["south"]):
            credentials = identity.channel_credentials(folder)
            channel = server.channel(server.addresses.admin, credentials)
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                found.append(stub.GetRun(admin_pb2.GetRunRequest()).study)
            except grpc.RpcError as error:
                found.append(str(status.from_status(error)))
        assert found[0] == "test"
        assert "has the role client, expected admin" in found[1]
        with pytest.raises(grpc.RpcError):
            list(stub.WatchRun(admin_pb2.WatchRunRequest(once=True)))
        for call in (
            lambda: stub.PauseRun(admin_pb2.PauseRunRequest()),
            lambda: stub.StopRun(admin_pb2.StopRunRequest()),
            lambda: stub.RemoveClient(admin_pb2.RemoveClientRequest(client="south")),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert isinstance(status.from_status(caught.value), errors.IdentityError)
        run = server.admin().GetRun(admin_pb2.GetRunRequest())
        assert run.status == "running"


@pytest.mark.parametrize("case", ["no certificate", "expired", "another authority"])
def test_what_tls_refuses_gets_nowhere_and_the_server_goes_on(folders, tmp_path, case):
    spec = make_spec()
    authority_pem = (folders["ca"] / "ca.pem").read_bytes()
    if case == "no certificate":
        credentials = grpc.ssl_channel_credentials(authority_pem)
    else:
        root, options = folders["ca"], {}
        if case == "expired":
            options = {"days": 1, "at": pki.NOW - 3 * pki.DAY}
        else:
            root = pki.authority_in(tmp_path / "other" / "ca")
        folder = pki.party(root, "east", **options)
        key, certificate = (folder / name for name in ("key.pem", "cert.pem"))
        credentials = grpc.ssl_channel_credentials(
            authority_pem, key.read_bytes(), certificate.read_bytes()
        )
    with serving(folders, tmp_path, spec) as server:
        stranger = server.link(spec, "south", credentials=credentials, give_up_after=0.5)
        with pytest.raises(errors.TransportError):
            stranger.handle(greeting(spec, "south"))
        south = link(server, spec, "south", folders["south"])
        assert south.handle(greeting(spec, "south")).version == 0


def test_a_renewed_certificate_is_let_in_without_a_restart(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        south = link(server, spec, "south", folders["south"])
        south.handle(greeting(spec, "south"))
        issued = authority.renew(folders["ca"], "south")
        (folders["south"] / "cert.pem").write_bytes(issued.pem)
        renewed = link(server, spec, "south", folders["south"])
        assert renewed.handle(greeting(spec, "south")).version == 0


def test_a_site_that_is_revoked_while_it_waits_gets_no_work(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        south, north = (link(server, spec, name, folders[name]) for name in ("south", "north"))
        for name, one in (("south", south), ("north", north)):
            one.handle(greeting(spec, name))
        tasks = {
            name: one.handle(NextTask(name)).task
            for name, one in (("south", south), ("north", north))
        }
        south.handle(Submit("south", "south/0", answer(tasks["south"])))
        with futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(south.handle, NextTask("south"))
            time.sleep(0.5)
            authority.revoke(folders["ca"], "south")
            north.handle(Submit("north", "north/0", answer(tasks["north"])))
            with pytest.raises(errors.IdentityError, match=r"'south' was revoked on"):
                waiting.result(20.0)
        rows = {row.name: row for row in server.admin().GetRun(admin_pb2.GetRunRequest()).clients}
        # Not even charged for it.
        assert (rows["south"].task_id, rows["south"].charged) == ("", 1)


def test_a_site_that_is_revoked_is_not_awaited_and_may_enrol_again(folders, tmp_path):
    # Without a deadline: nothing but the roster says that no answer will come.
    spec = make_spec(rounds=3)
    with serving(folders, tmp_path, spec) as server:
        south, north = (link(server, spec, name, folders[name]) for name in ("south", "north"))

        def answered(one, name):
            task = one.handle(NextTask(name)).task
            one.handle(Submit(name, task.task_id, answer(task)))

        for name, one in (("south", south), ("north", north)):
            one.handle(greeting(spec, name))
        held = south.handle(NextTask("south")).task
        answered(north, "north")
        authority.revoke(folders["ca"], "south")
        wait_until(lambda: server.app._coordinator.state.version == 1)
        run = server.admin().GetRun(admin_pb2.GetRunRequest())
        (row,) = (row for row in run.clients if row.name == "south")
        assert (row.state, row.reason, list(run.awaited)) == ("away", "revoked", ["north"])
        told = [
            event.text for event in server.admin().WatchRun(admin_pb2.WatchRunRequest(once=True))
        ]
        assert "south is away: revoked" in told
        assert "MISSING: south (revoked)" in told[-1]
        asked = enrolment.request(tmp_path / "again", "south", "client", ())
        issued = authority.sign(folders["ca"], asked.path.read_bytes(), new_key=True)
        (tmp_path / "again" / "cert.pem").write_bytes(issued.pem)
        (tmp_path / "again" / "ca.pem").write_bytes((folders["ca"] / "ca.pem").read_bytes())
        south = link(server, spec, "south", tmp_path / "again")
        # Its ledger was kept: the task that it held was charged.
        book = server.app._coordinator.state.ledgers["south"]
        south.handle(greeting(spec, "south")._replace(anchor=ledgers.anchor(book)))
        assert server.app._coordinator.state.away == {}
        assert south.handle(NextTask("south")).task.task_id == held.task_id


def test_a_site_that_is_revoked_after_the_end_is_not_waited_for(folders, tmp_path):
    spec = make_spec(rounds=1)
    with serving(folders, tmp_path, spec, linger_seconds=60.0) as server:
        links = {name: link(server, spec, name, folders[name]) for name in spec.clients}
        for name, one in links.items():
            one.handle(greeting(spec, name))
            task = one.handle(NextTask(name)).task
            one.handle(Submit(name, task.task_id, answer(task)))
        links["south"].handle(Goodbye("south"))
        assert server.app._coordinator.state.status == "completed"
        assert server.outcome is None
        authority.revoke(folders["ca"], "north")
        wait_until(lambda: server.outcome is not None)
    assert server.outcome.unheard == ()


def test_a_certificate_that_ends_on_an_open_channel_is_refused_at_the_next_call(
    folders, tmp_path, monkeypatch
):
    spec = make_spec()
    operator = pki.party(folders["ca"], "operator", "admin")
    with serving(folders, tmp_path, spec, admin="127.0.0.1:0") as server:
        south = link(server, spec, "south", folders["south"])
        south.handle(greeting(spec, "south"))
        channel = server.channel(server.addresses.admin, identity.channel_credentials(operator))
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        stub.GetRun(admin_pb2.GetRunRequest())
        monkeypatch.setattr(certificates, "now", lambda: pki.NOW + 91 * pki.DAY)
        with pytest.raises(errors.IdentityError, match=r"the certificate of 'south' expired on"):
            south.handle(NextTask("south"))
        with pytest.raises(grpc.RpcError) as caught:
            stub.StopRun(admin_pb2.StopRunRequest())
        assert "'operator' expired on" in str(status.from_status(caught.value))


def test_a_site_that_is_revoked_within_a_stream_is_out(folders, tmp_path):
    size = 1200  # more than what is on its way when the reader stops
    spec = make_spec(size=size)
    with serving(folders, tmp_path, spec) as server:
        one = link(server, spec, "south", folders["south"])
        one.handle(greeting(spec, "south"))
        # A window that grows may take all of what the reader leaves unread.
        fixed = [("grpc.http2.bdp_probe", 0)]
        stub = server.federation(identity.channel_credentials(folders["south"]), fixed)
        session = bytes.fromhex(one._session)
        task = stub.NextTask(wire.pb.NextTaskRequest(client="south", session=session)).task
        bundled = bundle.of_payload(answer(Task("south/0", "south", 0, 0, spec.prior, None, 1.0)))
        begun = threading.Event()

        def parts():
            yield wire.pb.SubmitPart(header=wire.header_to("south", "south/0", 0, bundled))
            for at, data in bundle.pieces(bundled.tensors):
                yield wire.pb.SubmitPart(chunk=wire.chunk_to(at, data))
                if at > bundle.CHUNK:
                    begun.set()
                    time.sleep(0.3)

        upload = stub.SubmitResult.future(parts())
        download = stub.GetPayload(
            wire.pb.GetPayloadRequest(client="south", sha256=task.posterior.sha256, session=session)
        )
        next(download)
        assert begun.wait(20.0)
        authority.revoke(folders["ca"], "south")
        for call in (lambda: list(download), upload.result):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert "'south' was revoked on" in str(status.from_status(caught.value))
        assert not list((tmp_path / "state" / "uploads").iterdir())


def test_a_site_that_is_revoked_after_its_last_byte_hands_nothing_in(folders, tmp_path):
    spec = make_spec(size=400)
    with serving(folders, tmp_path, spec) as server:
        one = link(server, spec, "south", folders["south"])
        one.handle(greeting(spec, "south"))
        task = one.handle(NextTask("south")).task
        bundled = bundle.of_payload(answer(task))
        sha256, session = bundled.manifest.sha256, one._session
        query = wire.query_to(wire.Query("south", task.task_id, sha256, session))
        stub, size = (
            server.federation(identity.channel_credentials(folders["south"])),
            bundled.manifest.size,
        )
        revoked = threading.Event()

        def parts():
            yield wire.pb.SubmitPart(header=wire.header_to("south", task.task_id, 0, bundled))
            for at, data in bundle.pieces(bundled.tensors):
                yield wire.pb.SubmitPart(chunk=wire.chunk_to(at, data))
            revoked.wait(20.0)

        upload = stub.SubmitResult.future(parts())
        wait_for(lambda: wire.progress_from(stub.QueryTask(query)).received == size)
        authority.revoke(folders["ca"], "south")
        revoked.set()
        with pytest.raises(grpc.RpcError) as caught:
            upload.result()
        assert "'south' was revoked on" in str(status.from_status(caught.value))
        assert server.app._coordinator.state.accepted == {}


def test_an_operator_that_is_revoked_sees_no_more(folders, tmp_path):
    operator = pki.party(folders["ca"], "operator", "admin")
    spec = make_spec()
    with serving(folders, tmp_path, spec, admin="127.0.0.1:0") as server:
        link(server, spec, "south", folders["south"]).handle(greeting(spec, "south"))
        channel = server.channel(server.addresses.admin, identity.channel_credentials(operator))
        events = admin_pb2_grpc.AdminServiceStub(channel).WatchRun(admin_pb2.WatchRunRequest())
        assert next(events).kind == "joined"
        authority.revoke(folders["ca"], "operator")
        with pytest.raises(grpc.RpcError) as caught:
            list(events)
        assert "'operator' was revoked on" in str(status.from_status(caught.value))


def test_no_holder_of_a_certificate_can_take_the_places_of_others(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        authority.revoke(folders["ca"], "north")
        credentials = identity.channel_credentials(folders["north"])
        channels = [
            server.channel(
                server.addresses.listen, credentials, (("grpc.use_local_subchannel_pool", 1),)
            )
            for _ in range(3)
        ]
        request = health_pb2.HealthCheckRequest()
        # More than the server takes in all.
        held = [health_pb2_grpc.HealthStub(channels[i % 3]).Watch(request) for i in range(150)]
        wait_until(lambda: sum(call.done() for call in held) == 150 - access.CALLS_AT_ONCE)
        refused = next(call for call in held if call.done())
        assert "'north' has 16 calls open" in str(status.from_status(refused))
        assert status.is_retryable(refused)
        link(server, spec, "south", folders["south"]).handle(greeting(spec, "south"))
        for call in held:
            call.cancel()
        wait_until(lambda: not is_refused(channels[0]))


def half_open(server, credentials, method, count, never):
    """Opens calls whose message never comes, 50 a connection; waits until those without a place ended."""
    held = []
    for _ in range(count // 50):
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = server.channel(server.addresses.listen, credentials, options)
        call = channel.stream_unary(f"/fedvi.v1.FederationService/{method}")
        held += [call.future(never()) for _ in range(50)]
    wait_until(lambda: sum(call.done() for call in held) >= count - access.CALLS_AT_ONCE)
    return held


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("Hello", 150),
        ("GetPayload", 150),
        pytest.param("SubmitResult", 400, marks=pytest.mark.nightly),
    ],
)
def test_calls_whose_message_never_comes_take_no_places_of_others(
    folders, tmp_path, monkeypatch, method, count
):
    # What gRPC does not tell a handler of: the call is open, and its one message is not there.
    monkeypatch.setattr(calls, "ASK_SECONDS", 5.0)
    monkeypatch.setattr(service, "CHUNK_SECONDS", 5.0)
    spec, sent = make_spec(), threading.Event()

    def never():
        sent.wait(60.0)
        yield from ()

    with serving(folders, tmp_path, spec) as server, contextlib.ExitStack() as closing:
        closing.callback(sent.set)
        credentials = identity.channel_credentials(folders["north"])
        held = half_open(server, credentials, method, count, never)
        link(server, spec, "south", folders["south"]).handle(greeting(spec, "south"))
        wait_until(lambda: all(call.done() for call in held))
        refused = [str(status.from_status(call)) for call in held]
        said = "nothing came for 5 s" if method == "SubmitResult" else "did not come within 5 s"
        assert sum(said in text for text in refused) == access.CALLS_AT_ONCE
        # Also the site itself comes in again.
        link(server, spec, "north", folders["north"]).handle(greeting(spec, "north"))


@pytest.mark.parametrize("method", ["Hello", "SubmitResult", "GetPayload"])
def test_a_revoked_client_is_refused_before_it_sends_anything(folders, tmp_path, method):
    spec, sent = make_spec(), threading.Event()

    def never():
        sent.wait(30.0)
        yield from ()

    with serving(folders, tmp_path, spec) as server, contextlib.ExitStack() as closing:
        closing.callback(sent.set)
        authority.revoke(folders["ca"], "north")
        channel = server.channel(
            server.addresses.listen, identity.channel_credentials(folders["north"])
        )
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(f"/fedvi.v1.FederationService/{method}")(never(), timeout=20.0)
        assert "'north' was revoked on" in str(status.from_status(caught.value))


def test_a_stranger_fills_no_log_with_refusals(folders, tmp_path):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        authority.revoke(folders["ca"], "north")
        stub = server.federation(identity.channel_credentials(folders["north"]))
        for _ in range(100):
            with pytest.raises(grpc.RpcError):
                stub.Hello(wire.pb.HelloRequest(client="north"))
        told = list(server.admin().WatchRun(admin_pb2.WatchRunRequest(once=True)))
        assert 1 <= sum(event.kind == "refused" for event in told) < 40


@pytest.mark.parametrize("revoked_first", [False, True])
def test_a_stolen_key_takes_no_places_of_the_new_one(folders, tmp_path, revoked_first):
    spec = make_spec()
    with serving(folders, tmp_path, spec) as server:
        thief = server.channel(
            server.addresses.listen, identity.channel_credentials(folders["north"])
        )
        if revoked_first:
            authority.revoke(folders["ca"], "north")
        request = health_pb2.HealthCheckRequest()
        held = [health_pb2_grpc.HealthStub(thief).Watch(request) for _ in range(50)]
        wait_until(lambda: sum(call.done() for call in held) == 50 - access.CALLS_AT_ONCE)
        authority.revoke(folders["ca"], "north")
        asked = enrolment.request(tmp_path / "again", "north", "client", ())
        issued = authority.sign(folders["ca"], asked.path.read_bytes(), new_key=True)
        (tmp_path / "again" / "cert.pem").write_bytes(issued.pem)
        (tmp_path / "again" / "ca.pem").write_bytes((folders["ca"] / "ca.pem").read_bytes())
        link(server, spec, "north", tmp_path / "again").handle(greeting(spec, "north"))
        for call in held:
            call.cancel()


def is_refused(channel):
    try:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    except grpc.RpcError:
        return True
    return False


def wait_until(condition):
    ends = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_site_cannot_pose_as_the_server(folders):
    # Not even one that is named like the server's host.
    evil = pki.party(folders["ca"], "localhost")
    key, certificate = ((evil / name).read_bytes() for name in ("key.pem", "cert.pem"))
    root = (folders["ca"] / "ca.pem").read_bytes()
    posing = grpc.server(futures.ThreadPoolExecutor(1))
    port = posing.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], root, True)
    )
    posing.start()
    credentials = identity.channel_credentials(folders["south"])
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/fedvi.v1.FederationService/Hello")(b"", timeout=5.0)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    posing.stop(None)
