"""Finds columns of levels whose reference few records are expected to have."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedvi.data.expected import parse_expected
from fedvi.data.formula import Design
from fedvi.data.schema import Level, Schema

__all__ = ["FEW_LEVELS", "RARE", "RareReference", "rare_references"]

RARE = 0.05
"""A reference that fewer records have makes the intervals of all other levels wide."""
FEW_LEVELS = 3
"""With fewer levels there is one interval, whichever is the reference."""


class RareReference(NamedTuple):
    """A column of which few records are expected to have the reference.

    Attributes:
      name: of the column.
      first, share: its reference, and the share of the records that are expected to have it.
      best, better: its most frequent level, and that share.
      place: of that level among the levels, which a study may write as numbers.
    """

    name: str
    first: str
    share: float
    best: str
    better: float
    place: int

    @property
    def warning(self) -> str:
        return (
            f"data.schema.{self.name}.levels: about {100.0 * self.share:.2g} % of the records are expected "
            f"to have the reference {self.first!r}, with which all others are compared, so that all "
            f"intervals of {self.name} are wide. Put {self.best!r} first, which about "
            f"{100.0 * self.better:.2g} % have"
        )


def rare_references(
    schema: Schema, tables: Mapping[str, Mapping[str, Any]], design: Design | None
) -> Iterator[RareReference]:
    """Yields each column whose declared shares make its reference rare.

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
        better, best = max(zip(shares, column.levels, strict=True))
        place = column.levels.index(best)
        yield RareReference(name, column.levels[0], shares[0], best, better, place)
