"""The link over gRPC, against a real server on the loopback."""

import contextlib
import gc
import signal
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation.messages import (
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Noted,
    Offer,
    Payload,
    Receipt,
    Renew,
    Renewed,
    Submit,
    Tensor,
    Wait,
    Welcome,
)
from fedvi.privacy.ledger import Anchor
from fedvi.transport import bundle, codec
from fedvi.transport.grpc import GrpcLink
from fedvi.transport.memory import Link
from fedvi.updates.base import Task
from tests.wire_server import Proxy, Server, serving

DIGEST = "ab" * 32
SMALL = 3
# η of this size has 1.1 MB: more than four chunks, and nothing of it travels inline.
LARGE = 370


def an_eta(size, seed):
    rng = np.random.default_rng(seed)
    return GaussianEta(h=rng.normal(size=size), J=rng.normal(size=(size, size)))


def a_task(size=SMALL, visit=0):
    return Task(f"north/{visit}", "north", visit, 7, an_eta(size, visit), an_eta(size, 99), 0.5)


def a_payload(size=SMALL):
    numbers = np.arange(size * size, dtype="<i4")
    tensors = (Tensor("J", "<i4", (size, size), numbers.tobytes(), 0.25),)
    event = '{"kind":"unprotected","what":"a test"}'
    return Payload(tensors, event, codec.digest(event, tensors))


@contextlib.contextmanager
def a_link(port, size=SMALL, **settings):
    settings = {"delays": (0.01, 0.05), "give_up_after": 10.0, **settings}
    link = GrpcLink(f"127.0.0.1:{port}", "north", an_eta(size, 0), **settings)
    try:
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def connected(server, size=SMALL, **settings):
    with serving(server) as port, a_link(port, size, **settings) as link:
        yield link


def test_every_request_gets_the_reply_of_the_memory_link():
    server = Server([a_task()])
    with connected(server) as link:
        assert isinstance(link, Link)
        anchor = Anchor(4, "cd" * 32)
        assert link.handle(Hello("north", DIGEST, anchor)) == Welcome(3, anchor)
        assert link.handle(Hello("north", DIGEST)) == Welcome(3, None)
        offer = link.handle(NextTask("north"))
        assert isinstance(offer, Offer)
        assert link.handle(Renew("north", "north/0")) == Renewed(True)
        payload = a_payload()
        assert link.handle(Submit("north", "north/0", payload, 2)) == Receipt("accepted", 5)
        assert link.handle(Submit("north", "north/0", payload, 2)) == Receipt("duplicate", 5)
        assert link.handle(Failure("north", "north/0", "solver")) == Noted()
        server.tasks = [Wait(), Done("the schedule has finished")]
        assert link.handle(NextTask("north")) == Wait()
        server.tasks.pop(0)
        assert link.handle(NextTask("north")) == Done("the schedule has finished")
        assert link.handle(Goodbye("north")) == Noted()
    assert [header.attempt for header in server.named("SubmitResult")] == [2, 2]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_task_and_its_answer_arrive_bit_by_bit(size):
    server = Server([a_task(size)])
    with connected(server, size) as link:
        task = link.handle(NextTask("north")).task
        sent = server.tasks[0]
        assert task._replace(posterior=None, factor=None) == sent._replace(
            posterior=None, factor=None
        )
        for name in ("posterior", "factor"):
            received = getattr(task, name)
            assert type(received) is GaussianEta
            assert tree.equal(received, getattr(sent, name))
            assert all(leaf.dtype == np.float64 for leaf in received)
            assert not any(leaf.flags.writeable for leaf in received)
        payload = a_payload(size)
        link.handle(Submit("north", task.task_id, payload))
        assert server.accepted[task.task_id] == payload
        assert codec.decode(server.accepted[task.task_id])[0]["J"].shape == (size, size)
    assert len(server.named("GetPayload")) == (0 if size == SMALL else 2)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_task_arrives_without_its_factor_if_that_is_asked_for(size):
    task = a_task(size)
    server = Server([task])
    with connected(server, size) as link:
        offered = link.handle(NextTask("north", without_factor=True)).task
        assert offered.factor is None
        assert tree.equal(offered.posterior, task.posterior)
        assert len(server.named("GetPayload")) == (0 if size == SMALL else 1)
        assert tree.equal(link.handle(NextTask("north")).task.factor, task.factor)


def test_arrays_that_were_fetched_are_not_fetched_again():
    server = Server([a_task(LARGE)])
    with connected(server, LARGE) as link:
        link.handle(NextTask("north"))
        link.handle(NextTask("north"))
        assert len(server.named("GetPayload")) == 2
        # A new posterior beside the same factor.
        server.tasks = [a_task(LARGE, visit=1)]
        task = link.handle(NextTask("north")).task
        assert tree.equal(task.posterior, server.tasks[0].posterior)
        assert len(server.named("GetPayload")) == 3


def test_a_download_goes_on_where_it_broke_off():
    server = Server([a_task(LARGE)])
    server.break_after = [2 * bundle.CHUNK, 3 * bundle.CHUNK]
    reasons = []
    with connected(server, LARGE, on_wait=reasons.append) as link:
        task = link.handle(NextTask("north")).task
    assert tree.equal(task.posterior, server.tasks[0].posterior)
    assert server.offsets == [0, 2 * bundle.CHUNK, 3 * bundle.CHUNK, 0]
    assert all("(unavailable)" in reason.message for reason in reasons)
    assert {reason.server_says for reason in reasons} == {"broke off"}
    assert len(reasons) == 2


def test_an_upload_goes_on_where_it_broke_off():
    server = Server()
    server.break_after = [bundle.CHUNK, 2 * bundle.CHUNK]
    payload = a_payload(2 * LARGE)
    with connected(server) as link:
        assert link.handle(Submit("north", "north/0", payload)) == Receipt("accepted", 5)
    assert server.offsets[0] == 0
    assert server.offsets == sorted(server.offsets)
    assert server.offsets[-1] >= 2 * bundle.CHUNK
    assert server.accepted["north/0"] == payload


def test_an_answer_whose_receipt_was_lost_is_not_sent_twice():
    server = Server()
    server.faults["Receipt"] = [grpc.StatusCode.UNAVAILABLE]
    payload = a_payload(LARGE)
    with connected(server) as link:
        assert link.handle(Submit("north", "north/0", payload)) == Receipt("duplicate", 5)
    size = sum(len(tensor.data) for tensor in payload.tensors)
    assert server.offsets == [0, size]


def test_an_upload_begins_anew_where_the_server_holds_other_bytes_than_it_was_sent():
    server = Server()
    payload = a_payload(LARGE)
    server.partial[payload.sha256] = bytearray(bundle.CHUNK)
    with connected(server) as link:
        assert link.handle(Submit("north", "north/0", payload)) == Receipt("accepted", 5)
    assert server.offsets == [bundle.CHUNK, 0]
    assert server.accepted["north/0"] == payload


def test_an_answer_that_is_refused_from_its_first_byte_is_sent_once():
    server = Server()
    payload = a_payload(LARGE)._replace(sha256="0" * 64)
    with connected(server) as link, pytest.raises(errors.ProtocolError, match="sha256"):
        link.handle(Submit("north", "north/0", payload))
    assert server.offsets == [0]


def test_other_bytes_for_an_answered_task_are_a_conflict():
    server = Server()
    with connected(server) as link:
        link.handle(Submit("north", "north/0", a_payload(LARGE)))
        for size in (SMALL, LARGE + 1):
            with pytest.raises(
                errors.ProtocolError, match="holds another answer to task 'north/0'"
            ):
                link.handle(Submit("north", "north/0", a_payload(size)))
    # None of them left.
    assert len(server.named("SubmitResult")) == 1


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_older_session_is_refused_before_a_byte_of_its_answer_leaves(size):
    server = Server()
    server.faults["QueryTask"] = [errors.Superseded("another process greeted as 'north' since")]
    with connected(server) as link:
        with pytest.raises(errors.Superseded, match="another process greeted"):
            link.handle(Submit("north", "north/0", a_payload(size)))
        assert server.named("SubmitResult") == []
        # It is not asked twice, nor begun anew where a part had arrived.
        assert len(server.named("QueryTask")) == 1


def test_one_link_is_one_session():
    server = Server()
    with connected(server) as link:
        link.handle(NextTask("north"))
        link.handle(Submit("north", "north/0", a_payload(SMALL)))
        link.handle(Failure("north", "north/0", "other"))
        link.handle(Goodbye("north"))
    with connected(server) as link:
        link.handle(NextTask("north"))
    said = [request.session for _, request in server.heard if hasattr(request, "session")]
    sessions = [each if isinstance(each, str) else each.hex() for each in said]
    assert len(sessions) == 5
    assert len({*sessions[:-1]}) == 1
    assert sessions[-1] != sessions[0]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_bytes_that_arrived_before_are_not_sent_again(size):
    server = Server()
    with connected(server) as link:
        for status in ("accepted", "duplicate"):
            assert link.handle(Submit("north", "north/0", a_payload(size))).status == status
    assert [header.inline is None for header in server.named("SubmitResult")] == [
        size == LARGE,
        True,
    ]


@pytest.mark.parametrize(
    "fault",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        errors.TransportError("client 'north' calls too often"),
    ],
)
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Hello", Hello("north", DIGEST)),
        ("NextTask", NextTask("north")),
        ("GetPayload", NextTask("north")),
        ("SubmitResult", Submit("north", "north/0", a_payload())),
        ("QueryTask", Submit("north", "north/0", a_payload(LARGE))),
        ("RenewLease", Renew("north", "north/0")),
        ("ReportFailure", Failure("north", "north/0", "data")),
        ("Goodbye", Goodbye("north")),
    ],
)
def test_a_call_that_fails_for_now_is_made_again(fault, method, message):
    server = Server([a_task(LARGE)])
    server.faults[method] = [fault, fault]
    reasons = []
    with connected(server, LARGE, on_wait=reasons.append) as link:
        link.handle(message)
    assert len(reasons) == 2
    assert not server.faults[method]


@pytest.mark.parametrize(
    "name",
    sorted(
        {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
        - {"TransportError"}
    ),
)
def test_a_refusal_arrives_as_the_error_that_was_raised(name):
    server = Server()
    planted = getattr(errors, name)("the field is wrong", "do it right")
    server.faults["NextTask"] = [planted]
    with connected(server) as link, pytest.raises(errors.FedviError) as caught:
        link.handle(NextTask("north"))
    assert type(caught.value) is type(planted)
    assert caught.value.server_says == "the field is wrong; hint: do it right"
    assert len(server.heard) == 1


def test_a_fault_in_the_servers_code_is_not_tried_for_ever():
    server = Server()

    def crash(context):
        context.abort(grpc.StatusCode.UNKNOWN, "a mistake")

    server.faults["NextTask"] = [crash] * 100
    with (
        connected(server, delays=(0.001, 0.002)) as link,
        pytest.raises(errors.TransportError, match=r"\(unknown\); .* says: .a mistake"),
    ):
        link.handle(NextTask("north"))
    assert len(server.heard) == 9


def test_a_certificate_that_is_refused_is_an_identity_error():
    server = Server()
    server.faults["Hello"] = [grpc.StatusCode.UNAUTHENTICATED]
    with connected(server) as link, pytest.raises(errors.IdentityError, match="planted"):
        link.handle(Hello("north", DIGEST))


def test_a_server_that_speaks_something_else_is_told_apart():
    other = grpc.server(futures.ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with a_link(port) as link, pytest.raises(errors.ProtocolError, match=r"fedvi\.v1"):
            link.handle(Hello("north", DIGEST))
    finally:
        other.stop(None).wait()


def test_it_gives_up_on_a_server_that_is_not_there():
    with serving(Server()) as port:
        pass
    reasons = []
    begun = time.monotonic()
    with (
        a_link(port, give_up_after=0.5, on_wait=reasons.append) as link,
        pytest.raises(errors.TransportError, match=r"gave up after 0\.5 seconds"),
    ):
        link.handle(Hello("north", DIGEST))
    assert 0.5 <= time.monotonic() - begun < 5.0
    assert reasons


def test_a_goodbye_waits_for_no_server_that_is_not_there():
    with serving(Server()) as port:
        pass
    begun = time.monotonic()
    with (
        a_link(port, give_up_after=None) as link,
        pytest.raises(errors.TransportError, match="gave up after 3 seconds"),
    ):
        link.handle(Goodbye("north"))
    assert time.monotonic() - begun < 6.0


def test_it_waits_for_a_server_that_comes_back():
    with contextlib.ExitStack() as stack:
        with serving(Server()) as port:
            waited = threading.Event()
            link = stack.enter_context(
                a_link(port, give_up_after=None, on_wait=lambda reason: waited.set())
            )
            link.handle(Hello("north", DIGEST))
        replies = []
        thread = threading.Thread(target=lambda: replies.append(link.handle(NextTask("north"))))
        thread.start()
        assert waited.wait(5.0)
        with serving(Server([Done("found again")]), port):
            thread.join(10.0)
    assert replies == [Done("found again")]


def test_a_server_that_comes_back_is_found_before_a_long_wait_is_over():
    with contextlib.ExitStack() as stack:
        waited = threading.Event()
        with serving(Server()) as port:
            link = stack.enter_context(
                a_link(
                    port,
                    give_up_after=None,
                    delays=(10_000.0, 10_000.0),
                    on_wait=lambda reason: waited.set(),
                )
            )
            link.handle(Hello("north", DIGEST))
        replies = []
        thread = threading.Thread(target=lambda: replies.append(link.handle(NextTask("north"))))
        thread.start()
        assert waited.wait(5.0)
        time.sleep(1.0)
        with serving(Server([Done("found again")]), port):
            thread.join(5.0)
    assert replies == [Done("found again")]


def test_closing_ends_a_long_wait():
    with serving(Server()) as port:
        pass
    waited, caught = threading.Event(), []

    def ask():
        try:
            link.handle(NextTask("north"))
        except errors.TransportError as error:
            caught.append(error.message)

    with a_link(
        port,
        give_up_after=None,
        delays=(10_000.0, 10_000.0),
        on_wait=lambda reason: waited.set(),
    ) as link:
        thread = threading.Thread(target=ask)
        thread.start()
        assert waited.wait(5.0)
    thread.join(1.0)
    assert caught == ["the link to the server is closed"]


@pytest.mark.parametrize("direction", ["down", "up"])
def test_dropped_connections_cost_only_what_was_under_way(direction):
    server = Server([a_task(3 * LARGE)])
    payload = a_payload(6 * LARGE)
    # 9.9 and 19.7 MB over connections that are cut after some megabytes each.
    cuts = [1_000, 900_000, 3_000_000, 2_500_000, 40_000, 5_000_000, 4_000_000]
    with serving(server) as port, contextlib.closing(Proxy(port, cuts)) as proxy:
        with a_link(proxy.port, 3 * LARGE, give_up_after=30.0) as link:
            if direction == "down":
                task = link.handle(NextTask("north")).task
                assert tree.equal(task.posterior, server.tasks[0].posterior)
            else:
                assert link.handle(Submit("north", "north/0", payload)).status in (
                    "accepted",
                    "duplicate",
                )
                assert server.accepted["north/0"] == payload
        assert proxy.connections > 3
    # It went on, and did not begin anew each time.
    assert len({offset for offset in server.offsets if offset}) >= 2


def test_a_task_that_is_withdrawn_while_it_is_fetched_is_asked_for_again():
    server = Server([a_task(LARGE)])

    def withdraw(context):
        server.tasks = [a_task(LARGE, visit=1)]

    server.faults["GetPayload"] = [withdraw]
    with connected(server, LARGE) as link:
        assert link.handle(NextTask("north")).task.task_id == "north/1"
    server = Server([a_task(LARGE)])
    server.faults["GetPayload"] = [errors.ProtocolError("not yours")] * 3
    with connected(server, LARGE) as link, pytest.raises(errors.ProtocolError, match="not yours"):
        link.handle(NextTask("north"))


def test_a_task_of_other_shapes_is_refused_before_its_bytes_are_asked_for():
    server = Server([a_task(LARGE)])
    with connected(server, SMALL) as link, pytest.raises(errors.ProtocolError, match="announced"):
        link.handle(NextTask("north"))
    assert not server.named("GetPayload")


def test_an_answer_above_the_servers_limit_stays_here():
    server = Server()
    server.payload_limit = 10
    with connected(server) as link:
        link.handle(Hello("north", DIGEST))
        with pytest.raises(errors.ProtocolError, match="expected at most 10"):
            link.handle(Submit("north", "north/0", a_payload()))
    assert not server.named("SubmitResult")


def test_a_link_carries_the_requests_of_one_client():
    with a_link(1) as link, pytest.raises(errors.ProtocolError, match="'south'"):
        link.handle(NextTask("south"))


def test_the_server_hears_of_a_task_until_it_is_answered():
    server = Server([a_task()], lease_seconds=0.15)
    with connected(server) as link:
        task = link.handle(NextTask("north")).task
        time.sleep(0.5)
        assert len(server.named("RenewLease")) >= 4
        link.handle(Submit("north", task.task_id, a_payload()))
        time.sleep(0.1)
        heard = len(server.named("RenewLease"))
        time.sleep(0.3)
        assert len(server.named("RenewLease")) == heard


@pytest.mark.parametrize("lease", [1e300, 5e-324])
def test_no_lease_breaks_the_heartbeat_or_makes_it_a_flood(lease, monkeypatch):
    waits = []
    link = GrpcLink("127.0.0.1:1", "north", None)
    monkeypatch.setattr(link._heartbeat, "start", lambda interval, _: waits.append(interval))
    link._beat("north/0", lease)
    link.close()
    assert 0.01 <= waits[0] <= 3600.0


def beating():
    return [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


@pytest.mark.parametrize("answers", [False, True], ids=["with_a_task", "at_rest"])
@pytest.mark.parametrize("lease", [0.15, 60.0])
def test_the_thread_of_a_link_that_was_dropped_ends(lease, answers):
    others = beating()
    server = Server([a_task()], lease_seconds=lease)
    with serving(server) as port:
        link = GrpcLink(f"127.0.0.1:{port}", "north", an_eta(SMALL, 0))
        link.handle(NextTask("north"))
        if answers:
            link.handle(Submit("north", "north/0", a_payload()))
        (thread,) = set(beating()).difference(others)
        # Nothing but time would wake it, and that in 20 s, or never.
        time.sleep(0.2)
        assert thread.is_alive()
        del link
        gc.collect()
        thread.join(5.0)
        assert not thread.is_alive()
        heard = len(server.named("RenewLease"))
        time.sleep(0.2)
        assert len(server.named("RenewLease")) == heard


def test_one_thread_serves_the_leases_of_all_tasks_of_a_link():
    others = beating()
    server = Server([a_task()], lease_seconds=60.0)
    with connected(server) as link:
        link.handle(NextTask("north"))
        (thread,) = set(beating()).difference(others)
        link.handle(Submit("north", "north/0", a_payload()))
        # The thread sleeps for 20 s, and is woken for a lease that ends before.
        server.tasks, server.lease_seconds = [a_task(visit=1)], 0.15
        link.handle(NextTask("north"))
        time.sleep(0.5)
        assert len(server.named("RenewLease")) >= 4
        assert {renew.task_id for renew in server.named("RenewLease")} == {"north/1"}
        assert set(beating()).difference(others) == {thread}
    thread.join(5.0)
    assert not thread.is_alive()


def test_a_heartbeat_outlives_a_server_that_is_away():
    server = Server([a_task()], lease_seconds=0.15)
    server.faults["RenewLease"] = [grpc.StatusCode.UNAVAILABLE] * 2
    with connected(server) as link:
        link.handle(NextTask("north"))
        time.sleep(0.5)
    assert len(server.named("RenewLease")) >= 4


def test_closing_ends_a_call_that_waits_at_the_server():
    server = Server()
    server.faults["NextTask"] = [lambda context: time.sleep(1.0)]
    caught = []
    with connected(server, give_up_after=None) as link:

        def ask():
            try:
                link.handle(NextTask("north"))
            except errors.TransportError as error:
                caught.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.named("NextTask"):
            time.sleep(0.01)
        link.close()
        thread.join(5.0)
        assert "closed" in str(caught[0])
        with pytest.raises(errors.TransportError, match="closed"):
            link.handle(NextTask("north"))


def test_a_signal_reaches_a_client_that_waits():
    class Terminated(Exception):
        pass

    def stop(number, frame):
        raise Terminated

    server = Server()
    server.faults["NextTask"] = [lambda context: time.sleep(3.0)]
    before = signal.signal(signal.SIGUSR1, stop)
    main = threading.get_ident()
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        with connected(server) as link:
            timer.start()
            begun = time.monotonic()
            with pytest.raises(Terminated):
                link.handle(NextTask("north"))
            assert time.monotonic() - begun < 2.0
            # The link still works: there is a goodbye to say.
            assert link.handle(Goodbye("north")) == Noted()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
