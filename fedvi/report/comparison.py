"""Draws the answer beside each site's own posterior, and the pooled fit if there is one."""

import math
from collections.abc import Sequence
from typing import Any

from fedvi.report.canvas import (
    COLOURS,
    DARK,
    GREY,
    INK,
    MARKERS,
    ROW,
    Figure,
    as_svg,
    drawn_twice,
    is_narrow,
    name_rows,
    paper,
)
from fedvi.report.contents import Z95, Coefficient, Site

__all__ = ["MOST_SITES", "comparison", "most_compared"]

MOST_SITES = 8
"""The most sites whose markers can be told apart."""

# The most intervals above each other on a third of a page.
_MOST_INTERVALS, _FEWEST, _MOST = 54, 6, 16


def most_compared(sites: int, pooled: bool) -> int:
    """Returns how many coefficients can be drawn beside the given number of sites.

    >>> most_compared(2, pooled=False), most_compared(8, pooled=True)
    (16, 6)
    """
    return min(max(_MOST_INTERVALS // (1 + pooled + sites), _FEWEST), _MOST)


@drawn_twice
def comparison(rows: Sequence[Coefficient], places: Sequence[int], sites: Sequence[Site]) -> Figure:
    """Draws the 95 % intervals of the answer, the pooled fit and each site alone, for each coefficient.

    Args:
      rows: the coefficients to draw, at most ``most_compared``.
      places: the index of each in ``Site.alone``.
      sites: those without ``alone`` are left out; at most ``MOST_SITES``.
    """
    known = [(site.name, site.alone) for site in sites if site.alone is not None]
    pooled = all(row.pooled_sd is not None for row in rows)
    kinds = 1 + pooled + len(known)
    step = 0.8 / kinds
    with paper(len(rows) * max(ROW, 0.09 * kinds + 0.06) + 1.2 + 0.2 * is_narrow()) as (
        figure,
        saved,
    ):
        axes = figure.subplots()
        axes.axvline(0.0, color=GREY, linewidth=0.8, linestyle="--")
        for index, row in enumerate(rows):
            top = index - 0.4 + step / 2
            axes.plot((row.lower, row.upper), (top, top), color=DARK, linewidth=2.2)
            axes.plot(row.mean, top, marker="o", markersize=5, color=DARK)
            if row.pooled_mean is not None and row.pooled_sd is not None:
                _interval(axes, row.pooled_mean, row.pooled_sd, top + step, INK, "s", 1.6)
            for number, (_, alone) in enumerate(known):
                place = top + (1 + pooled + number) * step
                marker = MARKERS[(number + 1) % len(MARKERS)]
                _interval(axes, *alone[places[index]], place, COLOURS[number], marker, 0.9)
            if index:
                axes.axhline(index - 0.5, color="#e2e2e2", linewidth=0.6)
        axes.plot([], [], "o-", color=DARK, linewidth=2.2, label="this study")
        if pooled:
            axes.plot([], [], "s-", color=INK, markerfacecolor="white", label="pooled, NOT private")
        for number, (name, _) in enumerate(known):
            marker = MARKERS[(number + 1) % len(MARKERS)]
            style = {"markerfacecolor": "white", "linewidth": 0.9, "color": COLOURS[number]}
            axes.plot([], [], marker + "-", label=f"{name} alone", **style)
        # Values far away would leave no room for the others.
        ends = [end for row in rows for end in (row.lower, row.upper)]
        far = 2.5 * (max(ends) - min(ends))
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(ends) - far), min(high, max(ends) + far))
        name_rows(axes, [row.shown for row in rows])
        axes.set_xlabel("coefficient, 95 % interval")
        figure.legend(loc="outside upper right", ncols=2 if is_narrow() else 3)
    return Figure(as_svg(saved), _told(rows, places, known, pooled))


def _told(
    rows: Sequence[Coefficient],
    places: Sequence[int],
    known: Sequence[tuple[str, tuple[tuple[float, float], ...]]],
    pooled: bool,
) -> str:
    """Describes the figure: the others' widths, and their distances from the answer."""
    said = []
    if pooled:
        wide = [row.sd / row.pooled_sd for row in rows if row.pooled_sd]
        far = max(abs(row.mean - (row.pooled_mean or 0.0)) / row.sd for row in rows)
        said.append(
            f"The answer is {min(wide):.2g} to {max(wide):.2g} times as wide as the pooled fit, and at "
            f"most {far:.2g} of its own sds away from it"
        )
    for name, alone in known:
        ratios = [
            alone[place][1] / row.sd
            for row, place in zip(rows, places, strict=True)
            if row.sd > 0.0
        ]
        median = sorted(ratios)[len(ratios) // 2] if ratios else math.inf
        said.append(f"{name} alone is about {median:.2g} times as wide as the answer")
    return "95 % intervals by coefficient. " + "; ".join(said) + "."


def _interval(
    axes: Any, mean: float, sd: float, place: float, colour: str, marker: str, width: float
) -> None:
    ends = (mean - Z95 * sd, mean + Z95 * sd)
    axes.plot(ends, (place, place), color=colour, linewidth=width)
    axes.plot(mean, place, marker=marker, markersize=4, color=colour, markerfacecolor="white")
