"""Records what a client has spent, as an append-only hash chain.

Pure: a ledger goes in and a longer one comes out. A store makes it durable, and must do so for
`spend` before a record is read and for `seal` before anything is sent. No entry holds a clock's
time or a digest of data.

    spend ─► reserved ─► seal ─► sealed ─► mark_sent ─► sent

A slot stays charged for ever, whatever becomes of it; sending a sealed release again is free.
"""

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
    index_of,
    is_lifetime,
    is_noised,
    last_hash,
    tally,
    to_lines,
    verify,
)
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.events import (
    Event,
    Relation,
    compose,
)
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
"""The part of a lifetime's δ that is kept for the tables that noise is drawn from."""


class Anchor(NamedTuple):
    """How far a ledger had come when another party saw it.

    Args:
      entries: how many.
      hash: of the last one, or of the header.

    >>> str(Anchor(3, "ab12"))
    '3:ab12'
    """

    entries: int
    hash: str

    def __str__(self) -> str:
        return f"{self.entries}:{self.hash}"


@dataclass(frozen=True)
class Budget:
    """What may be spent: (epsilon, delta) for all releases of a ledger together.

    Args:
      epsilon: finite, 0 or more.
      delta: at least 0 and below 1.
      accountant: what it is checked with; its relation must be the ledger's.

    Raises:
      ConfigError: a number is out of its range.
      PrivacyError: the accountant is none of `accountants.__all__`, whose bounds hold everywhere.
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
                f"accountant {self.accountant.name!r} is no upper bound everywhere, and no budget is "
                "checked against it",
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


def lifetime_header(
    site: str,
    unit: str,
    relation: Relation,
    table_distance: float = 0.0,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Header:
    """Returns the header of the ledger that charges every study of a site, whatever it is.

    Args:
      site: whose.
      unit: what is protected.
      relation: under which the cap is counted.
      table_distance: the largest of any study's noise that may be charged to it.
      epsilon, delta: the cap, δ as a whole, so that what is spent can be recomputed beside it; both
        or none. The filter has all of δ but its ``TABLES_SHARE``.

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
    """Returns the composition of all that was ever reserved, in order."""
    return compose(*(entry.event for entry in ledger.entries if entry.event is not None))


def spend(
    ledger: Ledger, release_id: str, event: Event, budget: Budget | RdpFilter | None
) -> Ledger:
    """Reserves a release, before a solver is given any record for it.

    Guarantee: if every release of a ledger was reserved here with the same budget, and cost no more
    than its event says, then all of them together are (budget.epsilon, budget.delta)-DP for the
    header's unit, relation and view. The releases may be chosen adaptively; their number and
    their events may not, since this adds up prices of a plan fixed in advance and is no privacy
    filter. The epsilon to state is that of the largest number of releases the study declares,
    whenever it stops. With an `RdpFilter` in the budget's place they may: see there.

    The header's ``table_distance`` is part of the price: δ is checked as a whole.

    Args:
      ledger: what was spent before.
      release_id: new in this ledger.
      event: what the release will cost.
      budget: None only where the header says that nothing is protected. At most what the header
        promises, if it promises anything.

    Raises:
      BudgetExceeded: this release would cost more than is left; nothing was reserved.
      PrivacyError: the event, or the missing budget, does not fit a protected ledger.
      UnsupportedEvent: the budget's accountant does not know the event.
      LedgerError: ``release_id`` was reserved before.
    """
    _check_new(ledger, release_id)
    guarded = ledger.header.protected or budget is not None
    if guarded and not is_noised(event):
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
    """Reserves a release whose bytes another party has already: whatever the budget has left.

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
    """Records the digest of the noised bytes, which are from now on all that may be sent.

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
    """Records that the sealed bytes were sent; once is enough, and again changes nothing.

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
    """Counts the releases that were ever reserved."""
    return sum(entry.kind == "reserved" for entry in ledger.entries)


def state(ledger: Ledger, release_id: str) -> State | None:
    """Returns how far a release has come; None if it was never reserved."""
    steps = index_of(ledger).steps.get(release_id, ())
    reached = (kind for position, kind in reversed(steps) if position < len(ledger.entries))
    return next(reached, None)


def digest(ledger: Ledger, release_id: str) -> str | None:
    """Returns the digest of a release's noised bytes; None if it was not sealed."""
    found = state(ledger, release_id)
    return None if found in (None, "reserved") else index_of(ledger).digests[release_id]


def anchor(ledger: Ledger) -> Anchor:
    """Returns what another party should keep, to detect later that entries went missing."""
    return Anchor(len(ledger.entries), last_hash(ledger))


def check_anchor(ledger: Ledger, seen: Anchor) -> None:
    """Checks that a verified ledger extends what another party saw of it.

    Guarantee: with `verify`, a ledger that passes holds every entry up to the anchor, byte for
    byte: SHA-256 chains them. What came after the anchor may still be missing.

    Raises:
      LedgerError: entries are missing from the end (a restored backup, a truncated file), or the
        ledger tells another story from some entry on (a fork, or a chain rewritten as a whole).
    """
    count = len(ledger.entries)
    if seen.entries < 0:
        raise LedgerError(f"the anchor counts {seen.entries} entries, expected 0 or more")
    if count < seen.entries:
        raise LedgerError(
            f"the ledger of {ledger.header.client!r} holds {count} entries, and {seen.entries} were "
            "seen before",
            hint="it was cut, or restored from a backup: what was spent since is forgotten in it",
        )
    found = last_hash(ledger._replace(entries=ledger.entries[: seen.entries]))
    if found != seen.hash:
        raise LedgerError(
            f"the ledger of {ledger.header.client!r} has hash {found} after {seen.entries} entries, "
            f"and {seen.hash} was seen before",
            hint="two ledgers grew from one, or this one was written anew; look for the other",
        )


def check_counterpart(ledger: Ledger, seen: Anchor, holder: Literal["client", "server"]) -> None:
    """Checks one party's ledger of a client against how far the other party's is.

    Both keep the same chain. Whoever has the longer one can tell: the shorter must be its beginning,
    and what it lacks must be on its way. A server is ahead by a task that it charged and the client
    did not take up, or by the arrival of an answer; a client by further attempts at a task that the
    server charged, and by an answer that did not arrive.

    Guarantee: of a party that was rolled back (a restored backup, a truncated file) at most what was
    on its way is missing, which both know and do again byte for byte, or charge anew.

    Args:
      ledger: verified, of the party that checks.
      seen: the other party's anchor; if it is ahead, it is for that party to check.
      holder: who checks.

    Raises:
      LedgerError: says which party's ledger was rolled back, or that the two tell other stories.
    """
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
                "the two read one study and make different promises of it",
                hint="use the same version of fedvi, and of its dependencies, at both ends: noise "
                "that each calibrates for itself must come out alike; `fedvi ledger show` prints both",
            ) from error
        raise LedgerError(
            f"the ledgers of {name!r} at client and server are not the same: {error.message}",
            hint="was one of them written anew, or is another copy of this client at work? "
            "compare them with `fedvi ledger show`",
        ) from error
    beyond = ledger.entries[seen.entries :]
    kinds = [entry.kind for entry in beyond]
    # The first attempt is charged by the server before the client hears of the task, the others by
    # the client before the server hears of them.
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
            hint=f"restore the newest state of the {other}; without it this study cannot go on for "
            f"{name!r}, since what was spent is forgotten there",
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
    # By the header's view, whatever the budget was made for.
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
    """Writes two numbers with as many digits as it takes to tell them apart."""
    for digits in range(3, 17):
        texts = f"{found:.{digits}g}", f"{allowed:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(found), repr(allowed)
