"""Joins the claims of all clients into what they claim together."""

import decimal
import math
from collections.abc import Sequence

from fedvi.errors import ConfigError
from fedvi.privacy import caveats
from fedvi.privacy.delta_parts import table_distance, with_tables
from fedvi.privacy.events import compose
from fedvi.privacy.statement import Claim, Priced, disjoint_words, right_guess, together

__all__ = ["consortium"]

# The ε, the δ and the bound on right guesses of all clients together.
_Cost = tuple[float, float, float | None]


def consortium(parts: Sequence[Claim], disjoint: bool) -> tuple[Claim, ...]:
    """Joins the claims of all clients into one for each relation.

    Guarantee: if no unit is at two sites, a change of one unit changes one site's data, and the
    other sites' releases depend on them through released values alone: the largest epsilon and the
    largest delta hold (parallel composition). If units may be at several sites, once at each, all sites'
    releases are one sequence about the unit, in which each may depend on those before it: the sequence is
    priced as one client's would be (adaptive composition), at the largest delta. Where that gives no finite
    price, and where claims cannot be composed, since they do not say what they were computed from or the
    accountants differ, their sums hold (basic composition). So it is of messages, whose noises are each
    client's own; one sum holds a unit's part of every client behind one noise, which prices of that sum do
    not add up to. Under the view "aggregate", what messages cost together is then what is claimed: they
    tell all that sums do.

    Args:
      parts: of all clients, each with the same relations; under "aggregate" with those of messages.
      disjoint: whether the study declares that no unit is at two sites.

    Raises:
      ConfigError: there is no claim, a client states a relation twice or lacks one that another
        states, units or views differ, or claims of messages are wanted and missing.
    """
    if not parts:
        raise ConfigError("there is no claim to join, expected one for each client and relation")
    for field in ("unit", "view"):
        found: dict[str, set[str]] = {}
        for part in parts:
            found.setdefault(part.client, set()).add(getattr(part, field))
        known = sorted(set().union(*found.values()))
        # A client may state a price for each of two views, if all do.
        if len(known) > (1 if field == "unit" else min(map(len, found.values()))):
            raise ConfigError(
                f"claims have `{field}` {', '.join(known)}, expected one and the same"
            )
    relations = list(dict.fromkeys(part.relation for part in parts))
    kinds = list(dict.fromkeys((part.view, part.relation) for part in parts))
    clients = list(dict.fromkeys(part.client for part in parts))
    pairs = [(part.client, part.view, part.relation) for part in parts]
    if len(set(pairs)) < len(pairs) or len(pairs) != len(clients) * len(kinds):
        raise ConfigError(
            f"{len(pairs)} claims of {len(clients)} clients under {', '.join(relations)}, expected "
            "one for each client and relation"
        )
    for view, relation in kinds:
        if (_priced_by(view, disjoint), relation) not in kinds:
            raise ConfigError(
                f"claims of the view {view!r} under {relation} have none of messages beside them, expected "
                "both: units may be at several clients",
                hint="state the claims of each client by `claims`, all of them",
            )
    return tuple(
        _join([part for part in parts if (part.view, part.relation) == seen], disjoint)._replace(
            view=view
        )
        for view, relation in kinds
        for seen in [(_priced_by(view, disjoint), relation)]
    )


def _priced_by(view: str, disjoint: bool) -> str:
    """Names the view whose prices hold for all clients together; see `consortium`."""
    return "message" if view == "aggregate" and not disjoint else view


def _join(parts: list[Claim], disjoint: bool) -> Claim:
    unit = parts[0].unit
    epsilon, delta, right = (_largest if disjoint else _shared)(parts)
    exclusions = [line for part in parts for line in part.exclusions]
    if disjoint:
        exclusions.append(together(unit, parts[0].view))
    else:
        exclusions += [line.format(unit=unit) for line in caveats.AT_SEVERAL_SITES]
    declared = [line for part in parts for line in part.declarations]
    if disjoint:
        declared.append(disjoint_words(unit))
    return parts[0]._replace(
        client=f"all {len(parts)} clients" if len(parts) > 1 else parts[0].client,
        epsilon=epsilon,
        delta=delta,
        right=right,
        accountant=", ".join(dict.fromkeys(part.accountant for part in parts)),
        releases=sum(part.releases for part in parts),
        exclusions=tuple(dict.fromkeys(exclusions)),
        mark="; ".join(dict.fromkeys(part.mark for part in parts if part.mark)),
        items=parts[0].items if len({part.items for part in parts}) == 1 and disjoint else None,
        assumptions=tuple(dict.fromkeys(line for part in parts for line in part.assumptions)),
        declarations=tuple(dict.fromkeys(declared)),
        # What a site spent for life, and where it counts, is the site's own.
        lifetime=parts[0].lifetime if len(parts) == 1 else None,
        kept=parts[0].kept if len(parts) == 1 else "",
        priced=None,
    )


def _largest(parts: Sequence[Claim]) -> _Cost:
    rights = [right_guess(p.epsilon, p.delta) if p.right is None else p.right for p in parts]
    return max(p.epsilon for p in parts), max(p.delta for p in parts), max(rights)


def _shared(parts: Sequence[Claim]) -> _Cost:
    """Prices a unit that may be at every site: composed or, where that gives no finite ε, added up.

    The error of the noise tables and the overflow of batches count (1 + e^ε) times: of all sites' ε, that
    can be more than δ, and of each site's it is not.
    """
    found = _composed(parts)
    if found is None:
        return _added_up(parts)
    if math.isinf(found[0]):
        epsilon, delta, _ = _added_up(parts)
        return epsilon, delta, found[2]
    return found


def _composed(parts: Sequence[Claim]) -> _Cost | None:
    """Prices all clients' releases as one sequence; None where the claims cannot be composed.

    The accountant is the one whose noise tables err most: its bound holds for all.
    """
    priced = [part.priced for part in parts if part.priced is not None]
    if len(priced) < len(parts):
        return None
    distance = max(table_distance(each.accountant) for each in priced)
    known = {with_tables(each.accountant, distance) for each in priced}
    if len(known) > 1:
        return None
    events = tuple(compose(*each) for each in zip(*(p.events for p in priced), strict=True))
    whole, delta = Priced(known.pop(), events), max(part.delta for part in parts)
    epsilon = whole.epsilon(delta)
    return epsilon, delta, min(right_guess(epsilon, delta), whole.right())


def _added_up(parts: Sequence[Claim]) -> _Cost:
    delta = min(1.0, _decimal_sum([part.delta for part in parts]))
    return math.fsum(part.epsilon for part in parts), delta, None


def _decimal_sum(values: Sequence[float]) -> float:
    """Adds numbers as they are written: three times 1e-5 is 3e-5, and is not rounded up to 3.001e-5.

    A δ is declared as a decimal, of which its float64 is the nearest: the sum of the decimals is the one
    that is meant, and is as near to that of the floats as these are to what was declared.
    """
    return float(sum(decimal.Decimal(repr(value)) for value in values))
