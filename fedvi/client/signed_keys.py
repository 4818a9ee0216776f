"""Reads the public keys that a site signed for the masks of a study."""

import json

from fedvi import errors
from fedvi.client.held_keys import data
from fedvi.privacy.pairs import Member
from fedvi.transport.signers import Signs

__all__ = ["FORM", "board", "member", "read_board"]

FORM = "fedvi keys 2"
_VOUCHER_BYTES = 32


def member(
    study_digest: str, name: str, signed: bytes, opens: bool, signer: Signs, epoch: int = 0
) -> Member:
    """Reads a site's keys and checks whose they are.

    Args:
      study_digest: of the study that the keys must be for.
      signed: the site's part: its keys and its signature.
      opens: whether sites may be missing, so that keys for signing sets are needed.
      signer: checks the signature.
      epoch: how many times the sites agreed on keys before.

    Raises:
      ProtocolError: the part cannot be read, or is of another study, site, epoch or form.
      IdentityError: the site did not sign it.
    """
    try:
        raw = json.loads(signed)
        content, signature = raw["content"].encode(), data(raw["signature"])
        said = json.loads(content)
        form, study, client = said["form"], said["study"], said["client"]
        agreement, encapsulation = data(said["x25519"]), data(said["mlkem768"])
        voucher = data(said["ed25519"]) if opens else b""
        # Keys of the first epoch do not say so.
        of_epoch = said.get("epoch", 0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise errors.ProtocolError(
            f"the keys of {name!r} cannot be read",
            "do all sites have the same version of fedvi?",
        ) from None
    for what, found, expected in (
        ("written as", form, FORM),
        ("of the study", study, study_digest),
        ("of the client", client, name),
        ("of the epoch", of_epoch, epoch),
    ):
        if found != expected:
            raise errors.ProtocolError(
                f"the keys shown as those of {name!r} are not {what} {expected!r}",
                "the server mixed them up, or put others in their place; none of its tasks is answered",
                f"{what} {found!r}",
            )
    if opens and len(voucher) != _VOUCHER_BYTES:
        raise errors.ProtocolError(
            f"the keys of {name!r} hold no key of Ed25519, which sets are signed with: {len(voucher)} "
            f"bytes, expected {_VOUCHER_BYTES}",
            "that site must make its keys anew, for a new study; no answer was masked, and none left",
        )
    return Member(
        name, signer.signer_of(name, content, signature), agreement, encapsulation, voucher
    )


def board(parts: list[bytes]) -> bytes:
    """Writes all sites' signed keys, to be kept as evidence; they hold no secret."""
    return json.dumps([part.decode() for part in parts]).encode()


def read_board(content: bytes) -> list[bytes]:
    """Reads what ``board`` wrote.

    Raises:
      PrivacyError: it cannot be read.
    """
    try:
        return [part.encode() for part in json.loads(content)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise errors.PrivacyError("the signed keys that were kept cannot be read") from None
