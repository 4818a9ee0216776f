"""Tables as tests read and prepare them: whole, and in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedvi.data import delimited
from fedvi.data.cells import Table, Wanted
from fedvi.data.formula import Design
from fedvi.data.load import prepare_columns
from fedvi.data.schema import Schema
from fedvi.data.source import ArraySource

__all__ = ["prepare", "read_table"]


def read_table(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    separator: str = ",",
    names: Iterable[str],
    private: bool = False,
) -> dict[str, list[str | None]]:
    """Returns the columns ``names`` of a CSV file, each with one cell a record."""
    asked = Wanted(tuple(dict.fromkeys(names)), columns, separator, private)
    table: dict[str, list[str | None]] = {name: [] for name in asked.names}
    for part in delimited.chunks(Path(path), asked):
        for name, cells in part.items():
            table[name] += cells
    return table


def prepare(
    table: Table, schema: Schema, design: Design, *, private: bool, where: str
) -> ArraySource:
    """Applies the schema to a table and lays it out for a formula: records {"x", "y"}."""
    columns = prepare_columns(
        table, schema, design.columns, private=private, where=where, timed=design.timed
    )
    x, y = design.matrix(columns.records), design.outcome(columns.records)
    return ArraySource({"x": x, "y": y}, columns.valid)
