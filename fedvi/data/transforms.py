"""Defines the functions of a column that a formula may call, and why others are refused."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvi.data import splines
from fedvi.data.calls import Call, Name, Power, check_arguments, refuse
from fedvi.data.schema import Number, Schema
from fedvi.data.splines import Basis, Function
from fedvi.data.unit_words import unit_of
from fedvi.errors import ConfigError, did_you_mean

__all__ = ["Transform", "parse_transform"]


@dataclass(frozen=True)
class Transform:
    """One or more functions of a number; public, since all of their constants are in the study.

    Args:
      text: the call with all its constants, in a standard form.
      column: name in the schema.
      names: of the coefficients, such as "bs(iss)[1]".
      units: of the coefficients; "" where nothing was scaled.
      bounds, center, scale: of the column, to restore the value in the file.
      evaluate: values in the unit of the file, float64 [n] → float64 [n, k]; determined by ``text``.
    """

    text: str
    column: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    bounds: tuple[float, float]
    center: float
    scale: float
    evaluate: Function = field(compare=False, repr=False)

    def values(self, prepared: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the functions of a prepared column: float64 [n, k], finite for finite values.

        Values outside the bounds of the column are clipped. The schema has already clipped the records'
        values, so this concerns only the zeros of a record that does not count, and the centre, which
        replaces a missing cell and may be outside the bounds.
        """
        raw = prepared.astype(np.float64) * self.scale + self.center
        return self.evaluate(np.clip(raw, *self.bounds))


def parse_transform(call: Call, text: str, schema: Schema) -> Transform:
    """Reads a function of a column, right of ``~``.

    ``bs``, ``cr`` and ``cc``: splines, see ``fedvi.data.splines``. ``log``, ``log2``, ``log10``,
    ``log1p``, ``sqrt`` and ``exp``: of the value in the unit of the file. ``poly(x, k, raw=True)`` and
    ``I(x**k)``: powers of the value as scaled by the schema, so that coefficients and their priors keep
    a similar size.

    Raises:
      ConfigError: the function is unknown; it would be fitted to the data; its constants are missing or do
        not fit the declared bounds.
    """
    if call.function in _REFUSED:
        reason, instead = _REFUSED[call.function]
        refuse(f"the call `{call.function}(...)` in {text!r} {reason}", instead)
    if call.function not in _KNOWN:
        refuse(
            f"the call `{call.function}(...)` in {text!r}",
            "a formula has no functions but Surv and cbind left of `~`; and offset, "
            f"{', '.join(_KNOWN)} right of it, of one column each. Write another transformed column "
            f"into the file. {did_you_mean(call.function, _KNOWN)}",
        )
    read, example = _KNOWN[call.function]
    name, column = _column(call, text, schema, example)
    found = read(call, text, name, column)
    return Transform(
        found.text,
        name,
        found.names,
        found.units,
        column.bounds,
        column.center,
        column.scale,
        found.evaluate,
    )


_REFUSED = {
    **dict.fromkeys(
        ("center", "scale", "standardize"),
        (
            "would be fitted to the data: means and sds of the records would leave with the result",
            "declare public `center` and `scale` under [data.schema.NAME], and write the name alone",
        ),
    ),
    "C": (
        "would take the levels that the data happen to hold",
        'declare type = "level" and `levels` under [data.schema.NAME], and write the name alone: the '
        "first level is the reference",
    ),
    **dict.fromkeys(
        ("ns", "cs", "s", "te"),
        ("is not known", f"write cr(x, {splines.SIGNATURE}) for a natural cubic spline"),
    ),
}


def _column(call: Call, text: str, schema: Schema, example: str) -> tuple[str, Number]:
    """Returns the column of a call: its first argument."""
    first = call.arguments[0] if call.arguments else call.keywords.get("x")
    if isinstance(first, Power) and call.function == "I":
        first = first.base
    if not isinstance(first, Name):
        refuse(
            f"the call `{call.function}(...)` in {text!r} is not of a column alone",
            f"write, for example, {example}; or write the transformed column into the file",
        )
    if first.text not in schema:
        refuse(
            f"`{first.text}` is not declared under [data.schema]", did_you_mean(first.text, schema)
        )
    column = schema[first.text]
    if not isinstance(column, Number):
        refuse(
            f"`{first.text}` in `{call.function}({first.text})` is no number",
            "write its name alone: it has a coefficient for each level but the first",
        )
    return first.text, column


# Function → its NumPy function, its least argument, and whether that argument is excluded.
_ELEMENTARY: dict[str, tuple[Any, float, bool]] = {
    "log": (np.log, 0.0, True),
    "log2": (np.log2, 0.0, True),
    "log10": (np.log10, 0.0, True),
    "log1p": (np.log1p, -1.0, True),
    "sqrt": (np.sqrt, 0.0, False),
    "exp": (np.exp, -math.inf, False),
}
_LARGEST_POWER = 9


def _elementary(call: Call, text: str, name: str, column: Number) -> Basis:
    label = f"{call.function}({name})"
    check_arguments(call, text, ("x",), 1, label)
    calculate, least, strict = _ELEMENTARY[call.function]
    low, high = column.bounds
    if low < least or (strict and low == least):
        raise ConfigError(
            f"data.schema.{name}.bounds: the lowest is {low:g}, expected a number "
            f"{'above' if strict else 'of at least'} {least:g}, since the formula has {label}",
            "state the least that a record can have, such as 0.1",
        )
    with np.errstate(over="ignore"):
        largest = float(calculate(high))
    if not math.isfinite(largest):
        raise ConfigError(
            f"data.schema.{name}.bounds: the highest is {high:g}, whose {call.function} is no number, "
            f"and the formula has {label}",
            "state narrower bounds, or write the transformed column into the file",
        )
    return Basis(label, (label,), ("",), functools.partial(_one, calculate))


def _one(calculate: Function, x: NDArray[np.float64]) -> NDArray[np.float64]:
    return calculate(x)[:, None]


def _power(call: Call, text: str, name: str, column: Number) -> Basis:
    check_arguments(call, text, (), 1, "I(age**2)")
    only = call.arguments[0]
    exponent = only.exponent if isinstance(only, Power) else 1
    if not 2 <= exponent <= _LARGEST_POWER:
        refuse(
            f"the power {exponent} in the call `I(...)` of {text!r}, expected 2 to {_LARGEST_POWER}",
            f"write I({name}**2); `{name}` alone is the first power",
        )
    label = f"I({name}**{exponent})"
    return _powers(label, (label,), (exponent,), column)


def _poly(call: Call, text: str, name: str, column: Number) -> Basis:
    keys = ("x", "degree", "raw")
    check_arguments(call, text, keys, 3, "poly(age, 2, raw=True)")
    given = dict(zip(keys, call.arguments, strict=False)) | dict(call.keywords)
    degree, raw = given.get("degree", 1), given.get("raw", False)
    if raw is not True:
        refuse(
            f"poly({name}, {degree}) in {text!r} would be fitted to the data: orthogonal polynomials "
            "depend on what the records hold",
            f"write poly({name}, {degree}, raw=True): powers of the value as the schema scales it",
        )
    if type(degree) is not int or not 1 <= degree <= _LARGEST_POWER:
        refuse(
            f"the degree {degree} of poly({name}) in {text!r}, expected 1 to {_LARGEST_POWER}",
            f"write poly({name}, 2, raw=True)",
        )
    powers = tuple(range(1, degree + 1))
    names = tuple(f"poly({name})[{power}]" for power in powers)
    return _powers(f"poly({name}, {degree}, raw=True)", names, powers, column)


def _powers(text: str, names: tuple[str, ...], powers: tuple[int, ...], column: Number) -> Basis:
    unit = unit_of(column)
    units = tuple(unit if power == 1 or not unit else f"{unit}, power {power}" for power in powers)
    return Basis(
        text, names, units, functools.partial(_raised, powers, column.center, column.scale)
    )


def _raised(
    powers: tuple[int, ...], center: float, scale: float, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    scaled = (x - center) / scale
    # Multiplied out, since np.power may round the last rows of a block differently.
    return np.stack([functools.reduce(np.multiply, [scaled] * power) for power in powers], axis=1)


# Function → the reader of its call, and an example.
_KNOWN: dict[str, tuple[Callable[[Call, str, str, Number], Basis], str]] = {
    "bs": (splines.b_spline, f"bs(age, {splines.SIGNATURE})"),
    "cr": (splines.cubic_spline, f"cr(age, {splines.SIGNATURE})"),
    "cc": (splines.cubic_spline, f"cc(hour, {splines.SIGNATURE})"),
    **{name: (_elementary, f"{name}(age)") for name in _ELEMENTARY},
    "I": (_power, "I(age**2)"),
    "poly": (_poly, "poly(age, 2, raw=True)"),
}
