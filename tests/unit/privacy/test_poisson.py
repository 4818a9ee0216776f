"""The Poisson sampler: the exact law of its gaps, its static capacity, and what it refuses."""

import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.privacy import events, random, sampling
from fedvi.privacy.sampling.poisson import Poisson

poisson_module = sys.modules["fedvi.privacy.sampling.poisson"]


def key(*label):
    return random.insecure_root(0).key(*label)


def gap_weights(rate, bits):
    """The law that the alias table has, in units of 2^-(64 + bits)."""
    high, low, alias = poisson_module._gap_table(rate, bits)
    weights = [0] * 2**bits
    for column, (upper, lower, other) in enumerate(zip(high, low, alias, strict=True)):
        threshold = (int(upper) << 32) + int(lower)
        weights[column] += threshold
        weights[int(other)] += 2**64 - threshold
    return weights


@pytest.mark.parametrize(
    ("rate", "bits"), [(0.3, 1), (0.25, 4), (0.01, 10), (0.999, 3), (1e-7, 12), (1e-30, 5)]
)
def test_the_law_of_a_gap_is_geometric_within_the_stated_total_variation(rate, bits):
    total, end = 2 ** (64 + bits), 2**bits - 1
    weights = gap_weights(rate, bits)
    assert sum(weights) == total
    stays, survival, distance = 1 - Fraction(rate), Fraction(1), Fraction(0)
    for gap in range(end):
        distance += abs(Fraction(weights[gap], total) - survival * Fraction(rate))
        # Exact, but with a denominator that is cut before it takes for ever.
        survival = Fraction(round(survival * stays * 2**400), 2**400)
    distance += abs(Fraction(weights[end], total) - survival)
    assert distance / 2 < Fraction(1, 2**65)


def tied(table, secret, count, bits):
    """The table with thresholds whose high words are those of a draw's first coins."""
    high, low, alias = (row.copy() for row in table)
    words = np.asarray(jax.random.bits(secret, (2 * count + -(-count // 2),), jnp.uint32))
    columns = words[2 * count :][:8] >> (32 - bits)
    high[columns], low[columns] = words[:8], 2**31
    return high, low, alias


@pytest.mark.nightly(but=("0.3-2000-8",))
@pytest.mark.parametrize(
    # The first needs most of its gaps; the second passes whole tables, of the most columns.
    ("rate", "slots", "column_bits"),
    [(0.3, 2_000, 8), (3e-5, 300_000, 16)],
)
def test_a_draw_follows_its_words_as_exact_arithmetic_would(monkeypatch, rate, slots, column_bits):
    sampler = sampling.poisson(rate, slots)
    count, bits = sampler.gap_count, sampler.column_bits
    assert bits == column_bits
    secrets = jax.random.split(key("words"), 20)
    weights = tied(poisson_module._gap_table(rate, bits), secrets[0], count, bits)
    monkeypatch.setattr(poisson_module, "_gap_table", lambda rate, bits: weights)
    valid, passes, ties = jnp.ones(slots, bool), 0, 0
    with jax.enable_x64(bits == 16):  # at either setting the same
        batches = jax.jit(jax.vmap(lambda secret: sampler.draw(secret, valid)))(secrets)
    for number, secret in enumerate(secrets):
        words = np.asarray(jax.random.bits(secret, (2 * count + -(-count // 2),), jnp.uint32))
        words = [int(word) for word in words]
        halves = [w >> 16 for w in words[2 * count :]] + [w & 0xFFFF for w in words[2 * count :]]
        position, expected = 0, []
        for index in range(count):
            column = halves[index] >> (16 - bits)
            coin = (words[index] << 32) + words[count + index]
            threshold = (int(weights[0][column]) << 32) + int(weights[1][column])
            ties += words[index] == int(weights[0][column])
            gap = column if coin < threshold else int(weights[2][column])
            position += gap
            if gap < 2**bits - 1:
                expected.append(position)
                position += 1
            elif position < slots:
                passes += 1
        chosen = np.asarray(batches.indices[number])[np.asarray(batches.mask[number])]
        assert chosen.tolist() == [slot for slot in expected if slot < slots]
    assert (passes > 0) == (bits == 16)
    assert ties > 0


def missed(rate, slots, capacity, gap_count, end):
    """P[a chosen slot is not found], by dynamic programming over the number of gaps drawn."""
    # By number chosen and position; the last position stands for the end and beyond.
    chosen = np.zeros((gap_count + 1, slots + 1))
    chosen[0, 0] = 1.0
    step = rate * (1 - rate) ** np.arange(end)
    for _ in range(gap_count):
        new = np.zeros_like(chosen)
        for number in range(gap_count):
            row = chosen[number]
            if not row[:slots].any():
                new[number, slots] += row[slots]
                continue
            reached = np.convolve(row[:slots], np.concatenate([[0.0], step]))
            new[number + 1, :slots] += reached[:slots]
            new[number + 1, slots] += reached[slots:].sum()
            passed = row[:slots] * (1 - rate) ** end
            new[number, end:slots] += passed[: max(0, slots - end)]
            new[number, slots] += passed[max(0, slots - end) :].sum() + row[slots]
        chosen = new
    at = chosen[:, :slots].sum(0)
    return (at * (1 - (1 - rate) ** (slots - np.arange(slots)))).sum()


@pytest.mark.parametrize("end", [23, 31])
def test_gaps_run_out_no_more_often_than_the_bound_says(end):
    rate, slots = 0.1, 200
    capacity = int(scipy.stats.binom(slots, rate).isf(1e-3))
    # The passes are granted a 1,024th of what is wanted, here 0.03.
    passes, tail = poisson_module._passes(rate, slots, capacity, end, 1024 * 0.03)
    assert 0 < passes < slots // end  # the probabilistic bound, not the certain one
    bound = tail + scipy.stats.binom(slots, rate).sf(capacity)
    assert missed(rate, slots, capacity, capacity + passes, end) <= bound
    # The bound can fail: it does with some gaps fewer.
    assert missed(rate, slots, capacity, capacity - 10, end) > bound


def test_the_capacity_bounds_the_overflow_that_the_event_states():
    sampler = sampling.poisson(0.1, 1_000, overflow=1e-9)
    law = scipy.stats.binom(1_000, 0.1)
    assert law.sf(sampler.capacity) <= sampler.overflow <= 1e-9 * (1 + 2e-3)
    assert law.sf(sampler.capacity - 1) > 1e-9
    event = sampler.event(events.Gaussian(1.0))
    assert event == events.PoissonSampled(0.1, events.Gaussian(1.0), sampler.overflow)


@pytest.mark.parametrize("rate", [1e-30, 1e-7, 1.024e-4, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("slots", [1, 2, 1_000, 10**7, 2**28])
def test_the_stated_overflow_is_small_and_no_sum_of_gaps_can_wrap(rate, slots):
    sampler = sampling.poisson(rate, slots)
    assert sampler.rate == rate
    assert sampler.gap_count >= sampler.capacity >= 1
    rounding = sampler.gap_count * 2.0**-65
    assert rounding <= sampler.overflow <= 1.01e-14 + rounding
    assert sampler.gap_count * 2**sampler.column_bits < 2**31
    # O(batch): rows, and gaps but for the few that pass a whole table.
    likely = scipy.stats.binom(slots, rate).isf(1e-14)
    assert sampler.capacity <= 1.06 * likely + 1
    assert sampler.gap_count <= 1.3 * likely + slots / 2**14 + 2


def test_a_batch_beyond_capacity_is_cut_not_grown():
    for gap_count in (5, 20):
        sampler = Poisson(0.999, 20, 5, 0.9, gap_count, 4)
        batch = sampler.draw(key(), jnp.ones(20, bool))
        assert batch.indices.shape == (64,)  # filled up with rows that do not count
        assert int(batch.mask.sum()) == 5
        assert len(set(batch.indices[batch.mask].tolist())) == 5


def test_an_empty_batch_is_a_batch():
    sampler = sampling.poisson(0.5, 8)
    batch = sampler.draw(key(), jnp.zeros(8, bool))
    assert not batch.mask.any()
    assert (batch.indices < 8).all()


@pytest.mark.nightly(but=("3e-05",))
@pytest.mark.parametrize("rate", [1e-7, 3e-5])
def test_a_tiny_rate_passes_whole_tables_and_still_chooses_evenly(rate):
    slots, draws = 10**7, 300
    sampler = sampling.poisson(rate, slots)
    valid = jnp.ones(slots, bool)

    def one(secret):
        batch = sampler.draw(secret, valid)
        return batch.indices, batch.mask

    indices, mask = jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(key("tiny", str(rate)), draws)
    )
    chosen = np.asarray(indices)[np.asarray(mask)]
    # Poisson total and a uniform place; false alarm 1e-4 each, the seed is fixed.
    law = scipy.stats.poisson(rate * slots * draws)
    assert law.ppf(5e-5) <= len(chosen) <= law.isf(5e-5)
    assert scipy.stats.kstest(chosen / slots, "uniform").pvalue > 1e-4


@pytest.mark.nightly(but=("0.999",))
@pytest.mark.parametrize("rate", [0.3, 0.999])
def test_one_slot_is_chosen_at_the_rate(rate):
    sampler = sampling.poisson(rate, 1)
    keys = jax.random.split(key("one"), 4000)
    hits = int(jax.vmap(lambda k: sampler.draw(k, jnp.ones(1, bool)).mask.sum())(keys).sum())
    assert scipy.stats.binomtest(hits, 4000, rate).pvalue > 1e-4


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(errors.PrivacyError, match="sampling rate"):
        sampling.poisson(rate, 10)


@pytest.mark.parametrize("size", [0, -1, 2**28 + 1])
def test_a_shard_of_no_possible_size_is_refused(size):
    with pytest.raises(errors.PrivacyError, match=f"max_records is {size}"):
        sampling.poisson(0.5, size)


@pytest.mark.parametrize("overflow", [0.0, 1.0, -1e-9, 2.0, float("nan"), float("inf")])
def test_an_overflow_that_is_no_probability_is_refused(overflow):
    with pytest.raises(errors.PrivacyError, match="overflow is") as error:
        sampling.poisson(0.5, 10, overflow=overflow)
    assert error.value.hint


@pytest.mark.parametrize("overflow", [1e-15, 1e-16])
def test_a_tail_below_the_precision_of_floats_still_gives_a_small_batch(overflow):
    sampler = sampling.poisson(1e-4, 10**7, overflow)
    law = scipy.stats.binom(10**7, 1e-4)
    assert 1_000 < sampler.capacity < 1_500
    assert law.sf(sampler.capacity) <= sampler.overflow <= 2 * overflow


def test_an_overflow_finer_than_the_gaps_table_is_refused_with_what_is_not():
    with pytest.raises(errors.PrivacyError, match="overflow is 1e-20, expected at least") as caught:
        sampling.poisson(1e-4, 10**7, 1e-20)
    least = float(str(caught.value).split("at least ")[1].split(":")[0])
    assert sampling.poisson(1e-4, 10**7, least).overflow <= 2.1 * least
    # The default is met as far as the table goes.
    assert sampling.poisson(0.5, 10**7).overflow < 1e-12


def test_a_sampler_for_other_slots_is_made_as_one_of_that_size_is():
    assert sampling.poisson(0.1, 4000).resized(64) == sampling.poisson(0.1, 64)
