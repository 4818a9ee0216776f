"""Accounting for the view "aggregate", where an observer sees only sums over clients. No JAX.

    message  x_m + noise of multiplier s          seen by the server, which is trusted
    sum      Σ x_m + noise of s·√k, k ≥ k_min     published; nothing else of the messages is

Ledgers charge messages, at noise multiplier s. An observer who sees only sums, and knows the noise of at
most t clients, faces a noise multiplier of s·√(k_min − t); where answers are topped up, of s·√(n − t).
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.delta_parts import Itemised
from fedvi.privacy.events import (
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    Relation,
    Repeated,
    Unprotected,
    WithoutReplacement,
)

__all__ = [
    "ENROLLED",
    "MASKED",
    "NO_SERVER",
    "SIGNED_ONCE",
    "TOPPED_UP",
    "SeenInSums",
    "Sums",
    "in_sum",
    "of_messages",
    "with_sums",
]

# If answers are masked, a claim prints this instead of the sentence about a trusted server.
NO_SERVER = (
    "no server is trusted: each answer is masked with keys that the server does not have, and it learns "
    "one sum of a round's answers; the price under the view `message` is for whoever has the keys of all "
    "other sites, breaks X25519 while the sites agree on keys, or breaks both it and ML-KEM-768 later"
)
ENROLLED = (
    "the keys under each site's name are that site's: sites compared the digest of the roster, or trust "
    "the authority that signed; and no site's state was set back to an older copy"
)
MASKED = (
    "X25519 with ML-KEM-768 and HKDF-SHA256 gives two sites a key that nobody else knows: nobody breaks "
    "X25519 while the sites agree on keys, and nobody breaks both later; nobody forges an ECDSA signature "
    "on P-256, or one of Ed25519 while the study runs, or finds two texts with one SHA-256"
)
SIGNED_ONCE = (
    "where a round may go on without some sites, all but {colluding} of them sign one set of sites a "
    "round, and show no share of a key but for that set: the price under the view `message` is for whoever "
    "works with more"
)

TOPPED_UP = (
    "each answer holds more noise than its own share: where some of the {clients} sites are missing, those "
    "that answered leave enough of it in the sum to make up for the noise of the others"
)


class Sums(NamedTuple):
    """The numbers that a study with the view "aggregate" fixes in advance; public.

    Args:
      least_reporting: k_min; a round with fewer answers is abandoned, and nothing of it is published.
      colluding: t, how many clients may share their noise and answers with the observer, or be the
        observer. Every participant knows its own, so t is at least 1 unless all observers are outsiders.
      topped_up: n, if answers have layers of noise that make up for missing clients (``top_up``), so that
        each sum has the noise of a sum over all n; 0 if noise is fixed for the fewest answers.
    """

    least_reporting: int
    colluding: int
    topped_up: int = 0

    @property
    def noises(self) -> int:
        """How many messages' noise a sum has at least: that of the fewest answers or, topped up, of n."""
        return self.topped_up or self.least_reporting

    @property
    def honest(self) -> int:
        """The least number of noises in a sum that the observer cannot subtract; below 1, none is left."""
        left = self.least_reporting - self.colluding
        return self.noises - self.colluding if left > 0 else left


@functools.lru_cache(maxsize=4096)
def in_sum(event: Event, honest: int) -> Event:
    """Returns a message's event as seen by an observer of sums with ``honest`` such noise terms.

    Guarantee: let each message of a round be whole numbers on one grid plus rounded Gaussian noise of
    multiplier s, all noises independent; let the observer see a function of the sum of at least
    ``honest`` of them, of its own making and of what it saw before, and let no message depend on its
    client's earlier noise otherwise. Then the price of Gaussian noise s·√honest bounds what it learns of
    one client's records, up to the tables' distance of all noises in the sum and e⁻⁴⁰⁰⁰ a number: a sum
    of rounded Gaussians is a rounding of the sum of their Gaussians. In full:
    docs/proofs/aggregate_view.md.

    Raises:
      UnsupportedEvent: the noise is not rounded Gaussian; sums of other noise have another price.

    >>> in_sum(Repeated(Gaussian(2.0), 5), 4).inner.noise_multiplier
    4.0
    """
    match event:
        case Gaussian(noise):
            return dataclasses.replace(event, noise_multiplier=noise * math.sqrt(honest))
        case PoissonSampled(_, inner, _) | WithoutReplacement(_, _, inner) | Repeated(inner, _):
            return dataclasses.replace(event, inner=in_sum(inner, honest))
        case Composed(parts):
            return Composed(tuple(in_sum(part, honest) for part in parts))
        case Unprotected():
            return event
    raise UnsupportedEvent(
        f"{type(event).__name__} noise has no price in sums over clients",
        hint='use privacy.mechanism = "rounded_gaussian", whose sums do',
    )


@dataclass(frozen=True)
class SeenInSums:
    """An accountant that takes the events of messages and prices their sums; see `with_sums`.

    Guarantee: that of `in_sum`, for every event and by the accountant's bounds.

    Args:
      accountant: prices the sums.
      honest: the least number of independent noise terms in each sum.
    """

    accountant: Accountant
    honest: int

    @property
    def name(self) -> str:
        """The name of ``accountant``."""
        return self.accountant.name

    @property
    def relation(self) -> Relation:
        """The relation of ``accountant``."""
        return self.accountant.relation

    def supports(self, event: Event) -> bool:
        """Whether ``event``, seen only in sums, has a price that the accountant knows."""
        try:
            return self.accountant.supports(in_sum(event, self.honest))
        except UnsupportedEvent:
            return False

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns an ε at which messages of this ``event``, seen only in sums, are (ε, δ)-DP.

        Raises:
          UnsupportedEvent: as `in_sum`, or the accountant does not know the event.
          PrivacyError: no ε is finite.
        """
        return self.accountant.epsilon(in_sum(event, self.honest), delta)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns a δ at which messages of this ``event``, seen only in sums, are (ε, δ)-DP.

        Raises:
          UnsupportedEvent: as `epsilon`.
        """
        return self.accountant.delta(in_sum(event, self.honest), epsilon)


def with_sums(accountant: Accountant, sums: Sums | None) -> Accountant:
    """Returns the accountant for an observer of sums; ``accountant`` itself if ``sums`` is None.

    Args:
      accountant: prices messages, or these same sums already.
      sums: what the study fixes.

    Raises:
      ConfigError: no honest client is left, or the accountant prices other sums.
    """
    if sums is None:
        return accountant
    if sums.colluding < 0 or sums.honest < 1:
        raise ConfigError(
            f"colluding is {sums.colluding}, expected at least 0 and below least_reporting, "
            f"{sums.least_reporting}",
            hint="the client whose privacy is priced is among those that answer, and does not collude",
        )
    if isinstance(accountant, Itemised):
        return dataclasses.replace(accountant, accountant=with_sums(accountant.accountant, sums))
    if isinstance(accountant, SeenInSums):
        if accountant.honest != sums.honest:
            raise ConfigError(
                f"an accountant of sums of {accountant.honest} noises was given, expected one of "
                f"{sums.honest}"
            )
        return accountant
    return SeenInSums(accountant, sums.honest)


def of_messages(accountant: Accountant) -> Accountant:
    """Returns the accountant for an observer of single messages; undoes `with_sums`."""
    if isinstance(accountant, Itemised):
        return dataclasses.replace(accountant, accountant=of_messages(accountant.accountant))
    return accountant.accountant if isinstance(accountant, SeenInSums) else accountant
