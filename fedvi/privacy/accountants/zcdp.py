"""Prices by zero-concentrated differential privacy.

Exact for Gaussian noise, discrete or not, but ignores amplification by sampling.
"""

import functools
import math
import sys
from dataclasses import dataclass
from typing import ClassVar

from fedvi.privacy.accountants import overflow
from fedvi.privacy.accountants.losses import NO_RATE
from fedvi.privacy.accountants.rdp import overflow_of
from fedvi.privacy.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    Unprotected,
    WithoutReplacement,
    check_relation,
    counts,
    priced,
)

__all__ = ["Zcdp", "zcdp"]


@dataclass(frozen=True)
class Zcdp:
    """Prices Gaussian and discrete Gaussian releases by ρ = Σ (shift/σ + slack)²/2; made by `zcdp`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance.

    A release on a sampled batch is priced as if every unit took part, because sampling does not amplify
    zCDP. This is an upper bound, since the divergence of order α of (1−q)·P + q·Q against (1−q)·P + q·R
    is at most that of Q against R (e^((α−1)·D) is jointly convex). The other accountants do better.

    Source: Bun and Steinke (2016), arXiv:1605.02065, Lemmas 2.3 and 2.4; Canonne, Kamath and
    Steinke (2020), arXiv:2004.00010, Theorem 4 (discrete), Corollary 13 (conversion); Kairouz, Liu
    and Steinke (2021), arXiv:2102.06387, Proposition 14 (slack); Bun, Dwork, Rothblum and Steinke
    (2018) (no amplification).
    """

    relation: Relation
    name: ClassVar[str] = "zcdp"

    def supports(self, event: Event) -> bool:
        """Whether every atom is Gaussian or discrete Gaussian, sampled or not, or `Unprotected`.

        Batches of a fixed size under ``substitute`` only.
        """
        return all(_why_not(atom, self.relation) is None for atom in counts(event))

    def rho(self, event: Event) -> float:
        """Returns ρ of ``event``, without the cost of overflowing batches; may be infinite.

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
        terms = []
        for atom, count in priced(event, self.relation, self.name, _why_not):
            terms.append(count * _rho(atom, self.relation))
        return math.fsum(terms) if math.inf not in terms else math.inf

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``; see `Accountant.epsilon`."""
        overflow.check_delta(delta)
        return overflow.epsilon_of(self._price(event), delta)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``; see `Accountant.delta`."""
        overflow.check_epsilon(epsilon)
        return overflow.delta_of(self._price(event), epsilon)

    def _price(self, event: Event) -> overflow.Price:
        rho = self.rho(event)
        beyond = overflow_of(event) if rho < math.inf else 0.0
        return overflow.Price(
            functools.partial(_delta, rho), functools.partial(_epsilon, rho), beyond
        )


def zcdp(relation: Relation) -> Zcdp:
    """Returns the accountant by zero-concentrated privacy for one neighbouring relation.

    >>> from fedvi.privacy.events import Repeated
    >>> round(zcdp("add_remove").epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 2)
    2.17
    """
    check_relation(relation)
    return Zcdp(relation)


def _why_not(atom: Event, relation: Relation) -> str | None:
    match atom:
        case Gaussian() | DiscreteGaussian() | Unprotected():
            return None
        case PoissonSampled(_, Gaussian() | DiscreteGaussian(), _):
            return None
        case WithoutReplacement(_, _, Gaussian() | DiscreteGaussian()):
            return None if relation == "substitute" else NO_RATE
    return "it knows Gaussian and discrete Gaussian releases, and batches of one such release"


def _rho(atom: Event, relation: Relation) -> float:
    match atom:
        case Gaussian(noise, add_remove, substitute):
            slack = 0.0
        case DiscreteGaussian(noise, add_remove, substitute, slack):
            pass
        case PoissonSampled(_, inner, _) | WithoutReplacement(_, _, inner):
            return _rho(inner, relation)
        case _:
            return math.inf
    shift = add_remove if relation == "add_remove" else substitute
    if shift == 0:
        return 0.0
    if noise == 0:
        return math.inf
    ratio = shift / noise + slack
    # Not ratio ** 2, which raises where the product is infinite.
    return ratio * ratio / 2


def _delta(rho: float, epsilon: float) -> float:
    """The minimum of (1 − 1/α)^α·e^((α−1)·(α·ρ−ε)) ÷ (α − 1) over α > 1, rounded up; at most 1."""
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return 1.0

    def exponent(log_excess: float) -> float:
        excess = math.exp(log_excess)  # α − 1; every value gives a bound
        order = 1 + excess
        slope = order * rho - epsilon + math.log(excess / order)
        return excess * slope - math.log(order)

    # Searches generously around (ε/ρ − 1)/2, the best α − 1 of the simpler tail bound.
    centre = math.log(max(epsilon / rho - 1, 1e-3) / 2)
    low, high = centre - 12.0, centre + 12.0 + abs(math.log(rho))
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = exponent(left), exponent(right)
    for _ in range(70):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = exponent(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = exponent(right)
    best = min(at_left, at_right)
    # Bounds the terms of the exponent, for its rounding error.
    order = 1 + math.exp(right)
    rounding = 8 * sys.float_info.epsilon * (1 + order * (order * rho + epsilon + 1))
    return math.exp(min(0.0, best + rounding))


def _epsilon(rho: float, delta: float) -> float:
    if _delta(rho, 0.0) <= delta:
        return 0.0
    if delta == 0 or math.isinf(rho):
        return math.inf
    # Bun and Steinke's looser conversion.
    high = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return overflow.smallest(functools.partial(_delta, rho), delta, 0.0, high, tolerance=1e-12)
