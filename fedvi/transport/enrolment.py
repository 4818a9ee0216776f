"""Enrols a site: makes its key and a certificate request, and installs the signed certificate."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedvi import errors
from fedvi.transport import certificates, files
from fedvi.transport.certificates import Identity
from fedvi.transport.identity import AUTHORITY, CERTIFICATE, KEY

__all__ = ["REQUEST", "Installed", "Request", "install", "request"]

REQUEST = "request.pem"


class Request(NamedTuple):
    """A party's request for a certificate.

    Attributes:
      name: of the party.
      role: the role that it asks for.
      hosts: DNS names and IP addresses of a server.
      key: SHA-256 of the public key, which both sides compare by telephone.
      path: of the request's file.
    """

    name: str
    role: str
    hosts: tuple[str, ...]
    key: str
    path: Path


class Installed(NamedTuple):
    """The installed identity, and the fingerprint of the authority that the party now trusts."""

    identity: Identity
    authority: str


def request(
    folder: Path, name: str, role: str = "client", hosts: Sequence[str] = (), keep_key: bool = False
) -> Request:
    """Makes a key and a request for a certificate; with ``keep_key``, a request for the old key.

    Args:
      folder: of the party; created, for its owner alone, if it does not exist.
      name: of the party; for a client, its name in the study.
      keep_key: whether to use the existing key, for a renewal.

    Raises:
      ConfigError: the name, the role or the hosts are wrong; or the folder has a key already; or, with
        ``keep_key``, it has none.
      IdentityError: the existing key is of another kind.
    """
    certificates.check_name(name)
    certificates.check_role(role)
    if role == "server" and not hosts:
        raise errors.ConfigError(
            "a server needs the names under which clients reach it, and --host was not given",
            "give --host for each: a DNS name or an IP address, without the port",
        )
    if role != "server" and hosts:
        raise errors.ConfigError(f"--host was given for the role {role}: only servers have hosts")
    subject, others = certificates.subject(name, role, hosts)
    files.folder(folder)
    if keep_key:
        key = certificates.read_key(folder / KEY, "leave --keep-key out to make a new key")
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        files.create(
            folder / KEY,
            certificates.key_pem(key),
            files.PRIVATE,
            "--keep-key asks for a certificate for this key; a new key needs a folder of its own",
        )
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(others, critical=False)
        .sign(key, hashes.SHA256())
    )
    files.replace(folder / REQUEST, certificates.pem(made), files.PUBLIC)
    return Request(
        name,
        role,
        tuple(certificates.hosts_of(made, "the request")),
        certificates.key_fingerprint(key.public_key()),
        folder / REQUEST,
    )


def install(
    folder: Path,
    name: str,
    certificate: Path,
    authority: Path | None = None,
    fingerprint: str | None = None,
) -> Installed:
    """Checks a signed certificate and its authority's, and installs both in a party's folder.

    Args:
      folder: of the party, with its key.
      name: the name that the certificate must hold.
      certificate: the file that came back from the authority.
      authority: the authority's ca.pem; the one in the folder, if None.
      fingerprint: the expected fingerprint of the authority's certificate, received over a different
        channel. None only where the folder trusts an authority already, and this one has its key.

    Raises:
      ConfigError: a file cannot be read, or the fingerprint is malformed.
      IdentityError: the certificate has another name, key or authority, or is outside its dates; or the
        authority is not the one of the fingerprint, or not the one that the folder trusts; or the folder
        trusts none yet, and no fingerprint is given.
    """
    found = certificates.read(certificate)
    root = certificates.read(authority or folder / AUTHORITY, "give the authority's ca.pem: --ca")
    own = certificates.identity_of(found, str(certificate))
    whose = f"the certificate of {own.name!r}"
    if own.name != name:
        raise errors.IdentityError(
            f"{certificate} is of {own.name!r}, expected {name!r}",
            "give the certificate that came back for this party's own request",
        )
    key = certificates.read_key(folder / KEY, "make the key first: `fedvi enroll NAME --dir DIR`")
    if key.public_key() != certificates.public_key(found, whose):
        raise errors.IdentityError(
            f"{certificate} was signed for another key than {folder / KEY}",
            f"send {folder / REQUEST} to the authority, and install what comes back for it",
        )
    _check_authority(folder, root, fingerprint)
    certificates.check_issued(found, root, whose)
    at = certificates.now()
    certificates.check_dates(root, "the authority's certificate", at, "ask for its new ca.pem")
    certificates.check_dates(found, whose, at, "have the request signed again")
    # Replace the authority first: a new certificate under an old authority could open no connection.
    files.replace(folder / AUTHORITY, certificates.pem(root), files.PUBLIC)
    files.replace(folder / CERTIFICATE, certificates.pem(found), files.PUBLIC)
    return Installed(own, certificates.fingerprint(root))


def _check_authority(folder: Path, root: x509.Certificate, expected: str | None) -> None:
    """Checks the authority against the given fingerprint, or else against the one already trusted."""
    found = certificates.fingerprint(root)
    if expected is not None:
        if certificates.parse_fingerprint(expected) != found:
            raise errors.IdentityError(
                f"the authority's fingerprint is {found}, "
                f"expected {certificates.parse_fingerprint(expected)}",
                "do not install it: ask the authority for ca.pem again, by another way",
            )
        return
    if not (folder / AUTHORITY).exists():
        # Whoever replaced ca.pem on its way could pose as the server. The message does not show the
        # fingerprint that was found, since it would be copied from there.
        raise errors.IdentityError(
            f"--fingerprint is missing, and {folder} trusts no authority yet",
            "ask the coordinator for the fingerprint over the telephone (`fedvi ca list` prints it there), "
            "and give it with --fingerprint: a file sent along with ca.pem proves nothing",
        )
    trusted = certificates.read(folder / AUTHORITY)
    keys = [certificates.public_key(item, "the authority") for item in (trusted, root)]
    if keys[0] != keys[1]:
        raise errors.IdentityError(
            f"the authority's key is another than that of {folder / AUTHORITY}",
            "if the consortium has a new authority, confirm it with --fingerprint",
        )
