"""The releases that historical methods cover, and the label of their results."""

from typing import TypeAlias

from fedvi.privacy.events import Event, Gaussian, PoissonSampled, Relation, counts

__all__ = ["LABEL", "Step", "in_short", "standard_steps"]

LABEL = "historical, not a guarantee"

# (noise ÷ the largest contribution, rate, count); a rate of 1 means no sampling.
Step: TypeAlias = tuple[float, float, int]


def in_short(event: Event) -> str:
    """Returns an event's repr, cut to 120 characters, for error messages."""
    text = repr(event)
    return text if len(text) <= 120 else text[:117] + "..."


def standard_steps(event: Event, relation: Relation) -> tuple[Step, ...] | None:
    """Returns the steps of ``event``, or None if these formulas do not cover one of its atoms."""
    found: dict[tuple[float, float], int] = {}
    for atom, count in counts(event).items():
        match atom:
            case Gaussian() as inner:
                rate = 1.0
            case PoissonSampled(rate, Gaussian() as inner, _):
                pass
            case _:
                return None
        reach = inner.add_remove
        if relation == "substitute":
            reach = inner.substitute / 2 if rate == 1 else max(reach, inner.substitute / 2)
        if reach > 1 and rate < 1:
            return None
        if reach == 0:
            continue
        if inner.noise_multiplier == 0:
            return None
        step = (inner.noise_multiplier / reach, rate)
        found[step] = found.get(step, 0) + count
    return tuple((noise, rate, count) for (noise, rate), count in sorted(found.items()))
