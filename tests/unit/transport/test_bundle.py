"""Arrays in transit: any cut of their bytes can be put together again, and no other bytes can."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi import errors
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation.messages import Payload, Tensor
from fedvi.transport import bundle, codec


def tensors_of(*sizes):
    rng = np.random.default_rng(0)
    return tuple(
        Tensor(f"t{i}", "<i4", (size,), rng.bytes(4 * size), 0.5) for i, size in enumerate(sizes)
    )


def a_payload(*sizes):
    tensors = tensors_of(*sizes)
    return Payload(tensors, "{}", codec.digest("{}", tensors))


# In numbers of 4 bytes: nothing, less than a chunk, a chunk, and more.
SIZES = st.lists(st.sampled_from([0, 1, 100, 65535, 65536, 65537, 140000]), max_size=4)


@given(SIZES, st.data())
def test_pieces_from_any_offset_are_the_bytes_from_there_on(sizes, data):
    tensors = tensors_of(*sizes)
    whole = b"".join(tensor.data for tensor in tensors)
    offset = data.draw(st.integers(0, len(whole)))
    pieces = list(bundle.pieces(tensors, offset))
    assert b"".join(piece for _, piece in pieces) == whole[offset:]
    at = offset
    for start, piece in pieces:
        assert start == at
        at += len(piece)
    assert all(len(piece) == bundle.CHUNK for _, piece in pieces[:-1])
    assert all(0 < len(piece) <= bundle.CHUNK for _, piece in pieces[-1:])


def test_there_are_no_pieces_beyond_the_end():
    assert list(bundle.pieces(tensors_of(5), 20)) == []
    with pytest.raises(errors.ProtocolError, match="offset is 21, expected at most 20"):
        list(bundle.pieces(tensors_of(5), 21))


@given(SIZES)
def test_what_was_cut_is_put_together_again(sizes):
    payload = a_payload(*sizes)
    bundled = bundle.of_payload(payload)
    buffer = bundle.Buffer(bundled.manifest.size)
    for at, piece in bundle.pieces(bundled.tensors):
        buffer.add(at, piece)
    assert bundle.assemble(bundled.manifest, buffer.data()) == payload


def test_every_change_of_a_manifest_or_a_byte_is_noticed():
    payload = a_payload(3, 2)
    manifest, tensors = bundle.of_payload(payload)
    data = b"".join(tensor.data for tensor in tensors)
    first, second = manifest.specs
    changed = [
        (manifest._replace(event="[]"), data),
        (manifest._replace(sha256="0" * 64), data),
        (manifest._replace(specs=(second, first)), data),
        (manifest._replace(specs=(first,)), data),
        (manifest._replace(specs=(first._replace(name="x"), second)), data),
        (manifest._replace(specs=(first._replace(dtype="<f4", scale=None), second)), data),
        (manifest._replace(specs=(first._replace(shape=(3, 1)), second)), data),
        (manifest._replace(specs=(first._replace(scale=0.25), second)), data),
        *((manifest, data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]) for i in range(len(data))),
    ]
    for wrong, found in changed:
        with pytest.raises(errors.ProtocolError, match="expected"):
            bundle.assemble(wrong, found)
    for found in (data[:-1], data + b"\0", b""):
        with pytest.raises(errors.ProtocolError, match="bytes, expected 20"):
            bundle.assemble(manifest, found)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 0), (1, 4), (4, 4), (0, bundle.CHUNK + 1), (8, 13), (8, 0)]
)
def test_a_piece_that_does_not_follow_is_refused(offset, size):
    buffer = bundle.Buffer(20)
    buffer.add(0, b"12345678")
    with pytest.raises(errors.ProtocolError, match="chunk"):
        buffer.add(offset, bytes(size))
    assert buffer.received == 8
    buffer.add(8, bytes(12))
    assert bytes(buffer.data()) == b"12345678" + bytes(12)


def test_packing_large_arrays_copies_nothing():
    eta = GaussianEta(h=np.ones(3), J=np.eye(3))
    tensors = bundle.of_eta(eta).tensors
    for tensor, leaf in zip(tensors, eta, strict=True):
        assert np.shares_memory(np.frombuffer(tensor.data), leaf)
        assert tensor.data.readonly
