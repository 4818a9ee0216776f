"""Says what one unit of a prepared number is, in the unit of the file."""

from fedvi.data.schema import Number

__all__ = ["step_of", "unit_of"]


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
    unit, few = column.unit, column.scale == 1
    if few and unit.endswith("s") and len(unit) > 3 and unit[-2] not in "sui":
        unit = unit[:-1]
    return f"{column.scale:.12g} {unit}".strip()
