"""The list of certificates that a server accepts.

An authority's signature is not enough: a certificate is accepted only while the roster lists it as active.
So a revoked site is refused at its next call, without a separate revocation list.
"""

import datetime
import functools
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from fedvi import errors
from fedvi.transport import certificates
from fedvi.transport.certificates import Identity

__all__ = ["ROSTER", "Listing", "Member", "Roster", "from_json", "holder", "to_json"]

ROSTER = "roster.json"
"""The roster's name, in an authority's folder and in a server's."""

_VERSION = 1

# A file that changed less than this long ago is read again at each call: another change within one tick of
# the file system's clock would not show in its times.
_SETTLED_SECONDS = 2.0
# How long one look at the file is good for: a round of many small calls would look hundreds of times.
_LOOK_SECONDS = 0.02


class Listing(NamedTuple):
    """One certificate of a member.

    Attributes:
      fingerprint: SHA-256 of the certificate, 64 hex digits.
      key: SHA-256 of its public key, 64 hex digits.
      not_after: when it expires, in UTC, as ISO 8601.
      revoked: when it was revoked, as ISO 8601; None while it is active.
    """

    fingerprint: str
    key: str
    not_after: str
    revoked: str | None = None


class Member(NamedTuple):
    """A party's role, and all certificates that it ever had, oldest first."""

    role: str
    certificates: tuple[Listing, ...]


class Roster:
    """A roster's file, read again whenever it has changed.

    Args:
      path: of the file; read at once, so that errors show early.

    Raises:
      ConfigError: the file cannot be read, or is not a roster.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._members: dict[str, Member] = {}
        self._looked = -math.inf
        try:
            self._refresh()
        except (OSError, ValueError) as error:
            raise errors.ConfigError(
                f"{path}: the roster cannot be read: {_why(error)}",
                "copy the authority's roster.json there, or name it with --roster",
            ) from None

    def check(
        self,
        certificate_pem: bytes,
        role: str | None = None,
        name: str | None = None,
        at: datetime.datetime | None = None,
    ) -> Identity:
        """Checks that a certificate is admitted, and returns its holder.

        The certificate's chain is not checked: TLS has done that, and the roster lists only certificates
        that the authority signed.

        Args:
          certificate_pem: as TLS received it.
          role: the role that is needed; any, if None.
          name: the name that the caller claims; any, if None.
          at: the time, in UTC; now, if None.

        Raises:
          IdentityError: the certificate is outside its dates, not on the roster, revoked, or has another
            role or name. Each case has its own message.
          TransportError: the roster cannot be read at the moment, so that nobody is admitted; the
            caller may try again.
        """
        self._refresh_for_calls()
        certificate, found = _parsed(certificate_pem)
        whose = f"the certificate of {found.name!r}"
        member = self._members.get(found.name, Member(found.role, ()))
        listed = [item for item in member.certificates if item.fingerprint == found.fingerprint]
        if not listed:
            raise errors.IdentityError(
                f"{whose} (fingerprint {found.fingerprint}) is not on the server's roster",
                "ask the authority to sign it, and copy its roster.json to the server",
            )
        if listed[0].revoked is not None:
            raise errors.IdentityError(
                f"{whose} was revoked on {listed[0].revoked}",
                "enrol again with a new key, if the authority lets you back in",
            )
        certificates.check_dates(
            certificate,
            whose,
            at or certificates.now(),
            "ask the authority for `fedvi ca renew`, and install what comes back",
        )
        if member.role != found.role or role not in (None, found.role):
            raise errors.IdentityError(
                f"{whose} has the role {found.role}, expected {role or member.role}",
                f"use a certificate that was signed with --role {role or member.role}",
            )
        if name not in (None, found.name):
            raise errors.IdentityError(
                f"{whose} was used by a caller that claims to be {name!r:.80}, expected the same name",
                "give --as the name that stands in the certificate",
            )
        return found

    def revoked(self) -> frozenset[str]:
        """Returns the members whose last certificate is revoked and who have no other valid one.

        Members whose last certificate only expired are not included, since it may be renewed; nor are
        parties that were never signed, since they may still join.

        Raises:
          TransportError: the roster cannot be read at the moment.
        """
        self._refresh_for_calls()
        at = certificates.now()
        return frozenset(name for name, member in self._members.items() if _is_revoked(member, at))

    def members(self) -> dict[str, Member]:
        """Returns the current members by name.

        Raises:
          OSError, ValueError: the file cannot be read.
        """
        self._refresh()
        return dict(self._members)

    def _refresh_for_calls(self) -> None:
        # The file is checked for every call, but a burst of calls shares one check.
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        try:
            self._refresh()
            self._looked = now
        except (OSError, ValueError) as error:
            raise errors.TransportError(
                f"the server's roster cannot be read: {_why(error)}",
                "put the authority's roster.json back in its place on the server",
            ) from None

    def _refresh(self) -> None:
        stamp = _stamp(os.stat(self._path))
        if stamp == self._stamp:
            return
        began = time.time()
        # fstat: the times must be those of the file that is read, even if it was replaced since.
        with open(self._path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
        # Clear the members first: an unreadable file must admit nobody.
        self._stamp, self._members = None, {}
        self._members = from_json(content)
        if abs(began - status.st_mtime) > _SETTLED_SECONDS:
            self._stamp = _stamp(status)


def to_json(members: dict[str, Member], authority: str) -> bytes:
    """Writes a roster.

    Args:
      authority: the fingerprint of the key that signed all of them.
    """
    content = {
        "format": "fedvi roster",
        "version": _VERSION,
        "authority_key": authority,
        "members": {
            name: {"role": member.role, "certificates": [c._asdict() for c in member.certificates]}
            for name, member in sorted(members.items())
        },
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def from_json(content: bytes) -> dict[str, Member]:
    """Parses the output of ``to_json``, strictly.

    Raises:
      ValueError: the content is not a roster, or has another version.
    """
    try:
        raw = json.loads(content)
    except RecursionError:
        raise ValueError("it is no roster") from None
    if not isinstance(raw, dict) or raw.get("format") != "fedvi roster":
        raise ValueError("it is no roster")
    if raw.get("version") != _VERSION:
        raise ValueError(f"it is of version {raw.get('version')!r:.20}, expected {_VERSION}")
    if not isinstance(raw.get("members"), dict):
        raise ValueError("members is missing, expected a table")
    return {name: _member(name, item) for name, item in raw["members"].items()}


def _member(name: str, raw: Any) -> Member:
    where = f"members.{name:.80}"
    if not isinstance(raw, dict) or set(raw) != {"role", "certificates"}:
        raise ValueError(f"{where}: expected role and certificates")
    if raw["role"] not in certificates.ROLES:
        raise ValueError(f"{where}.role is {raw['role']!r:.40}")
    if not isinstance(raw["certificates"], list):
        raise ValueError(f"{where}.certificates is no list")
    return Member(raw["role"], tuple(_listing(where, item) for item in raw["certificates"]))


def _listing(where: str, raw: Any) -> Listing:
    # A missing `revoked` is an error: treating it as None would admit a revoked certificate.
    if not isinstance(raw, dict) or set(raw) != set(Listing._fields):
        raise ValueError(f"{where}: a certificate has {', '.join(Listing._fields)}")
    for key, value in raw.items():
        if not (isinstance(value, str) or (key == "revoked" and value is None)):
            raise ValueError(f"{where}: {key} is {value!r:.40}")
    if not all(re.fullmatch(r"[0-9a-f]{64}", raw[key]) for key in ("fingerprint", "key")):
        raise ValueError(f"{where}: fingerprint and key are 64 hex digits each")
    if datetime.datetime.fromisoformat(raw["not_after"]).tzinfo is None:
        raise ValueError(f"{where}: not_after is {raw['not_after']!r:.40}, expected a time in UTC")
    return Listing(**raw)


def _is_revoked(member: Member, at: datetime.datetime) -> bool:
    if not member.certificates or member.certificates[-1].revoked is None:
        return False
    return all(
        item.revoked is not None or datetime.datetime.fromisoformat(item.not_after) < at
        for item in member.certificates
    )


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def holder(certificate_pem: bytes) -> str:
    """Returns the name in a certificate that TLS accepted, revoked or not; "" if it has none."""
    try:
        return _parsed(certificate_pem)[1].name
    except errors.IdentityError:
        return ""


@functools.lru_cache(maxsize=1024)
def _parsed(content: bytes) -> tuple[x509.Certificate, Identity]:
    """Parses a certificate; cached, since a client shows the same one at every call."""
    certificate = certificates.parse(content, "what was shown")
    return certificate, certificates.identity_of(certificate)
