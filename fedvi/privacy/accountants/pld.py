"""Prices by privacy loss distributions, the numbers that we state; come here to change them.

Wraps dp-accounting's connect-the-dots discretisation, which is pessimistic at every grid. Its
events and conventions stay in this file: it is handed noise multipliers that we computed.
"""

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fedvi.errors import ConfigError, PrivacyError, UnsupportedEvent, did_you_mean
from fedvi.privacy.events import (
    RELATIONS,
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    Unprotected,
    counts,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Pld", "pld"]


@dataclass(frozen=True)
class Pld:
    """Prices Gaussian and Poisson-sampled Gaussian releases; made by `pld`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance. They are no filter: stopping at a time that depends
    on data and stating the epsilon of that time is not covered; state the largest number.

    Releases of everything (no sampling, or rate 1) are Gaussian with μ² = Σ (shift/σ)² and have a
    closed form. Under ``add_remove`` a Poisson-sampled Gaussian is dominated by
    (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²) when a record is removed, and by the same two
    swapped when it is added; the two are composed apart and the worse one is stated. Under
    ``substitute`` it is dominated by N_q(1) against N_q(−1), N_q(a) = (1−q)·N(0, σ²) + q·N(a, σ²).

    Proof of the last. Given the other records' draws, the laws are N_q(a) and N_q(b) around a
    common point, ‖a‖, ‖b‖ ≤ 1; mixing over those draws cannot help, since the divergence is jointly
    convex. The roles of a and b are symmetric, so γ = e^ε ≥ 1 suffices. Take σ = 1 and let Z be
    standard normal, x = a·Z − ‖a‖²/2 and y = b·Z − ‖b‖²/2. The divergence is q·E[f(x, y)] with
    f = (e^x − γ·e^y − (γ−1)(1−q)/q)₊, whose mixed derivative is never positive, so E[f] falls as
    the covariance a·b grows (Plackett's identity) and is largest for b opposite to a. On that line
    the likelihood ratio is monotone, the best set is a half-line away from b, and its mass under
    N_q(a) grows with ‖a‖ while that under N_q(b) falls with ‖b‖: both are 1 at the maximum.  ∎

    Overflow. A draw whose batch exceeds its capacity is cut. Let β = Σ count · overflow, and let M
    and M′ be the releases without and with the cut. For each data set, run both on the same
    randomness: they differ only if some draw overflows, so |P[M ∈ S] − P[M′ ∈ S]| ≤ β for every S,
    by the union bound over draws (each bound holds whatever was released before). Hence, for
    neighbours D and D̃, P[M′(D) ∈ S] ≤ P[M(D) ∈ S] + β ≤ e^ε·P[M(D̃) ∈ S] + δ + β
    ≤ e^ε·P[M′(D̃) ∈ S] + δ + (1 + e^ε)·β: the price in δ is (1 + e^ε)·β.  ∎

    Source: Doroshenko et al. (2022), arXiv:2207.04380, Algorithm 1 (discretisation); Zhu, Dong and
    Wang (2022), arXiv:2106.08567 (dominating pairs, their composition, the add_remove pairs);
    Balle and Wang (2018), arXiv:1805.06530, Theorem 8 (Gaussian profile).
    """

    relation: Relation
    interval: float = 1e-4

    @property
    def name(self) -> str:
        """What claims and messages call this accountant."""
        return "pld"

    def supports(self, event: Event) -> bool:
        """Whether every atom is `Gaussian`, `Unprotected`, or a Poisson-sampled standard sum.

        Standard: one unit moves the sum of a batch by at most one clip norm when it is added or
        removed, and by two when it is substituted.
        """
        return all(_is_supported(atom) for atom in counts(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``; infinite when noise does not give one.

        Args:
          event: what is priced, as a whole.
          delta: in [0, 1).

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
          PrivacyError: no ε is finite, because of overflowing batches and nothing else.
        """
        if not 0 <= delta < 1:
            raise ConfigError(f"delta is {delta}, expected at least 0 and below 1")
        price = self._price(event)
        least = price.epsilon(delta)
        if price.overflow == 0 or math.isinf(least):
            return least
        return _epsilon_with_overflow(price, delta, least)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``, a finite number of 0 or more.

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
        if not 0 <= epsilon < math.inf:
            raise ConfigError(f"epsilon is {epsilon}, expected a finite number of 0 or more")
        price = self._price(event)
        if price.overflow == 0:
            return price.delta(epsilon)
        return min(1.0, price.total_delta(_best_epsilon(price, epsilon)))

    def _price(self, event: Event) -> "_Price":
        releases = _reduce(event, self.relation)
        if math.isinf(releases.mu):
            return _UNBOUNDED
        mu = _mu_without_sampling(releases, self.relation)
        delta_at = functools.partial(_gaussian_delta, mu)
        epsilon_at = functools.partial(_gaussian_epsilon, mu)
        interval = _grid(releases, self.relation, self.interval)
        if interval is None:
            return _Price(delta_at, epsilon_at, releases.overflow)
        loss = _composed_loss(releases.sampled, releases.mu, self.relation, interval)
        # Both are upper bounds; at rates near 1 the discretised one is the larger.
        return _Price(
            lambda epsilon: min(loss.delta(epsilon), delta_at(epsilon)),
            lambda delta: min(loss.epsilon(delta), epsilon_at(delta)),
            releases.overflow,
        )


def pld(relation: Relation, interval: float = 1e-4) -> Pld:
    """Returns the accountant by privacy loss distributions for one neighbouring relation.

    Args:
      relation: "add_remove" or "substitute".
      interval: spacing of the grid of privacy losses. Where the losses of one step are not much
        larger than it, the grid is refined by powers of two, and where they would need more than
        about a million points, coarsened: every grid gives an upper bound.

    >>> from fedvi.privacy.events import Repeated
    >>> accountant = pld("add_remove")
    >>> round(accountant.epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 4)
    1.9931
    """
    if relation not in RELATIONS:
        raise ConfigError(
            f"relation is {relation!r}, expected one of {', '.join(RELATIONS)}",
            hint=did_you_mean(str(relation), RELATIONS),
        )
    if not 0 < interval <= 0.01:
        raise ConfigError(f"interval is {interval}, expected above 0 and at most 0.01")
    return Pld(relation, interval)


class _Price(NamedTuple):
    """A composition, ready to be asked: its profile without overflow, and β."""

    delta: Callable[[float], float]
    epsilon: Callable[[float], float]
    overflow: float

    def total_delta(self, epsilon: float) -> float:
        """δ(ε) + (1 + e^ε)·β, not capped: unimodal in ε, because δ is convex in e^ε."""
        if epsilon > _LARGEST_EPSILON:
            return math.inf
        return self.delta(epsilon) + (1 + math.exp(epsilon)) * self.overflow


_LARGEST_EPSILON = 700.0  # e^ε of more is no float
_UNBOUNDED = _Price(lambda epsilon: 1.0, lambda delta: math.inf, 0.0)

# One sampled Gaussian: (noise std ÷ the largest contribution of a unit, rate) and how often.
_Sampled: TypeAlias = tuple[tuple[tuple[float, float], int], ...]


class _Releases(NamedTuple):
    """What determines the price: μ of all that is not sampled, the sampled rest, and β."""

    mu: float
    sampled: _Sampled
    overflow: float


def _is_supported(atom: Event) -> bool:
    match atom:
        case Gaussian() | Unprotected():
            return True
        case PoissonSampled(_, Gaussian(_, add_remove, substitute), _):
            return add_remove <= 1 and substitute <= 2
        case _:
            return False


def _reduce(event: Event, relation: Relation) -> _Releases:
    squares: list[float] = []
    overflows: list[float] = []
    sampled: dict[tuple[float, float], int] = {}
    for atom, count in counts(event).items():
        if not _is_supported(atom):
            raise UnsupportedEvent(
                f"accountant pld does not know the price of {atom}",
                hint="it knows Gaussian releases of any shift, and Poisson-sampled ones whose "
                "shift is at most 1 (add_remove) and 2 (substitute)",
            )
        match atom:
            case Gaussian(noise_multiplier):
                squares.append(count * _ratio(_shift(atom, relation), noise_multiplier) ** 2)
            case PoissonSampled(rate, Gaussian(noise_multiplier) as inner, overflow):
                overflows.append(count * overflow)
                # Either unit of a substitution may move the sum this far from the shared rest.
                reach = inner.add_remove
                if relation == "substitute":
                    reach = max(reach, inner.substitute / 2)
                if rate == 1:
                    squares.append(count * _ratio(_shift(inner, relation), noise_multiplier) ** 2)
                elif reach > 0 and noise_multiplier == 0:
                    squares.append(math.inf)
                elif reach > 0:
                    step = (noise_multiplier / reach, rate)
                    sampled[step] = sampled.get(step, 0) + count
            case _:
                squares.append(math.inf)
    # Sorted, and summed exactly, so that the price does not depend on the order of composition.
    return _Releases(
        math.sqrt(math.fsum(squares)) if math.inf not in squares else math.inf,
        tuple(sorted(sampled.items())),
        math.fsum(overflows),
    )


def _shift(event: Gaussian, relation: Relation) -> float:
    return event.add_remove if relation == "add_remove" else event.substitute


def _ratio(shift: float, noise_multiplier: float) -> float:
    if shift == 0:
        return 0.0
    return shift / noise_multiplier if noise_multiplier > 0 else math.inf


# The closed form.


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), rounded up."""
    if mu == 0:
        return 0.0
    # Imported late, as dp-accounting is: together they take a second, and whoever reads a ledger
    # or a claim without pricing it should not wait for them.
    from scipy import special

    upper = float(special.log_ndtr(mu / 2 - epsilon / mu))
    if upper < -745:
        return 0.0  # below the smallest float
    lower = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    # log_ndtr is good to a few units in the last place of its value, ε/μ to one of its own.
    rounding = 8 * sys.float_info.epsilon * (1 + abs(upper) + abs(lower) + epsilon)
    value = math.exp(upper) * (-math.expm1(min(0.0, lower - upper)) + rounding)
    return min(1.0, value)


def _gaussian_epsilon(mu: float, delta: float) -> float:
    if _gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    # P[loss > ε] ≤ δ there, by the Gaussian tail bound; doubled for the rounding.
    high = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    while _gaussian_delta(mu, high) > delta:
        high *= 2
        if math.isinf(high):
            return math.inf
    return _smallest(functools.partial(_gaussian_delta, mu), delta, 0.0, high, tolerance=1e-13)


def _smallest(
    delta_at: Callable[[float], float], delta: float, low: float, high: float, tolerance: float
) -> float:
    """Bisects for where ``delta_at`` falls to ``delta``; returns the upper end, which satisfies it.

    ``high`` must satisfy it. ``tolerance`` is relative.
    """
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if delta_at(middle) <= delta:
            high = middle
        else:
            low = middle
    return high


# Overflow.


def _epsilon_with_overflow(price: _Price, delta: float, least: float) -> float:
    """Returns the smallest ε ≥ ``least`` with δ(ε) + (1 + e^ε)·β ≤ ``delta``."""
    if price.total_delta(least) <= delta:
        return least
    feasible = least
    if delta > 2 * price.overflow:
        # There (1 + e^ε)·β alone exceeds δ: nothing to the right can do.
        most = min(math.log(delta) - math.log(price.overflow), _LARGEST_EPSILON)
        feasible = _valley(price.total_delta, min(least, most), most, delta)
    if price.total_delta(feasible) > delta:
        lowest = price.total_delta(_best_epsilon(price, math.inf))
        raise PrivacyError(
            f"no finite epsilon holds at delta {delta:g}: batches overflow their capacity with "
            f"probability {price.overflow:.3g} in all, and then delta is {lowest:.3g} or more",
            hint="raise the batch capacity, or the bound on records that it is derived from, "
            "until `overflow` times the number of draws is far below delta",
        )
    return _smallest(price.total_delta, delta, least, feasible, tolerance=1e-10)


def _best_epsilon(price: _Price, epsilon: float) -> float:
    """Returns the ε′ ≤ ε of the smallest δ(ε′) + (1 + e^ε′)·β; (ε′, δ)-DP implies (ε, δ)-DP."""
    high = min(epsilon, -math.log(price.overflow), _LARGEST_EPSILON)  # beyond them δ is 1
    if price.total_delta(high) <= price.total_delta(high * (1 - 1e-6)):
        return high
    return _valley(price.total_delta, 0.0, high, -math.inf)


def _valley(height: Callable[[float], float], low: float, high: float, enough: float) -> float:
    """Golden-section search for the lowest point of a unimodal function, or one at ``enough``."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = height(left), height(right)
    while high - low > 1e-7 * max(1.0, high) and min(at_left, at_right) > enough:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = height(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = height(right)
    return left if at_left <= at_right else right


# Sampled releases.

_MOST_POINTS = 1_000_000  # of a composition: 8 MB, and 0.2 s to convolve
_MOST_STEP_POINTS = 300_000  # of one step: built point by point, 0.5 s in each direction
_FINEST = 2.0**-10
_COARSEST = 1.0  # an interval; beyond it sampling is no longer priced
_LEAST_NOISE = 0.02  # below it one step already costs ε in the thousands


def _grid(releases: _Releases, relation: Relation, interval: float) -> float | None:
    """Chooses the grid's spacing; None where there is no sampling, or none worth pricing.

    Each of T steps adds at most interval²/4 of spurious variance to the loss, so spacing a twelfth
    of the root mean variance of a step keeps ε within about a thousandth. Spacings are the given
    one times a power of two, so that a growing composition meets its cached parts again.
    """
    if not releases.sampled or releases.mu > 1 / _LEAST_NOISE:
        return None
    # The widest range of one release's losses, at ten standard deviations.
    widest = 20 * releases.mu + 2 * releases.mu**2
    variance = 0.0
    for (noise, rate), count in releases.sampled:
        if noise < _LEAST_NOISE:
            return None
        sides = 1 if relation == "add_remove" else 2
        widest = max(widest, sides * _log1p_scaled(rate, 10 / noise + 1.5 / noise**2))
        chi_square = rate**2 * math.expm1(min(noise**-2, 700.0))
        variance += count * sides**2 * min(chi_square, rate * (noise**-2 + noise**-4))
    spread = math.sqrt(variance + releases.mu**2)
    need = max(widest / _MOST_STEP_POINTS, (4 * widest + 16 * spread) / _MOST_POINTS)
    want = math.sqrt(variance / sum(count for _, count in releases.sampled)) / 12
    exponent = min(0, math.floor(math.log2(max(want / interval, _FINEST))))
    if need > interval * 2.0**exponent:
        exponent = math.ceil(math.log2(need / interval))
    chosen = interval * 2.0**exponent
    return chosen if chosen <= _COARSEST else None


def _log1p_scaled(scale: float, exponent: float) -> float:
    """log(1 + scale·(e^exponent − 1))."""
    if exponent < 700:
        return math.log1p(scale * math.expm1(exponent))
    return exponent + math.log(scale)


def _mu_without_sampling(releases: _Releases, relation: Relation) -> float:
    """Prices every sampled release as if all units took part, which is an upper bound.

    The hockey-stick divergence is jointly convex, so that of (1−q)·P + q·Q against (1−q)·P + q·R
    is at most q times that of Q against R.
    """
    if not releases.sampled:
        return releases.mu  # untouched, so that its closed form is met to the last digit
    reach = 1 if relation == "add_remove" else 2
    squares = [count * (reach / noise) ** 2 for (noise, _), count in releases.sampled]
    return math.sqrt(math.fsum([releases.mu**2, *squares]))


class _Loss(NamedTuple):
    """dp-accounting's distribution of the privacy loss, and what its arithmetic may have lost.

    ``rounding`` bounds the L1 error of the floating-point convolutions, which reaches 1e-11 over
    ten thousand steps and would otherwise be missing from small deltas.
    """

    distribution: Any
    rounding: float

    def delta(self, epsilon: float) -> float:
        import numpy as np

        with np.errstate(all="ignore"):
            value = float(self.distribution.get_delta_for_epsilon(epsilon))
        return min(1.0, max(0.0, value) + self.rounding)

    def epsilon(self, delta: float) -> float:
        import numpy as np

        if delta <= self.rounding:
            return math.inf
        with np.errstate(all="ignore"):
            value = float(self.distribution.get_epsilon_for_delta(delta - self.rounding))
        # The inversion rounds too; nudged until its own answer certifies it.
        nudge = 1e-14
        while value < math.inf and self.delta(value) > delta:
            value, nudge = value + nudge * max(1.0, value), 2 * nudge
        return max(0.0, value)


@functools.lru_cache(maxsize=8)
def _composed_loss(sampled: _Sampled, mu: float, relation: Relation, interval: float) -> _Loss:
    total: _Loss | None = None
    if mu > 0:
        # One Gaussian stands for all unsampled ones; mu already knows the relation, so this pair
        # is the plain one: under REPLACE_ONE dp-accounting would double the shift once more.
        total = _Loss(_gaussian_loss(1 / mu, 1.0, "add_remove", interval), 0.0)
    for (noise, rate), count in sampled:
        part = _repeated_loss(noise, rate, count, relation, interval)
        total = part if total is None else _compose(total, part)
    assert total is not None
    return total


@functools.lru_cache(maxsize=8)
def _repeated_loss(
    noise: float, rate: float, count: int, relation: Relation, interval: float
) -> _Loss:
    import numpy as np

    once = _gaussian_loss(noise, rate, relation, interval)
    if count == 1:
        return _Loss(once, 0.0)
    with np.errstate(all="ignore"):
        composed = once.self_compose(count)
    return _Loss(composed, count * _rounding(once, composed, composed))


@functools.lru_cache(maxsize=16)
def _gaussian_loss(noise: float, rate: float, relation: Relation, interval: float) -> Any:
    """One release; REPLACE_ONE makes the antipodal pair at ±1 from ``noise`` by itself."""
    import numpy as np
    from dp_accounting import privacy_accountant
    from dp_accounting.pld import privacy_loss_distribution

    neighbours = privacy_accountant.NeighboringRelation
    with np.errstate(all="ignore"):
        return privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise,
            sampling_prob=rate,
            value_discretization_interval=interval,
            neighboring_relation=(
                neighbours.ADD_OR_REMOVE_ONE if relation == "add_remove" else neighbours.REPLACE_ONE
            ),
        )


def _compose(first: _Loss, second: _Loss) -> _Loss:
    import numpy as np

    with np.errstate(all="ignore"):
        composed = first.distribution.compose(second.distribution)
    rounding = _rounding(first.distribution, second.distribution, composed)
    return _Loss(composed, first.rounding + second.rounding + rounding)


def _rounding(first: Any, second: Any, result: Any) -> float:
    """Bounds the L1 error of a convolution by FFT: 16·u·√n·‖p‖₂·‖q‖₂.

    The L2 error of an FFT is u·√(log₂ n) of the norm, and √n turns L2 into L1; with the 16, twice
    the negative mass that the convolutions of our test vectors show is under two thirds of it.
    """
    size = max(len(probabilities) for probabilities in _probabilities(result))
    product = max(
        math.sqrt(float(p @ p) * float(q @ q))
        for p, q in zip(_probabilities(first), _probabilities(second), strict=True)
    )
    return 16 * sys.float_info.epsilon * math.sqrt(size) * product


def _probabilities(distribution: Any) -> "tuple[np.ndarray, np.ndarray]":
    # dp-accounting has no public way to see them; it is pinned below its next minor version.
    return (
        distribution._pmf_remove.to_dense_pmf()._probs,
        distribution._pmf_add.to_dense_pmf()._probs,
    )
