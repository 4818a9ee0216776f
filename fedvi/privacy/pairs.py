"""Pairwise secrets of sites, by hybrid key exchange with X25519 and ML-KEM-768. No JAX.

    keys        each site generates a key pair of each kind, once an epoch
    offer       the site that comes first in the study encapsulates to the other's ML-KEM key
    secret      HKDF(X25519 ‖ ML-KEM), bound to the digest of the set-up: study, sites, all public keys
    mask key    HKDF(secret, digest of one task): the key of one stream
    share key   HKDF(secret, digest of one task, sender): the key of one share
    next        HKDF(secret): the secret of the next round; the previous secret is erased

An attacker who later breaks only one of the two schemes learns nothing. While keys are agreed on, X25519
alone authenticates an offer. Proof and assumptions: docs/proofs/secure_sums.md. All primitives come from
the package cryptography.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from fedvi import errors
from fedvi.privacy.masks import KEY_BYTES
from fedvi.privacy.owned import not_copied

__all__ = [
    "OFFER_BYTES",
    "Keys",
    "Member",
    "Offered",
    "Opened",
    "accept",
    "mask_key",
    "new_keys",
    "next_secret",
    "offer",
    "roster_digest",
    "set_up_digest",
    "share_key",
]

OFFER_BYTES = 1088 + 32
"""The length of an offer in bytes: an ML-KEM-768 ciphertext and a tag."""

_TAG_BYTES = 32


class Keys(NamedTuple):
    """The two private keys of a site; ``repr`` does not show them.

    Attributes:
      x25519: 32 bytes.
      mlkem: the seed, 64 bytes.
    """

    x25519: bytes
    mlkem: bytes

    def __repr__(self) -> str:
        return "Keys()"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied(self)

    def opened(self) -> "Opened":
        """Returns the keys ready for use; as slow as one key agreement."""
        return Opened(X25519PrivateKey.from_private_bytes(self.x25519), _mlkem(self.mlkem))

    @property
    def public(self) -> tuple[bytes, bytes]:
        """The two public keys, 32 and 1184 bytes."""
        agreement = X25519PrivateKey.from_private_bytes(self.x25519).public_key()
        return agreement.public_bytes_raw(), _mlkem(self.mlkem).public_key().public_bytes_raw()


class Opened(NamedTuple):
    """Two private keys, ready for use."""

    x25519: X25519PrivateKey
    mlkem: MLKEM768PrivateKey


class Member(NamedTuple):
    """The public description of one site in a set-up.

    Attributes:
      name: in the study.
      identity: SHA-256 of the key that signed, hex.
      x25519: public key, 32 bytes.
      mlkem: public key, 1184 bytes.
      ed25519: public key for signatures of sets, 32 bytes; empty if all sites must answer.
    """

    name: str
    identity: str
    x25519: bytes
    mlkem: bytes
    ed25519: bytes = b""


class Offered(NamedTuple):
    """An offer by the first of two sites: ``content`` is sent to the other, ``secret`` is kept."""

    content: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "Offered()"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied(self)


def new_keys() -> Keys:
    """Draws a site's private keys from the operating system.

    Raises:
      PrivacyError: the installed cryptography has no ML-KEM-768.
    """
    try:
        seed = MLKEM768PrivateKey.generate().private_bytes_raw()
    except UnsupportedAlgorithm:
        raise errors.PrivacyError(
            "this build of the package cryptography has no ML-KEM-768, which secure sums need",
            "install cryptography 47 or later from a wheel of PyPI",
        ) from None
    return Keys(X25519PrivateKey.generate().private_bytes_raw(), seed)


def set_up_digest(study: str, members: Sequence[Member]) -> bytes:
    """Returns the SHA-256 of a study and all its sites with their keys, in order."""
    return _digest(
        b"fedvi set-up 1",
        study.encode(),
        *(
            part
            for m in members
            for part in (m.name.encode(), m.identity.encode(), m.x25519, m.mlkem, m.ed25519)
        ),
    )


def roster_digest(members: Sequence[Member]) -> str:
    """Returns the SHA-256 of all site names and signing keys, hex; it identifies who takes part."""
    parts = (part.encode() for m in members for part in (m.name, m.identity))
    return _digest(b"fedvi roster 1", *parts).hex()


def offer(keys: Opened, own: Member, other: Member, set_up: bytes) -> Offered:
    """Encapsulates to a site that comes after this one.

    Raises:
      PrivacyError: the other's keys are invalid.
    """
    try:
        shared, ciphertext = MLKEM768PublicKey.from_public_bytes(other.mlkem).encapsulate()
    except ValueError:
        raise _no_key(other) from None
    secret, tag = _derived(keys, other, shared, ciphertext, set_up, (own, other))
    return Offered(ciphertext + tag, secret)


def accept(keys: Opened, own: Member, other: Member, set_up: bytes, content: bytes) -> bytes:
    """Derives the secret from the offer of a site that comes before this one.

    Guarantee: the other site, if it is the one whose key signed, derived the same secret from the same
    set-up: it saw the same sites with the same keys.

    Raises:
      PrivacyError: the other site's secret differs, or the offer was changed in transit.
    """
    ciphertext, tag = content[:-_TAG_BYTES], content[-_TAG_BYTES:]
    try:
        shared = keys.mlkem.decapsulate(ciphertext)
    except ValueError:
        shared = b""
    secret, expected = _derived(keys, other, shared, ciphertext, set_up, (other, own))
    if not shared or not hmac.compare_digest(tag, expected):
        raise errors.PrivacyError(
            f"what {other.name!r} sent to agree on a key is not of these sites and keys, or was changed "
            "on its way",
            "the server must show all sites the same keys; no answer was masked, and none left",
        )
    return secret


def mask_key(secret: bytes, task: bytes) -> bytes:
    """Returns a pair's key of the mask stream for one task; ``task`` is the task's digest."""
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, b"fedvi mask 1" + task).derive(secret)


def share_key(secret: bytes, task: bytes, sender: str) -> bytes:
    """Returns the key with which ``sender`` seals its share for the other site, for one task."""
    info = _digest(b"fedvi share 1", task, sender.encode())
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, info).derive(secret)


def next_secret(secret: bytes) -> bytes:
    """Returns a pair's secret of the next round; the previous one cannot be recovered from it."""
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, b"fedvi next 1").derive(secret)


def _derived(
    keys: Opened,
    other: Member,
    shared: bytes,
    ciphertext: bytes,
    set_up: bytes,
    order: tuple[Member, Member],
) -> tuple[bytes, bytes]:
    """Returns a pair's secret, and the tag that proves to each site that the other has it."""
    try:
        agreed = keys.x25519.exchange(X25519PublicKey.from_public_bytes(other.x25519))
    except ValueError:  # a point of low order, or a wrong length
        raise _no_key(other) from None
    context = _digest(b"fedvi pair 1", set_up, *(m.name.encode() for m in order), ciphertext)
    both = HKDF(hashes.SHA256(), KEY_BYTES + _TAG_BYTES, None, context).derive(agreed + shared)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def _mlkem(seed: bytes) -> MLKEM768PrivateKey:
    return MLKEM768PrivateKey.from_seed_bytes(seed)


def _no_key(other: Member) -> errors.PrivacyError:
    return errors.PrivacyError(f"the keys of {other.name!r} are no keys of X25519 and ML-KEM-768")


def _digest(*parts: bytes) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        # Length-prefixed, so that different lists never give the same bytes.
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()
