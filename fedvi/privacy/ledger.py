"""Records what a client has spent, as an append-only hash chain.

All functions are pure: they take a ledger and return a longer one. A store makes it durable, and must do
so after `spend` before any record is read, and after `seal` before anything is sent. No entry holds a
time or a digest of data.

    spend ─► reserved ─► seal ─► sealed ─► mark_sent ─► sent

A reserved release stays charged forever, even if it is never sent. Resending a sealed release is free.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedvi.errors import BudgetExceeded, ConfigError, LedgerError, PrivacyError
from fedvi.privacy import accountants
from fedvi.privacy._chain import (
    LIFETIME,
    Entry,
    Header,
    Ledger,
    State,
    append,
    check_header,
    from_lines,
    holds,
    index_of,
    is_lifetime,
    last_hash,
    tally,
    to_lines,
    verify,
)
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.events import Event, Relation, Unprotected, compose
from fedvi.privacy.filter import RdpFilter
from fedvi.privacy.sums import of_messages, with_sums

__all__ = [
    "LIFETIME",
    "TABLES_SHARE",
    "Anchor",
    "Budget",
    "Entry",
    "Header",
    "Ledger",
    "State",
    "anchor",
    "charge",
    "check_anchor",
    "check_counterpart",
    "digest",
    "from_lines",
    "is_lifetime",
    "lifetime_header",
    "mark_sent",
    "open_ledger",
    "open_ledgers",
    "reservations",
    "seal",
    "spend",
    "spent",
    "state",
    "tally",
    "to_lines",
    "verify",
]

TABLES_SHARE = 1e-3
"""The share of δ, of a lifetime's cap or a descent's promise, that is reserved for the noise tables."""


class Anchor(NamedTuple):
    """The end of a ledger as another party saw it.

    Args:
      entries: their number.
      hash: of the last entry, or of the header.

    >>> str(Anchor(3, "ab12"))
    '3:ab12'
    """

    entries: int
    hash: str

    def __str__(self) -> str:
        return f"{self.entries}:{self.hash}"


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) that all releases of a ledger together may spend.

    Args:
      epsilon: finite, 0 or more.
      delta: at least 0 and below 1.
      accountant: checks the budget; its relation must be the ledger's.

    Raises:
      ConfigError: a number is out of its range.
      PrivacyError: the accountant is not one of `accountants.__all__`, whose bounds hold everywhere.
    """

    epsilon: float
    delta: float
    accountant: Accountant

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < float("inf"):
            raise ConfigError(f"epsilon is {self.epsilon}, expected a finite number of 0 or more")
        if not 0 <= self.delta < 1:
            raise ConfigError(f"delta is {self.delta}, expected at least 0 and below 1")
        if self.accountant.name not in accountants.__all__:
            raise PrivacyError(
                f"accountant {self.accountant.name!r} gives no upper bound for some events, so no budget "
                "can be checked with it",
                hint=f"use one of {', '.join(accountants.__all__)}",
            )


def open_ledger(header: Header) -> Ledger:
    """Starts a ledger without entries.

    >>> header = Header("heart", "ab12", "north", "record", "substitute", "message", True)
    >>> open_ledger(header).entries
    ()
    """
    check_header(header)
    return Ledger(header, ())


def open_ledgers(headers: Mapping[str, Header]) -> dict[str, Ledger]:
    """Starts the ledgers of many clients, whose headers may differ in the client alone."""
    books: dict[str, Ledger] = {}
    checked: Header | None = None
    for name, header in headers.items():
        alike = checked is not None and checked._replace(client=header.client)
        named = type(header.client) is str and header.client
        # The very same objects: 1 equals 1.0, and is written otherwise.
        if not (named and alike and all(map(operator.is_, header, alike))):
            check_header(header)
            checked = header
        books[name] = Ledger(header, ())
    return books


def lifetime_header(
    site: str,
    unit: str,
    relation: Relation,
    table_distance: float = 0.0,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Header:
    """Returns the header of a lifetime ledger, which charges every study of a site.

    Args:
      site: its name.
      unit: what is protected.
      relation: the neighbouring relation of the cap.
      table_distance: the largest table distance of any study that may be charged to this ledger.
      epsilon, delta: the cap; both or none. δ is the whole one, so that the spent share can be
        recomputed. The filter gets δ less its ``TABLES_SHARE``.

    >>> is_lifetime(lifetime_header("north", "record", "substitute"))
    True
    """
    return Header(
        LIFETIME,
        LIFETIME,
        site,
        unit,
        relation,
        "message",
        True,
        epsilon=epsilon,
        delta=delta,
        table_distance=table_distance,
    )


def spent(ledger: Ledger) -> Event:
    """Returns the composition of all reserved events, in order."""
    return compose(*(entry.event for entry in ledger.entries if entry.event is not None))


def spend(
    ledger: Ledger, release_id: str, event: Event, budget: Budget | RdpFilter | None
) -> Ledger:
    """Reserves a release; call it before a solver gets any record for that release.

    Guarantee: if every release of a ledger was reserved here with the same budget, and cost no more
    than its event says, then all of them together are (budget.epsilon, budget.delta)-DP for the
    header's unit, relation and view. The releases may be chosen adaptively; their number and
    their events may not, since this adds up prices of a plan fixed in advance and is no privacy
    filter. The epsilon to state is that of the largest number of releases the study declares,
    whenever it stops. With an `RdpFilter` in the budget's place they may: see there.

    The price includes the header's ``table_distance``: δ is checked as a whole.

    Args:
      ledger: what was spent before.
      release_id: new in this ledger.
      event: the cost of the release.
      budget: None only if the header is not protected. It must not exceed the header's promise, if there
        is one.

    Raises:
      BudgetExceeded: this release would cost more than is left; nothing was reserved.
      PrivacyError: the event, or the missing budget, does not fit a protected ledger.
      UnsupportedEvent: the budget's accountant does not know the event.
      LedgerError: ``release_id`` was reserved before.
    """
    _check_new(ledger, release_id)
    guarded = ledger.header.protected or budget is not None
    if guarded and holds(event, Unprotected):
        raise PrivacyError(
            f"release {release_id!r} is unprotected ({event}), and the ledger of "
            f"{ledger.header.client!r} is not",
            hint="add noise, or declare in the study that nothing is protected",
        )
    if budget is None and ledger.header.protected:
        raise PrivacyError(
            f"release {release_id!r} has no budget, and the ledger of {ledger.header.client!r} "
            "is protected",
            hint="give epsilon and delta, or declare in the study that nothing is protected",
        )
    if isinstance(budget, RdpFilter):
        _check_filter(ledger, release_id, event, budget)
    elif budget is not None:
        _check_budget(ledger, release_id, event, budget)
    return append(ledger, "reserved", release_id, event=event)


def charge(ledger: Ledger, release_id: str, event: Event) -> Ledger:
    """Reserves a release that another party already holds, even beyond the budget.

    Args:
      ledger: what was spent before.
      release_id: new in this ledger.
      event: what the release cost.

    Raises:
      LedgerError: ``release_id`` was reserved before.
    """
    _check_new(ledger, release_id)
    return append(ledger, "reserved", release_id, event=event)


def seal(ledger: Ledger, release_id: str, digest: str) -> Ledger:
    """Records the digest of the noised bytes; from then on only these bytes may be sent.

    Sealing again with the same digest changes nothing.

    Raises:
      LedgerError: the release was never reserved, or is sealed with another digest: fresh noise on
        the same data is another release and needs its own reservation.
    """
    if not digest:
        raise LedgerError(f"release {release_id!r}: digest is empty")
    current = state(ledger, release_id)
    if current is None:
        raise LedgerError(
            f"release {release_id!r} cannot be sealed: it was never reserved",
            hint="call `spend` before reading data",
        )
    if current == "reserved":
        return append(ledger, "sealed", release_id, digest=digest)
    sealed = index_of(ledger).digests[release_id]
    if sealed != digest:
        raise LedgerError(
            f"release {release_id!r} is sealed with digest {sealed}, not {digest}",
            hint="a retry sends the sealed bytes; other bytes are a new release",
        )
    return ledger


def mark_sent(ledger: Ledger, release_id: str) -> Ledger:
    """Records that the sealed bytes were sent; calling it again changes nothing.

    Raises:
      LedgerError: the release is not sealed.
    """
    current = state(ledger, release_id)
    if current == "sent":
        return ledger
    if current != "sealed":
        raise LedgerError(
            f"release {release_id!r} is {current or 'unknown'}, expected sealed",
            hint="only sealed bytes may be sent",
        )
    return append(ledger, "sent", release_id)


def reservations(ledger: Ledger) -> int:
    """Counts all reserved releases."""
    return sum(entry.kind == "reserved" for entry in ledger.entries)


def state(ledger: Ledger, release_id: str) -> State | None:
    """Returns the state of a release; None if it was never reserved."""
    steps = index_of(ledger).steps.get(release_id, ())
    reached = (kind for position, kind in reversed(steps) if position < len(ledger.entries))
    return next(reached, None)


def digest(ledger: Ledger, release_id: str) -> str | None:
    """Returns the digest of a release's noised bytes; None if it was not sealed."""
    found = state(ledger, release_id)
    return None if found in (None, "reserved") else index_of(ledger).digests[release_id]


def anchor(ledger: Ledger) -> Anchor:
    """Returns the anchor that another party should keep, to detect missing entries later."""
    return Anchor(len(ledger.entries), last_hash(ledger))


def check_anchor(ledger: Ledger, seen: Anchor) -> None:
    """Checks that a verified ledger extends what another party saw of it.

    Guarantee: with `verify`, a ledger that passes holds every entry up to the anchor, byte for
    byte: SHA-256 chains them. What came after the anchor may still be missing.

    Raises:
      LedgerError: entries are missing from the end (a restored backup, a truncated file), or the ledger
        differs from some entry on (a fork, or a chain rewritten as a whole).
    """
    count = len(ledger.entries)
    if seen.entries < 0:
        raise LedgerError(f"the anchor counts {seen.entries} entries, expected 0 or more")
    if count < seen.entries:
        raise LedgerError(
            f"the ledger of {ledger.header.client!r} holds {count} entries, and {seen.entries} were "
            "seen before",
            hint="it was truncated, or restored from a backup: it lacks what was spent since",
        )
    found = last_hash(ledger._replace(entries=ledger.entries[: seen.entries]))
    if found != seen.hash:
        raise LedgerError(
            f"the ledger of {ledger.header.client!r} has hash {found} after {seen.entries} entries, "
            f"and {seen.hash} was seen before",
            hint="two ledgers continue the same one, or this one was rewritten; look for the other",
        )


def check_counterpart(
    ledger: Ledger, seen: Anchor | None, holder: Literal["client", "server"]
) -> None:
    """Checks one party's ledger of a client against the anchor of the other party's.

    Client and server keep the same chain, and the party with the longer one can check. The shorter chain
    must be its beginning, and the missing entries must be in transit. A server is ahead by a task that it
    charged and the client has not begun, or by an answer that arrived. A client is ahead by further
    attempts at a task that the server charged, and by an answer that did not arrive.

    Guarantee: of a party that was rolled back (a restored backup, a truncated file) at most what was
    on its way is missing, which both know and do again byte for byte, or charge anew.

    Args:
      ledger: verified, of the party that checks.
      seen: the other party's anchor; if it is ahead, nothing is checked, since that party must check.
        None: the other party has no ledger of this client.
      holder: the party that checks.

    Raises:
      LedgerError: says which party's ledger was rolled back, that the two ledgers differ, or that the other
        party has none although something was charged.
    """
    if seen is None:
        if ledger.entries:
            raise LedgerError(
                f"the {'server' if holder == 'client' else 'client'} has no ledger of "
                f"{ledger.header.client!r}, and the {holder}'s has {len(ledger.entries)} entries",
                hint="its state was lost or replaced: go on from its newest state, or begin a new study",
            )
        return
    if seen.entries > len(ledger.entries):
        return
    other = "server" if holder == "client" else "client"
    name = ledger.header.client
    try:
        check_anchor(ledger, seen)
    except LedgerError as error:
        if not seen.entries:
            raise LedgerError(
                f"the ledgers of {name!r} at client and server are not the same from their headers on: "
                "they read the same study, but derive different promises from it",
                hint="use the same version of fedvi, and of its dependencies, on both sides: each "
                "calibrates the noise, and the results must agree; `fedvi ledger show` prints both",
            ) from error
        raise LedgerError(
            f"the ledgers of {name!r} at client and server are not the same: {error.message}",
            hint="was one of them rewritten, or is another copy of this client running? "
            "compare them with `fedvi ledger show`",
        ) from error
    beyond = ledger.entries[seen.entries :]
    kinds = [entry.kind for entry in beyond]
    # The server charges the first attempt before the client knows of the task. The client charges all
    # further attempts before the server knows of them.
    first = [e.release_id.endswith("#0") for e in beyond if e.kind == "reserved"]
    if holder == "server":
        on_its_way = kinds in ([], ["sent"], ["reserved"], ["sent", "reserved"]) and all(first)
    else:
        attempts = ["reserved"] * len(first)
        on_its_way = kinds in (attempts, [*attempts, "sealed"]) and not any(first)
    if not on_its_way:
        raise LedgerError(
            f"the {other}'s ledger of {name!r} was rolled back: it ends after {seen.entries} "
            f"entries, and the {holder}'s has {len(beyond)} more ({', '.join(kinds[:5])}"
            f"{', …' if len(kinds) > 5 else ''})",
            hint=(
                "start the server with its newest state"
                if other == "server"
                else "start the client with the folder that it wrote last, never with a backup"
            )
            + f"; without it this study cannot go on for {name!r}, since what was spent is forgotten there",
        )


def _check_new(ledger: Ledger, release_id: str) -> None:
    if not release_id:
        raise LedgerError("release_id is empty, expected a name that is new in this ledger")
    if state(ledger, release_id) is not None:
        raise LedgerError(
            f"release {release_id!r} was reserved before; it is {state(ledger, release_id)}",
            hint="send the sealed bytes again, or reserve a new release_id",
        )


def _check_budget(ledger: Ledger, release_id: str, event: Event, budget: Budget) -> None:
    header = ledger.header
    # The header's view decides, whatever view the budget's accountant was made for.
    accountant = with_sums(of_messages(budget.accountant), header.sums)
    accountant = with_tables(accountant, header.table_distance)
    _check_relation(ledger, accountant.relation)
    _check_promised(header, budget)
    already = tally(ledger)
    cost = accountant.epsilon(compose(already, event), budget.delta)
    if cost <= budget.epsilon:
        return
    reserved = reservations(ledger)
    stop = ""
    if reserved:
        before = accountant.epsilon(already, budget.delta)
        stop = f", or stop after the {reserved} that are reserved (epsilon {before:.4g})"
    found, allowed = _apart(cost, budget.epsilon)
    raise BudgetExceeded(
        f"release {release_id!r} would spend epsilon {found} of {allowed} (delta "
        f"{budget.delta:g}, accountant {accountant.name}, {accountant.relation})",
        hint=f"no more such releases fit: raise `noise_multiplier`{stop}",
    )


def _check_filter(ledger: Ledger, release_id: str, event: Event, cap: RdpFilter) -> None:
    _check_relation(ledger, cap.relation)
    _check_promised(ledger.header, cap)
    already = tally(ledger)
    if cap.admits(already, event):
        return
    raise BudgetExceeded(
        f"release {release_id!r} would exceed the cap of {ledger.header.client!r}: epsilon "
        f"{cap.epsilon:g} at delta {cap.delta:g} over all studies ({cap.relation})",
        hint=f"epsilon {cap.epsilon_of(already):.4g} is spent in {reservations(ledger)} releases; "
        "a release with more noise may still fit",
    )


def _check_promised(header: Header, budget: Budget | RdpFilter) -> None:
    for name, promised in (("epsilon", header.epsilon), ("delta", header.delta)):
        if promised is not None and getattr(budget, name) > promised:
            raise PrivacyError(
                f"the budget's {name} is {getattr(budget, name):g}, and the ledger of "
                f"{header.client!r} promises {promised:g}",
                hint="a budget is at most what was promised",
            )


def _check_relation(ledger: Ledger, relation: Relation) -> None:
    if relation != ledger.header.relation:
        raise PrivacyError(
            f"the budget is priced under {relation}, the ledger of {ledger.header.client!r} "
            f"declares {ledger.header.relation}",
            hint="give the budget an accountant of the declared relation",
        )


def _apart(found: float, allowed: float) -> tuple[str, str]:
    """Formats two numbers with enough digits to tell them apart."""
    for digits in range(3, 17):
        texts = f"{found:.{digits}g}", f"{allowed:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(found), repr(allowed)
