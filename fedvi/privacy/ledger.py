"""What a client has spent, as an append-only hash chain; come here to change what an entry says.

Pure: a ledger goes in and a longer one comes out. A store makes it durable, and must do so for
`spend` before a record is read and for `seal` before anything is sent. No entry holds a clock's
time or a digest of data.

    spend ─► reserved ─► seal ─► sealed ─► mark_sent ─► sent

A slot stays charged for ever, whatever becomes of it; sending a sealed release again is free.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from fedvi.errors import BudgetExceeded, ConfigError, FedviError, LedgerError, PrivacyError
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.events import (
    RELATIONS,
    Event,
    PoissonSampled,
    Relation,
    Unprotected,
    compose,
    counts,
    from_json,
    to_json,
)

__all__ = [
    "Budget",
    "Entry",
    "Header",
    "Ledger",
    "State",
    "from_lines",
    "mark_sent",
    "open_ledger",
    "seal",
    "spend",
    "spent",
    "state",
    "to_lines",
    "verify",
]

State: TypeAlias = Literal["reserved", "sealed", "sent"]


class Header(NamedTuple):
    """What every entry of one ledger has in common.

    Args:
      study: its name.
      study_digest: of the study file that client and server agreed on.
      client: whose releases these are.
      unit: what is protected: "record", "client", ….
      relation: the neighbouring relation that a budget is checked under.
      view: who sees what: "message", ….
      protected: whether releases must be noised; if not, any may leave and no guarantee is given.
      note: printed beside every claim, such as "simulation: no guarantee"; or empty.
    """

    study: str
    study_digest: str
    client: str
    unit: str
    relation: Relation
    view: str
    protected: bool
    note: str = ""


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


class Ledger(NamedTuple):
    """A header and the entries that follow from it; made by `open_ledger` and `from_lines`."""

    header: Header
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Budget:
    """What may be spent: (epsilon, delta) for all releases of a ledger together.

    Args:
      epsilon: finite, 0 or more.
      delta: at least 0 and below 1.
      accountant: what it is checked with; its relation must be the ledger's.
    """

    epsilon: float
    delta: float
    accountant: Accountant

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < float("inf"):
            raise ConfigError(f"epsilon is {self.epsilon}, expected a finite number of 0 or more")
        if not 0 <= self.delta < 1:
            raise ConfigError(f"delta is {self.delta}, expected at least 0 and below 1")


def open_ledger(header: Header) -> Ledger:
    """Starts a ledger without entries.

    >>> header = Header("heart", "ab12", "north", "record", "substitute", "message", True)
    >>> open_ledger(header).entries
    ()
    """
    _check_header(header)
    return Ledger(header, ())


def spent(ledger: Ledger) -> Event:
    """Returns the composition of all that was ever reserved, in order."""
    return compose(*(entry.event for entry in ledger.entries if entry.event is not None))


def spend(ledger: Ledger, release_id: str, event: Event, budget: Budget | None) -> Ledger:
    """Reserves a release, before a solver is given any record for it.

    Guarantee: if every release of a ledger was reserved here with the same budget, and cost no more
    than its event says, then all of them together are (budget.epsilon, budget.delta)-DP for the
    header's unit, relation and view. The releases may be chosen adaptively; their number and
    their events may not, since this adds up prices of a plan fixed in advance and is no privacy
    filter. The epsilon to state is that of the largest number of releases the study declares,
    whenever it stops.

    Args:
      ledger: what was spent before.
      release_id: new in this ledger.
      event: what the release will cost.
      budget: None only where the header says that nothing is protected.

    Raises:
      BudgetExceeded: this release would cost more than is left; nothing was reserved.
      PrivacyError: the event, or the missing budget, does not fit a protected ledger.
      UnsupportedEvent: the budget's accountant does not know the event.
      LedgerError: ``release_id`` was reserved before.
    """
    if not release_id:
        raise LedgerError("release_id is empty, expected a name that is new in this ledger")
    if state(ledger, release_id) is not None:
        raise LedgerError(
            f"release {release_id!r} was reserved before; it is {state(ledger, release_id)}",
            hint="send the sealed bytes again, or reserve a new release_id",
        )
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
    if budget is not None:
        _check_budget(ledger, release_id, event, budget)
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
    sealed = next(e.digest for e in ledger.entries if e.release_id == release_id and e.digest)
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


def state(ledger: Ledger, release_id: str) -> State | None:
    """Returns how far a release has come; None if it was never reserved."""
    return next((e.kind for e in reversed(ledger.entries) if e.release_id == release_id), None)


def verify(ledger: Ledger) -> None:
    """Recomputes the chain and every state; raises at the first entry that does not follow.

    Guarantee: a ledger that passes was built by `open_ledger`, `spend`, `seal` and `mark_sent`, up
    to budgets, which it does not record. What it cannot show: entries missing from the end, and a
    chain rewritten as a whole. Compare the last hash with what another party saw.

    Raises:
      LedgerError: names the first bad entry.
    """
    _check_header(ledger.header)
    previous = _hash(_header_fields(ledger.header))
    states: dict[str, State] = {}
    for position, entry in enumerate(ledger.entries):
        _check_entry(entry, position, previous, states.get(entry.release_id))
        if entry.event is not None and ledger.header.protected and not _is_noised(entry.event):
            _refuse(entry, position, "it is unprotected in a protected ledger")
        states[entry.release_id] = entry.kind
        previous = entry.hash


def to_lines(ledger: Ledger) -> list[str]:
    """Writes a ledger as lines of canonical JSON, the header first; `from_lines` reads it back."""
    header = _header_fields(ledger.header)
    first = _canonical({"header": header, "hash": _hash(header)})
    return [first, *map(_entry_line, ledger.entries)]


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


def _check_budget(ledger: Ledger, release_id: str, event: Event, budget: Budget) -> None:
    accountant = budget.accountant
    if accountant.relation != ledger.header.relation:
        raise PrivacyError(
            f"the budget is priced under {accountant.relation}, the ledger of "
            f"{ledger.header.client!r} declares {ledger.header.relation}",
            hint="give the budget an accountant of the declared relation",
        )
    already = spent(ledger)
    cost = accountant.epsilon(compose(already, event), budget.delta)
    if cost <= budget.epsilon:
        return
    reserved = sum(entry.kind == "reserved" for entry in ledger.entries)
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


def _apart(found: float, allowed: float) -> tuple[str, str]:
    """Writes two numbers with as many digits as it takes to tell them apart."""
    for digits in range(3, 17):
        texts = f"{found:.{digits}g}", f"{allowed:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(found), repr(allowed)


def _is_noised(event: Event) -> bool:
    for atom in counts(event):
        if isinstance(atom, Unprotected):
            return False
        if isinstance(atom, PoissonSampled) and not _is_noised(atom.inner):
            return False
    return True


# The chain.


def _append(
    ledger: Ledger,
    kind: State,
    release_id: str,
    event: Event | None = None,
    digest: str | None = None,
) -> Ledger:
    last = ledger.entries[-1].hash if ledger.entries else _hash(_header_fields(ledger.header))
    entry = Entry(len(ledger.entries), kind, release_id, event, digest, last, "")
    entry = entry._replace(hash=_hash(_entry_fields(entry)))
    return ledger._replace(entries=(*ledger.entries, entry))


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
    if not isinstance(header.note, str):
        raise LedgerError(f"the header: `note` is {header.note!r}, expected a text")


_FOLLOWS: dict[State, State | None] = {"reserved": None, "sealed": "reserved", "sent": "sealed"}


def _check_entry(entry: Entry, position: int, previous: str, current: State | None) -> None:
    if type(entry.index) is not int or entry.index != position:
        _refuse(entry, position, f"its index is {entry.index!r}")
    if entry.previous_hash != previous:
        _refuse(entry, position, "it does not follow from what stands before it")
    if entry.hash != _hash(_entry_fields(entry)):
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


def _header_fields(header: Header) -> dict[str, Any]:
    return header._asdict()


def _entry_fields(entry: Entry) -> dict[str, Any]:
    fields = entry._asdict()
    del fields["hash"]
    fields["event"] = None if entry.event is None else to_json(entry.event)
    return fields


def _entry_line(entry: Entry) -> str:
    return _canonical({**_entry_fields(entry), "hash": entry.hash})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode("ascii")).hexdigest()


# Reading.


def _read_header(line: str) -> Header:
    fields = _read(line, "the header")
    try:
        header = Header(**fields["header"])
        _check_header(header)
    except (KeyError, TypeError) as error:
        raise LedgerError(f"the header has other fields than expected: {error}") from error
    if to_lines(Ledger(header, ()))[0] != line:
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
