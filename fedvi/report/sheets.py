"""Lays out the privacy statement of each site in a report, to read and to sign."""

from typing import NamedTuple

from fedvi.privacy.statement import guessed
from fedvi.report import tables
from fedvi.report.contents import Contents, Statement
from fedvi.report.sections import Table
from fedvi.report.wording import percent_up, right_guesses

__all__ = ["Sheet", "sheets"]


_UNITS = {
    "record": (
        "record: one row of the table; a patient, if none has several. For one with k rows ε is k times as "
        "large, and δ far more: then the unit must be the patient"
    ),
    "patient": "patient: all rows of one person together",
    "client": "client: everything that one site holds",
}


_COUNTED_BY_NOBODY = "not counted, since this run names no ledger for life of this site"
_COUNTED_AT_HOME = (
    "not known to the server; the site's own ledger for life counts them, if its policy has one"
)
_DUTIES = (
    "keep its ledger and its state folder. A backup may be kept, and no run may go on from it",
    "take bounds and settings from common knowledge, and never try them out on these records",
    "keep logs and metrics of its records in the house",
)


class Sheet(NamedTuple):
    """A privacy statement with its layout: one printed page.

    Attributes:
      key: its address in the page.
      site: its site.
      protected: whether anything is claimed.
      sentence: the claim in one sentence, to be read aloud.
      alarms: warnings that must not be overlooked, such as a mark.
      claims: a table, one row per relation; None without protection.
      facts: (what, value).
      lists: (title, lines).
      signed: whether it ends with lines for signatures.
    """

    key: str
    site: str
    protected: bool
    sentence: str
    alarms: tuple[str, ...]
    claims: Table | None
    facts: tuple[tuple[str, str], ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]
    signed: bool


def sheets(contents: Contents) -> tuple[Sheet, ...]:
    """Returns the privacy statements: one for each requested site, and one for all together."""
    found = [
        _sheet(contents, statement, f"statement-{number}")
        for number, statement in enumerate(contents.statements, 1)
    ]
    if contents.consortium is not None:
        found.append(_sheet(contents, contents.consortium, "statement-all"))
    return tuple(found)


def _sheet(contents: Contents, statement: Statement, key: str) -> Sheet:
    alarms = []
    if not statement.protected:
        alarms.append("NO GUARANTEE: what left this site was not protected (ε = ∞)")
    if contents.source == "simulation":
        alarms.append(
            "SIMULATED: one program read the records of all sites; no site ran its own client. There is "
            "nothing to sign: a real run has statements of its own"
        )
    if statement.mark:
        alarms.append(f"MARKED: {statement.mark}")
    alarms += [f"EXCEEDED: {line}" for line in statement.exceeded]
    facts = [
        ("study", contents.study),
        ("study digest", contents.digest),
        ("unit", _UNITS.get(statement.unit, statement.unit)),
        *([("protected against", statement.view)] if statement.protected else []),
        *statement.facts,
    ]
    if statement.protected:
        facts += _parts_of_delta(statement)
    if statement.lifetime:
        facts.append(("other studies", statement.lifetime))
    elif statement.protected and statement.head:
        is_simulated = contents.source == "simulation"
        facts.append(("other studies", _COUNTED_BY_NOBODY if is_simulated else _COUNTED_AT_HOME))
    if contents.audit:
        facts.append(("audit", contents.audit))
    computed = f"fedvi {contents.written}; the run by fedvi {contents.ran}"
    if statement.protected:
        computed = f"the accountant {statement.accountant}, an upper bound, in {computed}"
    facts.append(("computed by", computed))
    if statement.head:
        facts.append(("ledger head", statement.head))
    lists = (
        ("Declared, since fedvi cannot check it", statement.declared),
        ("The site must", _DUTIES if statement.head and statement.protected else ()),
        ("Assumed", statement.assumed),
        ("Not covered", statement.excluded),
    )
    return Sheet(
        key=key,
        site=statement.site,
        protected=statement.protected,
        sentence=_claim_in_words(statement),
        alarms=tuple(alarms),
        claims=_claims(statement) if statement.claims else None,
        facts=tuple(facts),
        lists=tuple((title, lines) for title, lines in lists if lines),
        # Nobody answers for a simulation.
        signed=bool(statement.head) and contents.source != "simulation",
    )


def _parts_of_delta(statement: Statement) -> list[tuple[str, str]]:
    """Lists the parts of δ, if there are others than the mechanism's; each as large as in any claim."""
    largest: dict[str, float] = {}
    for claim in statement.claims:
        for what, value in claim.parts:
            largest[what] = max(value, largest.get(what, 0.0))
    seen = {what: v for what, v in largest.items() if v > 1e-3 * max(largest.values())}
    parts = ", ".join(f"{what} {tables.bound(value)}" for what, value in seen.items())
    return [("parts of δ, at most", parts)] if len(seen) > 1 else []


def _claims(statement: Statement) -> Table:
    several = len({claim.view for claim in statement.claims}) > 1
    names = (
        "relation",
        *(("view",) if several else ()),
        "compares",
        "ε up to",
        "δ",
        "study's limit",
    )
    rows = tuple(
        (
            tables.relation_words(claim.relation),
            *((claim.view,) if several else ()),
            claim.neighbours,
            tables.bound(claim.epsilon),
            tables.bound(claim.delta),
            "none set" if claim.promised is None else f"{claim.promised:g}",
        )
        for claim in statement.claims
    )
    return Table("What is claimed", names, rows, ("relation", "view", "compares"))


def _claim_in_words(statement: Statement) -> str:
    """States the claim as a sentence, with the odds of a guess."""
    if not statement.claims:
        return (
            f"Nothing is claimed for the {statement.unit}s at {statement.site}: the study declares no "
            "protection, and its messages may reveal what a record holds."
        )
    unit, said, alone = statement.unit, [], []
    # The study's own view comes first.
    for claim in statement.claims:
        if claim.view != statement.claims[0].view:
            continue
        what = guessed(claim.relation, unit)
        said.append(f"{what}, {right_guesses(claim.right)}")
        alone.append(percent_up(claim.by_epsilon))
    # A whole client leaves no other data at its site.
    where = "at all other sites" if unit == "client" else f"about the data of {statement.site}"
    more = ""
    if any(claim.right < claim.by_epsilon for claim in statement.claims):
        more += (
            " These bounds use all that is known of this plan's noise. From ε and δ alone they would be "
            f"{' and '.join(alone)}: compare these with a study that states nothing else."
        )
    if len({claim.view for claim in statement.claims}) > 1:
        more += f" These limits are those of the view {statement.claims[0].view}."
    more += " δ allows for rare outcomes that ε does not bound; the percentages include it."
    if len(statement.claims) > 1:
        more += " The rows of the table describe the same answers: their ε do not add up."
    if any(claim.relation == "substitute" for claim in statement.claims) and unit != "client":
        # A patient is a person; a record is a person's.
        same = "one person's" if unit == "record" else "one and the same"
        more += f" The two known {unit}s may be {same}, with a diagnosis and without."
    return (
        f"Suppose that somebody sees all that “protected against” names, knows all else {where}, and "
        f"guesses between two answers that were equally likely before. Asked {'; asked '.join(said)}. "
        f"Without the study it would be 50 %.{more}"
    )
