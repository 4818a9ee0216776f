"""A check that all samplers make of their slots."""

from typing import Any

from fedvi import errors

__all__ = ["check_slots"]


def check_slots(valid: Any, max_records: int) -> None:
    """Checks that ``valid`` has one entry for each declared slot, with or without a record.

    Blocks, clip limits, dtypes and programs take their sizes from the batch. If the number of slots were
    the number of records, these sizes would depend on it and reveal it.

    Raises:
      PrivacyError: if there are fewer entries than ``max_records``; or more, whose records would never be
        in a batch.
    """
    rows: int = valid.shape[0]
    if rows == max_records:
        return
    raise errors.PrivacyError(
        f"a sampler for {max_records} slots was given {rows} rows, expected {max_records}",
        "`max_records` must be at least the number of records at every client"
        if rows > max_records
        else "fill the rows up to `max_records`, and let `valid` be false where no record stands",
    )
