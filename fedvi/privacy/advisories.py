"""Lists faults of earlier versions whose ledgers promise more than held."""

from typing import TYPE_CHECKING

from fedvi.privacy.events import DiscreteGaussian, Event, Gaussian, Relation, counts

if TYPE_CHECKING:  # a header asks here what to say of itself
    from fedvi.privacy.ledger import Header

__all__ = ["WHOLE_BATCHES", "advisory", "has_whole_batches"]

WHOLE_BATCHES = (
    "no guarantee under add_remove: an earlier version of DPSVI let the number of records set the clip "
    "limit of whole batches (SECURITY.md, FEDVI-2026-01)"
)
"""Marks what ``DPSVI`` released of whole batches before clip limits followed from ``max_records`` alone."""


def advisory(header: "Header", relation: Relation) -> str:
    """Returns what is known to be wrong with a ledger's claims under a relation; empty if nothing is.

    Args:
      header: of the ledger; ``fixed_sizes`` tells ledgers of later versions.
      relation: of the claim, which need not be the one that was promised.
    """
    if header.study != "dpsvi" or header.fixed_sizes or not header.protected:
        return ""
    if relation != "add_remove" or header.planned is None:
        return ""
    return WHOLE_BATCHES if has_whole_batches(header.planned) else ""


def has_whole_batches(planned: Event) -> bool:
    """Returns whether some release is of all records, and not of a sample of them."""
    return any(isinstance(atom, Gaussian | DiscreteGaussian) for atom in counts(planned))
