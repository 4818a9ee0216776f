"""The hash chain of a ledger: its header and entries, their JSON form, and their valid order.

An entry's hash covers the entry before it, so that any change, omission or insertion is detected.
Lines of a ledger file are canonical JSON.
"""

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from fedvi.errors import FedviError, LedgerError
from fedvi.privacy import accountants
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
from fedvi.privacy.sums import Sums

__all__ = [
    "LIFETIME",
    "Entry",
    "Header",
    "Ledger",
    "State",
    "append",
    "check_header",
    "from_lines",
    "holds",
    "index_of",
    "is_lifetime",
    "last_hash",
    "tally",
    "to_lines",
    "verify",
]

State: TypeAlias = Literal["reserved", "sealed", "sent"]

LIFETIME = "lifetime"
"""Study name and digest in a ledger that charges every study of a site; too short to be a real digest."""


class Header(NamedTuple):
    """The constants of one ledger; with the entries they suffice to recompute every statement.

    Args:
      study: the name of the study.
      study_digest: digest of the study file that client and server agreed on.
      client: the client that makes the releases.
      unit: what is protected: "record", "client", ….
      relation: the neighbouring relation that a budget is checked under.
      view: what the observer sees: "message", or "aggregate" with the two numbers below.
      protected: whether releases must have noise; if not, any may be sent and no guarantee is given.
      note: printed beside every claim, such as "simulation: no guarantee"; or empty.
      planned: all releases that the study may ask of this client; None if nothing was planned.
      epsilon, delta: the promise that releases are checked against; None without one. In a lifetime
        ledger they are the cap, with all of its δ.
      accountant: checks the promise; empty without one, and in a lifetime ledger, whose cap an
        `RdpFilter` checks.
      table_distance: distance of the noise of one release from its exact law, over all coordinates.
      disjoint: whether the study declares that no unit is at two clients.
      records_public: whether the number of records is published, so that add_remove is not claimed.
      max_records: the declared largest number of units at a client.
      rows_per_unit: how many rows of one unit are used, at most; None where a unit is one row.
      least_reporting, colluding, topped_up: for the view "aggregate", see `fedvi.privacy.sums.Sums`; else
        None, and 0.
      secure: for the view "aggregate", whether answers are masked. Entries then hold the digests of
        masked messages, and the server is not trusted. False for other views.
      fixed_sizes: for ``DPSVI`` with full batches, whether all sizes behind a release follow from
        ``max_records`` alone; see ``fedvi.privacy.advisories``. False otherwise.
      rows_checked: for ``DPSVI``, whether a version wrote the ledger that checks compiled steps on made-up
        records before it charges a run; see ``fedvi.privacy.advisories``. False otherwise.

    Under every view, entries and ``planned`` hold the events of single messages.
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
    secure: bool = False
    topped_up: int = 0
    rows_checked: bool = False

    @property
    def mark(self) -> str:
        """The note and any known fault of the promise; printed beside each claim."""
        return "; ".join(filter(None, (self.note, advisory(self, self.relation))))

    @property
    def sums(self) -> Sums | None:
        """The numbers of the view "aggregate"; None for other views."""
        if self.least_reporting is None or self.colluding is None:
            return None
        return Sums(self.least_reporting, self.colluding, self.topped_up)


class Entry(NamedTuple):
    """One step of one release.

    Args:
      index: 0, 1, 2, ….
      kind: the state that the release enters.
      release_id: the release; unique in a ledger.
      event: its cost, if ``kind`` is "reserved"; else None.
      digest: of the noised bytes, if ``kind`` is "sealed"; else None.
      previous_hash: the hash of the previous entry, or of the header.
      hash: SHA-256 of the canonical JSON of all the fields above.
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not needed
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
    """A header and its entries; made by `open_ledger` and `from_lines`.

    An immutable value. Its only other state is a cache, which ledgers that extend one another share
    and comparisons ignore.
    """

    _cache: "_Index | None" = None


def is_lifetime(header: Header) -> bool:
    """Whether this is the header of a ledger that charges every study of a site."""
    return header.study_digest == LIFETIME


def verify(ledger: Ledger) -> None:
    """Recomputes the chain and every state; raises at the first invalid entry.

    Guarantee: a ledger that passes was built by `open_ledger`, `spend`, `charge`, `seal` and
    `mark_sent`, up to budgets. What it cannot show: entries missing from the end, and a chain rewritten
    as a whole.
    `check_anchor` detects both, with what another party saw. Time is linear in the number of entries.

    Raises:
      LedgerError: names the first invalid entry.
    """
    check_header(ledger.header)
    previous = _header_hash(ledger.header)
    states: dict[str, State] = {}
    for position, entry in enumerate(ledger.entries):
        _check_entry(entry, position, previous, states.get(entry.release_id))
        if entry.event is not None and ledger.header.protected and holds(entry.event, Unprotected):
            _refuse(entry, position, "it is unprotected in a protected ledger")
        states[entry.release_id] = entry.kind
        previous = entry.hash


def to_lines(ledger: Ledger) -> list[str]:
    """Writes a ledger as lines of canonical JSON, the header first; `from_lines` reads it back."""
    return [_header_line(ledger.header), *map(_entry_line, ledger.entries)]


def from_lines(lines: Sequence[str]) -> Ledger:
    """Reads and verifies what `to_lines` wrote, byte for byte.

    Raises:
      LedgerError: a line is not in the exact form that `to_lines` writes, or `verify` fails.
    """
    if not lines:
        raise LedgerError("the ledger is empty, expected a header line")
    header = _read_header(lines[0])
    entries = tuple(_read_entry(line, position) for position, line in enumerate(lines[1:]))
    ledger = Ledger(header, entries)
    verify(ledger)
    return ledger


@functools.lru_cache(maxsize=4096)
def holds(event: Event, kind: type) -> bool:
    """Whether an event of this kind is among an event's atoms, or in a batch."""
    for atom in counts(event):
        if isinstance(atom, kind):
            return True
        if isinstance(atom, PoissonSampled | WithoutReplacement) and holds(atom.inner, kind):
            return True
    return False


class _Index:
    """An index of a chain's releases, so that queries do not read the whole chain.

    Ledgers that extend one another share one index, and each ignores the steps after its own end. Only
    the longest ledger may extend the index in place; ``tip`` holds its length. A second extension of the
    same ledger finds ``tip`` changed, and builds its own index.
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


def index_of(ledger: Ledger) -> _Index:
    if ledger._cache is None:
        ledger._cache = _Index(ledger.entries)
    return ledger._cache


def tally(ledger: Ledger) -> Event:
    """The composition of all reserved events, equal ones merged, since prices ignore the order."""
    index = index_of(ledger)
    if index.tip != [len(ledger.entries)]:
        index = _Index(ledger.entries)
    return compose(*(repeat(event, count) for event, count in index.tally.items()))


def append(
    ledger: Ledger,
    kind: State,
    release_id: str,
    event: Event | None = None,
    digest: str | None = None,
) -> Ledger:
    position = len(ledger.entries)
    entry = Entry(position, kind, release_id, event, digest, last_hash(ledger), "")
    entry = entry._replace(hash=_entry_hash(entry))
    longer = Ledger(ledger.header, (*ledger.entries, entry))
    index = index_of(ledger)
    try:
        index.tip.remove(position)
    except ValueError:
        return longer
    index.add(position, entry)
    index.tip.append(position + 1)
    longer._cache = index
    return longer


def last_hash(ledger: Ledger) -> str:
    return ledger.entries[-1].hash if ledger.entries else _header_hash(ledger.header)


def check_header(header: Header) -> None:
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
    for field in ("disjoint", "records_public", "fixed_sizes", "secure", "rows_checked"):
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
        if header.secure or header.topped_up:
            raise LedgerError(
                f"the header: `secure` or `topped_up` is set and `view` is {header.view!r}, expected "
                "'aggregate'"
            )
        return
    whole = all(type(value) is int for value in given)
    if not (whole and header.sums.colluding >= 0 and header.sums.honest >= 1):
        raise LedgerError(
            f"the header: `colluding` is {given[1]!r}, expected a whole number of at least 0 and below "
            f"`least_reporting`, {given[0]!r}"
        )
    clients = header.topped_up
    if type(clients) is not int or (clients and not (header.secure and clients > header.sums[0])):
        raise LedgerError(
            f"the header: `topped_up` is {clients!r}, expected 0 or, where answers are masked, a number of "
            f"clients above `least_reporting`, {given[0]!r}"
        )


def _check_promise(header: Header) -> None:
    ranges = {"epsilon": math.inf, "delta": 1.0, "table_distance": 1.0}
    for field, end in ranges.items():
        value = getattr(header, field)
        if value is None and field != "table_distance":
            continue
        # JSON writes 1 and 1.0 differently, so an integer would change the hash.
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
    if header.planned is not None and header.protected and holds(header.planned, Unprotected):
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
        hint="the ledger was changed after it was written; restore it, and tell those who rely on it",
    )


def _header_line(header: Header) -> str:
    return _canonical({"header": _header_fields(header), "hash": _header_hash(header)})


def _header_fields(header: Header) -> dict[str, Any]:
    fields = header._asdict()
    fields["planned"] = None if header.planned is None else to_json(header.planned)
    # Left out if unused, so that headers of earlier versions keep their hashes.
    for name in (
        "least_reporting",
        "colluding",
        "fixed_sizes",
        "secure",
        "topped_up",
        "rows_checked",
    ):
        if fields[name] == Header._field_defaults[name]:
            del fields[name]
    return fields


def _header_hash(header: Header) -> str:
    return _sha256(_canonical(_header_fields(header)))


def _entry_line(entry: Entry) -> str:
    return _entry_text(entry, f'"hash":{_canonical(entry.hash)},')


def _entry_hash(entry: Entry) -> str:
    return _sha256(_entry_text(entry, ""))


def _entry_text(entry: Entry, hash_text: str) -> str:
    """Writes the canonical JSON of an entry by hand, which is faster: entries are many, events few."""
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


def _read_header(line: str) -> Header:
    fields = _read(line, "the header")
    try:
        planned = fields["header"]["planned"]
        event = None if planned is None else from_json(planned)
        header = Header(**{**fields["header"], "planned": event})
        check_header(header)
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
        _check_texts(entry, position)
        same = _entry_line(entry) == line
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"entry {position} has other fields than expected: {error}") from error
    except FedviError as error:
        raise LedgerError(f"entry {position}: {error.message}", hint=error.hint) from error
    if not same:
        raise LedgerError(f"entry {position} is not written as this ledger writes")
    return entry


def _check_texts(entry: Entry, position: int) -> None:
    """Checks the types that no line promises, before anything looks the values up."""
    for field in ("kind", "release_id", "previous_hash", "hash"):
        if not isinstance(getattr(entry, field), str):
            found = getattr(entry, field)
            raise LedgerError(f"entry {position}: `{field}` is {found!r:.80}, expected a text")
    if not isinstance(entry.digest, str | None):
        raise LedgerError(
            f"entry {position}: `digest` is {entry.digest!r:.80}, expected a text or nothing"
        )


def _read(line: str, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{what} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise LedgerError(f"{what} is {type(fields).__name__}, expected an object")
    return fields
