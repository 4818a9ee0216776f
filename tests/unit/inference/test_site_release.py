"""Site release: what a client sums, what the server makes of it, and what both promise."""

import functools
import importlib
import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.inference import block_sums, many_visits, solvers, weights
from fedvi.inference.blocks import length_of
from fedvi.inference.clipping import MOST_ROWS, predictor_limit
from fedvi.inference.units import unit_model
from fedvi.privacy import mechanisms, random, sampling
from fedvi.privacy.base import Batch, filled
from fedvi.privacy.bounded import clipped_sum_of_parts, float_limit, float_sum
from fedvi.privacy.release import decoded
from fedvi.typing import ROWS
from fedvi.updates.base import Shard, Task
from fedvi.updates.coordinates import EMPHASIS, Coordinates, Foreseen, length_for
from fedvi.updates.finish import finish_site
from tests.studies import random_eta, raw_study, run_study, split

module = importlib.import_module("fedvi.inference.solvers.site_release")

SIZE, RECORDS = 3, 64
FAMILY = expfam.full_gaussian(SIZE)
MODEL = models.logistic(["a", "b", "c"])
WHOLE = sampling.full(RECORDS)
CLIP = 1.5


def records(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(RECORDS, SIZE)).astype(np.float32)
    return {"x": x, "y": generator.integers(0, 2, RECORDS).astype(np.float32)}


def task(seed: int = 1) -> Task:
    return Task("c/0", "c", 0, 0, random_eta(FAMILY, seed), FAMILY.zeros(), 1.0)


def solver(mechanism, *, clip_norm=CLIP, sampler=WHOLE, model=MODEL, **settings):
    return solvers.site_release(FAMILY, model, sampler, mechanism, clip_norm, **settings)


def released(solver, data, mask=None, seed=0):
    keys = functools.partial(random.insecure_root(seed).key, "c", "c/0")
    mask = np.ones(RECORDS, bool) if mask is None else mask
    answer = solver.update(keys, (), task(), Shard(data, mask))[1]
    return {name: np.asarray(part) for name, part in decoded(answer).value.items()}


def exact(data, clip_norm=math.inf):
    """Gradient and curvature by 20-point quadrature in float64, weighed and then clipped jointly.

    The sd of a predictor counts as 1 at most.
    """
    mean, root = FAMILY.location_root(task().posterior)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    spread = np.minimum(np.linalg.norm(x @ root, axis=1), 1.0)
    p = 1.0 / (1.0 + np.exp(-((x @ mean)[:, None] + spread[:, None] * nodes)))
    weights = weights / weights.sum()
    gradient = (y - p @ weights)[:, None] * x
    curvature = ((p * (1.0 - p)) @ weights)[:, None, None] * x[:, :, None] * x[:, None, :]
    unit = clip_norm if math.isfinite(clip_norm) else 1.0
    weight = 4.0 / unit * 0.5
    bend = weight * np.linalg.norm(curvature, axis=(1, 2))
    longest = np.hypot(np.maximum(p, 1.0 - p) @ weights * np.linalg.norm(x, axis=1), bend)
    kept = np.minimum(1.0, (1.0 - 2.0**-8) * clip_norm / longest)
    norm = kept * np.hypot(np.linalg.norm(gradient, axis=1), bend)
    assert (norm <= clip_norm).all()  # of a yes or no, nothing is left to clip
    return (kept[:, None] * gradient).sum(0), (kept[:, None, None] * curvature).sum(0)


@pytest.mark.parametrize("clip_norm", [math.inf, CLIP, 0.3])
def test_what_is_summed_is_clipped_gradients_and_curvatures(clip_norm):
    given = solver(mechanisms.gaussian(0.0), clip_norm=clip_norm, nodes=20)
    value = released(given, records())
    site = tree.add(given.finish(value, task()).delta, task().factor)
    gradient, curvature = exact(records(), clip_norm)
    mean, _ = FAMILY.moments(task().posterior)
    # Float32 sums of 64 terms, clipped 5 parts in 10⁶ early.
    np.testing.assert_allclose(site.J, curvature, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(site.h, gradient + curvature @ mean, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "units", "clip_norm", "off"),
    [
        ("logistic", False, math.inf, 1e-4),
        ("poisson", False, math.inf, 1e-4),
        ("negative_binomial", False, math.inf, 1e-4),
        ("binomial", True, math.inf, 1e-4),
        # The longest slope of few trials has a kink.
        ("logistic", False, 0.3, 0.02),
    ],
)
def test_the_usual_nodes_are_as_good_as_many_where_a_predictor_is_as_uncertain_as_it_may_be(
    kind, units, clip_norm, off
):
    wide = task()._replace(posterior=FAMILY.from_moments(np.zeros(SIZE), 4.0 * np.eye(SIZE)))
    settings = {"dispersion": 0.5} if kind == "negative_binomial" else {}
    data, model = records(), getattr(models, kind)(["a", "b", "c"], **settings)
    if kind != "logistic":
        data["y"] = np.arange(RECORDS, dtype=np.float32)
    if kind == "binomial":
        data["y"] = np.stack([data["y"] % 3, data["y"] % 5], axis=1)
    if units:
        model = unit_model(model)
        data = {name: np.stack([part, part[::-1]], axis=1) for name, part in data.items()}
        data[ROWS] = np.ones((RECORDS, 2), bool)
    few, many = (
        solver(mechanisms.gaussian(0.0), model=model, clip_norm=clip_norm, **nodes)
        .update(random.insecure_root(0).key, (), wide, Shard(data, np.ones(RECORDS, bool)))[1]
        .value
        for nodes in ({}, {"nodes": 60})
    )
    for name, part in many.items():
        np.testing.assert_allclose(few[name], part, atol=off * np.abs(part).max())


@pytest.mark.parametrize("few", [1, 100])
@pytest.mark.parametrize(
    "mechanism",
    [
        mechanisms.rounded_gaussian(0.75),
        mechanisms.discrete_gaussian(9.0),
        mechanisms.gaussian(2.0),
    ],
)
def test_visits_of_one_call_are_those_alone_with_noise_side_by_side_or_not(
    mechanism, few, monkeypatch
):
    monkeypatch.setattr(many_visits, "_FEW", few)
    given = solver(mechanism, clip_norm=1.25 + few)  # of its own, since compiled programs are kept
    data = [records(seed) for seed in range(5)]
    roots, mask = [random.insecure_root(seed) for seed in range(5)], np.ones(RECORDS, bool)
    joined = {name: np.stack([each[name] for each in data]) for name in data[0]}

    def keys_of(purpose):
        return jnp.stack([root.key(purpose) for root in roots])

    call = given.update_many(keys_of, [()] * 5, [task()] * 5, Shard(joined, np.stack([mask] * 5)))
    together = many_visits.apart(call()[1])
    for root, each, found in zip(roots, data, together, strict=True):
        alone = given.update(root.key, (), task(), Shard(each, mask))[1]
        assert found.event == alone.event
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(one, other)


def test_any_other_model_gives_the_same_by_draws():
    """A sharp q, so that draws differ little; the GLM as a model of units with one row each."""
    sharp = FAMILY.from_moments(np.array([0.3, -0.2, 0.5]), 1e-8 * np.eye(SIZE))
    data = records()
    grouped = {name: column[:, None] for name, column in data.items()}
    grouped[ROWS] = np.ones((RECORDS, 1), bool)
    found = []
    for model, given in ((MODEL, data), (unit_model(MODEL), grouped)):
        keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
        at = task()._replace(posterior=sharp)
        # Without a bound: of a GLM, records that might pass it are weighed down first.
        made = solver(mechanisms.gaussian(0.0), model=model, clip_norm=math.inf)
        value = made.update(keys, (), at, Shard(given, np.ones(RECORDS, bool)))[1].value
        found.append(np.concatenate([np.asarray(value[name]) for name in sorted(value)]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=2e-3)


def as_it_is(size):
    return jnp.zeros(size), jnp.ones(size), jnp.int32(0), jnp.float32(0), jnp.float32(0)


def noiseless_total(data, mask, *, formed: bool, clip_norm=CLIP, model=MODEL):
    """The bounded total in integers, before noise: by norms alone, or with every record formed."""
    mechanism = mechanisms.rounded_gaussian(1.0)
    rows, columns = np.tril_indices(SIZE)
    weight = 4.0 / clip_norm  # half of C² for the curvature
    twice = np.where(rows == columns, 1.0, math.sqrt(2.0)).astype(np.float32)
    mean, root = (jnp.asarray(p, jnp.float32) for p in FAMILY.location_root(task().posterior))
    batch = Batch(jnp.arange(RECORDS), jnp.asarray(mask), WHOLE)
    given = jax.tree.map(jnp.asarray, data)
    found = weights.of_predictor(model, 20, mean, root, as_it_is(SIZE), given, weight, clip_norm)
    if not formed:
        triangle = (rows, columns, twice)
        return module._ghost_sum(*found, weight, triangle, clip_norm, batch, mechanism)
    x, slope, bend = found
    products = bend[:, None, None] * x[:, :, None] * x[:, None, :]
    contributions = {
        "gradient": slope[:, None] * x,
        "curvature": products[:, rows, columns] * (weight * twice)[None, :],
    }

    def of_part(part):
        return jax.tree.map(
            lambda column: jax.lax.dynamic_slice_in_dim(column, 16 * part, 16), contributions
        )

    return clipped_sum_of_parts(of_part, 4, clip_norm, batch, mechanism)


def flat(bounded) -> np.ndarray:
    step = bounded.grid.step
    return (
        np.concatenate([np.asarray(p, np.float64).ravel() for p in jax.tree.leaves(bounded.total)])
        * step
    )


@pytest.mark.nightly
def test_norms_alone_give_the_sum_of_formed_contributions():
    mask = np.arange(RECORDS) % 5 != 0
    ghost, formed = (flat(noiseless_total(records(), mask, formed=way)) for way in (False, True))
    # Each is clipped early by what its rounding may add: together 2 % of C a record at most.
    assert np.linalg.norm(ghost - formed) < 0.02 * np.linalg.norm(formed)
    assert np.linalg.norm(formed) > CLIP


@pytest.mark.nightly(only=("formed-near", "ghost-near"))
@pytest.mark.parametrize(
    "odd", [3.0, 1e4, 1e12, 1e25, np.inf, np.nan], ids=["near", "far", "vast", "over", "inf", "nan"]
)
@pytest.mark.parametrize("formed", [False, True], ids=["ghost", "formed"])
def test_one_record_moves_the_sum_by_the_clip_norm_at_most(formed, odd):
    """Fails on a norm of the gradient alone, and on off-diagonal entries × 2 instead of √2."""
    everyone = np.ones(RECORDS, bool)
    # Of a yes or no, what might be too long is weighed down and leaves nothing to clip.
    model = models.linear(["a", "b", "c"], noise_scale=0.5) if odd == 3.0 else MODEL
    total = functools.partial(noiseless_total, formed=formed, model=model)
    data, changed = records(), records()
    changed["x"] = data["x"].copy()
    changed["x"][7] = odd
    without = everyone & (np.arange(RECORDS) != 7)
    base = flat(total(data, everyone))
    for other, limit in (
        (flat(total(changed, without)), CLIP),
        (flat(total(changed, everyone)), 2.0 * CLIP),
    ):
        assert np.isfinite(other).all()
        assert np.linalg.norm(base - other) <= limit
    added = flat(total(changed, everyone))
    removed = flat(total(changed, without))
    moved = np.linalg.norm(added - removed)
    assert moved <= CLIP
    if odd == 3.0:
        assert moved > 0.95 * CLIP  # it is clipped, not lost


@pytest.mark.parametrize(
    ("x", "y", "clip_norm"),
    [(1e-19, 1.8e19, 1.0), (1e-19, 1.8e19, 1e-3), (1e-19, 1e12, 1e-9), (1e-30, 3e38, 1e-6)],
)
def test_a_short_row_with_a_vast_outcome_is_clipped_too(x, y, clip_norm):
    """In float32 the square of its norm would vanish, and it would move the sum by 205 C."""
    model = models.linear(["a", "b", "c"])
    data = {"x": np.full((RECORDS, SIZE), x, np.float32), "y": np.full(RECORDS, y, np.float32)}
    everyone = np.ones(RECORDS, bool)
    totals = [
        flat(noiseless_total(data, mask, formed=False, clip_norm=clip_norm, model=model))
        for mask in (everyone, everyone & (np.arange(RECORDS) != 7))
    ]
    assert np.linalg.norm(totals[0] - totals[1]) <= clip_norm


def test_what_a_record_contributes_depends_on_no_row():
    """Rows beyond a multiple of eight are taken otherwise by XLA; hence the empty rows at the end."""
    size, count = 20, 129
    family = expfam.full_gaussian(size)
    model = models.logistic([f"x{index}" for index in range(size)])
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, size)).astype(np.float32)
    y = generator.integers(0, 2, count).astype(np.float32)
    mean = jnp.asarray(1e6 * generator.normal(size=size), jnp.float32)
    root = jnp.asarray(np.linalg.cholesky(random_eta(family, 2).J), jnp.float32)

    @jax.jit
    def found(indices):
        batch = filled(Batch(indices, jnp.ones(count, bool), sampling.full(count)))
        taken = {"x": jnp.asarray(x)[batch.indices], "y": jnp.asarray(y)[batch.indices]}
        at = jnp.linspace(-1.0, 1.0, size), jnp.linspace(0.5, 3.0, size), *as_it_is(size)[2:]
        return weights.of_predictor(model, 20, mean, root, at, taken, 2.0, 1.0)

    still = [np.asarray(part)[:count] for part in found(jnp.arange(count))]
    np.testing.assert_array_equal(still[0][:, 0], 0.5 * (x[:, 0] + x[:, 0]))
    for shift in range(1, 9):
        order = np.roll(np.arange(count), shift)
        for part, moved in zip(still, found(jnp.asarray(order)), strict=True):
            np.testing.assert_array_equal(np.asarray(moved)[:count], part[order])


def test_a_visit_costs_what_its_sampler_and_mechanism_say():
    mechanism, sampler = mechanisms.rounded_gaussian(1.3), sampling.poisson(0.25, RECORDS)
    event = solver(mechanism, sampler=sampler).cost
    assert event.rate == 0.25
    assert event.inner.noise_multiplier == 1.3
    assert (event.inner.add_remove, event.inner.substitute) == (1.0, 2.0)


def test_sampled_sums_are_unbiased():
    sampler = sampling.poisson(0.25, RECORDS)
    given = solver(mechanisms.gaussian(0.0), sampler=sampler)
    sites = [
        tree.add(given.finish(released(given, records(), seed=seed), task()).delta, task().factor)
        for seed in range(200)
    ]
    gradient, curvature = exact(records(), CLIP)
    wanted = gradient + curvature @ FAMILY.moments(task().posterior)[0]
    found = np.array([site.h for site in sites])
    error = found.std(0) / math.sqrt(len(sites))
    # 3 means at 4.5 standard errors: false alarm 2e-5, and the seeds are fixed.
    assert (np.abs(found.mean(0) - wanted) < 4.5 * error).all()


def test_the_site_is_symmetric_and_replaces_the_factor():
    value = {"gradient": np.arange(3.0), "curvature": np.arange(6.0)}
    at = task()._replace(factor=random_eta(FAMILY, 9))
    site = tree.add(finish_site(value, at, weight=2.0, rate=0.5).delta, at.factor)
    np.testing.assert_allclose(site.J, site.J.T, rtol=0, atol=1e-12)
    assert site.J[1, 1] == pytest.approx(2.0)
    assert site.J[1, 0] == pytest.approx(1.0 / math.sqrt(2.0))
    with pytest.raises(errors.ProtocolError, match="holds arrays"):
        finish_site({"gradient": np.zeros(3)}, at, weight=2.0, rate=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_norm": 0.0}, r"clip_norm is 0"),
        ({"clip_norm": "aut"}, r"clip_norm is 'aut', expected a number, or \"auto\""),
        ({"curvature_share": 1.0}, r"curvature_share is 1"),
        ({"floor": -1.0}, r"floor is -1"),
        ({"nodes": 1}, r"nodes is 1"),
        ({"draws": 0}, r"draws is 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(errors.SolverError, match=message):
        solver(mechanisms.gaussian(0.0), **settings)


def test_a_diagonal_family_is_refused():
    with pytest.raises(errors.SolverError, match="needs the full Gaussian family"):
        solvers.site_release(expfam.diagonal_gaussian(3), MODEL, WHOLE, mechanisms.gaussian(1.0))


def federation(*, schedule="synchronous", rounds=8, solver=None, **sections):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(200, 3))
    y = (generator.uniform(size=200) < 1.0 / (1.0 + np.exp(-x @ [1.0, -0.5, 0.2]))).astype(float)
    sources = split(x, y, np.arange(200) % 4)
    raw = raw_study(
        list(sources), 3, kind="logistic",
        solver={"kind": "site_release", "clip_norm": math.inf, "noise_multiplier": 0.0} | (solver or {}),
        schedule={"kind": schedule, "rounds": rounds}, **sections,
    )  # fmt: skip
    raw["data"]["max_records"] = 50
    return raw, sources


@pytest.mark.nightly(only=("synchronous",))
@pytest.mark.parametrize("schedule", ["synchronous", "sequential", "asynchronous"])
def test_without_noise_a_federation_finds_the_pooled_optimum(schedule):
    raw, sources = federation(schedule=schedule)
    result = run_study(raw, sources, pooled=True)
    # 1e-9 nats: float32 gradients of 200 records.
    assert result.assembly.family.kl(result.posterior, result.pooled) < 1e-9


def test_a_damping_of_ones_own_is_refused():
    raw, sources = federation()
    raw["schedule"]["damping"] = 0.5
    with pytest.raises(
        errors.ConfigError, match=r"damping is given beside solver.kind 'site_release'"
    ):
        run_study(raw, sources)


def test_a_private_federation_reports_a_proper_posterior_and_no_projection():
    promise = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"}
    raw, sources = federation(
        rounds=12, solver={"clip_norm": 2.0}, privacy=promise, simulation={"insecure_seed": 1}
    )
    del raw["solver"]["noise_multiplier"]
    result = run_study(raw, sources)
    assert not result.improper
    assert result.assembly.family.is_proper(result.posterior)
    _, sd = result.assembly.family.moments(result.posterior)
    # With 50 records at epsilon 1, noise drowns nearly everything: the prior's sds are 1, and the mean of
    # twelve steps of noise is no better than it.
    assert ((sd > 0.3) & (sd < 3.0)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wide", [False, True])
def test_a_record_with_one_bad_number_is_left_out_whole_also_among_many(wide, bad):
    """Of a regression of one's own, whose slope may not show it. XLA's maximum of many loses a NaN."""
    mechanism, count, size = mechanisms.rounded_gaussian(1.0), 2048, 9
    rows, columns = np.tril_indices(size)
    twice = np.where(rows == columns, 1.0, math.sqrt(2.0))
    triangle = rows, columns, twice if wide else twice.astype(np.float32)
    x = np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)
    ones, good = np.ones(count, np.float32), np.ones(count, bool)
    places = 5 + 7 * np.arange(size)
    good[places] = False

    @jax.jit
    def total(x, mask):
        if wide:
            return module._wide_sum(x, ones, ones, 1.0, triangle, 1.0, mask)
        batch = Batch(jnp.arange(count), mask, sampling.full(count))
        return module._ghost_sum(x, ones, ones, 1.0, triangle, 1.0, batch, mechanism).total

    spoilt = x.copy()
    spoilt[places, np.arange(size)] = bad
    found, expected = total(spoilt, np.ones(count, bool)), total(x, good)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


EXTREME = (0.0, 1e-45, 1.2e-38, 1e-30, 1e-10, 1.0, 1e10, 1e30, 3.4e38, math.inf, math.nan)


@pytest.mark.nightly(only=("False-1e-15",))
@pytest.mark.parametrize("clip_norm", [1e-15, 1.0, 1e30])
@pytest.mark.parametrize("wide", [False, True])
def test_no_slope_or_curvature_moves_the_sum_by_more_than_the_clip_norm(clip_norm, wide):
    """Of a regression of one's own, which may say anything: every pair of extremes beside every x."""
    mechanism, count = mechanisms.rounded_gaussian(1.0), 128
    rows, columns = np.tril_indices(2)
    twice = np.where(rows == columns, 1.0, math.sqrt(2.0))
    triangle = rows, columns, twice if wide else twice.astype(np.float32)
    weight = 4.0 / clip_norm

    others = np.random.default_rng(0).choice((-1e6, 1e6), (count, 2)).astype(np.float32)
    alike, everyone = jnp.full(count, 1e6), np.ones(count, bool)

    def total(x, slope, bend, mask):
        batch = Batch(jnp.arange(count), mask, sampling.full(count))
        if not wide:
            return module._ghost_sum(
                x, slope, bend, weight, triangle, clip_norm, batch, mechanism
            ).total
        terms = count + block_sums._ROUNDINGS
        limit = float_limit(clip_norm, terms, 1, count, 5, mechanism, double=True)
        limit *= 1.0 - 2.0**-20

        def block(index):
            return module._wide_sum(x, slope, bend, weight, triangle, limit, mask)

        return float_sum(block, 1, terms, clip_norm, batch, mechanism, double=True).total

    def changed(odd):
        x = jnp.asarray(others).at[5].set(odd[:2])
        return total(x, alike.at[5].set(odd[2]), alike.at[5].set(odd[3]), jnp.asarray(everyone))

    def flat_of(found):
        leaves = [np.asarray(leaf, np.float64) for leaf in found.values()]
        return np.concatenate([leaf.reshape(*leaf.shape[:-1], -1) for leaf in leaves], axis=-1)

    left = everyone & (np.arange(count) != 5)
    without = flat_of(jax.jit(total)(others, alike, alike, left))
    signs = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    odd = signs * np.array(list(itertools.product(EXTREME, repeat=4)), np.float32)
    found = flat_of(jax.jit(lambda rows: jax.lax.map(changed, rows))(odd))
    moved = np.linalg.norm(found - without, axis=1) * mechanism.grid(clip_norm).step
    assert 0.9 < moved.max() / clip_norm <= 1.0


LOGIT = models.logistic(["(Intercept)", "b", "c"])
FORESEEN = Foreseen(rounds=20, clients=1, records=10**6)


def coordinates() -> Coordinates:
    return Coordinates(np.array([0.0, 0.4, -2.0]), np.array([1.2, 0.3, 2.0]), 0)


def surveyed_data() -> dict[str, np.ndarray]:
    data = records()
    data["x"][:, 0] = 1.0
    return data


def test_an_answer_in_coordinates_is_that_of_their_columns():
    """At an infinite clip norm, the site is the one that columns as they are make."""
    data, at = surveyed_data(), task()._replace(coordinates=coordinates())
    found = []
    for asked in (task(), at):
        given = solver(mechanisms.gaussian(0.0), clip_norm=math.inf)
        keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
        value = given.update(keys, (), asked, Shard(data, np.ones(RECORDS, bool)))[1].value
        found.append(given.finish({name: np.asarray(part) for name, part in value.items()}, asked))
    np.testing.assert_allclose(found[0].delta.h, found[1].delta.h, rtol=2e-5, atol=2e-4)
    np.testing.assert_allclose(found[0].delta.J, found[1].delta.J, rtol=2e-5, atol=2e-4)


NAMED = ["(Intercept)", "b", "c"]
FOLLOW_UP = 9.0
BLOCKS = {
    "multinomial": models.multinomial(NAMED, ["u", "v", "w"]),
    "multivariate": models.multivariate_linear(NAMED, ["s", "t"], [0.5, 2.0]),
    "survival": models.survival(NAMED[1:], cuts=[2.0, 5.0], follow_up=FOLLOW_UP),
}


def of_blocks(kind: str) -> tuple[dict[str, np.ndarray], Task, Coordinates]:
    data, generator = surveyed_data(), np.random.default_rng(2)
    data["y"] = {
        "multinomial": generator.integers(0, 3, RECORDS).astype(np.float32),
        "multivariate": generator.normal(size=(RECORDS, 2)).astype(np.float32),
        "survival": np.stack(
            [generator.uniform(0.1, FOLLOW_UP, RECORDS), generator.integers(0, 2, RECORDS)], axis=1
        ).astype(np.float32),
    }[kind]
    size = BLOCKS[kind].size
    centre, scale = generator.normal(size=size), np.exp(generator.normal(size=size))
    at = Coordinates(centre, scale, 0, blocks=2)
    if kind == "survival":
        data["x"] = data["x"][:, 1:]
        at = at._replace(blocks=1, baselines=3)
    at.centre[at.constants] = 0.0
    eta = random_eta(expfam.full_gaussian(size), 3)
    return data, Task("c/0", "c", 0, 0, eta, tree.subtract(eta, eta), 0.0), at


def answered(kind: str, data: Any, asked: Task, sd: float, **settings: Any) -> tuple[Any, Any]:
    model = BLOCKS[kind]
    given = solvers.site_release(
        expfam.full_gaussian(model.size),
        model,
        sampling.full(RECORDS),
        mechanisms.gaussian(sd),
        **settings,
    )
    keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
    value = given.update(keys, (), asked, Shard(data, np.ones(RECORDS, bool)))[1].value
    change = given.finish({name: np.asarray(part) for name, part in value.items()}, asked)
    return change, given.survey


@pytest.mark.parametrize("kind", BLOCKS)
def test_an_answer_in_coordinates_of_several_constants_is_that_of_their_columns(kind):
    data, asked, at = of_blocks(kind)
    plain, moved = (
        answered(kind, data, each, 0.0, clip_norm=math.inf)[0].delta
        for each in (asked, asked._replace(coordinates=at))
    )
    np.testing.assert_allclose(plain.h, moved.h, rtol=3e-4, atol=3e-3)
    np.testing.assert_allclose(plain.J, moved.J, rtol=3e-4, atol=3e-3)


@pytest.mark.parametrize("kind", BLOCKS)
def test_columns_of_several_constants_are_surveyed_once_and_outcomes_beside_them(kind):
    data, asked, _ = of_blocks(kind)
    several = (4.0, 5.0) if kind == "multivariate" else ()
    foreseen = FORESEEN._replace(several=several)
    change, survey = answered(kind, data, asked, 1e-4, clip_norm="auto", foreseen=foreseen)
    x, y, found = data["x"].astype(np.float64), data["y"].astype(np.float64), change.survey
    if kind == "survival":
        x = np.concatenate([np.ones((RECORDS, 1)), np.zeros((RECORDS, 2)), x], axis=1)
    held = x.shape[1]
    emphasis = np.where(np.arange(held) == 0, survey["emphasis"], 1.0)
    first, second, beside = x * emphasis, x**2 * emphasis, np.zeros((RECORDS, 0))
    entry = np.zeros(RECORDS)
    if kind == "survival":
        second[:, 0], entry = EMPHASIS * y[:, 1], y[:, 0] / FOLLOW_UP
        second[:, :2] += entry[:, None]
    if several:
        beside = EMPHASIS * (y / np.array(several) + 1.0) / 2.0
    vectors = np.concatenate([first, second, beside], axis=1) / survey["unit"]
    norm = np.sqrt((vectors**2).sum(axis=1) + 2.0 * (entry / survey["unit"]) ** 2)
    total = np.minimum(1.0, 1.0 / norm) @ vectors * survey["unit"]
    more = held + len(several)
    told = np.concatenate([found.h[:held], np.diagonal(found.J)[:held], found.h[held:more]])
    np.testing.assert_allclose(told, total, rtol=2e-5, atol=5e-3)
    at_risk = np.minimum(1.0, 1.0 / norm) @ entry
    np.testing.assert_allclose(found.J[1, 0], at_risk, rtol=2e-5, atol=5e-3)
    # All else is noise.
    np.testing.assert_allclose(found.h[more:], 0.0, atol=5e-3)
    np.testing.assert_allclose(np.diagonal(found.J)[held:], 0.0, atol=5e-3)


def test_coordinates_of_another_model_are_refused_before_any_record_is_read():
    given = solver(mechanisms.gaussian(1.0), model=LOGIT, clip_norm="auto", foreseen=FORESEEN)
    wrong = task()._replace(coordinates=Coordinates(np.zeros(2), np.ones(2), 0))
    keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
    with pytest.raises(
        errors.ProtocolError,
        match=r"c/0 has coordinates of 2 columns in 1 blocks of 1 constants, and the model has 3 in",
    ):
        given.update(keys, (), wrong, Shard({}, np.ones(RECORDS, bool)))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_first_answer_sums_the_columns_and_their_squares(scale):
    data = surveyed_data()
    data["x"][:, 1] *= scale
    mechanism = mechanisms.gaussian(1e-4)
    given = solver(mechanism, model=LOGIT, clip_norm="auto", foreseen=FORESEEN)
    survey = given.survey
    assert survey is not None
    found = given.finish(released(given, data), task())
    # It is about columns alone: the factor stays.
    np.testing.assert_array_equal(found.delta.h, 0.0)
    np.testing.assert_array_equal(found.delta.J, 0.0)
    x = data["x"].astype(np.float64)
    emphasis = np.array([survey["emphasis"], 1.0, 1.0]) / survey["unit"]
    vectors = np.concatenate([x, x**2], 1) * np.tile(emphasis, 2)
    norm = np.linalg.norm(vectors, axis=1)
    assert (norm.max() > 2.0) == (scale == 100.0)  # some are clipped
    total = np.minimum(1.0, 1.0 / norm) @ vectors * survey["unit"]
    # The noise has an sd of 1e-4, and the clip norm is tightened by less than 1 part in 10⁵.
    np.testing.assert_allclose(found.survey.h, total[:3], rtol=2e-5, atol=5e-3)
    np.testing.assert_allclose(np.diagonal(found.survey.J), total[3:], rtol=2e-5, atol=5e-3)
    np.testing.assert_array_equal(found.survey.J, np.diag(np.diagonal(found.survey.J)))


def test_each_record_is_in_one_count_of_the_size_of_its_residual():
    model = models.linear(["(Intercept)", "b", "c"], noise_scale="learn")
    foreseen = FORESEEN._replace(most=1.0)
    given = solver(mechanisms.gaussian(1e-4), model=model, clip_norm="auto", foreseen=foreseen)
    assert given.survey is not None
    plan = given.survey["outcome"]
    assert plan is not None
    data = surveyed_data()
    data["y"] = np.random.default_rng(3).normal(0.0, 0.4, RECORDS).astype(np.float32)
    asked = task()._replace(coordinates=coordinates()._replace(sizes=True))
    keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
    value = given.update(keys, (), asked, Shard(data, np.ones(RECORDS, bool)))[1].value
    found = given.finish({name: np.asarray(part) for name, part in value.items()}, asked)
    assert found.sized == 0.0
    counts = np.concatenate([found.survey.h, np.diagonal(found.survey.J)])
    mean = FAMILY.moments(asked.posterior)[0]
    sizes = np.abs(data["y"] - data["x"] @ mean)
    expected = np.bincount(np.searchsorted(plan["sizes"], sizes), minlength=6)
    np.testing.assert_allclose(counts, expected, atol=5e-3)
    np.testing.assert_array_equal(found.delta.h, 0.0)


def test_a_survey_costs_what_any_answer_costs():
    survey, plain = (
        solver(mechanisms.rounded_gaussian(1.3), model=LOGIT, clip_norm=norm, foreseen=FORESEEN)
        for norm in ("auto", 1.0)
    )
    assert survey.survey is not None
    assert plain.survey is None
    assert survey.cost == plain.cost
    keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
    shard = Shard(surveyed_data(), np.ones(RECORDS, bool))
    asked = task()._replace(coordinates=coordinates())
    for given in (task(), asked):
        assert survey.update(keys, (), given, shard)[1].event == plain.cost


def test_auto_is_what_columns_are_declared_to_be_where_there_is_no_survey():
    mechanism = mechanisms.rounded_gaussian(1.0)
    for foreseen in (Foreseen(), Foreseen(1, 1, 10**6)):
        given = solver(mechanism, model=LOGIT, clip_norm="auto", foreseen=foreseen)
        assert given.survey is None
        length = length_for(3, foreseen, 1.0, 1.0, 0.1)
        assert given.clip_norm == pytest.approx(math.sqrt(3.0) / length)
    assert solver(mechanism, model=LOGIT, clip_norm="auto").clip_norm == pytest.approx(
        math.sqrt(3.0) / length_for(3, Foreseen(), 1.0, 1.0, 0.1)
    )
    known = Foreseen(20, 1, 10**6, typical_norm=0.6)
    given = solver(mechanism, model=MODEL, clip_norm="auto", foreseen=known)
    assert given.clip_norm == pytest.approx(
        0.6 / length_for(len(MODEL.names), known, 1.0, 1.0, 0.1)
    )
    assert solver(mechanisms.gaussian(0.0), model=LOGIT, clip_norm="auto").clip_norm == math.inf


RESPONSES = {
    "logistic": (models.logistic(["a"]), np.array([0.0, 1.0])),
    "poisson": (models.poisson(["a"]), np.arange(400.0)),
    "negative_binomial": (models.negative_binomial(["a"], 2.0), np.arange(4000.0)),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_weights_leave_the_mean_of_a_gradient_at_zero_where_clipping_would_not(name):
    """At the true θ, over outcomes by the model's own law; rows so long that half are weighed down."""
    model = RESPONSES[name][0]
    outcomes = RESPONSES[name][1].astype(np.float32)
    x, theta, clip_norm, weight = 6.0, 0.3, 1.0, 0.1
    rows = {"x": np.full((len(outcomes), 1), x, np.float32), "y": outcomes}
    at = as_it_is(1)
    point = jnp.asarray([theta], jnp.float32), jnp.asarray([[1e-6]], jnp.float32)
    _, slope, _ = weights.of_predictor(
        model, 20, *point, at, jax.tree.map(jnp.asarray, rows), weight, clip_norm
    )
    _, plain, _ = weights.of_predictor(
        model, 20, *point, at, jax.tree.map(jnp.asarray, rows), weight, math.inf
    )
    law = np.exp([float(model.log_density(x * theta, y)) for y in outcomes])
    assert law.sum() == pytest.approx(1.0, abs=1e-4)
    slope, plain = np.asarray(slope, np.float64), np.asarray(plain, np.float64)
    clipped = plain * np.minimum(1.0, clip_norm / (np.abs(plain) * x))
    size = law @ np.abs(slope)
    assert abs(law @ slope) < 5e-3 * size
    assert abs(law @ clipped) > 20 * abs(law @ slope)
    # What is weighed seldom needs to be clipped.
    # A negative binomial of dispersion 2 has more than 1 % beyond three standard deviations.
    assert law @ (np.abs(slope) * x > clip_norm) < (0.02 if name == "negative_binomial" else 0.01)


def test_no_weight_depends_on_an_exposure_that_comes_with_the_outcome():
    """A follow-up that ends at the event is a part of the outcome."""
    model = models.poisson(["a"], offset=True)
    offsets, counts = np.meshgrid(np.linspace(-8.0, 1.0, 10), [0.0, 1.0, 5.0])
    y = np.stack([counts.ravel(), offsets.ravel()], axis=1).astype(np.float32)
    rows = {"x": jnp.full((len(y), 1), 6.0, jnp.float32), "y": jnp.asarray(y)}
    point = jnp.asarray([0.3], jnp.float32), jnp.asarray([[1e-6]], jnp.float32)
    at = (*as_it_is(1)[:4], jnp.float32(0.5))
    slopes = [
        np.asarray(weights.of_predictor(model, 20, *point, at, rows, 0.1, norm)[1], np.float64)
        for norm in (1.0, math.inf)
    ]
    kept = slopes[0] / slopes[1]
    np.testing.assert_allclose(kept, kept[0], rtol=1e-5)
    assert kept[0] < 0.5


def test_steps_are_short_where_the_broadcast_is_wide():
    """At N(0, 100 I), the mean curvature over q would be a tenth of that at its mean."""
    wide = task()._replace(posterior=FAMILY.isotropic(10.0))
    given = solver(mechanisms.gaussian(0.0), clip_norm=math.inf)
    keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
    data = records()
    value = given.update(keys, (), wide, Shard(data, np.ones(RECORDS, bool)))[1].value
    site = given.finish({name: np.asarray(part) for name, part in value.items()}, wide).delta
    at_mean = 0.25 * data["x"].T.astype(np.float64) @ data["x"]
    assert (np.linalg.eigvalsh(site.J) > 0.7 * np.linalg.eigvalsh(at_mean)).all()


def _patients() -> tuple:
    """Two rows each, whose outcomes are 1 with probability 3/4; every outcome as often as it is likely."""
    both = [(a, b) for a in (0, 1) for b in (0, 1) for _ in range(3 ** (a + b))]
    x = np.zeros((len(both), 3, 2), np.float32)
    x[:, 0, 0] = x[:, 1, 1] = 6.0
    y = np.c_[np.array(both, np.float32), np.zeros(len(both), np.float32)]
    stands = np.tile([True, True, False], (len(both), 1))
    data = {"x": x, "y": y, ROWS: stands}
    return unit_model(models.logistic(["a", "b"])), data, np.full(2, math.log(3.0) / 6.0), 1e-3


def _levels() -> tuple:
    """Three levels of probability 1/2, 1/4 and 1/4."""
    data = {"x": np.full((4, 1), 6.0, np.float32), "y": np.array([0.0, 0.0, 1.0, 2.0], np.float32)}
    model = models.multinomial(["a"], ["u", "v", "w"])
    return model, data, np.full(2, math.log(0.5) / 6.0), 1e-3


def _times() -> tuple:
    """Quantiles of times whose hazard is 2; of the last twentieth some are clipped."""
    u = (np.arange(2000) + 0.5) / 2000
    times = np.c_[-np.log1p(-u) / 2.0, np.ones(2000)].astype(np.float32)
    model = models.survival(["a"], cuts=[])
    data = {"x": np.full((2000, 1), 6.0, np.float32), "y": times}
    return model, data, np.array([0.0, math.log(2.0) / 6.0]), 0.15


def _of_patients(made) -> tuple:
    """The same records in pairs that are alike, with a third row that does not stand."""
    model, data, theta, _ = made()
    x, y = (np.stack([part, part, 0.0 * part], 1) for part in (data["x"], data["y"]))
    stands = np.tile([True, True, False], (len(x), 1))
    return unit_model(model), {"x": x, "y": y, ROWS: stands}, theta, 0.15


@pytest.mark.parametrize(
    "made",
    [
        _patients,
        _levels,
        _times,
        functools.partial(_of_patients, _levels),
        functools.partial(_of_patients, _times),
    ],
    ids=["patients", "levels", "times", "levels of patients", "times of patients"],
)
def test_an_answer_of_several_rows_or_outcomes_is_unbiased_too(made, monkeypatch):
    """At the true θ, over all outcomes; a share of what clipping alone would be off by is allowed."""
    model, data, theta, allowed = made()
    family, count = expfam.full_gaussian(len(theta)), len(data["y"])
    asked = task()._replace(posterior=family.from_moments(theta, 1e-10 * np.eye(len(theta))))

    def gradient(curvature_share: float) -> np.ndarray:
        given = solvers.site_release(
            *(family, model, sampling.full(count), mechanisms.gaussian(0.0), 1.0, curvature_share)
        )
        keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
        value = given.update(keys, (), asked, Shard(data, np.ones(count, bool)))[1].value
        return np.asarray(value["gradient"], np.float64)

    weighed = gradient(0.05)
    monkeypatch.setattr(weights, "_kept", lambda square, _: jnp.ones_like(square))
    clipped = gradient(0.050001)  # another program
    assert np.linalg.norm(clipped) > 0.005 * count
    assert np.linalg.norm(weighed) < allowed * np.linalg.norm(clipped)


def test_patients_of_one_row_give_what_records_give():
    """Survey and weights included."""
    data = surveyed_data()
    grouped = {name: np.stack([column, 0.0 * column], 1) for name, column in data.items()}
    grouped[ROWS] = np.tile([True, False], (RECORDS, 1))
    for asked in (task(), task()._replace(coordinates=coordinates())):
        found = []
        for model, given in ((LOGIT, data), (unit_model(LOGIT), grouped)):
            made = solver(
                mechanisms.gaussian(1e-4), model=model, clip_norm="auto", foreseen=FORESEEN
            )
            keys = functools.partial(random.insecure_root(0).key, "c", "c/0")
            answer = made.update(keys, (), asked, Shard(given, np.ones(RECORDS, bool)))[1]
            found.append({name: np.asarray(part) for name, part in decoded(answer).value.items()})
        for name in found[0]:
            np.testing.assert_allclose(found[0][name], found[1][name], rtol=2e-5, atol=1e-3)


@hypothesis.given(st.integers(1, 10**7), st.sampled_from([3, 8, 24]))
@hypothesis.example(120_000, 3)
@hypothesis.example(MOST_ROWS, 24)
@hypothesis.example(55_924, 24)
def test_whatever_number_of_records_is_declared_their_sum_loses_at_most_5_percent(most, columns):
    mechanism, size = mechanisms.rounded_gaussian(30.0), columns + columns * (columns + 1) // 2
    if most > MOST_ROWS:
        length = length_of(most)
        blocks = -(-most // length)
        limit = float_limit(CLIP, length + 8, blocks, most, size, mechanism, double=True)
    else:
        rows = length_of(most, most)
        limit = predictor_limit(rows, size, CLIP, mechanism)
    assert 0.95 * CLIP <= limit < CLIP
