"""Prices by privacy loss distributions; fedvi states these numbers.

Unsampled releases have a `closed_form`; `losses` discretises the losses of sampled releases.
"""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from fedvi.errors import ConfigError, PrivacyError
from fedvi.privacy.accountants import closed_form, losses, overflow
from fedvi.privacy.accountants.advanced import Advanced
from fedvi.privacy.accountants.linear import Linear
from fedvi.privacy.accountants.rdp import Rdp
from fedvi.privacy.events import (
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    WithoutReplacement,
    check_relation,
    counts,
    priced,
)

__all__ = ["Pld", "pld"]


@dataclass(frozen=True)
class Pld:
    """Prices Gaussian releases, full, Poisson-sampled or of a fixed size; made by `pld`.

    Guarantee: ``epsilon`` and ``delta`` are upper bounds, for adaptively composed releases whose
    number and parameters were fixed in advance. They are no filter: stopping at a time that depends
    on data and stating the epsilon of that time is not covered; state the largest number.

    Unsampled releases (or rate 1) are Gaussian with μ² = Σ (shift/σ)² and have a
    closed form. With N_q(a) = (1−q)·N(0, σ²) + q·N(a, σ²), a sampled Gaussian is dominated

    - on Poisson batches under ``add_remove``: by N_q(1) against N(0, σ²) when a record is removed, and
      by the swapped pair when it is added; both are composed separately, and the worse one is stated;
    - on Poisson batches under ``substitute``: by N_q(1) against N_q(−1);
    - on fixed-size batches under ``substitute``: by the pair whose profile is that of N_q(2)
      against N(0, σ²) at ε ≥ 0 and of the swapped pair at ε < 0.

    Batches that overflow their capacity add (1 + e^ε)·β to δ, β = Σ count · overflow.

    There are two limits. No convolution has more than four million points; sampled releases that need
    more are priced as if nothing were sampled. And every δ includes the possible rounding error: at tiny
    rates and over millions of steps it can exceed the requested δ. If the loss from either exceeds a
    tenth of δ, the answer is the smallest of this bound and those of `rdp`, `advanced` and `linear` for the
    same event, which are upper bounds as well; and, of releases of one kind, of `Tilted` losses, whose
    rounding does not reach so far out. Of several kinds it may then be many times the true ε.

    Proofs: docs/proofs/poisson_substitute.md, fixed_size.md, overflow.md and composition.md; the last
    says which part of the floating-point arithmetic is proved.

    Source: Doroshenko et al. (2022), arXiv:2207.04380, Algorithm 1 (discretisation); Zhu, Dong and
    Wang (2022), arXiv:2106.08567 (dominating pairs, their composition, the add_remove pairs);
    Balle and Wang (2018), arXiv:1805.06530, Theorem 8 (Gaussian profile).
    """

    relation: Relation
    interval: float = 1e-4
    name: ClassVar[str] = "pld"

    def supports(self, event: Event) -> bool:
        """Whether every atom is Gaussian, sampled in a way that has a proof, or `Unprotected`.

        Poisson batches must be of a standard sum, which one unit moves by at most one clip norm when it
        is added or removed and by two when it is substituted, or by s and 2·s.
        Fixed-size batches under ``substitute`` only.
        """
        return all(losses.why_not(atom, self.relation) is None for atom in counts(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smallest certified ε at ``delta``; see `Accountant.epsilon`."""
        overflow.check_delta(delta)
        return _epsilon(self, event, delta)

    def bounds(self, event: Event, delta: float) -> tuple[float, float]:
        """Returns (low, ``epsilon(event, delta)``), which enclose the ε of the worst-case data.

        For ε below ``low`` some data and some clients' values violate (ε, ``delta``)-DP, if the releases
        are drawn as the event says and no batch is cut. It uses the same pairs, which such data attain,
        with losses rounded down by at most one grid step a release. ``low`` is 0 if it is not computed.

        Raises:
          UnsupportedEvent, PrivacyError: see ``epsilon``.
        """
        high = self.epsilon(event, delta)
        releases = _reduce(event, self.relation)
        if not releases.sampled or math.isinf(releases.mu):
            return high, high
        interval = losses.grid(releases.sampled, releases.mu, self.relation, self.interval)
        if interval is None:
            return 0.0, high
        down = losses.composed_loss(releases.sampled, releases.mu, self.relation, interval, False)
        return (0.0 if down is None else min(high, down.attained(delta))), high

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest certified δ at ``epsilon``; see `Accountant.delta`."""
        overflow.check_epsilon(epsilon)
        return _delta(self, event, epsilon)

    def _price(self, event: Event) -> tuple[overflow.Price, float]:
        """The price, and the part of δ lost to rounding; infinite if sampling is not priced."""
        releases = _reduce(event, self.relation)
        if math.isinf(releases.mu):
            return _UNBOUNDED, 0.0
        mu = _mu_without_sampling(releases, self.relation)
        delta_at = functools.partial(closed_form.gaussian_delta, mu)
        epsilon_at = functools.partial(closed_form.gaussian_epsilon, mu)
        interval = losses.grid(releases.sampled, releases.mu, self.relation, self.interval)
        loss = None
        if interval is not None:
            loss = losses.composed_loss(releases.sampled, releases.mu, self.relation, interval)
        if loss is None:
            closed = overflow.Price(delta_at, epsilon_at, releases.overflow)
            return closed, math.inf if releases.sampled else 0.0
        # Both are upper bounds; at rates near 1 the discretised one is larger.
        price = overflow.Price(
            lambda epsilon: min(loss.delta(epsilon), delta_at(epsilon)),
            lambda delta: min(loss.epsilon(delta), epsilon_at(delta)),
            releases.overflow,
        )
        return price, loss.least_delta


def pld(relation: Relation, interval: float = 1e-4) -> Pld:
    """Returns the accountant by privacy loss distributions for one neighbouring relation.

    Args:
      relation: "add_remove" or "substitute".
      interval: spacing of the grid of privacy losses. The grid is refined by powers of two if the losses
        of one step are not much larger than it, and coarsened if they would need more than about a
        million points. Every grid gives an upper bound.

    >>> from fedvi.privacy.events import Repeated
    >>> accountant = pld("add_remove")
    >>> round(accountant.epsilon(Repeated(Gaussian(20.0), 100), delta=1e-5), 4)
    1.9931
    """
    check_relation(relation)
    if not 0 < interval <= 0.01:
        raise ConfigError(f"interval is {interval}, expected above 0 and at most 0.01")
    return Pld(relation, interval)


_CLEARLY = 10.0  # above this multiple of the possible rounding loss, δ hardly changes
_UNBOUNDED = overflow.Price(lambda epsilon: 1.0, lambda delta: math.inf, 0.0)


# Cached, since in a simulation all clients and the server ask for the same price at every visit.
@functools.lru_cache(maxsize=256)
def _epsilon(accountant: Pld, event: Event, delta: float) -> float:
    """Does what ``Pld.epsilon`` does, for a valid ``delta``."""
    price, least_delta = accountant._price(event)
    if not 0 < delta < _CLEARLY * least_delta:
        return overflow.epsilon_of(price, delta)
    least, refusal = math.inf, None
    bounds = [functools.partial(overflow.epsilon_of, price, delta)]
    if (far := _far_out(accountant, event, delta)) is not None:
        bounds.append(functools.partial(overflow.epsilon_of, far, delta))
    bounds += [
        functools.partial(other.epsilon, event, delta) for other in _others(accountant.relation)
    ]
    for bound in bounds:
        try:
            least = min(least, bound())
        except PrivacyError as error:  # it has no finite ε
            refusal = refusal or error
    if refusal is not None and math.isinf(least):
        raise refusal
    return least


@functools.lru_cache(maxsize=256)
def _delta(accountant: Pld, event: Event, epsilon: float) -> float:
    """Does what ``Pld.delta`` does, for a valid ``epsilon``."""
    price, least_delta = accountant._price(event)
    found = overflow.delta_of(price, epsilon)
    if not 0 < found < _CLEARLY * least_delta:
        return found
    found = min(found, *(other.delta(event, epsilon) for other in _others(accountant.relation)))
    far = _far_out(accountant, event, found) if found > 0 else None
    return found if far is None else min(found, overflow.delta_of(far, epsilon))


def _far_out(accountant: Pld, event: Event, delta: float) -> overflow.Price | None:
    """Returns the price of releases of one kind for δ near ``delta``, below the rounding of the others."""
    releases = _reduce(event, accountant.relation)
    if len(releases.sampled) != 1 or releases.mu > 0:
        return None
    interval = losses.grid(releases.sampled, 0.0, accountant.relation, accountant.interval)
    if interval is None:
        return None
    found = losses.tilted_loss(*releases.sampled[0], accountant.relation, interval, delta)
    if found is None:
        return None

    def delta_at(epsilon: float) -> float:
        return max(one.delta(epsilon) for one in found)

    def epsilon_at(share: float) -> float:
        if delta_at(0.0) <= share:
            return 0.0
        if max(one.infinite for one in found) >= share:
            return math.inf
        return overflow.smallest(delta_at, share, 0.0, 1.0, tolerance=1e-10)

    return overflow.Price(delta_at, epsilon_at, releases.overflow)


def _others(relation: Relation) -> tuple[Rdp, Advanced, Linear]:
    """Returns the accountants without convolutions, which may be lower where these lose much."""
    return Rdp(relation), Advanced(relation), Linear(relation)


class _Releases(NamedTuple):
    """What determines the price: μ of all unsampled releases, the sampled releases, and β."""

    mu: float
    sampled: losses.Sampled
    overflow: float


_LEAST_NOISE, _MOST_NOISE = 1e-100, 1e50  # of a sampled release, in shifts


def _reduce(event: Event, relation: Relation) -> _Releases:
    squares: list[float] = []
    overflows: list[float] = []
    sampled: dict[losses.Step, int] = {}

    def add(kind: Literal["fixed", "poisson"], noise: float, rate: float, count: int) -> None:
        if noise < _LEAST_NOISE:
            squares.append(math.inf)
            return
        # With less noise it costs no less; squares of more would leave the floats.
        step = losses.Step(kind, min(noise, _MOST_NOISE), rate)
        sampled[step] = sampled.get(step, 0) + count

    def unsampled(atom: Gaussian, count: int) -> None:
        ratio = closed_form.shift_over_noise(atom, relation)
        squares.append(count * (ratio * ratio))

    for atom, count in priced(event, relation, Pld.name, losses.why_not):
        match atom:
            case Gaussian():
                unsampled(atom, count)
            case PoissonSampled(rate, Gaussian() as inner, beyond):
                overflows.append(count * beyond)
                # Either unit of a substitution may move the sum this far from the shared rest.
                reach = inner.add_remove
                if relation == "substitute":
                    reach = max(reach, inner.substitute / 2)
                if rate == 1:
                    unsampled(inner, count)
                elif reach > 0:
                    add("poisson", inner.noise_multiplier / reach, rate, count)
            case WithoutReplacement(batch, size, Gaussian() as inner):
                # The unit's place is taken by another one, or by nothing if its slot is empty.
                reach = max(inner.substitute, inner.add_remove)
                if batch == size:
                    unsampled(inner, count)
                elif reach > 0:
                    add("fixed", inner.noise_multiplier / reach, atom.rate, count)
            case _:
                squares.append(math.inf)
    # Sorted, and summed exactly, so that the price does not depend on the order of composition.
    return _Releases(
        math.sqrt(math.fsum(squares)) if math.inf not in squares else math.inf,
        tuple(sorted(sampled.items())),
        math.fsum(overflows),
    )


def _mu_without_sampling(releases: _Releases, relation: Relation) -> float:
    """Prices every sampled release as if all units took part, which is an upper bound.

    The hockey-stick divergence is jointly convex, so that of (1−q)·P + q·Q against (1−q)·P + q·R
    is at most q times that of Q against R.
    """
    if not releases.sampled:
        return releases.mu  # unchanged, so that the closed form agrees to the last digit
    squares = [releases.mu**2]
    for step, count in releases.sampled:
        reach = 2 if relation == "substitute" and step.kind == "poisson" else 1
        squares.append(count * (reach / step.noise) ** 2)
    return math.sqrt(math.fsum(squares))
