"""Claims about effects that stay at their site: federated answers against exact and pooled ones."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import solvers
from fedvi.inference.local_latents import local_problem, takes_newton
from fedvi.inference.units import unit_model
from fedvi.models.site_effects import site_effects
from fedvi.privacy import mechanisms, random, sampling
from fedvi.transport import codec
from fedvi.typing import ROWS, SITE
from fedvi.updates.base import Shard, Task

NAMES = ["(Intercept)", "dose"]
COLUMNS = (["(Intercept)"], ["(Intercept)", "dose"])
NOISE, PRIOR = 0.5, 2.5


def sites(count, rows, kind="linear", tau=0.7, noise=NOISE, seed=0):
    """Sites that differ in their level, their slope and their covariate."""
    generator, found = np.random.default_rng(seed), []
    for _ in range(count):
        x = np.c_[np.ones(rows), generator.normal(size=rows) + generator.normal()]
        predictor = x @ ([0.3, -0.8] + tau * np.array([1.0, 0.3]) * generator.normal(size=2))
        y = predictor + noise * generator.normal(size=rows)
        if kind == "logistic":
            y = (generator.uniform(size=rows) < scipy.special.expit(predictor)).astype(float)
        found.append({"x": x, "y": y})
    return found


def keys(task):
    return partial(random.insecure_root(0).key, task.client, task.task_id)


def solve(solver, task, records):
    """What a server gets of an answer, and what the client knows beside it."""
    shard = Shard(records, np.ones(len(records["y"]), bool))
    _, released, info = solver.update(keys(task), solver.init(task.posterior), task, shard)
    return dict(codec.decode(codec.encode(released))[0]), info


def federated(solver, family, prior, shards, rounds):
    """Sequential PVI with full steps."""
    factors = [tree.to_numpy(family.zeros())] * len(shards)
    posterior = prior
    for visit in range(rounds):
        for place, records in enumerate(shards):
            task = Task(f"{visit}/{place}", f"c{place}", visit, 0, posterior, factors[place], 1.0)
            change = solver.finish(solve(solver, task, records)[0], task)
            factors[place] = tree.add(factors[place], change.delta)
            posterior = tree.add(posterior, change.delta)
    return posterior


def normal(family, scale=PRIOR):
    return tree.to_numpy(family.isotropic(scale))


def pooled(shards):
    """All records in one place, told apart by site."""
    index = np.repeat(np.arange(len(shards)), [len(shard["y"]) for shard in shards])
    joined = {name: np.concatenate([shard[name] for shard in shards]) for name in ("x", "y")}
    return {**joined, SITE: index}


@pytest.mark.parametrize("columns", COLUMNS, ids=["intercepts", "slopes"])
def test_one_visit_of_the_exact_solver_is_the_mixed_model_in_closed_form(columns):
    tau = np.array([0.7, 0.3])[: len(columns)]
    family, shards = expfam.full_gaussian(2), sites(5, 40)
    model = site_effects(models.linear(NAMES, noise_scale=NOISE), columns, tau.tolist())
    found = federated(solvers.exact(family, model), family, normal(family), shards, 1)
    precision, location = np.eye(2) / PRIOR**2, np.zeros(2)
    for shard in shards:
        x, y = shard["x"], shard["y"]
        z = x[:, : len(columns)]
        marginal = NOISE**2 * np.eye(len(y)) + z @ np.diag(tau**2) @ z.T
        precision += x.T @ np.linalg.solve(marginal, x)
        location += x.T @ np.linalg.solve(marginal, y)
    assert np.allclose(found.J, precision, rtol=1e-9, atol=0.0)
    assert np.allclose(found.h, location, rtol=1e-9, atol=1e-9)


def test_a_client_is_told_its_own_effect_which_does_not_leave():
    family, shards = expfam.full_gaussian(2), sites(1, 30)
    model = site_effects(models.linear(NAMES, noise_scale=NOISE), scale=0.7)
    task = Task("0", "c0", 0, 0, normal(family), tree.to_numpy(family.zeros()), 1.0)
    value, info = solve(solvers.exact(family, model), task, shards[0])
    assert {name: array.shape for name, array in value.items()} == {"h": (2,), "J": (2, 2)}
    x = np.c_[shards[0]["x"], np.ones(30)]
    precision = np.diag([PRIOR**-2, PRIOR**-2, 0.7**-2]) + x.T @ x / NOISE**2
    covariance = np.linalg.inv(precision)
    assert info["site_effects"] == pytest.approx(
        [(covariance @ x.T @ shards[0]["y"])[2] / NOISE**2], rel=1e-6
    )
    assert info["site_effect_sds"] == pytest.approx([np.sqrt(covariance[2, 2])], rel=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "columns"),
    [("full_gaussian", COLUMNS[1]), ("diagonal_gaussian", COLUMNS[0])],
    ids=["full", "diagonal"],
)
def test_the_fixed_point_is_the_pooled_optimum_over_all_effects(kind, columns):
    family, shards = getattr(expfam, kind)(2), sites(4, 40, "logistic")
    model = site_effects(models.logistic(NAMES), columns, 0.6)
    rounds = 8 if kind == "full_gaussian" else 60
    found = federated(solvers.glm(family, model), family, normal(family), shards, rounds)
    together = dataclasses.replace(model, sites=4)
    task = Task("p", "p", 0, 0, normal(family), tree.to_numpy(family.zeros()), 1.0)
    value, _ = solve(solvers.glm(family, together), task, pooled(shards))
    (mean, sd), (best, best_sd) = (
        family.moments(eta) for eta in (found, GaussianEta(value["h"], value["J"]))
    )
    assert np.abs((mean - best) / best_sd).max() < 1e-4
    assert np.allclose(sd, best_sd, rtol=1e-4)


@pytest.mark.nightly
def test_the_posterior_is_that_with_the_effects_integrated_out():
    """Logistic regression with a random intercept, by quadrature over u and a grid over β."""
    tau, shards = 0.8, sites(8, 60, "logistic", tau=0.8, seed=4)
    family = expfam.full_gaussian(2)
    model = site_effects(models.logistic(NAMES), scale=tau)
    found = federated(solvers.glm(family, model), family, normal(family), shards, 4)
    mean, sd = family.moments(found)
    axes = [m + s * np.linspace(-5.0, 5.0, 31) for m, s in zip(mean, sd, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    density = scipy.stats.norm.logpdf(grid, 0.0, PRIOR).sum(axis=1)
    for shard in shards:
        predictor = (grid @ shard["x"].T)[:, None, :] + tau * nodes[None, :, None]
        sign = np.where(shard["y"] == 1.0, -1.0, 1.0)
        likelihood = -np.logaddexp(0.0, sign * predictor).sum(axis=2)
        density += scipy.special.logsumexp(likelihood, b=weights, axis=1)
    share = np.exp(density - density.max())
    share /= share.sum()
    exact = share @ grid
    exact_sd = np.sqrt(share @ (grid - exact) ** 2)
    assert np.abs((mean - exact) / exact_sd).max() < 0.1
    assert np.abs(sd / exact_sd - 1.0).max() < 0.1


def exact_with_learnt_scale(shards, noise, median):
    """Moments of (β, log τ) for a linear model: β is Gaussian given τ, and τ is summed over a grid."""
    grid = np.linspace(-4.0, 3.0, 1401)
    means, covariances, density = [], [], scipy.stats.norm.logpdf(grid, np.log(median), 1.0)
    for place, log_scale in enumerate(grid):
        precision, location = np.eye(2) / PRIOR**2, np.zeros(2)
        for shard in shards:
            x, y = shard["x"], shard["y"]
            level = noise**2 + len(y) * np.exp(2.0 * log_scale)
            # (s² I + τ² 11ᵀ)⁻¹ = (I − 11ᵀ τ² / level) / s².
            drop = np.exp(2.0 * log_scale) / level
            precision += (x.T @ x - drop * np.outer(x.sum(0), x.sum(0))) / noise**2
            location += (x.T @ y - drop * x.sum(0) * y.sum()) / noise**2
            square = (y @ y - drop * y.sum() ** 2) / noise**2
            density[place] -= 0.5 * (np.log(level) + square)
        covariance = np.linalg.inv(precision)
        means.append(covariance @ location)
        covariances.append(np.diagonal(covariance))
        density[place] += 0.5 * (location @ means[-1] + np.linalg.slogdet(covariance)[1])
    share = np.exp(density - density.max())
    share /= share.sum()
    values = np.c_[np.array(means), grid]
    mean = share @ values
    variance = share @ (values - mean) ** 2 + np.r_[share @ np.array(covariances), 0.0]
    return mean, np.sqrt(variance)


@pytest.fixture(scope="module")
def learnt():
    """24 sites of one slope and a learnt τ: model, prior, records, and the federated answer of `glm`."""
    generator, family, shards = np.random.default_rng(3), expfam.full_gaussian(3), []
    for _ in range(24):
        x = np.c_[np.ones(20), generator.normal(size=20) + 0.5 * generator.normal()]
        level = 0.3 + 0.9 * generator.normal()
        shards.append({"x": x, "y": level - 0.8 * x[:, 1] + generator.normal(size=20)})
    model = site_effects(models.linear(NAMES, noise_scale=1.0), scale=1.0, learnt=True)
    prior = GaussianEta(np.zeros(3), np.diag([PRIOR**-2, PRIOR**-2, 1.0]))
    found = federated(solvers.glm(family, model), family, prior, shards, 5)
    return family, model, prior, shards, family.moments(found)


def test_a_scale_that_is_learnt_is_the_exact_one_for_many_sites(learnt):
    _, _, _, shards, (mean, sd) = learnt
    exact, exact_sd = exact_with_learnt_scale(shards, 1.0, 1.0)
    assert np.abs((mean - exact) / exact_sd).max() < 0.1
    assert np.abs(sd / exact_sd - 1.0).max() < 0.1


@pytest.mark.nightly
def test_with_a_learnt_scale_too_the_fixed_point_is_the_pooled_optimum(learnt):
    family, model, prior, shards, (mean, sd) = learnt
    together = dataclasses.replace(model, sites=len(shards))
    task = Task("p", "p", 0, 0, prior, tree.to_numpy(family.zeros()), 1.0)
    value, info = solve(solvers.glm(family, together), task, pooled(shards))
    best, best_sd = family.moments(GaussianEta(value["h"], value["J"]))
    assert info["residual"] < 1e-5
    assert len(info["site_effects"]) == 24
    assert np.abs((mean - best) / best_sd).max() < 2e-3
    assert np.allclose(sd, best_sd, rtol=2e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "is_learnt"),
    [("full_gaussian", False), ("full_gaussian", True), ("diagonal_gaussian", True)],
    ids=["known", "learnt", "diagonal"],
)
def test_gradient_steps_climb_to_the_same_place(kind, is_learnt):
    """Also those of `dp_optimisation`, where it has no noise and clips nothing."""
    model = site_effects(models.logistic(NAMES), scale=0.8, learnt=is_learnt)
    family = getattr(expfam, kind)(model.size)
    records = sites(1, 64, "logistic", seed=5)[0]
    task = Task("0", "c", 0, 0, normal(family, 1.0), tree.to_numpy(family.zeros()), 1.0)
    noiseless = mechanisms.gaussian(0.0)
    made = {
        "glm": solvers.glm(family, model),
        "gradient": solvers.gradient(family, model, steps=400, draws=32),
        "private": solvers.dp_optimisation(
            family, model, sampling.full(64), noiseless, np.inf, steps=400, draws=32
        ),
    }
    found = {}
    for name, solver in made.items():
        value, info = solve(solver, task, records)
        eta = tree.add(task.posterior, solver.finish(value, task).delta)
        found[name] = (*family.moments(eta), info["site_effects"], info["site_effect_sds"])
    mean, sd, effect, effect_sd = found.pop("glm")
    for other in found.values():
        assert np.abs((other[0] - mean) / sd).max() < 0.05
        assert np.allclose(other[1], sd, rtol=0.08)
        assert np.abs((np.array(other[2]) - effect) / effect_sd).max() < 0.05
        assert np.allclose(other[3], effect_sd, rtol=0.08)


def test_what_leaves_a_private_visit_is_over_theta_while_all_coordinates_are_noised():
    family = expfam.full_gaussian(2)
    model = site_effects(models.logistic(NAMES), ["(Intercept)", "dose"])
    mechanism = mechanisms.rounded_gaussian(1.0)
    plain, solver = (
        solvers.dp_optimisation(family, made, sampling.full(16), mechanism, steps=3)
        for made in (models.logistic(NAMES), model)
    )
    task = Task("0", "c", 0, 0, normal(family), tree.to_numpy(family.zeros()), 1.0)
    value, info = solve(solver, task, sites(1, 16, "logistic")[0])
    assert {name: array.shape for name, array in value.items()} == {
        "location": (2,),
        "scale": (2, 2),
    }
    assert solver.cost == plain.cost
    assert solver.number_count == plain.number_count == 5
    # What the distance of noise from its law is multiplied by: (θ, u) has four coordinates.
    assert (plain.noised_count, solver.noised_count) == (5, 14)
    assert solver.init(task.posterior) == ()
    assert len(info["site_effects"]) == 2


def test_a_unit_of_several_rows_is_clipped_as_one_with_its_effect():
    family = expfam.full_gaussian(2)
    model = site_effects(models.logistic(NAMES), scale=0.5)
    local = local_problem(family, unit_model(model))
    records = {
        "x": np.random.default_rng(0).normal(size=(4, 3, 2)),
        "y": np.ones((4, 3)),
        ROWS: np.array([[True, True, False]] * 4),
    }
    wide = local.records(records)
    theta = np.array([0.3, -0.2, 0.7])
    unit = {name: column[1] for name, column in wide.items()}
    apart = sum(
        model.joint().log_likelihood(theta, {"x": wide["x"][1, row], "y": records["y"][1, row]})
        for row in (0, 1)
    )
    assert float(local.model.log_likelihood(theta, unit)) == pytest.approx(float(apart), rel=1e-5)


@pytest.mark.parametrize("name", ["site_release", "local_averaging", "virtual_clients"])
@pytest.mark.parametrize("grouped", [False, True])
def test_solvers_that_look_at_records_or_parts_apart_refuse(name, grouped):
    model = site_effects(models.logistic(NAMES))
    with pytest.raises(errors.SolverError, match=r"share.*separately") as refusal:
        getattr(solvers, name)(
            expfam.full_gaussian(2),
            unit_model(model) if grouped else model,
            sampling.full(16),
            mechanisms.rounded_gaussian(1.0),
        )
    assert "dp_optimisation" in refusal.value.hint


def test_the_exact_solver_refuses_a_scale_that_is_learnt():
    model = site_effects(models.linear(NAMES), learnt=True)
    with pytest.raises(errors.SolverError, match="a known site_scale"):
        solvers.exact(expfam.full_gaussian(3), model)


@pytest.mark.nightly
def test_a_perturbed_update_is_the_change_that_glm_finds():
    """The whole change of a client is one vector, so that nothing of the mode is about records."""
    family, model = expfam.full_gaussian(2), site_effects(models.logistic(NAMES), scale=0.8)
    assert takes_newton(model)
    task = Task("0", "c", 0, 0, normal(family), tree.to_numpy(family.zeros()), 1.0)
    solver = solvers.perturbed_update(
        family, model, sampling.full(32), mechanisms.gaussian(0.0), clip_norm=1e6
    )
    records = sites(1, 32, "logistic")[0]
    change = solver.finish(solve(solver, task, records)[0], task).delta
    glm = solvers.glm(family, model)
    expected = glm.finish(solve(glm, task, records)[0], task).delta
    assert np.allclose(change.J, expected.J, rtol=1e-4, atol=1e-4)
    assert np.allclose(change.h, expected.h, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly(only=("gradient-True", "gradient-False"))
@pytest.mark.parametrize(
    ("name", "is_learnt"),
    [("exact", False), ("glm", False), ("glm", True), ("gradient", False), ("gradient", True)],
)
def test_a_site_without_records_says_nothing(name, is_learnt):
    model = site_effects(models.linear(NAMES), scale=0.8, learnt=is_learnt)
    family = expfam.full_gaussian(model.size)
    options = {"steps": 200, "draws": 64} if name == "gradient" else {}
    solver = getattr(solvers, name)(family, model, **options)
    factor = GaussianEta(np.full(model.size, 0.1), 0.2 * np.eye(model.size))
    posterior = tree.add(normal(family, 1.0), factor)
    task = Task("0", "c", 1, 1, posterior, factor, 1.0)
    shard = Shard({"x": np.zeros((8, 2)), "y": np.zeros(8)}, np.zeros(8, bool))
    _, released, _ = solver.update(keys(task), (), task, shard)
    left = tree.add(
        factor, solver.finish(dict(codec.decode(codec.encode(released))[0]), task).delta
    )
    # Draws leave an error, and a known scale nothing to draw for.
    room = 0.15 if name == "gradient" else 1e-9
    assert np.abs(left.h).max() < room
    assert np.abs(left.J).max() < room
