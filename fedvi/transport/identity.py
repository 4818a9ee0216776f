"""Uses a party's own certificate to open secure channels and to sign files.

    FOLDER/ca.pem       the authority that this party trusts
    FOLDER/cert.pem     its own certificate
    FOLDER/key.pem      its key, made here and never sent
    FOLDER/roster.json  at the server: the admitted certificates

``enrolment`` and ``authority`` create these files; ``roster`` checks who is admitted.
"""

import base64
import binascii
import datetime
import ipaddress
import json
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedvi import errors
from fedvi.transport import certificates, files
from fedvi.transport.certificates import Identity
from fedvi.transport.roster import ROSTER, Roster

__all__ = [
    "AUTHORITY",
    "CERTIFICATE",
    "KEY",
    "ROSTER",
    "Holding",
    "Identity",
    "Roster",
    "channel_credentials",
    "expiry_warning",
    "holding",
    "is_loopback",
    "key_of",
    "server_credentials",
    "sign",
    "verify",
]

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"

_HINT = "`fedvi enroll` makes these files; name their folder with --tls"

# Prefix of signed content, so that no signature made for TLS or a request fits a file.
_PURPOSE = b"fedvi signed file 1\0"
_FORMAT = "fedvi signature 1"

_WARNINGS_DAYS = (7, 30)


class Holding(NamedTuple):
    """The certificates in a party's folder; the key stays on the disk.

    Attributes:
      identity: of the party.
      certificate: its own.
      authority: the authority's certificate, which it trusts.
    """

    identity: Identity
    certificate: x509.Certificate
    authority: x509.Certificate


def holding(folder: Path, role: str | None = None, at: datetime.datetime | None = None) -> Holding:
    """Reads a party's folder and checks that it can be used.

    Args:
      folder: holds ca.pem, cert.pem and key.pem.
      role: the role that is needed; any, if None.
      at: the time, in UTC; now, if None.

    Raises:
      ConfigError: a file cannot be read.
      IdentityError: the key does not belong to the certificate, the authority did not sign it, one of
        the two certificates is outside its dates, or the role is another one.
    """
    at = at or certificates.now()
    certificate = certificates.read(folder / CERTIFICATE, _HINT)
    authority = certificates.read(folder / AUTHORITY, _HINT)
    key = certificates.read_key(folder / KEY, _HINT)
    own = certificates.identity_of(certificate, str(folder / CERTIFICATE))
    whose = f"the certificate of {own.name!r}"
    if key.public_key() != certificates.public_key(certificate, whose):
        raise errors.IdentityError(
            f"{folder / KEY} is not the key of {folder / CERTIFICATE}",
            "install the certificate that was signed for this key's request",
        )
    with certificates.prefixed(folder / CERTIFICATE):
        certificates.check_issued(certificate, authority, whose)
    with certificates.prefixed(folder / AUTHORITY):
        certificates.check_dates(
            authority,
            "the authority's certificate",
            at,
            "ask the authority for its new certificate (`fedvi ca renew` without a name)",
        )
    with certificates.prefixed(folder / CERTIFICATE):
        certificates.check_dates(
            certificate,
            whose,
            at,
            "ask the authority for `fedvi ca renew`, and install what comes back with `fedvi enroll`",
        )
    if role not in (None, own.role):
        raise errors.IdentityError(
            f"{whose} in {folder} has the role {own.role}, expected {role}",
            f"enrol with --role {role} in a folder of its own",
        )
    return Holding(own, certificate, authority)


def expiry_warning(identity: Identity, at: datetime.datetime | None = None) -> str | None:
    """Returns a warning if a certificate expires within 30 days, a stronger one within 7, else None."""
    left = identity.not_after - (at or certificates.now())
    for days, words in zip(_WARNINGS_DAYS, ("renew it now", "renew it soon"), strict=True):
        if left <= datetime.timedelta(days=days):
            return (
                f"the certificate of {identity.name!r} ends on "
                f"{certificates.day(identity.not_after)}, in less than {days} days: {words} "
                "(`fedvi ca renew`)"
            )
    return None


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Returns a server's credentials: TLS 1.2 or later, and every caller must show a certificate.

    The files are read again at each handshake, so that a renewed certificate needs no restart. If they
    are unusable then, the last good ones stay in use.

    TLS checks a caller's chain and dates; each call must also pass ``Roster.check``.

    Args:
      folder: a server's, with ca.pem, cert.pem and key.pem.

    Raises:
      ConfigError, IdentityError: as in ``holding``.
    """
    holding(folder, "server")
    content = _contents(folder)
    current = {"content": content}

    def configuration(content: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
        authority, certificate, key = content
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        try:
            found = _contents(folder)
            if found == current["content"]:
                return None
            # Key and certificate are two files, and only one of them may have been replaced yet.
            holding(folder, "server")
        except errors.FedviError:
            return None
        current["content"] = found
        return configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        configuration(content), fetch, require_client_authentication=True
    )


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """Returns the credentials of a client or administrator, who trust only the folder's authority.

    The files are read once: a new certificate needs a new channel.

    Raises:
      ConfigError, IdentityError: as in ``holding``; also for a server's certificate, which cannot open
        a connection.
    """
    own = holding(folder).identity
    if own.role == "server":
        raise errors.IdentityError(
            f"the certificate of {own.name!r} in {folder} has the role server, "
            "expected client or admin",
            "enrol with --role client or --role admin in a folder of its own",
        )
    authority, certificate, key = _contents(folder)
    return grpc.ssl_channel_credentials(authority, key, certificate)


def is_loopback(address: str) -> bool:
    """Whether traffic to or from an address stays on this machine.

    Any host name other than localhost counts as another machine, whatever it resolves to now.

    >>> is_loopback("127.0.0.1:7443"), is_loopback("[::1]:7443"), is_loopback("unix:/run/x.sock")
    (True, True, True)
    >>> is_loopback("0.0.0.0:7443"), is_loopback("fedvi.example.org:7443"), is_loopback(":7443")
    (False, False, False)
    """
    if address.startswith("unix:"):
        return True
    host = address
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        host = host if port[:1] in ("", ":") else address
    elif address.count(":") == 1:
        host = address.partition(":")[0]
    if host.lower() == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or (mapped is not None and mapped.is_loopback)


def sign(folder: Path, content: bytes) -> bytes:
    """Returns a detached signature over a file, with the signer's certificate in it.

    Args:
      content: of the file; it is not part of the signature's bytes.

    Raises:
      ConfigError, IdentityError: as in ``holding``.
    """
    certificate = holding(folder).certificate
    key = certificates.read_key(folder / KEY)
    signature = key.sign(_PURPOSE + content, ec.ECDSA(hashes.SHA256()))
    made = {
        "format": _FORMAT,
        "certificate": certificates.pem(certificate).decode(),
        "signature": base64.b64encode(signature).decode(),
    }
    return (json.dumps(made, indent=2) + "\n").encode()


def verify(
    authority_pem: bytes,
    content: bytes,
    signature: bytes,
    roster: Roster | None = None,
    role: str | None = None,
    at: datetime.datetime | None = None,
) -> Identity:
    """Checks a file's signature and returns the signer.

    The signer's certificate must be valid now, since the time of signing is unknown.

    Args:
      authority_pem: the trusted certificate.
      signature: from ``sign``.
      roster: the signer must be on it; not checked, if None.
      role: the role that the signer must have; any, if None.
      at: the time, in UTC; now, if None.

    Raises:
      IdentityError: the signature is malformed, is not of this file, or its signer is not trusted, as in
        ``holding`` and ``Roster.check``.
      TransportError: the roster cannot be read.
    """
    at = at or certificates.now()
    found = verify_kept(content, signature, authority_pem)
    certificate, _ = _signature(signature)
    whose = f"the certificate of {found.name!r}"
    authority = certificates.parse(authority_pem, "the authority's file")
    for held, words in ((authority, "the authority's certificate"), (certificate, whose)):
        certificates.check_dates(held, words, at, "have it renewed, and sign the file again")
    if roster is not None:
        return roster.check(certificates.pem(certificate), role, at=at)
    if role not in (None, found.role):
        raise errors.IdentityError(f"{whose} has the role {found.role}, expected {role}")
    return found


def verify_kept(content: bytes, signature: bytes, authority_pem: bytes | None) -> Identity:
    """Checks a signature that was kept as evidence, whose signer's certificate may have expired since.

    Args:
      authority_pem: the trusted certificate; None: whose the certificate is, is not checked.

    Raises:
      IdentityError: the signature is malformed or not of this file, or the authority did not sign its
        certificate.
    """
    certificate, signed = _signature(signature)
    found = certificates.identity_of(certificate, "the signer's certificate")
    whose = f"the certificate of {found.name!r}"
    if authority_pem is not None:
        authority = certificates.parse(authority_pem, "the authority's file")
        certificates.check_issued(certificate, authority, whose)
    try:
        certificates.public_key(certificate, whose).verify(
            signed, _PURPOSE + content, ec.ECDSA(hashes.SHA256())
        )
    except InvalidSignature:
        raise errors.IdentityError(
            f"the signature of {found.name!r} is not of this file",
            "the file or its signature was changed on the way; ask for both again",
        ) from None
    return found


def key_of(signature: bytes) -> str:
    """Returns SHA-256, in hex, over the public key in a signature, without checking the signature.

    Raises:
      IdentityError: the bytes are not a signature of fedvi.
    """
    certificate, _ = _signature(signature)
    return certificates.key_fingerprint(certificates.public_key(certificate, "the signature"))


def _signature(content: bytes) -> tuple[x509.Certificate, bytes]:
    try:
        raw = json.loads(content)
        if raw["format"] != _FORMAT:
            raise ValueError(raw["format"])
        signed = base64.b64decode(raw["signature"], validate=True)
        held = raw["certificate"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise errors.IdentityError(
            "this is no signature of fedvi", "it was damaged on the way: ask for the file again"
        ) from None
    return certificates.parse(held, "the signature"), signed


def _contents(folder: Path) -> tuple[bytes, bytes, bytes]:
    read = [
        files.read(folder / name, "a TLS file", _HINT) for name in (AUTHORITY, CERTIFICATE, KEY)
    ]
    return read[0], read[1], read[2]
