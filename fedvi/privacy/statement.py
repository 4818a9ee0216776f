"""What a client may claim about its releases; come here to change what a privacy statement says."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedvi.errors import ConfigError
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.events import Event, Relation
from fedvi.privacy.ledger import Ledger, spent

__all__ = [
    "ADDED_UP",
    "EXCLUSIONS",
    "FLOAT_NOISE",
    "FORM_OF_FILE",
    "PERSONS_AT_SEVERAL_SITES",
    "POOLED",
    "PREPROCESSING",
    "TIMING",
    "TUNING",
    "Claim",
    "as_dict",
    "claims",
    "consortium",
]

TUNING = "choosing hyper-parameters by looking at these data"
PREPROCESSING = "preprocessing of the data outside the declared schema"
TIMING = "timing and sizes of messages"
# Reading refuses on the form of a file, which can depend on a record.
FORM_OF_FILE = "whether a client's file could be read and held at most max_records records"
EXCLUSIONS = (TUNING, PREPROCESSING, TIMING, FORM_OF_FILE)
POOLED = "the pooled, non-private fit that was asked for"
FLOAT_NOISE = "noise drawn in floating point, or from a known seed"
PERSONS_AT_SEVERAL_SITES = "a person whose records are at k sites pays k times"
ADDED_UP = "sites may hold the same person: epsilons and deltas are added up over sites"


class Claim(NamedTuple):
    """A privacy guarantee with all that it depends on; no epsilon is stated without the rest.

    Args:
      client: whose releases; or all clients together.
      unit: what is protected: "record", "client", ….
      relation: the neighbouring relation.
      view: who sees what.
      epsilon: of the declared largest number of releases; infinite if something left unprotected.
      delta: at which epsilon holds.
      accountant: the name of what computed it.
      releases: how many releases the ledger reserved.
      exclusions: what the guarantee does not cover, one line each.
      mark: printed beside the claim, such as "simulation: no guarantee"; or empty.
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


def claims(
    ledger: Ledger, planned: Event, delta: float, accountants: Sequence[Accountant]
) -> tuple[Claim, ...]:
    """States what a client's releases cost, once for each accountant's relation.

    Guarantee: epsilon is that of ``planned``, the largest number of releases the study declares,
    and never less than that of what the ledger reserved. It may be stated whenever the run stops;
    an epsilon of the releases made so far may not: the run did not fix in advance where to stop.

    Args:
      ledger: of one client.
      planned: all releases that the client may make in this study.
      delta: at which epsilon is stated.
      accountants: at most one for each relation.

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
    header = ledger.header
    reserved = spent(ledger)
    return tuple(
        Claim(
            client=header.client,
            unit=header.unit,
            relation=accountant.relation,
            view=header.view,
            epsilon=max(accountant.epsilon(planned, delta), accountant.epsilon(reserved, delta)),
            delta=delta,
            accountant=accountant.name,
            releases=sum(entry.kind == "reserved" for entry in ledger.entries),
            exclusions=(*EXCLUSIONS, FLOAT_NOISE) if header.note else EXCLUSIONS,
            mark=header.note,
        )
        for accountant in accountants
    )


def consortium(parts: Sequence[Claim], disjoint: bool) -> tuple[Claim, ...]:
    """Joins the claims of all clients into one for each relation.

    Guarantee: if no unit is at two sites, a change of one unit changes one site's data, and the
    other sites' releases depend on them through released values alone: the largest epsilon and the
    largest delta hold (parallel composition). If units may be at several sites, once at each, their
    sums hold (basic composition).

    Args:
      parts: of all clients, each with the same relations.
      disjoint: whether the study declares that no unit is at two sites.

    Raises:
      ConfigError: there is no claim, a client states a relation twice or lacks one that another
        states, or units or views differ.
    """
    if not parts:
        raise ConfigError("there is no claim to join, expected one for each client and relation")
    for field in ("unit", "view"):
        found = sorted({getattr(part, field) for part in parts})
        if len(found) > 1:
            raise ConfigError(
                f"claims have `{field}` {', '.join(found)}, expected one and the same"
            )
    relations = list(dict.fromkeys(part.relation for part in parts))
    clients = list(dict.fromkeys(part.client for part in parts))
    pairs = [(part.client, part.relation) for part in parts]
    if len(set(pairs)) < len(pairs) or len(pairs) != len(clients) * len(relations):
        raise ConfigError(
            f"{len(pairs)} claims of {len(clients)} clients under {', '.join(relations)}, expected "
            "one for each client and relation"
        )
    return tuple(
        _join([part for part in parts if part.relation == relation], disjoint)
        for relation in relations
    )


def as_dict(claim: Claim) -> dict[str, Any]:
    """Writes a claim as JSON values; an infinite epsilon, which JSON does not know, as "inf".

    >>> claim = Claim("north", "record", "substitute", "message", 1.0, 1e-5, "pld", 6, (), "")
    >>> as_dict(claim)["epsilon"]
    1.0
    """
    fields = claim._asdict()
    fields["epsilon"] = claim.epsilon if math.isfinite(claim.epsilon) else "inf"
    fields["exclusions"] = list(claim.exclusions)
    return fields


def _join(parts: list[Claim], disjoint: bool) -> Claim:
    epsilons, deltas = [p.epsilon for p in parts], [p.delta for p in parts]
    exclusions = [line for part in parts for line in part.exclusions]
    exclusions.append(PERSONS_AT_SEVERAL_SITES if disjoint else ADDED_UP)
    return parts[0]._replace(
        client=f"all {len(parts)} clients" if len(parts) > 1 else parts[0].client,
        epsilon=max(epsilons) if disjoint else math.fsum(epsilons),
        delta=max(deltas) if disjoint else min(1.0, math.fsum(deltas)),
        accountant=", ".join(dict.fromkeys(part.accountant for part in parts)),
        releases=sum(part.releases for part in parts),
        exclusions=tuple(dict.fromkeys(exclusions)),
        mark="; ".join(dict.fromkeys(part.mark for part in parts if part.mark)),
    )
