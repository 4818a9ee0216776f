"""Describes in words the columns that a study declares; reads no data."""

from collections.abc import Iterable

from fedvi.data.formula import Design
from fedvi.data.guess import spelt
from fedvi.data.schema import Binary, Code, Column, Impute, Level, Number, parse_schema
from fedvi.data.unit_words import unit_of
from fedvi.report.contents import Declared
from fedvi.report.labels import label
from fedvi.study.config import Study
from fedvi.study.spec.coefficients import design_of

__all__ = ["declared"]

# A column may have many levels; the study file lists them all.
_MOST = 12
_ALWAYS_MISSING = frozenset({"", "?", "NA"})
_ZERO = {"drop": "the record counts as zero", "refuse": "the site's file is refused"}


def declared(study: Study) -> tuple[Declared, ...]:
    """Returns the columns that the formula uses, or all without a formula; none if none is declared."""
    if not study.data.columns_schema:
        return ()
    private = study.privacy.private
    if study.formula is None:
        schema = parse_schema(study.data.columns_schema, private=private)
        return tuple(_row(name, column, "", private) for name, column in schema.items())
    schema, design = design_of(study)
    return tuple(
        _row(name, schema[name], _role(name, schema[name], design), private)
        for name in design.columns
    )


def _row(name: str, column: Column, enters: str, private: bool) -> Declared:
    shown = label(name)
    if column.column not in (name, shown):
        shown += f" (in files: {column.column})"
    values = _values(column)
    # The usual way is said once, below the table.
    usual = "clip" if isinstance(column, Number) else "drop" if private else "refuse"
    if column.outside != usual:
        values += f"; of any other, {_ZERO[column.outside]}"
    return Declared(shown, _kind(column), values, _missing(column), enters)


def _kind(column: Column) -> str:
    if isinstance(column, Number):
        return "count" if column.whole else "number"
    return "levels" if isinstance(column, Level) else "yes or no"


def _values(column: Column) -> str:
    if isinstance(column, Number):
        low, high = column.bounds
        return f"{low:.12g} to {high:.12g} {column.unit}".strip()
    if isinstance(column, Level):
        more = len(column.levels) - _MOST
        return ", ".join(column.levels[:_MOST]) + (f", and {more} more" if more > 0 else "")
    cells = _listed(column.true), _listed(column.false)
    pairs = zip(_words(column), cells, strict=True)
    return " or ".join(word if word == cell else f"{word} ({cell})" for word, cell in pairs)


def _missing(column: Column) -> str:
    if isinstance(column.missing, Impute):
        value = column.missing.value
        if isinstance(column, Binary):
            value = _words(column)[0 if value else 1]
        said = f"taken as {value if isinstance(value, str) else f'{value:.12g}'}"
    elif column.missing == "indicator":
        said = "has a coefficient of its own"
    else:
        said = _ZERO[column.missing]
    more = _listed(column.missing_values - _ALWAYS_MISSING)
    return said + (f"; {more} means missing, too" if more else "")


def _role(name: str, column: Column, design: Design) -> str:
    """Says how a column enters the model."""
    if name in design.response.columns:
        return "outcome"
    if design.offset is not None and name == design.offset.column:
        return "offset"
    parts = [part for parts in design.coefficients for part in parts if part.column == name]
    if isinstance(column, Level):
        return f"each against {column.levels[0]}"
    if isinstance(column, Binary):
        return " against ".join(_words(column))
    if all(part.transform is not None for part in parts):
        return "by the formula's function"
    return unit_of(column) or "per 1"


def _words(column: Binary) -> tuple[str, str]:
    return column.words or ("yes", "no")


def _listed(cells: Iterable[Code]) -> str:
    return ", ".join(sorted(map(spelt, cells)))
