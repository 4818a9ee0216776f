"""Splits δ into its parts: mechanism, overflow of batches, and sampling tables.

    δ = mechanism + overflow of batches + tables that noise is drawn from

An accountant prices the first two. The tables are added here, so that a budget is checked against
all of δ and a statement can list its parts. No JAX.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from fedvi.errors import ConfigError, PrivacyError
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    Repeated,
    Unprotected,
    WithoutReplacement,
    counts,
)

__all__ = [
    "Delta",
    "Itemised",
    "delta_items",
    "noised_releases",
    "smallest_noise",
    "table_distance",
    "with_tables",
]

_LARGEST_EPSILON = 700.0  # e^ε of more is no float
_GUESS = 1e-6  # the part of δ that is kept for tables at first


class Delta(NamedTuple):
    """The parts of one δ; their sum is what is stated.

    Args:
      mechanism: δ if noise were drawn exactly and no batch were cut.
      overflow: (1 + e^ε) · the probability that any batch exceeds its capacity.
      tables: (1 + e^ε) · the total variation distance between all draws and their exact law.
    """

    mechanism: float
    overflow: float
    tables: float


@dataclass(frozen=True)
class Itemised:
    """An accountant whose δ includes the error of the tables that noise is drawn from; see `with_tables`.

    Guarantee: upper bounds, if those of ``accountant`` are and ``distance`` bounds, for each noised
    release, the total variation between the noise that is drawn and the law that is priced. Proof:
    let τ be ``distance`` times the number of noised releases. Run the releases on exact and on
    drawn noise, coupled release by release: on each data set the laws of all that leaves differ by
    at most τ. So P′[S] ≤ P[S] + τ ≤ e^ε·P̃[S] + δ + τ ≤ e^ε·P̃′[S] + δ + (1 + e^ε)·τ.  ∎

    Args:
      accountant: prices the exact mechanisms.
      distance: of one noised release, over all of its coordinates; in [0, 1).
    """

    accountant: Accountant
    distance: float

    @property
    def name(self) -> str:
        """The name of ``accountant``."""
        return self.accountant.name

    @property
    def relation(self) -> Relation:
        """The relation of ``accountant``."""
        return self.accountant.relation

    def supports(self, event: Event) -> bool:
        """Whether the accountant supports ``event``."""
        return self.accountant.supports(event)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns an ε at which ``event`` is (ε, ``delta``)-DP, tables included.

        Raises:
          UnsupportedEvent: the accountant does not know ``event``.
          PrivacyError: ``delta`` is too small for overflow, or for the tables. They take (1 + e^ε) times
            their distance, so no ε above log(``delta`` / distance), about 25, can be stated.
        """
        distance = noised_releases(event) * self.distance
        if distance == 0:
            return self.accountant.epsilon(event, delta)
        # Pricing is slow, so we first try a share of δ that is larger than any real table needs.
        kept = max(_GUESS * delta, 4 * distance)
        while kept < delta:
            epsilon = self.accountant.epsilon(event, delta - kept)
            needed = _both_ways(epsilon, distance)
            if math.isinf(epsilon) or needed <= kept:
                return epsilon
            kept = 2 * needed
        largest = math.log(delta / distance - 1) if delta > 2 * distance else 0.0
        raise PrivacyError(
            f"no finite epsilon holds at delta {delta:g} under {self.relation}: the tables that noise is "
            f"drawn from are {distance:.3g} away from its exact law, and 1 + e^epsilon times that must "
            "stay below delta"
            + (f", as it does up to an epsilon of about {largest:.3g}" if largest else ""),
            hint="this is too little noise for any claim: promise a smaller epsilon or a larger delta, or "
            "draw fewer numbers (steps times parameters)"
            if largest
            else "promise a larger delta: that of any real study is far above this distance",
        )

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns a δ at which ``event`` is (``epsilon``, δ)-DP, tables included.

        Raises:
          UnsupportedEvent: the accountant does not know ``event``.
        """
        distance = noised_releases(event) * self.distance
        tables = _both_ways(epsilon, distance) if distance else 0.0
        return min(1.0, self.accountant.delta(event, epsilon) + tables)


def with_tables(accountant: Accountant, distance: float) -> Accountant:
    """Returns the accountant with the error of the noise tables added to δ, unless it is there already.

    Args:
      accountant: prices the exact mechanisms.
      distance: total variation between one noised release and its exact law, over all coordinates: the
        mechanism's distance per draw times the number of draws. 0 changes nothing.

    Raises:
      ConfigError: ``distance`` is not in [0, 1).
    """
    if not 0 <= distance < 1:
        raise ConfigError(f"distance is {distance}, expected at least 0 and below 1")
    if isinstance(accountant, Itemised):
        return Itemised(accountant.accountant, max(distance, accountant.distance))
    return Itemised(accountant, distance) if distance > 0 else accountant


def table_distance(accountant: Accountant) -> float:
    """Returns the ``distance`` that `with_tables` gave the accountant; 0 if none."""
    return accountant.distance if isinstance(accountant, Itemised) else 0.0


def delta_items(event: Event, epsilon: float, delta: float, distance: float) -> Delta:
    """Splits the ``delta`` at which ``epsilon`` is stated into parts that add up to it.

    Args:
      event: everything that was priced.
      epsilon: if infinite, all of δ counts as the mechanism's.
      delta: the whole δ.
      distance: see `with_tables`.

    >>> delta_items(Gaussian(30.0), 1.0, 1e-5, 0.0).mechanism
    1e-05
    """
    if math.isinf(epsilon):
        return Delta(delta, 0.0, 0.0)
    overflow = _both_ways(epsilon, _overflow(event))
    tables = _both_ways(epsilon, noised_releases(event) * distance)
    return Delta(max(0.0, delta - overflow - tables), overflow, tables)


@functools.lru_cache(maxsize=4096)
def noised_releases(event: Event) -> int:
    """Counts the noised sums of an event.

    >>> noised_releases(Repeated(PoissonSampled(0.1, Gaussian(2.0)), 5))
    5
    """
    total = 0
    for atom, count in counts(event).items():
        inside = 1
        if isinstance(atom, PoissonSampled | WithoutReplacement):
            inside = noised_releases(atom.inner)
        elif isinstance(atom, Unprotected):
            inside = 0
        total += count * inside
    return total


@functools.lru_cache(maxsize=4096)
def smallest_noise(event: Event) -> float:
    """Returns the smallest noise multiplier of any sum in an event; 0 if something has no noise.

    >>> smallest_noise(PoissonSampled(0.1, Gaussian(2.0)))
    2.0
    """
    found = math.inf
    for atom in counts(event):
        match atom:
            case Gaussian(noise) | DiscreteGaussian(noise):
                found = min(found, noise)
            case PoissonSampled(_, inner, _) | WithoutReplacement(_, _, inner) | Repeated(inner, _):
                found = min(found, smallest_noise(inner))
            case _:
                found = 0.0
    return found


def _overflow(event: Event) -> float:
    parts = []
    for atom, count in counts(event).items():
        if isinstance(atom, PoissonSampled):
            parts.append(count * (atom.overflow + _overflow(atom.inner)))
        elif isinstance(atom, WithoutReplacement):
            parts.append(count * _overflow(atom.inner))
    return math.fsum(parts)


def _both_ways(epsilon: float, distance: float) -> float:
    """(1 + e^ε)·distance: what δ gains if both laws are this far from the priced ones."""
    if distance == 0:
        return 0.0
    return (1 + math.exp(epsilon)) * distance if epsilon <= _LARGEST_EPSILON else math.inf
