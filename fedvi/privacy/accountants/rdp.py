"""Prices by Rényi differential privacy.

Looser than `pld`, but simpler to trust: it sums curves instead of convolving. At one order that is fixed
in advance it is also a filter (`fedvi.privacy.filter`), which `pld` is not.
"""

import functools
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.accountants import overflow
from fedvi.privacy.accountants.losses import why_not
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

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ORDERS", "Rdp", "delta_at_order", "epsilon_at_order", "overflow_of", "rdp"]

ORDERS: tuple[float, ...] = (
    *(1 + step / 10 for step in range(1, 31)),
    *(4 + step / 4 for step in range(1, 17)),
    *(8 + step / 2 for step in range(1, 17)),
    *(float(order) for order in range(17, 65)),
    *(float(order) for order in (72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024)),
)


@dataclass(frozen=True)
class Rdp:
    """Prices Gaussian, discrete Gaussian and sampled Gaussian releases; made by `rdp`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance; they take the best of `ORDERS`. For adaptively chosen
    parameters, fix one order and use `fedvi.privacy.filter`.

    At order α > 1 one release costs

    - for a Gaussian: α·μ²/2, μ = shift ÷ noise; for a discrete one the same with μ + slack;
    - for a Gaussian on a sampled batch: the Rényi divergence of the pair that dominates it (listed in
      `Pld`), which bounds that of the mechanism at every order since it is an increasing function
      of an f-divergence. It is integrated by Gauss–Legendre panels to a relative error below 1e-9,
      which is added. It never exceeds the joint convexity bound,
      log(1 + q·(e^(α·(α−1)·μ²/2) − 1)) ÷ (α − 1), which is used alone if the integral would need too
      many points.

    The error bound of 1e-9 is tested against closed forms and 40-digit quadrature, but not proved.

    Source: Mironov (2017), arXiv:1702.07476, Proposition 1 (composition); Mironov, Talwar and Zhang
    (2019), arXiv:1908.10530, Theorems 4 and 5 (Poisson, add_remove); Canonne, Kamath and Steinke
    (2020), arXiv:2004.00010, Theorem 4 (discrete), Proposition 12 (conversion). Proofs:
    docs/proofs/fixed_size.md, poisson_substitute.md, overflow.md.
    """

    relation: Relation
    name: ClassVar[str] = "rdp"

    def supports(self, event: Event) -> bool:
        """Whether every atom is supported by `pld`, or is an unsampled `DiscreteGaussian`."""
        return all(_why_not(atom, self.relation) is None for atom in counts(event))

    def divergence(self, event: Event, order: float) -> float:
        """Returns the Rényi divergence of ``event`` at one order above 1; 0 or more, or infinite.

        It excludes the cost of overflowing batches, which `overflow_of` counts.

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
        if not 1 < order < math.inf:
            raise ConfigError(f"order is {order}, expected a finite number above 1")
        terms = []
        for atom, count in priced(event, self.relation, self.name, _why_not):
            terms.append(count * _divergence(atom, self.relation, order))
        return math.fsum(terms) if math.inf not in terms else math.inf

    def curve(self, event: Event) -> tuple[float, ...]:
        """Returns the Rényi divergence of ``event`` at each of `ORDERS`.

        Raises:
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
        return tuple(self.divergence(event, order) for order in ORDERS)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``; see `Accountant.epsilon`."""
        overflow.check_delta(delta)
        curve, beyond = self.curve(event), overflow_of(event)
        if _total_variation(min(curve)) + 2 * beyond <= delta:
            return 0.0
        best = math.inf
        for order, divergence in zip(ORDERS, curve, strict=True):
            least = epsilon_at_order(order, divergence, delta)
            if beyond > 0 and least < best:
                least = overflow.smallest_epsilon(_price(order, divergence, beyond), delta, least)
            best = min(best, least)
        if beyond > 0 and delta > 0 and math.isinf(best) and min(curve) < math.inf:
            raise overflow.too_much(beyond, delta, self.delta(event, overflow.LARGEST_EPSILON))
        return best

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``; see `Accountant.delta`."""
        overflow.check_epsilon(epsilon)
        curve, beyond = self.curve(event), overflow_of(event)
        best = min(1.0, _total_variation(min(curve)) + 2 * beyond)
        for order, divergence in zip(ORDERS, curve, strict=True):
            if divergence < math.inf:
                price = _price(order, divergence, beyond)
                best = min(best, overflow.delta_of(price, epsilon))
        return best


def rdp(relation: Relation) -> Rdp:
    """Returns the accountant by Rényi differential privacy for one neighbouring relation.

    >>> from fedvi.privacy.events import Repeated
    >>> round(rdp("add_remove").epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 2)
    2.17
    """
    check_relation(relation)
    return Rdp(relation)


def epsilon_at_order(order: float, divergence: float, delta: float) -> float:
    """Returns the ε that a Rényi divergence at ``order`` implies at ``delta``, rounded up.

    ε = D + log(1 − 1/α) − log(δ·α) ÷ (α − 1), Canonne, Kamath and Steinke (2020), Proposition 12.

    >>> round(epsilon_at_order(2.0, 0.5, 1e-5), 3)
    10.627
    """
    if delta == 0 or divergence == math.inf:
        return math.inf
    penalty = (math.log(delta) + math.log(order)) / (order - 1)
    epsilon = max(0.0, divergence + math.log1p(-1 / order) - penalty)
    # Rounded up so far that `delta_at_order` confirms it, despite the rounding of both.
    size = 1 + divergence + epsilon + abs(penalty) + (1 + math.log(order)) / (order - 1)
    return epsilon + 32 * sys.float_info.epsilon * size


def delta_at_order(order: float, divergence: float, epsilon: float) -> float:
    """Returns the δ that a Rényi divergence at ``order`` implies at ``epsilon``, rounded up.

    The inverse of `epsilon_at_order`: convex in ε; may exceed 1.
    """
    exponent = (order - 1) * (divergence - epsilon + math.log1p(-1 / order)) - math.log(order)
    # (α − 1)·log(1 − 1/α) is between −1 and 0.
    size = 2 + (order - 1) * (divergence + epsilon) + math.log(order)
    exponent += 8 * sys.float_info.epsilon * size
    return math.exp(exponent) if exponent < overflow.LARGEST_EPSILON else math.inf


def overflow_of(event: Event) -> float:
    """Returns β, the sum of the probabilities that a batch overflows its capacity."""
    return math.fsum(
        count * atom.overflow
        for atom, count in counts(event).items()
        if isinstance(atom, PoissonSampled)
    )


def _price(order: float, divergence: float, beyond: float) -> overflow.Price:
    return overflow.Price(
        functools.partial(delta_at_order, order, divergence),
        functools.partial(epsilon_at_order, order, divergence),
        beyond,
    )


def _total_variation(divergence: float) -> float:
    """√(1 − e^−KL), which bounds δ at ε = 0 (Bretagnolle and Huber), and KL ≤ D at any order."""
    return math.sqrt(-math.expm1(-divergence)) * (1 + 4 * sys.float_info.epsilon)


def _why_not(atom: Event, relation: Relation) -> str | None:
    return None if isinstance(atom, DiscreteGaussian) else why_not(atom, relation)


def _divergence(atom: Event, relation: Relation, order: float) -> float:
    """The divergence of one atom that is supported."""
    match atom:
        case Gaussian(noise, add_remove, substitute):
            return _unsampled(noise, add_remove if relation == "add_remove" else substitute, order)
        case DiscreteGaussian(noise, add_remove, substitute, slack):
            shift = add_remove if relation == "add_remove" else substitute
            return _unsampled(noise, shift, order, slack)
        case PoissonSampled(rate, Gaussian(noise, add_remove, substitute) as inner, _):
            if rate == 1:
                return _divergence(inner, relation, order)
            if relation == "add_remove":
                return _sampled("removal", noise, add_remove, rate, order)
            return _sampled("antipodal", noise, max(add_remove, substitute / 2), rate, order)
        case WithoutReplacement(batch, size, Gaussian(noise, add_remove, substitute) as inner):
            if batch == size:
                return _divergence(inner, relation, order)
            # The unit's place is taken by another one, or by nothing if its slot is empty.
            return _sampled("fixed", noise, max(substitute, add_remove), atom.rate, order)
        case Unprotected():
            return math.inf
    raise UnsupportedEvent(f"accountant rdp does not know the price of {atom}")


def _unsampled(noise: float, shift: float, order: float, slack: float = 0.0) -> float:
    if shift == 0:
        return 0.0
    return _half_square(shift / noise + slack, order) if noise > 0 else math.inf


def _half_square(ratio: float, order: float) -> float:
    """α·ratio² ÷ 2; infinite beyond the largest float, where ratio ** 2 would raise."""
    return order * (ratio * ratio) / 2


# Sampled releases.

_Kind: TypeAlias = Literal["antipodal", "fixed", "removal"]

_MOST_POINTS = 400_000  # of one quadrature: 20 ms
_LEAST_NOISE = 0.02  # below it one step already costs ε in the thousands
_MOST_NOISE = 1e100  # above it squares leave the floats, and nothing is left to save
_NODES = 16
_LEAST_ORDER = 1.0 + 1e-5  # below it the quadrature's terms cancel
_SERIES = 0.1  # the series is used for α·u below this; ten terms leave out 1e-15 of the sum
_SERIES_TERMS = 10
_LEAST_EXCESS = -700.0  # as a logarithm; below it the exponential underflows


def _sampled(kind: _Kind, noise: float, reach: float, rate: float, order: float) -> float:
    if reach == 0:
        return 0.0
    if noise / reach == 0:
        return math.inf
    return _sampled_divergence(kind, noise / reach, rate, order)


@functools.lru_cache(maxsize=8192)
def _sampled_divergence(kind: _Kind, noise: float, rate: float, order: float) -> float:
    """log(1 + E[(P/Q)^α − 1]) ÷ (α − 1), rounded up."""
    order = max(order, _LEAST_ORDER)  # an upper bound: divergence grows with the order
    shift = 2.0 if kind == "antipodal" else 1.0
    # Joint convexity: the batches without the unit cost nothing.
    everybody = _half_square(shift / noise, order)
    exponent = (order - 1) * everybody
    if exponent == math.inf:
        return math.inf
    # An exponent below the smallest float leaves the least excess, which stands above it.
    excess = math.log(rate) + (
        math.log(math.expm1(exponent) or math.exp(_LEAST_EXCESS))
        if exponent < overflow.LARGEST_EPSILON
        else exponent
    )
    points = _NODES * (2 * (2 * order + 26 * noise) / noise + 5 * max(order, 16))
    if _LEAST_NOISE <= noise <= _MOST_NOISE and points <= _MOST_POINTS:
        excess = min(excess, _log_excess(kind, noise, rate, order) + 1e-9)
    # The exponent, its logarithm and that of the rate are accurate to a few units in the last place.
    excess = max(excess, _LEAST_EXCESS)
    excess += 8 * sys.float_info.epsilon * (2 + min(exponent, abs(excess)) + abs(excess))
    logarithm = math.log1p(math.exp(excess)) if excess < 30 else excess + math.exp(-excess)
    found = logarithm / (order - 1) * (1 + 8 * sys.float_info.epsilon)
    return min(found, everybody)  # the cost without sampling


def _log_excess(kind: _Kind, noise: float, rate: float, order: float) -> float:
    """log(∫ Q·((P/Q)^α − 1)) of the dominating pair, by Gauss–Legendre panels.

    α·(P/Q − 1), which integrates to zero, is subtracted to get an integrand of one sign. Panels are half
    a standard deviation wide, and finer where the log ratio turns from flat to linear, within
    noise² of ±(noise²·log((1−q)/q) + 1/2): its nearest poles are π·noise² away.
    """
    import numpy as np
    from scipy import special

    low, high = {
        "removal": (-13 * noise, order + 13 * noise),
        "antipodal": (-1 - 13 * noise, 2 * order + 13 * noise),
        "fixed": (0.5, 0.5 + order + 13 * noise),
    }[kind]
    edges = [np.arange(low, high, noise / 2), np.array([high])]
    turn = noise**2 * math.log((1 - rate) / rate) + 0.5
    for centre in (turn, -turn) if kind == "antipodal" else (turn,):
        fine = noise**2 * min(1.0, 16 / order)
        if fine < noise / 2:
            edges.append(np.arange(centre - 20 * noise**2, centre + 20 * noise**2, fine))
    cuts = np.unique(np.clip(np.concatenate(edges), low, high))
    nodes, weights = special.roots_legendre(_NODES)
    half = np.diff(cuts)[:, None] / 2
    x = ((cuts[:-1] + cuts[1:])[:, None] / 2 + half * nodes[None, :]).ravel()
    log_measure = np.log((half * weights[None, :]).ravel())
    log_measure += -((x / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
    ratio = _log_mixture(x, noise, rate)
    if kind == "antipodal":
        against = _log_mixture(-x, noise, rate)
        ratio = ratio - against
        log_measure = log_measure + against
    terms = _log_symmetric(ratio, order) if kind == "fixed" else _log_convex(ratio, order)
    return float(special.logsumexp(terms + log_measure))


def _log_mixture(x: "np.ndarray", noise: float, rate: float) -> "np.ndarray":
    """log((1−q)·N(0) + q·N(1)) − log N(0) at ``x``."""
    import numpy as np

    exponent = (2 * x - 1) / (2 * noise**2)
    small = np.log1p(rate * np.expm1(np.minimum(exponent, 30.0)))
    large = np.logaddexp(math.log1p(-rate), math.log(rate) + np.maximum(exponent, 30.0))
    return np.where(exponent < 30.0, small, large)


def _log_convex(u: "np.ndarray", order: float) -> "np.ndarray":
    """log(e^(α·u) − 1 − α·(e^u − 1)).

    For small u it is about α·(α−1)·u²/2, and the difference would be pure rounding error. So the series
    is summed: Σ_{k≥2} (α^k − α)·u^k/k! = α·(α−1)·u²/2 · Σ_k 2·(α·u)^(k−2)/k! · Σ_{i≤k−2} α^−i.
    """
    import numpy as np

    with np.errstate(divide="ignore"):
        v = np.minimum(u, 30.0 / order)
        direct = np.log(np.maximum(np.expm1(order * v) - order * np.expm1(v), 0.0))
        t = np.clip(order * u, -_SERIES, _SERIES)
        series, inverse_powers = np.zeros_like(t), 0.0
        for k in range(2, _SERIES_TERMS + 2):
            inverse_powers += order ** (2 - k)
            series += 2.0 * inverse_powers / math.factorial(k) * t ** (k - 2)
        leading = math.log(order * (order - 1) / 2) + 2 * np.log(np.abs(u))
    small = np.where(np.abs(order * u) < _SERIES, leading + np.log(series), direct)
    w = np.maximum(u, 30.0 / order)
    rest = order * np.exp(w - order * w) - (order - 1) * np.exp(-order * w)
    return np.where(u < 30.0 / order, small, order * w + np.log1p(-rest))


def _log_symmetric(u: "np.ndarray", order: float) -> "np.ndarray":
    """log(e^(α·u) + e^((1−α)·u) − e^u − 1) for u ≥ 0: both ends of a symmetric profile.

    Each ratio r = P/Q ≥ 1 with mass Q has a mirror ratio 1/r with mass r·Q; all other mass has ratio 1.
    """
    import numpy as np

    with np.errstate(divide="ignore"):
        v = np.clip(u, 0.0, 30.0 / order)
        # As a product, which avoids cancellation: (e^(α·u) − e^u)·(1 − e^(−α·u)).
        small = v + np.log(np.expm1((order - 1) * v)) + np.log(-np.expm1(-order * v))
    w = np.maximum(u, 30.0 / order)
    rest = np.exp(w - order * w)
    return np.where(u < 30.0 / order, small, order * w + np.log1p(-rest))
