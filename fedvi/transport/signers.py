"""Signs a site's mask keys with its certificate or, in a simulation, with a temporary key."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedvi import errors
from fedvi.transport import certificates, files, identity

__all__ = ["Certified", "Kept", "Signer", "Signs", "within_one_process"]


class Signs(Protocol):
    """Checks the signatures of sites."""

    def signer_of(self, name: str, content: bytes, signature: bytes) -> str:
        """Checks a site's signature and returns SHA-256 over its public key, in hex.

        Raises:
          IdentityError: the signature is not of this content, or its signer is not that site.
        """


class Signer(Signs, Protocol):
    """Signs a site's messages to other sites, and checks their signatures.

    Attributes:
      lasting: whether its signatures can be checked after the run, by ``Kept``.
    """

    lasting: bool

    def sign(self, content: bytes) -> bytes:
        """Returns a signature over a content."""


class Certified:
    """Signs with a site's certificate, and trusts certificates of the same authority.

    Args:
      folder: from `fedvi enroll`.
    """

    lasting = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sign(self, content: bytes) -> bytes:
        """Returns a signature with the certificate in it.

        Raises:
          ConfigError, IdentityError: as in ``identity.holding``.
        """
        return identity.sign(self._folder, content)

    def signer_of(self, name: str, content: bytes, signature: bytes) -> str:
        """Returns SHA-256 over the public key that signed, which a renewed certificate keeps."""
        authority = files.read(self._folder / identity.AUTHORITY, "the authority's certificate")
        with certificates.prefixed(f"the keys of {name!r}"):
            signer = identity.verify(authority, content, signature, role="client")
            key = identity.key_of(signature)
        _check_signer(name, signer.name)
        return key


class Kept:
    """Checks signatures that were kept as evidence, at whatever time they were made.

    Args:
      authority: PEM of the certificate of the authority that signed the sites'. None: a signature is
        checked by the certificate in it, which anybody can make.
    """

    def __init__(self, authority: bytes | None) -> None:
        self._authority = authority

    def signer_of(self, name: str, content: bytes, signature: bytes) -> str:
        """Returns SHA-256 over the public key that signed, in hex."""
        with certificates.prefixed(f"the keys of {name!r}"):
            found = identity.verify_kept(content, signature, self._authority)
            key = identity.key_of(signature)
        _check_signer(name, found.name)
        return key


class _Passing:
    """Signs with a key without a certificate, for sites that share a process."""

    lasting = False

    def __init__(
        self, name: str, key: ec.EllipticCurvePrivateKey, known: Mapping[str, "_Passing"]
    ) -> None:
        self._name, self._key, self._known = name, key, known

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content, ec.ECDSA(hashes.SHA256()))

    def signer_of(self, name: str, content: bytes, signature: bytes) -> str:
        try:
            return self._known[name].fingerprint(content, signature)
        except InvalidSignature:
            raise errors.IdentityError(
                f"the keys of {name!r}: the signature is not of them, or not of {name!r}"
            ) from None

    @functools.lru_cache(maxsize=512)  # noqa: B019, since all of them last as long as the process does
    def fingerprint(self, content: bytes, signature: bytes) -> str:
        """Checks the signature and returns the key's fingerprint; cached, since all sites ask the same."""
        public = self._key.public_key()
        public.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        return certificates.key_fingerprint(public)


def within_one_process(names: Sequence[str]) -> dict[str, Signer]:
    """Returns a signer with a fresh key for each site of a simulation."""
    known: dict[str, _Passing] = {}
    known |= {
        name: _Passing(name, ec.generate_private_key(ec.SECP256R1()), known) for name in names
    }
    return dict(known)


def _check_signer(name: str, found: str) -> None:
    if found != name:
        raise errors.IdentityError(
            f"the keys of {name!r} were signed by {found!r}, expected {name!r} itself",
            "the server mixed them up, or put others in their place; no answer was masked, and none left",
        )
