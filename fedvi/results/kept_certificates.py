"""Checks a site's certificates of masked rounds against its ledger."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.client import signed_keys
from fedvi.privacy import certificates, pairs
from fedvi.privacy.agreement import Terms
from fedvi.privacy.certificates import Certificate
from fedvi.privacy.ledger import Ledger
from fedvi.privacy.pairs import Member
from fedvi.store import sqlite
from fedvi.transport.signers import Kept

__all__ = ["Certified", "check"]


class Certified(NamedTuple):
    """The result of checking a site's certificates.

    Attributes:
      sets: visit → the sites whose answers were in the opened sum with this site's.
      sealed: how many answers the ledger sealed. One without a certificate was of a round that this site
        did not open, or its certificate is lost.
      problem: why a certificate, or the signed keys, are invalid; empty if all are valid.
      roster: digest of the sites and their signing keys, hex; empty if their signed keys were not kept.
      is_vouched: whether the given authority signed the certificates of all these sites.
    """

    sets: Mapping[int, tuple[str, ...]]
    sealed: int
    problem: str
    roster: str = ""
    is_vouched: bool = False


def check(path: Path, authority: bytes | None = None) -> Certified | None:
    """Reads and checks all certificates in a client's store; None if there can be none.

    The keys in them must be those that all sites signed and this site kept, where it did.

    Args:
      path: of a ledger; for a client's store, its database.
      authority: PEM of the certificate of the authority that signed the sites'; None: whose the keys
        are is not checked.
    """
    if path.name != sqlite.DATABASE:
        return None
    try:
        book, held, boards, _ = sqlite.read_evidence(path.parent)
    except errors.LedgerError as error:
        return Certified({}, 0, error.message)
    header = book.header
    if not header.secure or header.sums is None:
        return None
    # A release ID has the form CLIENT/VISIT#ATTEMPT.
    sealed = {
        entry.release_id.rpartition("#")[0]: entry.digest
        for entry in book.entries
        if entry.kind == "sealed"
    }
    sets: dict[int, tuple[str, ...]] = {}
    epochs: list[_Epoch] = []
    for visit in sorted(held):
        try:
            found = certificates.read(held[visit])
            _check_terms(book, epochs, found, visit)
            answer = sealed.get(f"{header.client}/{visit}")
            sets[visit] = certificates.check(found, header.client, answer).clients
            epochs[-1].keys.update(found.keys)
        except errors.FedviError as error:
            problem = f"the certificate of round {visit}: {error.message}"
            return Certified(sets, len(sealed), problem)
    if len(epochs) > max(1, len(boards)):
        problem = f"the certificates show {len(epochs)} sets of keys, and {len(boards)} are kept"
        return Certified(sets, len(sealed), problem)
    if not epochs or not boards:
        return Certified(sets, len(sealed), "")
    try:
        roster = _roster(boards, epochs, authority)
    except errors.FedviError as error:
        return Certified(sets, len(sealed), f"the keys that the sites signed: {error.message}")
    return Certified(sets, len(sealed), "", roster, authority is not None)


class _Epoch(NamedTuple):
    """Certificates under one set of keys: their terms, and signer → its key."""

    terms: Terms
    keys: dict[str, bytes]


def _roster(boards: Mapping[int, bytes], epochs: Sequence[_Epoch], authority: bytes | None) -> str:
    """Checks that certificates' keys are those that all sites signed.

    Args:
      boards: epoch → all sites' signed keys. Perhaps no sum was opened in some epochs.
      epochs: of the certificates, in order.
      authority: as in `check`.

    Returns:
      The digest of the last epoch's roster.

    Raises:
      FedviError: they are not, or a site signed with another key than in an epoch before.
    """
    terms, signer = epochs[0].terms, Kept(authority)
    left, known, members = list(epochs), dict[str, str](), list[Member]()
    for number in sorted(boards):
        parts = signed_keys.read_board(boards[number])
        if len(parts) != len(terms.clients):
            raise errors.PrivacyError(f"there are {len(parts)}, expected {len(terms.clients)}")
        there = [(n, part) for n, part in zip(terms.clients, parts, strict=True) if part]
        members = [
            signed_keys.member(terms.study_digest, name, part, True, signer, number)
            for name, part in there
        ]
        for member in members:
            if known.setdefault(member.name, member.identity) != member.identity:
                raise errors.PrivacyError(f"{member.name!r} signed them with two different keys")
        # All that was signed rests on this digest, and each site signed it with every set.
        if left and _digest(terms, members) == left[0].terms.set_up:
            _check_vouchers(members, left.pop(0).keys)
    if left:
        raise errors.PrivacyError("they are others than those that the certificates are of")
    return pairs.roster_digest(members)


def _digest(terms: Terms, members: Sequence[Member]) -> str:
    return pairs.set_up_digest(terms.study_digest, members).hex()


def _check_vouchers(members: Sequence[Member], keys: Mapping[str, bytes]) -> None:
    vouchers = {member.name: member.ed25519 for member in members}
    wrong = [name for name, key in keys.items() if vouchers.get(name) != key]
    if wrong:
        raise errors.PrivacyError(
            f"the key of {wrong[0]!r} is another than that in its certificate"
        )


def _check_terms(book: Ledger, epochs: list[_Epoch], found: Certificate, visit: int) -> None:
    """Checks that a certificate is of this round, has the ledger's terms, and shows its epoch's keys.

    Args:
      book: the ledger.
      epochs: of the certificates before; that of this one is added if it is new.
      found: the certificate of round ``visit``.

    Raises:
      PrivacyError: it does not.
    """
    header, terms = book.header, found.terms
    if (found.visit, terms.study_digest) != (visit, header.study_digest):
        raise errors.PrivacyError(f"it is of round {found.visit}, study {terms.study_digest:.12}")
    assert header.sums is not None
    if (terms.least, terms.colluding) != header.sums[:2]:
        raise errors.PrivacyError(
            f"it is for {terms.least} answers or more and {terms.colluding} who work with the server, and "
            f"the ledger promises {header.sums.least_reporting} and {header.sums.colluding}"
        )
    if header.topped_up not in (0, len(terms.clients)):
        raise errors.PrivacyError(
            f"it is of a study of {len(terms.clients)} sites, and the ledger promises the noise of "
            f"{header.topped_up}"
        )
    if terms.set_up not in [epoch.terms.set_up for epoch in epochs]:
        epochs.append(_Epoch(terms, {}))
    last = epochs[-1]
    same = terms == last.terms and terms.clients == epochs[0].terms.clients
    if not same or {**last.keys, **found.keys} != {**found.keys, **last.keys}:
        raise errors.PrivacyError("it shows other sites, or other keys, than those before")
