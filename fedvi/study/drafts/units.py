"""Reads what one unit of a coefficient is, as a person says it: "10 years from 60"."""

import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from fedvi import errors
from fedvi.study.round_numbers import unit_within

__all__ = ["parse_unit"]

_FIGURES = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_FROM = r"\bfrom(?![^\W\d_])"
# It begins with a letter, % or °, and has no `from` and no number of its own: "10 years 60" lacks a `from`.
_WORD = rf"(?:(?!{_FROM}|(?:nan|inf|infinity)\b)[^\W\d_]|[%°])(?:(?!{_FROM}|\s[-+.]*\d).)*?"
_UNIT = re.compile(
    rf"(?:per\s+)?(?P<step>{_FIGURES})\s*(?P<word>{_WORD})?"
    rf"(?:\s*{_FROM}\s*(?P<start>{_FIGURES})\s*(?P<after>{_WORD})?)?",
    re.IGNORECASE,
)


def parse_unit(text: str, bounds: Sequence[float] | None = None) -> dict[str, Any]:
    """Reads what one unit is: a step, what it is counted in, and where it starts.

    Args:
      text: STEP WORD from START, or STEP from START WORD; the word may be left out. With bounds the start
        may be, too: it is then a round number near their middle.
      bounds: of the column, if they are known; the start lies within, and the step is at most their width.

    Raises:
      ConfigError: it is no such text, its step is not above 0, or it does not suit the bounds.

    >>> parse_unit("10 years from 60"), parse_unit("10 from 60 years")
    ({'center': 60.0, 'scale': 10.0, 'unit': 'years'}, {'center': 60.0, 'scale': 10.0, 'unit': 'years'})
    >>> parse_unit("0.5", (0, 4))
    {'center': 2.0, 'scale': 0.5}
    """

    def refuse(what: str, hint: str) -> NoReturn:
        raise errors.ConfigError(f"{text!r} {what}", hint)

    such_as = "such as 10 from 60, or 10 years from 60"
    middle: float | None = None
    if bounds:
        step, middle = unit_within(*bounds)
        such_as = f"such as {step:.12g} from {middle:.12g}"
    found = _UNIT.fullmatch(text.strip())
    step = 0.0 if found is None else float(found["step"])
    start = float(found["start"]) if found is not None and found["start"] else middle
    if (
        found is None
        or not 0 < step < math.inf
        or start is None
        or not math.isfinite(start)
        or (found["word"] and found["after"])
    ):
        comma = "; a number has a point, and no comma" if re.search(r"\d,\d|\s,\d", text) else ""
        refuse("is no unit, expected STEP from START, a step above 0", such_as + comma)
    if bounds:
        low, high = bounds
        if not low <= start <= high:
            refuse(f"starts outside of the bounds {low:.12g}..{high:.12g}", such_as)
        if step > high - low:
            refuse(f"has a step above {high - low:.12g}, the width of the bounds", such_as)
    word = found["word"] or found["after"]
    return {"center": start, "scale": step} | ({"unit": word} if word else {})
