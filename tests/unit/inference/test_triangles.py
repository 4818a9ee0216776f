"""Gradients of Cholesky factors that are never formed: norms, sums, and what is not finite."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.inference import clipping, per_record
from fedvi.privacy import mechanisms, sampling
from fedvi.privacy.base import Batch

B, K = 6, 4
FINE = mechanisms.rounded_gaussian(1.0, 16)


def made(inputs, signals, diagonal, beside):
    """Gradients of a location [K] and of a factor [K, K]."""
    triangle = per_record.triangles(inputs, signals, diagonal)
    return per_record.of_rows(jnp.zeros(inputs.shape[0], jnp.float32), beside, triangle)


def exactly(inputs, signals, diagonal, beside):
    """The same in float64, one row a record."""
    wide = [np.asarray(array, np.float64) for array in (inputs, signals, diagonal, beside)]
    found = np.tril(wide[0][:, :, None] * wide[1][:, None, :], -1)
    found[:, np.arange(K), np.arange(K)] = wide[2]
    return np.concatenate([wide[3], found.reshape(len(found), -1)], axis=1)


def drawn(seed, spread=0.0, rows=B):
    """Four arrays [rows, K] whose sizes differ by about 2 to the power of ``spread``."""
    random = np.random.default_rng(seed)
    sizes = np.exp2(np.clip(spread * random.normal(size=(4, rows, 1)), -140, 120))
    arrays = random.normal(size=(4, rows, K)) * sizes
    return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


def flat(total):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total)])


@functools.cache
def total_of(clip_norm, kind):
    @jax.jit
    def total(mask, *arrays):
        batch = Batch(jnp.arange(B), mask, sampling.full(B))
        parts = clipping.Parts(lambda _: made(*arrays), 1, B)
        return clipping.clipped(parts, clip_norm, kind, batch, FINE).total

    return total


def test_what_is_formed_after_all_is_the_triangle():
    arrays = drawn(0)
    location, factor = made(*arrays).formed()
    wanted = exactly(*arrays)
    np.testing.assert_allclose(location, wanted[:, :K], rtol=1e-6)
    np.testing.assert_allclose(factor, wanted[:, K:].reshape(B, K, K), rtol=1e-6)
    assert made(*arrays).spared == K * K
    assert made(*arrays).size == K * K + K


@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 4.0, 30.0, 60.0]))
def test_no_norm_is_less_than_the_gradient_s(seed, spread):
    """Where squares, or products of squares, underflow or overflow, too."""
    arrays = drawn(seed, spread, rows=64)
    records = made(*arrays)
    # As XLA sees them: denormals are 0.
    flushed = [np.where(np.abs(array) < 2.0**-126, 0.0, array) for array in arrays]
    exact = np.sqrt((exactly(*flushed) ** 2).sum(axis=1))
    found = np.asarray(records.norm(), np.float64)
    usable = np.isfinite(found)
    assert (found[usable] >= exact[usable] * (1.0 - records.error)).all()
    assert usable.all() or spread > 4.0
    if spread <= 4.0:
        np.testing.assert_allclose(found, exact, rtol=records.error)


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["flat", "per_site", "automatic"]),
    clip_norm=st.sampled_from([1e-3, 1.0, 1e3]),
    bad=st.sampled_from([None, np.nan, np.inf, 3e38, 1e-40]),
    which=st.integers(0, 3),
    spread=st.sampled_from([0.0, 5.0, 40.0]),
)
def test_no_record_counts_for_more_than_the_clip_norm(seed, kind, clip_norm, bad, which, spread):
    arrays = list(drawn(seed, spread))
    if bad is not None:
        arrays[which] = arrays[which].at[0, 1].set(bad)
    bound = FINE.grid(clip_norm).bound
    mask = np.random.default_rng(seed).random(B) < 0.8
    whole = flat(total_of(clip_norm, kind)(jnp.asarray(mask), *arrays)).astype(object)
    for record in range(B):
        others = jnp.asarray(mask & (np.arange(B) != record))
        rest = flat(total_of(clip_norm, kind)(others, *arrays)).astype(object)
        moved = int(((whole - rest) ** 2).sum())
        assert moved <= bound
        if not mask[record] or (record == 0 and bad is not None and not np.isfinite(bad)):
            assert moved == 0


@pytest.mark.parametrize("lost", ["diagonal", "below"])
def test_a_norm_that_leaves_a_part_out_would_be_found(lost, monkeypatch):
    """The planted bug of the test above: with such norms some record counts for more."""

    def half(part):
        nothing = jnp.zeros_like(part.inputs)
        kept = part._replace(**{"diagonal" if lost == "diagonal" else "inputs": nothing})
        return per_record_norm(kept)

    per_record_norm = per_record._norm_of_triangle
    monkeypatch.setattr(per_record, "_norm_of_triangle", half)
    arrays = [10.0 * array for array in drawn(1)]
    batch = Batch(jnp.arange(B), jnp.ones(B, bool).at[1:].set(False), sampling.full(B))
    parts = clipping.Parts(lambda _: made(*arrays), 1, B)
    total = flat(clipping.clipped(parts, 1.0, "flat", batch, FINE).total).astype(object)
    assert int((total**2).sum()) > FINE.grid(1.0).bound


@pytest.mark.parametrize("kind", ["flat", "per_site", "automatic", "normalised"])
def test_sums_are_those_of_gradients_that_are_formed(kind, monkeypatch):
    arrays = [array.at[2, 0].set(jnp.nan) for array in drawn(3)]
    batch = Batch(jnp.arange(B), jnp.ones(B, bool), sampling.full(B))

    def total():
        parts = clipping.Parts(lambda _: made(*arrays), 1, B)
        return flat(clipping.clipped(parts, 1.0, kind, batch, FINE).total)

    spared = total()
    monkeypatch.setattr(clipping, "LARGEST_BATCH", 0)
    formed = total()
    assert np.abs(formed).max() > 1000
    # What rounding to the grid takes off the clip is not the same.
    np.testing.assert_allclose(spared, formed, atol=1e-3 * np.abs(formed).max())
    above = np.triu(np.ones((K, K), bool), 1)
    assert (spared[K:].reshape(K, K)[above] == 0).all()


def test_every_gradient_is_clipped_in_float32():
    arrays = drawn(4)
    assert made(*arrays).is_single
    with jax.enable_x64(True):
        assert not made(arrays[0].astype(jnp.float64), *arrays[1:]).is_single
