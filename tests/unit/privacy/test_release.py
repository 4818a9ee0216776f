"""The one door: what a Bounded promises, and that nothing else makes a Released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedvi import errors
from fedvi.privacy import events, mechanisms, random, release, sampling

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def batch(count: int, mask=None) -> release.Batch:
    keep = jnp.ones(count, bool) if mask is None else jnp.asarray(mask)
    return release.Batch(jnp.arange(count), keep, sampling.full(count))


@given(
    contributions=hnp.arrays(np.float32, (5, 3), elements=FLOATS),
    replacement=hnp.arrays(np.float32, (3,), elements=FLOATS),
    clip_norm=st.floats(1e-3, 1e3),
    index=st.integers(0, 4),
)
def test_one_record_moves_a_clipped_sum_by_at_most_its_shift(
    contributions, replacement, clip_norm, index
):
    total = np.asarray(release.clipped_sum(jnp.asarray(contributions), clip_norm, batch(5)).total)
    mask = np.arange(5) != index
    without = release.clipped_sum(jnp.asarray(contributions), clip_norm, batch(5, mask))
    replaced = contributions.copy()
    replaced[index] = replacement
    other = np.asarray(release.clipped_sum(jnp.asarray(replaced), clip_norm, batch(5)).total)
    # float32 rounding of a sum of 5 terms of norm C.
    slack = 1e-5 * clip_norm
    assert np.isfinite(total).all()
    assert np.linalg.norm(total - np.asarray(without.total)) <= without.shift.add_remove + slack
    assert np.linalg.norm(total - other) <= without.shift.substitute + slack
    assert without.shift == (clip_norm, clip_norm, 2.0 * clip_norm)


@given(contributions=hnp.arrays(np.float32, (4, 3), elements=st.floats(-1, 1, width=32)))
def test_short_contributions_are_summed_as_they_are(contributions):
    total = release.clipped_sum(jnp.asarray(contributions), 2.0, batch(4)).total
    np.testing.assert_allclose(total, contributions.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_counts_as_zero(bad):
    rows = jnp.asarray([[1.0, 0.0], [bad, 0.5]], jnp.float32)
    total = release.clipped_sum(rows, 1.0, batch(2)).total
    np.testing.assert_array_equal(total, [1.0, 0.0])


def test_a_huge_record_is_clipped_not_lost():
    total = release.clipped_sum(jnp.asarray([[1e30, 1e30]], jnp.float32), 1.0, batch(1)).total
    assert np.linalg.norm(total) == pytest.approx(1.0, rel=1e-6)


def test_the_norm_is_joint_over_all_leaves():
    tree = {"a": jnp.asarray([[3.0]]), "b": jnp.asarray([[4.0]])}
    total = release.clipped_sum(tree, 1.0, batch(1)).total
    assert float(total["a"][0]) == pytest.approx(0.6)
    assert float(total["b"][0]) == pytest.approx(0.8)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip_norm):
    with pytest.raises(errors.PrivacyError, match="clip_norm"):
        release.clipped_sum(jnp.ones((1, 1)), clip_norm, batch(1))


def test_nothing_else_makes_a_released():
    with pytest.raises(errors.PrivacyError, match="only door"):
        release.Released(1.0, events.NOTHING)


def test_a_released_cannot_be_changed():
    released = release.disclose(jnp.ones(2), "a mean")
    for name, value in (("event", events.NOTHING), ("value", jnp.zeros(2))):
        with pytest.raises(errors.PrivacyError, match="cannot be changed"):
            setattr(released, name, value)
    assert released.event == events.Unprotected("a mean")


def test_nothing_is_released_by_no_release():
    with pytest.raises(errors.PrivacyError, match="no step"):
        release.repeat(lambda value, key: value, jnp.ones(2), jnp.zeros((0, 2)))
    with pytest.raises(TypeError):
        release.post_process(lambda: jnp.ones(2))


def test_what_is_not_released_does_not_show_in_a_log():
    bounded = release.clipped_sum(jnp.full((2, 1), 0.4321), 1.0, batch(2))
    assert "0.8" not in repr(bounded)
    assert "0.4321" not in repr(bounded)


def test_a_release_costs_what_its_sampler_and_mechanism_say():
    sampler = sampling.poisson(0.25, 100)
    drawn = sampler.draw(jax.random.key(0), jnp.ones(100, bool))
    bounded = release.clipped_sum(jnp.ones((drawn.indices.shape[0], 2)), 0.5, drawn)
    released = release.release(jax.random.key(1), bounded, mechanisms.gaussian(3.0))
    assert released.event == events.PoissonSampled(
        0.25, events.Gaussian(3.0, 1.0, 2.0), sampler.overflow
    )


def test_repeated_releases_compose_and_post_processing_is_free():
    def step(value, key):
        bounded = release.clipped_sum(jnp.ones((4, 2)), 1.0, batch(4))
        noised = release.release(key, bounded, mechanisms.gaussian(2.0))
        return release.post_process(lambda total: value + total, noised)

    keys = jax.random.split(jax.random.key(0), 5)
    released = release.repeat(step, jnp.zeros(2), keys)
    assert released.event == events.repeat(events.Gaussian(2.0, 1.0, 2.0), 5)
    assert release.post_process(lambda value: 2.0 * value, released).event == released.event


def test_the_event_survives_jit():
    @jax.jit
    def run(key):
        bounded = release.clipped_sum(jnp.ones((3, 2)), 1.0, batch(3))
        return release.release(key, bounded, mechanisms.gaussian(1.5))

    assert run(jax.random.key(0)).event == events.Gaussian(1.5, 1.0, 2.0)


def test_a_disclosure_is_unprotected_by_name():
    assert release.disclose(jnp.ones(2), "a mean").event == events.Unprotected("a mean")


def test_noise_has_the_stated_standard_deviation():
    bounded = release.Bounded(jnp.zeros(100_000), release.Shift(0.5, 0.5, 1.0), sampling.full(1))
    released = release.release(jax.random.key(2), bounded, mechanisms.gaussian(4.0))
    found = np.asarray(released.value)
    # 5 standard errors of mean and sd: false alarm below 2e-6, and the seed is fixed.
    assert abs(found.mean()) < 5 * 2.0 / np.sqrt(found.size)
    assert abs(found.std() / 2.0 - 1.0) < 5 / np.sqrt(2 * found.size)


def test_unclipped_sums_cannot_be_noised_into_a_claim():
    bounded = release.clipped_sum(jnp.ones((2, 2)), float("inf"), batch(2))
    with pytest.raises(errors.PrivacyError, match="finite clip_norm"):
        release.release(jax.random.key(0), bounded, mechanisms.gaussian(1.0))
    unprotected = release.release(jax.random.key(0), bounded, mechanisms.gaussian(0.0))
    assert isinstance(unprotected.event, events.Unprotected)


def test_keys_differ_by_every_part_of_their_label():
    root = random.insecure_root(1)
    labels = [
        ("a", "r/0", "noise"),
        ("a", "r/0", "sampling"),
        ("a", "r/1", "noise"),
        ("b", "r/0", "noise"),
        ("ar", "/0", "noise"),
        ("a", "r/0noise"),
    ]
    words = {bytes(np.asarray(jax.random.key_data(root.key(*label)))) for label in labels}
    assert len(words) == len(labels)
    again = root.key("a", "r/0", "noise")
    assert bytes(np.asarray(jax.random.key_data(again))) in words


def test_a_root_shows_nothing_of_its_secret():
    assert repr(random.secure_root()) == "Root(secure=True)"
    key = random.secure_root().key("a")
    assert not jnp.array_equal(
        jax.random.key_data(key), jax.random.key_data(random.secure_root().key("a"))
    )
