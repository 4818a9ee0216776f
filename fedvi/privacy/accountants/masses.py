"""Makes, convolves and reads the probability masses of privacy losses on a grid, in arrays.

This is dp-accounting's arithmetic, operation for operation, so that a price has the same bits: it inverts
privacy losses one number at a time, and its import alone takes half a second. It stands in for an array
where a few masses are multiplied out, and where losses are rounded down.
"""

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CUT",
    "Masses",
    "Pair",
    "composed",
    "gaussian",
    "points",
    "repeated",
    "rounded_down",
    "tilted",
]

Direction = Literal["add", "remove", "replace"]

_FEW = 1_000  # up to so many masses dp-accounting multiplies out, and does not transform
_TAIL = 1e-15  # the mass that a convolution may cut off, dp-accounting's default
_NOISE_TAIL = 0.5 * math.exp(-50)  # of the noise, on either side: beyond it losses are infinite
CUT = 2 * _TAIL  # a bound on the mass that a power of masses leaves out
_ORDERS = 20  # of Chernoff bounds, to either side
_RISE = 1e-12  # that rounding may put into a profile, which falls


class Masses(NamedTuple):
    """Masses ``at`` the losses ``interval`` · (``lowest``, ``lowest`` + 1, …), and that of infinite ones.

    ``sparse`` says that dp-accounting would keep them one by one, and multiply them out.
    """

    interval: float
    lowest: int
    at: "np.ndarray"
    infinite: float
    sparse: bool = False
    pessimistic: bool = True

    def losses(self, start: int = 0) -> "np.ndarray":
        """Returns the losses from the ``start``-th on."""
        import numpy as np

        return (np.arange(start, len(self.at)) + self.lowest) * self.interval

    def delta(self, epsilon: float) -> float:
        """Returns Σ (1 − e^(ε − ℓ)) · mass(ℓ) over the losses above ``epsilon``."""
        import numpy as np

        below = min(max(epsilon / self.interval - self.lowest - 2, 0.0), float(len(self.at)))
        losses = self.losses(int(below))
        above = losses > epsilon
        rest = self.at[int(below) :][above]
        return float(self.infinite + np.dot(-np.expm1(epsilon - losses[above]), rest))


class Pair(NamedTuple):
    """Losses when a unit is removed, and when it is added; the same object where they are alike."""

    remove: Masses
    add: Masses

    def delta(self, epsilon: float) -> float:
        """Returns the larger δ at ``epsilon``."""
        return max(one.delta(epsilon) for one in self.different())

    def different(self) -> tuple[Masses, ...]:
        """Returns one of them or both."""
        return (self.remove,) if self.add is self.remove else (self.remove, self.add)


def gaussian(noise: float, rate: float, interval: float, antipodal: bool = False) -> Pair:
    """Returns the losses of one Poisson-sampled Gaussian release of shift 1, rounded up by chords.

    Args:
      noise: its standard deviation.
      rate: the probability that the unit takes part; 1 without sampling.
      interval: the grid's spacing.
      antipodal: whether the unit moves the sum to −1 rather than to 0 where it is exchanged.

    Source: Doroshenko et al. (2022), arXiv:2207.04380, Algorithm 1.
    """
    if antipodal:
        once = _gaussian(noise, rate, interval, "replace")
        return Pair(once, once)
    remove = _gaussian(noise, rate, interval, "remove")
    return Pair(remove, remove if rate == 1 else _gaussian(noise, rate, interval, "add"))


def _gaussian(noise: float, rate: float, interval: float, direction: Direction) -> Masses:
    import numpy as np
    from scipy import special

    high = -(special.ndtri(_NOISE_TAIL) * noise)
    low = -high
    if direction == "add":
        high += 1
    else:
        low -= 1
    upper = math.ceil(_loss(noise, rate, low, direction) / interval)
    lower = math.floor(_loss(noise, rate, high, direction) / interval)
    epsilons = np.arange(lower, upper + 1) * interval
    return _chords(interval, lower, _profile(noise, rate, epsilons, direction))


def _loss(noise: float, rate: float, x: float, direction: Direction) -> float:
    """Returns log of the ratio of both densities at ``x``."""
    import numpy as np

    def removed(x: float) -> float:
        bare = (-0.5 - x) / noise**2
        if rate == 1:
            return bare
        if bare == 0:
            return float(np.log(rate + (1 - rate)))
        first, second = bare + np.log(rate), np.log(1 - rate)
        least, most = min(first, second), max(first, second)
        return float(most + np.log1p(np.exp(least - most)))

    match direction:
        case "remove":
            return removed(x)
        case "add":
            return -removed(-x)
        case _:
            return removed(x) - removed(-x)


def _profile(
    noise: float, rate: float, epsilons: "np.ndarray", direction: Direction
) -> "np.ndarray":
    """Returns δ at each of ``epsilons``: P[x ≤ c] − e^ε·Q[x ≤ c], the loss being ε at c."""
    import numpy as np
    from scipy import special

    deltas = np.zeros_like(epsilons)
    inside = np.full(len(epsilons), True)
    if rate < 1 and direction == "add":
        inside = epsilons < -math.log1p(-rate)
    elif rate < 1 and direction == "remove":
        inside = epsilons > math.log1p(-rate)
        deltas[~inside] = -np.expm1(epsilons[~inside])
    some = epsilons[inside]
    if direction == "replace":
        cuts = _replaced_cuts(noise, rate, some)
    else:
        cuts = _cuts(noise, rate, some, direction)

    # P is (1−q)·N(0) + q·N(−1), and Q with 1 for −1, but for the side that has no unit.
    at, moved = cuts / noise, (cuts + 1) / noise
    if direction == "add":
        first = special.ndtr(at)
    elif rate == 1:
        first = special.ndtr(moved)
    else:
        first = (1 - rate) * special.ndtr(at) + rate * special.ndtr(moved)
    back = (cuts + -1) / noise
    if direction == "remove":
        second = special.log_ndtr(at)
    elif rate == 1:
        second = special.log_ndtr(back)
    else:
        second = np.logaddexp(
            np.log1p(-rate) + special.log_ndtr(at), np.log(rate) + special.log_ndtr(back)
        )
    deltas[inside] = first - np.exp(some + second)
    return np.clip(deltas, 0, 1)


def _cuts(noise: float, rate: float, epsilons: "np.ndarray", direction: Direction) -> "np.ndarray":
    """Returns where the loss is each of ``epsilons``, if a unit is added or removed."""
    import numpy as np

    sign = 1.0 if direction == "remove" else -1.0
    bare = epsilons
    if rate < 1:
        # The loss is ±log(1 − q + q·e^±b) at a loss of b without sampling.
        edge = sign * math.log(1 - rate)
        at_edge = np.abs(epsilons - edge) <= 1e-9 * np.maximum(np.abs(epsilons), abs(edge))
        scale, shift = 1 / rate, 1 - 1 / rate
        first, second = sign * epsilons + np.log(scale), np.log(-shift)
        at_zero = epsilons == 0
        if np.any((second >= first) & ~at_edge & ~at_zero):
            raise ValueError(f"a privacy loss lies beyond its limit {edge}")
        bare = sign * (first + np.log1p(-np.exp(second - first)))
        bare[at_zero] = sign * np.log(scale + shift)
        bare[at_edge] = -sign * math.inf
    return (direction == "add") + (-0.5 - bare * noise**2)


def _replaced_cuts(noise: float, rate: float, epsilons: "np.ndarray") -> "np.ndarray":
    """Returns where the loss is each of ``epsilons``, if a unit is exchanged at ``rate`` below 1.

    c = σ²·(arsinh(−α·sinh(ε/2)) − ε/2), α = e^(1/2σ²)·(1−q)/q.
    """
    import numpy as np

    log_alpha = 0.5 * (1 / noise) ** 2 + math.log1p(-rate) - math.log(rate)
    halves = np.abs(epsilons) / 2
    # The functions of `math`, for their bits.
    small = [math.log1p(-math.exp(-2 * half)) if half else 0.0 for half in halves.tolist()]
    logs = log_alpha + (halves + np.array(small) - math.log(2))
    signs = np.where(epsilons >= 0, -1.0, 1.0)
    arcs = signs * np.logaddexp(0.5 * np.logaddexp(0, 2 * logs), logs)
    return np.where(epsilons == 0, 0.0, noise**2 * (arcs - epsilons / 2))


def _chords(interval: float, lowest: int, deltas: "np.ndarray") -> Masses:
    """Returns the masses whose profile joins ``deltas`` by chords in e^ε."""
    import numpy as np

    if not np.all((deltas >= 0) & (deltas <= 1)) or np.any(np.diff(deltas) > _RISE):
        raise ValueError(f"no privacy profile, which falls from 1 to 0: {deltas}")
    if len(deltas) == 1:
        return Masses(interval, lowest, 1 - deltas, float(deltas[0]), sparse=True)
    deltas = np.minimum.accumulate(deltas)
    steps = np.diff(deltas)
    at = np.zeros_like(deltas)
    at[0] = 1 - deltas[0] + steps[0] / math.expm1(interval)
    at[1:-1] = (steps[1:] - steps[:-1] * math.exp(interval)) / math.expm1(interval)
    at[-1] = steps[-1] / math.expm1(-interval)
    return Masses(interval, lowest, np.maximum(0.0, at), float(deltas[-1]), sparse=len(at) <= _FEW)


def repeated(once: Pair, count: int) -> Pair:
    """Returns the losses of ``count`` releases, two or more."""
    remove = _repeated(once.remove, count)
    return Pair(remove, remove if once.add is once.remove else _repeated(once.add, count))


def _repeated(once: Masses, count: int) -> Masses:
    import numpy as np
    from scipy import fft

    # The power is an integer of as many digits as `count`, hence the limit.
    if once.sparse and count < _FEW and len(once.at) ** count <= _FEW:
        return _own(_library(once).self_compose(count))
    low, high = _ends(once.at, count, _ORDERS)
    size = high - low + 1
    fast = fft.next_fast_len(max(size, len(once.at)))
    at = np.roll(np.real(fft.ifft(fft.fft(once.at, fast) ** count)), -low)[:size]
    infinite = _TAIL - math.expm1(count * math.log1p(-once.infinite))
    return once._replace(
        lowest=once.lowest * count + low, at=np.array(at), infinite=infinite, sparse=False
    )


def tilted(once: Masses, order: float) -> tuple[Masses, float]:
    """Returns masses in proportion to e^(order · loss) · mass, and the logarithm of their sum.

    Infinite losses are left out.
    """
    import numpy as np
    from scipy import special

    with np.errstate(divide="ignore"):
        logs = np.log(once.at) + order * once.losses()
    total = float(special.logsumexp(logs))
    return once._replace(at=np.exp(logs - total), infinite=0.0, sparse=False), total


def points(masses: Masses, count: int) -> int:
    """Bounds the number of points of ``count`` releases; a few orders suffice here."""
    low, high = _ends(masses.at, count, 20, (1, 4, 20))
    return high - low + 1


def _ends(
    at: "np.ndarray", count: int, most: int, orders: tuple[int, ...] | None = None
) -> tuple[int, int]:
    """Returns between which sums of ``count`` positions all but `_TAIL` of the mass lies.

    These are Chernoff bounds of the orders ±1, …, ±``most`` ÷ the number of masses, or of ``orders``. All
    are computed roughly, by powers of one exponential, and then those again that may be the least.
    """
    import numpy as np
    from scipy import special

    size = len(at)
    places = np.arange(size)
    excess = math.log(2 / _TAIL)

    def bounds(sign: int) -> list[float]:
        base, weighted, rough = np.exp(sign * places / size), at.copy(), {}
        for order in range(1, most + 1):
            weighted *= base
            if orders is None or order in orders:
                rough[order] = (count * np.log(weighted.sum()) + excess) / (order / size)
        least = min(rough.values())
        near = 1e-12 * count * size
        found = []
        for order, bound in rough.items():
            if bound <= least + near or not math.isfinite(least):
                scaled = sign * order / size
                exact = special.logsumexp(places * scaled, b=at)
                found.append(float((count * exact + excess) / scaled))
        return [bound for bound in found if math.isfinite(bound)]

    lows = [math.floor(bound) for bound in bounds(-1)]
    highs = [math.ceil(bound) for bound in bounds(1)]
    return max([0, *lows]), min([(size - 1) * count, *highs])


def composed(first: Pair, second: Pair) -> Pair:
    """Returns the losses of both together."""
    remove = _composed(first.remove, second.remove)
    if first.add is first.remove and second.add is second.remove:
        return Pair(remove, remove)
    return Pair(remove, _composed(first.add, second.add))


def _composed(first: Masses, second: Masses) -> Masses:
    import numpy as np
    from scipy import fft

    if first.sparse and second.sparse and len(first.at) * len(second.at) <= _FEW:
        return _own(_library(first).compose(_library(second), _TAIL))
    size = len(first.at) + len(second.at) - 1
    fast = fft.next_fast_len(size, True)
    at = fft.irfft(fft.rfft(first.at, fast) * fft.rfft(second.at, fast), fast)[:size].copy()
    start = _short(at)
    end = max(size - _short(at[::-1]), start + 1)
    below, above = np.sum(at[:start]), np.sum(at[end:])
    at = at[start:end]
    infinite = first.infinite + second.infinite - first.infinite * second.infinite
    if first.pessimistic:
        at[0] += below
        infinite += float(above)
    else:
        at[-1] += above
    return Masses(
        first.interval,
        first.lowest + second.lowest + start,
        at,
        infinite,
        pessimistic=first.pessimistic,
    )


def _short(at: "np.ndarray") -> int:
    """Returns how many of the first masses may be cut off."""
    import numpy as np

    beyond = np.cumsum(at) > _TAIL / 2
    return int(np.argmax(beyond)) if beyond.any() else len(at)


def rounded_down(noise: float, rate: float, interval: float, antipodal: bool = False) -> Pair:
    """Returns what `gaussian` does, with losses rounded down."""
    from dp_accounting import privacy_accountant
    from dp_accounting.pld import privacy_loss_distribution

    neighbours = privacy_accountant.NeighboringRelation
    found = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=interval,
        # REPLACE_ONE is the antipodal pair at ±1.
        neighboring_relation=neighbours.REPLACE_ONE if antipodal else neighbours.ADD_OR_REMOVE_ONE,
    )
    remove = _own(found._pmf_remove)
    return Pair(remove, remove if found._pmf_add is found._pmf_remove else _own(found._pmf_add))


def _library(masses: Masses) -> Any:
    """Returns few masses as dp-accounting keeps them."""
    from dp_accounting.pld import pld_pmf

    losses = dict(enumerate(masses.at.tolist(), masses.lowest))
    return pld_pmf.SparsePLDPmf(losses, masses.interval, masses.infinite, masses.pessimistic)


def _own(pmf: Any) -> Masses:
    # dp-accounting does not expose these, so its version is pinned below the next minor one.
    dense = pmf.to_dense_pmf()
    return Masses(
        dense._discretization,
        dense._lower_loss,
        dense._probs,
        float(dense._infinity_mass),
        pmf is not dense,
        dense._pessimistic_estimate,
    )
