"""Poisson batches at a static capacity: come here to change how records are picked at random."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import scipy.stats

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.release import Batch
from fedvi.typing import Key

__all__ = ["Poisson", "poisson"]

_WORD = 2**32


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Each record is in the batch independently with probability ``threshold / 2³²``.

    A batch has ``capacity`` static rows. Records beyond it are left out, which happens with
    probability at most ``overflow`` a draw for shards of up to ``max_records`` records; the event
    says so and the accountant adds it to δ.
    """

    threshold: int
    max_records: int
    capacity: int
    overflow: float

    @property
    def rate(self) -> float:
        """The probability that a record is in a batch."""
        return self.threshold / _WORD

    def draw(self, key: Key, valid: Any) -> Batch:
        """Draws one batch.

        A record is chosen iff its own 32 uniform bits are below the threshold, so inclusion is an
        exact Bernoulli draw, given uniform bits. Work is O(len(valid)).

        Args:
          key: used for this draw only.
          valid: bool [rows], rows ≥ 1; rows that hold no record are never chosen.
        """
        rows = valid.shape[0]
        words = jax.random.bits(key, (rows,), jnp.uint32)
        chosen = jnp.asarray(valid, bool) & (words < jnp.uint32(self.threshold))
        (indices,) = jnp.nonzero(chosen, size=min(self.capacity, rows), fill_value=rows)
        return Batch(jnp.minimum(indices, rows - 1), indices < rows, self)

    def event(self, inner: events.Event) -> events.Event:
        """Returns the Poisson-sampled event with the overflow of this capacity."""
        return events.PoissonSampled(self.rate, inner, self.overflow)


def poisson(rate: float, max_records: int, overflow: float = 1e-14) -> Poisson:
    """Returns a Poisson sampler for shards of up to ``max_records`` records.

    Args:
      rate: the wanted inclusion probability, in (0, 1); rounded down to a multiple of 2⁻³², and at
        least 2⁻³².
      max_records: the declared largest number of records at any client; the claim holds up to it.
      overflow: wanted bound on P[Binomial(max_records, rate) > capacity] a draw; the capacity is
        the smallest that meets it, and the event carries the probability that is really attained.

    Raises:
      PrivacyError: if the rate or the overflow is outside (0, 1), or ``max_records`` is not positive.
    """
    if not 0.0 < rate < 1.0:
        raise errors.PrivacyError(
            f"sampling rate is {rate}, expected a number strictly between 0 and 1",
            'to take every record in every step write `sampler = "full"`',
        )
    if max_records < 1:
        raise errors.PrivacyError(
            f"max_records is {max_records}, expected at least 1",
            "declare the largest number of records at any client",
        )
    if not 0.0 < overflow < 1.0:
        raise errors.PrivacyError(
            f"overflow is {overflow}, expected a number strictly between 0 and 1",
            "leave it out: 1e-14 adds next to nothing to delta",
        )
    threshold = max(1, math.floor(rate * _WORD))
    actual = threshold / _WORD
    law = scipy.stats.binom(max_records, actual)
    capacity = max(1, min(int(law.isf(overflow)), max_records))
    while capacity < max_records and law.sf(capacity) > overflow:
        capacity += 1
    # A relative margin of 1e-6 covers the rounding of the tail sum.
    tail = float(law.sf(capacity)) * (1.0 + 1e-6) if capacity < max_records else 0.0
    return Poisson(threshold, max_records, capacity, tail)
