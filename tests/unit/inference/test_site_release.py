"""Site release: what a client sums, what the server makes of it, and what both promise."""

import functools
import importlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.inference.base import Shard, Task
from fedvi.inference.finish import finish_site
from fedvi.inference.units import unit_model
from fedvi.privacy import mechanisms, random, sampling
from fedvi.privacy.release import Batch, clipped_sum_of_parts, decoded, float_limit, float_sum
from fedvi.typing import ROWS
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
    """Gradient and curvature of every record by 20-point quadrature in float64, clipped jointly."""
    mean, root = FAMILY.location_root(task().posterior)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    spread = np.linalg.norm(x @ root, axis=1)
    p = 1.0 / (1.0 + np.exp(-((x @ mean)[:, None] + spread[:, None] * nodes)))
    weights = weights / weights.sum()
    gradient = (y - p @ weights)[:, None] * x
    curvature = ((p * (1.0 - p)) @ weights)[:, None, None] * x[:, :, None] * x[:, None, :]
    unit = clip_norm if math.isfinite(clip_norm) else 1.0
    weight = 4.0 / unit * 0.5
    norm = np.sqrt((gradient**2).sum(1) + weight**2 * (curvature**2).sum((1, 2)))
    kept = np.minimum(1.0, clip_norm / norm)
    return (kept[:, None] * gradient).sum(0), (kept[:, None, None] * curvature).sum(0)


@pytest.mark.parametrize("clip_norm", [math.inf, CLIP, 0.3])
def test_what_is_summed_is_clipped_gradients_and_curvatures(clip_norm):
    given = solver(mechanisms.gaussian(0.0), clip_norm=clip_norm)
    value = released(given, records())
    site = tree.add(given.finish(value, task()).delta, task().factor)
    gradient, curvature = exact(records(), clip_norm)
    mean, _ = FAMILY.moments(task().posterior)
    # Float32 sums of 64 terms, clipped 5 parts in 10⁶ early.
    np.testing.assert_allclose(site.J, curvature, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(site.h, gradient + curvature @ mean, rtol=2e-5, atol=2e-5)


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
        made = solver(mechanisms.gaussian(0.0), model=model)
        value = made.update(keys, (), at, Shard(given, np.ones(RECORDS, bool)))[1].value
        found.append(np.concatenate([np.asarray(value[name]) for name in sorted(value)]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=2e-3)


def noiseless_total(data, mask, *, formed: bool, clip_norm=CLIP, model=MODEL):
    """The bounded total in integers, before noise: by norms alone, or with every record formed."""
    mechanism = mechanisms.rounded_gaussian(1.0)
    rows, columns = np.tril_indices(SIZE)
    weight = 4.0 / clip_norm  # half of C² for the curvature
    twice = np.where(rows == columns, 1.0, math.sqrt(2.0)).astype(np.float32)
    mean, root = (jnp.asarray(p, jnp.float32) for p in FAMILY.location_root(task().posterior))
    batch = Batch(jnp.arange(RECORDS), jnp.asarray(mask), WHOLE)
    found = module._of_predictor(model, 20, mean, root, jax.tree.map(jnp.asarray, data))
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
    data, changed = records(), records()
    changed["x"] = data["x"].copy()
    changed["x"][7] = odd
    without = everyone & (np.arange(RECORDS) != 7)
    base = flat(noiseless_total(data, everyone, formed=formed))
    for other, limit in (
        (flat(noiseless_total(changed, without, formed=formed)), CLIP),
        (flat(noiseless_total(changed, everyone, formed=formed)), 2.0 * CLIP),
    ):
        assert np.isfinite(other).all()
        assert np.linalg.norm(base - other) <= limit
    added = flat(noiseless_total(changed, everyone, formed=formed))
    removed = flat(noiseless_total(changed, without, formed=formed))
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
        batch = module.filled_up(Batch(indices, jnp.ones(count, bool), sampling.full(count)))
        taken = {"x": jnp.asarray(x)[batch.indices], "y": jnp.asarray(y)[batch.indices]}
        return module._of_predictor(model, 20, mean, root, taken)[1:]

    still = [np.asarray(part)[:count] for part in found(jnp.arange(count))]
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
        terms = count + module._ROUNDINGS
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
