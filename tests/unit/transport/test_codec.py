"""Released integers on the wire: int32 and a public scale, covered by the digest."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
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
