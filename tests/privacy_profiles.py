"""Privacy profiles of pairs of laws, by quadrature and by simulation.

Nothing but SciPy's normal distribution function is shared with fedvi's accountants and with
dp-accounting: no grid of losses, no Fourier transform. A profile is δ(ε) = E_P[(1 − e^(ε − L))₊],
where L is the privacy loss log(P/Q) of all releases together, drawn under P. For up to three
releases it is integrated over the outcomes; for many, L is simulated and δ is enclosed in a
confidence interval.

Outcomes are scalars, in units of how far one unit moves the sum of a batch: x ~ N(0, σ²) without
the unit, and N(1, σ²) or N(−1, σ²) with it.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import special

__all__ = [
    "FixedSize",
    "Interval",
    "Pair",
    "Step",
    "addition",
    "delta_by_quadrature",
    "delta_by_simulation",
    "delta_of_gaussians",
    "removal",
    "substitution",
]

Array: TypeAlias = np.ndarray


class Pair(NamedTuple):
    """P = (1−q)·N(0) + q·N(1) or N(0), against Q = (1−q)·N(0) + q·N(−1) or N(0).

    With a(x) = 1 − q + q·e^((x − ½)/σ²) and b(x) = a(−x), the densities are those of N(0) times a
    and b, and the loss log a − log b grows with x.

    Args:
      rate: q, in (0, 1].
      noise: σ.
      above: whether P holds the unit, at +1.
      below: whether Q holds a unit, at −1.
    """

    rate: float
    noise: float
    above: bool
    below: bool

    def log_a(self, x: Array) -> Array:
        """log a, or 0 where P does not hold the unit."""
        return _log_ratio(self.rate, self.noise, x) if self.above else np.zeros_like(x)

    def log_b(self, x: Array) -> Array:
        """log b, or 0 where Q does not hold a unit."""
        return _log_ratio(self.rate, self.noise, -x) if self.below else np.zeros_like(x)

    @property
    def bend(self) -> float:
        """The ε at which the profile of one release bends: the end of its losses, or 0."""
        if self.rate == 1 or (self.above and self.below):
            return 0.0
        return math.log1p(-self.rate) if self.above else -math.log1p(-self.rate)

    def outcome(self, loss: Array) -> Array:
        """The x of a loss; infinite beyond the least loss or the largest, where there is one."""
        q, variance = self.rate, self.noise**2
        with np.errstate(divide="ignore"):
            if not self.below:
                return 0.5 + variance * np.log(np.maximum(1 + np.expm1(loss) / q, 0.0))
            if not self.above:
                return -0.5 - variance * np.log(np.maximum(1 + np.expm1(-loss) / q, 0.0))
        # a = e^loss·b is a quadratic equation in e^(x/σ²); solved for |loss| and mirrored.
        size, c = np.abs(loss), math.exp(-0.5 / variance)
        half = (1 - q) * np.expm1(size) / 2
        root = (half + np.sqrt(half**2 + q**2 * c**2 * np.exp(size))) / (q * c)
        return np.sign(loss) * variance * np.log(root)

    def profile(self, epsilon: Array) -> Array:
        """δ(ε) of one release at any real ε: P{x > t} − e^ε·Q{x > t}, where t has the loss ε."""
        q, noise, t = self.rate, self.noise, self.outcome(epsilon)
        null = _tail(t, 0, noise)
        # Terms that cancel are taken together: those of N(0) are (1−q)·(1 − e^ε), or more.
        if not self.below:
            return q * _tail(t, 1, noise) - (np.expm1(epsilon) + q) * null
        if not self.above:
            return np.exp(epsilon) * ((np.expm1(-epsilon) + q) * null - q * _tail(t, -1, noise))
        moved = _tail(t, 1, noise) - np.exp(epsilon) * _tail(t, -1, noise)
        return q * moved - (1 - q) * np.expm1(epsilon) * null

    def nodes(self, bend: Array, points: int) -> tuple[Array, Array]:
        """Losses of one release and their weights under P, in rows, finer around each ``bend``."""
        low, high = -9.5 * self.noise, 9.5 * self.noise + (1 if self.above else 0)
        x, weight = _panels(low, high, self.noise, self.outcome(bend), points)
        density = np.exp(-((x / self.noise) ** 2) / 2 + self.log_a(x)) / _root(self.noise)
        return self.log_a(x) - self.log_b(x), weight * density


class FixedSize(NamedTuple):
    """The pair that docs/proofs/fixed_size.md composes, restated from the text of part (b).

    Let A = (1−q)·N(0) + q·N(2) against N(0), whose loss is positive for x > 1. The pair has the
    positive losses of A with the masses of A; their negatives, with the masses of N(0) at the same
    x; and a loss of 0 with the rest of the mass. It is the largest of both directions at every ε,
    and no two data sets attain it everywhere.

    Args:
      rate: q = batch ÷ slots, in (0, 1).
      noise: noise std ÷ clip norm; in units of the distance 2 between two records, half of it.
    """

    rate: float
    noise: float

    @property
    def upper(self) -> Pair:
        """A against N(0), the distance between two records as the unit; positive above ½."""
        return removal(self.rate, self.noise / 2)

    @property
    def atom(self) -> float:
        """The mass of the loss 0: 1 − A{x > ½} − N(0){x > ½}."""
        absent, moved = (_tail(0.5, mean, self.noise / 2) for mean in (0, 1))
        return float(1 - (2 - self.rate) * absent - self.rate * moved)

    def profile(self, epsilon: Array) -> Array:
        """δ(ε) of one release at any real ε."""
        found = self.upper.profile(np.abs(epsilon))
        return np.where(epsilon >= 0, found, -np.expm1(epsilon) + np.exp(epsilon) * found)

    @property
    def bend(self) -> float:
        """The ε at which the profile of one release has its kink."""
        return 0.0

    def nodes(self, bend: Array, points: int) -> tuple[Array, Array]:
        """Losses of one release and their weights under P, in rows, finer around each ``bend``."""
        pair, noise = self.upper, self.noise / 2
        x, weight = _panels(0.5, 1 + 9.5 * noise, noise, pair.outcome(np.abs(bend)), points)
        loss = pair.log_a(x)
        null = weight * np.exp(-((x / noise) ** 2) / 2) / _root(noise)
        rest = np.zeros((bend.size, 1))
        return (
            np.concatenate([loss, -loss, rest], axis=1),
            np.concatenate([null * np.exp(loss), null, rest + self.atom], axis=1),
        )


Step: TypeAlias = Pair | FixedSize


def removal(rate: float, noise: float) -> Pair:
    """Returns the pair of a Poisson batch from which one record is removed."""
    return Pair(rate, noise, above=True, below=False)


def addition(rate: float, noise: float) -> Pair:
    """Returns the pair of a Poisson batch to which one record is added, at −1."""
    return Pair(rate, noise, above=False, below=True)


def substitution(rate: float, noise: float) -> Pair:
    """Returns the pair of a Poisson batch in which a record at −1 takes the place of one at +1."""
    return Pair(rate, noise, above=True, below=True)


def delta_of_gaussians(mu: float, epsilon: float) -> float:
    """δ(ε) of N(μ, 1) against N(0, 1): Balle and Wang (2018), arXiv:1805.06530, Theorem 8."""
    upper = special.ndtr(mu / 2 - epsilon / mu)
    return float(upper - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))


# Few releases: quadrature.


def delta_by_quadrature(steps: Sequence[Step], epsilon: float) -> tuple[float, float]:
    """Returns δ(ε) of up to three releases, and an estimate of the error of integration.

    δ(ε) = E[δ₁(ε − L₂ − … − L_T)]: the last release in closed form, Gauss–Legendre panels for the
    outcomes of the others. What lies beyond 9.5 standard deviations, less than 1e-20 of P, is left
    out. The error is the difference to two points fewer in every panel.
    """
    fine, coarse = (
        float(_integrated(tuple(steps), np.array([epsilon]), points)[0]) for points in (10, 8)
    )
    return fine, abs(fine - coarse)


def _integrated(steps: tuple[Step, ...], epsilon: Array, points: int) -> Array:
    first, *others = steps
    if not others:
        return first.profile(epsilon)
    losses, weights = first.nodes(epsilon - sum(step.bend for step in others), points)
    rest = epsilon[:, None] - losses
    found = _integrated(tuple(others), rest.ravel(), points).reshape(rest.shape)
    return np.sum(weights * found, axis=1)


def _panels(low: float, high: float, noise: float, bend: Array, points: int) -> tuple[Array, Array]:
    """Gauss–Legendre abscissae and weights on [low, high], a row for each ``bend``.

    The panels are equal but for those around the bend, which shrink towards it by quarters: a
    profile is smooth in the logarithm of the distance to its bend, and almost a corner where q is
    small.
    """
    # A loss turns over a length of σ², its density over one of σ.
    width = min(1.5 * noise, 2 * noise**2)
    equal = np.linspace(low, high, 1 + math.ceil((high - low) / width))
    towards = width * 0.25 ** np.arange(8)
    around = np.clip(bend, low, high)[:, None] + np.concatenate([-towards, [0.0], towards])
    ends = np.concatenate([np.tile(equal, (bend.size, 1)), np.clip(around, low, high)], axis=1)
    ends.sort(axis=1)
    abscissae, weights = np.polynomial.legendre.leggauss(points)
    length = np.diff(ends, axis=1)[:, :, None]
    x = ends[:, :-1, None] + length * (abscissae + 1) / 2
    return x.reshape(bend.size, -1), (length * weights / 2).reshape(bend.size, -1)


# Many releases: simulation.


class Interval(NamedTuple):
    """A confidence interval for δ; each end is wrong with at most the probability asked for."""

    low: float
    high: float


def delta_by_simulation(
    seed: int,
    parts: Sequence[tuple[Step, int]],
    epsilons: Sequence[float],
    paths: int,
    false_alarm: float,
) -> list[Interval]:
    """Returns a confidence interval for δ at each ε, of the parts and how often each is made.

    Losses are drawn under P tilted by e^(θ·L) ÷ E_P[e^(θ·L)], in every release apart, so that
    losses near ε are common. With K = log E_P[e^(θ·L)] of all releases together, the variable
    e^(K − θ·L)·(1 − e^(ε − L))₊ then has the expectation δ(ε), and lies between 0 and
    e^(K − θ·ε)·θ^θ ÷ (1 + θ)^(1 + θ). So empirical Bernstein bounds hold, at every number of paths.
    θ is the whole number up to 64 with the least bound at the first ε; it is chosen before anything
    is simulated.

    Source: Maurer and Pontil (2009), arXiv:0907.3740, Theorem 4.
    """
    theta = 1
    while theta < 64 and (
        _log_bound(parts, theta + 1, epsilons[0]) < _log_bound(parts, theta, epsilons[0])
    ):
        theta += 1  # the bound is convex in θ
    rng = np.random.default_rng(seed)
    total = np.zeros(paths)
    for step, count in parts:
        tilted = _tilted(step, theta)
        rows = max(1, 1_000_000 // count)
        for start in range(0, paths, rows):
            size = min(rows, paths - start)
            total[start : start + size] += tilted.sums(rng, size, count)
    log_mean = sum(count * _log_mean(step, theta) for step, count in parts)
    intervals = []
    for epsilon in epsilons:
        over = np.maximum(total - epsilon, 0.0)
        values = np.exp(log_mean - theta * total) * -np.expm1(-over)
        largest = math.exp(_log_bound(parts, theta, epsilon))
        assert values.max() <= largest * (1 + 1e-9)
        log_term = math.log(2 / false_alarm)
        margin = math.sqrt(2 * float(values.var(ddof=1)) * log_term / paths)
        margin += 7 * largest * log_term / (3 * (paths - 1))
        mean = float(values.mean())
        intervals.append(Interval(mean - margin, mean + margin))
    return intervals


def _log_bound(parts: Sequence[tuple[Step, int]], theta: int, epsilon: float) -> float:
    log_mean = sum(count * _log_mean(step, theta) for step, count in parts)
    log_peak = theta * math.log(theta) - (1 + theta) * math.log(1 + theta)
    return log_mean - theta * epsilon + log_peak


@functools.cache
def _log_mean(step: Step, theta: int) -> float:
    """log E_P[e^(θ·L)] of one release, by quadrature."""
    if isinstance(step, FixedSize):
        upper, lower = _halves(step, theta)
        return float(special.logsumexp([upper, lower, math.log(step.atom)]))
    reach = 2 * theta + 1
    return _log_integral(step, theta + 1, theta, -12 * step.noise, 12 * step.noise + reach)


def _halves(step: FixedSize, theta: int) -> tuple[float, float]:
    """Logarithms of the tilted masses of the positive and of the negative losses."""
    pair, noise = step.upper, step.noise / 2
    most = 12 * noise + theta + 1
    return (
        _log_integral(pair, theta + 1, 0, 0.5, most),
        _log_integral(pair, -theta, 0, 0.5, 12 * noise + 1),
    )


def _log_integral(pair: Pair, i: int, j: int, low: float, high: float) -> float:
    """log ∫ N(0)·a^i·b^−j over [low, high]."""
    x, weight = _panels(low, high, pair.noise, np.array([low]), 16)
    exponent = -((x / pair.noise) ** 2) / 2 + i * pair.log_a(x) - j * pair.log_b(x)
    peak = float(exponent.max())
    return peak + math.log(float(np.sum(weight * np.exp(exponent - peak))) / _root(pair.noise))


class _Tilted(NamedTuple):
    """Draws x from N(0)·a^i·b^−j up to a constant, i and j whole numbers.

    Where j = 0 this is exactly a mixture of the normals N(k, σ²), k = 0 … i, with the weights
    C(i, k)·(1−q)^(i−k)·q^k·e^(k(k−1)/2σ²). Otherwise log b, which is convex, is replaced by its
    tangent at one point, which moves all means by one shift, and what is drawn is accepted with
    probability (tangent ÷ b)^j.
    """

    pair: Pair
    j: int
    means: Array
    weights: Array
    tangent: tuple[float, float]  # the value at 0 and the slope

    def sums(self, rng: np.random.Generator, rows: int, count: int) -> Array:
        """Returns sums of the losses of ``count`` releases each."""
        x = self.draw(rng, rows * count)
        return (self.pair.log_a(x) - self.pair.log_b(x)).reshape(rows, count).sum(axis=1)

    def draw(self, rng: np.random.Generator, size: int) -> Array:
        """Returns ``size`` independent outcomes."""
        found = self._proposed(rng, size)
        if self.j == 0:
            return found
        missing = np.flatnonzero(~self._accepted(rng, found))
        while missing.size:
            fresh = self._proposed(rng, missing.size)
            found[missing] = fresh
            missing = missing[~self._accepted(rng, fresh)]
        return found

    def _proposed(self, rng: np.random.Generator, size: int) -> Array:
        x = self.pair.noise * rng.standard_normal(size) + self.means[0]
        if self.means.size > 1:
            u, cumulative = rng.random(size), np.cumsum(self.weights)
            others = np.flatnonzero(u > cumulative[0])  # few: the largest weight stands first
            chosen = np.searchsorted(cumulative[:-1], u[others])
            x[others] += self.means[chosen] - self.means[0]
        return x

    def _accepted(self, rng: np.random.Generator, x: Array) -> Array:
        value, slope = self.tangent
        return rng.random(x.size) < np.exp(self.j * (value + slope * x - self.pair.log_b(x)))


def _tilted(step: Step, theta: int) -> "_Tilted | _TiltedFixedSize":
    if isinstance(step, FixedSize):
        return _TiltedFixedSize(step, theta)
    return _mixture(step, theta + 1 if step.above else 0, theta if step.below else 0)


def _mixture(pair: Pair, i: int, j: int) -> _Tilted:
    q, variance = pair.rate, pair.noise**2
    value = slope = 0.0
    if j:
        # The tangent at the mean of the law itself, found by quadrature on its range.
        x = np.linspace(-12 * pair.noise - j, 12 * pair.noise + i + j, 20_001)
        exponent = -((x / pair.noise) ** 2) / 2 + i * pair.log_a(x) - j * pair.log_b(x)
        density = np.exp(exponent - exponent.max())
        at = float(np.sum(x * density) / np.sum(density))
        log_b = float(pair.log_b(np.array([at]))[0])
        slope = -q * math.exp((-at - 0.5) / variance - log_b) / variance
        value = log_b - slope * at
    shift = -j * slope * variance
    k = np.arange(i + 1)
    means = k + shift
    log_choose = special.gammaln(i + 1) - special.gammaln(k + 1) - special.gammaln(i - k + 1)
    log_weights = log_choose + (means**2 - k) / (2 * variance)
    log_weights += special.xlogy(k, q) + special.xlog1py(i - k, -q)
    weights = np.exp(log_weights - special.logsumexp(log_weights))
    order = np.argsort(-weights)
    return _Tilted(pair, j, means[order], weights[order], (value, slope))


class _TiltedFixedSize:
    """Draws losses of `FixedSize`, tilted: which of its three parts, then an outcome above ½."""

    def __init__(self, step: FixedSize, theta: int) -> None:
        log_masses = np.array([*_halves(step, theta), math.log(step.atom)])
        self.shares = np.exp(log_masses - special.logsumexp(log_masses))
        # The negative losses belong to N(0)·a^−θ on x > ½, which is the mirror image of b^−θ.
        self.upper = _mixture(step.upper, theta + 1, 0)
        self.lower = _mixture(addition(step.rate, step.noise / 2), 0, theta)

    def sums(self, rng: np.random.Generator, rows: int, count: int) -> Array:
        """Returns sums of the losses of ``count`` releases each."""
        u = rng.random(rows * count)
        losses = np.zeros(rows * count)
        positive = np.flatnonzero(u < self.shares[0])
        negative = np.flatnonzero((u >= self.shares[0]) & (u < self.shares[:2].sum()))
        losses[positive] = self.upper.pair.log_a(_beyond(rng, self.upper, positive.size, 1))
        losses[negative] = -self.upper.pair.log_a(_beyond(rng, self.lower, negative.size, -1))
        return losses.reshape(rows, count).sum(axis=1)


def _beyond(rng: np.random.Generator, law: _Tilted, size: int, sign: int) -> Array:
    """Returns ``size`` values above ½ of sign·x, x from ``law``."""
    kept: list[Array] = []
    wanted = size
    while wanted > 0:
        found = sign * law.draw(rng, 2 * wanted + 100)
        kept.append(found[found > 0.5][:wanted])
        wanted -= kept[-1].size
    return np.concatenate(kept) if kept else np.zeros(0)


def _log_ratio(rate: float, noise: float, x: Array) -> Array:
    """log(1 − q + q·e^((x − ½)/σ²))."""
    if rate == 1:
        return (x - 0.5) / noise**2
    return np.log1p(rate * np.expm1((x - 0.5) / noise**2))


def _tail(x: Array | float, mean: float, noise: float) -> Array:
    return special.ndtr((mean - x) / noise)


def _root(noise: float) -> float:
    return noise * math.sqrt(2 * math.pi)
