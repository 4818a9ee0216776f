"""Noise of many visits in one call: the bits of each alone, in little memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi.inference import many_visits
from fedvi.privacy import mechanisms, random, sampling
from fedvi.privacy.base import Shift
from fedvi.privacy.bounded import Bounded
from fedvi.privacy.release import release

MECHANISM = mechanisms.rounded_gaussian(2.0)
VISITS = 8


def bounded(total):
    sampler, grid = sampling.full(1), MECHANISM.grid(1.0)
    return Bounded({"a": total[:1], "b": total[1:]}, Shift(1.0, 1.0, 2.0), sampler, grid)


def noised(key, total):
    return release(key, total, MECHANISM)


@pytest.mark.parametrize("numbers", [1, 25])
def test_noise_of_some_visits_side_by_side_is_that_of_each_alone(numbers, monkeypatch):
    monkeypatch.setattr(many_visits, "_FEW", 1)
    monkeypatch.setattr(many_visits, "_SIDE_BY_SIDE", numbers)
    keys = jax.random.split(random.insecure_root(0).key(), VISITS)
    totals = jnp.arange(VISITS * 10, dtype=jnp.int32).reshape(VISITS, 10)
    found = many_visits.mapped(bounded, noised)(keys, totals)().value.integers
    alone = jax.jit(lambda key, total: noised(key, bounded(total)))
    for place in range(VISITS):
        for name, part in alone(keys[place], totals[place]).value.integers.items():
            np.testing.assert_array_equal(found[name][place], part)


def test_noise_of_many_wide_visits_takes_little_memory(monkeypatch):
    monkeypatch.setattr(many_visits, "_FEW", 1)
    keys = jax.random.split(random.insecure_root(0).key(), 64)
    totals = jnp.zeros((64, 1 << 17), jnp.int32)
    call = many_visits.mapped(bounded, noised)(keys, totals)
    # Beside totals and answers, of 32 MiB each.
    assert call.func.memory_analysis().temp_size_in_bytes < 128 << 20
