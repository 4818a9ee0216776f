"""Released integers on the wire, int32 and a public scale, covered by the digest; and public trees."""

import hashlib
import time
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import events, release
from fedvi.transport import codec


def on_grid(value, step=0.25):
    """A released value on a grid; the codec does not look at how it came about."""
    return release.disclose(release.OnGrid(value, step), "integers")


def test_integers_travel_as_four_bytes_and_a_scale():
    numbers = np.array([[-(2**31), 3], [0, 2**31 - 1]], np.int32)
    payload = codec.encode(on_grid({"h": jnp.asarray(numbers)}))
    (tensor,) = payload.tensors
    assert (tensor.dtype, tensor.scale, len(tensor.data)) == ("<i4", 0.25, 16)
    value, event = codec.decode(payload)
    assert value["h"].dtype == np.float64
    np.testing.assert_array_equal(value["h"], numbers * 0.25)
    assert not value["h"].flags.writeable
    assert event == events.Unprotected("integers")


def test_long_sums_travel_as_eight_bytes():
    payload = codec.encode(on_grid({"h": np.array([2**40 + 1], np.int64)}))
    assert payload.tensors[0].dtype == "<i8"
    assert codec.decode(payload)[0]["h"].tolist() == [(2**40 + 1) * 0.25]


def test_a_dictionary_may_hold_both_kinds():
    mixed = {"a": release.OnGrid(np.array([4], np.int32), 0.5), "b": np.array([1.5])}
    value, _ = codec.decode(codec.encode(release.disclose(mixed, "q")))
    assert value["a"].tolist() == [2.0]
    assert value["b"].tolist() == [1.5]


def test_the_digest_is_what_it_was():
    """Pinned: two versions of fedvi in one study must agree on it."""
    payload = codec.encode(on_grid({"h": np.array([1, -2], np.int32)}))
    assert payload.sha256 == "f31f2c893ec9532372e874a2ea07657298a940b1f4976d2b6cc3878850d93ab5"


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_parts_of_every_length_are_hashed_one_after_the_other(kind):
    sizes = (0, 8, 1016, 1024, 0, 1032, 8, 2**20)
    data = [bytes([place]) * size for place, size in enumerate(sizes)]
    tensors = [Tensor(f"t{i}", "<f8", (len(d) // 8,), kind(d)) for i, d in enumerate(data)]
    parts = [b"event"]
    for tensor, content in zip(tensors, data, strict=True):
        parts += [tensor.name.encode(), b"<f8", repr(tensor.shape).encode(), content, b""]
    whole = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    assert codec.digest("event", tensors) == hashlib.sha256(whole).hexdigest()


def test_to_hash_ten_times_as_many_short_parts_takes_no_hundred_times_as_long():
    """A site may send any tensors: a server that hashes them answers nobody else meanwhile."""
    tensors = [Tensor("n", "<f8", (127,), bytes(1016))] * 3000
    began = time.process_time()
    codec.digest("", tensors)
    assert time.process_time() - began < 0.5


def test_a_changed_scale_is_noticed():
    payload = codec.encode(on_grid({"h": np.array([1, -2], np.int32)}))
    (tensor,) = payload.tensors
    for scale in (0.5, None, 0.25000000000000006):
        with pytest.raises(errors.ProtocolError, match="sha256"):
            codec.decode(payload._replace(tensors=(tensor._replace(scale=scale),)))


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_does_not_travel(step):
    with pytest.raises(errors.ProtocolError, match="h has scale"):
        codec.encode(on_grid({"h": np.array([1], np.int32)}, step))


def test_floats_have_no_scale():
    with pytest.raises(errors.ProtocolError, match="expected a positive number on integers"):
        codec.encode(on_grid({"h": np.array([1.0])}))


class Pair(NamedTuple):
    left: Any
    right: Any


TREES = [
    GaussianEta(h=np.array([1.0, -0.0]), J=np.array([[2.0, 1e-300], [1e-300, 3.0]])),
    Pair(GaussianEta(np.zeros(0), np.zeros((0, 0))), (np.array(1.5), np.ones((2, 1, 3)))),
    (np.arange(3.0), Pair(np.array([[7.0]]), ())),
    np.linspace(0.0, 1.0, 5),
]
NAMES = [
    ["h", "J"],
    ["left.h", "left.J", "right.0", "right.1"],
    ["0", "1.left"],
    ["value"],
]


@pytest.mark.parametrize(("eta", "names"), list(zip(TREES, NAMES, strict=True)))
def test_a_tree_of_natural_parameters_survives_the_wire(eta, names):
    tensors = codec.pack(eta)
    assert [tensor.name for tensor in tensors] == names
    received = codec.unpack(tensors, like=eta)
    assert type(received) is type(eta)
    for found, sent in zip(tree.leaves(received), tree.leaves(eta), strict=True):
        assert found.shape == sent.shape
        assert found.tobytes() == sent.tobytes()
        assert not found.flags.writeable


def test_arrays_in_another_order_of_memory_are_packed_by_their_values():
    eta = GaussianEta(h=np.arange(6.0)[::2], J=np.arange(9.0).reshape(3, 3).T)
    assert tree.equal(codec.unpack(codec.pack(eta), like=eta), eta)


def test_natural_parameters_that_do_not_fit_are_refused():
    like = TREES[0]
    h, J = codec.pack(like)
    wrong = [
        (),
        (h,),
        (h, J, J),
        (h, h, J),
        (h, J._replace(name="K")),
        (h, J._replace(shape=(4,))),
        (h._replace(dtype="<f4"), J),
        (h._replace(dtype="<i8", scale=0.5), J),
        (h._replace(scale=0.5), J),
        (h._replace(data=h.data[:-1]), J),
        (h._replace(data=np.array([np.nan, 0.0]).tobytes()), J),
        (h, J._replace(data=np.full(4, np.inf).tobytes())),
    ]
    for tensors in wrong:
        with pytest.raises(errors.ProtocolError):
            codec.unpack(tensors, like)


@pytest.mark.parametrize(
    "event",
    [
        "",
        "{",
        "null",
        "[]",
        '{"kind":"unknown"}',
        '{"kind":"gaussian"}',
        '{"kind":"repeated","inner":{"kind":"unprotected","what":"x"},"count":-1}',
        '{"kind":"gaussian","noise_multiplier":NaN,"add_remove":1.0,"substitute":1.0}',
        "[" * 20_000,
        "1" * 5_000,
    ],
)
def test_an_event_that_cannot_be_read_is_a_protocol_error(event):
    tensors = (Tensor("h", "<f8", (1,), bytes(8)),)
    with pytest.raises(errors.ProtocolError, match="the event of a payload cannot be read"):
        codec.decode(Payload(tensors, event, codec.digest(event, tensors)))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor("h", "<f8", (2**40, 2**40), b""), "0 bytes"),
        (Tensor("h", "<f8", (2**63, 0), b""), "shape"),
        (Tensor("h", "<f8", (1,), b"1234567"), "7 bytes"),
        (Tensor("h", "|O", (1,), bytes(8)), "dtype"),
        (Tensor("h", ">f8", (1,), bytes(8)), "dtype"),
        (Tensor("h", "<f8", (1,), bytes(8), 0.5), "scale"),
        (Tensor("h", "<i8", (1,), b"\xff" * 7 + b"\x7f", 1e300), "not finite"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_a_protocol_error(tensor, text):
    event = '{"kind":"unprotected","what":"x"}'
    with pytest.raises(errors.ProtocolError, match=text):
        codec.decode(Payload((tensor,), event, codec.digest(event, (tensor,))))


def test_a_name_that_stands_twice_is_a_protocol_error():
    event = '{"kind":"unprotected","what":"x"}'
    tensors = (Tensor("h", "<f8", (1,), bytes(8)), Tensor("h", "<f8", (1,), bytes(8)))
    with pytest.raises(errors.ProtocolError, match="twice"):
        codec.decode(Payload(tensors, event, codec.digest(event, tensors)))
