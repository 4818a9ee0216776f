"""The figures of a report, as SVG with words beside them; needs the extra `report`.

No figure tells anything by colour alone: lines differ in their dashes, points in their shape. Letters stay
letters, in whatever sans-serif font the reader's machine has, so that none is fetched.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.report import tables
from fedvi.report.contents import Coefficient, Round, Site, Spending

__all__ = [
    "MOST_ROWS",
    "Figure",
    "convergence",
    "forest",
    "influence",
    "participation",
    "prior_and_posterior",
    "reliability",
    "shifts",
    "spending",
]

MOST_ROWS = 40
"""So many coefficients or sites are drawn at most."""

_INK, _DARK, _GREY = "#1a1a1a", "#0b4f8a", "#6b6b6b"
_WIDTH = 7.2
_ROW = 0.26
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# As dark as ink on paper; shapes tell them apart.
_COLOURS = ("#0b4f8a", "#8a3a00", "#1f6b2c", "#5b2a86", "#7a1f3d", "#1a1a1a", "#4a5a00", "#00606b")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)))
_MOST_FOLDS = 120
_STYLE: Any = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.unicode_minus": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # The same run gives the same file.
    "svg.hashsalt": "fedvi",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


class Figure(NamedTuple):
    """A figure.

    Attributes:
      svg: the text of an SVG file that fetches nothing.
      told: what it shows, in words, for whoever does not see it.
    """

    svg: str
    told: str


def forest(rows: Sequence[Coefficient], ratio: str) -> Figure:
    """Draws means with 95 % intervals, a line for each coefficient.

    Args:
      rows: at least one; those without a ratio stand in a panel of their own.
      ratio: of what exp(coefficient) is a ratio, for a second axis; "" for none.

    Raises:
      ConfigError: matplotlib is not installed; so do all figures.
    """
    # What has no ratio stands apart: no scale of ratios is above it.
    with_ratio = [row for row in rows if ratio and row.ratio is not None]
    without = [row for row in rows if not ratio or row.ratio is None]
    groups = [group for group in (with_ratio, without) if group]
    room = 1.5 * bool(with_ratio) + 0.9 * bool(without)
    with _figure(len(rows) * _ROW + room) as (figure, saved):
        heights = [len(group) + (1.5 if group is with_ratio else 0.9) / _ROW for group in groups]
        panels = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
        for axes, group in zip(panels, groups, strict=True):
            _forest_panel(axes, group)
            axes.set_xlabel("coefficient, 95 % interval")
            if group is with_ratio:
                axes.set_xlabel(f"coefficient (log {ratio} ratio), 95 % interval")
                _ratio_axis(axes, ratio)
            elif with_ratio:
                axes.set_xlabel(f"coefficient that is no log {ratio} ratio, 95 % interval")
    # Neither an intercept nor a baseline is compared with 0.
    told = [row for row in with_ratio or without if not row.name.endswith("(Intercept)")]
    clear = [row.name for row in told if row.lower > 0.0 or row.upper < 0.0]
    of_ratios = " of a log ratio" if with_ratio else ""
    said = f"No interval{of_ratios} excludes 0."
    if clear:
        said = f"The interval{of_ratios} excludes 0 for {_listed(clear)}."
    return Figure(
        _svg(saved),
        f"Forest plot: posterior mean and 95 % interval of {_counted(len(rows), 'coefficient')}. {said} "
        "The numbers are in the table below.",
    )


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
    with _figure(len(known) * _ROW * 1.5 + 1.1) as (figure, saved):
        axes = figure.subplots()
        for place, (row, mean, sd) in enumerate(known):
            ends = (mean - 1.96 * sd, mean + 1.96 * sd)
            above, below = place - 0.17, place + 0.17
            axes.plot(ends, (above, above), color=_GREY, linewidth=1.0, linestyle=(0, (4, 2)))
            axes.plot(mean, above, marker="o", markersize=5, color=_GREY, markerfacecolor="white")
            axes.plot((row.lower, row.upper), (below, below), color=_DARK, linewidth=1.8)
            axes.plot(row.mean, below, marker="o", markersize=5, color=_DARK)
        axes.plot([], [], "o", color=_GREY, markerfacecolor="white", linestyle="--", label="prior")
        axes.plot([], [], "o", color=_DARK, linestyle="-", label="posterior")
        _name_rows(axes, [row.name for row, _, _ in known])
        axes.set_xlabel("coefficient, 95 % interval")
        figure.legend(loc="outside upper right", ncols=2)
    learnt = [1.0 - (row.sd / sd) ** 2 for row, _, sd in known]
    least, most = (tables.share(value) for value in (min(learnt), max(learnt)))
    return Figure(
        _svg(saved),
        f"Prior and posterior 95 % intervals of {_counted(len(known), 'coefficient')}, in pairs. The "
        f"variance of the prior that is gone lies between {least} and {most}; the numbers are in the "
        "table below.",
    )


def convergence(rounds: Sequence[Round], settled: float) -> Figure:
    """Draws by how much each round moved the posterior, and the line below which it has settled.

    Args:
      rounds: of which those with a shift are drawn; at least one has.
      settled: in posterior sds.
    """
    known = [(row.rounds, row.shift) for row in rounds if row.shift is not None]
    finite = [(count, max(shift, 1e-12)) for count, shift in known if math.isfinite(shift)]
    with _figure(2.6) as (figure, saved):
        axes = figure.subplots()
        if finite:
            counts, values = zip(*finite, strict=True)
            axes.plot(counts, values, marker="o", markersize=4, color=_DARK, linewidth=1.4)
        axes.axhline(settled, color=_INK, linewidth=0.9, linestyle="--")
        axes.annotate(
            f"settled: {settled:g} sd",
            # At the left, where most runs are far above it; at the right the curve comes down to it.
            (0.0, settled),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=8,
        )
        drawn = [value for _, value in finite] + [settled]
        _log_scale(axes, min(drawn) / 1.6, max(drawn) * 1.6)
        axes.set(xlabel="round", ylabel="largest move of a mean, sds")
        _whole_numbers(axes.xaxis)
    last = known[-1]
    return Figure(
        _svg(saved),
        f"Largest move of a posterior mean over each of {_counted(len(known), 'round')}, on a logarithmic "
        f"scale; the last is {tables.number(last[1], 2)} posterior sds, in round {last[0]}. Below "
        f"{settled:g} it counts as settled.",
    )


def influence(sites: Sequence[Site]) -> Figure:
    """Draws each site's share of the likelihood's precision.

    Args:
      sites: of which those with a share are drawn; at least one has.
    """
    known = [(site.name, site.share) for site in sites if site.share is not None]
    names, shares = zip(*known, strict=True)
    with _figure(len(known) * _ROW + 0.9) as (figure, saved):
        axes = figure.subplots()
        values = [100.0 * share for share in shares]
        bars = axes.barh(range(len(known)), values, height=0.6, color="#c9d8e6", edgecolor=_DARK)
        axes.bar_label(bars, [tables.share(share) for share in shares], padding=3, fontsize=8)
        axes.axvline(0.0, color=_INK, linewidth=0.8)
        _name_rows(axes, names)
        axes.set_xlabel("share of the likelihood's precision, %")
        axes.margins(x=0.12)
    said = "; ".join(f"{name} {tables.share(share)}" for name, share in known)
    return Figure(_svg(saved), f"Bars of each site's share of the precision: {said}.")


def shifts(sites: Sequence[Site], names: Sequence[str]) -> Figure:
    """Draws how far each mean moves if a site is left out, a shape for each site.

    Args:
      sites: of which those with shifts are drawn; at least one, and at most as many as there are shapes.
      names: of the coefficients, in the order of the shifts.
    """
    known = [(site.name, site.shifts) for site in sites if site.shifts is not None]
    with _figure(len(names) * _ROW + 1.2) as (figure, saved):
        axes = figure.subplots()
        axes.axvline(0.0, color=_GREY, linewidth=0.8, linestyle="--")
        for (name, values), marker, colour in zip(known, _MARKERS, _COLOURS, strict=False):
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
        _name_rows(axes, names)
        axes.grid(axis="y", color="#e2e2e2", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("shift of the mean without the site, posterior sds")
        figure.legend(loc="outside upper right", ncols=4)
    said = []
    for name, values in known:
        far = max(range(len(names)), key=lambda index: abs(values[index]))
        said.append(f"without {name} {names[far]} moves most, by {values[far]:+.2f} sds")
    return Figure(_svg(saved), f"Shifts of every mean with one site left out: {'; '.join(said)}.")


def spending(rows: Sequence[Spending]) -> Figure:
    """Draws ε over releases, a panel for each relation, a line for each group of sites.

    Args:
      rows: at least one.
    """
    relations = list(dict.fromkeys(row.relation for row in rows))
    with _figure(3.2) as (figure, saved):
        panels = figure.subplots(1, len(relations), squeeze=False, sharex=True)[0]
        for panel, relation in zip(panels, relations, strict=True):
            _spending_panel(panel, [row for row in rows if row.relation == relation])
        panels[0].set_ylabel("ε, upper bound")
        handles, labels = panels[0].get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside upper right", ncols=3)
    said = []
    for row in rows[: 2 * len(_LINES)]:
        last = row.epsilon[-1] if row.epsilon else 0.0
        budget = f", promised {row.promised:g}" if row.promised is not None else ""
        count = row.releases[-1] if row.releases else 0
        said.append(
            f"{_sites(row.sites)}, {relation_words(row.relation)}: {tables.bound(last)} after "
            f"{_counted(count, 'release')}{budget}"
        )
    return Figure(_svg(saved), f"Epsilon over releases. {'; '.join(said)}.")


def participation(rounds: Sequence[Round], sites: Sequence[Site]) -> Figure | None:
    """Draws who answered at which version, who was missed, who joined and who left.

    Returns:
      None where there are too many sites or versions to be told apart, or none.
    """
    names = [site.name for site in sites]
    if not rounds or len(names) > MOST_ROWS or len(rounds) > _MOST_FOLDS:
        return None
    kinds = (
        ("answered", "o", _DARK, "clients"),
        ("turn missed", "x", _INK, "missing"),
        ("joined", ">", _INK, "added"),
        ("removed", "s", _INK, "removed"),
    )
    with _figure(len(names) * _ROW + 1.2) as (figure, saved):
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
        _name_rows(axes, names)
        _whole_numbers(axes.xaxis)
        axes.set_xlabel("version of the posterior")
        axes.margins(x=0.05)
        figure.legend(loc="outside upper right", ncols=4)
    said = "; ".join(f"{site.name} {_counted(site.answers, 'answer')}" for site in sites)
    return Figure(_svg(saved), f"Who answered at which version of the posterior: {said}.")


def reliability(groups: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws the share that came true against the predicted probability.

    Args:
      groups: each with rows, predicted and observed; bars are one standard error of a share, had the
        predictions been right.
    """
    with _figure(3.6) as (figure, saved):
        axes = figure.subplots()
        predicted = [float(group["predicted"]) for group in groups]
        observed = [float(group["observed"]) for group in groups]
        bars = [
            math.sqrt(p * (1.0 - p) / int(group["rows"]))
            for p, group in zip(predicted, groups, strict=True)
        ]
        axes.plot([0.0, 1.0], [0.0, 1.0], color=_INK, linewidth=0.8, linestyle="--")
        axes.errorbar(
            predicted, observed, bars, marker="o", markersize=4, linewidth=1.0, color=_DARK
        )
        axes.set(xlabel="predicted probability", ylabel="share that came true")
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal", anchor="W")
    said = "; ".join(
        f"{p:.2f} predicted, {o:.2f} came true" for p, o in zip(predicted, observed, strict=True)
    )
    return Figure(_svg(saved), f"Calibration by groups of the predicted probability: {said}.")


def relation_words(relation: str) -> str:
    """Writes a relation for people.

    >>> relation_words("add_remove")
    'add/remove'
    """
    return relation.replace("_", "/")


def _forest_panel(axes: Any, rows: Sequence[Coefficient]) -> None:
    """Draws the intervals of some coefficients."""
    places = range(len(rows))
    axes.axvline(0.0, color=_GREY, linewidth=0.8, linestyle="--")
    axes.hlines(
        places, [row.lower for row in rows], [row.upper for row in rows], _DARK, linewidth=1.6
    )
    axes.plot(
        [row.mean for row in rows], places, linestyle="", marker="o", markersize=5, color=_DARK
    )
    _name_rows(axes, [row.name for row in rows])


def _spending_panel(panel: Any, rows: Sequence[Spending]) -> None:
    """Draws one relation."""
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
            marker=_MARKERS[index % len(_MARKERS)],
            linestyle=_LINES[index % len(_LINES)],
            markersize=4,
            linewidth=1.4,
            color=_DARK if index == 0 else _INK,
            label=_sites(row.sites) if index < len(_LINES) else None,
        )
        top = max(top, *values)
    promised = [row.promised for row in rows if row.promised is not None]
    if promised:
        panel.axhline(promised[0], color=_INK, linewidth=1.2, linestyle=(0, (8, 3)))
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
    panel.set(xlabel="releases of a site", title=relation_words(rows[0].relation))
    _whole_numbers(panel.xaxis)


def _sites(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} sites"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + rest


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    """Puts names at the left, the first above; a frame without a line there."""
    axes.set_yticks(range(len(names)), list(names))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)


def _ratio_axis(axes: Any, ratio: str) -> None:
    """Adds the scale of exp(coefficient) above, in numbers that people count in."""
    steps = _steps(*axes.get_xlim())
    above = axes.secondary_xaxis("top")
    above.set_xticks([math.log(value) for value in steps], [f"{value:g}" for value in steps])
    above.set_xlabel(f"{ratio} ratio")


def _log_scale(axes: Any, low: float, high: float) -> None:
    """Makes the ordinate logarithmic, with numbers that people count in."""
    steps = _steps(math.log(low), math.log(high))
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_yticks(steps, [f"{value:g}" for value in steps])
    axes.set_yticks([], minor=True)


def _steps(low: float, high: float) -> list[float]:
    """Returns 1, 2, 5, 10, … between e^low and e^high, or fewer of them: nine at most."""
    steps = [
        float(f"{value}e{power}")
        for power in range(-15, 16)
        for value in (1, 2, 5)
        if low <= math.log(value) + power * math.log(10.0) <= high
    ]
    if len(steps) > 9:
        steps = [value for value in steps if f"{value:e}".startswith("1.0")]
    while len(steps) > 9:
        steps = steps[::2]
    return steps


def _svg(saved: io.StringIO) -> str:
    """Returns the element alone: no prologue, which names a document elsewhere."""
    text = saved.getvalue()
    return text[text.index("<svg") :].strip()


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=8))


@contextlib.contextmanager
def _figure(height: float) -> Iterator[tuple[Any, io.StringIO]]:
    """Yields a figure of its own, without global state or display, and where its SVG will be."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise errors.ConfigError(
            "a report needs matplotlib, which is not installed", "pip install 'fedvi[report]'"
        ) from None
    saved = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Canvas(figsize=(_WIDTH, max(height, 1.4)), layout="constrained")
        yield figure, saved
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # The reader's fonts draw a letter that those of this machine lack.
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure.savefig(saved, format="svg", metadata=nothing)
