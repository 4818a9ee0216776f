"""Verifies and prices the ledgers behind a report.

Never repeats a price that the run wrote: every ε here is recomputed from the ledger.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvi import errors
from fedvi.privacy import events, joint_claims, ledger, statement
from fedvi.privacy.ledger import Header, Ledger
from fedvi.privacy.statement import Claim
from fedvi.report.contents import Claimed, Spending, Statement
from fedvi.results import ledger_files
from fedvi.server.watch.page_spending import thinned
from fedvi.study.config import Study

__all__ = [
    "check_consortium",
    "claims_of",
    "excesses",
    "joined",
    "read",
    "spending",
    "state",
    "state_all",
]

# The most points of ε over releases; each needs a composition of its own.
_POINTS = 8
# Relative tolerance, since a recomputed ε may differ in its last digits.
_ROUNDING = 1e-6
_ELSEWHERE = (
    "records of the same person at another site: this is the price of this site's records alone; the "
    "statement of all sites together has that of a person who is at each of them"
)
_VIEWS = {
    "message": (
        "whoever sees every message that leaves the site, and all that is published: the server, other "
        "sites, or all of them together"
    ),
    "aggregate": "whoever sees what the server publishes; the server itself is trusted",
}
_MASKED = (
    "whoever sees all that leaves a site and all that is published: answers are masked, and no server is "
    "trusted"
)
_MECHANISMS = {
    "rounded_gaussian": "Gaussian noise, rounded, on sums of integers (rounded_gaussian)",
    "discrete_gaussian": "discrete Gaussian noise on sums of integers (discrete_gaussian)",
    "gaussian": "Gaussian noise in floating point (gaussian)",
}


def read(
    path: Path, clients: Sequence[str], digests: Sequence[str], heads: Mapping[str, str]
) -> dict[str, Ledger]:
    """Reads and verifies the ledger of every client of a run.

    Args:
      path: a folder of exported ledgers, or a server's database.
      clients: those of the study.
      digests: of the study, as its ledgers may carry them.
      heads: client → the head of its ledger in the run's own result, ENTRIES:HASH; empty if the result is
        of a version that kept none.

    Raises:
      LedgerError: a ledger is damaged, missing, of another client or study, or does not end at the head
        in the result.
    """
    known, found = frozenset(clients), dict[str, Ledger]()
    for book in ledger_files.read(path):
        if book.ledger is None:
            raise errors.LedgerError(
                f"{book.path} does not verify: {book.problem}",
                "no statement rests on a damaged ledger: `fedvi ledger verify` says more",
            )
        header = book.ledger.header
        if header.client not in known or header.client in found:
            raise errors.LedgerError(
                f"{book.path} is of client {header.client!r}, expected one ledger of each client of the "
                "study",
                "the folder holds files of two runs",
            )
        if book.path.suffix == ".jsonl" and book.path.stem != header.client:
            raise errors.LedgerError(
                f"{book.path} is of client {header.client!r}, expected the client of the file's name",
                "ledgers were swapped: put each back under its own name",
            )
        if header.study_digest not in digests:
            raise errors.LedgerError(
                f"{book.path} is of the study {header.study_digest[:16]}…, expected {digests[0][:16]}…",
                "the folder holds files of two runs",
            )
        found[header.client] = book.ledger
    for name in clients:
        if name not in found:
            raise errors.LedgerError(
                f"{path} holds no ledger of client {name!r}, expected one of each client",
                "a statement needs all that a client was charged: put its ledger back",
            )
        head = str(ledger.anchor(found[name]))
        if heads.get(name, head) != head:
            raise errors.LedgerError(
                f"the ledger of {name!r} ends at {head}, and the result of the run says {heads[name]}",
                "one of them was changed, or is of another run; of a run that goes on, wait for its end",
            )
    return {name: found[name] for name in clients}


def claims_of(
    books: Mapping[str, Ledger],
    more: Sequence[str],
    told: Mapping[str, Mapping[str, float]],
    source: str = "ledger",
) -> dict[str, tuple[Claim, ...]]:
    """States each client's claims from its ledger, under each relation; none without protection.

    Args:
      books: client → its ledger, verified.
      more: exclusions unknown to ledgers, one line each.
      told: client → relation → the ε that the run's own result states; empty if it states none.
      source: what ``books`` are, in one word, for error messages.

    Raises:
      LedgerError: the result states a smaller ε than the ledger costs.
    """
    known: dict[tuple[ledger.Header, events.Event], list[Claim]] = {}
    found = {}
    for name, book in books.items():
        # Ledgers that differ only in their client cost the same.
        key = (book.header._replace(client=""), ledger.tally(book))
        if key not in known:
            known[key] = [c for c in ledger_files.stated([book]) if c.client == name]
        claims = tuple(
            claim._replace(client=name, exclusions=(*claim.exclusions, *more))
            for claim in known[key]
        )
        for claim in claims:
            stated = told.get(name, {}).get(claim.relation, claim.epsilon)
            # Written so that NaN is refused.
            if claim.view == book.header.view and not claim.epsilon <= stated * (1 + _ROUNDING):
                raise errors.LedgerError(
                    f"the {source} of {name!r} costs epsilon {claim.epsilon:.6g} under {claim.relation}, "
                    f"and the result of the run says {stated:.6g}",
                    "the result was changed, or is of another run",
                )
        found[name] = claims
    return found


def joined(claims: Mapping[str, tuple[Claim, ...]], disjoint: bool) -> tuple[Claim, ...]:
    """Joins the claims of all clients into one for each view and relation; none without protection."""
    parts = [claim for found in claims.values() for claim in found]
    return joint_claims.consortium(parts, disjoint) if parts else ()


def check_consortium(
    told: Sequence[Mapping[str, Any]], stated: Sequence[Claim], source: str = "ledgers"
) -> None:
    """Checks the result's joint claims for all clients against the recomputed ones.

    A larger ε or δ than recomputed is accepted: what it claims is true as well.

    Args:
      told: ``consortium`` of the result, whose shape ``result_json.read`` has checked.
      stated: from ``joined``.
      source: what they were priced from, for error messages. Releases are compared only for "ledgers",
        since a plan has none.

    Raises:
      LedgerError: a claim's relation and view were not priced, its ε is too small, or another field
        differs.
    """
    priced = {(claim.view, claim.relation): claim for claim in stated}
    for place, row in enumerate(told):
        claim = priced.get((row["view"], row["relation"]))
        if claim is None:
            known = "; ".join(f"{relation}, view {view}" for view, relation in priced)
            said = f"{row['relation']}, view {row['view']}"
            raise _contradiction(f"consortium.{place}", said, source, known or "no claim at all")
        epsilon, delta = float(row["epsilon"]), float(row["delta"])
        # Written so that NaN is refused.
        if not claim.epsilon <= epsilon * (1 + _ROUNDING):
            of = f"{claim.epsilon:.6g} under {claim.relation}, view {claim.view}"
            raise _contradiction(f"consortium.{place}.epsilon", f"{epsilon:.6g}", source, of)
        if not claim.delta <= delta * (1 + _ROUNDING):
            given = f"{claim.delta:.6g}"
            raise _contradiction(f"consortium.{place}.delta", f"{delta:.6g}", source, given)
        for field in ("unit", "accountant", "mark", "releases"):
            said, found = row[field], getattr(claim, field)
            if said != found and (field != "releases" or source == "ledgers"):
                raise _contradiction(f"consortium.{place}.{field}", repr(said), source, repr(found))


def _contradiction(field: str, said: str, source: str, given: str) -> errors.LedgerError:
    return errors.LedgerError(
        f"`{field}` of the result says {said}, and the {source} of the run give {given}",
        "the result was changed, or is of another run",
    )


def spending(
    books: Mapping[str, Ledger], claims: Mapping[str, tuple[Claim, ...]]
) -> tuple[Spending, ...]:
    """Prices prefixes of every ledger with a promise; clients with equal ledgers are priced once.

    The running ε is for information: only the ε of the whole plan may be stated.
    """
    groups: dict[tuple[ledger.Header, tuple[events.Event, ...]], list[str]] = {}
    for name, book in books.items():
        made = tuple(entry.event for entry in book.entries if entry.event is not None)
        groups.setdefault((book.header._replace(client=""), made), []).append(name)
    found = []
    for (header, made), names in groups.items():
        counts = tuple(thinned(len(made), _POINTS))
        for claim in claims[names[0]]:
            if claim.view != header.view:
                continue
            priced = [
                ledger_files.priced(
                    header.accountant,
                    claim.relation,
                    header.table_distance,
                    header.sums,
                    events.compose(*made[:count]),
                    claim.delta,
                )
                for count in counts
            ]
            promised = header.epsilon if claim.relation == header.relation else None
            found.append(
                Spending(
                    tuple(names), claim.relation, counts, tuple(priced), claim.epsilon, promised
                )
            )
    return tuple(found)


def excesses(book: Ledger) -> tuple[str, ...]:
    """Lists where a ledger exceeds its promise; empty without protection."""
    return tuple(ledger_files.excesses(book)) if book.header.protected else ()


def state(study: Study, book: Ledger, claims: Sequence[Claim], lifetime: str = "") -> Statement:
    """Writes one site's statement: its claims, and all that they rest on.

    Args:
      study: the ledger's.
      book: verified.
      claims: of the same client, one for each relation.
      lifetime: what the site has spent over all studies, in words; or empty.
    """
    header = book.header
    found = _stated(header, claims, each=True)
    shared = found.protected and len(study.clients) > 1
    several = not study.privacy.disjoint
    together = statement.together(header.unit, header.view)
    return found._replace(
        site=header.client,
        excluded=(*found.excluded, *((_ELSEWHERE if several else together,) if shared else ())),
        facts=_facts(study, book),
        releases=ledger.reservations(book),
        head=str(ledger.anchor(book)),
        mark=header.mark,
        exceeded=excesses(book),
        lifetime=lifetime,
    )


def state_all(
    books: Mapping[str, Ledger], claims: Mapping[str, tuple[Claim, ...]], disjoint: bool
) -> Statement | None:
    """Joins the claims of all clients; None without protection, or for a single client."""
    found = joined(claims, disjoint)
    if not found or len(books) < 2:
        return None
    return _stated(next(iter(books.values())).header, found, each=disjoint)._replace(
        site=f"all {len(books)} sites", releases=found[0].releases, mark=found[0].mark
    )


def _stated(header: ledger.Header, claims: Sequence[Claim], each: bool) -> Statement:
    """Writes the part that a site's statement and the joint statement have in common.

    Args:
      claims: one for each relation.
      each: whether claims are compared with the promise to each client.
    """

    def lines(field: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line for claim in claims for line in getattr(claim, field)))

    own = header.relation, header.view

    return Statement(
        site="",
        protected=header.protected and bool(claims),
        unit=header.unit,
        view=_view(header),
        accountant=", ".join(dict.fromkeys(claim.accountant for claim in claims)),
        claims=tuple(
            Claimed(
                relation=claim.relation,
                view=claim.view,
                neighbours=statement.neighbours(claim.relation, claim.unit),
                epsilon=claim.epsilon,
                delta=claim.delta,
                promised=header.epsilon if each and (claim.relation, claim.view) == own else None,
                parts=_parts(claim),
                right=claim.right or statement.right_guess(claim.epsilon, claim.delta),
                by_epsilon=statement.right_guess(claim.epsilon, claim.delta),
            )
            for claim in claims
        ),
        facts=(),
        releases=0,
        head="",
        mark="",
        exceeded=(),
        declared=lines("declarations"),
        assumed=lines("assumptions"),
        excluded=lines("exclusions"),
        lifetime="",
    )


def _facts(study: Study, book: Ledger) -> tuple[tuple[str, str], ...]:
    header = book.header
    if not header.protected:
        return (("mechanism", "none: un-noised statistics may leave"),)
    found = [("mechanism", _MECHANISMS.get(study.privacy.mechanism, study.privacy.mechanism))]
    clip_norm = study.solver.arguments.get("clip_norm")
    if isinstance(clip_norm, int | float):
        found.append(
            ("clip norm", f"{clip_norm:g}: the largest part of one {header.unit} in a sum")
        )
    made = ledger.tally(book)
    whole = made == header.planned
    if header.planned is not None:
        more = "; each was charged, also one that was lost" if whole else ""
        said = f"its sd, as a multiple of the most that one {header.unit} can add{more}"
        found.append(("answers allowed", f"{ledger_files.words(header.planned)}: {said}"))
    if not whole:
        charged = ledger_files.words(made) if ledger.reservations(book) else "none"
        found.append(("answers charged", charged))
    return tuple(found)


def _parts(claim: Claim) -> tuple[tuple[str, float], ...]:
    if claim.items is None:
        return ()
    names = {
        "mechanism": "mechanism",
        "overflow": "overflow of batches",
        "tables": "tables of noise",
    }
    return tuple((names[name], value) for name, value in claim.items._asdict().items())


def _view(header: Header) -> str:
    """Describes the adversary against which a price holds."""
    said = _MASKED if header.secure else _VIEWS.get(header.view, "")
    return f"{header.view}: {said}" if said else header.view
