"""Reads a finished run from its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedvi import __version__
from fedvi.privacy import ledger, statement
from fedvi.privacy.ledger import Ledger
from fedvi.report import tables
from fedvi.results import posterior as posteriors
from fedvi.results import report_ledgers, result_json, run_folder
from fedvi.study.build import Assembly, assemble
from fedvi.typing import Eta

__all__ = ["FREE", "Finished", "origin", "read"]

FREE = (
    "made of the posterior alone, which was released and paid for: it costs nothing further, however "
    "often it is made (post-processing)"
)
"""What is said beside everything that is computed from a posterior and no record."""


_FROM_LEDGERS = (
    "priced anew from the ledgers in the run's folder, one of each site, which verify: each site must "
    "compare them with its own"
)
_BY_WORD = (
    "the word of whoever ran it: no ledger is in its folder, and what is stated is the price of the "
    "study's largest plan. That no more was released cannot be told from this folder"
)


class Finished(NamedTuple):
    """A finished run.

    Attributes:
      assembly: its study, built.
      posterior: η of a proper q, of whatever family.
      mark: that of the posterior and of the ledgers; empty if nothing needs saying.
      digest: of the study as it was run.
      claims: what the consortium may claim, by view and relation: plain values, see
        ``statement.as_dict``, computed here and never copied. Empty where nothing was protected.
      basis: what the claims rest on, in words; empty where there is none.
    """

    assembly: Assembly
    posterior: Eta
    mark: str
    digest: str
    claims: tuple[Mapping[str, Any], ...]
    basis: str = ""

    @property
    def name(self) -> str:
        """Of the study."""
        return self.assembly.study.study.name

    @property
    def title(self) -> str:
        """Its name, and the mark if there is one."""
        return self.name + (f" — {self.mark}" if self.mark else "")

    @property
    def claimed(self) -> str:
        """The claims in one line."""
        if not self.claims:
            return "no claim: what left the sites was not protected (epsilon is infinite)"
        first = self.claims[0]
        said = ", ".join(
            f"{tables.bound(float(claim['epsilon']))} ({claim['relation']})"
            for claim in self.claims
            # What single messages tell stands beside a claim for sums of them, in a statement.
            if claim["view"] == first["view"]
        )
        return (
            f"epsilon {said} at delta {tables.bound(float(first['delta']))} for one "
            f"{first['unit']}, view {first['view']}, accountant {first['accountant']}"
            + (f"; MARK: {self.mark}" if self.mark else "")
            + (f"; {_BY_WORD}" if self.basis == _BY_WORD else "")
        )


def read(folder: Path) -> Finished:
    """Reads what `fedvi simulate --out` or a server left in a folder.

    What it claims is priced from its ledgers, as a report does. Where there are none, such as in a folder
    that was handed on without them, it is the price of the study's plan, and said to be so. What the
    run's own result claims must be borne by either.

    Raises:
      ConfigError: it is not there, damaged, or does not belong together; or q is improper.
      LedgerError: a ledger does not verify, or the result claims less than was priced.
    """
    found = run_folder.read(folder)
    assembly, result = assemble(found.study), found.result
    kept = posteriors.read(found.posterior, assembly.family, assembly.model.names)
    if not found.study.privacy.private:
        return Finished(assembly, kept.eta, kept.mark, found.digests[0], ())
    if found.ledgers.exists():
        heads = result_json.heads(result)
        books = report_ledgers.read(found.ledgers, assembly.clients, found.digests, heads)
        claims, basis = _claims(assembly, books, result, "ledger"), _FROM_LEDGERS
    else:
        books = _planned(assembly)
        claims, basis = _claims(assembly, books, result, "plan"), _BY_WORD
    # None of a ledger's is lost, whatever was kept beside the posterior.
    marks = (kept.mark, *(book.header.mark for book in books.values()))
    mark = "; ".join(dict.fromkeys(filter(None, marks)))
    return Finished(assembly, kept.eta, mark, found.digests[0], claims, basis)


def origin(run: Finished) -> dict[str, Any]:
    """Returns where a file came from and what that cost: plain values, for a file beside it."""
    return {
        "fedvi": __version__,
        "study": run.name,
        "digest": run.digest,
        "mark": run.mark,
        "protection": run.assembly.study.privacy.protection,
        "claims": [dict(claim) for claim in run.claims],
        "claimed": run.claimed,
        "basis": run.basis,
    }


def _planned(assembly: Assembly) -> dict[str, Ledger]:
    """Returns the ledgers with which all clients begin: priced, they cost the study's largest plan."""
    return {name: ledger.open_ledger(assembly.header(name)) for name in assembly.clients}


def _claims(
    assembly: Assembly, books: Mapping[str, Ledger], result: Mapping[str, Any], source: str
) -> tuple[Mapping[str, Any], ...]:
    """Prices ledgers, or the plan in their place, and holds the result of the run against it.

    Raises:
      LedgerError: the result claims less.
    """
    more, told = result_json.unknown_to_ledgers(result), result_json.told(result)
    each = report_ledgers.claims_of(books, more, told, source)
    joined = report_ledgers.joined(each, assembly.study.privacy.disjoint)
    report_ledgers.check_consortium(result.get("consortium", ()), joined, f"{source}s")
    return tuple(_plain(claim, made=source == "ledger") for claim in joined)


def _plain(claim: statement.Claim, made: bool) -> Mapping[str, Any]:
    """Writes a claim as plain values; of a plan nobody knows how much of it was released."""
    values = statement.as_dict(claim)
    return values if made else {**values, "releases": None}
