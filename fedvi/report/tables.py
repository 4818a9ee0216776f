"""Formats tables for a terminal: coefficients, privacy, and the plan of a study.

Every function takes plain values, so that a table can be made from a live result or from a file.
"""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from fedvi.privacy.spoken import up

__all__ = [
    "DENSITY_PER",
    "PLAIN_WIDTH",
    "SETTLED",
    "bound",
    "coefficient_cells",
    "coefficient_table",
    "console",
    "gap_in_words",
    "grid",
    "has_settled",
    "influence_table",
    "last_move",
    "missed_turns",
    "moments_table",
    "more_rounds",
    "number",
    "plain",
    "plan_table",
    "print_json",
    "privacy_table",
    "ratio_notes",
    "relation_words",
    "say",
    "say_facts",
    "share",
    "share_in_words",
    "some",
    "units_grid",
]

SETTLED = 0.3
"""A posterior whose last round moved it by less than this, in sds, counts as settled."""

DENSITY_PER = {
    "file": "a density in the unit of the file",
    "model": "in the units of the model",
}
"""Describes a likelihood that is a density; see ``Evaluation.density_per``."""

# The width of output that is not a terminal: a file, a pipe, a log.
PLAIN_WIDTH = 120


def console(stderr: bool = False) -> Console:
    """Returns the console for tables, with a wide line if it is not a terminal."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=PLAIN_WIDTH)


def say(lines: Iterable[str], style: str = "") -> None:
    """Prints lines; a terminal wraps them between words, a file or a pipe gets whole lines."""
    out = console()
    for line in lines:
        if out.is_terminal:
            line = textwrap.fill(
                line,
                max(out.width, 20),
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        out.print(line, highlight=False, soft_wrap=True, markup=False, style=style)


def say_facts(facts: Mapping[str, str]) -> None:
    """Prints names and values in two columns; empty values are left out."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        if value:
            click.echo(f"{name:<{width}}{value}")


def print_json(content: Any) -> None:
    """Prints plain values; values that JSON cannot hold become texts: "inf", "nan"."""
    click.echo(json.dumps(plain(content), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Converts values for JSON: special floats to texts, named tuples to dicts, other tuples to lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if hasattr(value, "dtype") and not value.ndim else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None, digits: int = 4) -> str:
    """Formats a number to ``digits`` significant digits, with signs for infinite and missing values.

    >>> number(0.012345), number(float("inf")), number(None)
    ('0.01235', '∞', '–')
    """
    if value is None:
        return "–"
    # Adding 0 removes the sign of a negative zero.
    return "∞" if math.isinf(value) else f"{value + 0.0:.{digits}g}"


def moments(mean: float, sd: float) -> tuple[str, str]:
    """Formats a mean and its sd with three decimals, or as many as two digits of a small sd need.

    >>> moments(0.69, 0.071), moments(0.0016, 0.00042)
    (('0.690', '0.071'), ('0.00160', '0.00042'))
    """
    decimals = 3 + _more_decimals(sd, 1e-3)
    return f"{mean:.{decimals}f}", f"{sd:.{decimals}f}"


def interval(lower: float, upper: float, sd: float) -> str:
    """Formats an interval with two decimals, or with more where its sd is below one hundredth.

    >>> interval(-0.16, 0.04, 0.05), interval(0.00078, 0.00242, 0.00042)
    ('-0.16 to 0.04', '0.0008 to 0.0024')
    """
    decimals = 2 + _more_decimals(sd, 1e-2)
    return f"{lower:.{decimals}f} to {upper:.{decimals}f}"


def _more_decimals(sd: float, least: float) -> int:
    """Returns how many further decimals show an sd that is below the least; 0 if it is not, or is 0."""
    if not 0.0 < sd < least:
        return 0
    return math.floor(math.log10(least)) - math.floor(math.log10(sd)) + (least < 1e-2)


def limit(value: float | None) -> str:
    """Formats a limit of a ratio's interval, so that it is visibly on one side of 1.

    >>> limit(1.76), limit(1.0016), limit(0.9997)
    ('1.76', '1.002', '0.9997')
    """
    said = number(value, 3)
    return number(value, 4) if said == "1" else said


def has_settled(shift: float, surprise: float = 0.0, jitter: float = 0.0) -> bool:
    """Says whether the last round moved means only a little, or no further than noise; see ``last_move``.

    >>> (
    ...     has_settled(0.2),
    ...     has_settled(0.5),
    ...     has_settled(0.5, jitter=0.8),
    ...     has_settled(0.2, surprise=0.4),
    ... )
    (True, False, True, False)
    """
    return surprise < SETTLED and shift < max(SETTLED, jitter)


def last_move(shift: float, rounds: int = 2, surprise: float = 0.0, jitter: float = 0.0) -> str:
    """Says how far the last round moved the posterior, and how to interpret it.

    Args:
      shift: in posterior sds.
      rounds: number of rounds. A single one moved it from the prior, which does not predict the next.
      surprise: by how much steps missed their targets, in posterior sds.
      jitter: how far noise alone may have moved it, in posterior sds.

    >>> last_move(0.004)
    'over the last round no mean moved by more than 0.004 posterior sd'
    >>> print(last_move(0.68))  # doctest: +NORMALIZE_WHITESPACE
    the last round moved a mean by 0.68 posterior sd: NOT CONVERGED (settled is below 0.3); plan more
    rounds, which under privacy share the same ε
    >>> print(last_move(0.68, jitter=0.9))  # doctest: +NORMALIZE_WHITESPACE
    the last round moved a mean by 0.68 posterior sd, no further than noise does; intervals hold this noise
    >>> last_move(6.8, 1)
    'the only round moved a mean by 6.8 posterior sd from the prior, and cannot tell what another would do'
    >>> print(last_move(0.1, 20, 2.5))  # doctest: +NORMALIZE_WHITESPACE
    steps missed their aim by up to 2.5 posterior sd, more than noise explains: NOT CONVERGED (settled is
    below 0.3), rely on neither means nor intervals; a narrower prior makes steps shorter, and
    `clip_norm = "auto"` suits them to the columns
    """
    if not surprise < SETTLED:
        return (
            f"steps missed their aim by up to {number(surprise, 2)} posterior sd, more than noise "
            f"explains: NOT CONVERGED (settled is below {SETTLED:g}), rely on neither means nor "
            'intervals; a narrower prior makes steps shorter, and `clip_norm = "auto"` suits them to '
            "the columns"
        )
    if shift < SETTLED:
        return f"over the last round no mean moved by more than {number(shift, 2)} posterior sd"
    if rounds == 1:
        return (
            f"the only round moved a mean by {number(shift, 2)} posterior sd from the prior, and cannot "
            "tell what another would do"
        )
    if has_settled(shift, surprise, jitter):
        return (
            f"the last round moved a mean by {number(shift, 2)} posterior sd, no further than noise does; "
            "intervals hold this noise"
        )
    return (
        f"the last round moved a mean by {number(shift, 2)} posterior sd: NOT CONVERGED "
        f"(settled is below {SETTLED:g}); plan more rounds, which under privacy share the same ε"
    )


def gap_in_words(gap: float) -> str:
    """Says what the gap of the last round is, see ``fedvi.federation.fold.Gap.largest``.

    >>> gap_in_words(0.1234)
    "gap 0.12 posterior sd: the last round's largest move of a mean, or missed aim"
    """
    return (
        f"gap {number(gap, 2)} posterior sd: the last round's largest move of a mean, or missed aim"
    )


def missed_turns(missing: Iterable[Sequence[str]]) -> list[str]:
    """Lists skipped turns by client; no line if there are none.

    Args:
      missing: by fold, the clients whose turns were skipped before it.

    >>> missed_turns([("north",), (), ("north", "south")])
    ['missed turns: north 2, south 1']
    """
    counts = Counter(name for names in missing for name in names)
    if not counts:
        return []
    return ["missed turns: " + ", ".join(f"{name} {count}" for name, count in counts.items())]


def more_rounds(sds: float) -> str:
    """Says how far more rounds would move the posterior after a run with one visit per client.

    Args:
      sds: estimate of the largest move of a mean, in posterior sds; 0 if one visit is exact.

    >>> more_rounds(0.0)
    'one visit a client is exact: the likelihood is conjugate'
    """
    if sds == 0.0:
        return "one visit a client is exact: the likelihood is conjugate"
    return (
        f"estimated largest move by more rounds: about {number(sds, 1)} posterior sds, as if covariates "
        "were Gaussian; no bound: the truth may be twice or half of it, or further off"
    )


def some(names: Sequence[str], most: int) -> str:
    """Lists names, and counts those after the first ``most``.

    >>> some(["age", "sex"], 2), some(["age", "sex", "stage"], 2)
    ('age, sex', 'age, sex and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def bound(value: float | None, digits: int = 4) -> str:
    """Formats an upper bound such as ε, rounded up so that the printed value is a bound too.

    >>> bound(0.471101), bound(0.25), bound(float("inf"))
    ('0.4712', '0.25', '∞')
    """
    return number(value, digits) if value is None else up(value, digits)


def relation_words(relation: str) -> str:
    """Writes a relation in readable form.

    >>> relation_words("add_remove")
    'add/remove'
    """
    return relation.replace("_", "/")


def share(value: float | None) -> str:
    """Formats a share as a percentage.

    >>> share(0.2345), share(None)
    ('23.4 %', '–')
    """
    return number(None) if value is None else f"{100.0 * value:.1f} %"


def share_in_words(value: float) -> str:
    """Writes a share in a sentence, without a 0 % or 100 % that is none.

    >>> share_in_words(0.004), share_in_words(0.13), share_in_words(0.998)
    ('less than 1 %', 'about 13 %', 'more than 99 %')
    """
    if value < 0.01:
        return "less than 1 %"
    return "more than 99 %" if value > 0.99 else f"about {100.0 * value:.0f} %"


_MOST_ROWS = 200
# The narrowest column of names.
_LEAST_NAME = 12
# A longer unit takes two lines below a name.
_LONG_UNIT = 19
# The most coefficients named in a note.
_MOST_NAMED = 6


def coefficient_cells(row: Mapping[str, Any], ratio: str) -> list[str]:
    """Formats a coefficient: mean, sd and interval, and the ratio with its interval if there is one.

    Args:
      row: as of ``coefficient_table``.
      ratio: the kind of ratio that exp(coefficient) is, such as "odds"; "" for none.
    """
    cells = [*moments(row["mean"], row["sd"]), interval(row["lower"], row["upper"], row["sd"])]
    if ratio:
        value, low, high = (row[f"{ratio}_{what}"] for what in ("ratio", "lower", "upper"))
        within = f"({limit(low)} to {limit(high)})"
        cells.append(number(value) if value is None else f"{number(value, 3)} {within}")
    return cells


def coefficient_table(
    rows: Sequence[Mapping[str, Any]], title: str, ratio: str, pooled: bool, width: int
) -> Table:
    """Makes the table of the posterior.

    Args:
      rows: each with name, unit, mean, sd, lower, upper; with ratio "odds" also odds_ratio,
        odds_lower, odds_upper, None if there is none, and perhaps odds_note, see ``ratio_notes``;
        pooled_mean, pooled_sd if ``pooled``.
      ratio: the kind of ratio that exp(coefficient) is, such as "odds"; "" for none.
      pooled: whether to add the columns of the pooled, non-private fit.
      width: of the console. If it is narrow, units are under the names instead of in their own column,
        and beside pooled columns, the ratio and its interval are under the coefficient's interval.
    """
    if len(rows) > _MOST_ROWS:
        title += f": the first {_MOST_ROWS}"
    shown = rows[:_MOST_ROWS]
    wide, narrow = (
        _coefficients(shown, title, ratio, pooled, folded=folded) for folded in (False, True)
    )
    if not any(row["unit"] for row in shown) and not pooled:
        return wide
    if _natural_width(wide) <= width:
        return wide
    if _natural_width(narrow) > width:  # a level goes under its column's name
        parted = [{**row, "name": row["name"].replace("[", "\n  [", 1)} for row in shown]
        narrow = _coefficients(parted, title, ratio, pooled, folded=True)
    excess, names = _natural_width(narrow) - width, narrow.columns[0]
    if excess > 0:
        names.max_width = max(_LEAST_NAME, _longest_line(names) - excess)
    return narrow


def _longest_line(column: Column) -> int:
    return max(
        len(line) for cell in column.cells for line in str(Text.from_markup(str(cell))).split("\n")
    )


def _coefficients(
    rows: Sequence[Mapping[str, Any]], title: str, ratio: str, pooled: bool, *, folded: bool
) -> Table:
    """Makes the table of the posterior; ``folded`` for a narrow terminal."""
    units = any(row["unit"] for row in rows)
    stacked = folded and pooled and bool(ratio)
    names = ["coefficient", *(["unit"] if units and not folded else []), "mean", "sd"]
    names += [f"95 % interval\n{ratio} ratio (95 %)"] if stacked else ["95 % interval"]
    names += [f"{ratio} ratio (95 %)"] if ratio and not stacked else []
    if pooled:
        names += ["pooled\nmean", "pooled\nsd"] if folded else ["pooled mean", "pooled sd"]
    lines = []
    for row in rows:
        cells = [escape(row["name"])]
        if units and not folded:
            cells.append(escape(row["unit"]))
        elif row["unit"]:
            cells[0] += "\n" + escape(_under(row["unit"]))
        numbers = coefficient_cells(row, ratio)
        if ratio and row.get(f"{ratio}_note") and row[f"{ratio}_ratio"] is not None:
            numbers[-1] += "*"
        cells += [*numbers[:2], "\n".join(numbers[2:])] if stacked else numbers
        if pooled:
            cells += moments(row["pooled_mean"], row["pooled_sd"])
        lines.append(cells)
    return _filled(_table(title), names, lines, left=("coefficient", "unit"))


def _under(unit: str) -> str:
    """Indents a unit that is below a name; a long one takes a second line, which begins with "from".

    >>> _under("per 50 mg/dl from 240")
    '  per 50 mg/dl\\n  from 240'
    """
    step, _, start = unit.rpartition(" from ")
    lines = [step, f"from {start}"] if step and len(unit) > _LONG_UNIT else [unit]
    return "\n".join(f"  {line}" for line in lines)


def _natural_width(table: Table) -> int:
    """Returns a table's width without folded cells."""
    boundless = Console(width=10_000)
    return Measurement.get(boundless, boundless.options, table).maximum


def moments_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Makes the table of a posterior that is not Gaussian: mean and sd, without intervals.

    Args:
      rows: each with name, mean and sd.
    """
    more = f": the first {_MOST_ROWS}" if len(rows) > _MOST_ROWS else ""
    cells = [
        [row["name"], number(row["mean"], 3), number(row["sd"], 3)] for row in rows[:_MOST_ROWS]
    ]
    return grid(["quantity", "mean", "sd"], cells, title + more, ("quantity",))


def ratio_notes(rows: Sequence[Mapping[str, Any]], ratio: str) -> list[str]:
    """Returns notes for below the posterior's table: how to read ratios with a special meaning.

    Args:
      rows: as of ``coefficient_table``.
      ratio: the kind of ratio that exp(coefficient) is; "" for none.

    >>> ratio_notes([{"name": "age", "odds_ratio": 2.0, "odds_note": "where sex is false"}], "odds")
    ['* odds ratio of age: where sex is false']
    """
    told: dict[tuple[str, str], list[str]] = {}
    for row in rows[:_MOST_ROWS] if ratio else ():
        if row.get(f"{ratio}_note"):
            sign = "no" if row[f"{ratio}_ratio"] is None else "*"
            told.setdefault((sign, row[f"{ratio}_note"]), []).append(row["name"])
    found = []
    for (sign, note), names in told.items():
        found.append(f"{sign} {ratio} ratio of {some(names, _MOST_NAMED)}: {note}")
    return found


def privacy_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Makes the table of each client's privacy cost.

    Args:
      rows: each with client, records (None if not public; without any there is no such column),
        releases, numbers, epsilon (relation → ε; without relations that are not claimed), delta and
        view.
      title: shown above the table; says if there is no guarantee.
    """
    public = any(row["records"] is not None for row in rows)
    names = ["client", *(["records"] if public else []), "releases", "numbers sent"]
    # With a column name in two lines, the counts fit a terminal of 80 columns.
    names += ["ε add/\nremove" if public else "ε add/remove", "ε subst.", "δ", "view"]
    lines = [
        [
            row["client"],
            *(["–" if row["records"] is None else str(row["records"])] if public else []),
            str(row["releases"]),
            str(row["numbers"]),
            bound(row["epsilon"].get("add_remove")),
            bound(row["epsilon"].get("substitute")),
            number(row["delta"]),
            row["view"],
        ]
        for row in rows
    ]
    return _filled(_table(title), names, lines, left=("client", "view"))


def influence_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Makes the table of each client's contribution.

    Args:
      rows: each with client, precision_share (None if unknown) and shift_in_sds (coefficient → shift
        of its mean without the client; None if unknown).
    """
    lines = []
    for row in rows:
        shifts = row["shift_in_sds"]
        largest = max(shifts, key=lambda name: abs(shifts[name])) if shifts else None
        lines.append(
            [
                row["client"],
                share(row["precision_share"]),
                "–" if largest is None else f"{shifts[largest]:+.2f}",
                "–" if largest is None else largest,
            ]
        )
    names = ["client", "precision share", "largest shift without it, sds", "of coefficient"]
    return grid(names, lines, title, ("client", "of coefficient"))


def plan_table(rows: Sequence[tuple[str, str]], title: str) -> Table:
    """Makes a two-column table of a study's plan."""
    table = _table(title)
    table.show_header = False
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    for what, value in rows:
        table.add_row(what, escape(value))
    return table


def grid(
    names: Sequence[str], rows: Sequence[Sequence[str]], title: str, left: Sequence[str]
) -> Table:
    """Makes a table of cells; the columns in ``left`` contain words, all others numbers."""
    escaped = [[escape(cell) for cell in row] for row in rows]
    return _filled(_table(title), names, escaped, left)


def units_grid(
    names: Sequence[str], rows: Sequence[Sequence[str]], title: str, width: int
) -> Table:
    """Makes a table of coefficients with names and units; on a narrow console units go under names."""
    left = ("coefficient", "unit")
    wide = grid(names, rows, title, left)
    if names[1] != "unit" or _natural_width(wide) <= width:
        return wide
    under = [(f"{name}\n{_under(unit)}".strip(), *rest) for name, unit, *rest in rows]
    heads = (name.replace("smallest ", "smallest\n") for name in (names[0], *names[2:]))
    return grid(tuple(heads), under, title, left)


def _filled(
    table: Table, names: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]
) -> Table:
    """Adds columns and rows; a narrow terminal folds words at blanks, and never a number or its interval.

    Print it with ``crop=False``: below about 70 columns, lines may be longer than the terminal's.
    """
    for index, name in enumerate(names):
        parts = [
            part
            for row in rows
            for part in (row[index].split() if name in left else row[index].splitlines())
        ]
        # Cells of words may be broken anywhere; numbers, and the words of a name, may not.
        longest = max(map(len, parts), default=0)
        table.add_column(
            name,
            justify="left" if name in left else "right",
            overflow="fold",
            min_width=max(
                min(longest, _LEAST_NAME) if name in left else longest,
                *map(len, name.split()),
                0,
            ),
        )
    for row in rows:
        table.add_row(*row)
    return table


def _table(title: str) -> Table:
    return Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
