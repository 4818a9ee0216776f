"""Noise on a grid: what each mechanism promises of its grid, its event and its range."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.errors import KeyReuseError

from fedvi import errors
from fedvi.privacy import base, events, mechanisms, noise_table, random, release, sampling
from fedvi.privacy import bounded as bounds
from fedvi.privacy.base import Shift
from fedvi.privacy.bounded import Bounded

KEY = random.insecure_root(0).key("noise")
ON_GRID = ("rounded_gaussian", "discrete_gaussian")


@pytest.mark.parametrize("name", mechanisms.__all__)
def test_every_mechanism_satisfies_the_protocol(name):
    mechanism = getattr(mechanisms, name)(1.5)
    assert isinstance(mechanism, base.Mechanism)
    assert hash(mechanism) == hash(getattr(mechanisms, name)(1.5))
    assert bool(mechanism.mark) == (name == "gaussian")
    event = mechanism.event(Shift(0.5, 0.5, 1.0))
    assert (event.noise_multiplier, event.add_remove, event.substitute) == (1.5, 1.0, 2.0)


@given(
    noise_multiplier=st.floats(0.1, 1e4),
    clip_norm=st.floats(1e-6, 1e6),
    fineness=st.sampled_from([1, 2, 32, 256]),
)
def test_the_grid_bounds_a_record_by_the_clip_norm_in_exact_arithmetic(
    noise_multiplier, clip_norm, fineness
):
    grid = mechanisms.rounded_gaussian(noise_multiplier, fineness).grid(clip_norm)
    variance = 4096**2 * (1 if fineness == 1 else 1 + fineness**2)
    square = variance / Fraction(noise_multiplier) ** 2
    assert grid.bound <= square < grid.bound + 1
    assert grid.step == pytest.approx(noise_multiplier * clip_norm / math.sqrt(variance), rel=1e-14)
    assert grid.bound < 2**52


@pytest.mark.parametrize(
    ("noise_multiplier", "fineness"), [(0.1, 1), (1.0, 1), (1.1, 2), (75.0, 128), (1e4, 256)]
)
def test_the_grid_gets_finer_with_the_noise(noise_multiplier, fineness):
    mechanism = mechanisms.rounded_gaussian(noise_multiplier)
    assert mechanism.fineness == fineness
    if noise_multiplier <= 256:
        assert mechanism.grid(1.0).bound >= 4096**2


@pytest.mark.parametrize("name", ON_GRID)
@pytest.mark.parametrize("noise", [-1.0, 0.05, float("nan"), float("inf")])
def test_noise_that_a_grid_cannot_carry_is_refused(name, noise):
    with pytest.raises(errors.PrivacyError, match="noise_multiplier"):
        getattr(mechanisms, name)(noise)


@pytest.mark.parametrize("name", ON_GRID)
@pytest.mark.parametrize("fineness", [0, 3, 512, -2])
def test_a_fineness_that_is_not_proved_is_refused(name, fineness):
    with pytest.raises(errors.PrivacyError, match="power of two"):
        getattr(mechanisms, name)(1.0, fineness=fineness)


@pytest.mark.parametrize("name", ON_GRID)
def test_a_sum_that_is_not_clipped_has_no_grid(name):
    with pytest.raises(errors.PrivacyError, match="finite clip_norm"):
        getattr(mechanisms, name)(1.0).grid(math.inf)
    assert getattr(mechanisms, name)(0.0).grid(math.inf) is None
    assert isinstance(
        getattr(mechanisms, name)(0.0).event(Shift(math.inf, math.inf, math.inf)),
        events.Unprotected,
    )


@pytest.mark.parametrize("name", ON_GRID)
def test_without_noise_the_total_passes_and_costs_everything(name):
    mechanism = getattr(mechanisms, name)(0.0)
    batch = base.Batch(jnp.arange(2), jnp.ones(2, bool), sampling.full(2))
    bounded = bounds.clipped_sum(jnp.ones((2, 3)), 5.0, batch, mechanism)
    released = release.release(KEY, bounded, mechanism)
    np.testing.assert_array_equal(released.value, [2.0, 2.0, 2.0])
    assert released.event.noise_multiplier == 0.0
    assert mechanism.distance == 0.0


def test_a_total_of_floats_gets_no_integer_noise():
    mechanism = mechanisms.rounded_gaussian(1.0)
    with pytest.raises(errors.PrivacyError, match="dtype float32"):
        mechanism.perturb(KEY, jnp.zeros(2), 1.0)
    bounded = Bounded(jnp.zeros(2), Shift(1.0, 1.0, 2.0), sampling.full(1))
    with pytest.raises(errors.PrivacyError, match="on the grid None"):
        release.release(KEY, bounded, mechanism)


def test_a_total_is_released_by_the_mechanism_that_it_was_made_for():
    batch = base.Batch(jnp.arange(2), jnp.ones(2, bool), sampling.full(2))
    bounded = bounds.clipped_sum(jnp.ones((2, 3)), 1.0, batch, mechanisms.rounded_gaussian(2.0))
    with pytest.raises(errors.PrivacyError, match="on the grid"):
        release.release(KEY, bounded, mechanisms.rounded_gaussian(1.0))


def test_a_share_of_noise_is_scaled_so_that_all_shares_reach_the_multiplier():
    alone = mechanisms.discrete_gaussian(2.0)
    shared = mechanisms.discrete_gaussian(2.0, terms=9, size=4, fineness=2)
    assert alone.event(Shift(1.0, 1.0, 2.0)).slack == 0.0
    # One share has the same σ in steps, so its std is step · σ: a third of the whole.
    std = shared.grid(1.0).step * math.sqrt(noise_table.variance(2))
    assert std == pytest.approx(2.0 / 3.0)
    event = shared.event(Shift(1.0, 1.0, 2.0))
    assert event.noise_multiplier == 2.0
    # τ √d = 10 · 8 · (less than the least float) · 2, rounded up, not to nothing.
    assert 0.0 < event.slack < 1e-300
    with pytest.raises(errors.PrivacyError, match="terms is 0"):
        mechanisms.discrete_gaussian(1.0, terms=0)


def test_the_same_key_gives_the_same_noise_and_leaves_get_their_own():
    mechanism = mechanisms.rounded_gaussian(1.0)
    total = {"a": jnp.zeros((3, 4), jnp.int32), "b": jnp.zeros(12, jnp.int32)}
    one = mechanism.perturb(KEY, total, 1.0)
    two = jax.jit(lambda key: mechanism.perturb(key, total, 1.0))(KEY)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), one, two))
    assert one["a"].shape == (3, 4)
    assert not np.array_equal(np.ravel(one["a"]), one["b"])


def test_noise_uses_no_key_twice_by_jax_s_own_checker():
    def noised(key):
        return mechanisms.rounded_gaussian(2.0).perturb(key, jnp.zeros(3, jnp.int32), 1.0)

    with jax.debug_key_reuse(True):
        jax.jit(noised)(random.insecure_root(0).key("once"))
        with pytest.raises(KeyReuseError):
            jax.jit(lambda key: (noised(key), noised(key)))(random.insecure_root(0).key("twice"))


@pytest.mark.parametrize("fineness", [1, 2])
def test_a_total_of_no_numbers_gets_no_noise(fineness):
    total = {"none": jnp.zeros((2, 0), jnp.int32)}
    noised = mechanisms.rounded_gaussian(1.0, fineness).perturb(KEY, total, 1.0)
    assert noised["none"].shape == (2, 0)


def test_the_distance_of_a_sum_counts_every_share():
    one, nine = (mechanisms.discrete_gaussian(2.0, terms=terms, size=4) for terms in (1, 9))
    assert nine.distance == 9 * one.distance > 0


def test_a_grid_that_float64_cannot_check_is_refused():
    assert mechanisms.discrete_gaussian(0.1, terms=2, fineness=256).grid(1.0).bound < 2**52
    with pytest.raises(errors.PrivacyError, match="expected fewer than") as caught:
        mechanisms.discrete_gaussian(0.1, terms=50, fineness=256).grid(1.0)
    assert "fineness" in caught.value.hint
