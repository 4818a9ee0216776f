"""Turns the left side of a formula into the array of outcomes y."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvi.data.calls import Call, Name, parse_call, refuse
from fedvi.data.schema import Binary, Column, Impute, Level, Number, Schema, later_name
from fedvi.errors import ConfigError, did_you_mean

__all__ = ["CALLS", "Offset", "Response", "ResponseType", "parse_offset", "parse_response"]

CALLS = ("Surv", "cbind")
"""Functions that are allowed left of ``~``."""

ResponseType = Literal["binary", "count", "counts", "level", "number", "several", "survival"]


@dataclass(frozen=True)
class Response:
    """A map from prepared columns to the outcome y of each record; public, it holds no data.

    Args:
      text: as in the formula.
      type: "binary" (0 or 1), "count", "level" (its index), "number" (scaled as its schema
        declares), "several" numbers, "counts" if all of several are counts, or "survival" (time in the
        unit of the file, and event).
      columns: names in the schema, in order.
      levels: of a "level", the reference first.
      scale, center, end: for the time of a "survival"; the follow-up ends at ``end``, scaled.
    """

    text: str
    type: ResponseType
    columns: tuple[str, ...]
    levels: tuple[str, ...] = ()
    scale: float = 1.0
    center: float = 0.0
    end: float = np.inf

    @property
    def timed(self) -> tuple[str, ...]:
        """The column of times, if there is one: ``outcome`` needs to know which were above its bound."""
        return self.columns[:1] if self.type == "survival" else ()

    @property
    def latest(self) -> float | None:
        """The latest time of a "survival", in the unit of the file; None of other outcomes."""
        return float(self.end * self.scale + self.center) if self.type == "survival" else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's outcome."""
        return (len(self.columns),) if self.type in ("counts", "several", "survival") else ()

    def outcome(self, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Returns y, float64 [n] or [n, k], for columns from ``prepare_columns``.

        A survival time above the upper bound of its column is censored there: what comes after the end of
        follow-up was not observed, whatever the file says. An event at the bound itself counts.
        """
        values = [columns[name].astype(np.float64) for name in self.columns]
        if self.type == "survival":
            time, event = values
            seen = event * ~columns[later_name(self.columns[0])].astype(bool)
            return np.stack([time * self.scale + self.center, seen], axis=1)
        return np.stack(values, axis=1) if self.shape else values[0]


@dataclass(frozen=True)
class Offset:
    """A number that is added to the linear predictor: a column of the file, or its logarithm.

    Args:
      column: name in the schema.
      logarithm: whether the offset is the logarithm of the value.
      scale, center: of the column, to restore the value in the file.
      bound: the value whose logarithm is 0; 1 in the unit of the file, see ``Design.by_bound``.
    """

    column: str
    logarithm: bool
    scale: float
    center: float
    bound: float = 1.0

    def values(self, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Returns the offset, float64 [n]; 0 where the logarithm does not exist, as in padded rows."""
        value = columns[self.column].astype(np.float64) * self.scale + self.center
        if not self.logarithm:
            return value
        return np.log(np.where(value > 0.0, value / self.bound, 1.0))


def parse_response(left: str, text: str, schema: Schema) -> Response:
    """Reads ``NAME``, ``Surv(TIME, EVENT)`` or ``cbind(NAME, NAME, …)``.

    Raises:
      ConfigError: it has another form, or the schema declares the columns with other types.
    """
    if "(" not in left:
        return _single(left, schema)
    call = parse_call(left)
    found = [] if call is None else [item for item in call.arguments if isinstance(item, Name)]
    if call is not None and call.function == "cbind" and len(found) < len(call.arguments):
        refuse(
            f"`{left}` left of `~` in {text!r}, expected cbind of declared columns",
            "nothing is computed there: have a column of each number in the files, such as "
            "cbind(events, non_events)",
        )
    if call is None or not found or len(found) < len(call.arguments) or call.keywords:
        refuse(f"`{left}` left of `~` in {text!r}", _KINDS)
    names = [item.text for item in found]
    shown = f"{call.function}({', '.join(names)})"
    for name in names:
        if names.count(name) > 1:
            refuse(f"`{name}` is twice in `{shown}`", "name every column once")
    if call.function == "Surv":
        return _survival(shown, names, schema)
    return _several(shown, names, schema)


def parse_offset(call: Call, text: str, schema: Schema) -> Offset:
    """Reads ``offset(NAME)`` or ``offset(log(NAME))``.

    Raises:
      ConfigError: it has another form; the column is not a number, or its logarithm may not exist.
    """
    inner = call.arguments[0] if len(call.arguments) == 1 and not call.keywords else None
    logarithm = isinstance(inner, Call) and inner.function == "log" and not inner.keywords
    if isinstance(inner, Call) and logarithm:
        inner = inner.arguments[0] if len(inner.arguments) == 1 else None
    if not isinstance(inner, Name):
        refuse(f"the offset in {text!r}", "write `+ offset(log(years))` or `+ offset(shift)`")
    column = inner.text
    declared = schema_column(column, schema)
    if not isinstance(declared, Number):
        refuse(
            f"the offset `{column}` is no number",
            f'declare [data.schema.{column}] with type = "number" and `bounds`',
        )
    if declared.missing == "indicator":
        raise ConfigError(
            f'data.schema.{column}.missing: "indicator" for the offset `{column}`',
            'an offset has no coefficient; use missing = { impute = VALUE } or "drop"',
        )
    if logarithm and not declared.bounds[0] > 0.0:
        raise ConfigError(
            f"data.schema.{column}.bounds: the lowest is {declared.bounds[0]:g}, expected a number "
            f"above 0, since the formula has log({column})",
            "state the least that a record can have, such as one day",
        )
    return Offset(column, logarithm, declared.scale, declared.center)


def schema_column(name: str, schema: Schema) -> Column:
    """Returns a declared column.

    Raises:
      ConfigError: there is none with that name; the hint has the nearest one.
    """
    if name not in schema:
        refuse(f"`{name}` is not declared under [data.schema]", did_you_mean(name, schema))
    return schema[name]


_KINDS = "a response is a column, Surv(time, event) or cbind(a, b)"


def _single(name: str, schema: Schema) -> Response:
    column = _observed(name, schema)
    if isinstance(column, Level):
        return Response(name, "level", (name,), column.levels)
    if isinstance(column, Binary):
        return Response(name, "binary", (name,))
    return Response(name, "count" if column.whole else "number", (name,))


def _several(shown: str, names: list[str], schema: Schema) -> Response:
    if len(names) < 2:
        refuse(f"`{shown}` has one column, expected two or more", f"write `{names[0]} ~ …`")
    for name in names:
        if not isinstance(_observed(name, schema), Number):
            refuse(
                f"`{name}` in `{shown}` is no number",
                f'declare [data.schema.{name}] with type = "number" and `bounds`',
            )
    counts = all(getattr(schema[name], "whole", False) for name in names)
    return Response(shown, "counts" if counts else "several", tuple(names))


def _survival(shown: str, names: list[str], schema: Schema) -> Response:
    if len(names) != 2:
        refuse(
            f"`{shown}` has {len(names)} columns, expected a time and an event",
            "write Surv(time, event); times of entry are not known here",
        )
    time, event = (_observed(name, schema) for name in names)
    if not isinstance(time, Number):
        refuse(
            f"the time `{names[0]}` in `{shown}` is no number",
            f'declare [data.schema.{names[0]}] with type = "number" and `bounds`',
        )
    if not isinstance(event, Binary):
        refuse(
            f"the event `{names[1]}` in `{shown}` is not declared as true or false",
            f'declare [data.schema.{names[1]}] with type = "binary"; other than 1 and 0, list the '
            "cells that are `true` and `false`",
        )
    low, high = time.bounds
    if not low > 0.0:
        raise ConfigError(
            f"data.schema.{names[0]}.bounds: the lowest is {low:g}, expected a number above 0",
            "an event needs some time at risk: state the shortest time, such as 0.5 for half a day",
        )
    end = (high - time.center) / time.scale
    return Response(shown, "survival", tuple(names), (), time.scale, time.center, end)


def _observed(name: str, schema: Schema) -> Column:
    """Returns a column of a response, whose missing cells must not be imputed."""
    column = schema_column(name, schema)
    if isinstance(column.missing, Impute) or column.missing == "indicator":
        raise ConfigError(
            f"data.schema.{name}.missing: the response `{name}` may not be made up",
            'use missing = "drop" for a response: the record counts as zero',
        )
    return column
