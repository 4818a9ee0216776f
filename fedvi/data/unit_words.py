"""Says what one unit of a prepared number is, in the unit of the file."""

from fedvi.data.schema import Number, Schema

__all__ = ["counted", "step_of", "unit_of"]


def unit_of(column: Number) -> str:
    """Returns the unit of the prepared column, in the file's unit; "" if nothing is scaled.

    >>> from fedvi.data.schema import parse_schema
    >>> schema = parse_schema({"age": {"type": "number", "bounds": [18, 100]}}, private=True)
    >>> unit_of(schema["age"])
    'per 41 from 59'
    """
    if column.scale == 1 and column.center == 0 and not column.unit:
        return ""
    return f"per {step_of(column)}" + (f" from {column.center:.12g}" if column.center else "")


def step_of(column: Number) -> str:
    """Returns what 1 of the prepared column is, with its unit: "10 years", "1 year", or "41"."""
    unit = _one(column.unit) if column.scale == 1 else column.unit
    return f"{column.scale:.12g} {unit}".strip()


def counted(schema: Schema, name: str, many: bool = False) -> str:
    """Returns what the file counts a column in, one or many: "year", "years", or "unit of NAME"."""
    column = schema.get(name)
    unit = column.unit if isinstance(column, Number) else ""
    if not unit:
        return f"{'units' if many else 'unit'} of {name}"
    return unit if many else _one(unit)


def _one(unit: str) -> str:
    return unit[:-1] if unit.endswith("s") and len(unit) > 3 and unit[-2] not in "sui" else unit
