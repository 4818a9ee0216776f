"""Claims about secrets in shares: T of n make them again, fewer tell nothing, and none changes unseen."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors
from fedvi.privacy import pairs, shares

SECRET = bytes(range(32))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_threshold_of_shares_make_the_secret_again(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    threshold = data.draw(st.integers(1, count))
    secret = data.draw(st.binary(min_size=32, max_size=32))
    made = dict(enumerate(shares.split(secret, threshold, count)))
    left = data.draw(st.permutations(range(count)))[:threshold]
    assert shares.joined({i: made[i] for i in left}, threshold) == secret


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_fewer_shares_fit_every_secret(data: st.DataObject) -> None:
    # For each other secret there is a share that leads to it: so T − 1 of them rule out none.
    threshold = data.draw(st.integers(2, 6))
    made = shares.split(SECRET, threshold, 8)
    wanted = data.draw(st.binary(min_size=32, max_size=32))
    held = {i + 1: int.from_bytes(made[i], "big") for i in range(threshold - 1)}
    held[0] = int.from_bytes(wanted, "big")
    at, total = threshold, 0
    for x, value in held.items():
        for other in held:
            if other != x:
                value = value * (at - other) * pow(x - other, -1, shares.PRIME) % shares.PRIME
        total = (total + value) % shares.PRIME
    last = total.to_bytes(shares.SHARE_BYTES, "big")
    found = dict(enumerate(made[: threshold - 1])) | {threshold - 1: last}
    assert shares.joined(found, threshold) == wanted


def test_every_sharing_draws_new_numbers() -> None:
    made = [tuple(shares.split(SECRET, 3, 4)) for _ in range(50)]
    assert len({share for one in made for share in one}) == 200


def test_too_few_shares_are_refused() -> None:
    made = shares.split(SECRET, 3, 4)
    with pytest.raises(errors.ProtocolError, match="there are 2 shares of a secret, expected 3"):
        shares.joined({0: made[0], 1: made[1]}, 3)


def test_a_share_of_another_secret_is_found_out() -> None:
    first, second = shares.split(SECRET, 3, 4), shares.split(SECRET, 3, 4)
    for place in range(3):
        mixed = dict(enumerate(first[:3])) | {place: second[place]}
        # A number of 521 bits is below 2^256 by chance once in 2^265.
        with pytest.raises(errors.ProtocolError, match="do not belong together"):
            shares.joined(mixed, 3)


@pytest.mark.parametrize(
    ("secret", "threshold", "count"), [(SECRET[:-1], 2, 3), (SECRET, 0, 3), (SECRET, 4, 3)]
)
def test_what_cannot_be_shared_is_refused(secret: bytes, threshold: int, count: int) -> None:
    with pytest.raises(errors.PrivacyError, match="cannot be split"):
        shares.split(secret, threshold, count)


def test_a_sealed_share_is_for_one_pair_task_and_direction() -> None:
    (share,) = shares.split(SECRET, 1, 1)
    task, other = bytes(32), bytes(31) + b"1"
    key = pairs.share_key(SECRET, task, "north")
    sealed = shares.seal(key, share)
    assert len(sealed) == shares.SEALED_BYTES
    assert shares.unseal(key, sealed, "north") == share
    wrong = [
        (pairs.share_key(SECRET, task, "east"), sealed),
        (pairs.share_key(SECRET, other, "north"), sealed),
        (pairs.share_key(pairs.next_secret(SECRET), task, "north"), sealed),
        (pairs.mask_key(SECRET, task), sealed),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (key, sealed[:-1]),
    ]
    for tried, content in wrong:
        with pytest.raises(errors.PrivacyError, match="the share that 'north' sealed"):
            shares.unseal(tried, content, "north")


def test_no_two_keys_of_a_pair_are_the_same() -> None:
    tasks = [bytes(32), bytes(31) + b"1"]
    rounds = [SECRET, pairs.next_secret(SECRET), pairs.next_secret(pairs.next_secret(SECRET))]
    found = [
        *rounds,
        *(pairs.mask_key(s, t) for s, t in itertools.product(rounds, tasks)),
        *(
            pairs.share_key(s, t, name)
            for s, t, name in itertools.product(rounds, tasks, ("north", "east"))
        ),
    ]
    assert len(set(found)) == len(found) == 21
