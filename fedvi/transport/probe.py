"""Diagnoses, step by step, why a client cannot reach its server.

gRPC reports every failed handshake as a closed socket. So this module dials with `ssl`: first without
verification, to read the server's certificate and explain what is wrong with it, then as a client would.
The party's own files are checked before that, since a server that does not trust a certificate hangs up
without giving a reason.
"""

import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedvi import errors, permissions
from fedvi.transport import certificates, identity
from fedvi.transport.certificates import Identity

__all__ = [
    "Finding",
    "believed",
    "handshake",
    "mismatch",
    "own_files",
    "parse_address",
    "reach",
    "server_certificate",
    "speaks_tls",
]

# An HTTP/2 client's first bytes: the preface and empty settings. A server that accepted the client answers
# with its own settings; in TLS 1.3 nothing earlier shows that it did.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

# For each step of a check.
_TIMEOUT_SECONDS = 5.0

_NO_TLS = "the server speaks no TLS on this port"

_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")

_ALERTS = {
    "CERTIFICATE_REQUIRED": (
        "the server wants a certificate, and none was shown",
        "enrol with `fedvi enroll`, and name the folder with --tls",
    ),
    "CERTIFICATE_EXPIRED": (
        "the server says that this certificate is expired",
        "if it is not, the clock of one of the two machines is wrong; else ask for `fedvi ca renew`",
    ),
    "UNKNOWN_CA": (
        "the server does not trust the authority of this certificate",
        "compare the fingerprint of ca.pem with the coordinator: both ends must have the same authority",
    ),
    "CERTIFICATE_REVOKED": (
        "the server says that this certificate is revoked",
        "ask the coordinator; a new key must be enrolled",
    ),
    "BAD_CERTIFICATE": (
        "the server cannot use this certificate",
        "install the one that `fedvi ca sign` made of this site's request",
    ),
    "PROTOCOL_VERSION": (
        "the server speaks no TLS 1.2 or later",
        "is this the address of a fedvi server?",
    ),
}


_NO_AUTHORITY = "ask the coordinator for ca.pem; `fedvi enroll NAME --certificate` installs it"


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
      check: its name.
      status: "ok", "warn" or "fail".
      said: a sentence.
      advice: what to do; empty if nothing.
      exit_code: of a failure: 3 for the connection, 4 for the identity.
      passes: whether a failure may go away without a change at this party's end.
      server_says: words of whoever answered there, to be quoted.
    """

    check: str
    status: str
    said: str
    advice: str = ""
    exit_code: int = 0
    passes: bool = False
    server_says: str = ""


_NO_WAY = errors.TransportError.exit_code
_NOT_ALLOWED = errors.IdentityError.exit_code


def parse_address(text: str) -> tuple[str, int]:
    """Returns the host and the port of an address.

    >>> parse_address("fedvi.example.org:7443"), parse_address("[::1]:7443")
    (('fedvi.example.org', 7443), ('::1', 7443))

    Raises:
      ConfigError: the text is not HOST:PORT.
    """
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not bare or ("[" not in host and ":" in host) or not is_number or not 0 < int(port) < 65536:
        raise errors.ConfigError(
            f"the server's address is {text!r:.100}, expected HOST:PORT",
            "such as fedvi.example.org:7443 or [2001:db8::1]:7443",
        )
    return bare, int(port)


def own_files(folder: Path, at: datetime.datetime) -> tuple[Identity | None, list[Finding]]:
    """Checks a party's certificate, key and authority.

    Returns:
      The holder of the certificate, None if it cannot be read; and the findings.
    """
    try:
        certificate = certificates.read(folder / identity.CERTIFICATE, "`fedvi enroll` installs it")
        own = certificates.identity_of(certificate, str(folder / identity.CERTIFICATE))
    except errors.FedviError as error:
        return None, [_failed("certificate", error, _NOT_ALLOWED)]
    found = []
    key = folder / identity.KEY
    try:
        if key.exists():
            permissions.check(key)
    except errors.IdentityError as error:
        return own, [_failed("key", error, _NOT_ALLOWED), *_authority(folder, at)]
    try:
        identity.holding(folder, at=at)
        said = f"{own.name}, {own.role}, until {certificates.day(own.not_after)}"
        warning = identity.expiry_warning(own, at)
        found.append(
            Finding("certificate", "warn", warning) if warning else _passed("certificate", said)
        )
    except errors.FedviError as error:
        found.append(_failed("certificate", error, _NOT_ALLOWED))
    found += _authority(folder, at)
    return own, found


def reach(host: str, port: int) -> list[Finding]:
    """Resolves the host and opens a connection to the port."""
    try:
        looked_up = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else "it is no name"
        return [
            Finding(
                "dns",
                "fail",
                f"the name {host!r} cannot be looked up: {why}",
                "check the spelling, this machine's DNS server, and whether a VPN must be up",
                _NO_WAY,
            )
        ]
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in looked_up))
    found = [_passed("dns", f"{host} is {', '.join(addresses)}")]
    try:
        socket.create_connection((host, port), _TIMEOUT_SECONDS).close()
    except ConnectionRefusedError:
        said = f"{host} refuses connections on port {port}"
        advice = "is the server running, and is this its port? `fedvi server --listen` says which"
    except TimeoutError:
        said = f"{host} does not answer on port {port} within {_TIMEOUT_SECONDS:g} s"
        advice = "a firewall drops the packets, on the way out or at the server: ask both networks"
    except OSError as error:
        said = f"port {port} of {host} cannot be reached: {error.strerror}"
        advice = "check the network and its routes"
    else:
        return [*found, _passed("tcp", f"port {port} is open")]
    return [*found, Finding("tcp", "fail", said, advice, _NO_WAY)]


def speaks_tls(host: str, port: int) -> bool:
    """Whether a server begins a TLS handshake."""
    try:
        _shown(host, port)
    except ssl.SSLError as error:
        return error.reason not in _PLAIN
    except OSError:
        return False
    return True


def mismatch(server: str, tls: Path | None) -> errors.FedviError | None:
    """Returns the error to raise if only one of this party and the server uses TLS; None otherwise.

    Args:
      server: HOST:PORT.
      tls: the folder that --tls names; None if it is left out.
    """
    address = parse_address(server)
    if tls is None:
        if not speaks_tls(*address):
            return None
        return errors.ConfigError(
            f"the server at {server} speaks TLS alone, and --tls is not given",
            "name the folder that `fedvi enroll` made with --tls",
        )
    found = server_certificate(*address, tls, certificates.now())
    if found.said != _NO_TLS:
        return None
    return errors.TransportError(f"{_NO_TLS}, and --tls is given", found.advice)


def server_certificate(host: str, port: int, folder: Path, at: datetime.datetime) -> Finding:
    """Reads the server's certificate, and checks it against the authority in a party's folder.

    Args:
      host: as dialled; the server's certificate must name it.
      folder: with the party's ca.pem.
      at: the time, in UTC.
    """
    try:
        authority = certificates.read(folder / identity.AUTHORITY, _NO_AUTHORITY)
        content = _shown(host, port)
        # Anybody may answer there: all of it must be readable before any of it is looked at.
        shown = certificates.parse(
            ssl.DER_cert_to_PEM_cert(content).encode(), "what the server showed"
        )
    except errors.FedviError as error:
        return _failed("server's certificate", error, _NO_WAY)
    except (OSError, ValueError) as error:
        return _broken(error)
    return _judge(shown, authority, folder / identity.AUTHORITY, host, at)


def believed(host: str, port: int, folder: Path, at: datetime.datetime) -> Finding:
    """Checks whether a party and a reachable server trust each other.

    Returns:
      The first failure, of this party's own files, the server's certificate or the handshake; or the
      passed handshake. The failure ``passes`` if the server is away, if its certificate must be renewed, or
      if it hangs up without a reason, as it does for an authority that it does not trust.
    """
    try:
        identity.holding(folder, at=at)
    except errors.FedviError as error:
        return _failed("certificate", error, _NOT_ALLOWED)
    finding = server_certificate(host, port, folder, at)
    if finding.status == "fail":
        return finding
    return handshake(host, port, folder)


def handshake(host: str, port: int, folder: Path) -> Finding:
    """Does the TLS handshake with a party's files, as a client would, up to the server's first bytes.

    Args:
      folder: with ca.pem; without cert.pem and key.pem no certificate is shown.
    """
    context = _context()
    context.load_verify_locations(folder / identity.AUTHORITY)
    certificate, key = folder / identity.CERTIFICATE, folder / identity.KEY
    is_shown = certificate.is_file() and key.is_file()
    if is_shown:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError):
            return Finding(
                "tls",
                "fail",
                "your certificate and key cannot be used together",
                "install the certificate that was signed for this key's request",
                _NOT_ALLOWED,
            )
    try:
        with _dialled(context, host, port) as stream:
            version = stream.version()
            stream.sendall(_PREFACE)
            is_in = bool(stream.recv(9))
    except ssl.SSLCertVerificationError as error:
        return Finding(
            "tls",
            "fail",
            f"the server's certificate is not believed: {error.verify_message}",
            "compare ca.pem with the coordinator's",
            _NO_WAY,
        )
    except (ssl.SSLError, ConnectionError) as error:
        alerts = [told for mark, told in _ALERTS.items() if mark in str(error)]
        if alerts:
            return Finding("tls", "fail", *alerts[0], _NOT_ALLOWED)
        is_in = False
    except OSError as error:
        return _broken(error)
    if is_in:
        how = "both sides showed certificates" if is_shown else "without a certificate of yours"
        return _passed("tls", f"{version}, {how}")
    if not is_shown:
        return Finding(
            "tls",
            "fail",
            "the server hung up: it wants a certificate, and none was shown",
            "enrol with `fedvi enroll`, and name the folder with --tls",
            _NOT_ALLOWED,
        )
    return Finding(
        "tls",
        "fail",
        "the server hung up when it saw your certificate",
        "if no other check says why: its ca.pem is of another authority, or its clock is wrong",
        _NOT_ALLOWED,
        passes=True,
    )


def _authority(folder: Path, at: datetime.datetime) -> list[Finding]:
    try:
        authority = certificates.read(folder / identity.AUTHORITY, _NO_AUTHORITY)
        certificates.check_dates(
            authority,
            "the authority's certificate in ca.pem",
            at,
            "ask the coordinator for the new ca.pem (`fedvi ca renew` without a name)",
        )
    except errors.FedviError as error:
        return [_failed("authority", error, _NOT_ALLOWED)]
    until = authority.not_valid_after_utc
    said = (
        f"until {certificates.day(until)}, fingerprint {certificates.fingerprint(authority)[:16]}…"
    )
    if until - at <= datetime.timedelta(days=30):
        return [Finding("authority", "warn", said, "it ends soon: `fedvi ca renew` without a name")]
    return [_passed("authority", said)]


def _judge(
    shown: x509.Certificate,
    authority: x509.Certificate,
    file: Path,
    host: str,
    at: datetime.datetime,
) -> Finding:
    """Checks whether a client would accept the server's certificate."""
    check = "server's certificate"
    whose = "the server's certificate"
    try:
        try:
            certificates.check_issued(shown, authority, whose)
        except errors.IdentityError as error:
            issuer = shown.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
            # Anybody can put a name there.
            raise errors.IdentityError(
                f"{error.message}; its authority has the key {_key_identifier(shown)}, and yours, {file}, "
                f"has the key {_key_identifier(authority)}",
                "ask the coordinator for ca.pem and its fingerprint, or check that this is the "
                "right server",
                f"my authority is {issuer[0].value!r}" if issuer else "",
            ) from None
        certificates.check_dates(
            authority, "the authority's certificate", at, "ask the coordinator for the new ca.pem"
        )
        name, role = certificates.names(shown, whose)
        if role != "server":
            raise errors.IdentityError(
                f"{whose} is that of the {role} {name!r}, expected a server's",
                "the server must be enrolled with --role server",
            )
        hosts = certificates.hosts_of(shown, whose)
        if not any(_same_host(host, known) for known in hosts):
            raise errors.IdentityError(
                f"{whose} is for {', '.join(hosts)}, and {host} was dialled",
                f"dial one of its names, or enrol the server again with --host {host}",
            )
    except errors.IdentityError as error:
        return _failed(check, error, _NO_WAY)
    try:
        certificates.check_dates(
            shown, whose, at, "tell the coordinator: `fedvi ca renew` for the server"
        )
    except errors.IdentityError as error:
        # A running server picks up a renewed certificate by itself.
        return _failed(check, error, _NO_WAY)._replace(passes=True)
    until = shown.not_valid_after_utc
    said = f"{name}, for {', '.join(hosts)}, until {certificates.day(until)}"
    warning = identity.expiry_warning(certificates.identity_of(shown, whose), at)
    return Finding(check, "warn", warning) if warning else _passed(check, said)


def _shown(host: str, port: int) -> bytes:
    """Returns the server's certificate, without verification and without a certificate of our own."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _dialled(context, host, port) as stream:
        return stream.getpeercert(binary_form=True) or b""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context


@contextlib.contextmanager
def _dialled(context: ssl.SSLContext, host: str, port: int) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection((host, port), _TIMEOUT_SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=host) as stream,
    ):
        yield stream


def _broken(error: Exception) -> Finding:
    check = "tls"
    if isinstance(error, ssl.SSLError) and error.reason in _PLAIN:
        return Finding(
            check,
            "fail",
            _NO_TLS,
            "start it with --tls, or dial another port; a trial without certificates gives --tls at "
            "neither end",
            _NO_WAY,
            passes=True,
        )
    if isinstance(error, TimeoutError):
        said = "the server took the connection and then said nothing"
        return Finding(check, "fail", said, "something else may listen on this port", _NO_WAY, True)
    said = f"the handshake broke off: {str(error) or type(error).__name__}"
    return Finding(
        check, "fail", said, "something on the way may cut TLS: ask the network", _NO_WAY, True
    )


def _same_host(dialled: str, known: str) -> bool:
    try:
        return ipaddress.ip_address(dialled) == ipaddress.ip_address(known)
    except ValueError:
        return dialled.rstrip(".").lower() == known.lower()


def _key_identifier(certificate: x509.Certificate) -> str:
    """Returns the identifier of an authority's key, from its own certificate or one that it signed."""
    find = certificate.extensions.get_extension_for_class
    digest: bytes | None = None
    with contextlib.suppress(x509.ExtensionNotFound):
        digest = find(x509.SubjectKeyIdentifier).value.digest
    with contextlib.suppress(x509.ExtensionNotFound):
        digest = find(x509.AuthorityKeyIdentifier).value.key_identifier
    return digest.hex()[:16] + "…" if digest else "unknown"


def _passed(check: str, said: str) -> Finding:
    return Finding(check, "ok", said)


def _failed(check: str, error: errors.FedviError, exit_code: int) -> Finding:
    return Finding(
        check, "fail", error.message, error.hint, exit_code, server_says=error.server_says
    )
