"""Gradients that are never formed are those that ``vmap`` forms: norms, sums, and what is not finite."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from fedvi import errors
from fedvi.inference import clipping, per_record
from fedvi.privacy import mechanisms, sampling
from fedvi.privacy.base import Batch

B = 6
FINE = mechanisms.rounded_gaussian(1.0, 16)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def batch(rows, mask=None):
    kept = jnp.ones(rows, bool) if mask is None else jnp.asarray(mask)
    return Batch(jnp.arange(rows), kept, sampling.full(rows))


@jax.jit
def dense(x, weights, bias):
    return jnp.tanh(x @ weights + bias[None])


def net(params, x, y):
    hidden = dense(x[None], params["first"], params["bias"])
    return jnp.sum((hidden @ params["second"] - y[None]) ** 2)


def nested(params, x, y):
    return jax.jit(lambda p: jax.jit(net)(p, x, y) + 1.0)(params)


def weights_on_the_left(params, x, y):
    hidden = params["first"].T @ x
    return (
        jnp.sum((jnp.einsum("hk,h->k", params["second"], hidden) - y) ** 2) + params["bias"].sum()
    )


def twice(params, x, y):
    again = dense(jnp.ones_like(x)[None], params["first"], params["bias"])
    return net(params, x, y) + again.sum()


def drawn_thrice(params, x, y):
    return jax.vmap(lambda scale: net(params, scale * x, y))(jnp.arange(3.0)).mean()


def scanned(params, x, y):
    def body(total, row):
        return total + jnp.tanh(x @ params["first"])[row], None

    return lax.scan(body, 0.0, jnp.arange(2))[0] + (params["second"] @ y).sum() * params["bias"][0]


def gathered(params, x, y):
    return (params["first"][jnp.argmax(x)] * params["bias"]).sum() * (params["second"] @ y).sum()


def handed_on(params, x, y):
    same, other = jax.jit(lambda w: (w, w + 1.0))(params["first"])
    return net({**params, "first": same}, x, y) + 0.0 * other.sum()


def sorted_(params, x, y):
    best, _ = lax.top_k(x @ params["first"], 2)
    return best.sum() + (params["second"] @ y + params["bias"]).sum()


def parameters():
    return {"first": normal(3, 4), "bias": normal(4, seed=1), "second": normal(4, 2, seed=2)}


def in_one(records):
    return clipping.Parts(lambda _: records, 1, records.losses.shape[0])


def in_parts(loss, params, x, y, rows):
    """The last part has empty places, filled with what must not count."""
    number = -(-x.shape[0] // rows)
    short = number * rows - x.shape[0]
    x, y = (jnp.pad(column, [(0, short), (0, 0)], constant_values=7.0) for column in (x, y))
    columns = [column.reshape(number, rows, -1) for column in (x, y)]
    return clipping.Parts(
        lambda part: per_record.gradients(loss, params, *(column[part] for column in columns)),
        number,
        rows,
    )


# Each loss, and which of bias, first and second are not formed.
LOSSES = {
    net: {"first", "second"},
    nested: {"first", "second"},
    weights_on_the_left: {"second"},
    twice: {"second"},
    drawn_thrice: set(),
    scanned: {"second"},
    gathered: {"second"},
    handed_on: {"second"},
    sorted_: {"first", "second"},
}


@pytest.mark.nightly(but=("gathered", "sorted_", "handed_on"))
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_they_are_those_that_vmap_forms(loss):
    params, x, y = parameters(), normal(B, 3, seed=3), normal(B, 2, seed=4)
    expected = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
    found = per_record.gradients(loss, params, x, y)
    sizes = {"bias": 4, "first": 12, "second": 8}
    assert found.size == 24
    assert found.spared == sum(sizes[name] for name in LOSSES[loss])
    weights = [normal(B, seed=seed) for seed in range(3)]
    sums = [found.block_sums(weights, 4)(block) for block in (0, 1)]
    for index, name in enumerate(sizes):
        formed, exact = found.formed()[name], np.asarray(expected[name], np.float64)
        np.testing.assert_allclose(formed, exact, rtol=1e-5, atol=1e-6)
        norm = np.sqrt((exact.reshape(B, -1) ** 2).sum(axis=1))
        np.testing.assert_allclose(found.norms()[index], norm, rtol=1e-5)
        for block, rows in enumerate((slice(0, 4), slice(4, 6))):
            total = np.tensordot(np.asarray(weights[index])[rows], exact[rows], 1)
            np.testing.assert_allclose(sums[block][name], total, rtol=1e-5, atol=1e-5)
    norms = [np.sqrt((np.asarray(expected[n]).reshape(B, -1) ** 2).sum(axis=1)) for n in sizes]
    together = np.sqrt(np.square(norms).sum(axis=0))
    np.testing.assert_allclose(found.norm(), together, rtol=1e-5)


def test_a_product_along_several_axes_is_laid_out_as_its_weights():
    params = {"w": normal(4, 2, 3, 5)}

    def loss(params, x):
        return jnp.sum(jnp.tensordot(params["w"], x, axes=((3, 1), (1, 0))) ** 2)

    x = normal(B, 2, 5, seed=1)
    found = per_record.gradients(loss, params, x)
    assert found.spared == found.size == 120
    expected = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, x)["w"]
    np.testing.assert_allclose(found.formed()["w"], expected, rtol=1e-5, atol=1e-5)
    total = found.block_sums([jnp.ones(B)], B)(0)["w"]
    np.testing.assert_allclose(total, expected.sum(axis=0), rtol=1e-5, atol=1e-4)


def test_nothing_as_large_as_all_gradients_is_formed():
    rows, width = 16, 64
    params = {"first": normal(width, width), "bias": normal(width), "second": normal(width, 2)}

    def total(params, x, y):
        records = per_record.gradients(net, params, x, y)
        assert records.spared == width * width + 2 * width
        bounded = clipping.clipped(
            in_one(records), 1.0, "flat", batch(rows), mechanisms.rounded_gaussian(1.0)
        )
        return bounded.total

    args = params, normal(rows, width), normal(rows, 2)
    text = jax.jit(total).lower(*args).as_text()
    assert f"{rows}x{width}x{width}" not in text
    formed = jax.jit(lambda *a: jax.vmap(jax.grad(net), in_axes=(None, 0, 0))(*a)).lower(*args)
    assert f"{rows}x{width}x{width}" in formed.as_text()


# Every two values of two columns meet; each row is a program to compile.
SETTINGS = [
    # kind, clip norm, bound of the loss, records a part
    ("flat", 1e-3, None, B),
    ("flat", 1.0, 1e-3, 4),
    ("flat", 30.0, 2.0, 1),
    ("per_site", 1e-3, 1e-3, 1),
    ("per_site", 1.0, 2.0, B),
    ("per_site", 30.0, None, 4),
    ("automatic", 1e-3, 2.0, 4),
    ("automatic", 1.0, None, 1),
    ("automatic", 30.0, 1e-3, B),
    ("normalised", 1e-3, None, 1),
    ("normalised", 1.0, 1e-3, B),
    ("normalised", 30.0, 2.0, 4),
]


@functools.cache
def total_of_parts(kind, clip_norm, loss_bound, part):
    """Compiled once for all examples: the programs of each would fill the process."""

    @jax.jit
    def total(x, y, kept):
        parts = in_parts(net, parameters(), x, y, part)
        mechanism = mechanisms.rounded_gaussian(1.0)
        return clipping.clipped(parts, clip_norm, kind, batch(B, kept), mechanism, loss_bound).total

    return total


@pytest.mark.nightly
@given(
    seed=st.integers(0, 2**31),
    setting=st.sampled_from(SETTINGS),
    bad=st.sampled_from([None, np.nan, np.inf, -np.inf, 1e30]),
    spread=st.sampled_from([0.0, 8.0]),
)
def test_no_record_counts_for_more_than_the_clip_norm(seed, setting, bad, spread):
    """Each record's own part of the sum, in float64, with the worst of records beside it."""
    clip_norm = setting[1]
    random = np.random.default_rng(seed)
    scale = np.exp2(spread * random.normal(size=(B, 1))).astype(np.float32)
    x, y = normal(B, 3, seed=seed) * scale, normal(B, 2, seed=seed + 1)
    if bad is not None:
        x = x.at[0, 1].set(bad)
    mask = random.random(B) < 0.8
    bound = mechanisms.rounded_gaussian(1.0).grid(clip_norm).bound

    def total(kept):
        return total_of_parts(*setting)(x, y, jnp.asarray(kept))

    whole = total(mask)
    for record in range(B):
        others = mask & (np.arange(B) != record)
        pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(total(others)), strict=True)
        moved = sum(
            int(np.sum((np.asarray(a) - np.asarray(b)).astype(object) ** 2)) for a, b in pairs
        )
        assert moved <= bound
        if not mask[record] or (record == 0 and bad is not None and not np.isfinite(bad)):
            assert moved == 0


@pytest.mark.nightly(only=("flat",))
@pytest.mark.parametrize("kind", ["flat", "per_site", "automatic", "normalised"])
def test_both_ways_to_a_clipped_sum_agree(kind, monkeypatch):
    params, x, y = parameters(), 3.0 * normal(B, 3, seed=3), normal(B, 2, seed=4)
    records = per_record.gradients(net, params, x.at[2].set(jnp.nan), y)
    mechanism = mechanisms.rounded_gaussian(1.0)

    def total():
        bounded = clipping.clipped(in_one(records), 1.0, kind, batch(B), mechanism)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(bounded.total)])

    spared = total()
    monkeypatch.setattr(clipping, "LARGEST_BATCH", 0)
    formed = total()
    assert np.abs(formed).max() > 1000
    # What rounding to the grid takes off the clip is not the same.
    np.testing.assert_allclose(spared, formed, rtol=5e-3, atol=3)


@pytest.mark.nightly(
    but=("5-2.0-automatic", "5-2.0-per_site", "4-None-normalised", "4-None-automatic")
)
@pytest.mark.parametrize("kind", ["flat", "per_site", "automatic", "normalised"])
@pytest.mark.parametrize("loss_bound", [None, 2.0])
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_a_batch_in_parts_is_the_batch(kind, loss_bound, rows):
    x, y = 3.0 * normal(B, 3, seed=3), normal(B, 2, seed=4)
    parts = [in_parts(net, parameters(), x.at[2].set(jnp.nan), y, size) for size in (B, rows)]
    whole, split = (
        clipping.clipped(part, 1.0, kind, batch(B), mechanisms.rounded_gaussian(1.0), loss_bound)
        for part in parts
    )
    assert jax.tree.structure(whole.total) == jax.tree.structure(split.total)
    for one, two in zip(jax.tree.leaves(whole.total), jax.tree.leaves(split.total), strict=True):
        np.testing.assert_allclose(one, two, atol=1)


@pytest.mark.parametrize("most", [0, clipping.LARGEST_BATCH])
@pytest.mark.parametrize("kind", ["flat", "per_site", "automatic", "normalised"])
def test_losses_are_added_up_beside_the_gradients(kind, most, monkeypatch):
    monkeypatch.setattr(clipping, "LARGEST_BATCH", most)
    x, y = 3.0 * normal(B, 3, seed=3), normal(B, 2, seed=4)
    mechanism = mechanisms.rounded_gaussian(1.0)
    bounded = clipping.clipped(
        in_parts(net, parameters(), x, y, B), 1.0, kind, batch(B), mechanism, 2.0
    )
    step = mechanism.grid(1.0).step / clipping.loss_unit(1.0) * 2.0
    losses = jax.vmap(lambda x, y: net(parameters(), x, y))(x, y)
    assert (jnp.abs(losses) > 2.0).any()
    expected = jnp.clip(losses, -2.0, 2.0).sum()
    np.testing.assert_allclose(int(bounded.total[1]) * step, expected, atol=B * step)


@pytest.mark.parametrize("most", [0, clipping.LARGEST_BATCH])
def test_an_empty_place_of_a_batch_counts_for_nothing(most, monkeypatch):
    monkeypatch.setattr(clipping, "LARGEST_BATCH", most)
    x, y = normal(B, 3, seed=3), normal(B, 2, seed=4)

    def total(x, kept):
        records = per_record.gradients(net, parameters(), x, y)
        bounded = clipping.clipped(
            in_one(records), 1.0, "flat", batch(B, kept), mechanisms.rounded_gaussian(1.0)
        )
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(bounded.total)])

    some = np.arange(B) != 2
    np.testing.assert_array_equal(total(x, some), total(x.at[2].add(1.0), some))
    assert not np.array_equal(total(x, some), total(x, np.ones(B, bool)))


def test_parts_are_of_float32_and_not_too_many():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters())
    columns = (normal(B, n).astype(jnp.bfloat16) for n in (3, 2))
    parts = in_parts(net, half, *columns, 4)
    with pytest.raises(errors.PrivacyError, match="6 rows come in 2 parts"):
        clipping.clipped(parts, 1.0, "flat", batch(B), mechanisms.rounded_gaussian(1.0))


def line(params, x, y):
    return -(x @ params["w"]) * y


@functools.cache
def total_of_16(clip_norm, kind, loss):
    @jax.jit
    def total(x, y, kept):
        records = per_record.gradients(loss, {"w": jnp.zeros(64)}, x, y)
        return clipping.clipped(in_one(records), clip_norm, kind, batch(16, kept), FINE).total["w"]

    return total


def moved_by_the_first(x, y, clip_norm, kind, loss=line):
    """How far the first record moves the sum of 16, in clip norms."""
    total = total_of_16(clip_norm, kind, loss)
    one, two = (total(x, y, jnp.arange(16) >= first) for first in (0, 1))
    assert int(jnp.abs(two).max()) > 0
    steps = np.sqrt(float((np.asarray(one - two, float) ** 2).sum()))
    return steps * FINE.grid(clip_norm).step / clip_norm


@pytest.mark.nightly(only=("1e-06-flat",))
@pytest.mark.parametrize("kind", ["flat", "per_site", "automatic", "normalised"])
@pytest.mark.parametrize("clip_norm", [1e-6, 1.0, 1e3])
def test_no_record_takes_the_others_with_it(kind, clip_norm):
    """However large one factor of a gradient is while the other one is nothing."""
    x, y = normal(16, 64), normal(16, seed=1)
    for size in (0.0, 1e-37, 1e-19, 1.0, 1e19, 1e37):
        for signal in (0.0, 1e-30, 1e9, 1e37):
            columns = x.at[0].set(size), y.at[0].set(signal)
            assert moved_by_the_first(*columns, clip_norm, kind) <= 1.0 + 1e-6


def test_what_is_not_float32_is_formed():
    x, y = normal(16, 64), normal(16, seed=1)
    whole = jnp.ones((16, 64), jnp.int8).at[0].set(-128)

    def mixed(params, x, y):
        axes = (((0,), (0,)), ((), ()))
        return -lax.dot_general(x, params["w"], axes, preferred_element_type=jnp.float32) * y

    for columns in (whole, x.astype(jnp.bfloat16), x.astype(jnp.float16)):
        assert per_record.gradients(mixed, {"w": jnp.zeros(64)}, columns, y).spared == 0
        assert moved_by_the_first(columns, y, 1.0, "flat", mixed) <= 1.0
    half = {"w": jnp.zeros(64, jnp.bfloat16)}
    assert (
        per_record.gradients(line, half, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)).spared == 0
    )


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-25, 1e-19, 1e-10])
def test_no_norm_is_less_than_the_gradient_s(size):
    """Where squares underflow, and where XLA works with constants; in either factor."""
    x = jnp.full((2, 64), size).at[0, 0].set(1.1 * size)
    for columns in ((x, jnp.ones(2)), (jnp.ones((2, 64)), x[:, 0])):
        found = jax.jit(
            lambda columns=columns: per_record.gradients(
                line, {"w": jnp.zeros(64)}, *columns
            ).norm()
        )()
        exact = np.sqrt((np.asarray(columns[0], np.float64) ** 2).sum(axis=1)) * columns[1]
        assert (np.asarray(found) >= exact * (1 - 1e-6)).all()
        if size == 1e-10:
            np.testing.assert_allclose(found, exact, rtol=1e-5)
