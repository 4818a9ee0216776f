"""Checks the arguments that the factories of regression models share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.typing import INTERCEPT

__all__ = [
    "Scale",
    "check_coefficients",
    "check_positive",
    "check_ridge",
    "check_whole",
    "checked_names",
    "checked_scale",
    "prior_scales",
]

Scale = float | int
"""A standard deviation; a study file may write it as an integer."""


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of coefficients.

    Raises:
      ModelError: there are none, one is repeated, or they are not a list of strings.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise errors.ModelError(
            f"names is {names!r}, expected a list of coefficient names",
            'write `["(Intercept)", "age"]`',
        )
    if not len(names):
        raise errors.ModelError(
            "names is empty, expected one name for each column of x",
            f'a model of the mean alone is `["{INTERCEPT}"]`',
        )
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        listed = ", ".join(f"`{name}`" for name in repeated)
        raise errors.ModelError(
            f"names has {listed} more than once, expected {len(names)} different names",
            "drop the repeated column, or rename it",
        )
    return tuple(names)


def prior_scales(
    names: tuple[str, ...],
    prior_scale: Scale | Sequence[Scale],
    intercept_scale: Scale | None,
) -> tuple[float, ...]:
    """Returns the prior standard deviation of each coefficient, with the intercept's own scale if given.

    Raises:
      ModelError: a scale is not a positive number, or the list is not as long as ``names``.
    """
    if np.ndim(prior_scale) == 0:
        scales = [checked_scale("prior_scale", prior_scale)] * len(names)
    else:
        given = list(np.asarray(prior_scale).ravel())
        if len(given) != len(names):
            raise errors.ModelError(
                f"prior_scale has {len(given)} numbers, expected {len(names)}, one for each name",
                "give one number for all coefficients, or a list in the order of `names`",
            )
        scales = [checked_scale(f"prior_scale[{i}]", scale) for i, scale in enumerate(given)]
    if intercept_scale is not None:
        if INTERCEPT not in names:
            raise errors.ModelError(
                f"intercept_scale is {intercept_scale}, but no coefficient is named `{INTERCEPT}`",
                f"name the column of ones `{INTERCEPT}`, or leave `intercept_scale` out",
            )
        scales[names.index(INTERCEPT)] = checked_scale("intercept_scale", intercept_scale)
    return tuple(scales)


def check_whole(field: str, value: object, least: int) -> None:
    """Raises ModelError unless a value is a whole number of at least ``least``: no float, no bool."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise errors.ModelError(
            f"{field} is {value!r}, expected a whole number of at least {least}"
        )
    if value < least:
        raise errors.ModelError(f"{field} is {value}, expected at least {least}")


def check_positive(model: Any, *fields: str) -> None:
    """Raises ModelError unless each of these fields is finite and above 0, or a tuple of such, or None."""
    for field in fields:
        value = getattr(model, field)
        if value is not None and not all(0.0 < each < math.inf for each in np.atleast_1d(value)):
            expected = "numbers" if np.ndim(value) else "a number"
            raise errors.ModelError(f"{field} is {value}, expected {expected} above 0")


def check_ridge(model: Any) -> None:
    """Raises ModelError unless ``ridge`` is a finite number of at least 0."""
    if not 0.0 <= model.ridge < math.inf:
        raise errors.ModelError(f"ridge is {model.ridge}, expected a number of at least 0")


def check_coefficients(model: Any) -> None:
    """Raises ModelError unless there is at least one coefficient, and a prior scale for each."""
    if len(model.coefficients) != len(model.prior_scales) or not model.coefficients:
        raise errors.ModelError(
            f"{len(model.coefficients)} coefficients and {len(model.prior_scales)} prior scales, "
            "expected as many of one as of the other, and at least one"
        )


def checked_scale(
    field: str,
    scale: object,
    hint: str = "it is a standard deviation; 2.5 suits coefficients of columns with a range near 1",
) -> float:
    """Returns a standard deviation, or another positive number, as a float.

    Raises:
      ModelError: it is not a positive finite number.
    """
    numeric = isinstance(scale, int | float | np.integer | np.floating)
    if not numeric or isinstance(scale, bool) or not 0.0 < float(scale) < math.inf:  # type: ignore[arg-type]
        raise errors.ModelError(
            f"{field} is {scale!r}, expected a positive finite number",
            hint,
        )
    return float(scale)  # type: ignore[arg-type]
