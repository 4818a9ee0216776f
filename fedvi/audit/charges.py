"""Splits each kind of privacy event into the single releases that it charges for."""

from typing import NamedTuple

import scipy.stats

from fedvi.privacy import events

__all__ = ["Charge", "charges"]


class Charge(NamedTuple):
    """The parameters at which one release is charged.

    Attributes:
      noise_multiplier: std of the noise in clip norms.
      add_remove, substitute: the shifts, in clip norms.
      rate: the probability that a record is in the batch.
      poisson: whether records are drawn independently of each other.
      batch, slots: of a batch of fixed size; 0 otherwise.
    """

    noise_multiplier: float
    add_remove: float
    substitute: float
    rate: float = 1.0
    poisson: bool = False
    batch: int = 0
    slots: int = 0

    @property
    def law(self) -> tuple[float, bool, int, int]:
        """The sampling law at which the batch is charged."""
        return self.rate, self.poisson, self.batch, self.slots

    def any_of(self, count: int) -> float:
        """The probability that any of ``count`` slots is in the batch.

        >>> Charge(1.0, 1.0, 2.0, rate=0.5, poisson=True).any_of(2)
        0.75
        """
        if self.slots:
            return float(scipy.stats.hypergeom.sf(0, self.slots, count, self.batch))
        return float(1.0 - (1.0 - self.rate) ** count)


def charges(event: events.Event) -> list[Charge | None]:
    """Lists an event's charges, release by release; None for a release without protection.

    >>> charges(events.Repeated(events.PoissonSampled(0.1, events.Gaussian(2.0)), 2))[1].rate
    0.1
    """
    match event:
        case events.Gaussian(sigma, add_remove, substitute):
            return [Charge(sigma, add_remove, substitute)]
        case events.DiscreteGaussian(sigma, add_remove, substitute):
            return [Charge(sigma, add_remove, substitute)]
        case events.PoissonSampled(rate, inner):
            return [part and part._replace(rate=rate, poisson=True) for part in charges(inner)]
        case events.WithoutReplacement(batch, slots, inner):
            return [
                part and part._replace(rate=event.rate, batch=batch, slots=slots)
                for part in charges(inner)
            ]
        case events.Repeated(inner, count):
            return charges(inner) * count
        case events.Composed(parts):
            return [charge for part in parts for charge in charges(part)]
        case _:
            return [None]
