"""Defines how a study is written: values as TOML, and names of columns for a formula."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["NAME", "is_number", "key", "named", "toml"]

NAME = re.compile(r"[^\W\d_][\w.]*")
"""Pattern of a column's name in a formula."""


def toml(value: Any) -> str:
    """Writes a plain value as TOML, whose strings equal JSON's except for the character DEL.

    >>> toml([True, "a", 3.0, 1e-5])
    '[true, "a", 3, 1e-5]'
    >>> toml({"impute": 50})
    '{ impute = 50 }'

    A number is read back as it was, since a bound that is rounded inwards leaves out the records at it:

    >>> toml(1000 / 365.25)
    '2.737850787132101'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key(name)} = {toml(item)}" for name, item in value.items()) + " }"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml, value)) + "]"
    if not isinstance(value, float):
        return repr(value)
    short = f"{value:.15g}"
    return re.sub(r"e([+-])0", r"e\1", short if float(short) == value else repr(value))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def key(name: str) -> str:
    """Writes a name as a TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def named(columns: Iterable[str]) -> dict[str, str]:
    """Gives each column of a file a name for formulas: name → the file's name.

    >>> named(["age", "Blood pressure", "2nd visit"])
    {'age': 'age', 'Blood_pressure': 'Blood pressure', 'x_2nd_visit': '2nd visit'}
    """
    found: dict[str, str] = {}
    for column in columns:
        plain = re.sub(r"[^\w.]+", "_", column).strip("_") or "x"
        base = plain if NAME.fullmatch(plain) else f"x_{plain}"
        name, count = base, 1
        while name in found:
            count += 1
            name = f"{base}_{count}"
        found[name] = column
    return found
