"""What all samplers check of the slots that they are given."""

from typing import Any

from fedvi import errors

__all__ = ["check_rows"]


def check_rows(valid: Any, max_records: int) -> int:
    """Returns the number of rows of ``valid``, which must be among the declared slots.

    Raises:
      PrivacyError: if there are more rows than ``max_records``: those would never be in a batch.
    """
    rows: int = valid.shape[0]
    if not 1 <= rows <= max_records:
        raise errors.PrivacyError(
            f"a sampler for {max_records} slots was given {rows} rows",
            "`max_records` must be at least the number of records at every client",
        )
    return rows
