"""Says which effects may stand out by chance, since many are looked at."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["by_chance", "most_by_chance"]

# The part of 95 % intervals that exclude 0 by chance.
_CHANCE = 0.05


def by_chance(rows: Sequence[Mapping[str, Any]], stand_out: Sequence[str]) -> tuple[str, ...]:
    """Returns the effects that stand out by themselves, and not when all are looked at together.

    Holm's rule: with no effect at all, one in twenty studies has an effect that it keeps. It makes no
    assumption about how effects are correlated.

    Args:
      rows: of all effects.
      stand_out: names of those whose interval excludes 0, in order.
    """
    size = {row["name"]: abs(row["mean"]) / row["sd"] for row in rows if row["name"] in stand_out}
    kept, left = set(), len(rows)
    for name in sorted(size, key=lambda name: -size[name]):
        if math.erfc(size[name] / math.sqrt(2.0)) > _CHANCE / left:
            break
        kept.add(name)
        left -= 1
    return tuple(name for name in stand_out if name not in kept)


def most_by_chance(count: int) -> int:
    """Returns how many of so many 95 % intervals exclude 0 by chance, in 19 of 20 studies at most.

    Effects are taken to be independent; the binomial's 95 % point.

    >>> [most_by_chance(count) for count in (1, 2, 8, 11, 40, 10_000)]
    [0, 1, 2, 2, 4, 536]
    """
    most = 0
    below = exactly = (1.0 - _CHANCE) ** count
    while below < 1.0 - _CHANCE:
        most += 1
        exactly *= (count - most + 1) / most * _CHANCE / (1.0 - _CHANCE)
        below += exactly
    return most
