"""Known faults of earlier versions, whose ledgers claim more privacy than there was."""

from typing import TYPE_CHECKING

from fedvi.privacy.events import DiscreteGaussian, Event, Gaussian, Relation, counts

if TYPE_CHECKING:  # imported only for types, since the ledger's header imports this module
    from fedvi.privacy.ledger import Header

__all__ = ["UNCHECKED_ROWS", "WHOLE_BATCHES", "advisory", "has_whole_batches"]

WHOLE_BATCHES = (
    "no guarantee under add_remove: an earlier version of DPSVI let the number of records set the clip "
    "limit of whole batches (SECURITY.md, FEDVI-2026-01)"
)
"""Marks full-batch releases of ``DPSVI`` from before clip limits depended on ``max_records`` alone."""

UNCHECKED_ROWS: dict[Relation, str] = {
    "substitute": (
        "no guarantee if made by jaxlib 0.10.2 with a full-covariance guide, or by a pickled fit "
        "(SECURITY.md, FEDVI-2026-05, FEDVI-2026-07)"
    ),
    "add_remove": (
        "no guarantee if made by jaxlib 0.10.2 with a full-covariance guide, in batches that are no "
        "multiple of 8 rows, or by a pickled fit (SECURITY.md, FEDVI-2026-05, FEDVI-2026-06, FEDVI-2026-07)"
    ),
}
"""Marks releases of ``DPSVI`` from before compiled steps were checked, by the relation of the claim.

A ledger does not record the guide, jaxlib or whether a fit was pickled. So every ledger of an earlier
version is marked, and the mark says when the claim does not hold.
"""


def advisory(header: "Header", relation: Relation) -> str:
    """Returns the known faults of a ledger's claims under a relation; empty if there are none.

    Args:
      header: of the ledger; ``fixed_sizes`` and ``rows_checked`` identify ledgers of later versions.
      relation: of the claim; it may differ from the promised one.
    """
    # A study of a federation may have any name.
    if (header.study, header.client) != ("dpsvi", "self") or not header.protected:
        return ""
    planned = header.planned
    by_length = (
        relation == "add_remove"
        and not header.fixed_sizes
        and planned is not None
        and has_whole_batches(planned)
    )
    return "; ".join(
        fault
        for fault, is_touched in (
            (WHOLE_BATCHES, by_length),
            (UNCHECKED_ROWS[relation], not header.rows_checked),
        )
        if is_touched
    )


def has_whole_batches(planned: Event) -> bool:
    """Whether some release uses all records, without sampling."""
    return any(isinstance(atom, Gaussian | DiscreteGaussian) for atom in counts(planned))
