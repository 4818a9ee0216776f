"""What all samplers check of the slots that they are given."""

from typing import Any

from fedvi import errors

__all__ = ["check_slots"]


def check_slots(valid: Any, max_records: int) -> None:
    """Checks that ``valid`` has one entry for each declared slot, whether or not a record stands there.

    Everything behind a batch takes its sizes from the batch: blocks, clip limits, dtypes, programs.
    Were the slots as many as the records, those sizes would tell, and move, by how many there are.

    Raises:
      PrivacyError: if there are more entries than ``max_records``, whose records would never be in a
        batch; or fewer.
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
