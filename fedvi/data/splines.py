"""Spline terms of one column with public knots, by formulaic.

A basis does not affect sensitivity, since a record's contribution is clipped whatever its row of the design
is. Knots and bounds taken from the data would reveal something about them, so they are refused.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvi.data.calls import Call, check_arguments, refuse
from fedvi.data.schema import Number
from fedvi.data.written import is_number

__all__ = ["SIGNATURE", "Basis", "b_spline", "cubic_spline"]

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]

SIGNATURE = "knots=[…], lower_bound=…, upper_bound=…"
"""The arguments after the column in a call."""


class Basis(NamedTuple):
    """Basis functions of a number.

    Attributes:
      text: the call with all its constants, in a standard form.
      names: of the coefficients.
      units: of the coefficients; "" where nothing was scaled.
      evaluate: values in the unit of the file, float64 [n] → float64 [n, k].
    """

    text: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    evaluate: Function


def b_spline(call: Call, text: str, name: str, column: Number) -> Basis:
    """Reads ``bs(x, knots=[…], degree=3, lower_bound=…, upper_bound=…, include_intercept=False)``.

    Knots and bounds are in the unit of the file. Without knots, the basis is polynomial.

    Raises:
      ConfigError: a constant is missing, would have to be fitted to the data, or does not fit.
    """
    knots, ends = _places(call, text, name, column, (*_KEYS, "degree", "include_intercept"))
    degree = call.keywords.get("degree", 3)
    whole = call.keywords.get("include_intercept", False)
    if type(degree) is not int or not 1 <= degree <= _LARGEST_DEGREE:
        refuse(
            f"bs({name}, degree={degree}), expected a degree from 1 to {_LARGEST_DEGREE}",
            "leave it out for 3: cubic pieces",
        )
    if type(whole) is not bool:
        refuse(
            f"bs({name}, include_intercept={whole}), expected True or False",
            "leave it out for False: the model's intercept stands for it",
        )
    first = 0 if whole else 1
    names = tuple(f"bs({name})[{i}]" for i in range(first, len(knots) + degree + 1))
    shown = f"bs({_shown(name, knots, ends)}, degree={degree}"
    shown += ", include_intercept=True)" if whole else ")"
    evaluate = functools.partial(_b_spline, knots, ends, degree, whole)
    return Basis(shown, names, ("",) * len(names), evaluate)


def cubic_spline(call: Call, text: str, name: str, column: Number) -> Basis:
    """Reads ``cr(x, knots=[…], lower_bound=…, upper_bound=…)``, a natural cubic spline; ``cc`` is cyclic.

    Coefficients are the values of the curve at the inner knots, and for ``cr`` at the upper bound, minus
    its value at the lower bound. formulaic has one more function, with which all sum to 1: the intercept
    replaces it.

    Raises: as for ``b_spline``.
    """
    knots, ends = _places(call, text, name, column, _KEYS)
    function = call.function
    cyclic = function == "cc"
    # With two pieces, formulaic's cyclic curve has a kink at the knot and where it closes.
    if len(knots) < (2 if cyclic else 1):
        refuse(
            f"{function}({name}) in {text!r} has {len(knots)} knots, expected at least "
            f"{'two' if cyclic else 'one'}",
            f"write {function}({name}, {SIGNATURE})",
        )
    # A cyclic curve has the same value at both bounds.
    names = tuple(f"{function}({name})[{i}]" for i in range(1, len(knots) + (1 if cyclic else 2)))
    evaluate = functools.partial(_cubic_spline, knots, ends, cyclic)
    shown = f"{function}({_shown(name, knots, ends)})"
    return Basis(shown, names, ("",) * len(names), evaluate)


_LARGEST_DEGREE = 9
_KEYS = ("x", "df", "knots", "lower_bound", "upper_bound")


def _b_spline(
    knots: tuple[float, ...],
    ends: tuple[float, float],
    degree: int,
    include_intercept: bool,
    x: NDArray[np.float64],
) -> NDArray[np.float64]:
    # Imported late: it imports pandas, which a server and `fedvi --help` do not need.
    from formulaic.transforms import basis_spline

    found = basis_spline(
        x,
        knots=list(knots),
        degree=degree,
        include_intercept=include_intercept,
        lower_bound=ends[0],
        upper_bound=ends[1],
    )
    return _stacked(found)


def _cubic_spline(
    knots: tuple[float, ...], ends: tuple[float, float], cyclic: bool, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the cardinal basis without its first function."""
    from formulaic.transforms import cyclic_cubic_spline, natural_cubic_spline

    make = cyclic_cubic_spline if cyclic else natural_cubic_spline
    found = make(x, knots=list(knots), lower_bound=ends[0], upper_bound=ends[1])
    return _stacked(found)[:, 1:]


def _stacked(found: Any) -> NDArray[np.float64]:
    return np.stack([np.asarray(found[key], np.float64) for key in sorted(found)], axis=1)


def _places(
    call: Call, text: str, name: str, column: Number, known: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """Returns the inner knots of a spline, and its bounds."""
    function, (low, high) = call.function, column.bounds
    third = (high - low) / 3.0
    example = (
        f"{function}({name}, knots=[{low + third:.4g}, {low + 2 * third:.4g}], "
        f"lower_bound={low:.12g}, upper_bound={high:.12g})"
    )
    if "df" in call.keywords or (len(call.arguments) > 1 and type(call.arguments[1]) is int):
        refuse(
            f"`df` in the call `{function}(...)` of {text!r} would be fitted to the data: knots would "
            "be quantiles of the records",
            f"state knots that are known without the data, such as {example}",
        )
    if "constraints" in call.keywords:
        refuse(
            f"`constraints` in the call `{function}(...)` of {text!r} would be fitted to the data: a "
            "curve would be centred at the records' mean",
            "leave it out: here the curve is 0 at the lower bound",
        )
    check_arguments(call, text, known, 1, example)
    lower, upper = (_end(call, key, text, name, example) for key in ("lower_bound", "upper_bound"))
    if not (lower <= low and high <= upper):
        refuse(
            f"{function}({name}) has the bounds [{lower:.12g}, {upper:.12g}], expected ones that hold "
            f"those of data.schema.{name}, [{low:.12g}, {high:.12g}]",
            "widen them; or narrow the bounds of the schema, which values are clipped to",
        )
    knots = call.keywords.get("knots", ())
    if not isinstance(knots, tuple) or not all(is_number(knot) for knot in knots):
        refuse(f"the knots of {function}({name}) in {text!r} are no numbers", f"write {example}")
    inner = tuple(float(knot) for knot in knots)
    if not all(a < b for a, b in zip((lower, *inner), (*inner, upper), strict=True)):
        refuse(
            f"{function}({name}) has the knots [{_listed(inner)}], expected numbers that rise, between "
            f"the bounds {lower:.12g} and {upper:.12g}",
            f"such as {example}",
        )
    return inner, (lower, upper)


def _end(call: Call, key: str, text: str, name: str, example: str) -> float:
    end = call.keywords.get(key)
    if end is None:
        refuse(
            f"{call.function}({name}) in {text!r} has no {key}, and would take it from the data",
            f"state it, such as with the bounds of the schema: {example}",
        )
    if not is_number(end):
        refuse(f"the {key} of {call.function}({name}) in {text!r} is no number", f"write {example}")
    return float(end)


def _listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(repr(number).removesuffix(".0") for number in numbers)


def _shown(name: str, knots: tuple[float, ...], ends: tuple[float, float]) -> str:
    inner = f", knots=[{_listed(knots)}]" if knots else ""
    return f"{name}{inner}, lower_bound={_listed(ends[:1])}, upper_bound={_listed(ends[1:])}"
