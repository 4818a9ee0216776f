"""Draws Poisson batches at a static capacity."""

import bisect
import dataclasses
import functools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.base import Batch, filled
from fedvi.privacy.sampling._rows import check_slots
from fedvi.typing import Key

__all__ = ["Poisson", "poisson"]

# A gap table has at most 2¹⁶ columns, so that half a random word picks one.
_MOST_COLUMN_BITS = 16
# A gap is beyond a table of 40 / rate columns with probability e⁻⁴⁰.
_GAPS_TABLED = 40.0
_MOST_RECORDS = 2**28
_OVERFLOW = 1e-14
# Up to this ratio of gaps to capacity, empty rows are kept instead of compacting the chosen slots.
_FEW_PASSES = 1.05


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Each slot is in the batch independently with probability ``rate``.

    A batch has ``capacity`` static rows, and chosen slots beyond it are left out. A draw differs from
    exact Poisson sampling with probability at most ``overflow``, which is part of the event, and which
    the accountant adds to δ.

    Make one with ``poisson``, which proves ``overflow``.

    Attributes:
      rate: the probability that a slot is in a batch.
      max_records: N, the number of slots.
      capacity: the static number of rows of a batch.
      overflow: see above.
      gap_count: how many gaps are drawn.
      column_bits: log2 of the number of columns of the gap table.
    """

    rate: float
    max_records: int
    capacity: int
    overflow: float
    gap_count: int
    column_bits: int

    def draw(self, key: Key, valid: Any) -> Batch:
        """Draws one batch by the gaps between chosen slots; work is O(capacity).

        A gap g has the law (1 − rate)ᵍ · rate, cut at T = 2^column_bits − 1. A gap of T or more passes T
        slots, chooses none, and starts a new gap there. That does not change the law, because the
        geometric law is memoryless. Each gap takes ``column_bits`` random bits for a column of an alias
        table, and 64 bits to compare with the column's threshold.

        Args:
          key: used for this draw only.
          valid: bool [max_records]; slots that hold no record are never in a batch.

        Raises:
          PrivacyError: if ``valid`` has more entries than slots, or fewer.
        """
        check_slots(valid, self.max_records)
        rows = self.max_records
        count, columns = self.gap_count, 2**self.column_bits
        high, low, alias = _gap_table(self.rate, self.column_bits)
        words = jax.random.bits(key, (2 * count + (count + 1) // 2,), jnp.uint32)
        coin_high, coin_low, halves = words[:count], words[count : 2 * count], words[2 * count :]
        half = jnp.concatenate([halves >> np.uint32(16), halves & np.uint32(0xFFFF)])[:count]
        column = (half >> np.uint32(16 - self.column_bits)).astype(jnp.int32)
        edge_high, edge_low = jnp.asarray(high)[column], jnp.asarray(low)[column]
        stays = (coin_high < edge_high) | ((coin_high == edge_high) & (coin_low < edge_low))
        gap = jnp.where(stays, column, jnp.asarray(alias)[column])
        passed = gap == columns - 1
        # Below 2³¹ by the choice of ``column_bits``, so it cannot wrap to a valid slot.
        slot = jnp.cumsum(jnp.where(passed, gap, gap + 1)) - 1
        chosen = ~passed & (slot < rows)
        if count > self.capacity:
            place = jnp.where(chosen, jnp.cumsum(chosen) - 1, self.capacity)
            slot = jnp.full(self.capacity, rows, slot.dtype).at[place].set(slot, mode="drop")
            chosen = slot < rows
        slot = jnp.minimum(slot, rows - 1)
        return filled(Batch(slot, chosen & jnp.asarray(valid, bool)[slot], self))

    def event(self, inner: events.Event) -> events.Event:
        """Returns the Poisson-sampled event with the overflow of this capacity."""
        return events.PoissonSampled(self.rate, inner, self.overflow)

    def resized(self, max_records: int) -> "Poisson":
        """Returns the sampler for another number of slots, at the same rate."""
        return poisson(self.rate, max_records)


def poisson(rate: float, max_records: int, overflow: float | None = None) -> Poisson:
    """Returns a Poisson sampler for shards of up to ``max_records`` records.

    Guarantee: with uniform random bits the law of ``draw`` is within ``overflow`` in total variation
    of the law in which each of the ``max_records`` slots is chosen independently with probability
    ``rate``, exactly, and the valid ones are kept. Proof: the capacity is exceeded with probability
    P[Binomial(max_records, rate) > capacity]. If it is not, and at most p of the first ``gap_count``
    = capacity + p gaps pass T slots, these gaps find every chosen slot: were one missed, all of them
    would lie before it, and more than capacity would choose. p is ⌊max_records / T⌋, beyond which
    nothing can pass, or smaller with probability P[Binomial(gap_count, (1 − rate)ᵀ) > p] of more,
    under a thousandth of the wanted overflow. The probability of a gap of g or more is (1 − rate)ᵍ
    rounded to the nearest multiple of 2⁻⁽⁶⁴⁺ᵇ⁾, where T = 2ᵇ − 1; the law of a gap is therefore off
    by at most T · ½ · 2⁻⁽⁶⁴⁺ᵇ⁾ < 2⁻⁶⁵ in total variation, and that of all gaps, which are
    independent, by ``gap_count`` · 2⁻⁶⁵. ``overflow`` is the sum of the three terms. Fewer records
    than slots change nothing, since slots are chosen whether they hold a record or not.

    Args:
      rate: the inclusion probability, in (0, 1), taken as the exact value of the float.
      max_records: the declared largest number of records at any client, at most 2²⁸; the claim holds
        up to it.
      overflow: wanted bound on P[Binomial(max_records, rate) > capacity] for each draw. The capacity is
        the smallest that meets it, or a few rows more, and the event carries the bound that is
        attained. Default: 1e-14; for very large batches the gaps may add more.

    Raises:
      PrivacyError: if the rate or the overflow is outside (0, 1), the overflow is below
        ``gap_count`` · 2⁻⁶⁵, which no capacity can give, or ``max_records`` is not in 1, …, 2²⁸.

    >>> poisson(0.01, 100_000).capacity
    1251
    """
    if not 0.0 < rate < 1.0:
        raise errors.PrivacyError(
            f"sampling rate is {rate}, expected a number strictly between 0 and 1",
            'to take every record in every step write `sampler = "full"`',
        )
    if not 1 <= max_records <= _MOST_RECORDS:
        raise errors.PrivacyError(
            f"max_records is {max_records}, expected at least 1 and at most {_MOST_RECORDS}",
            "declare the largest number of records at any client",
        )
    tail_wanted = _OVERFLOW if overflow is None else overflow
    if not 0.0 < tail_wanted < 1.0:
        raise errors.PrivacyError(
            f"overflow is {overflow}, expected a number strictly between 0 and 1",
            "leave it out: 1e-14 adds next to nothing to delta",
        )

    def more_than(rows: int) -> float:
        return _more_than(rows, max_records, rate)

    # Found by search, since inverse distribution functions cannot resolve tails below 1e-16.
    capacity = 1 + bisect.bisect_left(
        range(1, max_records), True, key=lambda rows: more_than(rows) <= tail_wanted
    )
    # A relative margin of 1e-6 covers the rounding of the tail sum.
    tail = more_than(capacity) * (1.0 + 1e-6) if capacity < max_records else 0.0
    wanted = min(_GAPS_TABLED / rate, max_records + 1, 2**_MOST_COLUMN_BITS - 1)
    column_bits = max(1, int(np.ceil(np.log2(wanted + 1))))
    while True:
        pass_count, pass_tail = _passes(
            rate, max_records, capacity, 2**column_bits - 1, tail_wanted
        )
        gap_count = capacity + pass_count
        if gap_count << column_bits < 2**31:
            break
        column_bits -= 1
    rounding = gap_count * 2.0**-65
    if overflow is not None and overflow < rounding:
        raise errors.PrivacyError(
            f"overflow is {overflow}, expected at least {rounding * (1.0 + 1e-3):.3e}: the table "
            f"that the {gap_count} gaps of a batch are drawn from is exact to {rounding:.3e} only",
            "leave it out: 1e-14 adds next to nothing to delta",
        )
    if gap_count <= _FEW_PASSES * capacity:
        capacity = gap_count
    bound = tail + pass_tail + rounding
    return Poisson(rate, max_records, capacity, bound, gap_count, column_bits)


def _passes(
    rate: float, max_records: int, capacity: int, table_end: int, overflow: float
) -> tuple[int, float]:
    """Returns how many gaps to draw beyond ``capacity``, and the probability that more of them pass."""
    most = max_records // table_end
    # Increased by a relative 1e-6, far more than the rounding error of the exponential.
    probability = min(1.0, float(np.exp(table_end * np.log1p(-rate))) * (1.0 + 1e-6))

    def tail(count: int) -> float:
        # Decreasing in count: one more trial, but also one more success allowed.
        return _more_than(count, capacity + count, probability) * (1.0 + 1e-6)

    wanted = overflow / 1024.0
    count = bisect.bisect_left(range(most), True, key=lambda number: tail(number) <= wanted)
    return count, tail(count) if count < most else 0.0


def _more_than(count: int, trials: int, probability: float) -> float:
    """Returns the probability of more than ``count`` < ``trials`` successes of a binomial law.

    Uses the incomplete beta function directly, as `scipy.stats.binom.sf` does: importing `scipy.stats`
    takes a second.
    """
    from scipy import special

    return float(special.betainc(count + 1.0, float(trials - count), probability))


@functools.lru_cache(maxsize=16)
def _gap_table(rate: float, column_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the alias table of a gap's law, cut at T = 2^column_bits − 1.

    Column c is drawn uniformly; the gap is c if a 64-bit uniform integer is below the column's
    threshold, else its alias. In units of 2⁻⁽⁶⁴⁺ᵇ⁾ all weights are integers, so the table has
    exactly the law of the rounded survival function; see ``poisson`` for the rounding.

    Returns:
      (high words of the thresholds, low words, aliases): uint32, uint32 and int32, [2^column_bits].

    Source: Walker (1977), doi:10.1145/355744.355749; Vose (1991), doi:10.1109/32.92917.
    """
    columns, precision = 2**column_bits, 320
    stays = 1 - Fraction(rate)
    share, total_bits = 2**64, 64 + column_bits
    survival, edges = 2**precision, [2**total_bits]
    for _ in range(columns - 1):
        survival = survival * stays.numerator // stays.denominator
        edges.append(_nearest(survival, precision - total_bits))
    weights = [edge - after for edge, after in zip(edges, [*edges[1:], 0], strict=True)]
    thresholds, alias = [0] * columns, list(range(columns))
    poor = [column for column in range(columns) if weights[column] < share]
    rich = [column for column in range(columns) if weights[column] >= share]
    while poor:
        # A rich column fills up a poor one. The weights sum to the shares of all columns, so while one
        # column is poor another is rich.
        column, donor = poor.pop(), rich[-1]
        thresholds[column], alias[column] = weights[column], donor
        weights[donor] -= share - weights[column]
        if weights[donor] < share:
            poor.append(rich.pop())
    high = np.array([threshold >> 32 for threshold in thresholds], np.uint32)
    low = np.array([threshold & 0xFFFFFFFF for threshold in thresholds], np.uint32)
    return high, low, np.array(alias, np.int32)


def _nearest(number: int, bits: int) -> int:
    """Returns number · 2^−bits, rounded to the nearest integer."""
    return (number + (1 << (bits - 1))) >> bits
