"""What an object says of itself: sentences and tables as plain text for a terminal, as HTML for a notebook.

Whoever writes one puts in public things alone: no loss, norm, record or key.
"""

import dataclasses
import decimal
import html
import math
import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Speaks", "Summary", "Table", "facts", "up"]

_GAP = 2
# A column of words is folded to no less.
_LEAST = 12


class Table(NamedTuple):
    """A table of cells.

    Attributes:
      names: of the columns; all empty for a table without a head.
      rows: cells, as texts.
      words: which columns hold words, by place; all others hold numbers.
      title: above it; or empty.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    title: str = ""


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Makes a table of (what, value) without a head; what is empty is left out."""
    return Table(("", ""), tuple(row for row in rows if row[1]), (0, 1))


def up(value: float, digits: int = 4) -> str:
    """Formats an upper bound such as ε: rounded up, so that what is printed still holds.

    >>> up(0.471101), up(4.0), up(float("inf"))
    ('0.4712', '4', '∞')
    """
    if not math.isfinite(value):
        return "∞"
    rounded = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(rounded.create_decimal(repr(float(value)))):.{digits}g}"


@dataclasses.dataclass(frozen=True, repr=False)
class Summary:
    """Sentences and tables, the most important first; printed, or shown by a notebook.

    Attributes:
      title: of what.
      lines: sentences.
      tables: below them.
      warnings: what must not be overlooked; each begins with "warning:".

    >>> table = Table(("effect", "mean"), (("age", "0.50"), ("sex", "-1.25")))
    >>> Summary("Study", ("one effect stands out",), (table,), ("noise from a seed",))
    Study
    warning: noise from a seed
    one effect stands out
    <BLANKLINE>
    effect   mean
    ─────────────
    age      0.50
    sex     -1.25
    """

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()

    def text(self, width: int | None = None) -> str:
        """Returns it as text.

        Args:
          width: in letters; that of the terminal if it is left out, 80 where there is none.
        """
        room = shutil.get_terminal_size((80, 24)).columns if width is None else width
        said = [self.title, *(f"warning: {line}" for line in self.warnings), *self.lines]
        found = [
            line
            for text in said
            for line in textwrap.wrap(
                text, max(room, 20), subsequent_indent="  ", break_long_words=False
            )
        ]
        for table in self.tables:
            found += ["", *([table.title] if table.title else []), *_lines(table, room)]
        return "\n".join(found)

    def __repr__(self) -> str:
        return self.text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        escaped = html.escape
        found = [f"<p><strong>{escaped(self.title)}</strong></p>"]
        found += [f"<p><strong>warning:</strong> {escaped(line)}</p>" for line in self.warnings]
        found += [f"<p>{escaped(line)}</p>" for line in self.lines]
        for table in self.tables:
            head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.names)
            rows = "".join(
                "<tr>"
                + "".join(
                    f'<td style="text-align: {"left" if place in table.words else "right"}">'
                    f"{escaped(cell)}</td>"
                    for place, cell in enumerate(row)
                )
                + "</tr>"
                for row in table.rows
            )
            found.append(
                "<table>"
                + (f"<caption>{escaped(table.title)}</caption>" if table.title else "")
                + (f"<thead><tr>{head}</tr></thead>" if any(table.names) else "")
                + f"<tbody>{rows}</tbody></table>"
            )
        return "\n".join(found)


class Speaks:
    """What has a summary: a notebook shows it, and ``print(x.summary())`` prints it."""

    def summary(self) -> Summary:
        """Returns what it is, in sentences and tables of public things."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _lines(table: Table, room: int) -> list[str]:
    """Lays a table out: columns of words fold where there is no room; numbers are never broken."""
    columns = range(len(table.names))
    widths = [max(map(len, (table.names[i], *(row[i] for row in table.rows)))) for i in columns]
    while sum(widths) + _GAP * (len(widths) - 1) > room:
        wide = max(table.words, key=lambda place: widths[place], default=None)
        if wide is None or widths[wide] <= _LEAST:
            break
        widths[wide] -= 1

    def laid(row: Sequence[str]) -> list[str]:
        cells = [
            textwrap.wrap(cell, widths[place]) or [""] if place in table.words else [cell]
            for place, cell in enumerate(row)
        ]
        height = max(map(len, cells))
        return [
            (" " * _GAP)
            .join(
                (f"{part:<{widths[place]}}" if place in table.words else f"{part:>{widths[place]}}")
                for place, cell in enumerate(cells)
                for part in [cell[line] if line < len(cell) else ""]
            )
            .rstrip()
            for line in range(height)
        ]

    rule = "─" * (sum(widths) + _GAP * (len(widths) - 1))
    head = [*laid(table.names), rule] if any(table.names) else []
    return [*head, *(line for row in table.rows for line in laid(row))]
