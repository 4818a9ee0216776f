"""Draws the picture of the demo: what two runs found beside the pooled fit, as docs/demo.svg.

fedvi simulate examples/heart-disease/study.toml --pooled --quiet --out run
fedvi simulate examples/heart-disease/study-sums.toml --pooled --quiet --out run-sums
python docs/demo_picture.py run run-sums
"""

import json
import math
import sys
from html import escape
from pathlib import Path

# Narrow, with large letters, so that they can be read on a phone.
_WIDTH, _LEFT, _ROW, _TOP = 560, 130, 46, 106
_LOW, _HIGH = 0.3, 25.0
_TICKS = (0.5, 1, 2, 5, 10, 20)
_SERIES = (
    ("#8a8a8a", "records pooled, no privacy"),
    ("#0b4f8a", "server sees every answer"),
    ("#b35900", "server sees masked sums alone"),
)


def _x(ratio: float) -> float:
    """The place of an odds ratio on the logarithmic axis; beyond its ends, at them."""
    share = math.log(min(max(ratio, _LOW), _HIGH) / _LOW) / math.log(_HIGH / _LOW)
    return _LEFT + share * (_WIDTH - _LEFT - 20)


def _bar(y: float, mean: float, sd: float, colour: str) -> str:
    low, middle, high = (math.exp(mean + z * sd) for z in (-1.96, 0.0, 1.96))
    return (
        f'<path d="M{_x(low):.1f} {y}H{_x(high):.1f}" stroke="{colour}" stroke-width="3"/>'
        f'<circle cx="{_x(middle):.1f}" cy="{y}" r="4" fill="{colour}"/>'
    )


def picture(alone: list[dict[str, object]], sums: list[dict[str, object]]) -> str:
    """Returns the SVG of the coefficients of two runs, each with the pooled fit beside it."""
    rows = [(a, b) for a, b in zip(alone, sums, strict=True) if a["name"] != "(Intercept)"]
    height = _TOP + _ROW * len(rows) + 34
    said = "Odds ratios of eight effects with 95 % intervals: pooled, and from two private runs"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="15" role="img">'
        f"<title>{said}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (colour, name) in enumerate(_SERIES):
        y = 18 + 22 * index
        parts.append(f'<circle cx="25" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="38" y="{y + 5}" fill="#1a1a1a">{name}</text>')
    for tick in _TICKS:
        colour = "#444444" if tick == 1 else "#dddddd"
        parts.append(f'<path d="M{_x(tick):.1f} {_TOP - 14}V{height - 30}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{_x(tick):.1f}" y="{height - 12}" text-anchor="middle">{tick}</text>'
        )
    parts.append(f'<text x="20" y="{height - 12}">odds ratio</text>')
    for index, (a, b) in enumerate(rows):
        y = _TOP + _ROW * index
        name, unit = str(a["name"]), str(a["unit"]).partition(" from ")[0]
        parts.append(f'<text x="20" y="{y + 10}">{escape(name)}</text>')
        parts.append(
            f'<text x="20" y="{y + 26}" font-size="13" fill="#666666">{escape(unit)}</text>'
        )
        found = ((a, "pooled_mean", "pooled_sd"), (a, "mean", "sd"), (b, "mean", "sd"))
        for place, ((row, mean, sd), (colour, _)) in enumerate(zip(found, _SERIES, strict=True)):
            parts.append(_bar(y + 2 + 10 * place, float(row[mean]), float(row[sd]), colour))  # type: ignore[arg-type]
    return "\n".join([*parts, "</svg>", ""])


def main(alone: str, sums: str) -> None:
    found = [json.loads(Path(run, "result.json").read_text("utf-8")) for run in (alone, sums)]
    path = Path(__file__).with_name("demo.svg")
    path.write_text(picture(*(one["coefficients"] for one in found)), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
