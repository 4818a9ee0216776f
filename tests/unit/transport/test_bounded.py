"""What it costs to parse what a caller sent: never more than some thousand fields."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi import errors
from fedvi.transport import bounded
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.transport._wire import health_pb2


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def within(*numbers: int, content: bytes) -> bytes:
    """Wraps bytes into messages, the outermost field first."""
    for number in reversed(numbers):
        content = varint(number << 3 | 2) + varint(len(content)) + content
    return content


def header(**fields: object) -> pb.SubmitPart:
    tensors = [
        pb.TensorSpec(name=f"array {i}", dtype="<i8", shape=[7] * 16, scale=0.5) for i in range(256)
    ]
    payload = pb.PayloadRef(tensors=tensors, event="{}", sha256=bytes(32), size=8)
    return pb.SubmitPart(header=pb.SubmitHeader(client="a", payload=payload, **fields))


def test_the_largest_header_that_the_server_takes_is_parsed():
    sent = header(task_id="a/0", attempt=3)
    assert bounded.parse(pb.SubmitPart, sent.SerializeToString()) == sent


BOMBS = {
    "empty arrays": within(1, 4, content=b"\x0a\x00" * 2_000_000),
    "one array more than may be": within(1, 4, content=b"\x0a\x00" * (bounded.FIELDS - 1)),
    "lengths of an axis": within(1, 4, 1, 3, content=b"\x01" * 4_000_000),
    "lengths that are not packed": within(1, 4, 1, content=b"\x18\x01" * 2_000_000),
    "fields that nobody knows": b"\xf8\x07\x01" * 1_000_000,
    "messages again and again": b"\x0a\x00" * 2_000_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=list(BOMBS))
def test_a_message_of_many_fields_is_refused(bomb):
    with pytest.raises(errors.ProtocolError, match=r"SubmitPart has more than 8192 fields"):
        bounded.parse(pb.SubmitPart, bomb)


def test_refusing_a_message_of_many_fields_makes_none_of_them():
    # In a process of its own, whose peak no other test has raised.
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import resource\n"
            "from fedvi import errors\n"
            "from fedvi.transport import bounded\n"
            "from fedvi.transport._wire import federation_pb2 as pb\n"
            "from tests.unit.transport.test_bounded import BOMBS\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "for bomb in BOMBS.values():\n"
            "    try: bounded.parse(pb.SubmitPart, bomb)\n"
            "    except errors.ProtocolError: pass\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    unit = 1 if sys.platform == "darwin" else 1024
    # Parsed as they are, the first of them takes 130 MB.
    assert int(said.stdout) * unit < 10_000_000


def test_what_is_compressed_is_refused_with_what_to_do():
    with pytest.raises(errors.ProtocolError, match=r"HelloRequest came compressed") as caught:
        bounded.parse(pb.HelloRequest, b"\x1f\x8b\x08\x00\x00")
    assert "compression" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 40,
        b"\x0a\x05ab",
        b"\x0a",
        b"\x00\x01",
        b"\x0b\x0c",  # a group
        b"\x0d\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        within(1, content=b"\xff"),  # no UTF-8
        within(3, content=b"\x0b"),  # an anchor that is none
    ],
)
def test_bytes_that_are_no_message_are_refused(content):
    with pytest.raises(errors.ProtocolError, match=r"no message fedvi.v1.HelloRequest"):
        bounded.parse(pb.HelloRequest, content)


@given(content=st.binary(max_size=60), kind=st.sampled_from(["HelloRequest", "SubmitPart"]))
def test_whatever_comes_is_parsed_as_protobuf_does_or_refused(content, kind):
    made = getattr(pb, kind)
    try:
        found = bounded.parse(made, content)
    except errors.ProtocolError:
        return
    assert found == made.FromString(content)


@given(
    client=st.text(max_size=20),
    session=st.binary(max_size=20),
    low=st.integers(0, 2**32 - 1),
    count=st.integers(0, 2**64 - 1),
)
def test_what_protobuf_writes_is_parsed(client, session, low, count):
    sent = pb.HelloRequest(
        client=client, session=session, protocol_min=low, anchor=pb.Anchor(count=count)
    )
    assert bounded.parse(pb.HelloRequest, sent.SerializeToString()) == sent
    check = health_pb2.HealthCheckRequest(service=client)
    assert bounded.parse(health_pb2.HealthCheckRequest, check.SerializeToString()) == check
