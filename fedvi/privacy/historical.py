"""Recomputes what older papers and tools would have claimed, for comparison only.

Historical, not a guarantee: a number from here may lie below the true ε. So none of these methods
is an `Accountant`: they answer no δ, and nothing that checks a budget accepts them. Use `pld`.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.accountants import steps
from fedvi.privacy.events import Event, Gaussian, PoissonSampled, Relation, counts

__all__ = ["fourier", "moments", "poster", "vips_two_step"]

LABEL = "historical, not a guarantee"
_BASE = 2**-40  # ε at which a profile is asked for "at zero"

# (noise ÷ the largest contribution, rate, count); rate 1 is no sampling.
_Steps: TypeAlias = tuple[tuple[float, float, int], ...]


@dataclass(frozen=True)
class Fourier:
    """The package fourier-accountant, inside the range where its grids agree; made by `fourier`.

    Historical, not a guarantee: it states no error, prices one direction of ``add_remove``, and
    knows no overflow of batches, which is left out here. Outside its range it is refused: it would
    answer wrong by a factor, on either side, without a sign of it. We invert its δ ourselves,
    because its own search for ε stops at an absolute 1e-10 and may never stop.

    Source: Koskela, Jälkö and Honkela (2020), arXiv:1906.03049, Sections 5.1 and 5.2; the package,
    version 0.12.
    """

    relation: Relation
    name: ClassVar[str] = "fourier"
    label: ClassVar[str] = LABEL

    def supports(self, event: Event) -> bool:
        """Whether all releases are Poisson-sampled standard sums, at a rate below 1."""
        found = _standard_steps(event, self.relation)
        return found is not None and all(rate < 1 for _, rate, _ in found)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the claimed ε at ``delta``, of 1e-8 or more. Takes seconds.

        Raises:
          UnsupportedEvent: the event or ``delta`` is outside the safe range; says what to use.
        """
        _check_delta(delta)
        found = _standard_steps(event, self.relation)
        if found is None or any(rate == 1 for _, rate, _ in found):
            raise UnsupportedEvent(
                f"method fourier has no formula for {_brief(event)}",
                hint="it knows Poisson-sampled Gaussian sums at a rate below 1; `pld` has a "
                "closed form for full batches, and a bound for batches of a fixed size",
            )
        if not found:
            return 0.0
        if delta < _LEAST_DELTA:
            raise UnsupportedEvent(
                f"method fourier is unreliable at delta {delta:g}, expected {_LEAST_DELTA:g} or "
                "more: the rounding of its transforms is of that order",
                hint="use `pld`, which bounds its rounding",
            )
        if self.relation == "substitute":
            for noise, rate, _ in found:
                if rate * math.exp(-0.5 / noise**2) < 1e-7:
                    raise UnsupportedEvent(
                        f"method fourier cuts the law at noise multiplier {noise:g} and rate "
                        f"{rate:g} off",
                        hint="use `pld`",
                    )
        return _fourier_epsilon(found, self.relation, delta)


def fourier(relation: Relation) -> Fourier:
    """Returns the package fourier-accountant: its R under add_remove, its S under substitute."""
    steps.check_relation(relation)
    return Fourier(relation)


@dataclass(frozen=True)
class Moments:
    """The moments accountant on integer orders up to 33; made by `moments`.

    Historical, not a guarantee: its moments are right, but it was only ever argued for
    ``add_remove``, and overflow of batches is left out. It claims more than `rdp` does.

    Source: Abadi et al. (2016), arXiv:1607.00133, Theorem 2: δ = min over λ = 1 … 32 of
    exp(Σ α(λ) − λ·ε), here with the exact log moments α(λ).
    """

    relation: Relation
    name: ClassVar[str] = "moments"
    label: ClassVar[str] = LABEL

    def supports(self, event: Event) -> bool:
        """Whether all releases are Poisson-sampled or full standard sums, under add_remove."""
        return self.relation == "add_remove" and _standard_steps(event, self.relation) is not None

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the claimed ε at ``delta``, above 0.

        Raises:
          UnsupportedEvent: a release is of another kind, or the relation is ``substitute``.
        """
        _check_delta(delta)
        found = _standard_steps(event, self.relation)
        if self.relation != "add_remove" or found is None:
            raise UnsupportedEvent(
                f"method moments has no formula for {_brief(event)} under {self.relation}",
                hint="it knows Gaussian sums, full or Poisson-sampled, under add_remove; use `rdp`",
            )
        return max(
            0.0,
            min(
                (
                    math.fsum(
                        count * _log_moment(noise, rate, order) for noise, rate, count in found
                    )
                    - math.log(delta)
                )
                / order
                for order in range(1, 33)
            )
            if found
            else 0.0,
        )


def moments(relation: Relation) -> Moments:
    """Returns the moments accountant of 2016, on the grid that its users took."""
    steps.check_relation(relation)
    return Moments(relation)


@dataclass(frozen=True)
class Poster:
    """The formula of the DP-ADVI poster, with its composition; made by `poster`.

    Historical, not a guarantee: σ = √(2·ln(1.25/δ)) ÷ ε is a theorem for ε below 1 only, and is
    used here for any.

    With q·T·δ′ = δ/2: each release is (ε₀, δ′)-DP by that formula, sampled
    ε₁ = log(1 + q·(e^ε₀ − 1)), and T of them cost T·ε₁ ("linear") or
    √(2·T·ln(2/δ))·ε₁ + T·ε₁·(e^ε₁ − 1) ("strong").

    Source: Dwork and Roth (2014), Theorems A.1 and 3.20; the poster used both in this way.
    """

    relation: Relation
    composition: Literal["linear", "strong"]
    label: ClassVar[str] = LABEL

    @property
    def name(self) -> str:
        """What tables call this method."""
        return "poster" if self.composition == "strong" else "poster, linear"

    def supports(self, event: Event) -> bool:
        """Whether the event is one release, full or Poisson-sampled, any number of times."""
        found = _standard_steps(event, self.relation)
        return found is not None and len(found) <= 1

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the claimed ε at ``delta``, above 0.

        Raises:
          UnsupportedEvent: the event is not one release that is repeated.
        """
        _check_delta(delta)
        found = _standard_steps(event, self.relation)
        if found is None or len(found) > 1:
            raise UnsupportedEvent(
                f"method poster has no formula for {_brief(event)}",
                hint="it knows one Gaussian sum, full or Poisson-sampled, repeated; use `advanced`",
            )
        if not found:
            return 0.0
        ((noise, rate, count),) = found
        once = _textbook_epsilon(noise, self.relation, delta / (2 * rate * count))
        once = steps.amplified(once, rate)
        if self.composition == "linear":
            return count * once
        root = math.sqrt(2 * count * math.log(2 / delta))
        return root * once + count * once * _expm1(once)


def poster(relation: Relation, composition: Literal["linear", "strong"] = "strong") -> Poster:
    """Returns the DP-ADVI poster's formula.

    Its own noise is N(0, 4·C²·s²), the convention of ``substitute``: s is our σ ÷ 2.
    """
    steps.check_relation(relation)
    if composition not in ("linear", "strong"):
        raise ConfigError(f"composition is {composition!r}, expected linear or strong")
    return Poster(relation, composition)


@dataclass(frozen=True)
class VipsTwoStep:
    """The two-step recipe of the VIPS preprint, its Table 1; made by `vips_two_step`.

    Historical, not a guarantee, and wrong: it turns an amplified (ε′, δ′) back into concentrated
    privacy as if it were a Gaussian's, leaves J·δ′ out of δ, and uses a formula for ε below 1 at
    any ε. There are settings where its claim is below the true ε.

    ε₀ = √(2·ln(1.25·ν/δ′)) ÷ σ, ε′ = log(1 + ν·(e^ε₀ − 1)), ρ = ε′² ÷ (4·ln(1.25/δ′)),
    ε = J·ρ + 2·√(J·ρ·ln(1/δ)).

    Source: Park, Foulds, Chaudhuri and Welling (2016), arXiv:1611.00340v1, Table 1. Concentrated
    privacy is not amplified by sampling: Bun, Dwork, Rothblum and Steinke (2018), Section 1.
    """

    relation: Relation
    delta_prime: float | None
    name: ClassVar[str] = "vips_two_step"
    label: ClassVar[str] = LABEL

    def supports(self, event: Event) -> bool:
        """Whether the event is one release, full or Poisson-sampled, repeated; add_remove only."""
        found = _standard_steps(event, self.relation)
        return self.relation == "add_remove" and found is not None and len(found) <= 1

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the claimed ε at ``delta``, above 0.

        Raises:
          UnsupportedEvent: the event is not one release that is repeated, or substitute.
        """
        _check_delta(delta)
        found = _standard_steps(event, self.relation)
        if self.relation != "add_remove" or found is None or len(found) > 1:
            raise UnsupportedEvent(
                f"method vips_two_step has no formula for {_brief(event)} under {self.relation}",
                hint="it knows one Gaussian sum, full or Poisson-sampled, repeated, under "
                "add_remove; use `pld`",
            )
        if not found:
            return 0.0
        ((noise, rate, count),) = found
        prime = delta / (2 * count) if self.delta_prime is None else self.delta_prime
        once = steps.amplified(_textbook_epsilon(noise, self.relation, prime / rate), rate)
        cost = count * once**2 / (4 * math.log(1.25 / prime))
        return cost + 2 * math.sqrt(cost * math.log(1 / delta))


def vips_two_step(relation: Relation, delta_prime: float | None = None) -> VipsTwoStep:
    """Returns the recipe; ``delta_prime`` is its δ′, δ ÷ 2J where it is left out."""
    steps.check_relation(relation)
    if delta_prime is not None and not 0 < delta_prime < 1:
        raise ConfigError(f"delta_prime is {delta_prime}, expected above 0 and below 1")
    return VipsTwoStep(relation, delta_prime)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}, expected above 0 and below 1")


def _brief(event: Event) -> str:
    text = repr(event)
    return text if len(text) <= 120 else text[:117] + "..."


def _standard_steps(event: Event, relation: Relation) -> _Steps | None:
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


def _textbook_epsilon(noise: float, relation: Relation, delta: float) -> float:
    shift = 1 if relation == "add_remove" else 2
    return math.sqrt(2 * max(0.0, math.log(1.25 / delta))) * shift / noise


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700 else math.inf


def _log_moment(noise: float, rate: float, order: int) -> float:
    """log E[(mixture ÷ base)^(order + 1)] under the base: the larger of both log moments."""
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


_LEAST_DELTA = 1e-8
_HALF_WIDTHS = (5.0, 10.0, 20.0, 40.0)  # of the window of privacy losses
_POINTS = (500_000, 1_500_000)
_AGREEMENT = 0.01  # of δ between two grids


def _fourier_epsilon(found: _Steps, relation: Relation, delta: float) -> float:
    """Takes the first window and grid whose answer a wider and finer one confirms."""
    for points in _POINTS:
        tried = 0
        for half_width in _HALF_WIDTHS:
            # The density of one step's loss is about rate ÷ noise wide; it is sampled at points.
            width = min(rate / max(1.0, noise) for noise, rate, _ in found)
            if tried == 2 or 2 * half_width / points > width / 20:
                break
            excess = functools.partial(_log_excess, found, relation, delta, points, half_width)
            finer = functools.partial(
                _log_excess, found, relation, delta, 2 * points, 1.25 * half_width
            )
            try:
                epsilon = _root(excess, half_width)
                if epsilon is None:
                    continue
                tried += 1
                if abs(finer(epsilon) - excess(epsilon)) <= _AGREEMENT:
                    return 0.0 if epsilon == _BASE else epsilon
            except (ValueError, OverflowError):
                continue  # the package found an infinite value, or not a number
    raise UnsupportedEvent(
        "method fourier does not settle: no window up to "
        f"{_HALF_WIDTHS[-1]:g} with up to {_POINTS[-1]:,} points gives the same delta as a finer "
        f"one, within {_AGREEMENT:.0%}",
        hint="epsilon is beyond its window, or a small rate or noise makes a density that its grid "
        "cannot resolve; use `pld`",
    )


def _root(excess: Callable[[float], float], half_width: float) -> float | None:
    """Returns where δ is met, `_BASE` for zero, None if that is beyond half of the window."""
    from scipy import optimize

    # Losses beyond the window come back in at its other end.
    high = half_width / 2
    if excess(high) > 0:
        return None
    if excess(_BASE) <= 0:
        return _BASE
    return float(optimize.brentq(excess, _BASE, high, rtol=1e-5))


def _log_excess(
    found: _Steps, relation: Relation, delta: float, points: int, half_width: float, epsilon: float
) -> float:
    import fourier_accountant
    import numpy as np

    delta_at: Callable[..., float] = (
        fourier_accountant.get_delta_R
        if relation == "add_remove"
        else fourier_accountant.get_delta_S
    )
    with np.errstate(all="ignore"):
        value = float(
            delta_at(
                epsilon,
                np.array([noise for noise, _, _ in found]),
                np.array([rate for _, rate, _ in found]),
                np.array([count for _, _, count in found]),
                points,
                half_width,
            )
        )
    if math.isnan(value):
        raise ValueError("delta is not a number")
    return math.log(max(value, 1e-300) / delta)
