"""Keys of steps: the same however many are taken together, and none of the past is left."""

import gc

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.inference import ratchet
from fedvi.privacy import random

ROOT = random.insecure_root(3).key("ratchet")
MANY = 3 * ratchet._EPOCH + 5


@pytest.fixture(autouse=True)
def room_for_many_counts():
    """At night each test compiles for so many counts that two leave no room: see ``room_for_programs``."""
    jax.clear_caches()
    gc.collect()


def words(keys):
    return np.asarray(jax.random.key_data(keys))


def all_taken(counts):
    keys, step, found = ratchet.started(ROOT), 0, []
    for count in counts:
        keys, some = ratchet.taken(keys, step, count)
        assert some.shape == (count,)
        found.append(words(some))
        step += count
    return words(keys), np.concatenate(found)


@pytest.fixture(scope="module")
def together():
    return all_taken([MANY])


@pytest.mark.nightly
@given(cuts=st.lists(st.integers(1, MANY - 1), unique=True, max_size=4))
def test_any_way_to_take_them_gives_the_same(together, cuts):
    ends = [0, *sorted(cuts), MANY]
    left, found = all_taken(np.diff(ends).tolist())
    np.testing.assert_array_equal(found, together[1])
    np.testing.assert_array_equal(left, together[0])


def test_no_key_comes_twice_and_none_is_left(together):
    left, found = together
    assert len({row.tobytes() for row in found}) == MANY
    assert not {row.tobytes() for row in found} & {row.tobytes() for row in left}
    assert (left[1 : 1 + MANY % ratchet._EPOCH] == 0).all()
    assert (left[1 + MANY % ratchet._EPOCH :] != 0).any(axis=1).all()


@pytest.mark.nightly
@given(count=st.integers(1, MANY))
def test_what_is_left_leads_to_no_key_of_the_past(count):
    """Neither as it is nor by what the ratchet itself makes of it."""
    left, found = all_taken([count])
    past = {row.tobytes() for row in found}
    key = jax.random.wrap_key_data(left[0], impl=random.chacha20)
    for _ in range(3):
        made = ratchet.started(key)
        assert not {row.tobytes() for row in words(made)} & past
        key = made[0]
    assert not {row.tobytes() for row in left} & past
