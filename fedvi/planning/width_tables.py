"""Writes expected widths and smallest effects for a reader: cells of a table, and what they rest on."""

import math
from typing import TYPE_CHECKING

from fedvi.privacy.spoken import Table
from fedvi.report.contents import Z95
from fedvi.report.labels import is_effect
from fedvi.report.tables import number, share_in_words, some

if TYPE_CHECKING:
    from fedvi.planning.widths import Widths

__all__ = [
    "CLIPPED",
    "clipped",
    "effect_name",
    "guessed",
    "largest",
    "said_beside",
    "size",
    "smallest_told",
    "table",
    "title",
    "worth",
]

# Larger effects are none that a study could be about.
_LARGEST_LOG_RATIO = math.log(1_000.0)
_NAMED = 12
# An interval of more than this part of its prior's is the prior's.
_SAME = 0.9
CLIPPED = 0.25
"""Where clipping leaves less than this part of the precision, clipped records shape the means."""


def effect_name(ratio: str) -> str:
    """Returns what an effect is: "odds ratio", or "difference" where there is no ratio."""
    return f"{ratio} ratio" if ratio else "difference"


def size(effect: float, ratio: str, mark: str = "") -> str:
    """Writes an effect as a ratio above 1, or a difference, after the mark; a dash alone for none.

    >>> size(0.5, "odds", "≥ "), size(0.5, ""), size(math.inf, "odds", "≥ ")
    ('≥ 1.65', '0.5', '–')
    """
    if not effect < largest(ratio):
        return "–"
    return mark + (f"{math.exp(effect):.3g}" if ratio else f"{effect:.2g}")


def largest(ratio: str) -> float:
    """Returns the size, on the coefficient's scale, from which no study could be about an effect.

    Differences that are too large have been left out of a plan's widths, since their unit is the file's.
    """
    return _LARGEST_LOG_RATIO if ratio else math.inf


def table(found: "Widths", title: str = "") -> Table:
    """Makes the table of a plan's widths; "≥" marks what rests on a guess."""
    units = any(row.unit for row in found.rows)
    names = ["coefficient", *(["unit"] if units else []), "± 95 %", "no noise", "times"]
    names += [f"smallest {effect_name(found.ratio)}", "no noise"]
    rows = []
    for row in found.rows:
        mark = "" if row.stated else "≥ "
        effects = ((mark, row.detectable), ("", row.open_detectable))
        rows.append(
            (
                row.name,
                *((row.unit,) if units else ()),
                mark + number(Z95 * row.sd, 2),
                number(Z95 * row.open_sd, 2),
                number(row.multiple, 2),
                *(
                    size(one, found.ratio, said) if is_effect(row.name) else ""
                    for said, one in effects
                ),
            )
        )
    return Table(tuple(names), tuple(rows), (0, 1) if units else (0,), title)


def guessed(found: "Widths") -> str:
    """Says which columns a plan guesses the spread of, by name; "" if there are none."""
    if not found.silent:
        return ""
    return (
        f"≥: a guess, since the study does not say how {some(found.silent, _NAMED)} "
        "spread in your records. Of 80 such widths in six studies 25 were within 25 % of the run's; most "
        "others were too narrow, some several times, where most records are alike. Before you rely on it, "
        "say data.schema.NAME.expected"
    )


def worth(found: "Widths") -> str:
    """Says how many effects have little chance to stand out, whatever their size; "" if none has."""
    effects = [row for row in found.rows if is_effect(row.name)]
    lost = [row for row in effects if not row.detectable < largest(found.ratio)]
    if not lost:
        return ""
    same = sum(row.sd > _SAME * row.prior_sd for row in lost)
    of = f"all {len(effects)}" if len(lost) == len(effects) else f"{len(lost)} of {len(effects)}"
    why = f": {same} of them would have an interval about as wide as the prior's" if same else ""
    return (
        f"as it is, this study has little chance to show {of} effects, whatever their size (–){why}. "
        "Change it before it runs: see “what would help”"
    )


def clipped(found: "Widths") -> str:
    """Says how little clipping is expected to leave, if it is little; else ""."""
    if found.kept >= CLIPPED:
        return ""
    return (
        f"clipping is expected to leave {share_in_words(found.kept)} of what the records say, so that "
        "means may be off by more than intervals show. A larger clip_norm (or “auto”), fewer columns, more "
        "records, or bounds that end where records become rare leave more"
    )


def smallest_told(found: "Widths") -> str:
    """Says what "smallest" means, and what was assumed."""
    said = (
        "“smallest”: an effect of this size has an interval that excludes “no effect” in four of five such "
        "studies. Estimates, not promises"
    )
    return f"{said}; assumed: {'; '.join(found.assumed)}" if found.assumed else said


def title(found: "Widths") -> str:
    """Returns the title of the table."""
    return f"Expected 95 % intervals, from {found.records:,} records"


def said_beside(found: "Widths") -> tuple[str, ...]:
    """Returns the sentences beside the table: what is guessed, and what was assumed."""
    return tuple(filter(None, (worth(found), clipped(found), smallest_told(found), guessed(found))))
