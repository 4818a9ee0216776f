"""Formats numbers, lists and plurals for a report's sentences."""

import math
from collections.abc import Sequence
from typing import Any

from fedvi.report import tables
from fedvi.report.canvas import MOST_ROWS
from fedvi.report.contents import Claimed, Coefficient, Contents, Round

__all__ = [
    "as_row",
    "as_sentence",
    "cells_of",
    "claim_in_words",
    "furthest",
    "last_move_in_words",
    "last_of",
    "membership_in_words",
    "moments_in_words",
    "most_drawn",
    "moves_of",
    "percent_up",
    "plural",
    "right_guesses",
    "sites_in_words",
    "some_of",
    "source_of",
]


# From here on, rounding up to a tenth of a per cent would say "at most all".
_NEARLY_ALL = 0.999


def percent_up(value: float) -> str:
    """Formats a probability, rounded up so that the printed value is a bound too.

    >>> percent_up(0.98195)
    '98.2 %'
    """
    return f"{math.ceil(round(value * 1000, 6)) / 10:.1f} %"


def right_guesses(share: float) -> str:
    """Says how many guesses between two neighbours may be right.

    >>> right_guesses(0.6789), right_guesses(0.99999)
    ('at most 67.9 % of the guesses are right', 'nearly all guesses may be right')
    """
    if share > _NEARLY_ALL:
        return "nearly all guesses may be right"
    return f"at most {percent_up(share)} of the guesses are right"


def as_row(row: Coefficient, ratio: str) -> dict[str, Any]:
    """Returns a coefficient as plain values, its ratio named as tables do."""
    values = row._asdict()
    if ratio:
        values[f"{ratio}_ratio"] = row.ratio
        values |= {
            f"{ratio}_{what}": values[f"ratio_{what}"] for what in ("lower", "upper", "note")
        }
    return values


def cells_of(row: Coefficient, ratio: str) -> list[str]:
    return tables.coefficient_cells(as_row(row, ratio), ratio)


def claim_in_words(claim: Claimed) -> str:
    relation = tables.relation_words(claim.relation)
    price = f"ε {tables.bound(claim.epsilon)} at δ {tables.bound(claim.delta)}"
    return f"{price} under {relation}, view {claim.view}"


def moments_in_words(contents: Contents, row: Coefficient) -> tuple[str, str]:
    """Formats mean and sd; if not Gaussian, such as a word's probability, by significant digits."""
    if contents.gaussian:
        return tables.moments(row.mean, row.sd)
    return tables.number(row.mean, 3), tables.number(row.sd, 3)


def most_drawn(contents: Contents) -> list[Coefficient]:
    """Chooses the coefficients to draw: all, or those furthest from 0 in their own sds."""
    return [contents.coefficients[index] for index in furthest(contents.coefficients, MOST_ROWS)]


def furthest(rows: Sequence[Coefficient], most: int) -> list[int]:
    """Returns the indices of at most ``most`` rows: those furthest from 0 in their own sds."""
    far = sorted(range(len(rows)), key=lambda index: -abs(rows[index].mean) / rows[index].sd)
    return sorted(far[:most]) if len(rows) > most else list(range(len(rows)))


def some_of(contents: Contents, drawn: Sequence[Coefficient]) -> str:
    if len(drawn) == contents.size:
        return ""
    return f": the {len(drawn)} of {contents.size} that are furthest from 0 in their own sds"


def last_move_in_words(contents: Contents) -> str:
    """Says how far the last round moved the posterior, or how far more would after a single round."""
    if contents.one_shot_gap is not None:
        return tables.more_rounds(contents.one_shot_gap)
    return last_of(moves_of(contents.rounds))


def moves_of(rounds: Sequence[Round]) -> list[tuple[float, float, float]]:
    """Returns (shift, surprise, jitter) of the completed rounds."""
    return [(row.shift, row.surprise, row.jitter) for row in rounds if row.shift is not None]


def last_of(moved: Sequence[tuple[float, float, float]]) -> str:
    shift, surprise, jitter = moved[-1]
    return tables.last_move(shift, len(moved), surprise, jitter)


def membership_in_words(added: int | None, removed: int | None) -> str:
    found = [f"joined at version {added}"] if added is not None else []
    found += [f"removed at version {removed}"] if removed is not None else []
    return ", ".join(found) or "throughout"


def sites_in_words(contents: Contents) -> str:
    names = [site.name for site in contents.sites]
    rest = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)}: {', '.join(names[:8])}{rest}"


def source_of(contents: Contents) -> str:
    return "a simulation in one process" if contents.source == "simulation" else "a server"


def plural(word: str) -> str:
    return "quantities" if word == "quantity" else f"{word}s"


def as_sentence(line: str) -> str:
    """Writes a line as a sentence.

    >>> as_sentence("no shifts: none"), as_sentence("model.site_scale is learnt")
    ('No shifts: none.', 'model.site_scale is learnt.')
    """
    # A first word that is a name or a symbol, such as ε, keeps its first letter.
    first = line.split(" ", 1)[0].rstrip(".:,")
    plain = line[:1].isascii() and "." not in first and "_" not in first
    text = line[:1].upper() + line[1:] if plain else line
    return text if text.endswith((".", "…", "!", "?")) else f"{text}."
