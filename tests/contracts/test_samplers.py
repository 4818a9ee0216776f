"""What every sampler must satisfy; a sampler listed in its folder is tested here at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
from fedvi.privacy import accountants, events, random, sampling
from fedvi.privacy.base import ROWS_TOGETHER

RECORDS = 30
MAKE = {
    "feistel": lambda: sampling.feistel(12, RECORDS),
    "full": lambda: sampling.full(RECORDS),
    "poisson": lambda: sampling.poisson(0.4, RECORDS),
}


def key(seed):
    return random.insecure_root(seed).key()


@pytest.fixture(params=sampling.__all__)
def sampler(request):
    return MAKE[request.param]()


def test_only_rows_that_hold_a_record_are_picked_and_each_once(sampler):
    valid, draw = jnp.arange(RECORDS) % 3 != 0, jax.jit(sampler.draw)
    for seed in range(20):
        batch = draw(key(seed), valid)
        picked = np.asarray(batch.indices)[np.asarray(batch.mask)]
        assert np.asarray(valid)[picked].all()
        assert len(set(picked.tolist())) == len(picked)


def test_a_batch_has_a_static_shape_under_jit_and_vmap(sampler):
    valid = jnp.ones(RECORDS, bool)
    one = jax.jit(sampler.draw)(key(0), valid)
    rows = -(-sampler.capacity // ROWS_TOGETHER) * ROWS_TOGETHER
    assert one.indices.shape == one.mask.shape == (rows,)
    many = jax.vmap(lambda key: sampler.draw(key, valid))(jax.random.split(key(0), 4))
    assert many.indices.shape == (4, rows)
    assert one.sampler == sampler


def test_a_batch_has_whole_groups_of_rows_and_those_beyond_its_capacity_do_not_count(sampler):
    """Rows left over by groups of 8 are computed otherwise: a record that moves there would change."""
    for seed in range(5):
        batch = sampler.draw(key(seed), jnp.ones(RECORDS, bool))
        assert batch.mask.shape[0] % ROWS_TOGETHER == 0
        assert batch.mask.shape[0] < sampler.capacity + ROWS_TOGETHER
        assert not batch.mask[sampler.capacity :].any()


def test_which_slots_are_picked_does_not_depend_on_which_hold_a_record(sampler):
    valid = jnp.arange(RECORDS) % 3 != 0
    some, every = sampler.draw(key(0), valid), sampler.draw(key(0), jnp.ones(RECORDS, bool))
    picked = set(np.asarray(every.indices)[np.asarray(every.mask)].tolist())
    kept = set(np.asarray(some.indices)[np.asarray(some.mask)].tolist())
    assert kept == {slot for slot in picked if slot % 3 != 0}


def test_a_shard_without_records_gives_an_empty_batch(sampler):
    assert not sampler.draw(key(0), jnp.zeros(RECORDS, bool)).mask.any()


@pytest.mark.parametrize("rows", [1, RECORDS - 1, RECORDS + 1])
def test_as_many_slots_as_records_are_refused(sampler, rows):
    """Sizes behind a batch would follow from how many records there are, which is private."""
    with pytest.raises(errors.PrivacyError, match=f"for {RECORDS} slots was given {rows} rows"):
        sampler.draw(key(0), jnp.ones(rows, bool))


def test_its_event_is_priced_by_the_stated_accountant_or_refused(sampler):
    event = sampler.event(events.Gaussian(2.0))
    priced = 0
    for relation in events.RELATIONS:
        accountant = accountants.pld(relation)
        if not accountant.supports(event):
            with pytest.raises(errors.UnsupportedEvent):
                accountant.epsilon(event, 1e-5)
            continue
        priced += 1
        inner = accountant.epsilon(events.Gaussian(2.0), 1e-5)
        assert 0.0 < accountant.epsilon(event, 1e-5) <= inner * (1 + 1e-9)
    assert priced


def test_it_can_be_a_static_argument(sampler):
    assert hash(sampler) == hash(sampler)
    assert 0.0 < sampler.rate <= 1.0
