"""Writes the section of a report that compares the answer with each site's own and a pooled fit."""

from collections.abc import Iterator

from fedvi.report import comparison, tables
from fedvi.report.contents import Z95, Coefficient, Contents, Site
from fedvi.report.sections import Section, Table
from fedvi.report.wording import as_sentence, furthest

__all__ = ["comparison_section"]


def comparison_section(contents: Contents) -> Section | None:
    """Returns the section; None if there is nothing to compare with, or the posterior is not Gaussian."""
    sites = [site for site in contents.sites if site.alone is not None]
    pooled = any(row.pooled_sd is not None for row in contents.coefficients)
    if not contents.gaussian or not contents.coefficients or not (pooled or len(sites) > 1):
        return None
    shown = sites if 1 < len(sites) <= comparison.MOST_SITES else []
    lead = []
    if shown:
        lead.append(
            "Each site alone: its own last answer combined with the prior, without the other sites. Where "
            "one site is far from the others, look at its records, or let sites differ in the model."
        )
    elif sites:
        lead.append(
            "There are too many sites to draw what each says alone. The file report.json has it."
        )
    if pooled:
        lead.append(
            "The pooled fit is NOT private: it used the records of all sites as they are, for comparison. "
            "Show it only where the records may be pooled."
        )
    places = furthest(contents.coefficients, comparison.most_compared(len(shown), pooled))
    rows = [contents.coefficients[place] for place in places]
    figure = comparison.comparison(rows, places, shown)
    words = ["the answer"]
    words += ["the pooled fit"] if pooled else []
    words += ["each site alone"] if shown else []
    caption = f"{', '.join(words[:-1])} and {words[-1]}: means and 95 % intervals"
    if len(rows) < len(contents.coefficients):
        caption += f", of the {len(rows)} coefficients that are furthest from 0"
    table: tuple[Table, ...] = ()
    if pooled:
        cells = tuple(
            (
                row.shown,
                "{} ({})".format(*tables.moments(row.mean, row.sd)),
                "{} ({})".format(*tables.moments(row.pooled_mean, row.pooled_sd)),
                tables.number(row.sd / row.pooled_sd, 2),
            )
            for row in contents.coefficients
            if row.pooled_mean is not None and row.pooled_sd
        )
        names = ("coefficient", "this study, mean (sd)", "pooled, mean (sd)", "times as wide")
        table = (Table("This study beside the pooled fit", names, cells, ("coefficient",)),)
    silent = [site.name for site in contents.sites if site.alone is None] if shown else []
    notes = []
    if shown:
        notes.append(
            "approximate: a site's answers began from the joint result, and its part is taken out"
        )
        notes += _held_against(rows, places, shown)
    if silent:
        notes.append(f"nothing can be said of {', '.join(silent)} alone")
    return Section(
        "beside",
        "Beside the pooled fit and each site alone" if pooled else "Beside each site alone",
        tuple(lead),
        ((as_sentence(caption).removesuffix("."), figure),) if pooled or shown else (),
        table,
        tuple(map(as_sentence, notes)),
    )


def _held_against(rows: list[Coefficient], places: list[int], shown: list[Site]) -> Iterator[str]:
    """Yields the sites whose own intervals are uninformative, and those that exclude the answer."""
    told: dict[str, list[str]] = {}
    vague = []
    for site in shown:
        assert site.alone is not None
        alone = [(row, *site.alone[place]) for row, place in zip(rows, places, strict=True)]
        if all(row.prior_sd is not None and sd >= 0.95 * row.prior_sd for row, _, sd in alone):
            vague.append(site.name)
            continue
        for row, mean, sd in alone:
            if abs(mean - row.mean) > Z95 * sd:
                told.setdefault(site.name, []).append(row.shown)
    if vague:
        yield (
            f"{', '.join(vague)}: alone nothing can be read there, since the intervals are as wide as the "
            "prior's, and noise places them"
        )
    for name, outside in told.items():
        yield f"the interval of {name} alone leaves the answer out for {', '.join(outside)}"
    if not told and len(vague) < len(shown):
        named = [site.name for site in shown if site.name not in vague]
        yield (
            f"{', '.join(named)}: the intervals of {'this site' if len(named) == 1 else 'each site'} alone "
            "contain the joint answer, for every coefficient that is drawn"
        )
