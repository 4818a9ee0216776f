"""Certificates: signatures that a site keeps as evidence, for its auditor, of which sum it opened. No JAX.

A certificate holds names, digests of masked answers, public keys and signatures, but no secret and nothing
about a record. It shows that this site's answer was opened for the sum of this set and, with the ledger,
that this is the answer that was charged. By the proof in docs/proofs/secure_sums.md no other sum of the
round was opened, unless more sites work with the server than was promised. Who owns the keys is shown by
all sites' signed keys, which the site keeps beside it (``fedvi.client.signed_keys``).
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedvi import errors
from fedvi.privacy import agreement
from fedvi.privacy.agreement import Named, Terms, Turn

__all__ = ["Certificate", "check", "is_signed", "read"]


class Certificate(NamedTuple):
    """T signatures of one set.

    Attributes:
      terms: what the sites agreed on in advance.
      visit: the number of the round.
      task: digest of the task that was answered, hex.
      named: the text of the set that was signed.
      keys: signer → its Ed25519 public key, 32 bytes.
      signatures: signer → its signature, 64 bytes.
      opening: SHA-256 of what the site opened, hex; empty if an older version kept it.
    """

    terms: Terms
    visit: int
    task: str
    named: str
    keys: Mapping[str, bytes]
    signatures: Mapping[str, bytes]
    opening: str = ""

    def written(self) -> bytes:
        """Returns the certificate as JSON, for `read`."""
        raw = self._asdict() | {
            "terms": self.terms._asdict(),
            "keys": {name: _text(key) for name, key in self.keys.items()},
            "signatures": {name: _text(signed) for name, signed in self.signatures.items()},
        }
        return json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()


def read(content: bytes) -> Certificate:
    """Reads what ``Certificate.written`` wrote.

    Raises:
      PrivacyError: ``content`` is not a certificate.
    """
    try:
        raw = json.loads(content)
        told = raw["terms"]
        clients = tuple(_one(str, name) for name in told["clients"])
        terms = Terms(
            _one(str, told["study_digest"]),
            _one(str, told["set_up"]),
            clients,
            _one(int, told["colluding"]),
            _one(int, told["least"]),
            tuple(_one(str, name) for name in told.get("absent", ())),
        )
        keys, signatures = (
            {
                name: base64.b64decode(_one(str, text), validate=True)
                for name, text in raw[part].items()
            }
            for part in ("keys", "signatures")
        )
        visit, task, named = (
            _one(kind, raw[name]) for kind, name in ((int, "visit"), (str, "task"), (str, "named"))
        )
        sound = min(visit, terms.colluding, terms.least - 1) >= 0 and len(set(clients)) == len(
            clients
        )
        # One key under two names would count twice.
        if not sound or len(set(keys.values())) < len(keys) or keys.keys() != signatures.keys():
            raise ValueError("invalid numbers, sites or keys")
        opening = _one(str, raw.get("opening", ""))
        return Certificate(terms, visit, task, named, keys, signatures, opening)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.PrivacyError(f"a certificate cannot be read: {error}") from None


def check(certificate: Certificate, own: str, sealed: str | None) -> Named:
    """Verifies a certificate, and returns its set.

    Args:
      certificate: one that a site kept.
      own: the name of that site.
      sealed: digest of its answer of that round, from its ledger; None if there is none.

    Raises:
      ProtocolError: there are too few valid signatures, the set is too small, or the answer is not the
        ledger's.
    """
    terms, text = certificate.terms, certificate.named
    content = agreement.said(terms, certificate.task, text)
    signers = [
        name
        for name, signed in certificate.signatures.items()
        if is_signed(certificate.keys.get(name, b""), content, signed)
    ]
    turn = Turn(certificate.visit, certificate.task)
    agreement.may_open(terms, own, turn, sealed, text, signers)
    return agreement.named(terms.clients, text)


def is_signed(key: bytes, content: bytes, signed: bytes) -> bool:
    """Whether ``signed`` is a valid signature of ``content`` under the public key ``key``."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signed, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _one(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
