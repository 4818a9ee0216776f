"""Checks the certificates that a site kept of masked rounds against its ledger."""

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
    """What a site's certificates show.

    Attributes:
      sets: visit → the sites in whose sum this site's answer was opened.
      sealed: how many answers the ledger sealed; those without a certificate were of rounds that were not
        opened by this site, or their certificate is gone.
      problem: why one does not hold; empty if all do.
    """

    sets: Mapping[int, tuple[str, ...]]
    sealed: int
    problem: str


def check(path: Path) -> Certified | None:
    """Reads and checks all certificates of a client's store; None where there can be none.

    Not checked: whose keys these are. The site did that when keys were agreed on, by the other sites'
    certificates; all of its certificates must show the same keys.

    Args:
      path: of a ledger; of a client's store, its database.

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
    # A release is called CLIENT/VISIT#ATTEMPT.
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
    """Checks that a certificate is of this round, of what the ledger promises, and of the same keys.

    Raises:
      PrivacyError: it is not.
    """
    header, terms = book.header, found.terms
    if (found.visit, terms.study_digest) != (visit, header.study_digest):
        raise errors.PrivacyError(f"it is of round {found.visit}, study {terms.study_digest:.12}")
    assert header.sums is not None
    if (terms.least, terms.colluding) != tuple(header.sums):
        raise errors.PrivacyError(
            f"it is for {terms.least} answers or more and {terms.colluding} who work with the server, and "
            f"the ledger promises {header.sums.least_reporting} and {header.sums.colluding}"
        )
    known = {**first.keys, **found.keys}
    if terms != first.terms or known != {**found.keys, **first.keys}:
        raise errors.PrivacyError("it shows other sites, or other keys, than the first one")
