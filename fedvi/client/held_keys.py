"""What a site keeps of the keys that mask its answers, from visit to visit, as bytes for its store."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.privacy import pairs
from fedvi.privacy.agreement import Turn
from fedvi.privacy.pairs import Keys

__all__ = ["Held", "data", "ratcheted", "read", "text", "written"]

_FARTHEST = 10_000
"""How many rounds a site may have missed: each takes a step of every secret."""


class Held(NamedTuple):
    """A site's keys; its representation shows none of them.

    Attributes:
      keys: its private keys; None once all secrets are there.
      signed: its public keys, with its signature.
      offers: what it offers to the sites behind it.
      board: digest of all sites' signed keys; empty before they were checked, as all that follows.
      set_up: digest of the sites and all their keys, hex.
      roster: digest of who takes part.
      secrets: the other site → the secret of that pair, for the visit ``at`` and those after it.
      at: the first visit that the secrets make masks for.
      signing: the private key by which this site signs sets; empty where all must answer.
      vouchers: site → the public key by which it does.
      turn: where this site stands in its last round; None before the first, and where all must answer.
      seed: the key of its self mask of that round; empty once it is opened.
      opening: what it opened of that round, to be sent again as it is.
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

    def __repr__(self) -> str:
        return "Held()"


def ratcheted(held: Held, visit: int) -> Held:
    """Returns the keys for a visit; those of the visits before it cannot be had from them.

    Raises:
      ProtocolError: they are of a later visit, or this one is too far ahead.
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
    """Returns the bytes of what is held, with all secrets in the clear: for the site's store alone."""
    raw: dict[str, Any] = held._asdict()
    for name in ("signed", "offers", "signing", "seed", "opening"):
        raw[name] = text(raw[name])
    for name in ("secrets", "vouchers"):
        raw[name] = {other: text(part) for other, part in raw[name].items()}
    raw["keys"] = held.keys and [text(part) for part in held.keys]
    raw["turn"] = held.turn and held.turn._asdict()
    return json.dumps(raw).encode()


def read(content: bytes | None) -> Held | None:
    """Reads what `written` wrote; None of nothing."""
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
    """Returns bytes as base64."""
    return base64.b64encode(content).decode()


def data(content: str) -> bytes:
    """Returns the bytes of base64.

    Raises:
      ValueError: it is none.
    """
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
