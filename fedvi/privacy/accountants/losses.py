"""Discretises the privacy losses of sampled releases and convolves them.

`masses` has the arithmetic, which is pessimistic on every grid; this file chooses grids, and gives it noise
multipliers that we computed.
"""

import dataclasses
import functools
import math
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from fedvi.privacy.accountants import masses
from fedvi.privacy.accountants.masses import Masses, Pair
from fedvi.privacy.events import (
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    Unprotected,
    WithoutReplacement,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "NO_RATE",
    "Loss",
    "Sampled",
    "Step",
    "Tilted",
    "composed_loss",
    "grid",
    "log1p_scaled",
    "tilted_loss",
    "why_not",
]


class Step(NamedTuple):
    """One sampled Gaussian release.

    Args:
      kind: how its batch is drawn.
      noise: noise std ÷ the largest move of a batch's sum by one unit in it: compared with the unit's
        absence for ``poisson``, and with its replacement for ``fixed``.
      rate: the probability that a unit is in the batch, above 0 and below 1.
    """

    kind: Literal["fixed", "poisson"]
    noise: float
    rate: float


Sampled: TypeAlias = tuple[tuple[Step, int], ...]  # (step, how often), sorted

NO_RATE = (
    "a batch of a fixed size has no price under add_remove: its rate would depend on the number of "
    "records; promise `substitute`, or sample by `poisson`"
)
_MOST_POINTS = 1_000_000  # planned for a composition: 8 MB, and 0.2 s to convolve
_MOST_FFT_POINTS = 4 * _MOST_POINTS  # hard limit of any convolution: 2 s
_MOST_STEP_POINTS = 300_000  # of one step: built point by point, 0.5 s in each direction
_FINEST = 2.0**-10
_COARSEST = 1.0  # an interval; beyond it sampling is no longer priced
_LEAST_NOISE = 0.02  # below it one step already costs ε in the thousands


def why_not(atom: Event, relation: Relation) -> str | None:
    """Explains why an atom has no price and what to use instead; None if it has one."""
    match atom:
        case Gaussian() | Unprotected():
            return None
        case PoissonSampled(_, Gaussian(_, add_remove, substitute), _) if (
            add_remove <= 1 and substitute <= 2
        ) or substitute == 2 * add_remove:
            return None
        case WithoutReplacement(_, _, Gaussian()):
            return None if relation == "substitute" else NO_RATE
    return (
        "it knows Gaussian releases of any shift, fixed-size batches of one under substitute, and "
        "Poisson batches of one whose shift is at most 1 (add_remove) and 2 (substitute), or whose "
        "substitute shift is twice that of add_remove"
    )


def grid(sampled: Sampled, mu: float, relation: Relation, interval: float) -> float | None:
    """Chooses the grid's spacing; None if there is no sampling, or none worth pricing.

    Discretisation adds at most interval²/4 to the variance of each step's loss, so a spacing of a twelfth
    of a step's root mean variance keeps ε within about a thousandth. Spacings are ``interval`` times
    a power of two, so that a growing composition can reuse its cached parts.
    """
    if not sampled or mu > 1 / _LEAST_NOISE:
        return None
    # The widest range of one release's losses, at ten standard deviations.
    widest = 20 * mu + 2 * mu**2
    variance = 0.0
    for (kind, noise, rate), count in sampled:
        if noise < _LEAST_NOISE:
            return None
        # Under `substitute` losses reach as far down as up.
        sides = 1 if relation == "add_remove" else 2
        widest = max(widest, sides * log1p_scaled(rate, 10 / noise + 1.5 / noise**2))
        chi_square = rate**2 * math.expm1(min(noise**-2, 700.0))
        shifts = sides if kind == "poisson" else 1  # for a fixed size, `noise` accounts for both
        variance += count * shifts**2 * min(chi_square, rate * (noise**-2 + noise**-4))
    spread = math.sqrt(variance + mu**2)
    need = max(widest / _MOST_STEP_POINTS, (4 * widest + 16 * spread) / _MOST_POINTS)
    want = math.sqrt(variance / sum(count for _, count in sampled)) / 12
    exponent = min(0, math.floor(math.log2(max(want / interval, _FINEST))))
    if need > interval * 2.0**exponent:
        exponent = math.ceil(math.log2(need / interval))
    chosen = interval * 2.0**exponent
    return chosen if chosen <= _COARSEST else None


def log1p_scaled(scale: float, exponent: float) -> float:
    """log(1 + scale·(e^exponent − 1)).

    >>> round(log1p_scaled(0.01, 1.0), 5)
    0.01704
    """
    if exponent < 700:
        return math.log1p(scale * math.expm1(exponent))
    return exponent + math.log(scale)


class Loss(NamedTuple):
    """A privacy loss distribution, with an allowance for rounding.

    ``rounding`` bounds the L1 error of the floating-point convolutions, which reaches 1e-11 over ten
    thousand steps and would otherwise be missing from small δ. docs/proofs/composition.md says which
    part of this is proved.
    """

    distribution: Pair
    rounding: float

    @property
    def least_delta(self) -> float:
        """The part of δ that no ε removes: the mass of infinite losses, and ``rounding``."""
        return self.rounding + max(one.infinite for one in self.distribution)

    def delta(self, epsilon: float) -> float:
        """The certified δ at ``epsilon``."""
        import numpy as np

        with np.errstate(all="ignore"):
            value = self.distribution.delta(epsilon)
        return min(1.0, max(0.0, value) + self.rounding)

    def attained(self, delta: float) -> float:
        """A lower bound on the true ε at ``delta``, for losses that were rounded down."""
        return max(0.0, self._inverted(delta + self.rounding) * (1 - 1e-12))

    def epsilon(self, delta: float) -> float:
        """The smallest ε, 0 or more, whose certified δ is at most ``delta``; may be infinite."""
        if delta <= self.rounding:
            return math.inf
        value = self._inverted(delta - self.rounding)
        # The inversion rounds too, so ε is raised until its δ is at most ``delta``.
        nudge = 1e-14
        while value < math.inf and self.delta(value) > delta:
            value, nudge = value + nudge * max(1.0, value), 2 * nudge
        return max(0.0, value)

    def _inverted(self, delta: float) -> float:
        import numpy as np

        with np.errstate(all="ignore"):
            return max(_epsilon_of(one, delta) for one in self.distribution.different())


@functools.lru_cache(maxsize=8)
def composed_loss(
    sampled: Sampled, mu: float, relation: Relation, interval: float, pessimistic: bool = True
) -> Loss | None:
    """Composes the sampled steps with one Gaussian of shift ÷ noise ``mu`` for all unsampled releases.

    Losses are rounded up to the grid, or down if not ``pessimistic``.

    Returns None if a convolution would need more than about four million points. That limits the time to
    a few seconds for any event, which matters because another party may have written the event.
    """
    total: Loss | None = None
    if mu > 0:
        # mu already accounts for the relation, so add_remove is right here for both relations: the
        # antipodal pair would double the shift again.
        total = Loss(_gaussian_loss(1 / mu, 1.0, "add_remove", interval, pessimistic), 0.0)
    for step, count in sampled:
        part = _repeated_loss(step, count, relation, interval, pessimistic)
        if part is not None and total is not None:
            part = _compose(total, part)
        if part is None:
            return None
        total = part
    assert total is not None
    return total


@dataclasses.dataclass(frozen=True)
class Tilted:
    """A composed privacy loss whose masses were multiplied by e^(λ·loss) before they were convolved.

    Rounding of a convolution is spread over all losses alike. Divided by e^(λ·loss) again, it is small
    where losses are large: δ(ε) has the allowance e^(moment − λ·ε) · rounding. Proof:
    docs/proofs/composition.md.

    Attributes:
      masses: the convolved masses, which add up to 1 but for ``rounding``.
      order: λ, above 0.
      moment: log Σ e^(λ·loss) · mass of the composition.
      infinite: the mass of infinite losses.
      rounding: bounds the L1 error of ``masses``, with what a convolution leaves out.
    """

    masses: Masses
    order: float
    moment: float
    infinite: float
    rounding: float

    def delta(self, epsilon: float) -> float:
        """The certified δ at ``epsilon``."""
        import numpy as np

        losses, upper, lower = self._tails
        first = int(np.searchsorted(losses, epsilon, side="right"))
        if first < len(losses):
            # Σ p − e^(ε − ℓ₀) Σ e^(ℓ₀ − ℓ) p over ℓ > ε: sums of at most 2²² positive numbers each.
            whole, less = float(upper[first]), float(lower[first])
            less *= math.exp(min(epsilon - float(losses[0]), 700.0))
            found = max(whole - less, 0.0) + _ADDED_UP * (whole + less)
        else:
            found = 0.0
        exponent = min(self.moment - self.order * epsilon, 700.0)
        # The exponents' own rounding is some thousand units in the last place at most, as measured.
        found = (found + math.exp(exponent) * self.rounding) * (1 + 1e-9)
        return min(1.0, found + self.infinite)

    @functools.cached_property
    def _tails(self) -> "tuple[np.ndarray, np.ndarray, np.ndarray]":
        """The losses ℓ, and from each on Σ p and Σ e^(ℓ₀ − ℓ) p: one pass, since δ is asked for often."""
        import numpy as np

        losses = self.masses.losses()
        with np.errstate(all="ignore"):
            exponents = np.minimum(self.moment - self.order * losses, 700.0)
            mass = np.exp(exponents) * np.maximum(self.masses.at, 0.0)
            parts = mass, mass * np.exp(losses[0] - losses)
        upper, lower = (np.cumsum(part[::-1])[::-1] for part in parts)
        return losses, upper, lower


# The error of a sum of 2²² positive numbers, one after another, is below 2²² · 2⁻⁵³ of it.
_ADDED_UP = 2.0**-31
_LARGEST_ORDER = 16  # as a power of two


@functools.lru_cache(maxsize=8)
def tilted_loss(
    step: Step, count: int, relation: Relation, interval: float, delta: float
) -> tuple[Tilted, ...] | None:
    """Returns the losses of ``count`` releases of one kind for δ near ``delta``, in each direction.

    None if a convolution would need more than about four million points.
    """
    import numpy as np

    once = _once(step, relation, interval, True)
    found = []
    for one in once.different():
        with np.errstate(all="ignore"):
            # Of Chernoff's bound on ε at this δ, which is where δ is nearly decided.
            orders = [2.0 ** (half / 2) for half in range(2 * _LARGEST_ORDER + 1)]
            order = min(
                orders,
                key=lambda order: (count * masses.tilted(one, order)[1] - math.log(delta)) / order,
            )
            alone, moment = masses.tilted(one, order)
            if _points(alone, count) > _MOST_FFT_POINTS:
                return None
            pair = Pair(alone, alone)
            whole = masses.repeated(pair, count) if count > 1 else pair
        rounding = count * _rounding(pair, whole, whole) + masses.CUT
        infinite = -math.expm1(count * math.log1p(-one.infinite))
        found.append(Tilted(whole.remove, order, count * moment, infinite, rounding))
    return tuple(found)


@functools.lru_cache(maxsize=8)
def _repeated_loss(
    step: Step, count: int, relation: Relation, interval: float, pessimistic: bool = True
) -> Loss | None:
    import numpy as np

    once = _once(step, relation, interval, pessimistic)
    if count == 1:
        return Loss(once, 0.0)
    with np.errstate(all="ignore"):
        if any(_points(part, count) > _MOST_FFT_POINTS for part in once.different()):
            return None
        composed = masses.repeated(once, count)
    return Loss(composed, count * _rounding(once, composed, composed))


def _once(step: Step, relation: Relation, interval: float, pessimistic: bool) -> Pair:
    """Returns the loss of one release."""
    if step.kind == "fixed" and pessimistic:
        return _fixed_size_loss(step.noise, step.rate, interval)
    if step.kind == "fixed":
        # Attained when all other records are at one end and the changed record is at the other.
        return _gaussian_loss(step.noise, step.rate, "add_remove", interval, pessimistic)
    return _gaussian_loss(step.noise, step.rate, relation, interval, pessimistic)


@functools.lru_cache(maxsize=16)
def _gaussian_loss(
    noise: float, rate: float, relation: Relation, interval: float, pessimistic: bool = True
) -> Pair:
    """The loss of one Poisson release; under ``substitute`` that of the antipodal pair at ±1."""
    import numpy as np

    of = masses.gaussian if pessimistic else masses.rounded_down
    with np.errstate(all="ignore"):
        return of(noise, rate, interval, relation == "substitute")


@functools.lru_cache(maxsize=16)
def _fixed_size_loss(noise: float, rate: float, interval: float) -> Pair:
    """The loss of one fixed-size batch under substitution; proof: docs/proofs/fixed_size.md.

    The profile at ε ≥ 0 is h(ε), that of (1−q)·N(0) + q·N(1) against N(0), and at −ε it is
    1 − e^−ε + e^−ε·h(ε), that of the two swapped. Its chords between the grid's points lie above
    it, because it is convex in e^ε, and are the profile of the returned distribution. That distribution
    is symmetric, mass(−ε) = e^−ε·mass(ε), so only the upper half is computed: in the lower half δ is
    near 1, and second differences would be mostly rounding error.
    """
    import numpy as np

    # Ten standard deviations; the mass beyond, q·1e-23, is counted as infinite losses.
    size = math.ceil(log1p_scaled(rate, 10 / noise + 0.5 / noise**2) / interval) + 1
    deltas = _removal_deltas(noise, rate, interval * np.arange(size + 1))
    falls = deltas[:-1] - deltas[1:]
    upper = np.empty(size)  # the masses at interval · (1, …, size)
    upper[:-1] = (math.exp(interval) * falls[:-1] - falls[1:]) / math.expm1(interval)
    upper[-1] = falls[-1] / -math.expm1(-interval)
    upper = np.maximum(upper, 0.0)  # negative only by rounding
    lower = (np.exp(-interval * np.arange(1, size + 1)) * upper)[::-1]
    infinite = float(deltas[-1])
    centre = max(0.0, 1.0 - infinite - math.fsum(lower) - math.fsum(upper))
    both = Masses(interval, -size, np.concatenate([lower, [centre], upper]), infinite)
    return Pair(both, both)


def _removal_deltas(noise: float, rate: float, epsilons: "np.ndarray") -> "np.ndarray":
    """E_γ((1−q)·N(0) + q·N(1) ‖ N(0)) at γ = e^ε ≥ 1, rounded up: q·E_γ′(N(1) ‖ N(0)).

    There γ′ = 1 + (γ − 1)/q, since the pair's densities p and r obey (1−q)·r + q·p − γ·r =
    q·(p − γ′·r).
    """
    import numpy as np
    from scipy import special

    small = np.log1p(np.expm1(np.minimum(epsilons, 700.0)) / rate)
    inner = np.where(epsilons < 700.0, small, epsilons - math.log(rate))
    upper = special.log_ndtr(0.5 / noise - inner * noise)
    lower = inner + special.log_ndtr(-0.5 / noise - inner * noise)
    rounding = 8 * sys.float_info.epsilon * (1 + np.abs(upper) + np.abs(lower) + inner)
    return rate * np.exp(upper) * (-np.expm1(np.minimum(0.0, lower - upper)) + rounding)


def _points(part: Masses, count: int) -> int:
    """Bounds the number of points when a distribution is convolved with itself ``count`` times."""
    most = (len(part.at) - 1) * count + 1
    return most if most <= _MOST_FFT_POINTS else masses.points(part, count)


_TOGETHER = 2**16


def _epsilon_of(pmf: Masses, delta: float) -> float:
    """Returns the smallest ε, 0 or more, whose δ is at most ``delta``; may be infinite.

    With U and L the masses of losses ≥ l under the two laws, δ(ε) = U − e^ε·L for ε between two losses.
    The search goes down through the losses and ends at the first one below log((U − δ)/L).
    """
    import numpy as np

    probs, interval = pmf.at, pmf.interval
    upper, lower = pmf.infinite, 0.0
    if upper > delta:
        return math.inf
    for end in range(len(probs), 0, -_TOGETHER):
        start = max(0, end - _TOGETHER)
        losses = ((np.arange(start, end) + pmf.lowest) * interval)[::-1]
        some = probs[start:end][::-1]
        uppers = np.cumsum(np.concatenate([[upper], some]))
        lowers = np.cumsum(np.concatenate([[lower], np.exp(-losses) * some]))
        # `found`: whether ε is above each loss. `vast`: whether e^−loss is 0 in floating point.
        found = (uppers[:-1] > delta) & (lowers[:-1] > 0)
        found &= np.log((uppers[:-1] - delta) / lowers[:-1]) >= losses
        vast = (uppers[1:] >= delta) & (lowers[1:] == 0)
        place = int(np.argmax(found | vast))
        if found[place]:
            upper, lower = float(uppers[place]), float(lowers[place])
            break
        if vast[place]:
            return max(0.0, float(losses[place]))
        upper, lower = float(uppers[-1]), float(lowers[-1])
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)


def _compose(first: Loss, second: Loss) -> Loss | None:
    import numpy as np

    pairs = tuple(zip(first.distribution, second.distribution, strict=True))
    if any(len(one.at) + len(other.at) > _MOST_FFT_POINTS for one, other in pairs):
        return None
    with np.errstate(all="ignore"):
        composed = masses.composed(first.distribution, second.distribution)
    rounding = _rounding(first.distribution, second.distribution, composed)
    return Loss(composed, first.rounding + second.rounding + rounding)


def _rounding(first: Pair, second: Pair, result: Pair) -> float:
    """Allowance for the L1 error of a convolution by FFT: 16·u·√n·‖p‖₂·‖q‖₂.

    The L2 error of an FFT is u·√(log₂ n) of the norm, and √n converts L2 to L1. The factor 16 is
    empirical: twice the negative mass in our test convolutions is under two thirds of the allowance.
    """
    size = max(len(one.at) for one in result)
    product = max(
        math.sqrt(float(one.at @ one.at) * float(other.at @ other.at))
        for one, other in zip(first, second, strict=True)
    )
    return 16 * sys.float_info.epsilon * math.sqrt(size) * product
