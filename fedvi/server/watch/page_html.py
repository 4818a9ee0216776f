"""Renders the page's HTML from its contents, by the template in assets/."""

import functools
import importlib.resources
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.privacy.spoken import up
from fedvi.server.watch.public_values import printable, remarks, span, state_of, where

__all__ = ["check_installed", "render"]

# The most names listed before the rest is counted.
_MOST_NAMES = 6
# The most lines that can be told apart in the plot.
_MOST_LINES = 4

# The plot's box, in its own units, scaled down in a narrow window.
_WIDTH, _HEIGHT = 480.0, 230.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 120.0, 14.0, 40.0
_LABEL_WIDTH, _LABEL_HEIGHT = 44.0, 16.0


def check_installed() -> None:
    """Checks that the page can be rendered.

    Raises:
      ConfigError: jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise errors.ConfigError(
            "--page needs jinja2, and it is not installed",
            "run `pip install 'fedvi[report]'`, or use `fedvi watch`",
        ) from error


def render(run: dict[str, Any]) -> str:
    """Renders the page.

    Args:
      run: the contents from ``page_content.Contents``.
    """
    return _template().render(run=run, said=_said(run), plot=_plot(run), step=_scale(run))


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Outside text cannot change the writing direction of the page either.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters.update(
        number=_number,
        bound=_bound,
        span=span,
        names=_names,
        clock=_clock,
        day=lambda seconds: time.strftime("%Y-%m-%d", time.gmtime(seconds)),
        where=where,
        remarks=remarks,
        state_of=state_of,
    )
    assets = importlib.resources.files("fedvi.server").joinpath("assets")
    return environment.from_string(assets.joinpath("page.html").read_text("utf-8"))


def _said(run: dict[str, Any]) -> str:
    """Describes the run's status; the text changes only when a screen reader should read news out."""
    status = run["status"].replace("_", " ")
    if run["reason"]:
        status += f" ({run['reason']})"
    return f"{status}, {where(run)}, version {run['version']}"


def _scale(run: dict[str, Any]) -> float:
    """Returns the ε at the right end of a meter: the larger of the budget and the most spent."""
    spent = [row["epsilon"] for row in run["clients"] if row["epsilon"] is not None]
    return max([run["epsilon_budget"] or 0.0, *filter(math.isfinite, spent)]) or 1.0


class _Line(NamedTuple):
    """One curve; if there are several, each ends in a letter that the caption explains."""

    letter: str
    name: str
    value: float
    points: str
    dash: str
    end: tuple[float, float]
    label: float


class _Plot(NamedTuple):
    """Coordinates of the plot's elements in its box."""

    lines: tuple[_Line, ...]
    others: int
    budget: float | None
    budget_y: float
    rights: tuple[tuple[float, int], ...]
    ups: tuple[tuple[float, float], ...]
    left: float
    right: float
    top: float
    bottom: float
    width: float
    height: float


_DASHES = ("", "7 4", "2 4", "10 4 2 4")


def _plot(run: dict[str, Any]) -> _Plot | None:
    """Places the curves of ε against releases; None before the first release, or without protection."""
    curves = [c for c in run["spending"] if all(math.isfinite(e) for _, e in c["points"])]
    if not curves:
        return None
    curves = sorted(curves, key=lambda curve: -curve["points"][-1][1])
    shown, budget = curves[:_MOST_LINES], run["epsilon_budget"]
    most = max(count for curve in curves for count, _ in curve["points"])
    most = max(most, run["rounds_planned"] or 0, 1)
    ticks = _ticks(max(budget or 0.0, curves[0]["points"][-1][1]))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(count: int) -> float:
        return round(_LEFT + wide * count / most, 1)

    def y(epsilon: float) -> float:
        return round(_HEIGHT - _BOTTOM - high * epsilon / ticks[-1], 1)

    ends = [(x(curve["points"][-1][0]), y(curve["points"][-1][1])) for curve in shown]
    taken = ends if budget is None else [(_WIDTH - _RIGHT, y(budget)), *ends]
    labels = _apart(taken)[len(taken) - len(ends) :]
    lines = tuple(
        _Line(
            letter if len(shown) > 1 else "",
            _group(curve["clients"], len(run["clients"])),
            curve["points"][-1][1],
            " ".join(f"{x(count)},{y(epsilon)}" for count, epsilon in [(0, 0.0), *curve["points"]]),
            dash,
            end,
            label,
        )
        for letter, curve, dash, end, label in zip(
            "abcd", shown, _DASHES, ends, labels, strict=False
        )
    )
    return _Plot(
        lines,
        len(curves) - len(shown),
        budget,
        0.0 if budget is None else y(budget),
        tuple((x(count), count) for count in sorted({0, round(most / 2), most})),
        tuple((y(value), value) for value in ticks),
        _LEFT,
        _WIDTH - _RIGHT,
        _TOP,
        _HEIGHT - _BOTTOM,
        _WIDTH,
        _HEIGHT,
    )


def _ticks(most: float) -> list[float]:
    """Returns three to five round numbers from 0 on, the last at or above ``most``.

    >>> _ticks(1.0), _ticks(0.34)
    ([0.0, 0.5, 1.0], [0.0, 0.1, 0.2, 0.3, 0.4])
    """
    if most <= 0.0:
        return [0.0, 0.5, 1.0]
    unit = 10.0 ** math.floor(math.log10(most))
    step = next(
        s * unit for s in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if math.ceil(most / (s * unit) - 1e-9) <= 4
    )
    return [round(step * index, 12) for index in range(math.ceil(most / step - 1e-9) + 1)]


def _apart(ends: Sequence[tuple[float, float]]) -> list[float]:
    """Returns heights for labels beside points; moves later labels down until none overlap."""
    placed: list[tuple[float, float]] = []
    for x, y in ends:
        while any(abs(x - u) < _LABEL_WIDTH and abs(y - v) < _LABEL_HEIGHT for u, v in placed):
            y += 1.0
        placed.append((x, y))
    return [y for _, y in placed]


def _names(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Lists names, and counts the rest if there are too many.

    >>> _names(["north", "south"]), _names(list("abcdefgh"))
    ('north, south', 'a, b, c, d, e and 3 more')
    """
    if len(names) <= most:
        return ", ".join(names)
    shown = max(1, most - 1)
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def _group(names: Sequence[str], of: int) -> str:
    return f"all {of} clients" if len(names) == of > 1 else _names(names, 3)


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if math.isfinite(value) else "∞"


def _bound(value: float | None, digits: int = 4) -> str:
    """Formats an upper bound, rounded up so that it stays a bound."""
    return _number(value) if value is None else up(value, digits)


def _clock(seconds: float) -> str:
    """Formats a time in UTC, since the reader's time zone may differ from the server's."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds))
