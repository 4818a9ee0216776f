"""Draws plots to files; needs the extra `report`. Every function takes plain values."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvi import errors

__all__ = ["epsilon_over_rounds", "reliability", "smallest_effects", "sweep", "topics"]

_RATIOS = (1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)


def epsilon_over_rounds(
    rounds: Sequence[int],
    epsilon: Mapping[str, Sequence[float | None]],
    budget: float,
    title: str,
    path: Path,
) -> None:
    """Draws ε against rounds, one line for each accountant, and the budget.

    Args:
      rounds: the values of the x-axis.
      epsilon: accountant → ε at each of ``rounds``; None where it has none.
      title: above the plot; names the relation, δ and any mark.
      path: .png, .svg or .pdf.

    Raises:
      ConfigError: matplotlib is not installed, the suffix is unknown, or the file cannot be written.
    """
    figure = _figure(path)
    axes = figure.subplots()
    for name, values in epsilon.items():
        points = [(r, e) for r, e in zip(rounds, values, strict=True) if e is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axes.axhline(budget, color="black", linewidth=0.8, linestyle="--", label="promised")
    axes.set(xlabel="rounds", ylabel="ε per client", title=title)
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False)
    _save(figure, path)


def smallest_effects(
    views: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    what: str,
    title: str,
    path: Path,
    is_ratio: bool = False,
) -> None:
    """Draws the smallest detectable effect against ε, a panel for each view.

    Args:
      views: view → records, in words → (ε, effect) of each study; infinite effects are left out.
      what: label of the y-axis.
      title: above the plot.
      path: .png, .svg or .pdf.
      is_ratio: whether effects are ratios above 1, drawn on a logarithmic scale.

    Raises:
      ConfigError: as ``epsilon_over_rounds``.
    """
    figure = _figure(path)
    panels = figure.subplots(1, len(views), sharey=True, squeeze=False)[0]
    for axes, (view, lines) in zip(panels, views.items(), strict=True):
        for name, points in lines.items():
            known = [point for point in points if math.isfinite(point[1])]
            if known:
                axes.plot(*zip(*known, strict=True), marker="o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="ε", title=f"view {view}")
    if is_ratio:  # one weak study would flatten all others' lines against 1
        drawn = itertools.chain(*(line for lines in views.values() for line in lines.values()))
        sizes = [size for _, size in drawn if math.isfinite(size)] or [1.0]
        least, most = min(sizes) / 1.05, max(sizes) * 1.05
        ticks = [tick for tick in _RATIOS if least <= tick <= most]
        panels[0].set_yscale("log")
        panels[0].set_ylim(least, most)
        panels[0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        panels[0].set_yticks([], minor=True)
    panels[0].set_ylabel(what)
    panels[-1].legend(frameon=False)
    figure.suptitle(title)
    _save(figure, path)


def sweep(
    settings: Sequence[str],
    coefficients: Mapping[str, Sequence[Mapping[str, Any]]],
    title: str,
    path: Path,
) -> None:
    """Draws the coefficients of all runs of a sweep, a panel each: means and intervals by setting.

    The pooled fit's mean, if there is one, is a line across its setting.

    Args:
      settings: the settings in words, in the order of the x-axis.
      coefficients: name → its rows, each with ``setting``, an index, and ``mean``, ``lower``, ``upper``
        and, if there is one, ``pooled_mean``. The first twelve are drawn.
      title: above the plot.
      path: .png, .svg or .pdf.

    Raises:
      ConfigError: as ``epsilon_over_rounds``.
    """
    figure = _figure(path)
    shown = dict(list(coefficients.items())[:12])
    columns = min(3, len(shown))
    lines = math.ceil(len(shown) / columns)
    figure.set_size_inches(max(6.4, 2.6 * columns), max(3.0, 2.0 * lines + 0.6))
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False).ravel()
    for axes in panels[len(shown) :]:
        axes.axis("off")
    for axes, (name, rows) in zip(panels, shown.items(), strict=False):
        for index in range(len(settings)):
            runs = [row for row in rows if row["setting"] == index]
            for number, row in enumerate(runs):
                # Side by side, within less than half of the setting's width.
                x = index + 0.4 * ((number + 0.5) / len(runs) - 0.5)
                axes.plot([x, x], [row["lower"], row["upper"]], color="C0", linewidth=0.8)
                axes.plot([x], [row["mean"]], color="C0", marker="o", markersize=3)
            pooled = [row["pooled_mean"] for row in runs if row.get("pooled_mean") is not None]
            if pooled:
                axes.hlines(pooled[0], index - 0.3, index + 0.3, color="black", linewidth=0.8)
        axes.axhline(0.0, color="grey", linewidth=0.5, linestyle=":")
        axes.set_title(name, fontsize="small")
        axes.set_xticks(range(len(settings)), settings)
        axes.set_xlim(-0.5, len(settings) - 0.5)
    figure.suptitle(title)
    _save(figure, path)


def reliability(
    predicted: Sequence[float],
    observed: Sequence[float],
    rows: Sequence[int],
    title: str,
    path: Path,
) -> None:
    """Draws the observed share against the predicted probability, a point for each group.

    Bars are one standard error of a share if the predictions were right, √(p(1 − p)/rows).

    Args:
      predicted: mean predicted probability of each group.
      observed: share of each group in which the outcome occurred.
      rows: number of records in each group.
      path: .png, .svg or .pdf.

    Raises:
      ConfigError: as ``epsilon_over_rounds``.
    """
    figure = _figure(path)
    axes = figure.subplots()
    bars = [math.sqrt(p * (1.0 - p) / count) for p, count in zip(predicted, rows, strict=True)]
    axes.plot([0.0, 1.0], [0.0, 1.0], color="black", linewidth=0.8, linestyle="--")
    axes.errorbar(predicted, observed, bars, marker="o", markersize=4, linewidth=1.0)
    axes.set(xlabel="predicted probability", ylabel="share that came true", title=title)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    _save(figure, path)


def topics(
    told: Sequence[Sequence[tuple[str, float]]],
    title: str,
    path: Path,
    columns: int = 5,
) -> None:
    """Draws bars of each topic's most probable words, a panel for each topic, on one scale.

    Args:
      told: each topic's words and their probabilities, as returned by ``fedvi.models.lda.top_words``.
      title: above the plot; names the relation, ε and δ, and any mark.
      path: .png, .svg or .pdf.
      columns: number of panels in a row, at least 1.

    Raises:
      ConfigError: there is no topic or no word, or ``columns`` is out of its range; or as
        ``epsilon_over_rounds``.
    """
    if not told or not all(told):
        raise errors.ConfigError("there is no topic to draw, or one without words")
    if columns < 1:
        raise errors.ConfigError(f"columns is {columns}, expected at least 1")
    columns = min(columns, len(told))
    rows = -(-len(told) // columns)
    figure = _figure(path)
    figure.set_size_inches(2.2 * columns, 0.5 + rows * (0.4 + 0.18 * max(map(len, told))))
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).flat
    for number, panel in enumerate(panels):
        if number >= len(told):
            panel.set_axis_off()
            continue
        words, shares = zip(*told[number], strict=True)
        places = range(len(words))
        panel.barh(places, shares)
        # By position, since a careless vocabulary may contain a word twice.
        panel.set_yticks(places, words, fontsize=7, parse_math=False)
        panel.invert_yaxis()
        panel.tick_params(axis="x", labelsize=7)
        panel.set_title(f"topic {number}", fontsize=8)
    figure.supxlabel("probability of the word in the topic", fontsize=8)
    figure.suptitle(title, fontsize=9)
    _save(figure, path)


def _figure(path: Path) -> Any:
    """Returns a figure without global state or display."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise errors.ConfigError(
            "a plot needs matplotlib, which is not installed", "pip install 'fedvi[report]'"
        ) from None
    if path.suffix not in (".pdf", ".png", ".svg"):
        raise errors.ConfigError(
            f"--plot {path} ends in {path.suffix!r}, expected .png, .svg or .pdf"
        )
    return Figure(figsize=(6.4, 4.0), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise errors.ConfigError(
            f"--plot {path} cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from None
