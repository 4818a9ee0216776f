"""Sigmoid belief networks: E step, statistics, what noise leaves of them, and what is no record."""

import dataclasses
import functools
import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors
from fedvi.audit.recording import Recorder
from fedvi.expfam import tree
from fedvi.inference.solvers import vips
from fedvi.models.sbn import SigmoidBeliefNetwork, generalised_inverse
from fedvi.privacy import mechanisms, sampling
from fedvi.updates.conjugate import ConjugateModel, FromFile, StartsFrom, from_table, to_table
from tests.vips import answer, federate, first_task, shard_of, total

VISIBLE, HIDDEN = 4, 3
NONE = mechanisms.gaussian(0.0)


def made(**fields):
    return SigmoidBeliefNetwork(VISIBLE, HIDDEN, **fields)


def posterior_of(model, seed=1):
    """A q with weights of size 1."""
    generator = np.random.default_rng(seed)
    shape = (model.visible, model.hidden + 1)
    mean = generator.normal(size=shape)
    biases = model.start[1]._replace(h=20.0 * generator.normal(size=model.hidden))
    precision = generator.uniform(2.0, 9.0, shape)
    return model.start[0]._replace(
        h=(mean * precision).ravel(), J=precision.ravel()
    ), biases._replace(J=np.full(model.hidden, 20.0))


def simulated(count, visible=VISIBLE, hidden=HIDDEN, seed=0):
    generator = np.random.default_rng(seed)
    weights = 3.0 * generator.normal(size=(visible, hidden))
    z = generator.random((count, hidden)) < 0.5
    logits = z @ weights.T - 0.5 * weights.sum(axis=1)
    return {"y": (generator.random(logits.shape) < scipy.special.expit(logits)).astype(np.int8)}


@functools.cache
def compiled(model):
    return jax.jit(model.expected)


def inferred(model, posterior, data):
    return compiled(model)(model.messages(posterior), data)


def second_moments(model, posterior):
    """E[(w, c)] [P, K + 1], E of their products [P, K + 1, K + 1], by explicit inverses; E[b], Var[b]."""
    weights, biases = posterior
    shape = (model.visible, model.hidden + 1)
    mean = (weights.h / weights.J).reshape(shape)
    covariance = np.stack([np.diag(1.0 / row) for row in weights.J.reshape(shape)])
    products = covariance + mean[:, :, None] * mean[:, None, :]
    return mean, products, biases.h / biases.J, 1.0 / biases.J


def of_states(z):
    """All 2^K hidden states with a 1 beside them, and their probabilities under q(z)."""
    states = np.array([*itertools.product((0.0, 1.0), repeat=len(z))])
    chance = np.prod(np.where(states == 1.0, z, 1.0 - z), axis=1)
    return np.c_[states, np.ones(len(states))], chance


def square_of_logits(products, z):
    states, chance = of_states(z)
    return np.einsum("s,sk,jkl,sl->j", chance, states, products, states)


def log_cosh(tilt):
    return np.logaddexp(tilt / 2.0, -tilt / 2.0)


def bound(model, posterior, y, z, tilt):
    """The evidence bound of one record, up to what q(θ) alone adds: by sums over all hidden states."""
    mean, products, b, _ = second_moments(model, posterior)
    centre = mean[:, :-1] @ z + mean[:, -1]
    omega = np.tanh(tilt / 2.0) / (2.0 * tilt)
    excess = square_of_logits(products, z) - tilt**2
    visible = (y - 0.5) * centre - log_cosh(tilt) - 0.5 * omega * excess
    return visible.sum() + z @ b + scipy.special.entr(z).sum() + scipy.special.entr(1.0 - z).sum()


def test_hidden_units_are_renewed_to_the_optimum_of_the_bound_one_after_the_other():
    model = made(sweeps=2)
    posterior, data = posterior_of(model), simulated(5)
    _, products, b, _ = second_moments(model, posterior)
    local = inferred(model, posterior, data)
    for row, y in enumerate(data["y"].astype(float)):
        z = scipy.special.expit(b)
        for _ in range(model.sweeps):
            tilt = np.sqrt(square_of_logits(products, z))
            for k in range(HIDDEN):

                def loss(value, y=y, k=k, z=z, tilt=tilt):
                    return -bound(model, posterior, y, np.r_[z[:k], value, z[k + 1 :]], tilt)

                found = scipy.optimize.minimize_scalar(
                    loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-9}
                )
                z = np.r_[z[:k], found.x, z[k + 1 :]]
        np.testing.assert_allclose(local["z"][row], z, atol=2e-5)
        tilt = np.sqrt(square_of_logits(products, z))
        np.testing.assert_allclose(
            local["bend"][row], np.tanh(tilt / 2.0) / (2.0 * tilt), rtol=1e-4
        )


def evidence(model, posterior, data):
    """The evidence bound of all records at the optimum of their latents that the E step finds."""
    _, products, b, variance = second_moments(model, posterior)
    local = inferred(model, posterior, data)
    parts = []
    for y, z in zip(data["y"].astype(float), np.asarray(local["z"], float), strict=True):
        parts.append(bound(model, posterior, y, z, np.sqrt(square_of_logits(products, z))))
    # −E log(1 + e^b), bounded as for the visible units.
    biases = len(data["y"]) * (b / 2.0 + log_cosh(np.sqrt(b**2 + variance))).sum()
    return sum(parts) - biases - model.family.kl(posterior, model.prior)


@pytest.mark.nightly
def test_rounds_without_noise_raise_the_evidence_to_a_stationary_point():
    model = made(sweeps=20)
    data = simulated(60)
    how = {"averaging": 0.5, "delay": 4.0}
    solver = vips(model.family, model, sampling.full(60), NONE, clip_norm=np.inf, **how)
    shard = shard_of(data)
    standings = [standing.reported for standing in federate(solver, [shard], 80)]
    found = [evidence(model, q, data) for q in [*standings[:10], *standings[10::10], standings[-1]]]
    assert (np.diff(found) > -1e-3).all()
    assert found[-1] > found[0] + 2.0
    # At a stationary point no direction helps.
    generator = np.random.default_rng(3)
    for _ in range(3):
        move = model.family.moments(standings[-1])[1]
        away = tree.map_leaves(np.array, standings[-1])
        step = 0.2 * generator.choice([-1.0, 1.0], move.shape) * move
        split = VISIBLE * (HIDDEN + 1)
        weights, biases = away
        moved = (
            weights._replace(h=weights.h + weights.J * step[:split]),
            biases._replace(h=biases.h + biases.J * step[split:]),
        )
        assert evidence(model, moved, data) < found[-1]


def statistics(model, local):
    """What each record adds, formed: [N, …] for each block."""
    z, bend, slope = (np.asarray(local[name], float) for name in ("z", "bend", "slope"))
    wide = np.c_[z, np.ones(len(z))]
    return {
        "h": slope[:, :, None] * wide[:, None, :],
        "b": z - 0.5,
        "count": np.ones((len(z), 1)),
        "J": bend[:, :, None] * wide[:, None, :],
        "V": bend[:, :, None] * (z * (1.0 - z))[:, None, :],
    }


def wide_local(model, posterior, data):
    local = inferred(model, posterior, data)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), local)


def test_norms_and_sums_are_those_of_statistics_formed_one_by_one():
    model = made()
    posterior, data = posterior_of(model), simulated(9)
    with jax.enable_x64(True):
        local = wide_local(model, posterior, data)
        squares = model.square_norms(None, local, data)
        weights = np.linspace(0.0, 1.0, 9)
        sums = model.sums(None, local, data, jnp.asarray(weights))
        alone = model.sums(None, local, data, jnp.asarray(np.eye(9)[4]))
    explicit = statistics(model, local)
    assert explicit.keys() == {block.name for block in model.blocks} == sums.keys()
    for block in model.blocks:
        formed = explicit[block.name]
        assert formed.shape[1:] == block.shape
        found = (formed.reshape(9, -1) ** 2).sum(axis=1)
        np.testing.assert_allclose(squares[block.name], found, rtol=1e-12)
        expected = np.tensordot(weights, formed, 1)
        np.testing.assert_allclose(sums[block.name], expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(alone[block.name], formed[4], rtol=1e-12, atol=1e-14)


def test_a_factor_puts_every_number_to_its_optimum_given_the_others():
    model = made()
    posterior, data = posterior_of(model), simulated(9)
    mean, _, b, variance = second_moments(model, posterior)
    local = wide_local(model, posterior, data)
    formed = statistics(model, local)
    weights, biases = model.factor(
        {name: part.sum(axis=0) for name, part in formed.items()}, posterior
    )
    z, bend = np.asarray(local["z"], float), np.asarray(local["bend"], float)
    wide, centred = np.c_[z, np.ones(9)], data["y"] - 0.5
    outer = wide[:, :, None] * wide[:, None, :]
    every = np.arange(HIDDEN + 1)
    outer[:, every, every] = wide
    h, precision = centred.T @ wide, np.einsum("nj,nkl->jkl", bend, outer)
    others = precision.copy()
    others[:, every, every] = 0.0
    h = (h - np.einsum("jkl,jl->jk", others, mean)).ravel()
    precision = precision[:, every, every].ravel()
    np.testing.assert_allclose(weights.h, h, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(weights.J, precision, rtol=1e-5)
    tilt = np.sqrt(b**2 + variance)
    np.testing.assert_allclose(biases.h, (z - 0.5).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(biases.J, 9.0 * np.tanh(tilt / 2.0) / (2.0 * tilt), rtol=1e-12)


ODD = st.sampled_from([np.nan, np.inf, -np.inf, 1e38, 1e-40, 0.0, 1.0, 0.5, 2.0])


@functools.cache
def recorded(rows):
    """A solver whose totals can be read, a recorder of them, and a task at some q."""
    model, recorder = made(), Recorder(mechanisms.rounded_gaussian(1.0))
    solver = vips(model.family, model, sampling.full(rows), recorder, clip_norm=0.3)
    return (
        solver,
        recorder,
        first_task(solver, version=1)._replace(posterior=posterior_of(model, 2)),
    )


@settings(max_examples=4)
@given(odd=st.lists(ODD, min_size=VISIBLE, max_size=VISIBLE), place=st.integers(0, 11))
def test_a_record_moves_the_total_by_the_clip_norm_at_most(odd, place):
    solver, recorder, task = recorded(12)
    data = {"y": simulated(12)["y"].astype(np.float32)}
    other = {"y": data["y"].copy()}
    other["y"][place] = odd
    without = shard_of(data)
    without = without._replace(mask=without.mask & (np.arange(12) != place))
    here, step = total(solver, recorder, task, shard_of(data))
    there, _ = total(solver, recorder, task, shard_of(other))
    less, _ = total(solver, recorder, task, without)
    assert 0.0 < step * np.linalg.norm(np.asarray(here - less, float)) <= 0.3
    assert step * np.linalg.norm(np.asarray(there - less, float)) <= 0.3
    assert step * np.linalg.norm(np.asarray(there - here, float)) <= 0.6


def test_rows_that_hold_anything_but_zeros_and_ones_do_not_count():
    model, rows = made(), 6
    solver = vips(model.family, model, sampling.full(rows), NONE, clip_norm=np.inf)
    data = {"y": simulated(rows)["y"].astype(np.float32)}
    task = first_task(solver)
    whole = answer(solver, task, shard_of(data))
    data["y"][3, 1], data["y"][4, 0] = 0.5, np.nan
    assert model.sound(data).tolist() == [True, True, True, False, False, True]
    partial = answer(solver, task, shard_of(data))
    shard = shard_of(data)
    masked = answer(solver, task, shard._replace(mask=model.sound(data)))
    for name in whole:
        np.testing.assert_array_equal(partial[name], masked[name])
    assert np.abs(whole["h"] - partial["h"]).max() > 1e-3


def test_a_row_has_its_bits_wherever_it_stands():
    # At this size products over several rows are found to round the last of them otherwise.
    model = SigmoidBeliefNetwork(7, 5)
    posterior, data = posterior_of(model), simulated(192, 7, 5)
    straight = inferred(model, posterior, data)
    generator = np.random.default_rng(0)
    for _ in range(10):
        order = generator.permutation(192)
        mixed = inferred(model, posterior, {"y": data["y"][order]})
        for name in straight:
            assert np.array_equal(np.asarray(straight[name])[order], np.asarray(mixed[name]))


@pytest.mark.nightly(only=("1.0-False",))
@pytest.mark.parametrize("shrinkage", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_a_posterior_is_proper_and_bounded_whatever_the_noise(shrinkage, size):
    model = made(shrinkage=shrinkage)
    signal = federate(
        vips(model.family, model, sampling.full(32), NONE, averaging=0.0),
        [shard_of(simulated(32))],
        2,
    )[-1].reported
    generator = np.random.default_rng(4)
    for _ in range(5):
        noisy = tree.map_leaves(lambda a: a + 10.0 * size * generator.normal(size=a.shape), signal)
        found = model.posterior(noisy, {"h": size, "J": size, "V": size, "b": size, "count": size})
        model.family.check(found)
        assert model.family.is_proper(found)
        mean, sd = model.family.moments(found)
        assert (np.abs(mean) <= model.largest * (1.0 + 1e-6)).all()
        assert (sd <= model.bias_scale * 10.0 * (1.0 + 1e-6)).all()
        local = inferred(model, found, simulated(4))
        assert all(np.isfinite(leaf).all() for leaf in local.values())


@pytest.mark.parametrize("delay", [1.0, 5.0])
def test_any_partition_gives_what_one_holder_of_all_records_gets(delay):
    model, data = made(), simulated(24)
    solver = vips(
        model.family, model, sampling.full(24), NONE, averaging=0.7, delay=delay, clip_norm=0.9
    )
    parts = [data["y"][:5], data["y"][5:5], data["y"][5:]]
    pooled = federate(solver, [shard_of(data, 24)], 4)
    split = federate(solver, [shard_of({"y": part}, 24) for part in parts], 4)
    for one, several in zip(pooled, split, strict=True):
        for left, right in zip(
            tree.leaves(one.reported), tree.leaves(several.reported), strict=True
        ):
            # Of float32 latents at a posterior that is equal but for rounding.
            np.testing.assert_allclose(
                left, right, rtol=0.0, atol=1e-6 * max(1.0, np.abs(left).max())
            )


def test_a_first_step_is_as_short_as_it_is_told_to_be():
    model, data = made(), simulated(500)
    start = model.family.moments(model.start)[0]
    moved = {}
    for delay in (1.0, 400.0, 1600.0):
        solver = vips(model.family, model, sampling.full(500), NONE, averaging=0.5, delay=delay)
        (standing,) = federate(solver, [shard_of(data)], 1)
        moved[delay] = np.abs(model.family.moments(standing.reported)[0] - start)[: VISIBLE * 4]
    # ρ = 0.05 and 0.025; at ρ = 0 the prior alone moves it, by about 1/(500/8) of each number.
    still = 0.03 * np.abs(start[: VISIBLE * 4]).max()
    assert moved[400.0].max() < 0.15 * moved[1.0].max() + still
    assert moved[1600.0].max() < 0.6 * moved[400.0].max() + still
    assert isinstance(model, StartsFrom)


def test_shrinkage_is_the_fixed_point_of_its_hierarchy():
    model = made(shrinkage=True, weight_scale=1.0)
    generator = np.random.default_rng(5)
    total = tree.subtract(posterior_of(model), model.prior)
    h = total[0].h + generator.normal(size=total[0].h.shape)
    found = model.posterior((total[0]._replace(h=h), total[1]), {})
    shape = (VISIBLE, HIDDEN + 1)
    change = found[0].J - total[0].J
    precision = change.reshape(shape)[:, :-1]
    np.testing.assert_allclose(change.reshape(shape)[:, -1], model.bias_scale**-2.0, rtol=1e-9)
    _, products, _, _ = second_moments(model, found)
    second = np.diagonal(products, axis1=1, axis2=2)[:, :-1]
    # The others' moments given E[w²], from another start and for longer.
    rate, of_units, top = np.ones_like(second), np.full(HIDDEN, 0.3), 0.4
    for _ in range(500):
        scale = np.sqrt(second / (2.0 * rate)) * ratio(np.sqrt(2.0 * rate * second))
        rate = 1.0 / (scale + of_units)
        of_units = (0.5 * VISIBLE + 0.5) / (top + rate.sum(axis=0))
        top = (0.5 * HIDDEN + 0.5) / (1.0 + of_units.sum())
    inverse = np.sqrt(2.0 * rate / second) * ratio(np.sqrt(2.0 * rate * second))
    np.testing.assert_allclose(precision, inverse, rtol=0.05)
    assert precision.max() > 2.0 * precision.min()


@pytest.mark.parametrize(("far", "precision"), [(True, 1e-2), (False, 1e4)])
def test_learnt_precisions_have_a_public_floor_and_ceiling(far, precision):
    """Noise in the means would feed back until nothing is left of the prior, or nothing but it."""
    model = made(shrinkage=True, weight_scale=2.0, largest=1e30)
    shape = (VISIBLE, HIDDEN + 1)
    h, sharp = np.full(shape, 1e8 if far else 0.0), 0.0 if far else 1e8
    weights, biases = model.family.zeros()
    curvature = np.full(shape, sharp).ravel()
    total_ = weights._replace(h=h.reshape(weights.h.shape), J=curvature), biases
    found = model.posterior(total_, {})[0].J - curvature
    wanted = np.full(shape, precision / 4.0)
    wanted[:, -1] = model.bias_scale**-2.0
    # 1e8 is there to 1e-8, and its difference with 1e8 + 2500 to as much.
    np.testing.assert_allclose(found.reshape(shape), wanted, rtol=1e-12, atol=0.0 if far else 3e-8)


def test_more_hidden_units_than_visible_ones_are_fitted():
    model = SigmoidBeliefNetwork(2, 5)
    solver = vips(model.family, model, sampling.full(8), mechanisms.gaussian(1.0), averaging=0.7)
    standing = federate(solver, [shard_of(simulated(8, 2, 5))], 2)[-1]
    assert model.family.is_proper(standing.reported)


def ratio(root):
    return scipy.special.kv(1, root) / scipy.special.kv(0, root)


def test_moments_of_the_shrinkage_are_integrals():
    for a, b in ((1.0, 1.0), (0.3, 4.0), (5.0, 0.02)):

        def density(x, power, a=a, b=b):
            return x ** (power - 1.0) * np.exp(-0.5 * (a * x + b / x))

        whole, inverse, mean = (
            scipy.integrate.quad(density, 0.0, np.inf, (power,), limit=200)[0]
            for power in (0.0, -1.0, 1.0)
        )
        found = generalised_inverse(np.array([a]), np.array([b]))
        expected = [[inverse / whole], [mean / whole]]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.nightly
def test_a_private_network_reconstructs_held_out_records():
    # Six pixels in two groups, each lit together: what is right most often is right half of the time.
    generator = np.random.default_rng(0)
    groups = np.repeat(generator.integers(0, 2, (2400, 2)), 3, axis=1)
    y = np.where(generator.random(groups.shape) < 0.05, 1 - groups, groups).astype(np.int8)
    model = SigmoidBeliefNetwork(6, 2, seed=2)
    solver = vips(
        model.family,
        model,
        sampling.poisson(0.2, 2000),
        mechanisms.rounded_gaussian(1.0),
        averaging=0.5,
        delay=16.0,
    )
    standing = federate(solver, [shard_of({"y": y[:2000]})], 60)[-1]
    seen = model.reconstructed(standing.reported, y[2000:], together=256)
    assert seen.shape == (400, 6)
    assert ((seen > 0.5) == y[2000:]).mean() > 0.85


def test_it_is_a_value_that_a_server_makes_again_without_jax():
    model = made(shrinkage=True, seed=3)
    assert isinstance(model, ConjugateModel)
    assert isinstance(model, FromFile)
    assert from_table(to_table(model)) == model
    assert model.family.is_proper(model.start)
    assert len(model.names) == model.family.size
    assert sum(block.share for block in model.blocks) == pytest.approx(1.0)
    assert not tree.equal(model.start, dataclasses.replace(model, seed=4).start)
    check = "import sys; import fedvi.models.sbn; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": 0}, r"hidden is 0, expected at least 1"),
        ({"hidden": 2.5}, r"hidden is 2\.5, expected a whole number of at least 1"),
        ({"visible": -1}, r"visible is -1, expected at least 1"),
        ({"visible": 4.0}, r"visible is 4\.0, expected a whole number"),
        ({"sweeps": True}, r"sweeps is True, expected a whole number"),
        ({"seed": -1}, r"seed is -1, expected at least 0"),
        ({"sweeps": 0}, r"sweeps is 0"),
        ({"weight_scale": 0.0}, r"weight_scale is 0\.0"),
        ({"largest": np.inf}, r"largest is inf"),
        ({"ridge": -1.0}, r"ridge is -1\.0"),
    ],
)
def test_fields_out_of_range_are_refused(monkeypatch, fields, message):
    # As at a user's, who has no checks of types at run time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(errors.ModelError, match=message):
        SigmoidBeliefNetwork(**{"visible": VISIBLE, "hidden": HIDDEN, **fields})


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((2, 3)), r"y has shape \(2, 3\), expected \(records, 4\)"),
        (np.zeros(4), r"y has shape \(4,\)"),
        (np.array([[0, 1, 0, 1], [0, 255, 0, 1]]), r"y\[1\] holds 255, expected 0 or 1"),
        (np.array([[0.0, 0.5, 0.0, 1.0]]), r"y\[0\] holds 0\.5"),
        (np.array([[0.0, np.nan, 0.0, 1.0]]), r"y\[0\] holds nan"),
    ],
)
def test_what_is_not_binary_is_refused(y, message):
    model = made()
    with pytest.raises(errors.DataError, match=message):
        model.reconstructed(model.start, y)
