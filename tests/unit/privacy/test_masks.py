"""Claims about masks and the keys of a pair: masks cancel and hide, and keys are bound to all they name."""

import hashlib
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors
from fedvi.privacy import masks, pairs
from fedvi.privacy.pairs import Member

NAMES = ("north", "east", "south", "west")
TASK = hashlib.sha256(b"task").digest()


def keys_of(count: int, seed: int = 0) -> dict[tuple[int, int], bytes]:
    generator = np.random.default_rng(seed)
    return {pair: generator.bytes(32) for pair in itertools.combinations(range(count), 2)}


def masked(numbers: list[np.ndarray], bits: int, seed: int = 0) -> list[np.ndarray]:
    keys, sites = keys_of(len(numbers), seed), range(len(numbers))
    return [
        masks.mask(
            part,
            [keys[own, other] for other in sites if other > own],
            [keys[other, own] for other in sites if other < own],
            bits,
        )
        for own, part in enumerate(numbers)
    ]


@pytest.mark.parametrize("bits", masks.WIDTHS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_masked_and_plain_sums_are_equal_bit_for_bit(bits: int, data: st.DataObject) -> None:
    count, size = data.draw(st.integers(2, 6)), data.draw(st.integers(0, 20))
    most = 2 ** (bits - 1) // count - 1
    numbers = [
        np.array(
            data.draw(st.lists(st.integers(-most, most), min_size=size, max_size=size)), np.int64
        )
        for _ in range(count)
    ]
    found = masks.opened(masked(numbers, bits), bits)
    assert found.dtype == np.int64
    assert np.array_equal(found, np.sum(numbers, axis=0))


def test_a_sum_without_one_site_is_not_read() -> None:
    parts = masked([np.arange(5)] * 4, 32)
    for left_out in range(4):
        with pytest.raises(errors.ProtocolError, match="do not cancel"):
            masks.opened(parts[:left_out] + parts[left_out + 1 :], 32)


def test_a_sum_of_answers_to_two_tasks_is_not_read() -> None:
    parts, others = masked([np.arange(5)] * 3, 64), masked([np.arange(5)] * 3, 64, seed=1)
    with pytest.raises(errors.ProtocolError, match="were all sites handed the same task"):
        masks.opened([*parts[:2], others[2]], 64)


def test_a_mask_is_chacha20_under_the_whole_key() -> None:

    key = bytes(range(32))
    words = masks.mask(np.zeros(96, np.int64), [key], [], 32)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(400))
    assert words.tobytes() == stream


@pytest.mark.parametrize("index", range(32))
def test_every_byte_of_a_key_changes_the_mask(index: int) -> None:
    key = bytes(range(32))
    other = bytes(b ^ (i == index) for i, b in enumerate(key))
    first, second = (masks.mask(np.zeros(60, np.int64), [k], [], 32) for k in (key, other))
    # Of 64 words of 32 bits, two agree by chance with probability 5e-7.
    assert np.count_nonzero(first == second) < 2


@pytest.mark.parametrize("length", [0, 4, 16, 31, 33])
def test_a_short_key_is_refused(length: int) -> None:
    with pytest.raises(errors.PrivacyError, match=f"has {8 * length} bits, expected 256"):
        masks.mask(np.zeros(3, np.int64), [bytes(length)], [], 32)


def test_a_mask_of_nobody_is_refused() -> None:
    with pytest.raises(errors.PrivacyError, match="no key to mask with"):
        masks.mask(np.zeros(3, np.int64), [], [], 32)


def test_sums_that_no_word_holds_are_refused() -> None:
    assert masks.width(2.0**31 - 1) == 32
    assert masks.width(2.0**31) == 64
    with pytest.raises(errors.PrivacyError, match="expected below 2\\*\\*63"):
        masks.width(2.0**63)


# Keys of pairs.


def site(name: str) -> tuple[pairs.Keys, Member]:
    keys = pairs.new_keys()
    return keys, Member(name, hashlib.sha256(name.encode()).hexdigest(), *keys.public)


@pytest.fixture(scope="module")
def two() -> tuple[tuple[pairs.Keys, Member], tuple[pairs.Keys, Member]]:
    return site("north"), site("east")


def test_both_sites_of_a_pair_have_the_same_secret(two) -> None:
    (keys, north), (others, east) = two
    set_up = pairs.set_up_digest("ab12", [north, east])
    offered = pairs.offer(keys.opened(), north, east, set_up)
    assert len(offered.content) == pairs.OFFER_BYTES
    assert pairs.accept(others.opened(), east, north, set_up, offered.content) == offered.secret
    # Fresh for each offer, by ML-KEM; with X25519 alone it would be the same.
    assert pairs.offer(keys.opened(), north, east, set_up).secret != offered.secret


@pytest.mark.parametrize("at", [0, 500, 1087, 1088, 1119])
def test_an_offer_that_was_changed_is_refused(two, at: int) -> None:
    (keys, north), (others, east) = two
    set_up = pairs.set_up_digest("ab12", [north, east])
    content = bytearray(pairs.offer(keys.opened(), north, east, set_up).content)
    content[at] ^= 1
    with pytest.raises(errors.PrivacyError, match="was changed on its way"):
        pairs.accept(others.opened(), east, north, set_up, bytes(content))


@pytest.mark.parametrize("length", [0, 1, 1119, 1121])
def test_an_offer_of_another_length_is_refused(two, length: int) -> None:
    (_, north), (others, east) = two
    with pytest.raises(errors.PrivacyError, match="not of these sites and keys"):
        pairs.accept(others.opened(), east, north, bytes(32), bytes(length))


def test_sites_that_were_shown_other_keys_do_not_agree(two) -> None:
    (keys, north), (others, east) = two
    third, fourth = site("south")[1], site("south")[1]
    offered = pairs.offer(
        keys.opened(), north, east, pairs.set_up_digest("ab12", [north, east, third])
    )
    other = pairs.set_up_digest("ab12", [north, east, fourth])
    with pytest.raises(errors.PrivacyError, match="must show all sites the same keys"):
        pairs.accept(others.opened(), east, north, other, offered.content)


def test_a_secret_takes_both_private_keys(two) -> None:
    (keys, north), (others, east) = two
    set_up = pairs.set_up_digest("ab12", [north, east])
    content = pairs.offer(keys.opened(), north, east, set_up).content
    stranger = pairs.new_keys()
    for broken in (others._replace(x25519=stranger.x25519), others._replace(mlkem=stranger.mlkem)):
        with pytest.raises(errors.PrivacyError, match="not of these sites"):
            pairs.accept(broken.opened(), east, north, set_up, content)


def test_keys_that_are_none_are_refused(two) -> None:
    (keys, north), (_, east) = two
    for broken in (east._replace(x25519=bytes(32)), east._replace(mlkem=b"short")):
        with pytest.raises(errors.PrivacyError, match="'east' are no keys"):
            pairs.offer(keys.opened(), north, broken, bytes(32))


def test_a_task_has_its_own_mask() -> None:
    secret = bytes(range(32))
    assert len(pairs.mask_key(secret, TASK)) == masks.KEY_BYTES
    assert pairs.mask_key(secret, TASK) != pairs.mask_key(secret, hashlib.sha256(TASK).digest())


def test_a_roster_names_who_signs_and_in_which_order() -> None:
    members = [site(name)[1] for name in NAMES]
    digest = pairs.roster_digest(members)
    assert pairs.roster_digest(members[::-1]) != digest
    assert pairs.roster_digest([members[0]._replace(identity="0" * 64), *members[1:]]) != digest
    # Keys for masks are new for each study; who they are of is not.
    fresh = [m._replace(x25519=bytes(32)) for m in members]
    assert pairs.roster_digest(fresh) == digest
    assert pairs.set_up_digest("ab12", fresh) != pairs.set_up_digest("ab12", members)
    assert pairs.set_up_digest("ab12", members) != pairs.set_up_digest("ab13", members)


def test_secrets_do_not_show() -> None:
    keys, own = site("north")
    offered = pairs.offer(keys.opened(), own, site("east")[1], bytes(32))
    assert repr(keys) == "Keys()"
    assert repr(offered) == "Offered()"
