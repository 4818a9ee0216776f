"""States what a client may claim about the privacy of its releases."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedvi.errors import ConfigError
from fedvi.privacy import caveats
from fedvi.privacy._chain import holds
from fedvi.privacy.accountants import Accountant, price
from fedvi.privacy.advisories import advisory
from fedvi.privacy.delta_parts import Delta, delta_items, noised_releases, with_tables
from fedvi.privacy.events import (
    NOTHING,
    Event,
    Relation,
    WithoutReplacement,
)
from fedvi.privacy.filter import RdpFilter, fits
from fedvi.privacy.ledger import TABLES_SHARE, Header, Ledger, reservations, spent
from fedvi.privacy.sums import (
    ENROLLED,
    MASKED,
    NO_SERVER,
    SIGNED_ONCE,
    TOPPED_UP,
    of_messages,
    with_sums,
)

__all__ = [
    "DELTA_TOO_LARGE",
    "FEW_RECORDS",
    "Claim",
    "LifetimeSpend",
    "Priced",
    "as_dict",
    "claims",
    "declarations",
    "detected",
    "disjoint_words",
    "guessed",
    "lifetime_spend",
    "neighbours",
    "right_by_noise",
    "right_guess",
    "to_text",
    "together",
]

DELTA_TOO_LARGE, FEW_RECORDS = 1.0, 10
"""δ · max_records from which δ is too large, and the records below which noise hides everything."""


class LifetimeSpend(NamedTuple):
    """What a site has spent over all studies that its policy charged.

    Args:
      epsilon: spent so far, at ``delta``, by the filter's order.
      cap: the largest epsilon that the site admits; what may be promised beforehand.
      delta: of both, the part that is kept for the tables of noise included.
      relation: under which both are counted.
      releases: how many were charged.
    """

    epsilon: float
    cap: float
    delta: float
    relation: Relation
    releases: int


class Priced(NamedTuple):
    """What an ε was computed from, so that the claims of several clients can be composed.

    Args:
      accountant: with all that belongs to its price: the view, and the error of the noise tables.
      events: the dearer of the next two, all that the client may release, and all that its ledger reserved.
        The largest price is stated, so it holds for the releases that were made and for those that may be.
    """

    accountant: Accountant
    events: tuple[Event, ...]

    def epsilon(self, delta: float) -> float:
        """Returns the largest price of the events; infinite if one has no finite price."""
        return max(price(self.accountant, event, delta) for event in self.events)

    def right(self) -> float:
        """Bounds the probability of a right guess by the noise of the events."""
        return max(right_by_noise(self.accountant, event) for event in self.events)


class Claim(NamedTuple):
    """A privacy guarantee with all that it depends on; no epsilon is stated without the rest.

    Args:
      client: whose releases; or all clients together.
      unit: what is protected: "record", "patient", "client", ….
      relation: the neighbouring relation.
      view: who sees what.
      epsilon: of the declared largest number of releases; infinite if something left unprotected.
      delta: at which epsilon holds; the whole of it.
      accountant: the name of what computed it.
      releases: how many releases the ledger reserved.
      exclusions: what the guarantee does not cover, one line each.
      mark: printed beside the claim, such as "simulation: no guarantee"; or empty.
      items: what delta is made of; None where claims were joined that differ in it.
      assumptions: computational ones, which the proofs rest on, one line each.
      declarations: what the study says of its data and nobody checks, one line each.
      lifetime: what the site has spent over all studies; None if it keeps no such ledger.
      kept: where the runs of all processes of one data holder alone are counted; empty if said elsewhere,
        or if they are counted in memory.
      right: bound on the probability of a right guess between two neighbours that were equally likely
        before, with the noise that is planned; None if only ``epsilon`` and ``delta`` bound it.
      priced: what ``epsilon`` was computed from; None of a claim that was read or joined.
    """

    client: str
    unit: str
    relation: Relation
    view: str
    epsilon: float
    delta: float
    accountant: str
    releases: int
    exclusions: tuple[str, ...]
    mark: str
    items: Delta | None = None
    assumptions: tuple[str, ...] = ()
    declarations: tuple[str, ...] = ()
    lifetime: LifetimeSpend | None = None
    kept: str = ""
    right: float | None = None
    priced: Priced | None = None


def claims(
    ledger: Ledger,
    planned: Event,
    delta: float,
    accountants: Sequence[Accountant],
    kept: str = "",
) -> tuple[Claim, ...]:
    """States what a client's releases cost, once for each accountant's relation.

    Under the view "aggregate" that is what sums over clients tell; what single messages tell is stated
    after it, under the view "message".

    Guarantee: epsilon is that of ``planned``, the largest number of releases the study declares,
    and never less than that of what the ledger reserved. It may be stated whenever the run stops;
    an epsilon of the releases made so far may not: the run did not fix in advance where to stop.
    The header's ``table_distance`` is priced in: ``delta`` is the whole, and ``items`` its parts.

    Args:
      planned: all releases that the client may make in this study.
      delta: at which epsilon is stated.
      accountants: at most one for each relation.
      kept: of a plan for one data holder alone, ``plan.kept``.

    Raises:
      ConfigError: two accountants price the same relation, so that one number would hide the other.
      UnsupportedEvent: an accountant does not know an event.
    """
    relations = [accountant.relation for accountant in accountants]
    if len(set(relations)) < len(relations):
        raise ConfigError(
            f"accountants price {', '.join(relations)}, expected each relation once",
            hint="state one accountant's number, and show others beside it",
        )
    reserved = spent(ledger)
    views = ("message",) if ledger.header.sums is not None else ()
    return tuple(
        _claim(ledger, planned, reserved, delta, accountant, view, kept)
        for view in (ledger.header.view, *views)
        for accountant in accountants
    )


def _claim(
    ledger: Ledger,
    planned: Event,
    reserved: Event,
    delta: float,
    accountant: Accountant,
    view: str,
    kept: str,
) -> Claim:
    header = ledger.header
    # Of the relation that is claimed, which is not always the one that was promised.
    mark = "; ".join(filter(None, (header.note, advisory(header, accountant.relation))))
    sums = header.sums if view == header.view else None
    whole = with_tables(with_sums(of_messages(accountant), sums), header.table_distance)
    event = max((planned, reserved), key=lambda event: price(whole, event, delta))
    priced = Priced(whole, (event, planned, reserved))
    epsilon = priced.epsilon(delta)
    return Claim(
        client=header.client,
        unit=header.unit,
        relation=accountant.relation,
        view=view,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant.name,
        releases=reservations(ledger),
        exclusions=_exclusions(header.note, accountant.relation, header.unit),
        mark=mark,
        items=delta_items(event, epsilon, delta, header.table_distance),
        assumptions=(*_assumptions(event), *((MASKED,) if sums and header.secure else ())),
        declarations=declarations(header, seen_in_sums=sums is not None),
        kept=kept,
        right=min(right_guess(epsilon, delta), priced.right()),
        priced=priced,
    )


def right_by_noise(accountant: Accountant, event: Event) -> float:
    """Bounds the same probability by an event's own noise: δ at ε = 0 bounds the total variation.

    Raises:
      UnsupportedEvent: the accountant does not know the event.
    """
    return 0.5 + 0.5 * accountant.delta(event, 0.0)


def right_guess(epsilon: float, delta: float) -> float:
    """Bounds the probability of a right guess between two neighbours at even odds, from ε and δ alone.

    Of any test, true and false alarms keep TPR ≤ e^ε·FPR + δ, both ways; so (TPR + 1 − FPR)/2 is at
    most (e^ε + δ)/(e^ε + 1).

    >>> right_guess(0.0, 0.0), right_guess(math.inf, 1e-5)
    (0.5, 1.0)
    """
    back = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * back) / (1.0 + back))


def detected(curve: Iterable[tuple[float, float]], false_alarms: float) -> float:
    """Bounds the power of any test that tells two neighbours apart, at a rate α of false alarms.

    Of (ε, δ)-DP releases it is at most e^ε·α + δ, and at most 1 − e^(−ε)·(1 − δ − α).

    Args:
      curve: pairs (ε, δ) that all hold of the releases; the smallest bound counts.
      false_alarms: α, in [0, 1].

    Source: Kairouz, Oh and Viswanath (2015), arXiv:1311.0776, Theorem 2.1; for all ε together: Dong,
    Roth and Su (2022), arXiv:1905.02383, Proposition 2.12.

    >>> detected([(0.0, 0.1), (1.0, 0.0)], 0.01)
    0.027182818284590453
    """
    found = 1.0
    for epsilon, delta in curve:
        found = min(
            found,
            math.exp(min(epsilon, 700.0)) * false_alarms + delta,
            1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms),
        )
    return found


def lifetime_spend(ledger: Ledger, cap: RdpFilter) -> LifetimeSpend:
    """States what a site's ledger for life says is spent, with all of δ.

    The filter has what is left of δ beside the part kept for the tables of noise, and the tables of
    all releases must fit into that part: else epsilon is infinite. Nothing spent is epsilon 0.

    Args:
      ledger: whose header ``is_lifetime``.
      cap: the filter that admitted its releases.

    Raises:
      UnsupportedEvent: an event in it has no Rényi price.
    """
    whole = ledger.header.delta
    if whole is None:
        whole = cap.delta / (1 - TABLES_SHARE)
    event = spent(ledger)
    if event == NOTHING:
        epsilon = 0.0
    elif fits(
        noised_releases(event) * ledger.header.table_distance, cap.epsilon, whole - cap.delta
    ):
        epsilon = cap.epsilon_of(event)
    else:
        epsilon = math.inf
    return LifetimeSpend(epsilon, cap.epsilon, whole, cap.relation, reservations(ledger))


def declarations(header: Header, *, seen_in_sums: bool = False) -> tuple[str, ...]:
    """Lists what a study says of its data and a claim rests on, one line each.

    With ``seen_in_sums`` also what a claim for the view "aggregate" rests on.

    >>> header = Header("heart", "ab12", "north", "record", "substitute", "message", True)
    >>> declarations(header)
    ('no record is added, changed or taken out at a site from its first answer to its last',)
    """
    unit, lines = header.unit, [caveats.FROZEN]
    if header.max_records is not None:
        held = "record" if unit == "client" else unit
        lines.append(f"no site holds more than {header.max_records} {held}s")
    if header.rows_per_unit is not None:
        lines.append(
            f"of each {unit} at most one row is used"
            if header.rows_per_unit == 1
            else f"of each {unit} at most {header.rows_per_unit} rows are used, clipped together as one "
            "contribution"
        )
    if header.disjoint:
        lines.append(disjoint_words(unit))
    if header.records_public:
        lines.append(
            f"the number of {unit}s at each client is public, so no epsilon is stated for one more or less"
        )
    if seen_in_sums and header.sums is not None:
        least, colluding, topped_up = header.sums
        lines += [NO_SERVER, ENROLLED] if header.secure else [caveats.TRUSTED]
        lines.append(caveats.UNDER_COVER.format(least=least, colluding=colluding))
        if topped_up:
            lines += [SIGNED_ONCE.format(colluding=colluding), TOPPED_UP.format(clients=topped_up)]
    return tuple(lines)


def disjoint_words(unit: str) -> str:
    """Says why the largest price of any client is that of all of them."""
    return caveats.EACH_ITS_OWN if unit == "client" else caveats.DISJOINT.format(unit=unit)


def _exclusions(mark: str, relation: Relation, unit: str) -> tuple[str, ...]:
    found = list(caveats.EXCLUSIONS)
    if unit == "client":
        found.append(caveats.WHOLE_CLIENTS)
        if relation == "add_remove":
            found.append(caveats.ONE_OF_MANY)
    elif relation == "add_remove":
        found.append(caveats.SURPLUS)
    if "simulation" in mark or "seeded noise" in mark:
        found.append(caveats.FLOAT_NOISE)
    if caveats.UNVETTED in mark:
        found.append(caveats.CUSTOM_CODE)
    return tuple(found)


def _assumptions(event: Event) -> tuple[str, ...]:
    found = [caveats.PSEUDORANDOM, caveats.ENTROPY]
    if holds(event, WithoutReplacement):
        found.append(caveats.UNIFORM_BATCHES)
    return tuple(found)


def as_dict(claim: Claim) -> dict[str, Any]:
    """Writes a claim as JSON values; an infinite epsilon, which JSON does not know, as "inf".

    >>> claim = Claim("north", "record", "substitute", "message", 1.0, 1e-5, "pld", 6, (), "")
    >>> as_dict(claim)["epsilon"]
    1.0
    """
    fields = claim._asdict()
    del fields["priced"]
    if not claim.kept:
        del fields["kept"]
    for name in ("exclusions", "assumptions", "declarations"):
        fields[name] = list(fields[name])
    fields["items"] = None if claim.items is None else claim.items._asdict()
    fields["lifetime"] = None if claim.lifetime is None else claim.lifetime._asdict()
    for part in (fields, fields["lifetime"] or {}):
        for name in ("epsilon", "cap"):
            if name in part and math.isinf(part[name]):
                part[name] = "inf"
    return fields


def to_text(parts: Sequence[Claim]) -> str:
    """Writes claims for whoever has to judge them, with all that they rest on; plain text.

    Numbers are rounded up, so that what is written holds. Lines that all claims share are written
    once.

    Args:
      parts: of any clients, and of the consortium.
    """
    if not parts:
        return "No claim: what left was not protected (epsilon is infinite).\n"
    lines = ["Privacy statement", ""]
    for claim in parts:
        lines.append(
            f"{claim.client}: epsilon {_up(claim.epsilon)} at delta {_up(claim.delta)}, unit "
            f"{claim.unit}, relation {claim.relation}, view {claim.view}, accountant "
            f"{claim.accountant}, {claim.releases} releases reserved"
        )
        if claim.mark:
            lines.append(f"  MARK: {claim.mark}")
        if claim.items is not None:
            lines.append(
                f"  delta = mechanism {_up(claim.items.mechanism)} + overflow of batches "
                f"{_up(claim.items.overflow)} + tables of noise {_up(claim.items.tables)}"
            )
        if claim.lifetime is not None:
            life = claim.lifetime
            lines.append(
                f"  for life: epsilon {_up(life.epsilon)} of {life.cap:.6g} at delta "
                f"{_up(life.delta)}, relation {life.relation}, {life.releases} releases of all "
                "studies, by a Renyi filter"
            )
        if claim.kept:
            lines.append(
                f"  the ledger in {claim.kept} counts the runs of all processes; a copy of it counts "
                "separately"
            )
    sections = {
        "Each claim compares": [
            f"{claim.relation}: {neighbours(claim.relation, claim.unit)}" for claim in parts
        ],
        "Declared by the study, and checked by nobody": [d for c in parts for d in c.declarations],
        "Assumed": [line for claim in parts for line in claim.assumptions],
        "Not covered": [line for claim in parts for line in claim.exclusions],
    }
    for title, found in sections.items():
        if found:
            lines += ["", f"{title}:", *(f"- {line}" for line in dict.fromkeys(found))]
    return "\n".join(lines) + "\n"


def neighbours(relation: Relation, unit: str) -> str:
    """Says which two data sets a claim compares.

    Of whole clients: data sets of all clients together, which differ in the data of one.

    >>> neighbours("add_remove", "patient")
    'the data of a site with and without one patient'
    """
    if unit == "client":
        return _OF_CLIENTS[relation]
    return _RELATIONS[relation].format(unit=unit)


def guessed(relation: str, unit: str) -> str:
    """Says what an attacker who knows all other units may still guess.

    >>> guessed("substitute", "record")
    'which of two known records took part'
    """
    if unit == "client":
        # That it takes part is public.
        return (
            "whether a given client holds any data"
            if relation == "add_remove"
            else "which of two known data sets a given client holds"
        )
    if relation == "add_remove":
        return f"whether a given {unit} took part"
    return f"which of two known {unit}s took part"


_RELATIONS = {
    "add_remove": "the data of a site with and without one {unit}",
    "substitute": "the data of a site with one {unit} or with another in its place",
}


_OF_CLIENTS = {
    "add_remove": "the data of all clients with and without everything that one client holds",
    "substitute": "the data of all clients with everything that one client holds, or with any other "
    "records in its place",
}


def _up(value: float) -> str:
    """Writes an upper bound to six digits, rounded up."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    text = f"{value:.6g}"
    return text if float(text) >= value else f"{value * (1 + 1e-5):.6g}"


def together(unit: str, view: str) -> str:
    """Says what a price that holds for each client alone leaves out."""
    if unit == "client":
        return caveats.CLIENTS_TOGETHER if view == "message" else caveats.CLIENTS_IN_ONE_SUM
    return caveats.PERSONS_AT_SEVERAL_SITES if view == "message" else caveats.PERSONS_IN_ONE_SUM
