"""Lays out the first page of a report: the findings and the promise, for readers of nothing else."""

from collections.abc import Iterator
from typing import NamedTuple

from fedvi.privacy.statement import guessed
from fedvi.report import figures, tables
from fedvi.report.canvas import Figure
from fedvi.report.contents import UNRECORDED, Coefficient, Contents
from fedvi.report.labels import is_effect
from fedvi.report.sections import Table
from fedvi.report.wording import as_sentence, furthest, right_guesses, sites_in_words
from fedvi.typing import INTERCEPT

__all__ = ["Front", "front"]

# The most effects in its table and figure, so that everything fits on one page.
_MOST = 8
_SEEN = {
    "message": "every message that left the sites",
    "aggregate": "the sums over all sites that the server published",
}


_LAST = {
    False: "The last pages are statements to be signed.",
    True: "The last pages show each site's statement.",
}


class Front(NamedTuple):
    """The first page.

    Attributes:
      asked: the study's question and participants: sentences.
      answer: the verdict, in sentences.
      effects: the effects, those that stand out first; None if no coefficient is compared with 0.
      figure: (caption, drawing of the same effects); None without a table.
      reading: how to read the table, and what not to conclude: sentences.
      privacy: the promise to each record: sentences.
      is_whole: whether the figure has all effects, so that no other figure needs to.
    """

    asked: tuple[str, ...]
    answer: tuple[str, ...]
    effects: Table | None
    figure: tuple[str, Figure] | None
    reading: tuple[str, ...]
    privacy: tuple[str, ...]
    is_whole: bool


def front(contents: Contents) -> Front:
    """Lays out the first page."""
    ratio = contents.ratio if contents.gaussian else ""
    # Those that are compared with no effect, and can be interpreted by themselves.
    effects = [
        row
        for row in contents.coefficients
        if is_effect(row.name) and (not ratio or row.ratio is not None)
    ]
    effects = effects if contents.gaussian and contents.outcome else []
    clear = [row for row in effects if _is_clear(contents, row)]
    clear.sort(key=lambda row: row.name in contents.by_chance)
    # Effects that stand out first, then the others that are furthest from 0, in the study's order.
    # What noise alone moved away from 0 is among the doubts: beside its interval, no word would be right.
    still = [row for row in effects if row not in clear and row.lower <= 0.0 <= row.upper]
    shown = clear[:_MOST] + [still[index] for index in furthest(still, max(0, _MOST - len(clear)))]
    table = figure = None
    if shown:
        table, drawn = _table(contents, shown, ratio), figures.forest(shown, ratio)
        figure = (
            f"{ratio.capitalize()} ratios with 95 % intervals"
            if ratio
            else "Effects with 95 % intervals",
            # Narrow, since it is beside the table.
            drawn._replace(svg=drawn.narrow, narrow=""),
        )
    return Front(
        tuple(_asked(contents)),
        tuple(map(as_sentence, contents.verdict)),
        table,
        figure,
        tuple(_reading(contents, ratio, shown, len(effects) - len(shown))) if shown else (),
        tuple(_privacy(contents)),
        # Intercepts are not compared with anything.
        0 < len(shown) == sum(not row.name.endswith(INTERCEPT) for row in contents.coefficients),
    )


def _is_clear(contents: Contents, row: Coefficient) -> bool:
    if contents.stand_out is not None:
        return row.name in contents.stand_out
    return row.lower > 0.0 or row.upper < 0.0


def _asked(contents: Contents) -> Iterator[str]:
    """Yields the question, and how it was answered."""
    if contents.outcome:
        which = " against ".join(contents.outcome_words)
        yield f"What goes with {contents.outcome}{f' ({which})' if which else ''}?"
    one = len(contents.sites) == 1
    who = "It" if one else "Each site"
    if contents.source == "simulation":
        yield (
            "This was a simulation: one program read the records of all sites "
            f"({sites_in_words(contents)}), and played the part of each."
        )
    else:
        yield f"The records stayed at {'one site' if one else 'their sites'} ({sites_in_words(contents)})."
    yield (
        f"{who} sent only numbers computed from its records together, with random noise added."
        if contents.protected
        else f"{who} sent statistics without noise: no record is protected."
    )


def _table(contents: Contents, shown: list[Coefficient], ratio: str) -> Table:
    # Curves and interactions have no comparison that fits in a few words.
    said_what = any(row.ratio_note or row.compared for row in shown)
    names = (
        "effect",
        *(("compared",) if said_what else ()),
        f"{ratio} ratio (95 %)" if ratio else "effect (95 %)",
        "the data say",
    )
    rows = []
    for row in shown:
        if ratio and row.ratio is not None:
            number = (
                f"{tables.number(row.ratio, 3)} ({tables.limit(row.ratio_lower)} to "
                f"{tables.limit(row.ratio_upper)})"
            )
        else:
            limits = tables.interval(row.lower, row.upper, row.sd)
            number = f"{tables.number(row.mean, 3)} ({limits})"
        said = "open"
        if _is_clear(contents, row):
            said = f"{'higher' if row.mean > 0.0 else 'lower'} {ratio}".rstrip()
            said += "?" if row.name in contents.by_chance else ""
        what = ((row.ratio_note or row.compared or "–"),) if said_what else ()
        rows.append((row.shown, *what, number, said))
    more = any(not _is_clear(contents, row) for row in shown)
    caption = "Effects" + (", those that stand out first" if more else "")
    return Table(caption, names, tuple(rows), ("effect", "compared", "the data say"))


def _reading(contents: Contents, ratio: str, shown: list[Coefficient], more: int) -> Iterator[str]:
    noise = " and the noise" if contents.noised else ""
    which = f" being “{contents.outcome_words[0]}”" if contents.outcome_words else ""
    unit = f", in {contents.outcome_unit}" if contents.outcome_unit else ""
    said = (
        f"A ratio above 1 means higher {ratio} of {contents.outcome}{which}, below 1 lower {ratio}"
        if ratio
        else f"An effect above 0 means a higher {contents.outcome}{unit}, below 0 a lower one"
    )
    clipped = ", and if clipping changed little" if contents.noised else ""
    yield (
        f"{said}, for what is compared and all else in the model equal. The true value lies in the "
        f"interval with probability 95 %, if the model and its prior are right{clipped}."
    )
    doubt = any(row.name in contents.by_chance for row in shown)
    yield (
        f"“Open” means that the records{noise} do not tell higher from lower. It does not mean that there "
        f"is no effect.{' “?”: of so many effects, chance may explain this one.' if doubt else ''}"
    )
    yield "These are associations. They do not say what a treatment or any other change would do."
    if any(UNRECORDED in (row.ratio_note, row.compared) for row in shown):
        yield (
            "“Missing” compares records without a value to others: it may only show who did not measure it."
        )
    if more:
        yield f"{more} more effects are in the table of the posterior."


def _privacy(contents: Contents) -> Iterator[str]:
    """Yields the promise, as the odds of a guess."""
    together = contents.consortium or next(iter(contents.statements), None)
    if not contents.protected or together is None or not together.claims:
        yield "Nothing was promised: what left the sites was not protected, and may tell of single records."
        return
    own = [claim for claim in together.claims if claim.view == together.claims[0].view]
    view, unit = own[0].view, together.unit
    odds = [f"asked {guessed(claim.relation, unit)}, {right_guesses(claim.right)}" for claim in own]
    yield (
        f"Suppose that somebody sees {_SEEN.get(view, view)}, knows all else about the records, and finds "
        "two guesses equally likely. "
        f"{as_sentence('; '.join(odds))} Without the study it would be 50 %."
    )
    figured = [
        f"ε = {tables.bound(claim.epsilon)} at δ = {tables.bound(claim.delta)} under "
        + tables.relation_words(claim.relation)
        + ("" if claim.promised is None else f", where the study allows {claim.promised:g}")
        for claim in own
    ]
    same = " Both describe the same answers: do not add them." if len(own) > 1 else ""
    yield (
        f"In figures: {'; '.join(figured)}, computed anew from the sites' ledgers.{same}"
        + " Another run on the same records would spend as much again."
        + (f" {_LAST[contents.source == 'simulation']}" if contents.statements else "")
    )
    single = [
        claim
        for one in contents.statements
        for claim in one.claims
        if claim.view == view and claim.promised is not None
    ]
    if single and all(claim.promised is None for claim in own):
        most = max(single, key=lambda claim: claim.epsilon)
        yield (
            "These figures are for a person who is at every site, since the study does not declare that "
            "nobody is. For a person at one site, ε is at most "
            f"{tables.bound(most.epsilon)} under {tables.relation_words(most.relation)}, where the study "
            f"allows {most.promised:g}."
        )
