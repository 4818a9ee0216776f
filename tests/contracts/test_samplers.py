"""What every sampler must satisfy; a sampler listed in its folder is tested here at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi.privacy import accountants, events, sampling

RECORDS = 30
MAKE = {"full": lambda: sampling.full(RECORDS), "poisson": lambda: sampling.poisson(0.4, RECORDS)}


@pytest.fixture(params=sampling.__all__)
def sampler(request):
    return MAKE[request.param]()


def test_only_rows_that_hold_a_record_are_picked_and_each_once(sampler):
    valid = jnp.arange(RECORDS) % 3 != 0
    for seed in range(20):
        batch = sampler.draw(jax.random.key(seed), valid)
        picked = np.asarray(batch.indices)[np.asarray(batch.mask)]
        assert np.asarray(valid)[picked].all()
        assert len(set(picked.tolist())) == len(picked)


def test_a_batch_has_a_static_shape_under_jit_and_vmap(sampler):
    valid = jnp.ones(RECORDS, bool)
    one = jax.jit(sampler.draw)(jax.random.key(0), valid)
    assert one.indices.shape == one.mask.shape == (sampler.capacity,)
    many = jax.vmap(lambda key: sampler.draw(key, valid))(jax.random.split(jax.random.key(0), 4))
    assert many.indices.shape == (4, sampler.capacity)
    assert one.sampler == sampler


def test_its_event_is_one_that_the_stated_accountant_prices(sampler):
    event = sampler.event(events.Gaussian(2.0))
    for relation in events.RELATIONS:
        accountant = accountants.pld(relation)
        assert accountant.supports(event)
        inner = accountant.epsilon(events.Gaussian(2.0), 1e-5)
        assert 0.0 < accountant.epsilon(event, 1e-5) <= inner * (1 + 1e-9)


def test_it_can_be_a_static_argument(sampler):
    assert hash(sampler) == hash(sampler)
    assert 0.0 < sampler.rate <= 1.0
