"""Creates, reads and checks certificates.

A certificate holds its party's name twice: as the common name, and with the role as a URI,
``fedvi:client:north``. A server's certificate also holds the DNS names and IP addresses that clients
dial. All keys are ECDSA on P-256, all signatures use SHA-256.
"""

import contextlib
import datetime
import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedvi import errors, permissions
from fedvi.transport import files
from fedvi.typing import PRIOR

__all__ = [
    "MALFORMED",
    "ROLES",
    "Identity",
    "check_dates",
    "check_issued",
    "check_name",
    "check_role",
    "day",
    "fingerprint",
    "hosts_of",
    "identity_of",
    "key_fingerprint",
    "key_pem",
    "key_usage",
    "names",
    "now",
    "parse",
    "parse_fingerprint",
    "parse_host",
    "pem",
    "prefixed",
    "public_key",
    "read",
    "read_key",
    "subject",
    "usage",
]

ROLES = ("client", "server", "admin")
"""The roles of certificate holders: a site, the server, or an operator who pauses and stops runs."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_SCHEME = "fedvi"
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Identity(NamedTuple):
    """The holder of a certificate.

    Attributes:
      name: of the site, the server or the administrator; for a client, its name in the study.
      role: one of ``ROLES``.
      fingerprint: SHA-256 over the certificate, 64 lower-case hex digits.
      not_after: when the certificate expires, in UTC.
    """

    name: str
    role: str
    fingerprint: str
    not_after: datetime.datetime


# Formatting for errors, and checks of input.


def now() -> datetime.datetime:
    """Returns the current time in UTC."""
    return datetime.datetime.now(datetime.UTC)


def day(when: datetime.datetime) -> str:
    """Formats a time for error messages.

    >>> day(datetime.datetime(2026, 3, 1, 9, 30, tzinfo=datetime.UTC))
    '2026-03-01 09:30 UTC'
    """
    return when.strftime("%Y-%m-%d %H:%M UTC")


def check_name(name: str) -> str:
    """Checks and returns a party's name.

    Raises:
      ConfigError: the name is invalid; the rule is the one for clients' names in a study.
    """
    if not _NAME.fullmatch(name):
        raise errors.ConfigError(
            f"the name {name!r:.80} is none, expected up to 64 letters, digits, '.', '_' or '-', "
            "a letter or digit first",
            "a client's name is that of its [[clients]] entry in the study",
        )
    if name.casefold() == PRIOR:
        raise errors.ConfigError(f"the name {name!r} is reserved", "choose another name")
    return name


def check_role(role: str) -> str:
    """Checks and returns a role.

    Raises:
      ConfigError: the role is not in ``ROLES``.
    """
    if role not in ROLES:
        raise errors.ConfigError(f"the role {role!r:.80} is none of {', '.join(ROLES)}")
    return role


def parse_host(text: str) -> x509.GeneralName:
    """Parses a host, an IP address or a DNS name, into the form of certificates.

    >>> parse_host("10.1.2.3"), parse_host("fedvi.example.org")
    (<IPAddress(value=10.1.2.3)>, <DNSName(value='fedvi.example.org')>)

    Raises:
      ConfigError: it is neither.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    # Text of digits and dots alone is a mistyped address, not a name.
    if not _HOST.fullmatch(text) or re.fullmatch(r"[0-9.]+", text):
        raise errors.ConfigError(
            f"the host {text!r:.80} is neither a DNS name nor an IP address",
            "give the part before the colon of what clients dial, such as fedvi.example.org",
        )
    return x509.DNSName(text.lower())


def parse_fingerprint(text: str) -> str:
    """Parses a fingerprint into 64 lower-case hex digits; accepts colons and spaces.

    >>> parse_fingerprint("AB:" * 31 + "AB") == "ab" * 32
    True

    Raises:
      ConfigError: it is not a SHA-256 fingerprint.
    """
    found = re.sub(r"[\s:]", "", text.strip().lower().removeprefix("sha256"))
    if not re.fullmatch(r"[0-9a-f]{64}", found):
        raise errors.ConfigError(
            f"the fingerprint {text!r:.100} is none, expected 64 hex digits (SHA-256)",
            "`openssl x509 -in ca.pem -noout -fingerprint -sha256` prints it too",
        )
    return found


# Reading.

MALFORMED = (
    TypeError,
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The exceptions of `cryptography` for a certificate or a request that cannot be read."""


def parse(content: bytes, where: str) -> x509.Certificate:
    """Reads one certificate in PEM.

    Raises:
      IdentityError: the content is not a certificate, or holds several, so that trust is ambiguous.
    """
    try:
        found = x509.load_pem_x509_certificates(content)
        for item in found:
            # These parts are parsed lazily: a damaged one must raise here, not later.
            for part in ("subject", "issuer", "extensions", "not_valid_before_utc"):
                getattr(item, part)
            item.public_key()
    except MALFORMED:
        raise errors.IdentityError(f"{where} is no certificate in PEM") from None
    if len(found) != 1:
        raise errors.IdentityError(f"{where} holds {len(found)} certificates, expected one")
    return found[0]


def read(path: Path, hint: str = "") -> x509.Certificate:
    """Reads the one certificate in a file.

    Raises:
      ConfigError: the file cannot be read.
      IdentityError: the file holds no certificate, or several.
    """
    return parse(files.read(path, "the certificate", hint), str(path))


def read_key(path: Path, hint: str = "") -> ec.EllipticCurvePrivateKey:
    """Reads a private key.

    Raises:
      ConfigError: the file cannot be read.
      IdentityError: others than this user can read the file; or it holds no key on P-256, or an
        encrypted one.
    """
    content = files.read(path, "the key", hint)
    permissions.check(path)
    try:
        found = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        raise errors.IdentityError(f"{path} is no private key in PEM without a password") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or found.curve.name != "secp256r1":
        raise errors.IdentityError(f"{path} is a key of another kind, expected ECDSA on P-256")
    return found


def public_key(
    holder: x509.Certificate | x509.CertificateSigningRequest, where: str
) -> ec.EllipticCurvePublicKey:
    """Returns the public key of a certificate or a request.

    Raises:
      IdentityError: the key is not on P-256.
    """
    found = holder.public_key()
    if not isinstance(found, ec.EllipticCurvePublicKey) or found.curve.name != "secp256r1":
        raise errors.IdentityError(f"{where} holds a key of another kind, expected ECDSA on P-256")
    return found


def names(holder: x509.Certificate | x509.CertificateSigningRequest, where: str) -> tuple[str, str]:
    """Returns the name and the role that a certificate or a request holds.

    Raises:
      IdentityError: there is no name, or there are several, or the common name differs.
    """
    found = _alternatives(holder, x509.UniformResourceIdentifier, where)
    parts = found[0].split(":") if len(found) == 1 else []
    if len(parts) != 3 or parts[0] != _SCHEME or parts[1] not in ROLES:
        raise errors.IdentityError(
            f"{where} names no party of a federation, expected one URI such as fedvi:client:north",
            "make it with `fedvi enroll NAME --dir DIR`",
        )
    _, role, name = parts
    common = [item.value for item in holder.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if common != [name] or not _NAME.fullmatch(name):
        raise errors.IdentityError(
            f"{where} says {name!r:.80} in its URI and {', '.join(map(repr, common)):.100} as its "
            "common name, expected the same name"
        )
    if name.casefold() == PRIOR:
        raise errors.IdentityError(f"{where} is of {name!r}, which is no party's name but reserved")
    return name, role


def identity_of(certificate: x509.Certificate, where: str = "the certificate") -> Identity:
    """Returns the holder of a certificate, without checking who signed it.

    Raises:
      IdentityError: the certificate names no party.
    """
    name, role = names(certificate, where)
    return Identity(name, role, fingerprint(certificate), certificate.not_valid_after_utc)


def hosts_of(holder: x509.Certificate | x509.CertificateSigningRequest, where: str) -> list[str]:
    """Returns the DNS names and IP addresses that a certificate or a request holds.

    Raises:
      IdentityError: a name holds characters that could control a terminal.
    """
    hosts = _alternatives(holder, x509.DNSName, where)
    for host in hosts:
        if not host.isprintable():
            raise errors.IdentityError(f"{where} names the host {host!r:.80}, which is no DNS name")
    return [*hosts, *_alternatives(holder, x509.IPAddress, where)]


def fingerprint(certificate: x509.Certificate) -> str:
    """Returns SHA-256 over a certificate, as ``openssl x509 -fingerprint -sha256`` does."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Returns SHA-256 over a public key (SubjectPublicKeyInfo); a renewed certificate keeps it."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return digest.finalize().hex()


# Checking.


def check_dates(
    certificate: x509.Certificate, whose: str, at: datetime.datetime, renewal: str
) -> None:
    """Checks that a certificate is within its dates.

    Args:
      whose: names it in the error, such as "the certificate of 'north'".
      at: the time, in UTC.
      renewal: the hint for an expired certificate.

    Raises:
      IdentityError: it has expired, or is not valid yet.
    """
    if at > certificate.not_valid_after_utc:
        raise errors.IdentityError(
            f"{whose} expired on {day(certificate.not_valid_after_utc)}; it is {day(at)} here",
            renewal,
        )
    if at < certificate.not_valid_before_utc:
        raise errors.IdentityError(
            f"{whose} begins on {day(certificate.not_valid_before_utc)}; it is {day(at)} here",
            "set the clock of this machine, or that of the machine which signed",
        )


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, whose: str) -> None:
    """Checks that an authority signed a certificate, and that it is allowed to sign.

    Dates are not checked here; see ``check_dates``.

    Raises:
      IdentityError: another authority signed it, or ``authority`` is not an authority's certificate.
    """
    _check_authority(authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        # Names may be equal: two authorities of one name have different keys.
        raise errors.IdentityError(
            f"{whose} was signed by another authority than the one trusted here "
            f"({_common_name(authority)}, fingerprint {fingerprint(authority)})",
            "compare the fingerprint of ca.pem on both sides; each must have the same authority",
        ) from None


def _check_authority(authority: x509.Certificate) -> None:
    name = f"the certificate of {_common_name(authority)}"
    try:
        limits = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        uses = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        raise errors.IdentityError(f"{name} is not that of an authority") from None
    if not limits.ca or not uses.key_cert_sign:
        raise errors.IdentityError(
            f"{name} is not that of an authority",
            "ca.pem is the file that `fedvi ca init` made, not a site's certificate",
        )


def _common_name(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return repr(found[0].value) if found else "an authority without a name"


# Writing.


def pem(holder: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    """Writes a certificate or a request in PEM."""
    return holder.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Writes a private key in PEM, without a password: keep it in a file of mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def subject(name: str, role: str, hosts: Sequence[str]) -> tuple[x509.Name, x509.ExtensionType]:
    """Returns a certificate's subject and its alternative names for a party."""
    uri = x509.UniformResourceIdentifier(f"{_SCHEME}:{role}:{name}")
    others = x509.SubjectAlternativeName([uri, *map(parse_host, hosts)])
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), others


def key_usage(*allowed: str) -> x509.KeyUsage:
    """Returns a key usage that allows only these uses, by their names in ``x509.KeyUsage``."""
    return x509.KeyUsage(**{use: use in allowed for use in _USES})


def usage(role: str) -> list[tuple[x509.ExtensionType, bool]]:
    """Returns the usage extensions of a role's certificate, each with whether it is critical.

    A server's certificate cannot be used by a client, nor a client's by a server, so that no site can
    pose as the server.
    """
    purpose = (
        ExtendedKeyUsageOID.SERVER_AUTH if role == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    )
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([purpose]), False),
    ]


def _alternatives(
    holder: x509.Certificate | x509.CertificateSigningRequest, kind: type, where: str
) -> list[str]:
    try:
        found = holder.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except MALFORMED:
        raise errors.IdentityError(f"{where} has extensions that cannot be read") from None
    return [str(item) for item in found.get_values_for_type(kind)]


@contextlib.contextmanager
def prefixed(what: object) -> Iterator[None]:
    """Prefixes errors with the file, or with whatever else was checked."""
    try:
        yield
    except errors.IdentityError as error:
        raise errors.IdentityError(f"{what}: {error.message}", error.hint) from None
