"""Prices by basic composition, the plainest valid bound."""

import math
import sys
from dataclasses import dataclass

from fedvi.errors import ConfigError
from fedvi.privacy.accountants import steps
from fedvi.privacy.events import Event, Relation

__all__ = ["Linear", "linear", "sum_of_epsilons"]


@dataclass(frozen=True)
class Linear:
    """Adds up the ε and the δ of every release; made by `linear`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance. Each release gets the same δ, and the ε that goes
    with it: the exact one for a Gaussian, amplified by sampling as `steps.Step` proves.
    It grows with the number of releases where `pld` grows with its square root.

    Source: Dwork, Kenthapadi, McSherry, Mironov and Naor (2006), Theorem 1 (composition).
    """

    relation: Relation

    @property
    def name(self) -> str:
        """What claims and messages call this accountant."""
        return "linear"

    def supports(self, event: Event) -> bool:
        """Whether every atom is a Gaussian, one batch of one Gaussian, or `Unprotected`.

        Batches without replacement under ``substitute`` only.
        """
        return steps.is_supported(event, self.relation)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``, in [0, 1); infinite when there is none.

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
          PrivacyError: no ε is finite, because of overflowing batches and nothing else.
        """
        if not 0 <= delta < 1:
            raise ConfigError(f"delta is {delta}, expected at least 0 and below 1")
        found, overflow = steps.steps_of(event, self.relation, self.name)
        return steps.with_overflow(lambda share: sum_of_epsilons(found, share), delta, overflow)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``, a finite number of 0 or more.

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
        return steps.delta_by_search(self, event, epsilon)


def linear(relation: Relation) -> Linear:
    """Returns the accountant by basic composition for one neighbouring relation.

    >>> from fedvi.privacy.events import Gaussian, Repeated
    >>> round(linear("add_remove").epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 3)
    21.51
    """
    steps.check_relation(relation)
    return Linear(relation)


def sum_of_epsilons(found: tuple[steps.Step, ...], delta: float) -> float:
    """Σ ε of all steps, each at the same δ, rounded up; the δ sum to at most ``delta``."""
    if not found:
        return 0.0
    releases = sum(step.times for step in found)
    # So many times a δ that was rounded down is at most ``delta``.
    share = delta if releases == 1 else math.nextafter(delta / releases, 0.0)
    total = math.fsum(step.times * step.epsilon(share) for step in found)
    return total if releases == 1 else total * (1 + 4 * sys.float_info.epsilon)
