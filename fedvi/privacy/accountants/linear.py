"""Prices by basic composition, the simplest valid bound."""

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

from fedvi.privacy.accountants import steps
from fedvi.privacy.accountants.overflow import check_delta
from fedvi.privacy.events import Event, Relation, check_relation

__all__ = ["Linear", "linear", "sum_of_epsilons"]


@dataclass(frozen=True)
class Linear:
    """Adds up ε and δ over all releases; made by `linear`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance. Each release gets the same δ, and the ε that goes
    with it: the exact one for a Gaussian, amplified by sampling as `steps.Step` proves.
    ε grows linearly in the number of releases, while that of `pld` grows with the square root.

    Source: Dwork, Kenthapadi, McSherry, Mironov and Naor (2006), Theorem 1 (composition).
    """

    relation: Relation
    name: ClassVar[str] = "linear"

    def supports(self, event: Event) -> bool:
        """Whether every atom is a Gaussian, one batch of one Gaussian, or `Unprotected`.

        Batches without replacement under ``substitute`` only.
        """
        return steps.is_supported(event, self.relation)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``; see `Accountant.epsilon`."""
        check_delta(delta)
        found, overflow = steps.steps_of(event, self.relation, self.name)
        return steps.with_overflow(lambda share: sum_of_epsilons(found, share), delta, overflow)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``; see `Accountant.delta`."""
        return steps.delta_by_search(self, event, epsilon)


def linear(relation: Relation) -> Linear:
    """Returns the accountant by basic composition for one neighbouring relation.

    >>> from fedvi.privacy.events import Gaussian, Repeated
    >>> round(linear("add_remove").epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 3)
    21.51
    """
    check_relation(relation)
    return Linear(relation)


def sum_of_epsilons(found: tuple[steps.Step, ...], delta: float) -> float:
    """Σ ε of all steps, each at the same δ, rounded up; the δ sum to at most ``delta``."""
    if not found:
        return 0.0
    releases = sum(step.times for step in found)
    # Rounded down, so that the shares sum to at most ``delta``.
    share = delta if releases == 1 else math.nextafter(delta / releases, 0.0)
    total = math.fsum(step.times * step.epsilon(share) for step in found)
    return total if releases == 1 else total * (1 + 4 * sys.float_info.epsilon)
