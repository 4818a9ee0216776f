"""The releases that historical methods are of, and what stands beside each of their numbers."""

from typing import TypeAlias

from fedvi.privacy.events import Event, Gaussian, PoissonSampled, Relation, counts

__all__ = ["LABEL", "Step", "in_short", "standard_steps"]

LABEL = "historical, not a guarantee"

# (noise ÷ the largest contribution, rate, count); rate 1 is no sampling.
Step: TypeAlias = tuple[float, float, int]


def in_short(event: Event) -> str:
    """Returns an event in at most 120 characters, for errors."""
    text = repr(event)
    return text if len(text) <= 120 else text[:117] + "..."


def standard_steps(event: Event, relation: Relation) -> tuple[Step, ...] | None:
    """Returns what is priced, or None where an atom is none of these formulas' kind."""
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
