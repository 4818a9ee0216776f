"""Finds columns of levels whose reference few records are expected to have."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedvi.data.expected import parse_expected
from fedvi.data.formula import Design
from fedvi.data.schema import Level, Schema

__all__ = ["FEW_LEVELS", "RARE", "rare_references"]

RARE = 0.05
"""A reference that fewer records have makes the intervals of all other levels wide."""
FEW_LEVELS = 3
"""With fewer levels there is one interval, whichever is the reference."""


def rare_references(
    schema: Schema, tables: Mapping[str, Mapping[str, Any]], design: Design | None
) -> Iterator[str]:
    """Yields a warning for each column whose declared shares make its reference rare.

    Nothing else tells before a run: the survey of `site_release` has noise of about that size in a share.

    Args:
      schema: of the columns.
      tables: of the columns, as the study declares them.
      design: of the formula; without one there is no reference.
    """
    names = () if design is None else design.names
    for name, column in schema.items():
        if not isinstance(column, Level) or len(column.levels) < FEW_LEVELS:
            continue
        first, *others = (f"{name}[{level}]" for level in column.levels)
        shares = parse_expected(tables[name], f"data.schema.{name}").shares
        # `0 +` in a formula gives every level a coefficient, and the column no reference.
        if shares is None or shares[0] >= RARE or first in names or not {*others} <= {*names}:
            continue
        share, best = max(zip(shares, column.levels, strict=True))
        yield (
            f"data.schema.{name}.levels: about {100.0 * shares[0]:.2g} % of the records are expected to "
            f"have the reference {column.levels[0]!r}, with which all others are compared, so that all "
            f"intervals of {name} are wide. Put {best!r} first, which about {100.0 * share:.2g} % have"
        )
