"""Summaries of objects: sentences and tables, as plain text for a terminal and HTML for a notebook.

A summary must contain public values only: no loss, norm, record or key.
"""

import dataclasses
import decimal
import html
import math
import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Speaks", "Summary", "Table", "facts", "promised", "up"]

_GAP = 2
# The narrowest width to which a column of words is wrapped.
_LEAST = 12


class Table(NamedTuple):
    """A table of cells.

    Attributes:
      names: column names; all empty for a table without a header.
      rows: cells, as strings.
      words: indices of the columns that hold words; all others hold numbers.
      title: printed above the table; may be empty.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    title: str = ""


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Makes a table of (name, value) rows without a header; leaves out rows with an empty value."""
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


def promised(
    epsilon: float | None, delta: float | None, unit: str | None, relation: str | None, view: str
) -> str:
    """Writes a promise in one line; without ε or δ nothing is promised.

    >>> promised(1.0, 1e-5, "record", "substitute", "message")
    'ε ≤ 1 at δ = 1e-05 for one record under substitute, view message'
    """
    if epsilon is None or delta is None:
        return "no protection (ε = ∞)"
    return f"ε ≤ {epsilon:g} at δ = {delta:g} for one {unit} under {relation}, view {view}"


@dataclasses.dataclass(frozen=True, repr=False)
class Summary:
    """Sentences and tables, the most important first; printed, or shown by a notebook.

    Attributes:
      title: names the object.
      lines: sentences.
      tables: shown below the sentences.
      warnings: shown above the sentences, each after "warning:".

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
        """Returns the summary as text.

        Args:
          width: in characters; by default that of the terminal, or 80 without a terminal.
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
    """Base class of objects with a summary, which notebooks show and ``print(x.summary())`` prints."""

    def summary(self) -> Summary:
        """Returns a description in sentences and tables, of public values only."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _lines(table: Table, room: int) -> list[str]:
    """Lays out a table: wraps heads and columns of words to fit ``room``, and never breaks a word."""
    columns = range(len(table.names))
    widths = [max(map(len, (table.names[i], *(row[i] for row in table.rows)))) for i in columns]
    least = [
        max(
            _longest_word(table.names[i]),
            *(
                max(min(len(row[i]), _LEAST), _longest_word(row[i]))
                if i in table.words
                else len(row[i])
                for row in table.rows
            ),
            0,
        )
        for i in columns
    ]
    while sum(widths) + _GAP * (len(widths) - 1) > room:
        wide = max(columns, key=lambda place: (widths[place] > least[place], widths[place]))
        if widths[wide] <= least[wide]:
            break
        widths[wide] -= 1

    def laid(row: Sequence[str]) -> list[str]:
        cells = [
            textwrap.wrap(cell, widths[place], break_long_words=False) or [""]
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


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
