"""Prices single releases as (ε, δ), amplified by sampling; `linear` and `advanced` compose them."""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from fedvi.errors import PrivacyError, UnsupportedEvent
from fedvi.privacy.accountants.closed_form import (
    gaussian_delta,
    gaussian_epsilon,
    shift_over_noise,
)
from fedvi.privacy.accountants.overflow import check_epsilon
from fedvi.privacy.events import (
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    Unprotected,
    WithoutReplacement,
    counts,
    priced,
)

__all__ = [
    "Prices",
    "Step",
    "amplified",
    "delta_by_search",
    "is_supported",
    "steps_of",
    "with_overflow",
]


@runtime_checkable
class Prices(Protocol):
    """Anything that gives ε at a given δ."""

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns an ε at which ``event`` is (ε, ``delta``)-DP."""


class Step(NamedTuple):
    """One kind of release and how often it is made.

    Args:
      times: how often it is made.
      rate: the probability that the unit takes part; 1 without sampling.
      mu: shift ÷ noise between the release with the unit and the one with another unit, or nothing, in
        its place; infinite without noise.
      absent: shift ÷ noise between the release with the unit and the one whose batch leaves it out. Never
        above ``mu`` where it matters; equal to it except for Poisson batches under ``substitute``.
    """

    times: int
    rate: float
    mu: float
    absent: float

    def epsilon(self, delta: float) -> float:
        """Returns an ε at which one such release is (ε, ``delta``)-DP; infinite if there is none.

        Guarantee: with (1−q)·P₀ + q·P₁ against (1−q)·P₀ + q·P₂ and e^ε = 1 + q·(e^ε₀ − 1), the
        divergence at ε is q times that of P₁ against (1−β)·P₀ + β·P₂ at ε₀, with β = e^(ε − ε₀).
        It is jointly convex, so at most q·[(1−β)·δ(P₁, P₀) + β·δ(P₁, P₂)]. Under ``add_remove``
        P₂ = P₀, one direction has β = 0 and the other P₁ = P₀; both are at most q·δ₀. Other units'
        draws are mixed over, which cannot help. For a batch without replacement P₀ holds another
        slot in the unit's place, so both terms are those of a substitution.

        Source: Balle, Barthe and Gaboardi (2018), arXiv:1807.01647, Theorems 2, 8, 9; Balle and
        Wang (2018), arXiv:1805.06530, Theorem 8.
        """
        if self.rate == 1:
            return gaussian_epsilon(self.mu, delta) if self.mu < math.inf else math.inf
        # The larger of the two δ bounds their mean.
        worst = max(self.mu, self.absent)
        if worst == math.inf:
            return math.inf
        share = min(math.nextafter(delta / self.rate, 0.0), 1 - 2**-53)
        high = gaussian_epsilon(worst, share)
        if self.absent < self.mu < math.inf and 0 < high < math.inf:
            low = gaussian_epsilon(self.absent, share)
            while high - low > 1e-9 * high:
                middle = (low + high) / 2
                low, high = (low, middle) if self._delta(middle) <= delta else (middle, high)
        return amplified(high, self.rate)

    def _delta(self, base: float) -> float:
        """q·[(1−β)·δ(P₁, P₀) + β·δ(P₁, P₂)] at ε₀ = ``base``."""
        # Rounded up, `amplified` may exceed a huge base by much.
        beta = math.exp(min(0.0, amplified(base, self.rate) - base))
        absent, other = gaussian_delta(self.absent, base), gaussian_delta(self.mu, base)
        return self.rate * ((1 - beta) * absent + beta * other)


def amplified(epsilon: float, rate: float) -> float:
    """log(1 + rate·(e^epsilon − 1)), rounded up: ``epsilon`` after amplification by sampling.

    >>> round(amplified(1.0, 0.01), 5)
    0.01704
    """
    if epsilon == math.inf:
        return epsilon
    if epsilon < 700:
        value = math.log1p(rate * math.expm1(epsilon))
        return value * (1 + 16 * sys.float_info.epsilon)
    rest = math.log1p(math.exp(-epsilon) * (1 - rate) / rate)
    return epsilon + math.log(rate) + rest + 16 * sys.float_info.epsilon * epsilon


def is_supported(event: Event, relation: Relation) -> bool:
    """Whether every atom is a Gaussian, one batch of one Gaussian, or unprotected."""
    return all(_why_not(atom, relation) is None for atom in counts(event))


def steps_of(event: Event, relation: Relation, name: str) -> tuple[tuple[Step, ...], float]:
    """Returns the steps of ``event`` that cost something, and β = Σ count · overflow.

    Raises:
      UnsupportedEvent: an atom has no price here; the message calls the accountant ``name``.
    """
    found: dict[tuple[float, float, float], int] = {}
    overflows: list[float] = []
    for atom, count in priced(event, relation, name, _why_not):
        rate, absent, mu = 1.0, math.inf, math.inf
        match atom:
            case Gaussian():
                mu = absent = shift_over_noise(atom, relation)
            case PoissonSampled(rate, Gaussian() as inner, overflow):
                overflows.append(count * overflow)
                mu = shift_over_noise(inner, relation)
                absent = mu if rate == 1 else shift_over_noise(inner, "add_remove")
            case WithoutReplacement(batch, size, Gaussian() as inner):
                rate = atom.rate
                mu = shift_over_noise(inner, "substitute")
                if batch < size:  # then the replacing slot may be empty
                    mu = max(mu, shift_over_noise(inner, "add_remove"))
                absent = mu
        if max(mu, absent) > 0:
            found[rate, mu, absent] = found.get((rate, mu, absent), 0) + count
    # Sorted, so that the price does not depend on the order of composition.
    steps = tuple(Step(count, rate, mu, absent) for (rate, mu, absent), count in found.items())
    return tuple(sorted(steps)), math.fsum(overflows)


def with_overflow(epsilon_at: Callable[[float], float], delta: float, overflow: float) -> float:
    """Returns ε with ``epsilon_at(δ′)`` ≤ ε and δ′ + (1 + e^ε)·β ≤ ``delta``; see `Pld` for why.

    Raises:
      PrivacyError: no ε was found, because batches overflow too often.
    """
    least = epsilon_at(delta)
    if overflow == 0 or math.isinf(least):
        return least
    for share in (1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        room = share * delta / overflow - 1
        if room < 1:
            continue
        epsilon = epsilon_at((1 - share) * delta)
        if epsilon <= math.log(room):
            # A sufficient ε stays sufficient if δ′ is given all that overflow does not need.
            for _ in range(8):
                needed = (1 + math.exp(epsilon)) * overflow * (1 + 1e-12)
                better = min(epsilon, epsilon_at(delta - needed))
                settled, epsilon = epsilon - better <= 1e-9 * epsilon, better
                if settled:
                    break
            return epsilon
    raise PrivacyError(
        f"no finite epsilon holds at delta {delta:g}: batches overflow their capacity with "
        f"probability {overflow:.3g} in all",
        hint="raise the batch capacity, or the bound on records that it is derived from, "
        "until `overflow` times the number of draws is far below delta",
    )


def delta_by_search(accountant: Prices, event: Event, epsilon: float) -> float:
    """Returns a δ with ``accountant.epsilon(event, δ)`` ≤ ``epsilon``, or 1: bisects log δ."""
    check_epsilon(epsilon)

    def suffices(delta: float) -> bool:
        try:
            return accountant.epsilon(event, delta) <= epsilon
        except UnsupportedEvent:
            raise
        except PrivacyError:  # no finite ε at this δ
            return False

    if suffices(0.0):
        return 0.0
    low, high = math.log(sys.float_info.min), math.log1p(-(2.0**-20))
    if not suffices(math.exp(high)):
        return 1.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _why_not(atom: Event, relation: Relation) -> str | None:
    """Explains why an atom has no price and what to use instead; None if it has one."""
    match atom:
        case Gaussian() | Unprotected() | PoissonSampled(_, Gaussian(), _):
            return None
        case WithoutReplacement(_, _, Gaussian()):
            if relation == "substitute":
                return None
            return (
                "a batch of a fixed size has no price under add_remove: promise `substitute`, or "
                "sample by `poisson`"
            )
        case _:
            return "it knows Gaussian releases, and batches of one Gaussian release"
