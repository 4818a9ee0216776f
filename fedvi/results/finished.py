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
"""Printed beside everything that is computed from a posterior without records."""


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
      posterior: η of a proper q, of any family.
      mark: of the posterior and the ledgers; empty if nothing needs saying.
      digest: of the study as it was run.
      claims: the consortium's claims, by view and relation: plain values, see ``statement.as_dict``,
        computed here and never copied. Empty where nothing was protected.
      basis: what the claims rest on, in words; empty if there are none.
    """

    assembly: Assembly
    posterior: Eta
    mark: str
    digest: str
    claims: tuple[Mapping[str, Any], ...]
    basis: str = ""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.assembly.study.study.name

    @property
    def title(self) -> str:
        """The study's name, and the mark if there is one."""
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
            # A claim for sums has claims for single messages beside it; a full statement shows those.
            if claim["view"] == first["view"]
        )
        return (
            f"epsilon {said} at delta {tables.bound(float(first['delta']))} for one "
            f"{first['unit']}, view {first['view']}, accountant {first['accountant']}"
            + (f"; MARK: {self.mark}" if self.mark else "")
            + (f"; {_BY_WORD}" if self.basis == _BY_WORD else "")
        )


def read(folder: Path) -> Finished:
    """Reads the folder written by `fedvi simulate --out` or a server.

    Its claims are priced from its ledgers, as in a report. Without ledgers, as in a folder handed on
    without them, the claims are the price of the study's plan, and ``basis`` says so. In both cases the
    ε in the run's own result must be at least as large.

    Raises:
      ConfigError: a file is missing or damaged, or they do not belong together; or q is improper.
      LedgerError: a ledger does not verify, or the result claims a smaller ε than was priced.
    """
    found = run_folder.read(folder)
    assembly, result = assemble(found.study), found.result
    kept = posteriors.read(found.posterior, assembly.family, assembly.model.names)
    run_folder.check_told(found.study, result, found.posterior)
    if not found.study.privacy.private:
        return Finished(assembly, kept.eta, kept.mark, found.digests[0], ())
    if found.ledgers.exists():
        heads = result_json.heads(result)
        books = report_ledgers.read(found.ledgers, assembly.clients, found.digests, heads)
        claims, basis = _claims(assembly, books, result, "ledger"), _FROM_LEDGERS
    else:
        # Of initial ledgers the price is that of the study's largest plan.
        books = {name: ledger.open_ledger(assembly.header(name)) for name in assembly.clients}
        claims, basis = _claims(assembly, books, result, "plan"), _BY_WORD
    # Every ledger's mark is kept, whatever the posterior's file has.
    marks = (kept.mark, *(book.header.mark for book in books.values()))
    mark = "; ".join(dict.fromkeys(filter(None, marks)))
    return Finished(assembly, kept.eta, mark, found.digests[0], claims, basis)


def origin(run: Finished) -> dict[str, Any]:
    """Returns a file's origin and privacy cost as plain values, to be written beside it."""
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


def _claims(
    assembly: Assembly, books: Mapping[str, Ledger], result: Mapping[str, Any], source: str
) -> tuple[Mapping[str, Any], ...]:
    """Prices ledgers, or the plan in their place, and compares the run's result with that price.

    Raises:
      LedgerError: the result claims a smaller ε.
    """
    more, told = result_json.unknown_to_ledgers(result), result_json.told(result)
    each = report_ledgers.claims_of(books, more, told, source)
    joined = report_ledgers.joined(each, assembly.study.privacy.disjoint)
    report_ledgers.check_consortium(result.get("consortium", ()), joined, f"{source}s")
    # For a plan, the number of releases is unknown.
    unknown = {} if source == "ledger" else {"releases": None}
    return tuple(statement.as_dict(claim) | unknown for claim in joined)
