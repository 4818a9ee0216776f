"""Secrets, keys and ChaCha20: published vectors, streams that never meet, and nothing under a trace."""

import hashlib
import hmac
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.privacy import random

ZEROS = "00" * 32
COUNTED = bytes(range(32)).hex()
# RFC 8439: (key, nonce, counter, keystream block); §2.3.2, then appendix A.1, numbers 1 to 5.
VECTORS = {
    "2.3.2": (
        COUNTED,
        "000000090000004a00000000",
        1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1 #1": (
        ZEROS,
        "00" * 12,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1 #2": (
        ZEROS,
        "00" * 12,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "A.1 #3": (
        "00" * 31 + "01",
        "00" * 12,
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "A.1 #4": (
        "00ff" + "00" * 30,
        "00" * 12,
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "A.1 #5": (
        ZEROS,
        "00" * 11 + "02",
        0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}


def words(text):
    return jnp.asarray(np.frombuffer(bytes.fromhex(text), dtype="<u4"), jnp.uint32)


def key(seed=0, *label):
    return random.insecure_root(seed).key(*label)


def data(keys):
    return np.asarray(jax.random.key_data(keys))


@pytest.mark.parametrize("name", VECTORS)
def test_a_block_is_the_one_of_rfc_8439(name):
    secret, nonce, counter, expected = VECTORS[name]
    found = random.block(words(secret), jnp.uint32(counter), words(nonce))
    assert np.asarray(found).astype("<u4").tobytes().hex() == expected


def openssl_blocks(key_bytes, nonce, count):
    """The keystream by the package cryptography: uint32 [count, 16]."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(
        algorithms.ChaCha20(key_bytes, (0).to_bytes(4, "little") + nonce), mode=None
    ).encryptor()
    return np.frombuffer(stream.update(bytes(64 * count)), "<u4").reshape(count, 16)


def openssl_stream(raw, use, detail, count):
    nonce = np.array([use, detail, 0], "<u4").tobytes()
    return openssl_blocks(raw, nonce, count)


@pytest.mark.nightly(only=("1050000-28-2344", "70000-2-2188", "1000-2-32"))
@pytest.mark.parametrize(
    ("size", "groups", "each"),
    [
        (1, 1, 1),
        (250, 1, 16),
        (1_000, 2, 32),
        (1_024, 1, 64),
        (40_000, 1, 2_500),
        (70_000, 2, 2_188),
        (80_000, 2, 2_500),
        (1_000_000, 25, 2_500),
        (1_050_000, 28, 2_344),
    ],
)
def test_bits_are_the_keystream_group_by_group(size, groups, each):
    # OpenSSL is the oracle. A group gives the first words of its blocks first; the last sizes are
    # those of 62,500 blocks, in one chunk, and of more, in two.
    secret = key()
    drawn = np.asarray(jax.random.bits(secret, (size,), jnp.uint32))
    stream = openssl_stream(data(secret).astype("<u4").tobytes(), 1, 32, groups * each)
    ordered = stream.reshape(groups, each, 16).transpose(0, 2, 1).ravel()
    assert groups * each * 16 >= size
    np.testing.assert_array_equal(drawn, ordered[:size])


@pytest.mark.parametrize("width", [8, 16, 64])
def test_bits_of_other_widths_have_keystreams_of_their_own(width):
    secret = key()
    with jax.enable_x64(True):
        drawn = np.asarray(jax.random.bits(secret, (10 * 512 // width,), f"uint{width}"))
    stream = openssl_stream(data(secret).astype("<u4").tobytes(), 1, width, 10)
    np.testing.assert_array_equal(drawn.view(np.uint32), stream.T.ravel())


def test_counters_that_would_wrap_are_refused():
    raw = jax.ShapeDtypeStruct((8,), jnp.uint32)
    for draw in (
        lambda raw: random._random_bits(raw, 32, (2**36 + 1,)),
        lambda raw: random._random_bits(raw, 8, (2**37, 3)),
        lambda raw: random._split(raw, (2**33 + 1,)),
    ):
        with pytest.raises(errors.PrivacyError, match=r"expected at most 2\^32"):
            jax.eval_shape(draw, raw)


def test_split_and_fold_in_are_the_keystreams_of_their_nonces():
    secret = key()
    raw = data(secret).astype("<u4").tobytes()
    children = data(jax.random.split(secret, 9))
    assert (children == openssl_stream(raw, 2, 0, 5).reshape(10, 8)[:9]).all()
    folded = data(jax.random.fold_in(secret, 7))
    assert (folded == openssl_stream(raw, 3, 0, 8)[7, :8]).all()


def test_split_keeps_its_children_whatever_their_number_and_shape():
    few, many = jax.random.split(key(), 3), jax.random.split(key(), (5, 4))
    assert (data(few) == data(many).reshape(20, 8)[:3]).all()


def test_no_two_of_a_hundred_thousand_derived_keys_are_equal():
    root = key()
    children = jax.random.split(root, 50_000)
    folded = jax.vmap(lambda number: jax.random.fold_in(root, number))(jnp.arange(40_000))
    grandchildren = jax.vmap(lambda child: jax.random.split(child, 100))(children[:100])
    everything = np.concatenate(
        [data(keys).reshape(-1, 8) for keys in (root, children, folded, grandchildren)]
    )
    assert len(np.unique(everything, axis=0)) == len(everything) == 100_001


@pytest.mark.nightly
def test_what_split_fold_in_and_bits_give_does_not_overlap():
    secret = key()
    streams = [
        np.asarray(jax.random.bits(secret, (4000,), jnp.uint32)),
        np.asarray(jax.random.bits(secret, (8000,), jnp.uint16)).view(np.uint32),
        np.asarray(jax.random.bits(secret, (16000,), jnp.uint8)).view(np.uint32),
        data(jax.random.split(secret, 500)).ravel(),
        data(jax.vmap(lambda at: jax.random.fold_in(secret, at))(jnp.arange(500))).ravel(),
    ]
    # 20,000 words: 0.05 chance pairs are expected, an overlap of one block makes eight or more.
    assert len(np.unique(np.concatenate(streams))) > 20_000 - 4


def test_planted_a_shared_nonce_makes_streams_overlap(monkeypatch):
    monkeypatch.setattr(random, "_nonce", lambda use, detail=0: jnp.zeros(3, jnp.uint32))
    secret = random.insecure_root(99).key("planted")
    raw = jax.random.key_data(secret)
    bits = np.asarray(random._random_bits(raw, 32, (16,)))
    assert (np.asarray(random._split(raw, (2,))).ravel() == bits).all()


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_bytes_of_every_width_are_uniform(dtype):
    drawn = np.asarray(jax.random.bits(key(1), (100_003,), dtype))
    assert drawn.dtype == dtype
    assert drawn.shape == (100_003,)
    everything = drawn.view(np.uint8)
    counts = np.bincount(everything, minlength=256)
    # False alarm 1e-6 on each side; the seed is fixed.
    assert 1e-6 < scipy.stats.chisquare(counts).pvalue < 1 - 1e-6
    ones = np.unpackbits(everything).mean(dtype=float)
    assert abs(ones - 0.5) < 5.0 * 0.5 / np.sqrt(8 * everything.size)


def test_a_width_of_64_bits_takes_both_words():
    with jax.enable_x64(True):
        drawn = np.asarray(jax.random.bits(key(2), (10_001,), jnp.uint64))
    assert drawn.dtype == np.uint64
    counts = np.bincount(drawn.view(np.uint8), minlength=256)
    assert 1e-6 < scipy.stats.chisquare(counts).pvalue < 1 - 1e-6
    assert len(np.unique(drawn)) == 10_001


def correlations(first, second):
    """√n times the correlation at every lag of up to 64, and across."""
    n = len(first)
    first, second = (first - first.mean()) / first.std(), (second - second.mean()) / second.std()
    lags = [first[lag:] @ first[: n - lag] for lag in range(1, 65)]
    cross = [first[lag:] @ second[: n - lag] for lag in range(65)]
    return np.array(lags + cross) / np.sqrt(n)


def test_noise_is_uncorrelated_along_a_stream_and_across_keys():
    size = 70_000  # more than one chunk
    left, right = jax.random.split(key(3))
    first, second = (np.asarray(jax.random.normal(k, (size,)), float) for k in (left, right))
    # 129 correlations at 4.5 standard errors: false alarm 1e-3; the seed is fixed.
    assert np.abs(correlations(first, second)).max() < 4.5
    assert scipy.stats.kstest(first, "norm").pvalue > 1e-4
    # The planted bug: two clients with one key.
    again = np.asarray(jax.random.normal(left, (size,)), float)
    assert np.abs(correlations(first, again)).max() > 4.5


@pytest.mark.nightly
def test_keys_work_under_jit_vmap_and_scan_alike():
    keys = jax.random.split(key(4), 6)
    one_by_one = np.stack([np.asarray(jax.random.normal(k, (33,))) for k in keys])
    mapped = jax.jit(jax.vmap(lambda k: jax.random.normal(k, (33,))))(keys)
    _, scanned = jax.lax.scan(lambda c, k: (c, jax.random.normal(k, (33,))), 0, keys)
    # Bits are equal; the normals of them may be compiled differently by a rounding.
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scanned, one_by_one, rtol=1e-5, atol=1e-6)
    raw = jax.vmap(lambda k: jax.random.bits(k, (70_000,), jnp.uint32))(keys[:2])
    assert (raw[1] == jax.random.bits(keys[1], (70_000,), jnp.uint32)).all()


def test_every_kind_of_draw_takes_such_a_key():
    k = key(5)
    for draw in (
        lambda: jax.random.uniform(k, (3,)),
        lambda: jax.random.randint(k, (3,), 0, 10),
        lambda: jax.random.permutation(k, 10),
        lambda: jax.random.gamma(k, 2.0, (3,)),
        lambda: jax.random.bernoulli(k, 0.5, (3,)),
        lambda: jax.random.bits(k, (0,), jnp.uint32),
        lambda: jax.random.bits(k, (), jnp.uint32),
        lambda: jax.random.bits(k, (2, 3), jnp.uint8),
    ):
        draw()


def test_a_key_from_an_integer_is_refused():
    for seed in (0, 5, 2**31):
        with pytest.raises(errors.PrivacyError, match="integer seed") as error:
            jax.random.key(seed, impl=random.chacha20)
        assert "insecure_root" in error.value.hint


def test_a_key_is_hmac_sha256_of_the_secret_over_the_whole_label():
    secret = bytes(range(32))
    message = b"".join(
        kind + len(part).to_bytes(4, "big") + part
        for kind, part in ((b"s", b"key"), (b"s", "größe".encode()), (b"i", b"-3"))
    )
    digest = hmac.new(secret, message, hashlib.sha256).digest()
    assert data(random.key(secret, "größe", -3)).astype("<u4").tobytes() == digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a",), ("a", "")),
        ((1,), ("1",)),
        ((), ("",)),
        ((12,), (1, 2)),
        (("noise",), ("sampling",)),
        ((5,), (5 + 2**32,)),
    ],
)
def test_labels_that_differ_give_different_keys(one, other):
    assert (data(random.key(bytes(32), *one)) != data(random.key(bytes(32), *other))).any()
    root = random.insecure_root(0)
    assert root.secret(*one) != root.secret(*other)


def test_every_bit_of_the_secret_counts():
    first = data(random.key(bytes(32), "noise"))
    for bit in (0, 77, 255):
        changed = (1 << bit).to_bytes(32, "little")
        assert (data(random.key(changed, "noise")) != first).all()


def test_a_secret_that_is_too_short_is_refused():
    with pytest.raises(errors.PrivacyError, match="16 bytes, expected at least 32"):
        random.key(bytes(16), "noise")


def test_a_secure_root_draws_anew_at_every_call(monkeypatch):
    root = random.secure_root()
    assert root.secure
    assert len({root.secret("same") for _ in range(100)}) == 100
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or real(size))
    assert len(root.secret("release", 3)) == 32
    assert asked == [32]


def test_an_insecure_root_replays():
    first, again, other = (random.insecure_root(seed) for seed in (1, 1, 2))
    assert not first.secure
    assert first.secret("a", 1) == again.secret("a", 1) != other.secret("a", 1)
    assert first.secret("a", 1) != first.secret("a", 2)
    assert len(first.secret("a")) == 32
    assert (data(first.key("a")) == data(again.key("a"))).all()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: jax.jit(f)(1.0),
        lambda f: jax.vmap(f)(jnp.ones(3)),
        lambda f: jax.grad(f)(1.0),
        lambda f: jax.eval_shape(f, 1.0),
        lambda f: jax.lax.scan(lambda c, x: (f(c), x), 1.0, jnp.ones(2)),
    ],
    ids=["jit", "vmap", "grad", "eval_shape", "scan"],
)
def test_nothing_secret_is_drawn_or_derived_under_a_transformation(transformed):
    root = random.secure_root()
    for draw in (lambda: root.secret("a"), lambda: random.key(bytes(32), "a")):
        with pytest.raises(errors.PrivacyError, match="under a JAX transformation"):
            transformed(lambda x, draw=draw: (draw(), x)[1])
        draw()


def test_a_root_shows_nothing_of_itself():
    root = random.insecure_root(7)
    assert repr(root) == str(root) == "Root(secure=False)"
    shown = f"{random.secure_root()!r} {root.secret!r}"
    assert root._secret.hex() not in shown
    assert repr(root._secret) not in shown
