"""Reads ledgers from files, verifies them, and recomputes their prices, for `fedvi ledger`.

Needs only the ledger: no study, data or result of a run. Changes nothing.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.privacy import accountants, events, joint_claims, ledger, statement
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.filter import rdp_filter
from fedvi.privacy.ledger import Ledger
from fedvi.privacy.sums import Sums, in_sum, with_sums
from fedvi.server.store import schema
from fedvi.store import sqlite

__all__ = [
    "BY_THE_FILTER",
    "Book",
    "Price",
    "Release",
    "excesses",
    "life",
    "priced",
    "prices",
    "read",
    "releases",
    "stated",
    "totals",
    "words",
]

BY_THE_FILTER = "by the filter"
"""Stands in place of an accountant's name where a ledger for life is priced."""

_SQLITE = b"SQLite format 3\x00"


class Book(NamedTuple):
    """A ledger file.

    Args:
      path: its location; for one of several in a server's state, with the client's name at the end.
      ledger: the verified ledger; None if it is damaged.
      problem: what is wrong with it; empty if nothing is.
      part_of: the path of another ledger that this one is a prefix or a copy of, such as the store that
        it was exported from. Its releases are counted there only.
    """

    path: Path
    ledger: Ledger | None
    problem: str
    part_of: Path | None = None


class Release(NamedTuple):
    """One release of a ledger, and the total ε up to it.

    Args:
      release_id, state: as in the ledger.
      event: its privacy event.
      epsilon: relation → ε of all releases up to it, None if they have no price.
    """

    release_id: str
    state: ledger.State
    event: events.Event
    epsilon: dict[str, float | None]


class Price(NamedTuple):
    """ε of a part of a ledger by one accountant.

    Args:
      part: "planned", "reserved", "spent" for life, or "all ledgers of CLIENT".
      accountant, relation: those used; for life, ``BY_THE_FILTER``.
      epsilon: None if the accountant does not support the events, or no ε is finite at that δ.
      delta: the δ of that ε.
      stated: whether the header's promise is checked with this accountant and relation.
      budget: the header's ε, if ``epsilon`` is to be compared with it: ``stated``, and at the header's δ;
        or the cap for life.
    """

    part: str
    accountant: str
    relation: events.Relation
    epsilon: float | None
    delta: float
    stated: bool
    budget: float | None


def read(path: Path) -> list[Book]:
    """Reads and verifies every ledger at a path; a damaged one is returned with its problem.

    A ledger that is the beginning of another has ``part_of``.

    Args:
      path: an exported ledger (``.jsonl``), a client's store (``ledger.sqlite``), a server's state
        (``state.sqlite``, or ``state.sqlite/CLIENT``), or a folder of these, such as what ``fedvi
        simulate --out`` wrote, or its ``ledger`` folder.

    Raises:
      ConfigError: there is no ledger at the path.
    """
    if path.parent.name == schema.DATABASE and path.parent.is_file():
        return _only(_books(path.parent), path)
    if not path.exists():
        raise errors.ConfigError(
            f"no ledger at {path}",
            "give a .jsonl file, a client's or a server's folder, or the folder of a run",
        )
    if not path.is_dir():
        return _some(_books(path), path)
    found = [
        file
        for pattern in (
            "*.jsonl",
            "ledger/*.jsonl",
            sqlite.DATABASE,
            f"*/{sqlite.DATABASE}",
            schema.DATABASE,
            f"*/{schema.DATABASE}",
        )
        for file in sorted(path.glob(pattern))
    ]
    if not found:
        raise errors.ConfigError(
            f"the folder {path} holds no ledger",
            f"ledgers are named *.jsonl (exported), {sqlite.DATABASE} (a client's store) or "
            f"{schema.DATABASE} (a server's)",
        )
    return _some([book for file in found for book in _books(file)], path)


def releases(found: Ledger, last: int) -> list[Release]:
    """Lists the last releases of a ledger, each with ε of everything up to it.

    The running ε is for information: only the ε of the whole plan may be stated.

    Args:
      found: a verified ledger.
      last: the most releases to list; each is priced, which takes time.
    """
    header = found.header
    names = [entry for entry in found.entries if entry.event is not None]
    start = max(0, len(names) - last)
    spent = events.compose(*(e.event for e in names[:start] if e.event is not None))
    listed = []
    for entry in names[start:]:
        assert entry.event is not None
        spent = events.compose(spent, entry.event)
        state = ledger.state(found, entry.release_id)
        assert state is not None
        epsilon: dict[str, float | None] = {}
        if ledger.is_lifetime(header):
            up_to = life(found._replace(entries=found.entries[: entry.index + 1]))
            epsilon = {} if up_to is None else {header.relation: up_to.epsilon}
        elif header.delta is not None:
            epsilon = {
                relation: _epsilon(found, header.accountant, relation, spent, header.delta)
                for relation in _relations(found)
            }
        listed.append(Release(entry.release_id, state, entry.event, epsilon))
    return listed


def prices(found: Ledger, delta: float | None = None) -> list[Price]:
    """Prices a ledger's planned and reserved events by every accountant that is a bound.

    A ledger for life is priced only by the filter of its cap: accountants price fixed plans, and its
    charges were not planned together. Without a cap in its header nothing is priced.

    Args:
      found: a verified ledger.
      delta: replaces the header's, except that of a cap.

    Raises:
      ConfigError: neither the header nor the caller gives δ.
    """
    header = found.header
    if ledger.is_lifetime(header):
        spend = life(found)
        if spend is None:
            return []
        price = Price(
            "spent",
            BY_THE_FILTER,
            spend.relation,
            spend.epsilon,
            spend.delta,
            stated=False,
            budget=header.epsilon,
        )
        return [price]
    at = header.delta if delta is None else delta
    if at is None:
        raise errors.ConfigError(
            f"the ledger of {header.client!r} promises no delta to price it at",
            "give one: --delta 1e-5",
        )
    parts = {"planned": header.planned, "reserved": ledger.tally(found)}
    return [
        Price(part, name, relation, _epsilon(found, name, relation, event, at), at, stated, budget)
        for part, event in parts.items()
        if event is not None
        for relation in _relations(found)
        for name in accountants.__all__
        for stated in [(name, relation) == (header.accountant, header.relation)]
        for budget in [header.epsilon if stated and at == header.delta else None]
    ]


def life(found: Ledger) -> statement.LifetimeSpend | None:
    """Returns what a ledger for life has spent, by the filter of the cap in its header.

    Args:
      found: verified.

    Returns:
      None if the ledger is of one study, or its header holds no cap.

    Raises:
      ConfigError: the header's cap leaves nothing to spend, so that no filter has it.
      UnsupportedEvent: an event in it has no Rényi price.
    """
    header = found.header
    if not ledger.is_lifetime(header) or header.epsilon is None or header.delta is None:
        return None
    usable = header.delta * (1 - ledger.TABLES_SHARE)
    cap = rdp_filter(header.epsilon, usable, header.relation)
    return statement.lifetime_spend(found, cap)


def excesses(found: Ledger) -> list[str]:
    """Lists where a ledger exceeds its header's promises, at the header's own δ.

    Args:
      found: verified. Verification does not check spending, since the chain does not show the check.

    Returns:
      One line for each excess: planned or reserved events cost more than promised, or have no price;
      more is reserved than planned; more is spent for life than the cap; a task was answered more
      than once. Empty if there is none.
    """
    header = found.header
    lines = []
    # Grouped as when the budget was checked, so that rounding is the same.
    reserved = ledger.tally(found)
    spend = life(found)
    if spend is not None and spend.epsilon > spend.cap:
        lines.append("spent for life exceeds the cap")
    if header.accountant and header.epsilon is not None and header.delta is not None:
        for part, event in (("planned", header.planned), ("reserved", reserved)):
            if event is None:
                continue
            epsilon = _epsilon(found, header.accountant, header.relation, event, header.delta)
            if epsilon is None or epsilon > header.epsilon:
                lines.append(f"what is {part} exceeds the promise")
    if header.planned is not None:
        allowed = events.counts(header.planned)
        if any(allowed.get(atom, 0) < count for atom, count in events.counts(reserved).items()):
            lines.append("reserved exceeds the plan")
    answered = Counter(e.release_id.rpartition("#")[0] for e in found.entries if e.kind == "sent")
    lines += [
        f"task {task!r} was answered {count} times, by copies of the client's state"
        for task, count in answered.items()
        if count > 1
    ]
    return lines


def totals(books: Sequence[Ledger], delta: float | None = None) -> list[Price]:
    """Prices all studies of each site together, for sites with several ledgers.

    Studies whose promises are to different units, such as records and patients, have no common price:
    those of each unit are priced together, and named by it.

    Guarantee: upper bounds for whoever sees of each study what its view shows, if the studies were planned
    together. If later ones were chosen after seeing earlier results, what holds is the cap of the site's
    ledger for life: a filter's.

    Args:
      books: verified, none the beginning of another; ledgers for life are left out, since they hold
        the same releases again. What left unprotected makes ε infinite.
      delta: replaces the headers' largest.
    """
    sites: dict[tuple[str, str], list[Ledger]] = {}
    open_books: dict[str, list[Ledger]] = {}
    for book in books:
        header = book.header
        if header.protected and not ledger.is_lifetime(header):
            sites.setdefault((header.client, header.unit), []).append(book)
        elif ledger.reservations(book) and not header.protected:
            open_books.setdefault(header.client, []).append(book)
    found = []
    units = Counter(client for client, _ in sites)
    for (client, unit), private in sites.items():
        group = [*private, *open_books.get(client, ())]
        known = [delta, *(book.header.delta for book in group)]
        at = delta if delta is not None else max((d for d in known if d is not None), default=None)
        if len(group) < 2 or at is None:
            continue
        event = _seen(group)
        # The largest distance gives an upper bound for all ledgers.
        distance = max(book.header.table_distance for book in group)
        relations = [
            relation
            for relation in events.RELATIONS
            if all(relation in _relations(book) for book in group)
        ]
        found += [
            Price(
                f"all {len(group)} ledgers of {client}"
                + (f" for the unit {unit}" if units[client] > 1 else ""),
                name,
                relation,
                None if event is None else priced(name, relation, distance, None, event, at),
                at,
                False,
                None,
            )
            for relation in relations
            for name in accountants.__all__
        ]
    return found


def _seen(group: Sequence[Ledger]) -> events.Event | None:
    """Returns what several ledgers spent, each as its own view shows it; None if some have no price."""
    found = []
    for book in group:
        event, sums = ledger.spent(book), book.header.sums
        try:
            found.append(event if sums is None else in_sum(event, sums.honest))
        except errors.UnsupportedEvent:
            return None
    return events.compose(*found)


def stated(books: Sequence[Ledger]) -> list[statement.Claim]:
    """States the claims of ledgers, from the ledgers alone: for each client, and for all of one study.

    Args:
      books: verified, none the beginning of another; those without a promise and a plan make no
        claims.
    """
    parts: dict[str, list[statement.Claim]] = {}
    disjoint: dict[str, bool] = {}
    for book in books:
        header = book.header
        if header.planned is None or header.delta is None:
            continue
        of = getattr(accountants, header.accountant)
        priced = [with_sums(of(name), header.sums) for name in _relations(book)]
        known = [item for item in priced if item.supports(header.planned)]
        claims = statement.claims(book, header.planned, header.delta, known)
        parts.setdefault(header.study_digest, []).extend(claims)
        disjoint[header.study_digest] = disjoint.get(header.study_digest, True) and header.disjoint
    found = [claim for group in parts.values() for claim in group]
    for digest, group in parts.items():
        if len({claim.client for claim in group}) > 1:
            found += joint_claims.consortium(group, disjoint[digest])
    return found


def words(event: events.Event) -> str:
    """Describes an event, for a table.

    >>> words(events.Repeated(events.PoissonSampled(0.1, events.Gaussian(2.0)), 5))
    '5 × (Gaussian noise 2 on a Poisson batch, rate 0.1)'
    """
    match event:
        case events.Gaussian(noise) | events.DiscreteGaussian(noise):
            law = "Gaussian" if isinstance(event, events.Gaussian) else "discrete Gaussian"
            moves = f", shifts {event.add_remove:g} and {event.substitute:g}"
            standard = (event.add_remove, event.substitute) == (1, 2)
            return f"{law} noise {noise:g}" + ("" if standard else moves)
        case events.PoissonSampled(rate, inner, _):
            return f"{words(inner)} on a Poisson batch, rate {rate:g}"
        case events.WithoutReplacement(batch, size, inner):
            return f"{words(inner)} on a batch of {batch} of {size}"
        case events.Repeated(inner, count):
            return f"{count} × ({words(inner)})"
        case events.Composed(parts):
            return " and ".join(words(part) for part in parts) or "nothing"
        case events.Unprotected(what):
            return f"UNPROTECTED: {what}"


def _books(path: Path) -> list[Book]:
    try:
        if path.name == schema.DATABASE:
            found = schema.read_ledgers(path.parent)
            return [Book(path / client, found[client], "") for client in sorted(found)]
        return [Book(path, _ledger(path), "")]
    except errors.LedgerError as error:
        return [Book(path, None, error.message)]


def _some(books: list[Book], path: Path) -> list[Book]:
    if not books:
        raise errors.ConfigError(
            f"{path} holds no ledger yet", "a server writes them with the first task it hands out"
        )
    return _once(books)


def _only(books: list[Book], path: Path) -> list[Book]:
    found = [book for book in books if book.path == path or book.ledger is None]
    if not found:
        raise errors.ConfigError(
            f"{path.parent} holds no ledger of {path.name!r}",
            errors.did_you_mean(path.name, (book.path.name for book in books)),
        )
    return found


def _once(books: list[Book]) -> list[Book]:
    """Marks each ledger that is the beginning of another; of copies, all but the first."""
    marked = []
    for position, book in enumerate(books):
        longest = (position, book)
        for place, other in enumerate(books):
            if book.ledger is None or other.ledger is None:
                continue
            if not _begins(book.ledger, other.ledger):
                continue
            best = longest[1].ledger
            assert best is not None
            further = len(other.ledger.entries) - len(best.entries)
            if further > 0 or (further == 0 and place < longest[0]):
                longest = (place, other)
        marked.append(book if longest[0] == position else book._replace(part_of=longest[1].path))
    return marked


def _begins(beginning: Ledger, whole: Ledger) -> bool:
    """Whether one verified ledger is the beginning of another: each hash covers all entries before it."""
    count = len(beginning.entries)
    if beginning.header != whole.header or count > len(whole.entries):
        return False
    return ledger.anchor(beginning) == ledger.anchor(whole._replace(entries=whole.entries[:count]))


def _ledger(path: Path) -> Ledger:
    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return _stored(path)
            file.seek(0)
            content = file.read()
    except OSError as error:
        raise errors.LedgerError(f"it cannot be read: {error.strerror}") from error
    if not content:
        raise errors.LedgerError("it is empty, expected a header line")
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise errors.LedgerError(
            f"byte {error.start} is no part of an exported ledger, which is plain ASCII"
        ) from error
    if lines.pop():
        raise errors.LedgerError("its last line is cut off: it ends without a line break")
    return ledger.from_lines(lines)


def _stored(path: Path) -> Ledger:
    if path.name != sqlite.DATABASE:
        raise errors.LedgerError(
            f"it is a database; a client's store is named {sqlite.DATABASE}, a server's "
            f"{schema.DATABASE}"
        )
    return sqlite.read_ledger(path.parent)


def _relations(found: Ledger) -> Sequence[events.Relation]:
    return ("substitute",) if found.header.records_public else events.RELATIONS


def _epsilon(
    found: Ledger, name: str, relation: events.Relation, event: events.Event, delta: float
) -> float | None:
    header = found.header
    return priced(name, relation, header.table_distance, header.sums, event, delta)


# Cached, since the ledgers of a federation hold the same events.
@functools.lru_cache(maxsize=4096)
def priced(
    name: str,
    relation: events.Relation,
    table_distance: float,
    sums: Sums | None,
    event: events.Event,
    delta: float,
) -> float | None:
    """Returns ε of an event at δ, with the settings of a ledger's header; None if there is no bound."""
    accountant = with_sums(getattr(accountants, name)(relation), sums)
    accountant = with_tables(accountant, table_distance)
    if not accountant.supports(event):
        return None
    try:
        return accountant.epsilon(event, delta)
    except errors.PrivacyError:  # a supported event without a bound at this δ
        return None
