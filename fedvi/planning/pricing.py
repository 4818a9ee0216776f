"""Prices a study for `fedvi privacy`: the noise for a target, and the cost of every alternative.

Reads no data: a plan's price follows from the study alone.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.privacy import accountants, calibrate, events, historical, sampling, statement
from fedvi.privacy.sums import in_sum
from fedvi.report import tables
from fedvi.study.build import Assembly
from fedvi.study.config import Study, parse_study
from fedvi.study.spec import shared_parts as parts

__all__ = [
    "Alternative",
    "Growth",
    "Meaning",
    "Price",
    "Pricing",
    "Seen",
    "pricing",
    "with_target",
]

# The most points of ε over rounds; each needs a composition of its own.
_POINTS = 8
# The false positive rate at which a membership test is quoted.
_FALSE_ALARMS = 0.01
# The ε at which a plan's δ is looked up for that.
_EPSILONS = [0.5 * step for step in range(1, 9)]


class Price(NamedTuple):
    """ε of the whole plan per client, by one accountant.

    Args:
      accountant: its name.
      relation: of neighbouring data sets.
      epsilon: None if the accountant does not support the events.
      stated: whether this is the study's own promise.
      label: empty for an upper bound; otherwise printed beside the number.
      least: a lower bound of ε for the worst data; None if unknown.
    """

    accountant: str
    relation: events.Relation
    epsilon: float | None
    stated: bool
    label: str
    least: float | None = None


class Growth(NamedTuple):
    """ε after a number of rounds, by accountant; None if it does not support the events."""

    rounds: int
    epsilon: dict[str, float | None]


class Alternative(NamedTuple):
    """The noise that the same promise would need with another sampler or relation.

    Args:
      sampler: how batches would be drawn.
      relation: the promised relation.
      noise_multiplier: None if the alternative is not offered.
      reason: why not; or empty.
      current: whether it is the study's own.
    """

    sampler: str
    relation: events.Relation
    noise_multiplier: float | None
    reason: str
    current: bool


class Meaning(NamedTuple):
    """Bounds on the inference of an adversary who knows every other record and sees every message.

    Args:
      relation: add_remove asks whether a record took part, substitute which of two records it was.
      right: largest probability of a correct guess at even odds.
      found: largest true positive rate at a false positive rate of 1 %.
    """

    relation: events.Relation
    right: float
    found: float


class Seen(NamedTuple):
    """The noise that each client would add for the same promise under another view.

    Args:
      view: "message", "aggregate" or "secure_aggregate".
      noise_multiplier: of one client's noise.
      reason: why the view is not offered for this study; or empty.
    """

    view: str
    noise_multiplier: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Pricing:
    """Everything that `fedvi privacy` prints, as plain values.

    Attributes:
      study: its name.
      epsilon, delta, relation, unit, view, accountant: the promise.
      clients, rounds: numbers of the plan.
      noise_multiplier: given or calibrated; None if the solver adds no noise.
      clip_norm: the L2 bound on one unit's contribution.
      prices: by accountant and relation.
      growth: ε under the promised relation over rounds.
      alternatives: the noise for the same (ε, δ) under other samplers and relations.
      meanings: bounds on an adversary's inference.
      views: each client's noise for the same promise under other views.
      mark, warnings: printed beside everything.
    """

    study: str
    epsilon: float
    delta: float
    relation: events.Relation
    unit: str
    view: str
    accountant: str
    clients: int
    rounds: int
    noise_multiplier: float | None
    clip_norm: float | None
    prices: tuple[Price, ...]
    growth: tuple[Growth, ...]
    alternatives: tuple[Alternative, ...]
    meanings: tuple[Meaning, ...]
    views: tuple[Seen, ...]
    mark: str
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; an infinite ε becomes the text "inf"."""
        found: dict[str, Any] = tables.plain(vars(self))
        return found


def with_target(
    study: Study,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: str | None = None,
    rounds: int | None = None,
) -> Study:
    """Returns the study with another promise, and noise that will be calibrated to it.

    A price depends on the number of a client's turns, not on their times. So if a script, or the study's
    own function, schedules the turns, ``rounds`` counts a client's turns in all, and a synchronous
    schedule with this many rounds replaces it.

    Raises:
      ConfigError: a value is not allowed for its key, or the study promises nothing.
    """
    changes = {"epsilon": epsilon, "delta": delta, "relation": relation}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given and rounds is None:
        return study
    raw = study.as_written()
    raw["privacy"] = {**raw["privacy"], **given}
    if rounds is not None:
        schedule = raw["schedule"]
        if parts.is_scripted(study):
            parts.schedule(study)  # raises if the schedule cannot be carried out
            kept = ("damping", "deadline_seconds", "quorum")
            schedule = {name: schedule[name] for name in kept if name in schedule}
            schedule["kind"] = "synchronous"
        raw["schedule"] = schedule | {"rounds": rounds}
    raw["solver"].pop("noise_multiplier", None)
    return parse_study(raw, study.parts)


def pricing(assembly: Assembly, *, with_historical: bool = False) -> Pricing:
    """Prices a study's plan in every way that fedvi supports.

    Args:
      assembly: from ``build.assemble``.
      with_historical: adds the claims of older papers and tools, labelled as such.

    Raises:
      ConfigError: the study promises nothing, so that nothing has a price.
    """
    promise = assembly.study.privacy.promise
    if promise is None or assembly.budget is None:
        raise errors.ConfigError(
            'privacy.protection is "none": un-noised statistics leave every client (ε = ∞)',
            "write a [privacy] section with epsilon, delta, unit and relation, and a private solver",
        )
    planned, delta = assembly.planned, promise.delta
    study = assembly.study
    solver = assembly.solvers[assembly.clients[0]]
    return Pricing(
        study=study.study.name,
        epsilon=promise.epsilon,
        delta=delta,
        relation=promise.relation,
        unit=promise.unit,
        view=study.privacy.view,
        accountant=study.privacy.accountant,
        clients=len(assembly.clients),
        rounds=assembly.schedule.rounds,
        noise_multiplier=assembly.noise_multiplier,
        clip_norm=solver.clip_norm,
        prices=_prices(assembly, planned, delta, with_historical),
        growth=_growth(assembly, solver.cost, delta, with_historical),
        alternatives=_alternatives(assembly, planned),
        meanings=_meanings(assembly, planned),
        views=_views(assembly),
        mark=assembly.mark,
        warnings=assembly.warnings,
    )


def _prices(
    assembly: Assembly, planned: events.Event, delta: float, with_historical: bool
) -> tuple[Price, ...]:
    privacy = assembly.study.privacy
    rows = []
    for relation in _relations(assembly):
        for name in accountants.__all__:
            price = _epsilon(assembly.accountant(name, relation), planned, delta)
            stated = (name, relation) == (privacy.accountant, privacy.relation)
            least = None
            if name == "pld" and price is not None:
                least = accountants.pld(relation).bounds(_seen(assembly, planned), delta)[0]
            rows.append(Price(name, relation, price, stated, "", least))
        for name in historical.METHODS if with_historical else ():
            price = _epsilon(historical.METHODS[name](relation), _seen(assembly, planned), delta)
            rows.append(Price(name, relation, price, False, historical.LABEL))
    return tuple(rows)


def _seen(assembly: Assembly, event: events.Event) -> events.Event:
    """Returns a message's event as the study's view shows it, for methods that know no views."""
    sums = assembly.study.sums
    return event if sums is None else in_sum(event, sums.honest)


def _relations(assembly: Assembly) -> Sequence[events.Relation]:
    # With a published number of records, adding or removing one is visible.
    return ("substitute",) if assembly.study.privacy.records_public else events.RELATIONS


def _epsilon(accountant: Any, event: events.Event, delta: float) -> float | None:
    if not accountant.supports(event):
        return None
    try:
        return accountants.price(accountant, event, delta)
    except errors.UnsupportedEvent:  # supported in kind, but outside its safe range
        return None


def _growth(
    assembly: Assembly, visit: events.Event, delta: float, with_historical: bool
) -> tuple[Growth, ...]:
    relation = assembly.study.privacy.relation
    assert relation is not None
    most = assembly.schedule.rounds
    counts = {max(1, round(most * (k + 1) / _POINTS)) for k in range(_POINTS)} | {1}
    known: dict[str, tuple[Any, events.Event]] = {
        name: (assembly.accountant(name, relation), visit) for name in accountants.__all__
    }
    for name in historical.METHODS if with_historical else ():
        if name != "fourier":  # it takes seconds per point
            method = historical.METHODS[name](relation)
            known[f"{name} (historical)"] = (method, _seen(assembly, visit))
    return tuple(
        Growth(
            count,
            {
                name: _epsilon(accountant, events.repeat(event, count), delta)
                for name, (accountant, event) in known.items()
            },
        )
        for count in sorted(counts)
    )


def _alternatives(assembly: Assembly, planned: events.Event) -> tuple[Alternative, ...]:
    """Calibrates noise for the same promise under other samplers and relations."""
    budget, sampler = assembly.budget, assembly.sampler
    if assembly.noise_multiplier is None or sampler is None or budget is None:
        return ()
    most = assembly.study.data.max_records
    assert most is not None
    choices: dict[str, Any] = {"full": sampling.full(most)}
    if sampler.rate < 1:
        batch = max(1, round(sampler.rate * most))
        choices[f"poisson, rate {sampler.rate:.4g}"] = sampling.poisson(sampler.rate, most)
        choices[f"feistel, batch {batch}"] = sampling.feistel(batch, most)
    rows = []
    for label, choice in choices.items():
        for relation in _relations(assembly):
            accountant = assembly.accountant(assembly.study.privacy.accountant, relation)
            current = relation == budget.accountant.relation and type(choice) is type(sampler)
            event_of = _with_sampler(planned, choice)
            if not accountant.supports(event_of(1.0)):
                reason = f"batches of a fixed size have no price under {relation}"
                rows.append(Alternative(label, relation, None, reason, current))
                continue
            try:
                noise = calibrate.calibrate(event_of, accountant, budget.epsilon, budget.delta)
                rows.append(Alternative(label, relation, noise, "", current))
            except errors.ConfigError as error:
                rows.append(Alternative(label, relation, None, error.message, current))
    return tuple(rows)


def _with_sampler(planned: events.Event, sampler: Any) -> Callable[[float], events.Event]:
    """Returns noise → the plan's event with batches from another sampler."""

    def event_of(noise: float) -> events.Event:
        parts = []
        for atom, count in events.counts(planned).items():
            inner: Any = atom
            while isinstance(inner, events.PoissonSampled | events.WithoutReplacement):
                inner = inner.inner
            changed = dataclasses.replace(inner, noise_multiplier=noise)
            parts.append(events.repeat(sampler.event(changed), count))
        return events.compose(*parts)

    return event_of


def _meanings(assembly: Assembly, planned: events.Event) -> tuple[Meaning, ...]:
    rows = []
    for relation in _relations(assembly):
        accountant = assembly.accountant(assembly.study.privacy.accountant, relation)
        if not accountant.supports(planned):
            continue
        right = statement.right_by_noise(accountant, planned)
        curve = [(e, accountant.delta(planned, e)) for e in _EPSILONS]
        rows.append(Meaning(relation, min(1.0, right), statement.detected(curve, _FALSE_ALARMS)))
    return tuple(rows)


def _views(assembly: Assembly) -> tuple[Seen, ...]:
    noise, clients = assembly.noise_multiplier, len(assembly.clients)
    if noise is None or clients < 2:
        return ()
    sums = assembly.study.sums
    if sums is not None:
        whole, masked = noise * math.sqrt(sums.honest), assembly.study.aggregation.secure
        return (
            Seen(
                "message",
                whole,
                "were answers not masked" if masked else "were the server not trusted",
            ),
            Seen("aggregate", noise, ""),
        )
    fed_back = "each client's factor carries its own earlier noise, which would feed back"
    trusted = fed_back
    if assembly.solvers[assembly.clients[0]].adds_up is not None:
        fed_back = (
            "answers keep no noise, but the server sees every one of them, not only their sum"
        )
        trusted = 'if the server is trusted and all answer: view = "aggregate"'
    # How many shares add up to the noise of the sum: all but one of the others are honest by default.
    honest = clients if trusted is fed_back else clients - 1
    return (
        Seen("message", noise, ""),
        Seen("aggregate", noise / math.sqrt(honest), trusted),
        # One honest client besides the one that is priced: the fewest that can hide its answer.
        Seen("secure_aggregate", noise / math.sqrt(2), fed_back),
    )
