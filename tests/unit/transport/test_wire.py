"""Messages as protobuf: pinned bytes, every message there and back, and nothing odd gets through."""

import contextlib
import math
import time

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation.messages import (
    FAILURES,
    Done,
    Failure,
    Goodbye,
    Hello,
    KeyPart,
    NextTask,
    Payload,
    Receipt,
    Renew,
    Renewed,
    Tensor,
    Wait,
    Welcome,
)
from fedvi.privacy.ledger import Anchor
from fedvi.transport import bundle, codec, wire
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.updates.base import Task
from fedvi.updates.coordinates import Coordinates

DIGEST = "ab" * 32
SESSION = "0e" * 16
ANCHOR = Anchor(4, "cd" * 32)
ETA = GaussianEta(h=np.array([1.0]), J=np.array([[-2.0]]))
AT = Coordinates(np.array([0.0]), np.array([1.5]), 0)
FACTOR = GaussianEta(np.zeros(1), np.zeros((1, 1)))
TASK = Task("north/3", "north", 3, 9, ETA, FACTOR, 0.5, AT)
EVENT = '{"kind":"unprotected","what":"x"}'
TENSORS = (Tensor("h", "<i4", (2,), b"\1\0\0\0\2\0\0\0", 0.25),)
PAYLOAD = Payload(TENSORS, EVENT, codec.digest(EVENT, TENSORS))
LARGE = (Tensor("h", "<f4", (bundle.INLINE,), bytes(4 * bundle.INLINE)),)
LARGE_PAYLOAD = Payload(LARGE, EVENT, codec.digest(EVENT, LARGE))


@pytest.mark.parametrize(
    "known", [{}, {"spread": 0.5, "level": -2.0, "residual": 0.25, "sizes": True}]
)
def test_coordinates_arrive_as_they_were_sent(known):
    sent = TASK._replace(coordinates=AT._replace(**known))
    message = wire.task_to(sent, bundle.of_eta(ETA), bundle.of_eta(FACTOR), 30.0)
    arrived = wire.task_from(message, "north", ETA).task.coordinates
    assert arrived is not None
    assert [part.tolist() for part in arrived[:2]] == [AT.centre.tolist(), AT.scale.tolist()]
    assert arrived[2:] == sent.coordinates[2:]


def test_coordinates_of_several_blocks_arrive_and_fit_them():
    at = Coordinates(np.array([0.5, 0.0, 0.5, 0.0]), np.ones(4), 1, blocks=2)

    def sent(**moved):
        task = TASK._replace(coordinates=at._replace(**moved))
        message = wire.task_to(task, bundle.of_eta(ETA), bundle.of_eta(FACTOR), 30.0)
        return wire.task_from(message, "north", ETA).task.coordinates

    assert (sent().blocks, sent().baselines) == (2, 1)
    assert sent(blocks=1, baselines=2, centre=np.array([0.5, 0.0, 0.0, 0.5])).baselines == 2
    for moved in (
        {"blocks": 3},
        {"blocks": 5},
        {"constant": 2},
        {"baselines": 2},
        {"centre": np.array([0.5, 0.0, 0.0, 0.5])},
    ):
        with pytest.raises(
            errors.ProtocolError, match=r"coordinates (have 4 centres|of 4 columns are in)"
        ):
            sent(**moved)


@pytest.mark.parametrize("wrong", [{"spread": -1.0}, {"level": math.inf}, {"residual": math.nan}])
def test_coordinates_that_no_survey_makes_are_refused(wrong):
    sent = TASK._replace(coordinates=AT._replace(**wrong))
    message = wire.task_to(sent, bundle.of_eta(ETA), bundle.of_eta(FACTOR), 30.0)
    with pytest.raises(errors.ProtocolError, match=f"{next(iter(wrong))} "):
        wire.task_from(message, "north", ETA)


def samples():
    """One message of each kind, with every field set."""
    header = wire.header_to("north", "north/3", 1, bundle.of_payload(PAYLOAD), 8)
    task = wire.task_to(TASK, bundle.of_eta(TASK.posterior), bundle.of_eta(TASK.factor), 30.0)
    hello = wire.hello_to(Hello("north", DIGEST, ANCHOR, SESSION))
    hello.software = "fedvi 0"
    welcome = wire.welcome_to(Welcome(9, ANCHOR), 2)
    welcome.software = "fedvi 0"
    chunk = wire.chunk_to(7, b"\0\xff")
    keys = wire.next_task_to(NextTask("north", SESSION, KeyPart(2, b"\0")))
    messages = [
        header.payload.tensors[0],
        header.payload,
        hello.anchor,
        chunk,
        hello,
        welcome,
        wire.next_task_to(NextTask("north", SESSION), 2.5),
        keys.part,
        task,
        task.coordinates,
        pb.Wait(),
        wire.done_to(Done("finished")),
        pb.NextTaskReply(task=task),
        wire.get_payload_to("north", DIGEST, 300, SESSION),
        header,
        pb.SubmitPart(chunk=chunk),
        wire.receipt_to(Receipt("conflict", 9, ANCHOR)),
        wire.renew_to(Renew("north", "north/3", SESSION)),
        wire.renewed_to(Renewed(True)),
        wire.failure_to(Failure("north", "north/3", "other", SESSION)),
        pb.ReportFailureReply(),
        wire.query_to(wire.Query("north", "north/3", DIGEST, SESSION)),
        wire.progress_to(wire.Progress("accepted", 300)),
        wire.goodbye_to(Goodbye("north", SESSION)),
        pb.GoodbyeReply(),
        pb.ErrorDetail(code="ProtocolError", message="m", hint="h", retryable=True),
    ]
    return {message.DESCRIPTOR.name: message for message in messages}


SAMPLES = samples()

# What went over the wire when the protocol was version 1. Whoever runs an older fedvi reads these:
# a change here is a change of the protocol.
GOLDEN = {
    "Anchor": (
        "080412406364636463646364636463646364636463646364636463646364636463646364636463646364"
        "6364636463646364636463646364636463646364636463646364"
    ),
    "Chunk": "0807120200ff",
    "Coordinates": "0a0800000000000000001208000000000000f83f",
    "Done": "0a0866696e6973686564",
    "ErrorDetail": "0a0d50726f746f636f6c4572726f7212016d1a01682001",
    "GetPayloadRequest": (
        "0a056e6f7274681220abababababababababababababababababababababababababababababababab18"
        "ac0222100e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"
    ),
    "GoodbyeReply": "",
    "GoodbyeRequest": "0a056e6f72746812100e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e",
    "HelloReply": (
        "080912440804124063646364636463646364636463646364636463646364636463646364636463646364"
        "636463646364636463646364636463646364636463646364636463646364180222076665647669203028"
        "8080808004"
    ),
    "HelloRequest": (
        "0a056e6f7274681240616261626162616261626162616261626162616261626162616261626162616261"
        "626162616261626162616261626162616261626162616261626162616261621a44080412406364636463"
        "646364636463646364636463646364636463646364636463646364636463646364636463646364636463"
        "6463646364636463646364636463646364200228023207666564766920303a100e0e0e0e0e0e0e0e0e0e"
        "0e0e0e0e0e0e"
    ),
    "KeyPart": "0802120100",
    "NextTaskReply": (
        "0ae2010a076e6f7274682f3312056e6f7274681803200929000000000000e03f32510a0b0a016812"
        "033c66381a01010a0c0a014a12033c66381a0201011a20a2acce57ced21e3c3838301faaa4f3e861"
        "28c55395036e0fe21cc8b5cfc970a020102a10000000000000f03f00000000000000c03a510a0b0a"
        "016812033c66381a01010a0c0a014a12033c66381a0201011a203d56e517c2b4be448a8a70c404af"
        "1a913a2a64ddd36169e0bd5ecc2b3d4ffa4120102a10000000000000000000000000000000004100"
        "00000000003e404a140a0800000000000000001208000000000000f83f"
    ),
    "NextTaskRequest": ("0a056e6f7274681100000000000004401a100e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"),
    "PayloadRef": (
        "0a140a016812033c69341a010221000000000000d03f12217b226b696e64223a22756e70726f74656374"
        "6564222c2277686174223a2278227d1a20641d1b8f157e800ccb08b85bd597ba8629b7f02a242f5840a8"
        "85e67049f9249920082a080100000002000000"
    ),
    "QueryTaskReply": "080310ac02",
    "QueryTaskRequest": (
        "0a056e6f72746812076e6f7274682f331a20abababababababababababababababababababababababab"
        "abababababababab22100e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"
    ),
    "Receipt": (
        "080310091a44080412406364636463646364636463646364636463646364636463646364636463646364"
        "6364636463646364636463646364636463646364636463646364636463646364"
    ),
    "RenewLeaseReply": "0801",
    "RenewLeaseRequest": ("0a056e6f72746812076e6f7274682f331a100e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"),
    "ReportFailureReply": "",
    "ReportFailureRequest": (
        "0a056e6f72746812076e6f7274682f33180522100e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"
    ),
    "SubmitHeader": (
        "0a056e6f72746812076e6f7274682f33180122670a140a016812033c69341a010221000000000000d03f"
        "12217b226b696e64223a22756e70726f746563746564222c2277686174223a2278227d1a20641d1b8f15"
        "7e800ccb08b85bd597ba8629b7f02a242f5840a885e67049f9249920082a0801000000020000002808"
    ),
    "SubmitPart": "12060807120200ff",
    "Task": (
        "0a076e6f7274682f3312056e6f7274681803200929000000000000e03f32510a0b0a016812033c66"
        "381a01010a0c0a014a12033c66381a0201011a20a2acce57ced21e3c3838301faaa4f3e86128c553"
        "95036e0fe21cc8b5cfc970a020102a10000000000000f03f00000000000000c03a510a0b0a016812"
        "033c66381a01010a0c0a014a12033c66381a0201011a203d56e517c2b4be448a8a70c404af1a913a"
        "2a64ddd36169e0bd5ecc2b3d4ffa4120102a10000000000000000000000000000000004100000000"
        "00003e404a140a0800000000000000001208000000000000f83f"
    ),
    "TensorSpec": "0a016812033c69341a010221000000000000d03f",
    "Wait": "",
}


def test_there_is_a_sample_of_every_message():
    assert sorted(SAMPLES) == sorted(pb.DESCRIPTOR.message_types_by_name) == sorted(GOLDEN)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_bytes_of_a_message_are_what_they_were(name):
    assert SAMPLES[name].SerializeToString(deterministic=True).hex() == GOLDEN[name]
    assert type(SAMPLES[name]).FromString(bytes.fromhex(GOLDEN[name])) == SAMPLES[name]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_fields_of_a_newer_version_are_kept(name):
    # Field 1000, a string.
    newer = SAMPLES[name].SerializeToString() + bytes.fromhex("c23e03") + b"new"
    message = type(SAMPLES[name]).FromString(newer)
    assert b"new" in message.SerializeToString()


def test_numbers_and_words_mean_what_they_did():
    """Independent of the stubs: read off the bytes, by the rules of protobuf."""
    receipts = {
        status: wire.receipt_to(Receipt(status, 0)).SerializeToString()
        for status in ("accepted", "duplicate", "conflict")
    }
    assert receipts == {"accepted": b"\x08\1", "duplicate": b"\x08\2", "conflict": b"\x08\3"}
    failures = [wire.failure_to(Failure("", "", code)).SerializeToString() for code in FAILURES]
    assert failures == [bytes([0x18, number]) for number in range(1, len(FAILURES) + 1)]
    assert wire.chunk_to(1, b"\2").SerializeToString() == bytes.fromhex("0801120102")


def through(message):
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("anchor", [None, ANCHOR])
def test_every_message_comes_back_as_it_was_sent(anchor):
    hello = Hello("north", DIGEST, anchor, SESSION)
    assert wire.hello_from(through(wire.hello_to(hello))) == (hello, 2)
    welcome = Welcome(9, anchor)
    assert wire.welcome_from(through(wire.welcome_to(welcome, 2, 77))) == (welcome, 77)
    assert wire.next_task_from(through(wire.next_task_to(NextTask("n", SESSION), 2.5))) == (
        NextTask("n", SESSION),
        2.5,
    )
    for epoch in (0, 3):
        keys = NextTask("n", SESSION, KeyPart(2, b"\0\xff", epoch))
        assert wire.next_task_from(through(wire.next_task_to(keys, 2.5))) == (keys, 2.5)
    bare = NextTask("n", SESSION, without_factor=True)
    assert wire.next_task_from(through(wire.next_task_to(bare, 2.5))) == (bare, 2.5)
    for wait in (Wait(), Wait((b"\0", b"")), Wait((), 2)):
        assert wire.wait_from(through(wire.wait_to(wait))) == wait
    done = Done("epsilon is spent\n\nhint: none", resumable=True)
    assert wire.done_from(through(wire.done_to(done))) == done
    for status in ("accepted", "duplicate", "conflict"):
        receipt = Receipt(status, 9, anchor)
        assert wire.receipt_from(through(wire.receipt_to(receipt))) == receipt
    for code in FAILURES:
        failure = Failure("north", "north/3", code, SESSION)
        assert wire.failure_from(through(wire.failure_to(failure))) == failure
    for held in (True, False):
        assert wire.renewed_from(through(wire.renewed_to(Renewed(held)))) == Renewed(held)
    renew, goodbye = Renew("north", "north/3", SESSION), Goodbye("north", SESSION)
    assert wire.renew_from(through(wire.renew_to(renew))) == renew
    assert wire.goodbye_from(through(wire.goodbye_to(goodbye))) == goodbye
    query = wire.Query("north", "north/3", DIGEST, SESSION)
    assert wire.query_from(through(wire.query_to(query))) == query
    for status in ("unknown", "open", "accepted", "conflict"):
        progress = wire.Progress(status, 5)
        assert wire.progress_from(through(wire.progress_to(progress))) == progress
    wanted = ("north", DIGEST, 300, SESSION)
    assert wire.get_payload_from(through(wire.get_payload_to(*wanted))) == wanted
    assert wire.chunk_from(through(wire.chunk_to(3, b"abc"))) == (3, b"abc")


@pytest.mark.parametrize(("payload", "inline"), [(PAYLOAD, True), (LARGE_PAYLOAD, False)])
def test_a_payload_travels_within_its_header_if_it_is_small(payload, inline):
    bundled = bundle.of_payload(payload)
    header = wire.header_from(through(wire.header_to("north", "north/3", 2, bundled, 4)))
    assert header[:4] == ("north", "north/3", 2, bundled.manifest)
    assert header.offset == 4
    data = b"".join(tensor.data for tensor in payload.tensors)
    assert header.inline == (data if inline else None)
    assert bundle.assemble(header.manifest, data) == payload
    bare = wire.header_from(through(wire.header_to("north", "north/3", 2, bundled, 4, bare=True)))
    assert bare == header._replace(inline=None)


def test_a_task_comes_back_bit_by_bit():
    message = through(SAMPLES["Task"])
    work = wire.task_from(message, "north", ETA)
    assert work.task == TASK._replace(posterior=None, factor=None)
    assert work.lease_seconds == 30.0
    for (manifest, inline), sent in (
        (work.posterior, TASK.posterior),
        (work.factor, TASK.factor),
    ):
        tensors = bundle.assemble(manifest, inline).tensors
        assert tree.equal(codec.unpack(tensors, ETA), sent)


def test_a_task_comes_without_its_factor_to_whoever_asked_for_that():
    message = through(wire.task_to(TASK, bundle.of_eta(TASK.posterior), None))
    assert wire.task_from(message, "north", ETA, without_factor=True).factor is None
    with pytest.raises(errors.ProtocolError, match="factor is missing"):
        wire.task_from(message, "north", ETA)
    # A server of an earlier version sends it to everyone.
    work = wire.task_from(through(SAMPLES["Task"]), "north", ETA, without_factor=True)
    assert work.factor == wire.task_from(through(SAMPLES["Task"]), "north", ETA).factor


def altered(name, **fields):
    message = through(SAMPLES[name])
    for path, value in fields.items():
        *parents, field = path.split("__")
        target = message
        for parent in parents:
            target = target[int(parent)] if parent.isdigit() else getattr(target, parent)
        if value is None:
            target.ClearField(field)
        elif isinstance(value, list):
            target.ClearField(field)
            getattr(target, field).extend(value)
        else:
            setattr(target, field, value)
    return message


def task_from(message):
    return wire.task_from(message, "north", ETA)


@pytest.mark.parametrize(
    ("read", "name", "fields", "text"),
    [
        (wire.hello_from, "HelloRequest", {"client": ""}, "client is empty"),
        (wire.hello_from, "HelloRequest", {"client": "x" * 257}, "client has 257"),
        (
            wire.hello_from,
            "HelloRequest",
            {"client": "a\x1b[2J"},
            r"client holds U\+001B",
        ),
        (wire.hello_from, "HelloRequest", {"study_digest": ""}, "study_digest is empty"),
        (wire.hello_from, "HelloRequest", {"anchor__hash": ""}, r"anchor\.hash is not 64"),
        (wire.hello_from, "HelloRequest", {"anchor__count": 1 << 63}, r"anchor\.count"),
        (wire.hello_from, "HelloRequest", {"protocol_min": 0}, "protocol 0 to 2"),
        (wire.hello_from, "HelloRequest", {"protocol_max": 0}, "protocol 2 to 0"),
        (
            wire.hello_from,
            "HelloRequest",
            {"protocol_min": 3, "protocol_max": 4},
            "protocol 3 to 4, and this server 2 to 2",
        ),
        (wire.welcome_from, "HelloReply", {"protocol": 3}, "chose protocol 3"),
        (wire.welcome_from, "HelloReply", {"payload_limit": 0}, "payload_limit is 0"),
        (wire.hello_from, "HelloRequest", {"session": b"x"}, "session has 1 bytes"),
        (wire.next_task_from, "NextTaskRequest", {"session": b""}, "session is empty"),
        (wire.query_from, "QueryTaskRequest", {"session": bytes(17)}, "session has 17 bytes"),
        (wire.next_task_from, "NextTaskRequest", {"wait_seconds": 26.0}, "at most 25"),
        (wire.next_task_from, "NextTaskRequest", {"wait_seconds": -1.0}, "wait_seconds is -1"),
        (wire.next_task_from, "NextTaskRequest", {"wait_seconds": math.nan}, "wait_seconds"),
        (
            task_from,
            "Task",
            {"client": "south"},
            "another client, expected 'north'; the server says: .south",
        ),
        (task_from, "Task", {"task_id": ""}, "has another name, expected 'north/3'"),
        (task_from, "Task", {"visit": 1 << 63}, "visit is"),
        (task_from, "Task", {"damping": math.inf}, "damping is inf"),
        (task_from, "Task", {"damping": -1.0}, "damping is -1"),
        (task_from, "Task", {"posterior": None}, "posterior is missing"),
        (task_from, "Task", {"factor": None}, "factor is missing"),
        (task_from, "Task", {"factor__event": "{}"}, r"factor\.event is set"),
        (task_from, "Task", {"factor__size": 17}, r"factor\.size is 17, expected 16"),
        (task_from, "Task", {"factor__inline": b"x"}, r"factor\.inline has 1 bytes"),
        (task_from, "Task", {"factor__sha256": b"x"}, r"factor\.sha256 has 1 bytes"),
        (task_from, "Task", {"factor__tensors__0__name": "x"}, "announced"),
        (task_from, "Task", {"factor__tensors__0__name": "J"}, "a name twice"),
        (task_from, "Task", {"factor__tensors__0__dtype": "<i8"}, "announced"),
        (task_from, "Task", {"factor__tensors__0__scale": 1.0}, "scale"),
        (task_from, "Task", {"lease_seconds": math.inf}, "lease_seconds is inf"),
        (task_from, "Task", {"coordinates__scale": [1.0, 2.0]}, "1 centres and 2 scales"),
        (task_from, "Task", {"coordinates__constant": 1}, "column 1 is said to be constant"),
        (task_from, "Task", {"coordinates__centre": [0.5]}, "a constant column with centre 0"),
        (task_from, "Task", {"coordinates__scale": [math.nan]}, "a number that is not finite"),
        (task_from, "Task", {"coordinates__scale": [0.0]}, "a scale that is not above 0"),
        (wire.header_from, "SubmitHeader", {"payload": None}, "payload is missing"),
        (wire.header_from, "SubmitHeader", {"offset": 9}, "offset is 9, expected at most 8"),
        (wire.header_from, "SubmitHeader", {"payload__tensors__0__name": ""}, "name is empty"),
        (wire.header_from, "SubmitHeader", {"payload__tensors__0__dtype": "|O"}, "dtype"),
        (
            wire.header_from,
            "SubmitHeader",
            {"payload__tensors__0__shape": [1 << 62, 1 << 62]},
            "size",
        ),
        (wire.header_from, "SubmitHeader", {"payload__tensors__0__shape": [1] * 17}, "17 axes"),
        (wire.header_from, "SubmitHeader", {"payload__tensors__0__scale": -1.0}, "scale -1"),
        (wire.header_from, "SubmitHeader", {"payload__event": "x" * 65537}, "event has 65537"),
        (wire.header_from, "SubmitHeader", {"attempt": 1 << 63}, "attempt"),
        (wire.receipt_from, "Receipt", {"status": 0}, "status is 0"),
        (wire.receipt_from, "Receipt", {"status": 4}, "status is 4"),
        (wire.failure_from, "ReportFailureRequest", {"code": 0}, "code is 0"),
        (wire.failure_from, "ReportFailureRequest", {"code": 6}, "code is 6"),
        (wire.progress_from, "QueryTaskReply", {"status": 9}, "status is 9"),
        (wire.query_from, "QueryTaskRequest", {"sha256": b""}, "sha256 has 0 bytes"),
        (wire.renew_from, "RenewLeaseRequest", {"task_id": ""}, "task_id is empty"),
        (wire.goodbye_from, "GoodbyeRequest", {"client": ""}, "client is empty"),
        (wire.get_payload_from, "GetPayloadRequest", {"offset": 1 << 63}, "offset"),
        (wire.chunk_from, "Chunk", {"data": b""}, "0 bytes"),
        (wire.chunk_from, "Chunk", {"data": bytes(bundle.CHUNK + 1)}, "262145 bytes"),
        (wire.next_task_from, "NextTaskRequest", {"client": ""}, "client is empty"),
        (wire.done_from, "Done", {"reason": "a\x1b[2J"}, "printable"),
    ],
)
def test_a_field_that_is_wrong_is_named(read, name, fields, text):
    read(through(SAMPLES[name]))
    with pytest.raises(errors.ProtocolError, match=text):
        read(altered(name, **fields))


def test_a_payload_above_the_limit_is_refused_before_its_bytes_are_there():
    rows = bundle.PAYLOAD_LIMIT // 4 + 1
    spec = pb.TensorSpec(name="h", dtype="<f4", shape=[rows])
    ref = pb.PayloadRef(tensors=[spec], sha256=bytes(32), size=4 * rows)
    with pytest.raises(errors.ProtocolError, match="expected at most 1073741824"):
        wire.ref_from(ref)


def test_a_payload_of_very_many_tensors_is_refused_at_once():
    # A message has room for 200,000; the server would hash them for seconds.
    ref = pb.PayloadRef(sha256=bytes(32))
    for number in range(100_000):
        ref.tensors.add(name=str(number), dtype="<f8", shape=[0])
    began = time.perf_counter()
    with pytest.raises(errors.ProtocolError, match=r"tensors has 100000 entries, expected at most"):
        wire.ref_from(ref)
    assert time.perf_counter() - began < 0.1


def test_an_unknown_word_is_not_sent():
    with pytest.raises(errors.ProtocolError, match="'lost' cannot be sent"):
        wire.receipt_to(Receipt("lost", 1))


READERS = {
    "HelloRequest": wire.hello_from,
    "HelloReply": wire.welcome_from,
    "NextTaskRequest": wire.next_task_from,
    "Task": task_from,
    "Done": wire.done_from,
    "PayloadRef": wire.ref_from,
    "GetPayloadRequest": wire.get_payload_from,
    "Chunk": wire.chunk_from,
    "SubmitHeader": wire.header_from,
    "Receipt": wire.receipt_from,
    "QueryTaskRequest": wire.query_from,
    "QueryTaskReply": wire.progress_from,
    "RenewLeaseRequest": wire.renew_from,
    "RenewLeaseReply": wire.renewed_from,
    "ReportFailureRequest": wire.failure_from,
    "GoodbyeRequest": wire.goodbye_from,
}

_HUGE = st.sampled_from(
    [0, 1, 2, 3, 8, 16, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
)
_VALUES = {
    FieldDescriptor.TYPE_STRING: st.sampled_from(
        [
            "",
            "north",
            "north/3",
            "<f8",
            "<i4",
            "|O",
            "h",
            "J",
            EVENT,
            "{",
            "\0",
            "\x1b[2J",
            "é" * 300,
        ]
    )
    | st.text(max_size=20),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=40)
    | st.sampled_from([bytes(8), bytes(16), bytes(32)]),
    FieldDescriptor.TYPE_UINT64: _HUGE | st.integers(0, 20),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 3),
    FieldDescriptor.TYPE_DOUBLE: st.floats() | st.sampled_from([0.0, 0.5, 1.0, 30.0]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 9),
}


@st.composite
def messages(draw, descriptor):
    """Any message of a kind, half of them near a good one."""
    good = SAMPLES[descriptor.name]
    message = through(good) if draw(st.booleans()) else type(good)()
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        message.ClearField(field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value = messages(field.message_type)
        else:
            value = _VALUES[field.type]
        if isinstance(getattr(message, field.name), (str, bytes, int, float)):
            setattr(message, field.name, draw(value))
        elif field.type != FieldDescriptor.TYPE_MESSAGE or hasattr(
            getattr(message, field.name), "extend"
        ):
            getattr(message, field.name).extend(draw(st.lists(value, max_size=3)))
        else:
            getattr(message, field.name).CopyFrom(draw(value))
    return message


def use(name, found):
    """Does what is done next with what was read: its bytes are put together and decoded."""
    match name:
        case "Task":
            refs = (found.posterior, found.factor)
        case "PayloadRef":
            refs = (found,)
        case "SubmitHeader":
            refs = ((found.manifest, found.inline),)
        case _:
            return
    for manifest, inline in refs:
        payload = bundle.assemble(manifest, inline or b"")
        codec.decode(payload)
        codec.unpack(payload.tensors, ETA)


# Enough for each kind to be met often; more in the profile that searches.
EXAMPLES = max(400, settings.default.max_examples)


@given(st.sampled_from(sorted(READERS)), st.data())
@settings(max_examples=EXAMPLES)
def test_whatever_is_in_a_message_it_is_read_or_refused(name, data):
    message = through(data.draw(messages(pb.DESCRIPTOR.message_types_by_name[name])))
    with contextlib.suppress(errors.ProtocolError):
        use(name, READERS[name](message))


@given(st.sampled_from(sorted(READERS)), st.data())
@settings(max_examples=EXAMPLES)
def test_damaged_bytes_are_read_or_refused(name, data):
    damaged = bytearray(SAMPLES[name].SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        removed = data.draw(st.integers(0, 2))
        damaged[at : at + removed] = data.draw(st.binary(max_size=3))
    try:
        message = type(SAMPLES[name]).FromString(bytes(damaged))
    except DecodeError:
        # gRPC refuses these itself, before any of our code runs.
        return
    with contextlib.suppress(errors.ProtocolError):
        use(name, READERS[name](message))
