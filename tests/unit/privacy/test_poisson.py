"""The Poisson sampler: inclusion, independence, the batch size's law, and its static capacity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.privacy import events, sampling
from fedvi.privacy.sampling.poisson import Poisson

RATE, RECORDS, DRAWS = 0.2, 50, 4_000


@pytest.fixture(scope="module")
def draws():
    """Inclusion indicators [draws, records] over a shard with 10 empty rows at the end."""
    sampler = sampling.poisson(RATE, RECORDS)
    valid = jnp.arange(RECORDS + 10) < RECORDS

    def one(key):
        batch = sampler.draw(key, valid)
        hit = jnp.zeros(RECORDS + 10, jnp.int32)
        return hit.at[batch.indices].add(batch.mask.astype(jnp.int32))

    return np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(5), DRAWS)))


def test_a_record_is_in_a_batch_at_most_once_and_empty_rows_never(draws):
    assert draws.max() == 1
    assert (draws[:, RECORDS:] == 0).all()


def test_every_record_is_included_at_the_stated_rate(draws):
    counts = draws[:, :RECORDS].sum(0)
    statistic = ((counts - DRAWS * RATE) ** 2).sum() / (DRAWS * RATE * (1 - RATE))
    # Chi-square with 50 degrees of freedom, false alarm 1e-4; the seed is fixed.
    assert statistic < scipy.stats.chi2(RECORDS).isf(1e-4)


def test_pairs_are_included_independently(draws):
    centred = draws[:, :RECORDS] - RATE
    correlation = (centred.T @ centred) / (DRAWS * RATE * (1 - RATE))
    pairs = correlation[np.triu_indices(RECORDS, 1)]
    # 1,225 pairs at 5 standard errors: false alarm below 1e-3; the seed is fixed.
    assert np.abs(pairs).max() < 5.0 / np.sqrt(DRAWS)


def test_the_batch_size_is_binomial(draws):
    sizes = draws.sum(1)
    law = scipy.stats.binom(RECORDS, RATE)
    values = np.arange(4, 17)
    observed = np.array([(sizes == value).sum() for value in values])
    expected = DRAWS * law.pmf(values)
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < scipy.stats.chi2(len(values)).isf(1e-4)


def test_the_capacity_bounds_the_overflow_that_the_event_states():
    sampler = sampling.poisson(0.1, 1_000, overflow=1e-9)
    law = scipy.stats.binom(1_000, sampler.rate)
    assert law.sf(sampler.capacity) <= sampler.overflow <= 1e-9 * (1 + 1e-5)
    assert law.sf(sampler.capacity - 1) > 1e-9
    event = sampler.event(events.Gaussian(1.0))
    assert event == events.PoissonSampled(sampler.rate, events.Gaussian(1.0), sampler.overflow)


def test_a_batch_beyond_capacity_is_cut_not_grown():
    sampler = Poisson(threshold=2**32 - 1, max_records=20, capacity=5, overflow=0.9)
    batch = sampler.draw(jax.random.key(0), jnp.ones(20, bool))
    assert batch.indices.shape == (5,)
    assert bool(batch.mask.all())


def test_the_rate_is_never_more_than_asked_for():
    for rate in (0.1, 1 / 3, 1e-9, 0.999999):
        assert sampling.poisson(rate, 10).rate <= max(rate, 2.0**-32)


def test_an_empty_batch_is_a_batch():
    sampler = sampling.poisson(0.5, 8)
    batch = sampler.draw(jax.random.key(0), jnp.zeros(8, bool))
    assert not batch.mask.any()
    assert (batch.indices < 8).all()


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(errors.PrivacyError, match="sampling rate"):
        sampling.poisson(rate, 10)


def test_a_shard_of_no_declared_size_is_refused():
    with pytest.raises(errors.PrivacyError, match="max_records is 0"):
        sampling.poisson(0.5, 0)


@pytest.mark.parametrize("overflow", [0.0, 1.0, -1e-9, 2.0, float("nan"), float("inf")])
def test_an_overflow_that_is_no_probability_is_refused(overflow):
    with pytest.raises(errors.PrivacyError, match="overflow is") as error:
        sampling.poisson(0.5, 10, overflow=overflow)
    assert error.value.hint


def test_the_smallest_rate_is_one_word_in_all():
    assert sampling.poisson(1e-30, 10).rate == 2.0**-32
