"""The laws of the samplers, as drawn step after step: inclusion, pairs, sizes, independence.

Every bound has a false alarm of about 1e-4 and the seeds are fixed; each kind of test is shown to
fail on a planted bug.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi.privacy import random, sampling

poisson_module = sys.modules["fedvi.privacy.sampling.poisson"]
feistel_module = sys.modules["fedvi.privacy.sampling.feistel"]

RECORDS, STEPS = 40, 20_000
SMALL = {"poisson": sampling.poisson(0.2, RECORDS), "feistel": sampling.feistel(8, RECORDS)}
RARE = 1e-4


def key(*label):
    return random.insecure_root(0).key("samplers", *label)


def included(sampler, keys, rows=RECORDS):
    """Indicators [steps, rows] of what consecutive steps of a scan include."""

    def step(carry, secret):
        batch = sampler.draw(secret, jnp.ones(rows, bool))
        hit = jnp.zeros(rows, jnp.int8)
        return carry, hit.at[batch.indices].add(batch.mask.astype(jnp.int8))

    return np.asarray(jax.jit(lambda keys: jax.lax.scan(step, 0, keys)[1])(keys))


@pytest.fixture(scope="module")
def drawn():
    keys = jax.random.split(key("steps"), STEPS)
    return {name: included(sampler, keys) for name, sampler in SMALL.items()}


def inclusion_pvalue(hits, rate, fixed):
    """χ² of how often each slot is included; counts of a fixed size are tied to one sum."""
    counts, steps = hits.sum(0), len(hits)
    free = len(counts) - 1 if fixed else len(counts)
    spread = steps * rate * (1 - rate) * (len(counts) / free)
    return scipy.stats.chi2(free).sf(((counts - steps * rate) ** 2).sum() / spread)


def pair_scores(hits, rate, together):
    """z of every pair's joint inclusions, given their probability."""
    both = hits.T.astype(float) @ hits
    expected = len(hits) * together
    pairs = both[np.triu_indices(hits.shape[1], 1)]
    return (pairs - expected) / np.sqrt(expected * (1 - together))


def lag_scores(hits, rate, lag):
    """z of how much a step's batch overlaps with the one ``lag`` steps before."""
    overlap = (hits[lag:].astype(float) * hits[:-lag]).sum(1)
    expected = hits.shape[1] * rate**2
    return (overlap.mean() - expected) / (overlap.std() / np.sqrt(len(overlap)) + 1e-12)


def test_no_slot_is_in_a_batch_twice(drawn):
    for hits in drawn.values():
        assert hits.max() == 1


@pytest.mark.parametrize("name", SMALL)
def test_every_slot_is_included_at_the_stated_rate(drawn, name):
    assert SMALL[name].rate == 0.2
    assert inclusion_pvalue(drawn[name], 0.2, name == "feistel") > RARE


@pytest.mark.parametrize("name", SMALL)
def test_every_pair_is_included_as_it_should(drawn, name):
    together = {"poisson": 0.04, "feistel": 8 * 7 / (40 * 39)}[name]
    scores = pair_scores(drawn[name], 0.2, together)
    # 780 pairs at 5.2 standard errors: 1.6e-4.
    assert np.abs(scores).max() < 5.2
    other = {"feistel": 0.04, "poisson": 8 * 7 / (40 * 39)}[name]
    assert abs(pair_scores(drawn[name], 0.2, other).mean()) > 0.3


def test_the_size_of_a_poisson_batch_is_binomial_and_of_a_fixed_one_constant(drawn):
    sizes = drawn["poisson"].sum(1)
    law = scipy.stats.binom(RECORDS, 0.2)
    observed = np.bincount(np.clip(sizes, 1, 17), minlength=18)[1:]
    expected = STEPS * np.array([law.cdf(1), *law.pmf(np.arange(2, 17)), law.sf(16)])
    assert scipy.stats.chisquare(observed, expected).pvalue > RARE
    assert (drawn["feistel"].sum(1) == 8).all()


@pytest.mark.parametrize("name", SMALL)
def test_steps_are_independent(drawn, name):
    for lag in (1, 2, 3, 10):
        assert abs(lag_scores(drawn[name], 0.2, lag)) < 4.5
    counts = drawn[name][1:].T.astype(float) @ drawn[name][:-1]
    scores = (counts - STEPS * 0.04) / np.sqrt(STEPS * 0.04 * 0.96)
    # 1,600 ordered pairs of slots at 5.4 standard errors: 1e-4.
    assert np.abs(scores).max() < 5.4


@pytest.mark.parametrize("name", SMALL)
def test_planted_one_key_for_all_steps_is_seen(name):
    keys = jax.random.split(key("steps"), 1)[jnp.zeros(2000, int)]
    hits = included(SMALL[name], keys)
    assert inclusion_pvalue(hits, 0.2, name == "feistel") < 1e-10
    assert abs(lag_scores(hits, 0.2, 1)) > 10


def test_planted_shuffled_epochs_are_seen():
    generator = np.random.default_rng(0)
    epochs = [generator.permutation(RECORDS).reshape(5, 8) for _ in range(400)]
    hits = np.zeros((2000, RECORDS), np.int8)
    for step, batch in enumerate(itertools.chain(*epochs)):
        hits[step, batch] = 1
    assert lag_scores(hits, 0.2, 1) < -10


def test_planted_a_biased_threshold_is_seen(monkeypatch):
    right = poisson_module._gap_table
    monkeypatch.setattr(poisson_module, "_gap_table", lambda rate, bits: right(1.05 * rate, bits))
    sampler = sampling.poisson(0.2, RECORDS)
    hits = included(sampler, jax.random.split(key("steps"), STEPS))
    assert inclusion_pvalue(hits, 0.2, fixed=False) < RARE


@pytest.mark.parametrize(("size", "batch"), [(5, 2), (6, 3), (4, 3)])
def test_all_sets_of_a_small_case_are_equally_likely(size, batch):
    hits = included(
        sampling.feistel(batch, size), jax.random.split(key("sets", size), STEPS), rows=size
    )
    codes = hits.astype(int) @ (2 ** np.arange(size))
    sets = [
        sum(2**slot for slot in chosen) for chosen in itertools.combinations(range(size), batch)
    ]
    counts = np.array([(codes == code).sum() for code in sets])
    assert counts.sum() == STEPS
    assert scipy.stats.chisquare(counts).pvalue > RARE


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_all_subsets_of_a_small_poisson_case_have_their_probability(rate):
    sampler = sampling.poisson(rate, 4)
    hits = included(sampler, jax.random.split(key("subsets"), STEPS), rows=4)
    counts = np.bincount(hits.astype(int) @ (2 ** np.arange(4)), minlength=16)
    size = np.array([code.bit_count() for code in range(16)])
    expected = STEPS * rate**size * (1 - rate) ** (4 - size)
    assert scipy.stats.chisquare(counts, expected).pvalue > RARE


def test_gaps_that_pass_a_whole_table_change_nothing():
    # A table of 8 columns, where the shipped one would hold the shard.
    sampler = poisson_module.Poisson(0.05, 60, 60, 0.0, 70, 3)
    hits = included(sampler, jax.random.split(key("passes"), STEPS), rows=60)
    assert hits.max() == 1
    assert inclusion_pvalue(hits, 0.05, fixed=False) > RARE
    law = scipy.stats.binom(60, 0.05)
    observed = np.bincount(np.clip(hits.sum(1), 0, 10), minlength=11)
    expected = STEPS * np.array([*law.pmf(np.arange(10)), law.sf(9)])
    assert scipy.stats.chisquare(observed, expected).pvalue > RARE


def large_batches(rounds, draws=4000, size=20_000, batch=64):
    """Batches [draws, batch] of the Feistel sampler, with so many rounds."""
    words = jax.random.bits(key("large"), (draws, rounds, 2), jnp.uint32)
    start = jnp.arange(batch, dtype=jnp.uint32)
    return np.asarray(
        jax.jit(
            jax.vmap(lambda w: feistel_module._walk(w, start, jnp.uint32(size), 15), in_axes=0)
        )(words)
    ).astype(int)


def large_pvalues(chosen, size=20_000):
    """p-values: of places in 200 bins, and of the distance of the first two images in 100 bins."""
    places = np.bincount(chosen.ravel() * 200 // size, minlength=200)
    apart = (chosen[:, 1::2] - chosen[:, 0::2]).ravel() % size
    distances = np.bincount(apart * 100 // size, minlength=100)
    return scipy.stats.chisquare(places).pvalue, scipy.stats.chisquare(distances).pvalue


def test_a_feistel_batch_is_spread_evenly_and_two_rounds_would_not_be():
    chosen = large_batches(feistel_module._ROUNDS)
    assert all(len(set(row)) == 64 for row in chosen[:50])
    # Bins of a batch without replacement vary a little less than multinomial ones: conservative.
    assert min(large_pvalues(chosen)) > RARE
    assert min(large_pvalues(large_batches(2))) < 1e-10


def test_the_shipped_sampler_of_many_slots_is_this_permutation():
    sampler = sampling.feistel(64, 20_000)
    secret = key("shipped")
    words = jax.random.bits(secret, (feistel_module._ROUNDS, 2), jnp.uint32)
    start = jnp.arange(64, dtype=jnp.uint32)
    expected = feistel_module._walk(words, start, jnp.uint32(20_000), 15)
    found = sampler.draw(secret, jnp.ones(20_000, bool)).indices
    assert found.tolist() == expected.tolist()
