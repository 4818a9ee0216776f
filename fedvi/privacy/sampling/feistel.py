"""Draws batches of a fixed size without replacement."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.base import Batch, filled
from fedvi.privacy.sampling._rows import check_slots
from fedvi.typing import Key

__all__ = ["Feistel", "feistel"]

# Up to this many slots Floyd's algorithm is used: a small Feistel network is not uniform enough.
_EXACT_UP_TO = 2**14
_ROUNDS = 12
_MOST_RECORDS = 2**30
# Words of 32 random bits per draw; a draw below m is then off by at most m · 2⁻⁹⁶ / 2.
_LIMBS = 3


@dataclasses.dataclass(frozen=True)
class Feistel:
    """Draws exactly ``batch`` of ``max_records`` slots, all sets of slots being equally likely.

    Slots that hold no record are chosen like others and then masked, so the batch depends on no
    data. Up to 2¹⁴ slots the law is exact (Floyd's algorithm). Above, the slots are the first ``batch``
    images of a keyed Feistel permutation, whose uniformity is a computational assumption.
    """

    batch: int
    max_records: int

    @property
    def rate(self) -> float:
        """The probability that a slot is in a batch."""
        return self.batch / self.max_records

    @property
    def capacity(self) -> int:
        """The static number of rows of a batch."""
        return self.batch

    def draw(self, key: Key, valid: Any) -> Batch:
        """Draws one batch; work is O(batch), or O(batch²) up to 2¹⁴ slots.

        Args:
          key: used for this draw only.
          valid: bool [max_records]; slots that hold no record are masked.

        Raises:
          PrivacyError: if ``valid`` has more entries than slots, or fewer.
        """
        check_slots(valid, self.max_records)
        pick = _floyd if self.max_records <= _EXACT_UP_TO else _permuted
        chosen = pick(key, self.batch, self.max_records)
        return filled(Batch(chosen, jnp.asarray(valid, bool)[chosen], self))

    def event(self, inner: events.Event) -> events.Event:
        """Returns the event of sampling without replacement; it has a price only under "substitute"."""
        return events.WithoutReplacement(self.batch, self.max_records, inner)


def feistel(batch: int, max_records: int) -> Feistel:
    """Returns a sampler of ``batch`` of ``max_records`` slots, without replacement.

    Guarantee: up to 2¹⁴ slots and with uniform random bits, every set of ``batch`` slots has the
    same probability up to a total variation of 2⁻⁶⁹ a draw. Proof: Floyd's algorithm is exact given
    uniform integers below N − B + 1, …, N; one made of 96 bits is off by at most N · 2⁻⁹⁷, and there
    are at most N ≤ 2¹⁴ of them. Those 2⁻⁶⁹ are paid for by ``TABLE_DISTANCE`` of the noise, which has
    more room than that: docs/proofs/alias_table.md. Above 2¹⁴ slots it is assumed (computational,
    unproved) that such batches cannot be told from uniformly random ones, as statements say.

    Args:
      batch: B, the size of every batch, slots without a record included.
      max_records: N, the declared largest number of records at any client, at most 2³⁰.

    Raises:
      PrivacyError: if not 1 ≤ batch ≤ max_records ≤ 2³⁰.

    >>> feistel(128, 60_000).rate
    0.0021333333333333334
    """
    if not 1 <= max_records <= _MOST_RECORDS:
        raise errors.PrivacyError(
            f"max_records is {max_records}, expected at least 1 and at most {_MOST_RECORDS}",
            "declare the largest number of records at any client",
        )
    if not 1 <= batch <= max_records:
        raise errors.PrivacyError(
            f"batch is {batch}, expected at least 1 and at most max_records, {max_records}",
            'to take every record in every step write `sampler = "full"`',
        )
    return Feistel(batch, max_records)


def _floyd(key: Key, batch: int, size: int) -> jax.Array:
    """Returns ``batch`` distinct integers below ``size`` (at most 2¹⁶), all sets equally likely.

    For m = size − batch + 1, …, size it draws t below m, and takes t, or m − 1 if t is taken already.

    Source: Bentley and Floyd (1987), "Programming pearls: a sample of brilliance",
    doi:10.1145/30401.315746, Algorithm F2.
    """
    bounds = jnp.arange(size - batch + 1, size + 1, dtype=jnp.uint32)
    words = jax.random.bits(key, (_LIMBS, batch), jnp.uint32)
    # ⌊words · bound / 2⁹⁶⌋, with the words as one integer; computed 16 bits at a time, lowest first.
    carry = jnp.zeros(batch, jnp.uint32)
    for limb in range(_LIMBS):
        for half in (words[limb] & np.uint32(0xFFFF), words[limb] >> np.uint32(16)):
            carry = (half * bounds + carry) >> np.uint32(16)
    drawn, last = carry.astype(jnp.int32), bounds.astype(jnp.int32) - 1

    def take(taken: jax.Array, step: Any) -> tuple[jax.Array, None]:
        place, draw, otherwise = step
        return taken.at[place].set(jnp.where((taken == draw).any(), otherwise, draw)), None

    taken, _ = lax.scan(take, jnp.full(batch, -1, jnp.int32), (jnp.arange(batch), drawn, last))
    return taken


def _permuted(key: Key, batch: int, size: int) -> jax.Array:
    """Returns the images of 0, …, batch − 1 under a keyed permutation of 0, …, size − 1."""
    words = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)
    start, bits = jnp.arange(batch, dtype=jnp.uint32), max(2, (size - 1).bit_length())
    return _walk(words, start, jnp.uint32(size), bits).astype(jnp.int32)


def _walk(words: jax.Array, start: jax.Array, size: jax.Array, bits: int) -> jax.Array:
    """Returns the images of ``start`` under a permutation of 0, …, size − 1; size ≤ 2^bits.

    The Feistel permutation of 0, …, 2^bits − 1 is applied until the result is below ``size``. This ends
    for every key, since the cycle of a number leads back to it.

    Source: Black and Rogaway (2002), doi:10.1007/3-540-45760-7_9, cycle-walking.
    """

    def outside(numbers: jax.Array) -> jax.Array:
        return (numbers >= size).any()

    def again(numbers: jax.Array) -> jax.Array:
        return jnp.where(numbers < size, numbers, _network(words, numbers, bits))

    return lax.while_loop(outside, again, _network(words, start, bits))


def _network(words: jax.Array, numbers: jax.Array, bits: int) -> jax.Array:
    """Returns the images of ``numbers`` under the Feistel permutation of 0, …, 2^bits − 1.

    The low ⌈bits/2⌉ and the high ⌊bits/2⌋ bits are changed in turn, each by XOR with a function of the
    other. XOR is its own inverse, so every round is a bijection, whatever the function.

    Args:
      words: uint32 [rounds, 2], the round keys.
      numbers: uint32 [n], below 2^bits.
      bits: at least 2.
    """
    low_bits = (bits + 1) // 2
    low_mask, high_mask = np.uint32(2**low_bits - 1), np.uint32(2 ** (bits - low_bits) - 1)
    low, high = numbers & low_mask, numbers >> np.uint32(low_bits)
    for turn in range(words.shape[0]):
        if turn % 2:
            low = low ^ (_mixed(high, words[turn]) & low_mask)
        else:
            high = high ^ (_mixed(low, words[turn]) & high_mask)
    return (high << np.uint32(low_bits)) | low


def _mixed(half: jax.Array, words: jax.Array) -> jax.Array:
    """Returns 32 bits that depend on every bit of ``half`` and the first word, and 17 of the second.

    Source: Appleby's MurmurHash3 finaliser (public domain), with a key before either multiplication.
    """
    mixed = half ^ words[0]
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) + words[1]
    mixed = mixed * np.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> np.uint32(16))
