"""Round numbers near what bounds suggest, for units that people say: "per 10 years from 60"."""

import math

__all__ = ["round_below", "unit_within"]

# About how many sds of a column are in half the width of its bounds; see ``planning.signals``.
_SDS = 3.0


def round_below(value: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, at most the value; 0 and infinity as they are.

    >>> round_below(35.0), round_below(0.07), round_below(0.0)
    (20.0, 0.05, 0.0)
    """
    if value == 0.0 or math.isinf(value):
        return value
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        float(f"{digit * power:g}") for digit in (5.0, 2.0, 1.0) if digit * power <= value * 1.001
    )


def unit_within(low: float, high: float) -> tuple[float, float]:
    """Returns a round step, about an sd of a column with these bounds, and a round number near the middle.

    >>> unit_within(18, 100), unit_within(0, 1), unit_within(60, 260)
    ((10.0, 60.0), (0.1, 0.5), (20.0, 160.0))
    >>> unit_within(1234567.1, 1234567.9)
    (0.1, 1234567.5)
    """
    step = round_below((high - low) / 2.0 / _SDS)
    return step, float(f"{round((low + high) / 2.0 / step) * step:.15g}")
