"""Fingerprints tell every difference; private state comes back as it was."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
from fedvi.client import inputs
from fedvi.updates.base import Shard

KEY = bytes(range(32))


def test_equal_input_has_an_equal_fingerprint_whatever_holds_it():
    array = np.arange(6.0).reshape(2, 3)
    fortran = np.asfortranarray(array)
    one = inputs.fingerprint(KEY, "x", {"a": array, "b": "text"})
    assert one == inputs.fingerprint(KEY, "x", {"b": "text", "a": fortran})
    single = array.astype(np.float32)
    assert inputs.fingerprint(KEY, "x", single) == inputs.fingerprint(KEY, "x", jnp.asarray(single))
    assert len(one) == 32


def test_different_input_has_a_different_fingerprint():
    array = np.arange(6.0)
    changed = array.copy()
    changed[5] = np.nextafter(5.0, 6.0)
    values = [
        (array,),
        (changed,),
        (array.astype(np.float32),),
        (array.reshape(2, 3),),
        (array.view(np.int64),),
        (-0.0 * array,),
        (0.0 * array,),
        ({"a": array},),
        ({"b": array},),
        (array, array),
        ((array, array),),
        (array, None),
        (np.zeros((0, 3)),),
        (np.zeros((3, 0)),),
        (np.zeros(()),),
        (0.0,),
        (0,),
        (False,),
        ("0",),
        ("0", "1"),
        ("01",),
        (b"0",),
        (),
        (Shard({"x": array}, np.ones(6, bool)),),
        (Shard({"x": array}, np.arange(6) < 5),),
    ]
    found = [inputs.fingerprint(KEY, "x", *value) for value in values]
    for (first, one), (second, other) in itertools.combinations(zip(values, found, strict=True), 2):
        assert one != other, (first, second)


def test_another_secret_or_purpose_gives_another_fingerprint():
    found = {
        inputs.fingerprint(secret, purpose, 1)
        for secret in (KEY, KEY[::-1])
        for purpose in ("data", "state", "")
    }
    assert len(found) == 6


def test_private_state_comes_back_bit_by_bit():
    state = {"factors": (np.array([np.nan, -0.0, 1e-310]), np.arange(3, dtype=np.int8)), "n": 3}
    packed = inputs.pack(state)
    back = inputs.unpack(packed, state)
    assert back["factors"][0].tobytes() == state["factors"][0].tobytes()
    assert back["factors"][1].dtype == np.int8
    assert int(back["n"]) == 3
    assert inputs.pack(back) == packed
    assert inputs.pack(()) is None
    with pytest.raises(errors.SolverError, match="has 3 arrays, expected 1"):
        inputs.unpack(packed, np.zeros(3))


@pytest.mark.parametrize("leaf", [object(), "text", np.array([{}])])
def test_what_is_no_number_is_not_stored_and_not_shown(leaf):
    with pytest.raises(errors.SolverError, match="expected numbers"):
        inputs.pack({"x": leaf})
