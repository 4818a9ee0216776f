"""Writes the section of a report that lists the columns which the study declares."""

from fedvi.report.contents import Contents
from fedvi.report.sections import Section, Table

__all__ = ["declared_section"]

_NAMES = ("column", "kind", "what it may be", "if missing", "in the model")


def declared_section(contents: Contents) -> Section | None:
    """Returns the section; None if the study declares no columns."""
    if not contents.declared:
        return None
    # A column of a model without formula has no role to tell.
    width = len(_NAMES) if any(row.enters for row in contents.declared) else len(_NAMES) - 1
    rows = tuple(tuple(row)[:width] for row in contents.declared)
    return Section(
        "declared",
        "Columns, as declared",
        (
            "What the study says of each column, the same for all sites, agreed before a record was read. "
            "It takes the place of a table of patients' characteristics: a report has no summary of "
            "the records.",
            "A number outside its range is taken as its nearest end, unless the table says otherwise. "
            + (
                "A record is left out (it counts as zero) if one of its cells holds no declared value."
                if contents.protected
                else "A file with a cell of no declared value is refused, unless the table says otherwise."
            ),
        ),
        tables=(Table("Declared columns", _NAMES[:width], rows, _NAMES),),
    )
