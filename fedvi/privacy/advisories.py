"""Known faults of earlier versions, whose ledgers claim more privacy than there was."""

from typing import TYPE_CHECKING

from fedvi.privacy.events import DiscreteGaussian, Event, Gaussian, Relation, counts

if TYPE_CHECKING:  # imported only for types, since the ledger's header imports this module
    from fedvi.privacy.ledger import Header

__all__ = ["WHOLE_BATCHES", "advisory", "has_whole_batches"]

WHOLE_BATCHES = (
    "no guarantee under add_remove: an earlier version of DPSVI let the number of records set the clip "
    "limit of whole batches (SECURITY.md, FEDVI-2026-01)"
)
"""Marks full-batch releases of ``DPSVI`` from before clip limits depended on ``max_records`` alone."""


def advisory(header: "Header", relation: Relation) -> str:
    """Returns the known faults of a ledger's claims under a relation; empty if there are none.

    Args:
      header: of the ledger; ``fixed_sizes`` identifies ledgers of later versions.
      relation: of the claim; it may differ from the promised one.
    """
    if header.study != "dpsvi" or header.fixed_sizes or not header.protected:
        return ""
    if relation != "add_remove" or header.planned is None:
        return ""
    return WHOLE_BATCHES if has_whole_batches(header.planned) else ""


def has_whole_batches(planned: Event) -> bool:
    """Whether some release uses all records, without sampling."""
    return any(isinstance(atom, Gaussian | DiscreteGaussian) for atom in counts(planned))
