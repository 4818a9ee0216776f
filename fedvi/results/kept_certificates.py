"""Checks a site's certificates of masked rounds against its ledger."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.privacy import certificates
from fedvi.privacy.certificates import Certificate
from fedvi.privacy.ledger import Ledger
from fedvi.store import sqlite

__all__ = ["Certified", "check"]


class Certified(NamedTuple):
    """The result of checking a site's certificates.

    Attributes:
      sets: visit → the sites whose answers were in the opened sum with this site's.
      sealed: how many answers the ledger sealed. One without a certificate was of a round that this site
        did not open, or its certificate is lost.
      problem: why a certificate is invalid; empty if all are valid.
    """

    sets: Mapping[int, tuple[str, ...]]
    sealed: int
    problem: str


def check(path: Path) -> Certified | None:
    """Reads and checks all certificates in a client's store; None if there can be none.

    It does not check whose keys these are: the site did so when keys were agreed on, by the other sites'
    certificates. But all certificates must show the same keys.

    Args:
      path: of a ledger; for a client's store, its database.
    """
    if path.name != sqlite.DATABASE:
        return None
    try:
        book, held = sqlite.read_with_certificates(path.parent)
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
    first: Certificate | None = None
    for visit in sorted(held):
        try:
            found = certificates.read(held[visit])
            first = first or found
            _check_terms(book, first, found, visit)
            answer = sealed.get(f"{header.client}/{visit}")
            sets[visit] = certificates.check(found, header.client, answer).clients
        except errors.FedviError as error:
            problem = f"the certificate of round {visit}: {error.message}"
            return Certified(sets, len(sealed), problem)
    return Certified(sets, len(sealed), "")


def _check_terms(book: Ledger, first: Certificate, found: Certificate, visit: int) -> None:
    """Checks that a certificate is of this round, has the ledger's terms, and shows the same keys.

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
    known = {**first.keys, **found.keys}
    if terms != first.terms or known != {**found.keys, **first.keys}:
        raise errors.PrivacyError("it shows other sites, or other keys, than the first one")
