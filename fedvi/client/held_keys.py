"""Holds a site's mask keys between visits, and serialises them for its store."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from fedvi import errors
from fedvi.privacy import pairs
from fedvi.privacy.agreement import Turn
from fedvi.privacy.owned import not_copied
from fedvi.privacy.pairs import Keys

__all__ = ["Held", "data", "ratcheted", "read", "text", "written"]

_FARTHEST = 10_000
"""Most rounds that a site may miss in a row: each takes one ratchet step of every secret."""


class Held(NamedTuple):
    """A site's keys; its representation shows none of them.

    Attributes:
      keys: its private keys; None once all pair secrets are derived.
      signed: its public keys, with its signature.
      offers: its offers to the sites after it.
      board: digest of all sites' signed keys; empty until they are checked. So are ``set_up``, ``roster``,
        ``secrets`` and ``vouchers``.
      set_up: digest of the sites and all their keys, hex.
      roster: digest of the sites that take part.
      secrets: the other site → the secret of that pair, for the visit ``at`` and later ones.
      at: the first visit that the secrets can make masks for.
      signing: this site's private key for signing sets; empty if all sites must answer.
      vouchers: site → its public key for signing sets.
      turn: this site's progress in its last round; None before the first, and if all sites must answer.
      seed: its secret of that round, for self mask and layers of noise; empty once it is opened.
      opening: its opening of that round, so that a repeated request gets the same bytes.
      epoch: how many times the sites agreed on keys before these; they do so anew when a site joins.
      known: site → SHA-256 of the key that it signs with, hex, of all sites that were ever agreed with.
    """

    keys: Keys | None
    signed: bytes
    offers: bytes = b""
    board: str = ""
    set_up: str = ""
    roster: str = ""
    secrets: Mapping[str, bytes] = {}
    at: int = 0
    signing: bytes = b""
    vouchers: Mapping[str, bytes] = {}
    turn: Turn | None = None
    seed: bytes = b""
    opening: bytes = b""
    epoch: int = 0
    known: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return "Held()"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied(self)


def ratcheted(held: Held, visit: int) -> Held:
    """Advances the keys to a visit; keys of earlier visits cannot be derived from the result.

    Raises:
      ProtocolError: the keys are already past this visit, or it is too far ahead.
    """
    if not 0 <= visit - held.at <= _FARTHEST:
        raise errors.ProtocolError(
            f"visit {visit} is to be masked, and the keys are those of visit {held.at} and after, expected "
            f"one from {held.at} to {held.at + _FARTHEST}",
            "keys of the rounds before are erased; no answer was masked, and none left",
        )
    secrets = dict(held.secrets)
    for _ in range(visit - held.at):
        secrets = {name: pairs.next_secret(secret) for name, secret in secrets.items()}
    return held._replace(secrets=secrets, at=visit)


def written(held: Held) -> bytes:
    """Serialises the keys with all secrets in the clear, for the site's store alone."""
    raw: dict[str, Any] = held._asdict()
    for name in ("signed", "offers", "signing", "seed", "opening"):
        raw[name] = text(raw[name])
    for name in ("secrets", "vouchers"):
        raw[name] = {other: text(part) for other, part in raw[name].items()}
    raw["keys"] = held.keys and [text(part) for part in held.keys]
    raw["turn"] = held.turn and held.turn._asdict()
    return json.dumps(raw).encode()


def read(content: bytes | None) -> Held | None:
    """Reads the bytes of `written`; returns None for None."""
    if content is None:
        return None
    raw: dict[str, Any] = json.loads(content)
    for name in ("signed", "offers", "signing", "seed", "opening"):
        raw[name] = data(raw[name])
    for name in ("secrets", "vouchers"):
        raw[name] = {other: data(part) for other, part in raw[name].items()}
    raw["keys"] = raw["keys"] and Keys(*map(data, raw["keys"]))
    raw["turn"] = raw["turn"] and Turn(**raw["turn"])
    return Held(**raw)


def text(content: bytes) -> str:
    """Encodes bytes as base64."""
    return base64.b64encode(content).decode()


def data(content: str) -> bytes:
    """Decodes base64.

    Raises:
      ValueError: the text is not valid base64.
    """
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
