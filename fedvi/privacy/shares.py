"""A secret in shares: any T of n of them make it again, and fewer tell nothing of it. No JAX.

    f(x) = secret + a_1 x + … + a_{T−1} x^{T−1}   (mod 2^521 − 1), share i is f(i + 1)

Each share is sealed for the one site that may hold it. What is shared, and when a site gives a share away:
docs/proofs/secure_sums.md. Source: Shamir (1979), How to share a secret.
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
"""The numbers modulo this are a field; a secret of 256 bits is one of them."""

SECRET_BYTES = 32
SHARE_BYTES = 68
"""66 for a number of 521 bits, and two zeros, so that a sealed share is whole words of 32 bits."""

SEALED_BYTES = SHARE_BYTES + 16

_NONCE = bytes(12)  # a key seals one share


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Returns ``count`` shares of a secret, drawn from the operating system.

    Guarantee: any ``threshold`` − 1 of them are independent of the secret.

    Args:
      secret: ``SECRET_BYTES``.
      threshold: T, how many shares make it again.
      count: n, below 2^16.

    Raises:
      PrivacyError: the secret has another length, or T is not from 1 to n.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count < 2**16:
        raise errors.PrivacyError(
            f"{len(secret)} bytes were to be shared so that {threshold} of {count} make them again, "
            f"expected {SECRET_BYTES} bytes, and from 1 to all of at most 65535"
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
    """Returns the secret of which these are shares.

    Args:
      shares: index, from 0, → share; of more than ``threshold``, the first in order of index serve.
      threshold: T.

    Raises:
      ProtocolError: there are fewer than T, or what they make is no secret: one of them is another's.

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
    """Returns a share that only who has the key can read, or change; the key must seal nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, share, None)


def unseal(key: bytes, content: bytes, whose: str) -> bytes:
    """Returns a share that ``whose`` site sealed.

    Raises:
      PrivacyError: it was not sealed with this key, or was changed on its way.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, content, None)
    except InvalidTag:
        raise errors.PrivacyError(
            f"the share that {whose!r} sealed for this site is not of this round and task, or was changed "
            "on its way",
            "the server mixed shares up, or handed out two tasks; nothing was opened",
        ) from None
