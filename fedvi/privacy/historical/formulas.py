"""Privacy formulas of older papers, for comparison only; see the package."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.accountants import steps
from fedvi.privacy.events import Event, Relation, check_relation
from fedvi.privacy.historical.releases import LABEL, Step, in_short, standard_steps

__all__ = ["moments", "poster", "vips_two_step"]


@dataclass(frozen=True)
class Method:
    """A formula from a paper; made by `moments`, `poster` and `vips_two_step`.

    Args:
      name: shown in tables.
      relation: the neighbouring relation to evaluate it under.
      claimed: (steps, δ) → ε, for one step or more.
      only: the relation that the paper covers; None for both.
      single: whether it only covers one kind of release, repeated.
      hint: what it covers, for the error message.
    """

    name: str
    relation: Relation
    claimed: Callable[[tuple[Step, ...], float], float]
    only: Relation | None
    single: bool
    hint: str
    label: ClassVar[str] = LABEL

    def supports(self, event: Event) -> bool:
        """Whether all releases are standard sums, full or Poisson-sampled, that the formula covers."""
        return self._steps(event) is not None

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the claimed ε at ``delta``, above 0 and below 1; ignores overflow of batches.

        Raises:
          UnsupportedEvent: the formula does not cover a release or the relation.
        """
        if not 0 < delta < 1:
            raise ConfigError(f"delta is {delta}, expected above 0 and below 1")
        found = self._steps(event)
        if found is None:
            raise UnsupportedEvent(
                f"method {self.name} has no formula for {in_short(event)} under {self.relation}",
                hint=self.hint,
            )
        return self.claimed(found, delta) if found else 0.0

    def _steps(self, event: Event) -> tuple[Step, ...] | None:
        if self.only not in (None, self.relation):
            return None
        found = standard_steps(event, self.relation)
        return None if found is not None and self.single and len(found) > 1 else found


def moments(relation: Relation) -> Method:
    """Returns the moments accountant of 2016, on the integer orders up to 33 that were in use.

    Historical, not a guarantee: its moments are right, but it was only derived for ``add_remove``. Its ε
    is larger than that of `rdp`.

    Source: Abadi et al. (2016), arXiv:1607.00133, Theorem 2: δ = min over λ = 1 … 32 of
    exp(Σ α(λ) − λ·ε), here with the exact log moments α(λ).
    """

    def claimed(found: tuple[Step, ...], delta: float) -> float:
        def at(order: int) -> float:
            parts = (count * _log_moment(noise, rate, order) for noise, rate, count in found)
            return (math.fsum(parts) - math.log(delta)) / order

        return max(0.0, min(map(at, range(1, 33))))

    check_relation(relation)
    hint = "it knows Gaussian sums, full or Poisson-sampled, under add_remove; use `rdp`"
    return Method("moments", relation, claimed, "add_remove", False, hint)


def poster(relation: Relation) -> Method:
    """Returns the formula of the DP-ADVI poster, with its strong composition.

    Historical, not a guarantee: σ = √(2·ln(1.25/δ)) ÷ ε is a theorem only for ε below 1, but is used
    for any ε. The poster's noise is N(0, 4·C²·s²), the convention of ``substitute``: s is our σ ÷ 2.

    With q·T·δ′ = δ/2: each release is (ε₀, δ′)-DP by that formula, sampled
    ε₁ = log(1 + q·(e^ε₀ − 1)), and T of them cost √(2·T·ln(2/δ))·ε₁ + T·ε₁·(e^ε₁ − 1).

    Source: Dwork and Roth (2014), Theorems A.1 and 3.20; the poster used both in this way.
    """

    def claimed(found: tuple[Step, ...], delta: float) -> float:
        ((noise, rate, count),) = found
        once = _textbook_epsilon(noise, relation, delta / (2 * rate * count))
        once = steps.amplified(once, rate)
        more = math.expm1(once) if once < 700 else math.inf
        return math.sqrt(2 * count * math.log(2 / delta)) * once + count * once * more

    check_relation(relation)
    hint = "it knows one Gaussian sum, full or Poisson-sampled, repeated; use `advanced`"
    return Method("poster", relation, claimed, None, True, hint)


def vips_two_step(relation: Relation, delta_prime: float | None = None) -> Method:
    """Returns the two-step recipe of the VIPS preprint; ``delta_prime`` is δ′, by default δ ÷ 2J.

    Historical, not a guarantee, and wrong: it converts an amplified (ε′, δ′) back into concentrated
    privacy as if it came from a Gaussian, leaves J·δ′ out of δ, and uses a formula for ε below 1 at
    any ε. In some settings its claim is below the true ε. It covers ``add_remove`` only.

    ε₀ = √(2·ln(1.25·ν/δ′)) ÷ σ, ε′ = log(1 + ν·(e^ε₀ − 1)), ρ = ε′² ÷ (4·ln(1.25/δ′)),
    ε = J·ρ + 2·√(J·ρ·ln(1/δ)).

    Source: Park, Foulds, Chaudhuri and Welling (2016), arXiv:1611.00340v1, Table 1. Concentrated
    privacy is not amplified by sampling: Bun, Dwork, Rothblum and Steinke (2018), Section 1.
    """

    def claimed(found: tuple[Step, ...], delta: float) -> float:
        ((noise, rate, count),) = found
        prime = delta / (2 * count) if delta_prime is None else delta_prime
        once = steps.amplified(_textbook_epsilon(noise, relation, prime / rate), rate)
        cost = count * once**2 / (4 * math.log(1.25 / prime))
        return cost + 2 * math.sqrt(cost * math.log(1 / delta))

    check_relation(relation)
    if delta_prime is not None and not 0 < delta_prime < 1:
        raise ConfigError(f"delta_prime is {delta_prime}, expected above 0 and below 1")
    hint = (
        "it knows one Gaussian sum, full or Poisson-sampled, repeated, under add_remove; use `pld`"
    )
    return Method("vips_two_step", relation, claimed, "add_remove", True, hint)


def _textbook_epsilon(noise: float, relation: Relation, delta: float) -> float:
    shift = 1 if relation == "add_remove" else 2
    return math.sqrt(2 * max(0.0, math.log(1.25 / delta))) * shift / noise


def _log_moment(noise: float, rate: float, order: int) -> float:
    """log E[(mixture ÷ base)^(order + 1)] under the base: the larger of the two log moments."""
    power = order + 1
    if rate == 1:
        return power * order / (2 * noise**2)
    terms = [
        math.log(math.comb(power, k))
        + k * math.log(rate)
        + (power - k) * math.log1p(-rate)
        + k * (k - 1) / (2 * noise**2)
        for k in range(power + 1)
    ]
    top = max(terms)
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))
