"""Shamir secret sharing: any T of n shares recover a secret, and fewer reveal nothing. No JAX.

    f(x) = secret + a_1 x + … + a_{T−1} x^{T−1}   (mod 2^521 − 1), share i is f(i + 1)

Each share is encrypted for the one site that may hold it. Which secrets are shared, and when a site
reveals a share: docs/proofs/secure_sums.md. Source: Shamir (1979), How to share a secret.
"""

import secrets
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedvi import errors

__all__ = [
    "PRIME",
    "SEALED_BYTES",
    "SECRET_BYTES",
    "SHARE_BYTES",
    "joined",
    "seal",
    "split",
    "unseal",
]

PRIME = 2**521 - 1
"""The modulus of the field; large enough for a secret of 256 bits."""

SECRET_BYTES = 32
SHARE_BYTES = 68
"""66 bytes for 521 bits and two of padding, so that a sealed share is a whole number of 32-bit words."""

SEALED_BYTES = SHARE_BYTES + 16

_NONCE = bytes(12)  # constant, since a key seals only one share


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Splits a secret into ``count`` shares, with randomness from the operating system.

    Guarantee: any ``threshold`` − 1 of them are independent of the secret.

    Args:
      secret: ``SECRET_BYTES``.
      threshold: T, how many shares recover it.
      count: n, below 2^16.

    Raises:
      PrivacyError: the secret has another length, T is not from 1 to n, or n is too large.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count < 2**16:
        raise errors.PrivacyError(
            f"a secret of {len(secret)} bytes cannot be split so that {threshold} of {count} shares give "
            f"it, expected {SECRET_BYTES} bytes, at most 65535 shares, and from 1 to all of them"
        )
    tops = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    found = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in (*tops, int.from_bytes(secret, "big")):
            value = (value * x + coefficient) % PRIME
        found.append(value.to_bytes(SHARE_BYTES, "big"))
    return found


def joined(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Recovers the secret from its shares.

    Args:
      shares: index, from 0, → share; of more than ``threshold``, those with the lowest indices are used.
      threshold: T.

    Raises:
      ProtocolError: there are fewer than T shares, or they do not belong to one secret.

    >>> made = split(bytes(range(32)), 3, 5)
    >>> joined({0: made[0], 2: made[2], 4: made[4]}, 3) == bytes(range(32))
    True
    """
    if len(shares) < threshold:
        raise errors.ProtocolError(
            f"there are {len(shares)} shares of a secret, expected {threshold}"
        )
    points = {i + 1: int.from_bytes(shares[i], "big") for i in sorted(shares)[:threshold]}
    total = 0
    for x, value in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    if total >= 1 << (8 * SECRET_BYTES):
        raise errors.ProtocolError("shares of a secret do not belong together")
    return total.to_bytes(SECRET_BYTES, "big")


def seal(key: bytes, share: bytes) -> bytes:
    """Encrypts and authenticates a share; the key must not be used for anything else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, share, None)


def unseal(key: bytes, content: bytes, whose: str) -> bytes:
    """Decrypts a share that site ``whose`` sealed.

    Raises:
      PrivacyError: the share was not sealed with this key, or was changed in transit.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, content, None)
    except InvalidTag:
        raise errors.PrivacyError(
            f"the share that {whose!r} sealed for this site is not of this round and task, or was changed "
            "on its way",
            "the server mixed shares up, or handed out two tasks; nothing was opened",
        ) from None
