"""Draws the figures of a report as SVG, with descriptions in words; needs the extra `report`.

No figure relies on colour alone: lines differ in their dashes, points in their shape. Text stays text, in
whatever sans-serif font the reader's machine has, so that no font is fetched.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedvi.report import tables
from fedvi.report.canvas import (
    COLOURS,
    DARK,
    GREY,
    INK,
    LINES,
    MARKERS,
    MOST_SITES,
    ROW,
    Figure,
    as_svg,
    drawn_twice,
    is_narrow,
    log_scale,
    name_rows,
    paper,
    ratio_axis,
    whole_numbers,
)
from fedvi.report.contents import Z95, Coefficient, Round, Site, Spending
from fedvi.typing import INTERCEPT

__all__ = [
    "convergence",
    "forest",
    "influence",
    "participation",
    "prior_and_posterior",
    "reliability",
    "shifts",
    "spending",
]

_MOST_FOLDS = 120


@drawn_twice
def forest(rows: Sequence[Coefficient], ratio: str) -> Figure:
    """Draws means with 95 % intervals, a line for each coefficient.

    Args:
      rows: at least one; those without a ratio are in a separate panel.
      ratio: the kind of ratio that exp(coefficient) is, for a second axis; "" for none.

    Raises:
      ConfigError: matplotlib is not installed; the same holds for all figures.
    """
    # Rows without a ratio have a panel without a scale of ratios.
    with_ratio = [row for row in rows if ratio and row.ratio is not None]
    without = [row for row in rows if not ratio or row.ratio is None]
    groups = [group for group in (with_ratio, without) if group]
    room = 1.5 * bool(with_ratio) + 0.9 * bool(without)
    with paper(len(rows) * ROW + room) as (figure, saved):
        heights = [len(group) + (1.5 if group is with_ratio else 0.9) / ROW for group in groups]
        panels = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
        for axes, group in zip(panels, groups, strict=True):
            _forest_panel(axes, group)
            axes.set_xlabel("coefficient, 95 % interval")
            if group is with_ratio:
                axes.set_xlabel(f"coefficient (log {ratio} ratio), 95 % interval")
                ratio_axis(axes, ratio)
            elif with_ratio:
                axes.set_xlabel(f"coefficient that is no log {ratio} ratio, 95 % interval")
    # Intercepts and baselines are not compared with 0.
    told = [row for row in with_ratio or without if not row.name.endswith(INTERCEPT)]
    clear = [row.shown for row in told if row.lower > 0.0 or row.upper < 0.0]
    of_ratios = " of a log ratio" if with_ratio else ""
    said = f"No interval{of_ratios} excludes 0."
    if clear:
        said = f"The interval{of_ratios} excludes 0 for {tables.some(clear, 6)}."
    return Figure(
        as_svg(saved),
        f"Forest plot: posterior mean and 95 % interval of {_counted(len(rows), 'coefficient')}. {said} "
        "The numbers are in the table below.",
    )


@drawn_twice
def prior_and_posterior(rows: Sequence[Coefficient]) -> Figure:
    """Draws each coefficient's prior, dashed with an open point, above its posterior.

    Args:
      rows: at least one; those without a prior are left out.
    """
    known = [
        (row, row.prior_mean, row.prior_sd)
        for row in rows
        if row.prior_mean is not None and row.prior_sd is not None
    ]
    with paper(len(known) * ROW * 1.2 + 1.1) as (figure, saved):
        axes = figure.subplots()
        for place, (row, mean, sd) in enumerate(known):
            ends = (mean - Z95 * sd, mean + Z95 * sd)
            above, below = place - 0.17, place + 0.17
            axes.plot(ends, (above, above), color=GREY, linewidth=1.0, linestyle=(0, (4, 2)))
            axes.plot(mean, above, marker="o", markersize=5, color=GREY, markerfacecolor="white")
            axes.plot((row.lower, row.upper), (below, below), color=DARK, linewidth=1.8)
            axes.plot(row.mean, below, marker="o", markersize=5, color=DARK)
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", linestyle="--", label="prior")
        axes.plot([], [], "o", color=DARK, linestyle="-", label="posterior")
        name_rows(axes, [row.shown for row, _, _ in known])
        axes.set_xlabel("coefficient, 95 % interval")
        figure.legend(loc="outside upper right", ncols=2)
    narrower = [sd / row.sd for row, _, sd in known if row.sd > 0.0] or [math.inf]
    least, most = (tables.number(value, 2) for value in (min(narrower), max(narrower)))
    return Figure(
        as_svg(saved),
        f"Prior and posterior 95 % intervals of {_counted(len(known), 'coefficient')}, in pairs. The "
        f"prior's are {least} to {most} times as wide; the numbers are in the table below.",
    )


@drawn_twice
def convergence(rounds: Sequence[Round], settled: float) -> Figure:
    """Draws how far each round moved the posterior, and the line below which it has settled.

    Args:
      rounds: those with a shift are drawn; at least one has one.
      settled: in posterior sds.
    """
    known = [(row.rounds, row.shift) for row in rounds if row.shift is not None]
    finite = [(count, max(shift, 1e-12)) for count, shift in known if math.isfinite(shift)]
    with paper(2.6) as (figure, saved):
        axes = figure.subplots()
        if finite:
            counts, values = zip(*finite, strict=True)
            axes.plot(counts, values, marker="o", markersize=4, color=DARK, linewidth=1.4)
        axes.axhline(settled, color=INK, linewidth=0.9, linestyle="--")
        axes.annotate(
            f"settled: {settled:g} sd",
            # At the left, where most runs are far above the line; at the right the curve approaches it.
            (0.0, settled),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=8,
        )
        drawn = [value for _, value in finite] + [settled]
        log_scale(axes, min(drawn) / 1.6, max(drawn) * 1.6)
        axes.set(xlabel="round", ylabel="largest move of a mean, sds")
        whole_numbers(axes.xaxis)
    last = known[-1]
    return Figure(
        as_svg(saved),
        f"Largest move of a posterior mean over each of {_counted(len(known), 'round')}, on a logarithmic "
        f"scale; the last is {tables.number(last[1], 2)} posterior sds, in round {last[0]}. Below "
        f"{settled:g} it counts as settled.",
    )


@drawn_twice
def influence(sites: Sequence[Site]) -> Figure:
    """Draws each site's share of the likelihood's precision.

    Args:
      sites: those with a share are drawn; at least one has one.
    """
    known = [(site.name, site.share) for site in sites if site.share is not None]
    names, shares = zip(*known, strict=True)
    with paper(len(known) * ROW + 0.9) as (figure, saved):
        axes = figure.subplots()
        values = [100.0 * share for share in shares]
        bars = axes.barh(range(len(known)), values, height=0.6, color="#c9d8e6", edgecolor=DARK)
        axes.bar_label(bars, [tables.share(share) for share in shares], padding=3, fontsize=8)
        axes.axvline(0.0, color=INK, linewidth=0.8)
        name_rows(axes, names)
        axes.set_xlabel("share of the likelihood's precision, %")
        axes.margins(x=0.12)
    said = "; ".join(f"{name} {tables.share(share)}" for name, share in known)
    return Figure(as_svg(saved), f"Bars of each site's share of the precision: {said}.")


@drawn_twice
def shifts(sites: Sequence[Site], names: Sequence[str]) -> Figure:
    """Draws how far each mean moves if a site is left out, with a marker shape for each site.

    Args:
      sites: those with shifts are drawn; at least one, and at most as many as there are shapes.
      names: of the coefficients, in the order of the shifts.
    """
    known = [(site.name, site.shifts) for site in sites if site.shifts is not None]
    with paper(len(names) * ROW + 1.2) as (figure, saved):
        axes = figure.subplots()
        axes.axvline(0.0, color=GREY, linewidth=0.8, linestyle="--")
        for (name, values), marker, colour in zip(known, MARKERS, COLOURS, strict=False):
            axes.plot(
                values,
                range(len(names)),
                linestyle="",
                marker=marker,
                markersize=6,
                markerfacecolor="none",
                color=colour,
                label=name,
            )
        name_rows(axes, names)
        axes.grid(axis="y", color="#e2e2e2", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("shift of the mean without the site, posterior sds")
        figure.legend(loc="outside upper right", ncols=_columns())
    said = []
    for name, values in known:
        far = max(range(len(names)), key=lambda index: abs(values[index]))
        said.append(f"without {name} {names[far]} moves most, by {values[far]:+.2f} sds")
    return Figure(as_svg(saved), f"Shifts of every mean with one site left out: {'; '.join(said)}.")


@drawn_twice
def spending(rows: Sequence[Spending]) -> Figure:
    """Draws ε over releases, a panel for each relation, a line for each group of sites.

    Args:
      rows: at least one.
    """
    relations = list(dict.fromkeys(row.relation for row in rows))
    with paper(5.2 if is_narrow() and len(relations) > 1 else 2.9) as (figure, saved):
        down = is_narrow()
        rows_and_columns = (len(relations), 1) if down else (1, len(relations))
        panels = figure.subplots(*rows_and_columns, squeeze=False, sharex=True).ravel()
        for panel, relation in zip(panels, relations, strict=True):
            _spending_panel(panel, [row for row in rows if row.relation == relation])
        panels[0].set_ylabel("ε, upper bound")
        handles, labels = panels[0].get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside upper right", ncols=_columns())
    said = []
    for row in rows[: 2 * len(LINES)]:
        last = row.epsilon[-1] if row.epsilon else 0.0
        budget = f", promised {row.promised:g}" if row.promised is not None else ""
        count = row.releases[-1] if row.releases else 0
        said.append(
            f"{_sites(row.sites)}, {tables.relation_words(row.relation)}: {tables.bound(last)} after "
            f"{_counted(count, 'release')}{budget}"
        )
    return Figure(as_svg(saved), f"Epsilon over releases. {'; '.join(said)}.")


def participation(rounds: Sequence[Round], sites: Sequence[Site]) -> Figure | None:
    """Draws which sites answered, missed a turn, joined or left at each version.

    Returns:
      None if there are too many sites or versions to draw, or none.
    """
    if not rounds or len(sites) > MOST_SITES or len(rounds) > _MOST_FOLDS:
        return None
    return _participation(rounds, sites)


@drawn_twice
def _participation(rounds: Sequence[Round], sites: Sequence[Site]) -> Figure:
    """Draws which sites answered at each version."""
    names = [site.name for site in sites]
    kinds = (
        ("answered", "o", DARK, "clients"),
        ("turn missed", "x", INK, "missing"),
        ("joined", ">", INK, "added"),
        ("removed", "s", INK, "removed"),
    )
    with paper(len(names) * ROW + 1.2) as (figure, saved):
        axes = figure.subplots()
        for label, marker, colour, field in kinds:
            points = [
                (update.version, names.index(name))
                for update in rounds
                for name in getattr(update, field)
                if name in names
            ]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(
                    x,
                    y,
                    linestyle="",
                    marker=marker,
                    markersize=6,
                    color=colour,
                    markerfacecolor="white" if marker in ">s" else colour,
                    label=label,
                )
        name_rows(axes, names)
        whole_numbers(axes.xaxis)
        axes.set_xlabel("version of the posterior")
        axes.margins(x=0.05)
        figure.legend(loc="outside upper right", ncols=_columns())
    said = "; ".join(f"{site.name} {_counted(site.answers, 'answer')}" for site in sites)
    return Figure(as_svg(saved), f"Who answered at which version of the posterior: {said}.")


@drawn_twice
def reliability(groups: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws the observed share against the predicted probability.

    Args:
      groups: each with rows, predicted and observed; bars are one standard error of a share, if the
        predictions were right.
    """
    with paper(3.6) as (figure, saved):
        axes = figure.subplots()
        predicted = [float(group["predicted"]) for group in groups]
        observed = [float(group["observed"]) for group in groups]
        bars = [
            math.sqrt(p * (1.0 - p) / int(group["rows"]))
            for p, group in zip(predicted, groups, strict=True)
        ]
        axes.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8, linestyle="--")
        axes.errorbar(
            predicted, observed, bars, marker="o", markersize=4, linewidth=1.0, color=DARK
        )
        axes.set(xlabel="predicted probability", ylabel="share that came true")
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal", anchor="W")
    said = "; ".join(
        f"{p:.2f} predicted, {o:.2f} came true" for p, o in zip(predicted, observed, strict=True)
    )
    return Figure(as_svg(saved), f"Calibration by groups of the predicted probability: {said}.")


def _forest_panel(axes: Any, rows: Sequence[Coefficient]) -> None:
    """Draws the intervals of some coefficients."""
    places = range(len(rows))
    axes.axvline(0.0, color=GREY, linewidth=0.8, linestyle="--")
    axes.hlines(
        places, [row.lower for row in rows], [row.upper for row in rows], DARK, linewidth=1.6
    )
    axes.plot(
        [row.mean for row in rows], places, linestyle="", marker="o", markersize=5, color=DARK
    )
    name_rows(axes, [row.shown for row in rows])


def _spending_panel(panel: Any, rows: Sequence[Spending]) -> None:
    """Draws one relation's panel."""
    top = 0.0
    for index, row in enumerate(rows):
        points = [
            (count, value)
            for count, value in zip((0, *row.releases), (0.0, *row.epsilon), strict=True)
            if value is not None and math.isfinite(value)
        ]
        counts, values = zip(*points, strict=True)
        panel.plot(
            counts,
            values,
            marker=MARKERS[index % len(MARKERS)],
            linestyle=LINES[index % len(LINES)],
            markersize=4,
            linewidth=1.4,
            color=DARK if index == 0 else INK,
            label=_sites(row.sites) if index < len(LINES) else None,
        )
        top = max(top, *values)
    promised = [row.promised for row in rows if row.promised is not None]
    if promised:
        panel.axhline(promised[0], color=INK, linewidth=1.2, linestyle=(0, (8, 3)))
        panel.annotate(
            f"promised: {promised[0]:g}",
            (0.0, promised[0]),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=8,
        )
        top = max(top, promised[0])
    panel.set_ylim(0.0, 1.18 * top if top > 0.0 else 1.0)
    panel.set(xlabel="releases of a site", title=tables.relation_words(rows[0].relation))
    whole_numbers(panel.xaxis)


def _columns() -> int:
    """Returns the number of columns in a legend."""
    return 2 if is_narrow() else 4


def _sites(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} sites"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
