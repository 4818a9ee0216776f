"""Provides the style and axes of a report's figures, and converts them to SVG; needs the extra `report`."""

import contextlib
import contextvars
import functools
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec

from fedvi import errors

__all__ = [
    "COLOURS",
    "DARK",
    "GREY",
    "INK",
    "LINES",
    "MARKERS",
    "MOST_ROWS",
    "MOST_SITES",
    "ROW",
    "Figure",
    "as_svg",
    "drawn_twice",
    "forget_figures",
    "is_narrow",
    "log_scale",
    "name_rows",
    "paper",
    "ratio_axis",
    "whole_numbers",
]

MOST_ROWS, MOST_SITES = 24, 40
"""The most coefficients, or sites, in a figure: a taller one would leave half a printed page empty."""

INK, DARK, GREY = "#1a1a1a", "#0b4f8a", "#6b6b6b"
# Widths for a page and for a phone, in inches, with the same size of letters.
_WIDTH, _NARROW = 7.2, 4.1
ROW = 0.26
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# As dark as ink on paper; they differ in shape.
COLOURS = ("#0b4f8a", "#8a3a00", "#1f6b2c", "#5b2a86", "#7a1f3d", "#1a1a1a", "#4a5a00", "#00606b")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)))
_STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.unicode_minus": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Makes the file the same for the same run.
    "svg.hashsalt": "fedvi",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Figure(NamedTuple):
    """A figure.

    Attributes:
      svg: the text of an SVG file that fetches nothing.
      told: a description in words, for readers who cannot see the figure.
      narrow: the SVG for a phone; empty if there is none.
    """

    svg: str
    told: str
    narrow: str = ""

    @property
    def is_tall(self) -> bool:
        """Whether it is higher than wide, as a figure of many rows is; print gives it more room."""
        size = re.search(r'<svg[^>]*? width="([\d.]+)pt" height="([\d.]+)pt"', self.svg)
        return size is not None and float(size[2]) > float(size[1])


P = ParamSpec("P")
_kept: dict[tuple[Callable[..., Figure], str], Figure] = {}
_MOST_KEPT = 64
_is_narrow: contextvars.ContextVar[bool] = contextvars.ContextVar("is_narrow", default=False)


def is_narrow() -> bool:
    """Whether the current figure is drawn for a phone."""
    return _is_narrow.get()


def drawn_twice(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Makes a function draw its figure again at a phone's width, so that letters stay legible."""

    @functools.wraps(draw)
    def twice(*args: P.args, **kwargs: P.kwargs) -> Figure:
        # A page, its text and its first sheet share figures. Values have no hash if lists are among them.
        values = draw, repr((args, kwargs))
        found = _kept.get(values)
        if found is None:
            wide = draw(*args, **kwargs)
            token = _is_narrow.set(True)
            try:
                found = wide._replace(narrow=draw(*args, **kwargs).svg)
            finally:
                _is_narrow.reset(token)
            # Threads of a live page draw side by side, so another may have made room already.
            while len(_kept) >= _MOST_KEPT:
                _kept.pop(next(iter(_kept)), None)
            _kept[values] = found
        return found

    return twice


def forget_figures() -> None:
    """Makes figures that were drawn be drawn again."""
    _kept.clear()


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Puts names at the left, the first on top, and removes the frame's line there."""
    if is_narrow():
        names = [_broken(name) for name in names]
    axes.set_yticks(range(len(names)), list(names))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)


def _broken(name: str) -> str:
    """Breaks a name into two lines at blanks, and truncates longer lines."""
    lines = textwrap.wrap(name, 22, break_long_words=False, max_lines=2, placeholder=" …")
    return "\n".join(line if len(line) <= 24 else f"{line[:23]}…" for line in lines)


def ratio_axis(axes: Any, ratio: str) -> None:
    """Adds the scale of exp(coefficient) at the top, with round numbers."""
    low, high = axes.get_xlim()
    steps = _steps(low, high, most=6 if is_narrow() else 9)
    above = axes.secondary_xaxis("top")
    above.set_xticks([math.log(value) for value in steps], [f"{value:g}" for value in steps])
    above.set_xlabel(f"{ratio} ratio")


def log_scale(axes: Any, low: float, high: float) -> None:
    """Makes the y-axis logarithmic, with round numbers."""
    steps = _steps(math.log(low), math.log(high))
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_yticks(steps, [f"{value:g}" for value in steps])
    axes.set_yticks([], minor=True)


def _steps(low: float, high: float, most: int = 9) -> list[float]:
    """Returns 1, 2, 5, 10, … between e^low and e^high, or fewer of them: ``most``. 1 stays among them."""
    steps = [
        float(f"{value}e{power}")
        for power in range(-15, 16)
        for value in (1, 2, 5)
        if low <= math.log(value) + power * math.log(10.0) <= high
    ]
    if len(steps) > most:
        steps = [value for value in steps if f"{value:e}".startswith("1.0")]
    while len(steps) > most:
        steps = steps[steps.index(1.0) % 2 if 1.0 in steps else 0 :: 2]
    return steps


def as_svg(saved: io.StringIO) -> str:
    """Returns only the <svg> element, without the prologue, which refers to an external document."""
    text = saved.getvalue()
    return text[text.index("<svg") :].strip()


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=8))


@contextlib.contextmanager
def paper(height: float) -> Iterator[tuple[Any, io.StringIO]]:
    """Yields a figure without global state or display, and the buffer for its SVG."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise errors.ConfigError(
            "a report needs matplotlib, which is not installed", "pip install 'fedvi[report]'"
        ) from None
    saved = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Canvas(
            figsize=(_NARROW if is_narrow() else _WIDTH, max(height, 1.4)), layout="constrained"
        )
        yield figure, saved
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # The reader's fonts draw letters that are missing here.
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure.savefig(saved, format="svg", metadata=nothing)
