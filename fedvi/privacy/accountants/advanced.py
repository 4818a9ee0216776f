"""Prices by strong composition."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fedvi.privacy.accountants import steps
from fedvi.privacy.accountants.linear import sum_of_epsilons
from fedvi.privacy.accountants.overflow import check_delta
from fedvi.privacy.events import Event, Relation, check_relation

__all__ = ["Advanced", "advanced", "strong_composition"]

# Candidate shares of δ for the releases; the rest is for their composition.
_SHARES = (0.003, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 0.99)
# Candidates for the exponent of the moment bound, around that of Hoeffding's lemma.
_ORDERS = tuple(2.0 ** (step / 8) for step in range(-16, 33))


@dataclass(frozen=True)
class Advanced:
    """Strong composition of amplified releases; made by `advanced`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance. Each release gets the same δ and the ε that goes
    with it, exact for a Gaussian and amplified by sampling as `steps.Step` proves; how much of δ
    the releases get is chosen from a few shares, each of them valid. Never above `linear`.
    """

    relation: Relation
    name: ClassVar[str] = "advanced"

    def supports(self, event: Event) -> bool:
        """Whether every atom is a Gaussian, one batch of one Gaussian, or `Unprotected`.

        Batches without replacement under ``substitute`` only.
        """
        return steps.is_supported(event, self.relation)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``; see `Accountant.epsilon`."""
        check_delta(delta)
        found, overflow = steps.steps_of(event, self.relation, self.name)
        return steps.with_overflow(lambda share: _composed(found, share), delta, overflow)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``; see `Accountant.delta`."""
        return steps.delta_by_search(self, event, epsilon)


def advanced(relation: Relation) -> Advanced:
    """Returns the accountant by strong composition for one neighbouring relation.

    >>> from fedvi.privacy.events import Gaussian, Repeated
    >>> round(advanced("add_remove").epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 3)
    12.078
    """
    check_relation(relation)
    return Advanced(relation)


def strong_composition(parts: tuple[tuple[float, int], ...], delta: float) -> float:
    """Returns ε of the composition of (ε_i, 0)-DP releases at ``delta``, above 0.

    Args:
      parts: ε_i and how often it occurs.
      delta: what the composition may add to Σ δ_i.

    Guarantee: an upper bound for adaptive composition, and never above Theorem 3.5 of Kairouz, Oh
    and Viswanath (2015), arXiv:1311.0776, all three of whose terms are at least one of ours.

    Proof. What is (ε_i, δ_i)-DP can be simulated from a randomised response of loss ±ε_i, with odds
    e^ε_i to 1, that reveals all with probability δ_i, and so can an adaptive composition of such
    releases (the same paper; Murtagh and Vadhan (2016), arXiv:1507.03113, Section 3). So δ at ε is
    at most Σ δ_i + E[(1 − e^(ε − L))₊], L the sum of the losses.
    For k > 0, (1 − e^(ε − L))₊ ≤ e^(k·(L − ε)) · k^k ÷ (1+k)^(1+k), by maximising over L, and
    E[e^(k·L)] is a product of (e^((k+1)·ε_i) + e^(−k·ε_i)) ÷ (1 + e^ε_i). Solved for ε, any k is
    valid. Hoeffding's lemma bounds log E[e^(k·L)] by k·E[L] + k²·Σ ε_i² ÷ 2, which at
    k = √(2·log(1/δ) ÷ Σ ε_i²) gives their third term; that k is among ours.  ∎

    >>> round(strong_composition(((0.1, 100),), 1e-6), 3)
    5.073
    """
    total = math.fsum(epsilon * count for epsilon, count in parts)
    if total == 0 or math.isinf(total):
        return total
    squares = math.fsum(epsilon * epsilon * count for epsilon, count in parts)
    if squares == 0 or math.isinf(squares):  # beyond the floats
        return total
    mean = math.fsum(epsilon * math.tanh(epsilon / 2) * count for epsilon, count in parts)
    second = mean + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta))
    best = min(total, second)
    start = math.sqrt(-2 * math.log(delta) / squares)
    for order in _ORDERS:
        k = start * order
        moment = math.fsum(count * _log_moment(epsilon, k) for epsilon, count in parts)
        tail = k * math.log(k) - (1 + k) * math.log1p(k)
        best = min(best, (moment + tail - math.log(delta)) / k)
    return max(0.0, best)


def _log_moment(epsilon: float, order: float) -> float:
    """log E[e^(order·L)] of one randomised response."""
    top = (order + 1) * epsilon
    return (
        top
        + math.log1p(math.exp(-top - order * epsilon))
        - epsilon
        - math.log1p(math.exp(-epsilon))
    )


def _composed(found: tuple[steps.Step, ...], delta: float) -> float:
    if not found:
        return 0.0
    best = sum_of_epsilons(found, delta)
    releases = sum(step.times for step in found)
    if releases == 1 or delta == 0 or math.isinf(best):
        return best
    for share in _SHARES:
        parts = tuple((step.epsilon(share * delta / releases), step.times) for step in found)
        best = min(best, strong_composition(parts, (1 - share) * delta))
    return best * (1 + 1e-12)  # for the rounding of sums and logarithms
