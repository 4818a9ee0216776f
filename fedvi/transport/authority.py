"""Runs the consortium's certificate authority: a folder at the coordinator.

FOLDER/ca.pem         its certificate, which every party trusts
FOLDER/ca.key         its key; whoever has it can impersonate any party
FOLDER/roster.json    all that it signed, and what was revoked; the server reads it, or a copy
FOLDER/issued/        each certificate that it signed, by fingerprint
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedvi import errors
from fedvi.transport import certificates, files
from fedvi.transport.roster import ROSTER, Listing, Member, from_json, to_json

__all__ = ["Created", "Issued", "create", "members", "renew", "renew_itself", "revoke", "sign"]

_CERTIFICATE, _KEY, _ISSUED = "ca.pem", "ca.key", "issued"

# A certificate begins this long before it is signed, in case other clocks are slow.
_BACKDATED = datetime.timedelta(hours=1)
_MAX_DAYS = 36_500


class Created(NamedTuple):
    """An authority's certificate: its name, SHA-256 fingerprint, expiry and file."""

    name: str
    fingerprint: str
    not_after: datetime.datetime
    path: Path


class Issued(NamedTuple):
    """A certificate that was signed.

    Attributes:
      name: of the party.
      role: of the party.
      hosts: of a server; empty for others.
      fingerprint: SHA-256 of the certificate.
      key: SHA-256 of its public key, to compare with the party's request.
      not_after: when it expires, in UTC: never later than the authority.
      pem: the certificate.
    """

    name: str
    role: str
    hosts: tuple[str, ...]
    fingerprint: str
    key: str
    not_after: datetime.datetime
    pem: bytes


def create(
    folder: Path, name: str, days: int = 3650, at: datetime.datetime | None = None
) -> Created:
    """Creates an authority: a key, a self-signed certificate, and an empty roster.

    The authority cannot sign other authorities.

    Args:
      folder: created, for its owner alone, if it does not exist.
      name: a readable name of up to 64 characters.
      at: the time, in UTC; now, if None.

    Raises:
      ConfigError: an authority exists already, or an argument is wrong.
    """
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise errors.ConfigError(f"--name is {name!r:.80}, expected 1 to 64 printable characters")
    length = _length(days)
    files.folder(folder)
    with files.locked(folder):
        key = ec.generate_private_key(ec.SECP256R1())
        files.create(
            folder / _KEY,
            certificates.key_pem(key),
            files.PRIVATE,
            "an authority is there; `fedvi ca renew` gives it a new certificate for the same key"
            if (folder / ROSTER).exists()
            else f"an earlier `fedvi ca init` was cut short: remove {folder}, and begin anew",
        )
        certificate = _over_itself(key, _subject(name), length, at or certificates.now())
        files.create(folder / _CERTIFICATE, certificates.pem(certificate), files.PUBLIC)
        _keep(folder, {}, key)
    return _created(folder, certificate)


def renew_itself(folder: Path, days: int = 3650, at: datetime.datetime | None = None) -> Created:
    """Gives the authority a new certificate for the same key and name.

    Earlier certificates stay valid under the new one, and later certificates are valid under the old one
    until it expires. So parties may install the new ca.pem one by one.

    Raises:
      ConfigError: there is no authority in the folder, or ``days`` is wrong.
      IdentityError: its files do not fit together.
    """
    length = _length(days)
    with files.locked(folder):
        key, old = _open(folder)
        certificate = _over_itself(key, old.subject, length, at or certificates.now())
        files.replace(folder / _CERTIFICATE, certificates.pem(certificate), files.PUBLIC)
    return _created(folder, certificate)


def sign(
    folder: Path,
    request_pem: bytes,
    name: str | None = None,
    role: str = "client",
    days: int = 90,
    new_key: bool = False,
    at: datetime.datetime | None = None,
) -> Issued:
    """Signs a request and puts the certificate on the roster.

    The signer decides the role: a request for another role than the one given here is refused.

    Args:
      request_pem: the request from `fedvi enroll`.
      name: the name that the request must hold; any, if None.
      role: the role that the request must hold.
      new_key: whether a name on the roster may come with a new key. Its earlier certificates stay as
        they are.
      at: the time, in UTC; now, if None.

    Raises:
      ConfigError: there is no authority in the folder, or an argument is wrong.
      IdentityError: the request is invalid, is not signed by its own key, has another name or role, or
        has a new key without ``new_key``; or the authority has expired.
    """
    length = _length(days)
    certificates.check_role(role)
    asked = _request(request_pem)
    found_name, found_role = certificates.names(asked, "the request")
    if name not in (None, found_name):
        raise errors.IdentityError(
            f"the request is of {found_name!r}, expected {name!r:.80}",
            "is it the request of another party? --name says whose it must be",
        )
    if found_role != role:
        raise errors.IdentityError(
            f"the request of {found_name!r} asks for the role {found_role}, expected {role}",
            f"if it is meant to be one, say so: --role {found_role}",
        )
    hosts = certificates.hosts_of(asked, "the request")
    if bool(hosts) != (role == "server"):
        raise errors.IdentityError(
            f"the request of {found_name!r} for the role {role} names {', '.join(hosts) or 'no host'}",
            "a server has at least one, others have none",
        )
    key = certificates.public_key(asked, "the request")
    with files.locked(folder):
        roster = _members(folder)
        _check_member(roster, found_name, role, certificates.key_fingerprint(key), new_key)
        return _issue(folder, roster, found_name, role, hosts, key, length, at)


def renew(folder: Path, name: str, days: int = 90, at: datetime.datetime | None = None) -> Issued:
    """Renews a party's newest active certificate: the same key, role and hosts, new dates.

    Raises:
      ConfigError: there is no authority in the folder, the party is not on its roster, or ``days``
        is wrong.
      IdentityError: the party is revoked, or the authority has expired.
    """
    length = _length(days)
    with files.locked(folder):
        roster = _members(folder)
        member = _member(roster, name)
        active = [item for item in member.certificates if item.revoked is None]
        if not active:
            raise errors.IdentityError(
                f"{name!r} is revoked, and is not renewed",
                "to let it back in, have it enrol again and sign its new request with --new-key",
            )
        old = certificates.read(folder / _ISSUED / f"{active[-1].fingerprint}.pem")
        whose = f"the certificate of {name!r}"
        key = certificates.public_key(old, whose)
        hosts = certificates.hosts_of(old, whose)
        return _issue(folder, roster, name, member.role, hosts, key, length, at)


def revoke(
    folder: Path,
    name: str,
    fingerprint: str | None = None,
    at: datetime.datetime | None = None,
) -> int:
    """Revokes a party's certificates: a server that reads this roster refuses its next call.

    Args:
      fingerprint: of the one certificate to revoke; all of them, if None.
      at: the time, in UTC; now, if None.

    Returns:
      How many active certificates were revoked.

    Raises:
      ConfigError: there is no authority in the folder, or no such party or certificate.
    """
    only = None if fingerprint is None else certificates.parse_fingerprint(fingerprint)
    when = (at or certificates.now()).isoformat(timespec="seconds")
    with files.locked(folder):
        key, _ = _open(folder)
        roster = _members(folder)
        member = _member(roster, name)
        if only is not None and only not in [item.fingerprint for item in member.certificates]:
            raise errors.ConfigError(
                f"{name!r} has no certificate of fingerprint {only}",
                "`fedvi ca list` names them",
            )
        hit = [
            item.revoked is None and only in (None, item.fingerprint)
            for item in member.certificates
        ]
        changed = tuple(
            item._replace(revoked=when) if is_hit else item
            for item, is_hit in zip(member.certificates, hit, strict=True)
        )
        _keep(folder, {**roster, name: member._replace(certificates=changed)}, key)
    return sum(hit)


def members(folder: Path) -> tuple[Created, dict[str, Member]]:
    """Returns the authority and the members of its roster.

    Raises:
      ConfigError: there is no authority in the folder, or its roster cannot be read.
      IdentityError: its files do not fit together.
    """
    _, certificate = _open(folder)
    return _created(folder, certificate), _members(folder)


def _issue(
    folder: Path,
    roster: dict[str, Member],
    name: str,
    role: str,
    hosts: Sequence[str],
    key: ec.EllipticCurvePublicKey,
    length: datetime.timedelta,
    at: datetime.datetime | None,
) -> Issued:
    """Signs, stores and lists a certificate, in this order, so that every listed one is stored."""
    at = at or certificates.now()
    own, root = _open(folder)
    certificates.check_dates(
        root, "the authority's certificate", at, "`fedvi ca renew` without a name renews it"
    )
    subject, others = certificates.subject(name, role, hosts)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(root.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(at - _BACKDATED, root.not_valid_before_utc))
        .not_valid_after(min(at + length, root.not_valid_after_utc))
        .add_extension(others, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False
        )
    )
    for extension, critical in certificates.usage(role):
        builder = builder.add_extension(extension, critical)
    made = builder.sign(own, hashes.SHA256())
    issued = Issued(
        name,
        role,
        tuple(hosts),
        certificates.fingerprint(made),
        certificates.key_fingerprint(key),
        made.not_valid_after_utc,
        certificates.pem(made),
    )
    files.folder(folder / _ISSUED)
    files.create(folder / _ISSUED / f"{issued.fingerprint}.pem", issued.pem, files.PUBLIC)
    listing = Listing(issued.fingerprint, issued.key, issued.not_after.isoformat())
    before = roster.get(name, Member(role, ()))
    listed = before._replace(certificates=(*before.certificates, listing))
    _keep(folder, {**roster, name: listed}, own)
    return issued


def _check_member(roster: dict[str, Member], name: str, role: str, key: str, new_key: bool) -> None:
    """Checks that a request is consistent with the roster's entries for its name."""
    for known in roster:
        # Ledgers and state folders are named after clients, and some file systems ignore case.
        if known != name and known.casefold() == name.casefold():
            raise errors.IdentityError(
                f"the name {name!r} differs from {known!r} in its case alone",
                "give every party its own name",
            )
    member = roster.get(name)
    if member is None:
        return
    if member.role != role:
        raise errors.IdentityError(
            f"{name!r} is a {member.role} on the roster, expected {role}",
            "a name keeps its role: choose another name",
        )
    if key in [c.key for c in member.certificates if c.revoked is None]:
        return
    if key in [c.key for c in member.certificates]:
        raise errors.IdentityError(
            f"the key of this request of {name!r} ({key}) was revoked",
            "a key that was revoked stays out: enrol again with a new one",
        )
    if not new_key:
        raise errors.IdentityError(
            f"{name!r} is on the roster with another key than that of this request ({key})",
            "compare the key's fingerprint with the site, and sign with --new-key",
        )


def _over_itself(
    key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    length: datetime.timedelta,
    at: datetime.datetime,
) -> x509.Certificate:
    public = key.public_key()
    uses = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _BACKDATED)
        .not_valid_after(at + length)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(uses, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def _open(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    hint = "name the folder that `fedvi ca init` made"
    certificate = certificates.read(folder / _CERTIFICATE, hint)
    key = certificates.read_key(folder / _KEY, hint)
    if key.public_key() != certificates.public_key(certificate, str(folder / _CERTIFICATE)):
        raise errors.IdentityError(
            f"{folder / _KEY} is not the key of {folder / _CERTIFICATE}",
            "put both back from the same backup",
        )
    return key, certificate


def _members(folder: Path) -> dict[str, Member]:
    path = folder / ROSTER
    content = files.read(path, "the roster", "name the folder that `fedvi ca init` made")
    try:
        return from_json(content)
    except ValueError as error:
        raise errors.ConfigError(
            f"{path}: the roster cannot be read: {error}",
            "put it back from a backup; a lost roster would forget what was revoked",
        ) from None


def _member(roster: dict[str, Member], name: str) -> Member:
    if name not in roster:
        raise errors.ConfigError(
            f"{name!r:.80} is not on the roster", errors.did_you_mean(name, roster)
        )
    return roster[name]


def _keep(folder: Path, roster: dict[str, Member], key: ec.EllipticCurvePrivateKey) -> None:
    content = to_json(roster, certificates.key_fingerprint(key.public_key()))
    files.replace(folder / ROSTER, content, files.PUBLIC)


def _created(folder: Path, certificate: x509.Certificate) -> Created:
    named = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Created(
        str(named[0].value),
        certificates.fingerprint(certificate),
        certificate.not_valid_after_utc,
        folder / _CERTIFICATE,
    )


def _request(content: bytes) -> x509.CertificateSigningRequest:
    try:
        found = x509.load_pem_x509_csr(content)
        # The subject is parsed lazily: a damaged one must raise here, not later.
        _, own = found.subject, found.is_signature_valid
    except certificates.MALFORMED:
        raise errors.IdentityError(
            "this is no request in PEM", "give the request.pem that `fedvi enroll` made"
        ) from None
    if not own:
        raise errors.IdentityError("the request does not hold its own key, or was changed")
    return found


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _length(days: int) -> datetime.timedelta:
    if not 0 < days <= _MAX_DAYS:
        raise errors.ConfigError(f"--days is {days}, expected 1 to {_MAX_DAYS}")
    return datetime.timedelta(days=days)
