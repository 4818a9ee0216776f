"""The sheet of each site in a report: its privacy statement, to read and to sign."""

from typing import NamedTuple

from fedvi.privacy.statement import guessed
from fedvi.report import figures, tables
from fedvi.report.contents import Contents, Statement
from fedvi.report.sections import Table
from fedvi.report.wording import percent_up

__all__ = ["Sheet", "sheets"]


class Sheet(NamedTuple):
    """A privacy statement, laid out: one printed page.

    Attributes:
      key: of its address in the page.
      site: whose.
      protected: whether anything is claimed.
      sentence: the claim in one sentence, to be read aloud.
      alarms: what must not be overlooked, such as a mark.
      claims: a table, one row a relation; None without protection.
      facts: (what, value).
      lists: (title, lines).
      signed: whether it ends in lines to sign on.
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
    """Returns the privacy statements: one for each site that was asked for, and one of all together."""
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
    if statement.mark:
        alarms.append(f"MARKED: {statement.mark}")
    alarms += [f"EXCEEDED: {line}" for line in statement.exceeded]
    facts = [
        ("study", contents.study),
        ("study digest", contents.digest),
        ("unit", statement.unit),
        ("view", statement.view),
        *statement.facts,
        ("releases reserved", str(statement.releases)),
    ]
    if statement.protected:
        facts.append(("accountant", f"{statement.accountant}, an upper bound"))
        facts += _parts_of_delta(statement)
    if statement.lifetime:
        facts.append(("for life", statement.lifetime))
    if contents.audit:
        facts.append(("audit", contents.audit))
    facts.append(("versions", f"run by fedvi {contents.ran}, stated by fedvi {contents.written}"))
    if statement.head:
        facts.append(("ledger head", statement.head))
    lists = (
        ("The study declares, and nobody checks", statement.declared),
        ("It is assumed that", statement.assumed),
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
        signed=bool(statement.head),
    )


def _parts_of_delta(statement: Statement) -> list[tuple[str, str]]:
    """Says what δ is made of; each part as large as in any of the claims."""
    largest: dict[str, float] = {}
    for claim in statement.claims:
        for what, value in claim.parts:
            largest[what] = max(value, largest.get(what, 0.0))
    parts = ", ".join(f"{what} {tables.bound(value)}" for what, value in largest.items())
    return [("parts of δ, at most", parts)] if parts else []


def _claims(statement: Statement) -> Table:
    several = len({claim.view for claim in statement.claims}) > 1
    names = ("relation", *(("view",) if several else ()), "means", "ε at most", "δ", "promised ε")
    rows = tuple(
        (
            figures.relation_words(claim.relation),
            *((claim.view,) if several else ()),
            claim.neighbours,
            tables.bound(claim.epsilon),
            tables.bound(claim.delta),
            "–" if claim.promised is None else f"{claim.promised:g}",
        )
        for claim in statement.claims
    )
    return Table("What is claimed", names, rows, ("relation", "view", "means"))


def _claim_in_words(statement: Statement) -> str:
    """Says what is claimed as a sentence, with the odds of a guess."""
    if not statement.claims:
        return (
            f"Nothing is claimed for the {statement.unit}s at {statement.site}: the study declares no "
            "protection, and its messages may tell what a record holds."
        )
    unit, said = statement.unit, []
    # The study's own view comes first.
    for claim in statement.claims:
        if claim.view != statement.claims[0].view:
            continue
        what = guessed(claim.relation, unit)
        said.append(f"{what} in at most {percent_up(claim.right)} of cases")
    # Of a whole client there is nothing else to know at its site.
    where = "at all other sites" if unit == "client" else f"about the data of {statement.site}"
    return (
        f"Whoever is within the view below, knows all else {where} and guesses "
        f"at even odds, is right about {'; or about '.join(said)}."
    )
