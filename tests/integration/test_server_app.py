"""The server over real gRPC on the loopback: what it answers, what it refuses, and that it goes on."""

import contextlib
import logging
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import Done, Goodbye, Hello, NextTask, Offer, Receipt, Submit, Wait
from fedvi.federation.schedules import sequential, synchronous
from fedvi.federation.script import Stage, scripted
from fedvi.privacy import ledger as ledgers
from fedvi.server import app as apps
from fedvi.server import coordinator, logs
from fedvi.server.rpc import calls, service
from fedvi.server.store import uploads
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.watch import places
from fedvi.server.watch.public_values import run_as_dict, where
from fedvi.store.memory import MemoryServerStore
from fedvi.transport import bundle, status, wire
from fedvi.transport._wire import admin_pb2, admin_pb2_grpc, health_pb2
from fedvi.transport._wire import federation_pb2 as pb
from tests.servers import answer, encoded, greeting, make_spec, running, values, wait_for

LARGE = 400  # J has 1.28 MB: more than is kept in memory


def together(server, spec):
    """Lets all clients work to the end, each in a thread."""
    threads = [
        threading.Thread(target=server.work, args=(spec, name, seed))
        for seed, name in enumerate(spec.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()


def refusal(call):
    """Returns the error that a refused call carried, and its status."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return status.from_status(caught.value), caught.value.code()


def parts(header, chunks=()):
    yield pb.SubmitPart(header=header)
    for offset, data in chunks:
        yield pb.SubmitPart(chunk=wire.chunk_to(offset, data))


def offered(link, spec, name):
    """Greets and takes a task."""
    link.handle(greeting(spec, name))
    reply = link.handle(NextTask(name))
    assert isinstance(reply, Offer)
    return reply.task


# The run.


def test_clients_run_to_the_end_and_the_server_ends_once_all_have_heard(tmp_path):
    spec, ends = make_spec(), []
    with running(spec, tmp_path, on_end=ends.append, linger_seconds=60.0) as server:
        together(server, spec)
        # Not stopped by the test: that comes when the block is left.
        wait_for(lambda: server.outcome is not None)
    assert server.outcome.status == "completed"
    assert server.outcome.unheard == ()
    assert server.outcome.state.version == 2
    assert len(ends) == 1
    assert tree.equal(ends[0].posterior, server.outcome.state.posterior)


def test_a_client_that_never_hears_of_the_end_is_waited_for_no_longer_than_the_linger(tmp_path):
    spec = make_spec(rounds=1)
    with running(spec, tmp_path, linger_seconds=1.0) as server:
        first = threading.Thread(target=server.work, args=(spec, "south", 0))
        first.start()
        server.work(spec, "north", 1, answers=1)
        first.join(20.0)
        waited = wait_for(lambda: server.outcome is not None)
    assert server.outcome.unheard == ("north",)
    assert 0.5 < waited < 8.0  # the linger, and the grace for open calls


def test_a_request_for_work_is_answered_as_soon_as_there_is_some(tmp_path):
    spec = make_spec(kind="sequential")
    with running(spec, tmp_path) as server:
        south, north = server.link(spec, "south"), server.link(spec, "north")
        task = offered(south, spec, "south")
        north.handle(greeting(spec, "north"))
        found = []

        def ask():
            found.append(north.handle(NextTask("north")))
            found.append(time.monotonic())

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.5)
        assert not found  # held back: there is nothing to do
        began = time.monotonic()
        south.handle(Submit("south", task.task_id, answer(task)))
        asking.join(20.0)
        assert isinstance(found[0], Offer)
        assert found[1] - began < 10.0


def test_a_request_for_work_comes_back_when_there_is_none(tmp_path):
    spec = make_spec(kind="sequential")
    with running(spec, tmp_path) as server:
        north = server.link(spec, "north", wait_seconds=0.3)
        north.handle(greeting(spec, "north"))
        began = time.monotonic()
        assert north.handle(NextTask("north")) == Wait()
        assert 0.25 < time.monotonic() - began < 10.0


def test_the_server_refuses_to_listen_in_clear_text_to_other_machines(tmp_path):
    spec = make_spec()
    for fields in (
        {"listen": "0.0.0.0:0"},
        {"admin": "192.0.2.1:7444"},
        {"admin": "192.0.2.1:7444", "insecure": True},
    ):
        settings = apps.Settings(tmp_path, "test", **{"listen": "127.0.0.1:0", **fields})
        with pytest.raises(errors.ConfigError, match=r"there is no --tls"):
            apps.App(spec, MemoryServerStore(), settings)


def test_two_servers_cannot_share_a_port(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path / "one") as server:
        listen = server.addresses.listen
        with (
            pytest.raises(errors.TransportError, match=r"cannot be bound"),
            running(spec, tmp_path / "two", listen=listen),
        ):
            pass


# Answers, large and small.


def test_a_large_answer_goes_on_where_it_broke_off_also_after_a_restart(tmp_path):
    spec = make_spec(("south",), LARGE, rounds=1)
    folder, store = tmp_path / "server", MemoryServerStore()
    with running(spec, folder, store) as server:
        link = server.link(spec, "south")
        task = offered(link, spec, "south")
        bundled = bundle.of_payload(answer(task))
        header = wire.header_to("south", task.task_id, 0, bundled)
        pieces = list(bundle.pieces(bundled.tensors))
        error, _ = refusal(
            lambda: server.federation().SubmitResult(parts(header, pieces[:3]), timeout=20)
        )
        assert isinstance(error, errors.TransportError)
        query = wire.Query("south", task.task_id, bundled.manifest.sha256, link._session)
        progress = wire.progress_from(server.federation().QueryTask(wire.query_to(query)))
        assert progress == wire.Progress("open", 3 * bundle.CHUNK)
    (kept,) = (folder / "uploads").iterdir()
    assert kept.stat().st_size == 3 * bundle.CHUNK
    with running(spec, folder, store) as server:
        link = server.link(spec, "south")
        anchor = server.app._coordinator.state.ledgers["south"]
        link.handle(greeting(spec, "south")._replace(anchor=ledgers.anchor(anchor)))
        query = wire.query_to(query._replace(session=link._session))
        progress = wire.progress_from(server.federation().QueryTask(query))
        assert progress == wire.Progress("open", 3 * bundle.CHUNK)
        header = wire.header_to("south", task.task_id, 0, bundled, progress.received)
        rest = bundle.pieces(bundled.tensors, progress.received)
        receipt = wire.receipt_from(server.federation().SubmitResult(parts(header, rest)))
        assert receipt.status == "accepted"
    assert list((folder / "uploads").iterdir()) == []
    change = server.outcome.state.factors["south"]
    assert np.array_equal(change.h, values(task)["h"] - task.posterior.h)


def test_what_was_damaged_on_the_way_is_refused_and_forgotten(tmp_path):
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        task = offered(server.link(spec, "south"), spec, "south")
        bundled = bundle.of_payload(answer(task))
        header = wire.header_to("south", task.task_id, 0, bundled)
        pieces = list(bundle.pieces(bundled.tensors))
        damaged = [*pieces[:-1], (pieces[-1][0], bytes(len(pieces[-1][1])))]
        stub = server.federation()
        error, code = refusal(lambda: stub.SubmitResult(parts(header, damaged)))
        assert isinstance(error, errors.ProtocolError)
        assert "sha256" in str(error)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert list((tmp_path / "uploads").iterdir()) == []
        assert wire.receipt_from(stub.SubmitResult(parts(header, pieces))).status == "accepted"


def test_a_newer_upload_of_the_same_answer_takes_over(tmp_path, monkeypatch):
    begun, begin = [], uploads.Uploads.begin

    def noted(*arguments):
        upload = begin(*arguments)
        begun.append(upload)
        return upload

    monkeypatch.setattr(uploads.Uploads, "begin", noted)
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        link = server.link(spec, "south")
        task = offered(link, spec, "south")
        bundled = bundle.of_payload(answer(task))
        pieces = list(bundle.pieces(bundled.tensors))
        query = wire.query_to(
            wire.Query("south", task.task_id, bundled.manifest.sha256, link._session)
        )
        stub, gone_on = server.federation(), threading.Event()

        def halting():
            yield from parts(wire.header_to("south", task.task_id, 0, bundled), pieces[:2])
            gone_on.wait(20.0)
            yield pb.SubmitPart(chunk=wire.chunk_to(*pieces[2]))

        old = stub.SubmitResult.future(halting())
        wait_for(lambda: wire.progress_from(stub.QueryTask(query)).received == 2 * bundle.CHUNK)
        caught = []

        def newer():
            header = wire.header_to("south", task.task_id, 0, bundled, bundle.CHUNK)
            yield from parts(header, pieces[1:2])
            wait_for(lambda: len(begun) == 2)
            # Only now does the old one go on: what it sends must not get in between.
            gone_on.set()
            caught.append(old.exception(20.0))
            for piece in pieces[2:]:
                yield pb.SubmitPart(chunk=wire.chunk_to(*piece))

        receipt = wire.receipt_from(stub.SubmitResult(newer()))
        assert receipt.status == "accepted"
        assert status.is_retryable(caught[0])


@pytest.mark.parametrize("size", [1, bundle.LEAST_CHUNK - 1])
def test_an_answer_in_crumbs_is_refused(tmp_path, size):
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        task = offered(server.link(spec, "south"), spec, "south")
        bundled = bundle.of_payload(answer(task))
        header = wire.header_to("south", task.task_id, 0, bundled)
        whole = b"".join(data for _, data in bundle.pieces(bundled.tensors))
        stub = server.federation()
        error, _ = refusal(lambda: stub.SubmitResult(parts(header, [(0, whole[:size])])))
        assert isinstance(error, errors.ProtocolError)
        assert f"a chunk has {size} bytes, expected at least {bundle.LEAST_CHUNK}" in str(error)
        least = bundle.LEAST_CHUNK
        chunks = [(at, whole[at : at + least]) for at in range(0, len(whole), least)]
        assert len(chunks[-1][1]) < least
        receipt = stub.SubmitResult(parts(header, chunks))
        assert wire.receipt_from(receipt).status == "accepted"


@pytest.mark.parametrize("size", [2, LARGE])
def test_a_task_comes_without_its_factor_to_whoever_asked_for_that(tmp_path, size):
    spec = make_spec(("south",), size=size)
    with running(spec, tmp_path) as server:
        link = server.link(spec, "south")
        whole = offered(link, spec, "south")
        bare = link.handle(NextTask("south", without_factor=True)).task
        assert bare.factor is None
        assert tree.equal(bare.posterior, whole.posterior)
        assert bare._replace(posterior=None) == whole._replace(posterior=None, factor=None)
        receipt = link.handle(Submit("south", bare.task_id, answer(whole)))
        assert receipt.status == "accepted"


def test_a_task_is_fetched_in_pieces_from_any_offset(tmp_path):
    spec = make_spec(("south", "north"), LARGE)
    with running(spec, tmp_path) as server:
        link, north = server.link(spec, "south"), server.link(spec, "north")
        task = offered(link, spec, "south")
        north.handle(greeting(spec, "north"))
        found = bundle.of_eta(task.posterior)
        whole = b"".join(data for _, data in bundle.pieces(found.tensors))
        stub, start = server.federation(), 3 * bundle.CHUNK + 17
        ask = wire.get_payload_to("south", found.manifest.sha256, start, link._session)
        assert b"".join(chunk.data for chunk in stub.GetPayload(ask)) == whole[start:]
        # Another client holds no task, and gets nothing of this one's.
        foreign = wire.get_payload_to("north", found.manifest.sha256, 0, north._session)
        error, _ = refusal(lambda: list(stub.GetPayload(foreign)))
        assert "of no task that 'north' holds" in str(error)


# What is refused.


def nan(task):
    return encoded({**values(task), "h": np.array([np.nan, 0.0])})


def wrong_shape(task):
    return encoded({**values(task), "h": np.zeros(3)})


def wrong_dtype(task):
    return encoded({**values(task), "h": np.zeros(2, dtype="<f2")})


def wrong_names(task):
    return encoded({"theta": np.zeros(2)})


def wrong_price(task):
    return encoded(values(task), '{"kind":"unprotected","reason":"another"}')


def no_event(task):
    return encoded(values(task), "nothing")


@pytest.mark.parametrize(
    "make", [nan, wrong_shape, wrong_dtype, wrong_names, wrong_price, no_event]
)
def test_an_answer_that_is_wrong_is_refused_by_its_kind_and_the_server_goes_on(tmp_path, make):
    spec = make_spec(("south",), rounds=1)
    with running(spec, tmp_path) as server:
        link = server.link(spec, "south")
        task = offered(link, spec, "south")
        with pytest.raises((errors.ProtocolError, errors.FamilyError)):
            link.handle(Submit("south", task.task_id, make(task)))
        state = server.app._coordinator.state
        assert state.tasks.keys() == {"south"}
        assert state.accepted == {}
        receipt = link.handle(Submit("south", task.task_id, answer(task)))
        assert receipt.status == "accepted"


def test_replayed_foreign_and_stale_answers_change_nothing(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path) as server:
        south, north = server.link(spec, "south"), server.link(spec, "north")
        task = offered(south, spec, "south")
        offered(north, spec, "north")
        payload = answer(task)
        assert south.handle(Submit("south", task.task_id, payload)).status == "accepted"
        before = server.app._coordinator.state
        assert south.handle(Submit("south", task.task_id, payload)).status == "duplicate"
        other = answer(task, seed=5)
        with pytest.raises(errors.ProtocolError, match=r"holds another answer to task 'south/0'"):
            south.handle(Submit("south", task.task_id, other))  # and none of it leaves
        with pytest.raises(errors.ProtocolError, match=r"which it does not hold"):
            north.handle(Submit("north", task.task_id, payload))  # another client's
        with pytest.raises(errors.ProtocolError, match=r"which it does not hold"):
            south.handle(Submit("south", "south/1", payload))  # not handed out yet
        after = server.app._coordinator.state
        assert after.accepted == before.accepted
        assert after.ledgers == before.ledgers
        assert after.version == before.version


@pytest.mark.parametrize("size", [2, LARGE])
def test_other_bytes_that_arrive_are_charged_once_and_end_the_session(tmp_path, size, caplog):
    spec = make_spec(("south", "north"), size)
    with running(spec, tmp_path) as server:
        link, stub = server.link(spec, "south"), server.federation()
        task = offered(link, spec, "south")
        payload, other = answer(task), bundle.of_payload(answer(task, seed=5))
        anchor = link.handle(Submit("south", task.task_id, payload)).anchor
        before = server.app._coordinator.state
        for _ in range(2):
            # Who had asked before the first answer came sends what it was let in with.
            header = wire.header_to("south", task.task_id, 0, other)
            chunks = [] if size == 2 else bundle.pieces(other.tensors)
            receipt = wire.receipt_from(stub.SubmitResult(parts(header, chunks)))
            after = server.app._coordinator.state
            book = after.ledgers["south"]
            assert receipt == Receipt("conflict", before.version, ledgers.anchor(book))
            assert ledgers.state(book, "south/0#1") == "sent"
            assert ledgers.reservations(book) == 2
        assert (after.accepted, after.answers) == (before.accepted, before.answers)
        assert not (tmp_path / "uploads").exists() or not list((tmp_path / "uploads").iterdir())
        # The ledger is that of no copy any more.
        with pytest.raises(errors.HelloNeeded):
            link.handle(NextTask("south"))
        with pytest.raises(errors.LedgerError, match=r"was rolled back"):
            link.handle(Hello("south", spec.study_digest, anchor))
        assert caplog.text.count("south sent other bytes for south/0, charged once more") == 1
        # Nothing is charged for what is no answer of this price.
        header = wire.header_to("south", task.task_id, 0, bundle.of_payload(wrong_price(task)))
        error, _ = refusal(lambda: stub.SubmitResult(parts(header)))
        assert "event of a payload" in str(error)
        assert server.app._coordinator.state.ledgers["south"] == book


def test_a_replayed_large_answer_is_known_by_its_digest_alone_and_its_bytes_are_let_go(tmp_path):
    spec, store = make_spec(("south", "north"), LARGE), MemoryServerStore()

    def left_by_a_kill():
        place = uploads.Uploads(tmp_path / "uploads", 1 << 30)
        place.begin("south", payload.sha256, 1 << 21, 0).close()
        (path,) = (tmp_path / "uploads").iterdir()
        return path

    with running(spec, tmp_path, store) as server:
        link = server.link(spec, "south")
        task = offered(link, spec, "south")
        payload = answer(task)
        assert link.handle(Submit("south", task.task_id, payload)).status == "accepted"
        path = left_by_a_kill()
        header = wire.header_to("south", task.task_id, 0, bundle.of_payload(payload))
        receipt = wire.receipt_from(server.federation().SubmitResult(parts(header)))
        assert receipt.status == "duplicate"
        assert not path.exists()
    path = left_by_a_kill()
    with running(spec, tmp_path, store):
        assert not path.exists()


def test_more_than_the_limit_is_refused_before_it_is_sent(tmp_path):
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path, payload_limit=1_000_000) as server:
        link = server.link(spec, "south")
        task = offered(link, spec, "south")
        header = wire.header_to("south", task.task_id, 0, bundle.of_payload(answer(task)))
        error, _ = refusal(lambda: server.federation().SubmitResult(parts(header)))
        assert "expected at most 1000000" in str(error)
        # The link knows the limit from its Hello.
        with pytest.raises(errors.ProtocolError, match=r"expected at most 1000000"):
            link.handle(Submit("south", task.task_id, answer(task)))


def test_a_message_over_four_mebibytes_is_refused_and_the_server_goes_on(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path) as server:
        channel = server.channel(server.addresses.listen)
        call = channel.unary_unary("/fedvi.v1.FederationService/Hello")
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(5 << 20))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.link(spec, "south").handle(greeting(spec, "south")).version == 0


@pytest.mark.parametrize("content", [b"\xff" * 40, b"\x0a\x05ab", b"\x08\x01"])
def test_bytes_that_are_no_message_are_refused_and_the_server_goes_on(tmp_path, content):
    spec = make_spec()
    with running(spec, tmp_path) as server:
        channel = server.channel(server.addresses.listen)
        for method in ("Hello", "NextTask", "QueryTask", "RenewLease", "ReportFailure"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/fedvi.v1.FederationService/{method}")(content)
        assert server.link(spec, "south").handle(greeting(spec, "south")).version == 0


def test_a_client_that_calls_too_often_is_told_to_wait_and_no_other_is(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path, calls_a_second=1.0) as server:
        stub, refused = server.federation(), None
        for _ in range(400):
            try:
                stub.QueryTask(wire.query_to(wire.Query("south", "south/0", "0" * 64)))
            except grpc.RpcError as error:
                if not isinstance(status.from_status(error), errors.HelloNeeded):
                    refused = error
                    break
        assert refused is not None
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert status.is_retryable(refused)
        assert "too often" in str(status.from_status(refused))
        assert server.link(spec, "north").handle(greeting(spec, "north")).version == 0


def test_a_client_that_did_not_say_hello_to_this_server_is_asked_to(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path) as server, pytest.raises(errors.HelloNeeded):
        server.link(spec, "south").handle(NextTask("south"))


def test_a_client_unknown_to_the_study_or_with_another_study_is_refused(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path) as server:
        with pytest.raises(errors.ProtocolError, match=r"client 'west' is not in the study"):
            server.link(spec, "west").handle(Hello("west", spec.study_digest))
        with pytest.raises(errors.ProtocolError, match=r"read another study"):
            server.link(spec, "south").handle(Hello("south", "cd34"))


def test_a_full_disk_asks_the_client_to_come_again(tmp_path, monkeypatch):
    spec = make_spec(("south",), LARGE, rounds=1)
    free = [10 << 20]
    usage = uploads.shutil._ntuple_diskusage
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda _: usage(1 << 40, 0, free[0]))
    with running(spec, tmp_path) as server:
        reasons = []

        def on_wait(reason):
            reasons.append(reason)
            free[0] = 1 << 38

        link = server.link(spec, "south", on_wait=on_wait)
        task = offered(link, spec, "south")
        assert link.handle(Submit("south", task.task_id, answer(task))).status == "accepted"
        assert "the server's disk has 10 MB free" in reasons[0].server_says


class Failing(MemoryServerStore):
    """A store whose disk is full for a while."""

    failures = 0

    def save(self, state):
        if self.failures:
            self.failures -= 1
            raise errors.LedgerError("/private/place/state.sqlite: disk is full")
        return super().save(state)


def test_a_save_that_fails_changes_nothing_and_is_tried_again(tmp_path, caplog):
    spec, store = make_spec(("south",), rounds=1), Failing()
    with running(spec, tmp_path, store) as server:
        reasons = []
        link = server.link(spec, "south", on_wait=reasons.append)
        task = offered(link, spec, "south")
        store.failures = 2
        assert link.handle(Submit("south", task.task_id, answer(task))).status == "accepted"
        assert len(reasons) == 2
        assert "could not save" in reasons[0].server_says
        assert "/private/place" not in " ".join(map(str, reasons))
    assert server.outcome.state.visits == {"south": 1}


def test_a_mistake_in_the_server_ends_one_call_and_tells_nothing_of_what_it_held(tmp_path):
    def finish(value, task):
        raise RuntimeError(f"h is {value['h']}")

    spec = make_spec(("south",), rounds=1)
    spec = spec._replace(finish={"south": finish})
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.getMessage()} {record.__dict__}")
    logger = logging.getLogger("fedvi.server")
    logger.addHandler(handler)
    try:
        with running(spec, tmp_path) as server:
            link = server.link(spec, "south")
            task = offered(link, spec, "south")
            bundled = bundle.of_payload(answer(task))
            header = wire.header_to("south", task.task_id, 0, bundled)
            with pytest.raises(grpc.RpcError) as caught:
                server.federation().SubmitResult(parts(header))
            assert caught.value.code() == grpc.StatusCode.INTERNAL
            assert link.handle(greeting_again(server, spec, "south")).version == 0
    finally:
        logger.removeHandler(handler)
    assert any("RuntimeError" in line for line in lines)
    number = f"{values(task)['h'][0]:.4f}"
    assert not any(number in line for line in (*lines, str(caught.value)))


def greeting_again(server, spec, name):
    """A Hello of a client whose ledger is as the server's."""
    book = server.app._coordinator.state.ledgers[name]
    return greeting(spec, name)._replace(anchor=ledgers.anchor(book))


# Operators.


def test_an_operator_sees_the_stage_that_a_script_is_at(tmp_path):
    spec = make_spec(schedule=scripted([Stage(synchronous(2)), Stage(sequential(1))]))
    with running(spec, tmp_path) as server:
        for name in spec.clients:
            link = server.link(spec, name, wait_seconds=0.2)
            task = offered(link, spec, name)
            link.handle(Submit(name, task.task_id, answer(task)))
        run = run_as_dict(server.admin().GetRun(admin_pb2.GetRunRequest()))
    assert run["stage"] == {
        "number": 1, "stages": 2, "schedule": "synchronous", "round": 1, "rounds": 2
    }  # fmt: skip
    assert where(run) == "stage 1 of 2, synchronous, round 1 of 2"


def test_an_operator_sees_the_run_and_pauses_resumes_and_stops_it(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path, linger_seconds=30.0) as server:
        stub = server.admin()
        link = server.link(spec, "south", wait_seconds=0.2)
        link.handle(greeting(spec, "south"))
        run = stub.PauseRun(admin_pb2.PauseRunRequest())
        assert run.status == "paused"
        assert link.handle(NextTask("south")) == Wait()
        assert stub.ResumeRun(admin_pb2.ResumeRunRequest()).status == "running"
        task = link.handle(NextTask("south")).task
        run = stub.GetRun(admin_pb2.GetRunRequest())
        rows = {row.name: row for row in run.clients}
        assert rows["south"].state == "working"
        assert rows["south"].task_id == task.task_id
        assert rows["south"].charged == 1
        assert rows["north"].state == "unseen"
        assert sorted(run.awaited) == ["north", "south"]
        assert (run.study, run.study_digest, run.tls) == ("test", "ab12", False)
        paused = stub.PauseRun(admin_pb2.PauseRunRequest())
        assert paused.status == "paused"
        # What is out is still taken.
        assert link.handle(Submit("south", task.task_id, answer(task))).status == "accepted"
        assert stub.StopRun(admin_pb2.StopRunRequest()).status == "stopped"
        assert link.handle(NextTask("south")) == Done("the run was stopped")
        error, _ = refusal(lambda: stub.ResumeRun(admin_pb2.ResumeRunRequest()))
        assert isinstance(error, errors.RunFailed)
    assert server.outcome.status == "stopped"


def test_what_happened_is_told_from_a_cursor_on_until_the_run_ends(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path) as server:
        stub, seen = server.admin(), []

        def watch():
            seen.extend(server.admin().WatchRun(admin_pb2.WatchRunRequest()))

        watching = threading.Thread(target=watch)
        watching.start()
        together(server, spec)
        watching.join(20.0)
        assert not watching.is_alive()
        kinds = [event.kind for event in seen]
        assert kinds.count("joined") == 2
        assert kinds.count("folded") == 2
        # Who hears of the end leaves, perhaps before the log is read for the last time.
        assert set(kinds[kinds.index("status") + 1 :]) <= {"left"}
        assert [event.cursor for event in seen] == list(range(1, len(seen) + 1))
        folds = [event.text for event in seen if event.kind == "folded"]
        assert "round 1/2" in folds[0]
        assert "answered: " in folds[0]
        del stub


def test_the_socket_is_for_its_owner_alone(tmp_path):
    with running(make_spec(), tmp_path) as server:
        path = tmp_path / "admin.sock"
        assert server.addresses.socket == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600


def test_health_says_serving_for_the_server_and_its_services(tmp_path):
    with running(make_spec(), tmp_path) as server:
        stub = server.health()
        for name in ("", "fedvi.v1.FederationService"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        _, code = refusal(lambda: stub.Check(health_pb2.HealthCheckRequest(service="other")))
        assert code == grpc.StatusCode.NOT_FOUND


def test_metrics_count_the_public_transcript(tmp_path):
    spec = make_spec()
    with running(spec, tmp_path, metrics="127.0.0.1:0") as server:
        server.work(spec, "south", answers=1)
        with pytest.raises(errors.ProtocolError):
            server.link(spec, "south").handle(Hello("south", "cd34"))
        with urllib.request.urlopen(f"http://{server.addresses.metrics}/metrics") as reply:
            text = reply.read().decode()
    assert 'fedvi_run_status{status="running"} 1.0' in text
    assert 'fedvi_client_charged_total{client="south"} 1.0' in text
    assert 'fedvi_client{client="north",state="unseen"} 1.0' in text
    assert 'fedvi_calls_total{code="ok",method="Hello"} 1.0' in text
    assert 'fedvi_calls_total{code="ProtocolError",method="Hello"} 1.0' in text


def test_silent_callers_of_the_metrics_take_few_threads_and_are_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "WHOLE_SECONDS", 1.0)
    with running(make_spec(), tmp_path, metrics="127.0.0.1:0") as server:
        host, port = server.addresses.metrics.split(":")
        before = threading.active_count()
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10.0))
                for _ in range(100)
            ]
            assert threading.active_count() < before + 2 * places.PLACES
            said = [caller.recv(12) for caller in silent]
        # Who got a place was cut off in the end, and who got none was told so at once.
        assert set(said) == {b"", b"HTTP/1.0 503"}

        def answers():
            try:
                with urllib.request.urlopen(f"http://{server.addresses.metrics}/metrics") as reply:
                    return "fedvi_version 0.0" in reply.read().decode()
            except urllib.error.HTTPError:
                return False  # the last of those are just being cut off

        wait_for(answers)


def test_callers_that_hold_all_places_of_the_metrics_give_way_to_the_next(tmp_path):
    with running(make_spec(), tmp_path, metrics="127.0.0.1:0") as server:
        host, port = server.addresses.metrics.split(":")
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10.0))
                for _ in range(places.PLACES)
            ]
            time.sleep(places._SURE_SECONDS + 0.2)
            before = time.monotonic()
            with urllib.request.urlopen(f"http://{server.addresses.metrics}/metrics") as reply:
                assert "fedvi_version 0.0" in reply.read().decode()
            # Long before a silent caller is cut off by itself.
            assert time.monotonic() - before < places.SILENT_SECONDS - places._SURE_SECONDS - 0.5
            # The oldest made room, and no other.
            assert silent[0].recv(1) == b""
            silent[1].setblocking(False)
            with pytest.raises(BlockingIOError):
                silent[1].recv(1)


# Its end, and its next beginning.


def test_a_stopped_server_lets_waiting_clients_go_at_once_and_is_taken_up_where_it_was(tmp_path):
    spec, folder = make_spec(kind="sequential"), tmp_path / "s"
    store = SqliteServerStore(folder, spec)
    with running(spec, folder, store) as server:
        south = server.link(spec, "south")
        task = offered(south, spec, "south")
        south.handle(Submit("south", task.task_id, answer(task)))
        session, stub, replies = south._session, server.federation(), []
        link = server.link(spec, "north")
        assert isinstance(link.handle(greeting(spec, "north")), object)
        waiting = threading.Thread(
            target=lambda: replies.append(
                stub.NextTask(wire.next_task_to(NextTask("south", session), 25.0))
            )
        )
        waiting.start()
        time.sleep(0.3)
    waiting.join(5.0)
    assert replies[0].WhichOneof("reply") == "wait"
    assert server.outcome.status == "running"
    before = server.outcome.state
    store.close()
    store = SqliteServerStore(folder, spec)
    with running(spec, folder, store) as server:
        run = server.admin().GetRun(admin_pb2.GetRunRequest())
        assert (run.status, run.version) == ("running", 1)
        after = server.app._coordinator.state
        assert tree.equal(after.posterior, before.posterior)
        assert after.ledgers == before.ledgers
        events = [event.kind for event in store.events()]
        assert events.count("folded") == 1
    store.close()


def test_the_prior_is_worked_on_beside_the_clients(tmp_path):
    spec = make_spec(("prior", "south"), rounds=1)
    spec = spec._replace(headers={"south": spec.headers["south"]})

    def beside(handle):
        handle(Hello("prior", spec.study_digest))
        while not isinstance(reply := handle(NextTask("prior")), Done):
            if isinstance(reply, Offer):
                receipt = handle(Submit("prior", reply.task.task_id, answer(reply.task, 7)))
                assert receipt == Receipt("accepted", receipt.version)

    with running(spec, tmp_path, beside=beside) as server:
        server.work(spec, "south")
    assert server.outcome.status == "completed"
    assert server.outcome.state.visits == {"prior": 1, "south": 1}


def test_a_prior_that_cannot_be_worked_on_ends_the_server_with_its_error(tmp_path):
    def beside(handle):
        raise errors.SolverError("the prior cannot be refined")

    spec = make_spec()
    server = running(spec, tmp_path, beside=beside)
    with pytest.raises(errors.SolverError, match=r"cannot be refined"), server as found:
        wait_for(lambda: found.app._broken is not None)


def test_a_client_that_leaves_is_told_of_and_not_waited_for_at_the_end(tmp_path):
    spec = make_spec(rounds=1)
    with running(spec, tmp_path, linger_seconds=60.0) as server:
        together_threads = threading.Thread(target=server.work, args=(spec, "south", 0))
        together_threads.start()
        link = server.link(spec, "north")
        task = offered(link, spec, "north")
        link.handle(Submit("north", task.task_id, answer(task, 1)))
        link.handle(Goodbye("north"))
        together_threads.join(20.0)
        wait_for(lambda: server.outcome is not None)


def test_chunks_that_stop_coming_end_the_call_and_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "CHUNK_SECONDS", 0.3)
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        link = server.link(spec, "south")
        task = offered(link, spec, "south")
        bundled = bundle.of_payload(answer(task))
        pieces, hold = list(bundle.pieces(bundled.tensors)), threading.Event()

        def slow():
            yield from parts(wire.header_to("south", task.task_id, 0, bundled), pieces[:2])
            hold.wait(20.0)

        stub = server.federation()
        error, _ = refusal(lambda: stub.SubmitResult(slow()))
        hold.set()
        assert "nothing came" in str(error)
        query = wire.query_to(
            wire.Query("south", task.task_id, bundled.manifest.sha256, link._session)
        )
        assert wire.progress_from(stub.QueryTask(query)).received == 2 * bundle.CHUNK


def test_an_upload_that_takes_too_long_in_one_call_goes_on_in_another(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STREAM_SECONDS", 0.3)
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        task = offered(server.link(spec, "south"), spec, "south")
        bundled = bundle.of_payload(answer(task))
        pieces = list(bundle.pieces(bundled.tensors))

        def slow():
            yield from parts(wire.header_to("south", task.task_id, 0, bundled), pieces[:1])
            time.sleep(0.5)
            yield pb.SubmitPart(chunk=wire.chunk_to(*pieces[1]))

        stub = server.federation()
        with pytest.raises(grpc.RpcError) as caught:
            stub.SubmitResult(slow())
        assert status.is_retryable(caught.value)
        assert "was on its way for 0.3 s" in str(status.from_status(caught.value))
        monkeypatch.setattr(service, "STREAM_SECONDS", 60.0)
        header = wire.header_to("south", task.task_id, 0, bundled, bundle.CHUNK)
        assert wire.receipt_from(stub.SubmitResult(parts(header, pieces[1:]))).status == "accepted"


class Iterating:
    """The pieces of a payload; says whether somebody still holds them."""

    held = 0

    def __init__(self, pieces):
        self._pieces = pieces
        Iterating.held += 1

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._pieces)

    def __del__(self):
        Iterating.held -= 1


def test_a_reader_that_stops_is_told_so_once_it_goes_on_and_the_payload_is_let_go(
    tmp_path, monkeypatch
):
    made = bundle.pieces
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        link = server.link(spec, "south")
        sent = bundle.of_eta(offered(link, spec, "south").posterior)
        monkeypatch.setattr(calls, "READ_SECONDS", 0.3)
        monkeypatch.setattr(bundle, "pieces", lambda *arguments: Iterating(made(*arguments)))
        # A window that grows with what the connection bears could hold all of it: this one is fixed.
        stub = server.federation(options=[("grpc.http2.bdp_probe", 0)])
        call = stub.GetPayload(wire.get_payload_to("south", sent.manifest.sha256, 0, link._session))
        found = bytearray(next(call).data)
        wait_for(lambda: server.app._calls.calls["GetPayload", "TooSlow"])
        assert Iterating.held == 0
        error, _ = refusal(lambda: [found.extend(chunk.data) for chunk in call])
        assert isinstance(error, errors.TransportError)
        assert "was not read for 0.3 s" in str(error)
        rest = wire.get_payload_to("south", sent.manifest.sha256, len(found), link._session)
        found += b"".join(chunk.data for chunk in stub.GetPayload(rest))
        assert found == b"".join(data for _, data in made(sent.tensors))


@pytest.mark.parametrize("port", ["socket", "admin"])
def test_an_operator_may_look_at_a_page_as_long_as_it_takes(tmp_path, monkeypatch, port):
    monkeypatch.setattr(calls, "READ_SECONDS", 0.1)
    with running(make_spec(), tmp_path, admin="127.0.0.1:0") as server:
        for _ in range(40):  # more than what is on its way when nobody reads
            server.app._run_log.journal.record_event("refused", "", "x" * 1_000_000)
        stub = admin_pb2_grpc.AdminServiceStub(server.channel(getattr(server.addresses, port)))
        call = stub.WatchRun(admin_pb2.WatchRunRequest(once=True))
        next(call)
        time.sleep(0.5)
        assert len(list(call)) == 39


def test_a_download_that_takes_too_long_in_one_call_is_ended(tmp_path, monkeypatch):
    spec = make_spec(("south",), LARGE, rounds=1)
    with running(spec, tmp_path) as server:
        link = server.link(spec, "south")
        sent = bundle.of_eta(offered(link, spec, "south").posterior)
        monkeypatch.setattr(service, "STREAM_SECONDS", -1.0)
        ask = wire.get_payload_to("south", sent.manifest.sha256, 0, link._session)
        error, _ = refusal(lambda: list(server.federation().GetPayload(ask)))
        assert isinstance(error, errors.TransportError)
        assert "go on where it stopped" in str(error)


def test_a_server_that_cannot_keep_time_stops_and_its_log_says_where(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(logs, "log", lambda *found, **fields: lines.append((*found, fields)))
    spec, record = make_spec(), str(0.8314)

    def tick(self):
        raise KeyError(record)

    server = running(spec, tmp_path)
    failed = pytest.raises(errors.FedviError, match=r"server failed: KeyError at test_server_app")
    with failed, server as found:
        found.link(spec, "south").handle(greeting(spec, "south"))
        monkeypatch.setattr(coordinator.Coordinator, "tick", tick)
        wait_for(lambda: any(line[0] == "error" for line in lines))
        (line,) = (line for line in lines if line[0] == "error")
        assert "the time keeper failed (KeyError at test_server_app.py" in line[1]
        assert record not in str(lines)
        # By itself: nobody stops it.
        wait_for(lambda: not [t for t in threading.enumerate() if t.name == "coordinator_0"])


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_refused_unread_and_the_server_goes_on(tmp_path, compression):
    spec = make_spec()
    with running(spec, tmp_path) as server:
        channel = server.channel(server.addresses.listen)
        call = channel.stream_unary("/fedvi.v1.FederationService/SubmitResult")
        # 4 MB, which come as 4 kB.
        error, code = refusal(
            lambda: call(iter([bytes(4 << 20)]), compression=compression, timeout=20.0)
        )
        assert isinstance(error, errors.ProtocolError)
        # gzip is known by its first bytes; of the other it says how many bytes it saw.
        assert re.search(r"came compressed|\"\d{4} bytes are no message", str(error))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert server.link(spec, "south").handle(greeting(spec, "south")).version == 0
