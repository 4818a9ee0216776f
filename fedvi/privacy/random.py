"""Secret randomness: a secret per release, JAX keys derived from it, and ChaCha20 as JAX's generator.

Each release has its own secret of 256 bits (``Root.secret``), from the operating system unless a
simulation must be reproducible. ``key`` derives one JAX key for each purpose, so that no key has two
uses, and a release that is recomputed after a crash gets the same noise. Keys are ChaCha20 keys, which
every function of ``jax.random`` accepts.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import hmac
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedvi import errors
from fedvi.privacy.owned import Unique
from fedvi.typing import Key

__all__ = [
    "DRAWS",
    "Root",
    "block",
    "chacha20",
    "insecure_root",
    "key",
    "keys",
    "refuse_a_trace",
    "secure_root",
]

DRAWS = 2
"""Version of how samplers and noise use a key's random words; increase it with every change of that use.

Different versions draw different noise from one key, so a release begun under one version is never
computed under another.
"""

_SECRET_BYTES = 32
# "expand 32-byte k" as little-endian words.
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
# The first nonce word of the three uses of a key.
_BITS, _SPLIT, _FOLD_IN = 1, 2, 3
# Blocks computed at once: the fewest that XLA still spreads over CPU threads (rows of 512 KiB).
_CHUNK = 2**15
# Approximate number of blocks side by side in a group. With groups each thread works on its own blocks.
# Not a power of two, which would map the words of a block to the same cache lines.
_SIDE_BY_SIDE = 2500
# With so few blocks it does not matter if XLA looks up each word separately.
_FEW = 16


@dataclasses.dataclass(frozen=True, repr=False)
class Root(Unique):
    """The source of the secrets of releases: ``repr`` shows none, and no copy or pickle is made of it.

    Attributes:
      secure: False if secrets follow from a seed; all results are then marked.
    """

    _secret: bytes
    secure: bool

    _why = "what is computed from it would be computed twice"
    _instead = "make another where it is needed: random.secure_root()"

    def __repr__(self) -> str:
        return f"Root(secure={self.secure})"

    def secret(self, *label: str | int) -> bytes:
        """Returns the 32 secret bytes of one release.

        A secure root draws fresh bytes from the operating system at every call, whatever the label. So
        there is no long-lived secret to steal, and a client restored from a backup draws other noise.
        Keep the bytes with the reservation, and erase them once the release is sealed. An insecure root
        computes them from the seed and the label.

        Raises:
          PrivacyError: under a JAX transformation, where the bytes would become a constant of the
            compiled function, the same in every run.
        """
        return self.secrets([label])[0]

    def secrets(self, labels: Iterable[tuple[str | int, ...]]) -> list[bytes]:
        """Returns the secrets of many releases, as ``secret`` does for each label.

        Raises:
          PrivacyError: as ``secret``.
        """
        refuse_a_trace("a secret was drawn")
        if self.secure:
            return [os.urandom(_SECRET_BYTES) for _ in labels]
        return [_hmac(self._secret, ("secret", *label)) for label in labels]

    def key(self, *label: str | int) -> Key:
        """Returns the key of a label, the same at every call: for tests and simulations.

        Raises:
          PrivacyError: for a secure root, which stores no secret to derive a key from.
        """
        if self.secure:
            raise errors.PrivacyError(
                "a secure root was asked for a key, expected a secret",
                "`key(root.secret(…), purpose)`: every release has a secret of its own",
            )
        return key(_hmac(self._secret, ("root", *label)))


def secure_root() -> Root:
    """Returns the root whose secrets come from the operating system's generator."""
    return Root(b"", secure=True)


@functools.lru_cache(maxsize=16, typed=True)  # very many clients of a simulation have one
def insecure_root(seed: int) -> Root:
    """Returns a root computed from a seed, for tests and replayed simulations only.

    All results must be marked "simulation: no guarantee".
    """
    return Root(hashlib.sha256(f"fedvi insecure root {seed}".encode()).digest(), secure=False)


def key(secret: bytes, *label: str | int) -> Key:
    """Derives the ChaCha20 key of a label: the 256 bits HMAC-SHA256(secret, label).

    Two labels give the same key only if they are equal part by part: each part is prefixed by its
    type and length, so ("a", "bc") and ("ab", "c") differ, and so do 1 and "1". If HMAC-SHA256 is a
    pseudo-random function, the keys of different labels are independent, and none reveals anything
    about the secret. The repr of a JAX key shows its words: do not log one.

    Args:
      secret: at least 32 secret bytes, e.g. from ``Root.secret``.
      label: what the key is for; public.

    Raises:
      PrivacyError: if the secret is shorter than 32 bytes, or under a JAX transformation, where the
        key would be written into the compiled function.

    >>> key(bytes(32), "noise") == key(bytes(32), "sampling")
    Array(False, dtype=bool)
    """
    _check_secret(secret)
    refuse_a_trace("a key was derived")
    words = np.frombuffer(_hmac(secret, ("key", *label)), dtype="<u4").astype(np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=chacha20)


def keys(secrets: Sequence[bytes], *label: str | int) -> Key:
    """Derives the keys of one label from many secrets: an array of the results of ``key``.

    Raises:
      PrivacyError: as ``key``.

    >>> keys([bytes(32), bytes(32)], "noise")[1] == key(bytes(32), "noise")
    Array(True, dtype=bool)
    """
    for secret in secrets:
        _check_secret(secret)
    refuse_a_trace("a key was derived")
    message = _message(("key", *label))
    found = b"".join([hmac.digest(secret, message, "sha256") for secret in secrets])
    words = np.frombuffer(found, dtype="<u4").astype(np.uint32).reshape(len(secrets), -1)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=chacha20)


def block(key_words: jax.Array, counter: jax.Array, nonce: jax.Array) -> jax.Array:
    """Computes one block of ChaCha20's keystream.

    Args:
      key_words: uint32 [8], the key's little-endian words.
      counter: uint32 scalar.
      nonce: uint32 [3], the nonce's little-endian words.

    Returns:
      uint32 [16]; little-endian, they are the block's 64 bytes.

    Source: RFC 8439, §2.3.
    """
    return _blocks(key_words, counter[None, None], nonce)[0, :, 0]


def _check_secret(secret: bytes) -> None:
    if len(secret) < _SECRET_BYTES:
        raise errors.PrivacyError(
            f"the secret of a key has {len(secret)} bytes, expected at least {_SECRET_BYTES}",
            "take it from `Root.secret`",
        )


def _hmac(secret: bytes, label: tuple[str | int, ...]) -> bytes:
    return hmac.digest(secret, _message(label), "sha256")


def _message(label: tuple[str | int, ...]) -> bytes:
    message = b""
    for part in label:
        kind, text = (b"s", part.encode()) if isinstance(part, str) else (b"i", b"%d" % part)
        message += kind + len(text).to_bytes(4, "big") + text
    return message


def refuse_a_trace(
    what: str, hint: str = "derive keys before `jit`, `scan` or `vmap`, and pass them in"
) -> None:
    """Refuses to run under a JAX transformation, which would trace a charge or a draw only once.

    Raises:
      PrivacyError: under `jit`, `scan`, `vmap` and the like, with ``what`` and ``hint``.
    """
    if jax.extend.core.get_opaque_trace_state(convention="flax") != _eager_state():
        raise errors.PrivacyError(
            f"{what} under a JAX transformation, expected outside of any",
            hint,
        )


@functools.cache
def _eager_state() -> Any:
    # Transformations are local to a thread, so a new thread is outside all of them.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        state = functools.partial(jax.extend.core.get_opaque_trace_state, convention="flax")
        return thread.submit(state).result()


# Jitted, so that calls outside a trace do not compile the loop again.
@functools.partial(jax.jit, inline=True)
def _blocks(key_words: jax.Array, counters: jax.Array, nonce: jax.Array) -> jax.Array:
    """Returns the keystream's blocks at ``counters`` (uint32 [g, n]) as uint32 [g, 16, n]."""
    start = _start(key_words, counters, nonce)
    return _added(_rounds(start), start)


def _start(key_words: jax.Array, counters: jax.Array, nonce: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the state before the rounds: its four rows, each uint32 [g, 4, n]."""
    groups, count = counters.shape

    def everywhere(words: jax.Array) -> jax.Array:
        lanes = words if words.ndim == 2 else words[:, None]
        return jnp.broadcast_to(lanes[None], (groups, words.shape[0], count))

    constants = jnp.asarray(_CONSTANTS, jnp.uint32)
    last = jnp.concatenate([counters[:, None], everywhere(nonce)], axis=1)
    return everywhere(constants), everywhere(key_words[:4]), everywhere(key_words[4:]), last


def _rounds(start: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Returns the rows after RFC 8439's twenty rounds.

    A round works on columns; rotating the rows turns diagonals into columns. The rounds are a loop, since
    unrolled they take minutes to compile.
    """

    def double_round(_: Any, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        a, b, c, d = _quarter_rounds(*state)
        a, b, c, d = _quarter_rounds(a, jnp.roll(b, -1, 1), _turned_twice(c), jnp.roll(d, 1, 1))
        return a, jnp.roll(b, 1, 1), _turned_twice(c), jnp.roll(d, -1, 1)

    return lax.fori_loop(0, 10, double_round, start)


def _added(rows: tuple[jax.Array, ...], start: tuple[jax.Array, ...]) -> jax.Array:
    return jnp.concatenate([new + old for new, old in zip(rows, start, strict=True)], axis=1)


def _turned_twice(row: jax.Array) -> jax.Array:
    """Returns a row rotated by two of its four columns; cheaper in XLA than ``jnp.roll``."""
    groups, _, count = row.shape
    return row.reshape(groups, 2, 2, count)[:, ::-1].reshape(row.shape)


def _quarter_rounds(
    a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns RFC 8439's quarter round (§2.1) of every column."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(words: jax.Array, by: int) -> jax.Array:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))


def _counters(count: int) -> jax.Array:
    if count > 2**32:
        raise errors.PrivacyError(
            f"a key was asked for {count} blocks of 64 bytes, expected at most 2^32",
            "split the key",
        )
    return lax.iota(jnp.uint32, count)


def _nonce(use: int, detail: int = 0) -> jax.Array:
    return jnp.asarray((use, detail, 0), jnp.uint32)


def _seed(seed: jax.Array) -> jax.Array:
    raise errors.PrivacyError(
        "a ChaCha20 key was asked of an integer seed, expected 256 secret bits",
        "`random.key(secret, purpose)`; in a test or simulation `random.insecure_root(seed).key()`",
    )


def _random_bits(key_words: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    words = -(-size * width // 32)
    stream = _stream(key_words, words, width)
    if width == 64:
        stream = lax.bitcast_convert_type(stream.reshape(size, 2), jnp.uint64)
    elif width < 32:
        narrow = {8: jnp.uint8, 16: jnp.uint16}[width]
        stream = lax.bitcast_convert_type(stream, narrow).ravel()[:size]
    return stream.reshape(shape)


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _stream(key_words: jax.Array, words: int, width: int) -> jax.Array:
    """Returns the first ``words`` words of the blocks of random bits, from counter 0 on: uint32 [words].

    Within a group of blocks come the first words of all blocks, then their second words, and so on.
    """
    blocks = -(-words // 16)
    chunks = max(1, blocks // _CHUNK)
    groups = max(1, -(-blocks // (chunks * _SIDE_BY_SIDE)))
    each = -(-blocks // (chunks * groups))
    surplus = 16 * chunks * groups * each - words
    if surplus and blocks > _FEW and chunks == groups == 1:
        groups, each = 2, -(-blocks // 2)
    if chunks > 1:
        counters, nonce = _counters(chunks * groups * each), _nonce(_BITS, width)
        counters = counters.reshape(chunks, groups, each)
        return lax.map(lambda some: _blocks(key_words, some, nonce), counters).ravel()[:words]

    @jax.custom_batching.custom_vmap
    def one(key_words: jax.Array) -> jax.Array:
        counters, nonce = _counters(groups * each).reshape(groups, each), _nonce(_BITS, width)
        if groups == 1 or not surplus:
            return _blocks(key_words, counters, nonce).ravel()[:words]

        # If words are cut off, XLA would fuse the sum after the rounds into the code that uses the words,
        # and index each word separately. A loop writes them to memory first.
        def added(group: tuple[jax.Array, ...]) -> jax.Array:
            at, *rows = group
            return _added(tuple(row[None] for row in rows), _start(key_words, at[None], nonce))

        rows = _rounds(_start(key_words, counters, nonce))
        return lax.map(added, (counters, *rows)).ravel()[:words]

    @one.def_vmap
    def many(keys: int, batched: Any, key_words: jax.Array) -> Any:
        if blocks > _SIDE_BY_SIDE:
            return lax.map(one, key_words), True
        # The blocks of all keys are side by side, since one key has too few blocks to vectorise.
        counters = _counters(groups * each).reshape(groups, 1, each)
        lanes = jnp.broadcast_to(counters, (groups, keys, each)).reshape(groups, -1)
        found = _blocks(jnp.repeat(key_words.T, each, axis=1), lanes, _nonce(_BITS, width))
        found = found.reshape(groups, 16, keys, each).transpose(2, 0, 1, 3)
        return lax.optimization_barrier(found.reshape(keys, -1))[:, :words], True

    return one(key_words)


def _split(key_words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    pairs = _counters(-(-size // 2))[None]
    halves = _blocks(key_words, pairs, _nonce(_SPLIT)).reshape(2, 8, -1)
    return halves.transpose(2, 0, 1).reshape(-1, 8)[:size].reshape(*shape, 8)


def _fold_in(key_words: jax.Array, data: Any) -> jax.Array:
    return block(key_words, jnp.asarray(data, jnp.uint32), _nonce(_FOLD_IN))[:8]


chacha20 = jax.extend.random.define_prng_impl(
    key_shape=(8,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="chacha20",
)
"""ChaCha20 (RFC 8439) as a JAX generator; pass it as ``impl`` or take keys from ``key``.

Guarantee: if ChaCha20's block function is a pseudo-random function of (counter, nonce), then no one
without the key can tell all that is ever drawn from it from uniform bits. Proof: every use of a key
calls the block function at inputs of its own, as the first nonce word is 1 for random bits, 2 for
split and 3 for fold_in, the second is the width of the bits, and the counter is the number of the
block, of the pair of children, or the folded integer, all below 2³². So random bits, children by
split and children by fold_in are parts of different blocks, hence independent. A child is 256 such
bits, and all of this holds of it in turn; two of n keys are equal with probability at most n²/2²⁵⁷.

As with any JAX key: a key that was split, folded or drawn from must not be used the same way again,
draws of different shapes from one key overlap, and ``fold_in`` takes an array modulo 2³². A key from
an integer is refused, since 32 bits can be searched.
"""
