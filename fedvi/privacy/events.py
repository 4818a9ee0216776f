"""Events: descriptions of releases, which accountants price.

An event describes what a mechanism did, not its cost; an accountant converts it to (epsilon, delta).
Events are immutable, hashable and hold public numbers only, so that they can be compared, cached, sent
and written to a ledger. This module uses the standard library only.
"""

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fedvi.errors import ConfigError, UnsupportedEvent, did_you_mean

__all__ = [
    "NOTHING",
    "RELATIONS",
    "Composed",
    "DiscreteGaussian",
    "Event",
    "Gaussian",
    "PoissonSampled",
    "Relation",
    "Repeated",
    "Unprotected",
    "WithoutReplacement",
    "check_relation",
    "compose",
    "counts",
    "from_json",
    "priced",
    "repeat",
    "to_json",
]

Relation: TypeAlias = Literal["add_remove", "substitute"]
RELATIONS: tuple[Relation, ...] = ("add_remove", "substitute")


def check_relation(relation: Relation) -> None:
    """Raises `ConfigError` for an unknown relation."""
    if relation not in RELATIONS:
        raise ConfigError(
            f"relation is {relation!r}, expected one of {', '.join(RELATIONS)}",
            hint=did_you_mean(str(relation), RELATIONS),
        )


@dataclass(frozen=True)
class Gaussian:
    """One release of a sum with Gaussian noise of standard deviation σ·C, C the clip norm.

    ``add_remove`` and ``substitute`` bound how far the sum moves, in clip norms, if one privacy unit (a
    record, a part or a client, as the study declares) is added, removed or substituted. A sum of clipped
    records moves by 1 and 2; a clipped change of a part's factor moves by 2 under either relation.

    Args:
      noise_multiplier: σ, noise std ÷ clip norm, under every relation (never the std, and never
        divided by the shift); 0 means no noise.
      add_remove: ‖total − total′‖₂ ÷ C when one unit is added or removed, at most.
      substitute: ‖total − total′‖₂ ÷ C when one unit is replaced by another, at most.

    >>> Gaussian(2.0)
    Gaussian(noise_multiplier=2.0, add_remove=1.0, substitute=2.0)
    """

    noise_multiplier: float
    add_remove: float = 1.0
    substitute: float = 2.0

    def __post_init__(self) -> None:
        for field in ("noise_multiplier", "add_remove", "substitute"):
            value = _finite("gaussian", field, getattr(self, field))
            if value < 0:
                raise ConfigError(f"gaussian: `{field}` is {value}, expected 0 or more")
            object.__setattr__(self, field, value)


@dataclass(frozen=True)
class DiscreteGaussian:
    """One release of an integer sum with discrete Gaussian noise, or a sum of such noises.

    The noise has the law P[Z = k] ∝ exp(−k²/2σ²) on the integers, in each coordinate. Its concentrated
    privacy equals that of a Gaussian with the same σ, but its privacy loss distribution differs.

    Args:
      noise_multiplier: σ ÷ clip norm, where σ² is the sum of the parameters of all noises added.
      add_remove, substitute: as in `Gaussian`.
      slack: τ·√d if noise of several clients is added, since the sum is not exactly discrete Gaussian; 0
        for one client. It is added to shift ÷ σ.

    Source: Canonne, Kamath and Steinke (2020), arXiv:2004.00010, Theorem 4; Kairouz, Liu and
    Steinke (2021), arXiv:2102.06387, Proposition 14 (sums).
    """

    noise_multiplier: float
    add_remove: float = 1.0
    substitute: float = 2.0
    slack: float = 0.0

    def __post_init__(self) -> None:
        for field in ("noise_multiplier", "add_remove", "substitute", "slack"):
            value = _finite("discrete_gaussian", field, getattr(self, field))
            if value < 0:
                raise ConfigError(f"discrete_gaussian: `{field}` is {value}, expected 0 or more")
            object.__setattr__(self, field, value)


@dataclass(frozen=True)
class PoissonSampled:
    """``inner`` run on a batch that holds each privacy unit independently with the same probability.

    The batch must be secret, freshly drawn for this event, and of random size. Shuffled or fixed-size
    batches are another event, and cost more.

    Args:
      rate: the probability that a unit is in the batch, in (0, 1].
      inner: what is done with the batch.
      overflow: upper bound on the probability, per draw, that the batch exceeds its static capacity and
        is cut, for the largest number of units that the study declares.

    >>> PoissonSampled(0.01, Gaussian(1.5)).overflow
    0.0
    """

    rate: float
    inner: "Event"
    overflow: float = 0.0

    def __post_init__(self) -> None:
        rate = _finite("poisson", "rate", self.rate)
        if not 0 < rate <= 1:
            raise ConfigError(f"poisson: `rate` is {rate}, expected above 0 and at most 1")
        overflow = _finite("poisson", "overflow", self.overflow)
        if not 0 <= overflow < 1:
            raise ConfigError(
                f"poisson: `overflow` is {overflow}, expected at least 0 and below 1",
                hint="it is a probability per draw; raise the batch capacity to lower it",
            )
        _expect_event("poisson", "inner", self.inner)
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "overflow", overflow)


@dataclass(frozen=True)
class WithoutReplacement:
    """``inner`` run on a uniformly random batch of ``batch`` out of ``size`` slots.

    A slot holds one privacy unit or, if there are fewer units than slots, nothing, which contributes
    zero. So ``size`` is public, and the rate ``batch / size`` depends on no data. The batch must be
    secret and freshly drawn for this event. It costs more than `PoissonSampled` at the same rate, because
    a unit that is not in the batch is replaced by another one.

    >>> WithoutReplacement(10, 1000, Gaussian(1.5)).rate
    0.01
    """

    batch: int
    size: int
    inner: "Event"

    def __post_init__(self) -> None:
        size = _whole("without_replacement", "size", self.size)
        batch = _whole("without_replacement", "batch", self.batch)
        if batch > size:
            raise ConfigError(
                f"without_replacement: `batch` is {batch}, expected at most `size`, {size}"
            )
        _expect_event("without_replacement", "inner", self.inner)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "batch", batch)

    @property
    def rate(self) -> float:
        """The probability that a given slot is in the batch."""
        return self.batch / self.size


@dataclass(frozen=True)
class Repeated:
    """``inner`` run ``count`` times on the same privacy units, with fresh randomness each time.

    Later runs may depend on earlier releases; their parameters may not.

    >>> Repeated(Gaussian(2.0), 10).count
    10
    """

    inner: "Event"
    count: int

    def __post_init__(self) -> None:
        _expect_event("repeated", "inner", self.inner)
        object.__setattr__(self, "count", _whole("repeated", "count", self.count))


@dataclass(frozen=True)
class Composed:
    """Several events on the same privacy units, one after the other; `NOTHING` if empty.

    >>> Composed((Gaussian(2.0), Gaussian(3.0))).events[1].noise_multiplier
    3.0
    """

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        for event in self.events:
            _expect_event("composed", "events", event)


@dataclass(frozen=True)
class Unprotected:
    """Something that was sent without noise: epsilon is infinite for every privacy unit in it.

    Args:
      what: one line that says what was sent.

    >>> Unprotected("the exact factor of a non-private study").what
    'the exact factor of a non-private study'
    """

    what: str

    def __post_init__(self) -> None:
        _text("unprotected", "what", self.what)


Event: TypeAlias = (
    Gaussian
    | DiscreteGaussian
    | PoissonSampled
    | WithoutReplacement
    | Repeated
    | Composed
    | Unprotected
)

NOTHING = Composed(())


def compose(*events: Event) -> Event:
    """Composes events on the same units; adjacent equal events are merged into one `Repeated`.

    >>> compose(Gaussian(2.0), Gaussian(2.0)) == repeat(Gaussian(2.0), 2)
    True
    >>> compose() == NOTHING
    True
    """
    runs: list[tuple[Event, int]] = []
    for event in events:
        for part in event.events if isinstance(event, Composed) else (event,):
            inner, count = (part.inner, part.count) if isinstance(part, Repeated) else (part, 1)
            if runs and runs[-1][0] == inner:
                runs[-1] = (inner, runs[-1][1] + count)
            else:
                runs.append((inner, count))
    parts = tuple(repeat(inner, count) for inner, count in runs if inner != NOTHING)
    return parts[0] if len(parts) == 1 else Composed(parts)


def repeat(event: Event, count: int) -> Event:
    """Runs ``event`` ``count`` times; 0 times is `NOTHING`, once is ``event``.

    >>> repeat(repeat(Gaussian(2.0), 3), 4)
    Repeated(inner=Gaussian(noise_multiplier=2.0, add_remove=1.0, substitute=2.0), count=12)
    """
    if count == 0 or event == NOTHING:
        return NOTHING
    if isinstance(event, Repeated):
        return Repeated(event.inner, event.count * count)
    return event if count == 1 else Repeated(event, count)


def counts(event: Event) -> dict[Event, int]:
    """Flattens an event to its atoms and how often each occurs.

    Atoms are `Gaussian`, `DiscreteGaussian` and `Unprotected`, and any `PoissonSampled` or
    `WithoutReplacement`. Sampled events are not flattened, because a sampled composition shares one
    batch, and so differs from the composition of sampled events.

    >>> counts(compose(Gaussian(2.0), repeat(Gaussian(1.0), 3), Gaussian(2.0))).values()
    dict_values([2, 3])
    """
    found: dict[Event, int] = {}
    pending: list[tuple[Event, int]] = [(event, 1)]
    while pending:
        current, times = pending.pop()
        match current:
            case Composed(events):
                pending.extend((part, times) for part in reversed(events))
            case Repeated(inner, count):
                pending.append((inner, times * count))
            case _:
                found[current] = found.get(current, 0) + times
    return found


def priced(
    event: Event, relation: Relation, name: str, why_not: Callable[[Event, Relation], str | None]
) -> Iterator[tuple[Event, int]]:
    """Yields the atoms of `counts` that an accountant called ``name`` knows.

    Raises:
      UnsupportedEvent: ``why_not`` says why an atom has no price.
    """
    for atom, count in counts(event).items():
        why = why_not(atom, relation)
        if why is not None:
            raise UnsupportedEvent(f"accountant {name} does not know the price of {atom}", hint=why)
        yield atom, count


def to_json(event: Event) -> dict[str, Any]:
    """Writes an event as JSON values; `from_json` reads the equal event back.

    >>> to_json(Repeated(Gaussian(2.0), 3))["kind"]
    'repeated'
    """
    match event:
        case Gaussian(noise_multiplier, add_remove, substitute):
            return {
                "kind": "gaussian",
                "noise_multiplier": noise_multiplier,
                "add_remove": add_remove,
                "substitute": substitute,
            }
        case DiscreteGaussian(noise_multiplier, add_remove, substitute, slack):
            return {
                "kind": "discrete_gaussian",
                "noise_multiplier": noise_multiplier,
                "add_remove": add_remove,
                "substitute": substitute,
                "slack": slack,
            }
        case WithoutReplacement(batch, size, inner):
            return {
                "kind": "without_replacement",
                "batch": batch,
                "size": size,
                "inner": to_json(inner),
            }
        case PoissonSampled(rate, inner, overflow):
            return {
                "kind": "poisson",
                "rate": rate,
                "inner": to_json(inner),
                "overflow": overflow,
            }
        case Repeated(inner, count):
            return {"kind": "repeated", "inner": to_json(inner), "count": count}
        case Composed(events):
            return {"kind": "composed", "events": [to_json(part) for part in events]}
        case Unprotected(what):
            return {"kind": "unprotected", "what": what}
    raise UnsupportedEvent(f"no event: {event!r}")


def from_json(data: object) -> Event:
    """Reads what `to_json` wrote; rejects an unknown kind, and a missing or unknown field.

    An unknown field could change the price, so it is rejected, not ignored.

    Raises:
      UnsupportedEvent: the kind or a field is unknown, or the nesting is deeper than 32.
      ConfigError: a value is outside what its field allows.

    >>> from_json({"kind": "unprotected", "what": "a factor"})
    Unprotected(what='a factor')
    """
    return _from_json(data, depth=0)


_FIELDS: dict[str, tuple[str, ...]] = {
    "gaussian": ("noise_multiplier", "add_remove", "substitute"),
    "discrete_gaussian": ("noise_multiplier", "add_remove", "substitute", "slack"),
    "poisson": ("rate", "inner", "overflow"),
    "without_replacement": ("batch", "size", "inner"),
    "repeated": ("inner", "count"),
    "composed": ("events",),
    "unprotected": ("what",),
}
_DEEPEST = 32


def _from_json(data: object, depth: int) -> Event:
    if depth > _DEEPEST:
        raise UnsupportedEvent(f"an event is nested deeper than {_DEEPEST}")
    if not isinstance(data, Mapping):
        raise UnsupportedEvent(f"an event is {type(data).__name__}, expected an object")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise UnsupportedEvent(
            f"event kind {kind!r} is unknown", hint=did_you_mean(str(kind), _FIELDS)
        )
    if set(data) != {"kind", *_FIELDS[kind]}:
        raise UnsupportedEvent(
            f"event {kind}: fields are {sorted(map(str, data))}, "
            f"expected {sorted(('kind', *_FIELDS[kind]))}"
        )
    match kind:
        case "gaussian":
            return Gaussian(*(_finite(kind, field, data[field]) for field in _FIELDS[kind]))
        case "discrete_gaussian":
            return DiscreteGaussian(*(_finite(kind, field, data[field]) for field in _FIELDS[kind]))
        case "without_replacement":
            return WithoutReplacement(
                _whole(kind, "batch", data["batch"]),
                _whole(kind, "size", data["size"]),
                _from_json(data["inner"], depth + 1),
            )
        case "poisson":
            return PoissonSampled(
                _finite(kind, "rate", data["rate"]),
                _from_json(data["inner"], depth + 1),
                _finite(kind, "overflow", data["overflow"]),
            )
        case "repeated":
            count = _whole(kind, "count", data["count"])
            return Repeated(_from_json(data["inner"], depth + 1), count)
        case "composed":
            if not isinstance(data["events"], list):
                raise UnsupportedEvent("event composed: `events` is no list")
            return Composed(tuple(_from_json(part, depth + 1) for part in data["events"]))
        case _:
            return Unprotected(_text(kind, "what", data["what"]))


def _finite(kind: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{kind}: `{field}` is {value!r}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{kind}: `{field}` is {number}, expected a finite number")
    return number + 0.0  # turns -0.0 into 0.0, so that equal events have the same JSON


def _whole(kind: str, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        raise ConfigError(f"{kind}: `{field}` is {value!r}, expected a whole number of 1 or more")
    return int(value)


def _text(kind: str, field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{kind}: `{field}` is {value!r}, expected a line of text")
    return value


def _expect_event(kind: str, field: str, value: object) -> None:
    if not isinstance(value, Event):
        raise ConfigError(f"{kind}: `{field}` holds {value!r}, expected an event")
