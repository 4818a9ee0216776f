"""Plots for files; needs the extra `report`. Every function takes plain values."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvi import errors

__all__ = ["epsilon_over_rounds", "reliability"]


def epsilon_over_rounds(
    rounds: Sequence[int],
    epsilon: Mapping[str, Sequence[float | None]],
    budget: float,
    title: str,
    path: Path,
) -> None:
    """Draws ε against rounds, one line for each accountant, and the budget.

    Args:
      rounds: the abscissae.
      epsilon: accountant → ε at each of ``rounds``; None where it has no number.
      budget: the promised ε.
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


def reliability(
    predicted: Sequence[float],
    observed: Sequence[float],
    rows: Sequence[int],
    title: str,
    path: Path,
) -> None:
    """Draws the share that came true against the predicted probability, a point for each group.

    Bars are one standard error of a share if the predictions were right, √(p(1 − p)/rows).

    Args:
      predicted: mean predicted probability of each group.
      observed: share of it that came true.
      rows: how many records it has.
      title: above the plot.
      path: .png, .svg or .pdf.

    Raises:
      ConfigError: as ``epsilon_over_rounds`` does.
    """
    figure = _figure(path)
    axes = figure.subplots()
    bars = [math.sqrt(p * (1.0 - p) / count) for p, count in zip(predicted, rows, strict=True)]
    axes.plot([0.0, 1.0], [0.0, 1.0], color="black", linewidth=0.8, linestyle="--")
    axes.errorbar(predicted, observed, bars, marker="o", markersize=4, linewidth=1.0)
    axes.set(xlabel="predicted probability", ylabel="share that came true", title=title)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    _save(figure, path)


def _figure(path: Path) -> Any:
    """Returns a figure of its own: no global state, no display."""
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
