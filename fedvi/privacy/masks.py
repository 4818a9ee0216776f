"""Pairwise masks for secure sums: each answer looks random, and the masks cancel in the sum. No JAX.

    c_u = y_u + Σ_{v after u} stream(k_uv) − Σ_{v before u} stream(k_uv)     (mod 2^bits)

Each pair of sites shares one key, whose stream enters the sum twice, with opposite signs. The security
argument and its assumptions: docs/proofs/secure_sums.md.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedvi import errors

__all__ = ["GUARD", "KEY_BYTES", "WIDTHS", "mask", "opened", "width"]

GUARD = 4
"""How many zeros are masked after the numbers; if they are not zero in the sum, masks did not cancel."""

KEY_BYTES = 32
"""The length of a stream's key: 256 bits."""

WIDTHS = (32, 64)
"""The word sizes that are allowed, in bits."""

_NONCE = bytes(16)  # constant, since a key makes only one stream; its first half is the counter


def width(largest: float) -> int:
    """Returns the smallest of ``WIDTHS`` that holds every sum of absolute value up to ``largest``.

    >>> width(1e9), width(3e9)
    (32, 64)

    Raises:
      PrivacyError: 64 bits are too few.
    """
    for bits in WIDTHS:
        if largest < 2.0 ** (bits - 1):
            return bits
    raise errors.PrivacyError(
        f"sums may be as large as {largest:.3g}, expected below 2**63 to be masked",
        "use smaller batches, or fewer clients",
    )


def mask(
    numbers: np.ndarray, added: Sequence[bytes], subtracted: Sequence[bytes], bits: int
) -> np.ndarray:
    """Masks whole numbers, followed by ``GUARD`` zeros, and returns unsigned words.

    Guarantee: if one of the keys is uniform and known to nobody else, and makes no other mask, the words
    cannot be told from uniform ones by who cannot tell ChaCha20 from a random function.

    Args:
      numbers: [D], int64.
      added: keys of the streams to add, ``KEY_BYTES`` each.
      subtracted: keys of the streams to subtract.
      bits: of a word, one of ``WIDTHS``.

    Returns:
      [D + GUARD], uint32 or uint64.

    Raises:
      PrivacyError: a key has another length, or there is none.

    >>> keys = [bytes([i]) * 32 for i in range(3)]
    >>> a = mask(np.array([5, -7]), [keys[0], keys[1]], [], 32)
    >>> b = mask(np.array([1, 1]), [keys[2]], [keys[0]], 32)
    >>> c = mask(np.array([0, 2]), [], [keys[1], keys[2]], 32)
    >>> opened([a, b, c], 32).tolist()
    [6, -4]
    """
    if not (added or subtracted):
        raise errors.PrivacyError("there is no key to mask with, expected one of each other site")
    words = np.zeros(len(numbers) + GUARD, _unsigned(bits))
    # Two's complement: the low bits of a negative number equal its residue mod 2^bits.
    words[: len(numbers)] = np.asarray(numbers, np.int64).astype(words.dtype)
    nothing = bytes(words.nbytes)
    for key in added:
        words += _stream(key, nothing, words.dtype)
    for key in subtracted:
        words -= _stream(key, nothing, words.dtype)
    return words


def opened(
    masked: Sequence[np.ndarray],
    bits: int,
    added: Sequence[bytes] = (),
    subtracted: Sequence[bytes] = (),
) -> np.ndarray:
    """Adds masked words and returns the sum of the masked numbers, as signed integers.

    Args:
      masked: the unsigned words of each site in the sum, [D + GUARD] each.
      bits: of a word.
      added: keys of added streams that nothing in the sum cancels: those of self masks, and of pairs
        with a site that is missing.
      subtracted: the same for subtracted streams.

    Returns:
      [D], int64, right if the sum is at least −2^(bits − 1) and below 2^(bits − 1).

    Raises:
      ProtocolError: the masks do not cancel, because a site is missing or was given another task. Such a
        sum reveals nothing.
    """
    unsigned = _unsigned(bits)
    whole = np.zeros(len(masked[0]), unsigned)
    for words in masked:
        whole += words.astype(unsigned)
    nothing = bytes(whole.nbytes)
    for key in added:
        whole -= _stream(key, nothing, unsigned)
    for key in subtracted:
        whole += _stream(key, nothing, unsigned)
    if whole[len(whole) - GUARD :].any():
        raise errors.ProtocolError(
            "the masks of a round do not cancel, and its sum cannot be read",
            "were all sites handed the same task, and is every answer there?",
        )
    signed = np.dtype(f"i{bits // 8}")
    return whole[: len(whole) - GUARD].view(signed).astype(np.int64)


def _stream(key: bytes, nothing: bytes, unsigned: np.dtype) -> np.ndarray:
    """Returns the ChaCha20 keystream of a key, as words."""
    if len(key) != KEY_BYTES:
        raise errors.PrivacyError(
            f"the key of a mask has {8 * len(key)} bits, expected {8 * KEY_BYTES}"
        )
    encryptor = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
    words = np.frombuffer(encryptor.update(nothing), unsigned.newbyteorder("<"))
    return words.astype(unsigned, copy=False)


def _unsigned(bits: int) -> np.dtype:
    if bits not in WIDTHS:
        raise errors.PrivacyError(f"bits is {bits}, expected one of {WIDTHS}")
    return np.dtype(f"u{bits // 8}")
