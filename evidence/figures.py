"""Draws a line chart as SVG: few words, colours and markers that the colour-blind tell apart."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Chart", "Line", "svg"]

# Okabe and Ito's colours; the yellow one is left out, since it is too light for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
_DASHES = ("", "7 4", "2 3")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 500, 350, 70, 30, 56, 56
_LEGEND = 22
# How wide a figure is on the page, in pixels; narrower screens shrink it.
_SHOWN = 560
# Of names at the x axis, where they are long and stand aslant: room below it for each letter.
_ASLANT = 4.8
# Between two numbers at the x axis.
_ROOM = 44


@dataclass(frozen=True)
class Line:
    """One line: a list of values at each x, whose mean is drawn, and their sd as a bar.

    Attributes:
      name: in the legend.
      points: (x, values by seed).
      look: number of colour and marker; left out, the line's own.
      dash: 0 solid, 1 dashed, 2 dotted.
    """

    name: str
    points: Sequence[tuple[float, Sequence[float]]]
    look: int | None = None
    dash: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart: relation, view and what is not private; what stands at its axes; its lines.

    ``at`` is a level that is drawn across, such as that of a fit that is not private. With ``x_names``
    x is no number: the k-th name stands at k, and points are not joined. ``apart`` moves each line by so
    much from the one before, so that bars at the same x can be told apart.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    at: float | None = None
    at_name: str = ""
    x_names: Sequence[str] = ()
    apart: float = 0.0


class _Axis:
    """Maps values to places between two ends."""

    def __init__(
        self, values: Sequence[float], is_log: bool, ends: tuple[float, float], ticks: int
    ) -> None:
        self.is_log = is_log
        low, high = min(values), max(values)
        if is_log:
            low, high = math.log10(low), math.log10(high)
        if high - low < 1e-12:
            low, high = low - 0.5, high + 0.5
        margin = 0.04 * (high - low)
        self._low, self._high, self._ends = low - margin, high + margin, ends
        self.ticks = self._ticks(ticks)

    def place(self, value: float) -> float:
        value = math.log10(value) if self.is_log else value
        share = (value - self._low) / (self._high - self._low)
        return self._ends[0] + share * (self._ends[1] - self._ends[0])

    def _ticks(self, count: int) -> list[float]:
        if self.is_log:
            span = self._high - self._low
            step = max(1, math.ceil(span / count))
            whole = [10.0**e for e in range(math.ceil(self._low), math.floor(self._high) + 1, step)]
            if len(whole) > 2:
                return whole
            steps = (1, 2, 5) if span > 0.6 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
            return [
                m * 10.0**e
                for e in range(math.floor(self._low), math.ceil(self._high) + 1)
                for m in steps
                if self._low <= math.log10(m * 10.0**e) <= self._high
            ]
        rough = (self._high - self._low) / count
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough)
        first = math.ceil(self._low / step)
        return [step * k for k in range(first, math.floor(self._high / step) + 1)]


def _told(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        power = round(math.log10(value)) if value > 0 else None
        if power is not None and math.isclose(value, 10.0**power):
            return f"1e{power}"
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.0e}"
    return (
        f"{value:,.10g}".replace("-", "−") if abs(value) >= 1 else f"{value:.4g}".replace("-", "−")
    )


def _marker(look: int, x: float, y: float, colour: str) -> str:
    match look % 4:
        case 0:
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
        case 1:
            return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'
        case 2:
            shape = f"M{x:.1f} {y - 5:.1f}l5 9h-10z"
        case _:
            shape = f"M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z"
    return f'<path d="{shape}" fill="{colour}"/>'


def svg(chart: Chart, alt: str) -> str:
    """Returns the chart; the same for the same numbers, on every machine."""
    drawn = [
        (line, [(x, [v for v in values if math.isfinite(v)]) for x, values in line.points])
        for line in chart.lines
    ]
    xs = [x for _, points in drawn for x, values in points if values]
    ys = [statistics.fmean(values) for _, points in drawn for _, values in points if values]
    spreads = [
        (statistics.fmean(v), statistics.stdev(v))
        for _, points in drawn
        for _, v in points
        if len(v) > 1
    ]
    ys += [m + s for m, s in spreads] + [m - s for m, s in spreads if not chart.log_y or m > 2 * s]
    if chart.at is not None:
        ys.append(chart.at)
    right = _WIDTH - _RIGHT
    columns = (
        2 if max(len(name) for name in (chart.at_name, *(n.name for n in chart.lines))) < 25 else 1
    )
    count = len(chart.lines) + (chart.at is not None)
    named = {float(k): name for k, name in enumerate(chart.x_names)}
    room = (right - _LEFT) / max(1, len(named))
    is_aslant = any(8.0 * len(name) > room for name in chart.x_names)
    longest = max((len(name) for name in chart.x_names), default=0)
    below = _HEIGHT + (round(_ASLANT * longest) if is_aslant else 0)
    height = below + 4 + _LEGEND * math.ceil(count / columns)
    across = _Axis([*xs, -0.5, len(named) - 0.5] if named else xs, chart.log_x, (_LEFT, right), 6)
    # What was measured is what stands at the axis, where there is room.
    places = sorted({(across.place(x), x) for x in xs})
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(places)]
    if not named and len(places) < 8 and min(gaps, default=0.0) >= _ROOM:
        across.ticks = [x if x == round(x) else float(f"{x:.3g}") for _, x in places]
    up = _Axis(ys, chart.log_y, (_HEIGHT - _BOTTOM, _TOP), 5)
    floor = _HEIGHT - _BOTTOM
    scale = " (log scale)" if chart.log_y else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SHOWN}" '
        f'height="{_SHOWN * height / _WIDTH:.0f}" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="16"><title>{escape(alt)}</title>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" fill="#1a1a1a">{escape(chart.y)}{scale}</text>',
        f'<text x="8" y="38" font-size="14" fill="#555555">{escape(chart.title)}</text>',
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{floor + 41 + below - _HEIGHT}" text-anchor="middle" '
        f'fill="#333333">{escape(chart.x)}</text>',
    ]
    for tick in up.ticks:
        y = up.place(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e2e2e2"/>')
        parts.append(
            f'<text x="{_LEFT - 7}" y="{y + 5:.1f}" text-anchor="end" fill="#333333">{_told(tick)}</text>'
        )
    for tick in named or across.ticks:
        x, y, size = across.place(tick), floor + 20, 14 if named else 16
        turned = f' transform="rotate(-40 {x:.1f} {y})"' if is_aslant else ""
        parts.append(f'<path d="M{x:.1f} {floor}v5" stroke="#333333"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y}" text-anchor="{"end" if is_aslant else "middle"}" '
            f'font-size="{size}" fill="#333333"{turned}>{escape(named.get(tick, _told(tick)))}</text>'
        )
    parts.append(f'<path d="M{_LEFT} {floor}H{right}" stroke="#333333"/>')
    legend = []
    if chart.at is not None:
        y = up.place(chart.at)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#777777" stroke-dasharray="4 4"/>'
        )
        legend.append((chart.at_name, "#777777", "4 4", None))
    for index, (line, points) in enumerate(drawn):
        look = index if line.look is None else line.look
        colour, dash = _COLOURS[look % len(_COLOURS)], _DASHES[line.dash]
        legend.append((line.name, colour, dash, look))
        path, marks = "", []
        for x, values in points:
            if not values:
                continue
            mean = statistics.fmean(values)
            place = across.place(x) + chart.apart * (index - (len(drawn) - 1) / 2.0)
            path += f"{'L' if path else 'M'}{place:.1f} {up.place(mean):.1f}"
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            if sd and (not chart.log_y or mean > 2 * sd):
                marks.append(
                    f'<path d="M{place:.1f} {up.place(mean - sd):.1f}V{up.place(mean + sd):.1f}" '
                    f'stroke="{colour}" stroke-width="1.2"/>'
                )
            marks.append(_marker(look, place, up.place(mean), colour))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        if not named:
            parts.append(
                f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'
            )
        parts += marks
    for index, (name, colour, dash, look) in enumerate(legend):
        x = 14 + (index % columns) * (_WIDTH // 2 - 4)
        y = below + 8 + _LEGEND * (index // columns)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        if not named or look is None:
            parts.append(f'<path d="M{x} {y}h28" stroke="{colour}" stroke-width="2"{dashed}/>')
        if look is not None:
            parts.append(_marker(look, x + 14, y, colour))
        parts.append(f'<text x="{x + 34}" y="{y + 5}" fill="#1a1a1a">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
