"""Whatever bytes a caller sends, the server answers or refuses, changes nothing, and goes on."""

import grpc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedvi.federation.messages import NextTask, Offer, Submit
from fedvi.transport import bundle, wire
from fedvi.transport._wire import federation_pb2 as pb
from tests.servers import answer, greeting, make_spec, running

SERVICE = "/fedvi.v1.FederationService"
UNARY = ("Hello", "NextTask", "RenewLease", "ReportFailure", "QueryTask")


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A server that waits for one answer, and what belongs to that task."""
    spec = make_spec(("south", "north"))
    with running(spec, tmp_path_factory.mktemp("state"), calls_a_second=1e6) as server:
        link = server.link(spec, "south")
        link.handle(greeting(spec, "south"))
        offer = link.handle(NextTask("south"))
        assert isinstance(offer, Offer)
        bundled = bundle.of_payload(answer(offer.task))
        header = wire.header_to("south", offer.task.task_id, 0, bundled)
        yield server, spec, header, link, offer.task


def mutated(data, message: bytes) -> bytes:
    """Changes, drops or adds a few bytes."""
    content = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(content) - 1)))
        match data.draw(st.sampled_from(("change", "drop", "add"))):
            case "change" if content:
                content[place] = data.draw(st.integers(0, 255))
            case "drop":
                del content[place : place + data.draw(st.integers(1, 8))]
            case _:
                content[place:place] = data.draw(st.binary(min_size=1, max_size=8))
    return bytes(content)


def messages(spec, header):
    return {
        "Hello": wire.hello_to(greeting(spec, "north")),
        "NextTask": pb.NextTaskRequest(client="north", wait_seconds=0.01),
        "RenewLease": pb.RenewLeaseRequest(client="south", task_id=header.task_id),
        "ReportFailure": pb.ReportFailureRequest(client="north", task_id="north/0", code=3),
        "QueryTask": pb.QueryTaskRequest(
            client="south", task_id=header.task_id, sha256=header.payload.sha256
        ),
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(method=st.sampled_from(UNARY), data=st.data())
def test_fuzzed_calls_are_answered_or_refused(held, method, data):
    server, spec, header, _, _ = held
    content = mutated(data, messages(spec, header)[method].SerializeToString())
    call = server.channel(server.addresses.listen).unary_unary(f"{SERVICE}/{method}")
    try:
        call(content, timeout=30.0)
    except grpc.RpcError as error:
        assert error.code() in (  # noqa: PT017 - an answer is as good as a refusal
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
        )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@example(data=None)
def test_fuzzed_answers_are_refused_or_are_the_answer(held, data):
    server, _, header, _, _ = held
    before = server.app._coordinator.state
    whole = pb.SubmitPart(header=header).SerializeToString()
    content = b"" if data is None else mutated(data, whole)
    call = server.channel(server.addresses.listen).stream_unary(f"{SERVICE}/SubmitResult")
    try:
        call(iter([content]), timeout=30.0)
    except grpc.RpcError as error:
        assert error.code() != grpc.StatusCode.INTERNAL  # noqa: PT017
        assert error.code() != grpc.StatusCode.UNKNOWN  # noqa: PT017
        assert server.app._coordinator.state.accepted == before.accepted
        assert server.app._coordinator.state.ledgers == before.ledgers


def test_after_all_that_the_true_answer_is_taken(held):
    server, _, header, link, task = held
    assert not any(code == "internal" for _, code in dict(server.app._calls.calls))
    receipt = link.handle(Submit("south", header.task_id, answer(task)))
    assert receipt.status in ("accepted", "duplicate")
