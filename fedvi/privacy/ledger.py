"""Records what a client has spent, as an append-only hash chain.

Pure: a ledger goes in and a longer one comes out. A store makes it durable, and must do so for
`spend` before a record is read and for `seal` before anything is sent. No entry holds a clock's
time or a digest of data.

    spend ─► reserved ─► seal ─► sealed ─► mark_sent ─► sent

A slot stays charged for ever, whatever becomes of it; sending a sealed release again is free.
"""

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from fedvi.errors import BudgetExceeded, ConfigError, FedviError, LedgerError, PrivacyError
from fedvi.privacy import accountants
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.advisories import advisory
from fedvi.privacy.events import (
    RELATIONS,
    Event,
    PoissonSampled,
    Relation,
    Unprotected,
    WithoutReplacement,
    compose,
    counts,
    from_json,
    repeat,
    to_json,
)
from fedvi.privacy.filter import RdpFilter
from fedvi.privacy.itemised import with_tables
from fedvi.privacy.sums import Sums, of_messages, with_sums

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
    "to_lines",
    "verify",
]

State: TypeAlias = Literal["reserved", "sealed", "sent"]

LIFETIME = "lifetime"
"""The study, and its digest, of a ledger that charges every study of a site; no digest is so short."""

TABLES_SHARE = 1e-3
"""The part of a lifetime's δ that is kept for the tables that noise is drawn from."""


class Header(NamedTuple):
    """What every entry of one ledger has in common: enough to recompute what is stated from it.

    Args:
      study: its name.
      study_digest: of the study file that client and server agreed on.
      client: whose releases these are.
      unit: what is protected: "record", "client", ….
      relation: the neighbouring relation that a budget is checked under.
      view: who sees what: "message", or "aggregate" with the two numbers below.
      protected: whether releases must be noised; if not, any may leave and no guarantee is given.
      note: printed beside every claim, such as "simulation: no guarantee"; or empty.
      planned: all releases that the study may ask of this client; None if nothing was planned.
      epsilon, delta: the promise that releases are checked against, in a ledger for life the cap,
        with all of its δ; None without one.
      accountant: what the promise is checked with; empty without one, and in a ledger for life,
        whose cap an `RdpFilter` checks.
      table_distance: of the noise of one release, over all coordinates, from its exact law.
      disjoint: whether the study declares that no unit is at two clients.
      records_public: whether the number of records is published, so that add_remove is not claimed.
      max_records: the declared largest number of units at a client.
      rows_per_unit: how many rows of one unit are used, at most; None where a unit is one row.
      least_reporting, colluding: of the view "aggregate", see `fedvi.privacy.sums.Sums`; else None.
      fixed_sizes: of ``DPSVI`` with whole batches, whether all sizes behind a release follow from
        ``max_records`` alone; see ``fedvi.privacy.advisories``. False elsewhere.

    Entries and ``planned`` cost what a message does, under every view.
    """

    study: str
    study_digest: str
    client: str
    unit: str
    relation: Relation
    view: str
    protected: bool
    note: str = ""
    planned: Event | None = None
    epsilon: float | None = None
    delta: float | None = None
    accountant: str = ""
    table_distance: float = 0.0
    disjoint: bool = False
    records_public: bool = False
    max_records: int | None = None
    rows_per_unit: int | None = None
    least_reporting: int | None = None
    colluding: int | None = None
    fixed_sizes: bool = False

    @property
    def mark(self) -> str:
        """The note, and what is known to be wrong with the promise: printed beside each claim."""
        return "; ".join(filter(None, (self.note, advisory(self, self.relation))))

    @property
    def sums(self) -> Sums | None:
        """What the view "aggregate" fixes; None where single messages are seen."""
        if self.least_reporting is None or self.colluding is None:
            return None
        return Sums(self.least_reporting, self.colluding)


class Entry(NamedTuple):
    """One step of one release.

    Args:
      index: 0, 1, 2, ….
      kind: the state that the release enters.
      release_id: the release; unique in a ledger.
      event: what it costs, if it is reserved; else None.
      digest: of the noised bytes, if it is sealed; else None.
      previous_hash: the hash of the entry before, or of the header.
      hash: SHA-256 of the canonical JSON of all the fields above.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants of an entry
    kind: State
    release_id: str
    event: Event | None
    digest: str | None
    previous_hash: str
    hash: str


class _Chain(NamedTuple):
    header: Header
    entries: tuple[Entry, ...]


class Ledger(_Chain):
    """A header and the entries that follow from it; made by `open_ledger` and `from_lines`.

    A value: what is remembered about it beside its two fields is a cache, shared by the ledgers
    that extend one another, and seen by no comparison.
    """

    _cache: "_Index | None" = None


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
    _check_header(header)
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


def is_lifetime(header: Header) -> bool:
    """Says whether a ledger charges every study of a site."""
    return header.study_digest == LIFETIME


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
    if guarded and not _is_noised(event):
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
    return _append(ledger, "reserved", release_id, event=event)


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
    return _append(ledger, "reserved", release_id, event=event)


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
        return _append(ledger, "sealed", release_id, digest=digest)
    sealed = _index_of(ledger).digests[release_id]
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
    return _append(ledger, "sent", release_id)


def reservations(ledger: Ledger) -> int:
    """Counts the releases that were ever reserved."""
    return sum(entry.kind == "reserved" for entry in ledger.entries)


def state(ledger: Ledger, release_id: str) -> State | None:
    """Returns how far a release has come; None if it was never reserved."""
    steps = _index_of(ledger).steps.get(release_id, ())
    reached = (kind for position, kind in reversed(steps) if position < len(ledger.entries))
    return next(reached, None)


def digest(ledger: Ledger, release_id: str) -> str | None:
    """Returns the digest of a release's noised bytes; None if it was not sealed."""
    found = state(ledger, release_id)
    return None if found in (None, "reserved") else _index_of(ledger).digests[release_id]


def anchor(ledger: Ledger) -> Anchor:
    """Returns what another party should keep, to detect later that entries went missing."""
    return Anchor(len(ledger.entries), _last_hash(ledger))


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
    found = _last_hash(ledger._replace(entries=ledger.entries[: seen.entries]))
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


def verify(ledger: Ledger) -> None:
    """Recomputes the chain and every state; raises at the first entry that does not follow.

    Guarantee: a ledger that passes was built by `open_ledger`, `spend`, `charge`, `seal` and
    `mark_sent`, up to budgets. What it cannot show: entries missing from the end, and a chain rewritten
    as a whole.
    `check_anchor` shows both, with what another party saw. Takes time in proportion to the entries.

    Raises:
      LedgerError: names the first bad entry.
    """
    _check_header(ledger.header)
    previous = _header_hash(ledger.header)
    states: dict[str, State] = {}
    for position, entry in enumerate(ledger.entries):
        _check_entry(entry, position, previous, states.get(entry.release_id))
        if entry.event is not None and ledger.header.protected and not _is_noised(entry.event):
            _refuse(entry, position, "it is unprotected in a protected ledger")
        states[entry.release_id] = entry.kind
        previous = entry.hash


def to_lines(ledger: Ledger) -> list[str]:
    """Writes a ledger as lines of canonical JSON, the header first; `from_lines` reads it back."""
    return [_header_line(ledger.header), *map(_entry_line, ledger.entries)]


def from_lines(lines: Sequence[str]) -> Ledger:
    """Reads and verifies what `to_lines` wrote, byte for byte.

    Raises:
      LedgerError: a line is not what `to_lines` would write for what it says, or `verify` fails.
    """
    if not lines:
        raise LedgerError("the ledger is empty, expected a header line")
    header = _read_header(lines[0])
    entries = tuple(_read_entry(line, position) for position, line in enumerate(lines[1:]))
    ledger = Ledger(header, entries)
    verify(ledger)
    return ledger


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
    already = _tally(ledger)
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
    already = _tally(ledger)
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


@functools.lru_cache(maxsize=4096)
def _is_noised(event: Event) -> bool:
    for atom in counts(event):
        if isinstance(atom, Unprotected):
            return False
        if isinstance(atom, PoissonSampled | WithoutReplacement) and not _is_noised(atom.inner):
            return False
    return True


# What is remembered about a ledger.


class _Index:
    """What is known of a chain's releases, so that no question reads the chain again.

    Ledgers that extend one another share one: each looks at the steps before its own end. Only the
    longest may be extended in place, and the list ``tip`` holds its length; a second extension of
    the same ledger finds it gone, and gets an index of its own.
    """

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.steps: dict[str, list[tuple[int, State]]] = {}
        self.digests: dict[str, str] = {}
        self.tally: dict[Event, int] = {}
        for position, entry in enumerate(entries):
            self.add(position, entry)
        self.tip = [len(entries)]

    def add(self, position: int, entry: Entry) -> None:
        self.steps.setdefault(entry.release_id, []).append((position, entry.kind))
        if entry.digest is not None:
            self.digests[entry.release_id] = entry.digest
        if entry.event is not None:
            self.tally[entry.event] = self.tally.get(entry.event, 0) + 1


def _index_of(ledger: Ledger) -> _Index:
    if ledger._cache is None:
        ledger._cache = _Index(ledger.entries)
    return ledger._cache


def _tally(ledger: Ledger) -> Event:
    """All that was reserved, with equal events together: prices do not depend on the order."""
    index = _index_of(ledger)
    if index.tip != [len(ledger.entries)]:
        index = _Index(ledger.entries)
    return compose(*(repeat(event, count) for event, count in index.tally.items()))


# The chain.


def _append(
    ledger: Ledger,
    kind: State,
    release_id: str,
    event: Event | None = None,
    digest: str | None = None,
) -> Ledger:
    position = len(ledger.entries)
    entry = Entry(position, kind, release_id, event, digest, _last_hash(ledger), "")
    entry = entry._replace(hash=_entry_hash(entry))
    longer = Ledger(ledger.header, (*ledger.entries, entry))
    index = _index_of(ledger)
    try:
        index.tip.remove(position)
    except ValueError:
        return longer
    index.add(position, entry)
    index.tip.append(position + 1)
    longer._cache = index
    return longer


def _last_hash(ledger: Ledger) -> str:
    return ledger.entries[-1].hash if ledger.entries else _header_hash(ledger.header)


def _check_header(header: Header) -> None:
    for field in ("study", "study_digest", "client", "unit", "view"):
        if not _is_text(getattr(header, field)):
            found = getattr(header, field)
            raise LedgerError(f"the header: `{field}` is {found!r}, expected a text")
    if header.relation not in RELATIONS:
        raise LedgerError(
            f"the header: `relation` is {header.relation!r}, expected one of {', '.join(RELATIONS)}"
        )
    if not isinstance(header.protected, bool):
        raise LedgerError(f"the header: `protected` is {header.protected!r}, expected a boolean")
    for field in ("note", "accountant"):
        if not isinstance(getattr(header, field), str):
            raise LedgerError(
                f"the header: `{field}` is {getattr(header, field)!r}, expected a text"
            )
    for field in ("disjoint", "records_public", "fixed_sizes"):
        if not isinstance(getattr(header, field), bool):
            raise LedgerError(
                f"the header: `{field}` is {getattr(header, field)!r}, expected a boolean"
            )
    _check_view(header)
    for field in ("max_records", "rows_per_unit"):
        value = getattr(header, field)
        if value is not None and (type(value) is not int or value < 1):
            raise LedgerError(f"the header: `{field}` is {value!r}, expected a whole number")
    _check_promise(header)


def _check_view(header: Header) -> None:
    given = (header.least_reporting, header.colluding)
    if (header.view == "aggregate") != (header.sums is not None) or given.count(None) == 1:
        raise LedgerError(
            f"the header: `view` is {header.view!r}, `least_reporting` is {given[0]} and `colluding` is "
            f"{given[1]}, expected both numbers under the view 'aggregate', and none otherwise"
        )
    if header.sums is None:
        return
    whole = all(type(value) is int for value in given)
    if not (whole and header.sums.colluding >= 0 and header.sums.honest >= 1):
        raise LedgerError(
            f"the header: `colluding` is {given[1]!r}, expected a whole number of at least 0 and below "
            f"`least_reporting`, {given[0]!r}"
        )


def _check_promise(header: Header) -> None:
    ranges = {"epsilon": math.inf, "delta": 1.0, "table_distance": 1.0}
    for field, end in ranges.items():
        value = getattr(header, field)
        if value is None and field != "table_distance":
            continue
        # An integer would be written otherwise than the number that it equals.
        if type(value) is not float or not 0 <= value < end:
            raise LedgerError(
                f"the header: `{field}` is {value!r}, expected a number of at least 0 and below {end}"
            )
    if is_lifetime(header):
        _check_cap(header)
        return
    given = (header.epsilon is not None, header.delta is not None, header.accountant != "")
    if len(set(given)) > 1:
        raise LedgerError(
            f"the header: `epsilon` is {header.epsilon}, `delta` is {header.delta} and `accountant` "
            f"is {header.accountant!r}, expected all three or none"
        )
    if header.accountant and header.accountant not in accountants.__all__:
        raise LedgerError(
            f"the header: `accountant` is {header.accountant!r}, expected one of "
            f"{', '.join(accountants.__all__)}"
        )
    if header.planned is not None and header.protected and not _is_noised(header.planned):
        raise LedgerError("the header: `planned` is unprotected in a protected ledger")


def _check_cap(header: Header) -> None:
    if (header.epsilon is None) != (header.delta is None) or 0.0 in (header.epsilon, header.delta):
        raise LedgerError(
            f"the header: `epsilon` is {header.epsilon} and `delta` is {header.delta} for life, "
            "expected both above 0, or none"
        )
    if header.accountant or header.planned is not None or not header.protected:
        raise LedgerError(
            "the header: a ledger for life is protected, and has no `planned` and no `accountant`: "
            "a filter checks its cap"
        )


_FOLLOWS: dict[State, State | None] = {"reserved": None, "sealed": "reserved", "sent": "sealed"}


def _check_entry(entry: Entry, position: int, previous: str, current: State | None) -> None:
    if type(entry.index) is not int or entry.index != position:
        _refuse(entry, position, f"its index is {entry.index!r}")
    if entry.previous_hash != previous:
        _refuse(entry, position, "it does not follow from what stands before it")
    if entry.hash != _entry_hash(entry):
        _refuse(entry, position, "its hash does not follow from its content")
    if entry.kind not in _FOLLOWS:
        _refuse(entry, position, f"its kind {entry.kind!r} is unknown")
    if not _is_text(entry.release_id):
        _refuse(entry, position, "it names no release")
    if current != _FOLLOWS[entry.kind]:
        _refuse(entry, position, f"it is {entry.kind} after {current or 'nothing'}")
    if (entry.event is not None) != (entry.kind == "reserved"):
        _refuse(entry, position, f"it is {entry.kind} and its event is {entry.event}")
    if bool(entry.digest) != (entry.kind == "sealed"):
        _refuse(entry, position, f"it is {entry.kind} and its digest is {entry.digest!r}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _refuse(entry: Entry, position: int, reason: str) -> NoReturn:
    raise LedgerError(
        f"entry {position} (release {entry.release_id!r}): {reason}",
        hint="the ledger was changed after it was written; restore it, and tell who relies on it",
    )


def _header_line(header: Header) -> str:
    return _canonical({"header": _header_fields(header), "hash": _header_hash(header)})


def _header_fields(header: Header) -> dict[str, Any]:
    fields = header._asdict()
    fields["planned"] = None if header.planned is None else to_json(header.planned)
    # As versions of fedvi that knew no such fields wrote it, and read it.
    for name in ("least_reporting", "colluding", "fixed_sizes"):
        if fields[name] is None or fields[name] is False:
            del fields[name]
    return fields


def _header_hash(header: Header) -> str:
    return _sha256(_canonical(_header_fields(header)))


def _entry_line(entry: Entry) -> str:
    return _entry_text(entry, f'"hash":{_canonical(entry.hash)},')


def _entry_hash(entry: Entry) -> str:
    return _sha256(_entry_text(entry, ""))


def _entry_text(entry: Entry, hash_text: str) -> str:
    """Writes the canonical JSON of an entry by hand: a ledger has few events and many entries."""
    event = "null" if entry.event is None else _event_text(entry.event)
    return (
        f'{{"digest":{_canonical(entry.digest)},"event":{event},{hash_text}'
        f'"index":{_canonical(entry.index)},"kind":{_canonical(entry.kind)},'
        f'"previous_hash":{_canonical(entry.previous_hash)},'
        f'"release_id":{_canonical(entry.release_id)}}}'
    )


@functools.lru_cache(maxsize=4096)
def _event_text(event: Event) -> str:
    return _canonical(to_json(event))


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# Reading.


def _read_header(line: str) -> Header:
    fields = _read(line, "the header")
    try:
        planned = fields["header"]["planned"]
        event = None if planned is None else from_json(planned)
        header = Header(**{**fields["header"], "planned": event})
        _check_header(header)
    except (KeyError, TypeError) as error:
        raise LedgerError(f"the header has other fields than expected: {error}") from error
    except LedgerError:
        raise
    except FedviError as error:
        raise LedgerError(f"the header: {error.message}", hint=error.hint) from error
    if _header_line(header) != line:
        raise LedgerError("the header is not what was written: its bytes or its hash differ")
    return header


def _read_entry(line: str, position: int) -> Entry:
    fields = _read(line, f"entry {position}")
    try:
        event = fields["event"]
        entry = Entry(**{**fields, "event": None if event is None else from_json(event)})
        same = _entry_line(entry) == line
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"entry {position} has other fields than expected: {error}") from error
    except FedviError as error:
        raise LedgerError(f"entry {position}: {error.message}", hint=error.hint) from error
    if not same:
        raise LedgerError(f"entry {position} is not written as this ledger writes")
    return entry


def _read(line: str, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{what} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise LedgerError(f"{what} is {type(fields).__name__}, expected an object")
    return fields
