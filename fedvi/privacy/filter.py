"""Privacy filter: enforces a lifetime cap on releases that are chosen adaptively. No JAX.

`accountants.pld` prices a plan that is fixed in advance. A site that serves study after study has no
plan, because later studies depend on earlier results. This filter decides what may still be released.
"""

import math
from dataclasses import dataclass

from fedvi.errors import ConfigError
from fedvi.privacy.accountants.rdp import ORDERS, epsilon_at_order, overflow_of, rdp
from fedvi.privacy.events import Event, Gaussian, Relation, compose

__all__ = ["RdpFilter", "fits", "rdp_filter"]


@dataclass(frozen=True)
class RdpFilter:
    """Admits releases while their Rényi divergences at one order fit a cap; made by `rdp_filter`.

    Guarantee: if every release is admitted before it is made, what was released by any stopping
    time is (epsilon, delta)-DP, although the events, their number and the stopping time were chosen
    after seeing earlier releases. Each event must bound what its release does whatever was released
    before.

    The order α is fixed before the first release. Then the only thing summed is one number, with
    E[exp((α−1)·(loss − sum))] ≤ 1 at every stopping time (a supermartingale), and the conversion to
    (ε, δ) is used once: no union over orders is needed. Taking the best order afterwards, as `rdp`
    does for a plan, would need one. Privacy loss distributions are not a filter: when a run was stopped
    at a time when its loss looked small, and the ε of that time was stated, the true δ was 4.3 to 5
    times the claimed one.

    Overflow of Poisson batches has no Rényi price and is charged to δ: a share ``overflow_share`` of δ
    is reserved for (1 + e^ε)·Σ count · overflow, and releases that would exceed it are refused.

    Args:
      epsilon: the cap, finite and above 0.
      delta: the cap's δ, above 0 and below 1.
      relation: the neighbouring relation.
      order: α, above 1.
      overflow_share: the share of ``delta`` that is reserved for overflow, in [0, 1).

    Source: Feldman and Zrnic (2021), arXiv:2008.11193, Theorem 3.1 and Section 4 (Rényi filter);
    Rogers, Roth, Ullman and Vadhan (2016), arXiv:1605.08294 (filters and odometers). Proof:
    docs/proofs/composition.md.
    """

    epsilon: float
    delta: float
    relation: Relation
    order: float
    overflow_share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ConfigError(f"epsilon is {self.epsilon}, expected a finite number above 0")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta is {self.delta}, expected above 0 and below 1")
        if not 1 < self.order < math.inf:
            raise ConfigError(f"order is {self.order}, expected a finite number above 1")
        if not 0 <= self.overflow_share < 1:
            raise ConfigError(
                f"overflow_share is {self.overflow_share}, expected at least 0 and below 1"
            )
        rdp(self.relation)  # rejects an unknown relation
        if self.capacity <= 0:
            raise ConfigError(
                f"order {self.order:g} leaves nothing to spend at epsilon {self.epsilon:g} and "
                f"delta {self.delta:g}: the conversion alone costs more",
                hint="leave `order` to `rdp_filter`, or raise it",
            )

    @property
    def capacity(self) -> float:
        """The largest Rényi divergence at ``order`` that gives (epsilon, delta − reserved share)."""
        return _capacity(self.order, self.epsilon, self.delta * (1 - self.overflow_share))

    def admits(self, spent: Event, following: Event) -> bool:
        """Whether ``following`` may be released after all of ``spent``, which was admitted.

        Raises:
          UnsupportedEvent: an event has no Rényi price.
        """
        everything = compose(spent, following)
        return self.left(everything) >= 0 and self._overflow_fits(everything)

    def left(self, spent: Event) -> float:
        """Returns how much Rényi divergence at ``order`` is left; below 0 if ``spent`` exceeds it.

        Raises:
          UnsupportedEvent: ``spent`` has no Rényi price.
        """
        return self.capacity - rdp(self.relation).divergence(spent, self.order)

    def epsilon_of(self, spent: Event) -> float:
        """Returns the ε that ``spent`` has cost at ``delta``, at most ``epsilon`` if admitted.

        Guarantee: with ε(o) this number for the events of the transcript o up to a stopping time,
        P[S] ≤ E′[1_S · e^ε(o)] + delta for neighbours and every set S of transcripts: an
        ex-post statement. Before the run, only ``epsilon`` can be promised.

        Raises:
          UnsupportedEvent: ``spent`` has no Rényi price.
        """
        if not self._overflow_fits(spent):
            return math.inf
        divergence = rdp(self.relation).divergence(spent, self.order)
        return epsilon_at_order(self.order, divergence, self.delta * (1 - self.overflow_share))

    def _overflow_fits(self, spent: Event) -> bool:
        return fits(overflow_of(spent), self.epsilon, self.delta * self.overflow_share)


def fits(distance: float, epsilon: float, room: float) -> bool:
    """Whether a distance from the priced law, (1 + e^ε) times, fits into a part ``room`` of δ."""
    if distance == 0:
        return room >= 0
    # In logarithms, since e^ε of a large cap overflows a float.
    both_ways = math.log(distance) + epsilon + math.log1p(math.exp(-epsilon))
    return room > 0 and both_ways <= math.log(room)


def rdp_filter(
    epsilon: float,
    delta: float,
    relation: Relation,
    order: float | None = None,
    typical: Event | None = None,
    overflow_share: float = 0.01,
) -> RdpFilter:
    """Returns a filter for the cap (epsilon, delta), at an order chosen before anything is released.

    Args:
      epsilon, delta: the cap.
      relation: the neighbouring relation.
      order: α; by default the one of `accountants.rdp.ORDERS` at which ``typical`` fits most often.
      typical: a release like those expected; must not depend on data. By default an unsampled Gaussian;
        its noise does not matter, since every noise leads to the same order.
      overflow_share: see `RdpFilter`.

    >>> from fedvi.privacy.events import NOTHING, repeat
    >>> cap = rdp_filter(3.0, 1e-5, "substitute")
    >>> cap.order
    7.5
    >>> cap.admits(NOTHING, repeat(Gaussian(20.0), 25))
    True
    >>> cap.admits(repeat(Gaussian(20.0), 25), repeat(Gaussian(20.0), 25))
    False
    """
    if order is None:
        # Validates the arguments before the search.
        RdpFilter(epsilon, delta, relation, ORDERS[-1], overflow_share)
        usable = delta * (1 - overflow_share)
        accountant = rdp(relation)

        def room(candidate: float) -> float:
            cost = accountant.divergence(typical or Gaussian(1.0), candidate)
            return _capacity(candidate, epsilon, usable) / cost if cost > 0 else -math.inf

        order = max(ORDERS, key=room)
    return RdpFilter(epsilon, delta, relation, order, overflow_share)


def _capacity(order: float, epsilon: float, delta: float) -> float:
    """The largest D with `epsilon_at_order` (order, D, delta) ≤ epsilon; rounded down."""
    exact = epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)
    # Twice the rounding margin of the conversion.
    step = 64 * 2.0**-53 * (2 + abs(exact) + epsilon - math.log(delta) / (order - 1))
    return exact - step
