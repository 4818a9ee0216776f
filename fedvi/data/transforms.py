"""The functions of a column that a formula may call, and why others are refused."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvi.data import splines
from fedvi.data.calls import Call, Name, Power, check_arguments, refuse
from fedvi.data.schema import Number, Schema, unit_of
from fedvi.data.splines import Basis, Function
from fedvi.errors import ConfigError, did_you_mean

__all__ = ["Transform", "parse_transform"]


@dataclass(frozen=True)
class Transform:
    """One or more functions of a number; public, all of their constants stand in the study.

    Args:
      text: the call with all its constants, in one spelling.
      column: name in the schema.
      names: of the coefficients, such as "bs(iss)[1]".
      units: of the coefficients; "" where nothing was scaled.
      bounds, center, scale: of the column, so that the value is that of the file.
      evaluate: values in the unit of the file, float64 [n] → float64 [n, k]; follows from ``text``.
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

        What is beyond the bounds of the column is taken as at the bound. The schema has clipped what
        records hold, so this concerns the zeros of a record that does not count, and the centre that
        stands for a missing cell, which need not be within the bounds.
        """
        raw = prepared.astype(np.float64) * self.scale + self.center
        return self.evaluate(np.clip(raw, *self.bounds))


def parse_transform(call: Call, text: str, schema: Schema) -> Transform:
    """Reads a function of a column right of ``~``.

    ``bs``, ``cr`` and ``cc``: splines, see ``fedvi.data.splines``. ``log``, ``log2``, ``log10``,
    ``log1p``, ``sqrt`` and ``exp``: of the value in the unit of the file. ``poly(x, k, raw=True)`` and
    ``I(x**k)``: powers of the value as the schema scales it, so that a coefficient and its prior stay
    of one size.

    Raises:
      ConfigError: no such function; one that would be fitted to the data; one whose constants are
        missing or do not fit the declared bounds.
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
    """Returns the column that a call is of: its first argument."""
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


# Function → its arithmetic, the least that it takes, and whether that itself is too little.
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
    # Multiplied out: np.power may round the last rows of a block unlike the others.
    return np.stack([functools.reduce(np.multiply, [scaled] * power) for power in powers], axis=1)


# Function → how its call is read, and an example.
_KNOWN: dict[str, tuple[Callable[[Call, str, str, Number], Basis], str]] = {
    "bs": (splines.b_spline, f"bs(age, {splines.SIGNATURE})"),
    "cr": (splines.cubic_spline, f"cr(age, {splines.SIGNATURE})"),
    "cc": (splines.cubic_spline, f"cc(hour, {splines.SIGNATURE})"),
    **{name: (_elementary, f"{name}(age)") for name in _ELEMENTARY},
    "I": (_power, "I(age**2)"),
    "poly": (_poly, "poly(age, 2, raw=True)"),
}
