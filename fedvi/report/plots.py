"""Plots for files; needs the extra `report`. Every function takes plain values."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvi import errors

__all__ = ["epsilon_over_rounds"]


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
    # A figure of its own: no global state, no display.
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, values in epsilon.items():
        points = [(r, e) for r, e in zip(rounds, values, strict=True) if e is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axes.axhline(budget, color="black", linewidth=0.8, linestyle="--", label="promised")
    axes.set(xlabel="rounds", ylabel="ε per client", title=title)
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False)
    try:
        figure.savefig(path)
    except OSError as error:
        raise errors.ConfigError(
            f"--plot {path} cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from None
