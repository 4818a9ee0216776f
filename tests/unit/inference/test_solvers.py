"""Local solvers against closed forms and each other."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import optimiser, solvers
from fedvi.inference.solvers.dp_optimisation import _split
from fedvi.privacy import events, mechanisms, random, sampling
from fedvi.privacy.mechanisms.gaussian import Gaussian
from fedvi.privacy.sampling.full import Full
from fedvi.typing import IDS
from fedvi.updates.base import Shard, Task, cavity
from tests.studies import random_eta

NAMES = ("a", "b", "c")
FAMILIES = ("full_gaussian", "diagonal_gaussian")


def keys(seed: int):
    return partial(random.insecure_root(seed).key, "test")


def task(posterior, factor, client="c") -> Task:
    return Task(f"{client}/0", client, 0, 0, posterior, factor, 1.0)


def problem(seed: int, count: int = 60, padding: int = 4, kind: str = "linear"):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 3))
    predictor = x @ np.array([0.5, -1.0, 0.2])
    if kind == "linear":
        y = predictor + generator.normal(size=count)
    else:
        y = (generator.uniform(size=count) < 1.0 / (1.0 + np.exp(-predictor))).astype(float)
    pad = ((0, padding), (0, 0))
    records = {"x": np.pad(x, pad), "y": np.pad(y, pad[0])}
    return x, y, Shard(records, np.arange(count + padding) < count)


@pytest.mark.nightly(but=("diagonal_gaussian",))
@pytest.mark.parametrize("kind", FAMILIES)
def test_exact_and_glm_agree_on_a_linear_model(kind):
    family, model = getattr(expfam, kind)(3), models.linear(NAMES, noise_scale=0.7)
    _, _, shard = problem(1)
    job = task(random_eta(family, 1), tree.scale(random_eta(family, 2), 0.1))
    found = {}
    for make in (solvers.exact, solvers.glm):
        solver = make(family, model)
        _, released, _ = solver.update(keys(0), (), job, shard)
        found[solver.name] = solver.finish(released.value, job).delta
    for left, right in zip(found["exact"], found["glm"], strict=True):
        # The glm solver stops within 1e-6 posterior sds; a linear model needs one step.
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model", [models.logistic(NAMES), models.linear(NAMES, noise_scale=0.7)])
def test_derivatives_of_the_likelihood_are_those_of_its_log_density(model):
    predictor = np.array([-800.0, -30.0, -1.3, 0.0, 0.4, 2.0, 35.0, 800.0])
    for y in (0.0, 1.0, 0.3):
        with jax.enable_x64(True):
            a, outcome = jnp.asarray(predictor), jnp.full(8, y)
            slope = jax.grad(model.log_density)
            expected = [
                jax.vmap(fn)(a, outcome) for fn in (model.log_density, slope, jax.grad(slope))
            ]
            found = model.derivatives(a, outcome)
        for left, right in zip(found, expected, strict=True):
            # float64; differentiating the log density itself cancels below 1e-14.
            np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)


def test_the_exact_factor_is_the_likelihood():
    family, model = expfam.full_gaussian(3), models.linear(NAMES, noise_scale=0.5)
    x, y, shard = problem(2)
    solver, prior = solvers.exact(family, model), family.isotropic(2.0)
    job = task(prior, family.zeros())
    _, released, _ = solver.update(keys(0), (), job, shard)
    factor = solver.finish(released.value, job).delta
    np.testing.assert_allclose(factor.J, x.T @ x / 0.25, rtol=1e-12)
    np.testing.assert_allclose(factor.h, x.T @ y / 0.25, rtol=1e-12)


@pytest.mark.nightly(but=("diagonal_gaussian",))
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_glm_solution_is_stationary_for_an_independent_objective(kind):
    """F by brute-force quadrature with 64 nodes, differentiated numerically in (mean, log sd)."""
    family, model = getattr(expfam, kind)(3), models.logistic(NAMES)
    x, y, shard = problem(3, kind="logistic")
    without = random_eta(family, 4)
    job = task(without, family.zeros())
    solver = solvers.glm(family, model, nodes=32)
    _, released, info = solver.update(keys(0), (), job, shard)
    optimum = GaussianEta(released.value["h"], released.value["J"])
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def objective(eta: GaussianEta) -> float:
        mean, _ = family.moments(eta)
        covariance = np.linalg.inv(eta.J) if eta.J.ndim == 2 else np.diag(1.0 / eta.J)
        spread = np.sqrt(np.einsum("nd,de,ne->n", x, covariance, x))
        predictor = (x @ mean)[:, None] + spread[:, None] * nodes
        fit = ((y[:, None] * predictor - np.logaddexp(0.0, predictor)) @ weights).sum()
        return (
            fit
            + family.log_partition(eta)
            + family.inner(tree.subtract(without, eta), family.mean(eta))
        )

    best = objective(optimum)
    assert info["residual"] < 1e-6
    for seed in range(20):
        direction = tree.subtract(random_eta(family, 100 + seed), random_eta(family, 200 + seed))
        for step in (1e-3, -1e-3):
            assert objective(tree.add(optimum, tree.scale(direction, step))) < best


@pytest.mark.parametrize("kind", FAMILIES)
def test_glm_improves_the_objective_from_an_improper_cavity(kind):
    family, model = getattr(expfam, kind)(3), models.logistic(NAMES)
    _, _, shard = problem(5, kind="logistic")
    posterior = random_eta(family, 6)
    job = task(posterior, tree.scale(posterior, 1.05))
    assert not family.is_proper(cavity(job))
    _, released, _ = solvers.glm(family, model).update(keys(0), (), job, shard)
    assert family.is_proper(GaussianEta(released.value["h"], released.value["J"]))


def test_glm_goes_on_from_far_away_though_each_step_gains_little():
    """Columns in units of their own, under a wide prior: 3·10⁹ posterior sds from the optimum."""
    family, model = expfam.diagonal_gaussian(3), models.logistic(NAMES)
    x = np.random.default_rng(20).normal(size=(60, 3)) * [1e5, 1.0, 1e-5]
    shard = Shard({"x": x, "y": (x[:, 1] > 0).astype(float)}, np.ones(60, bool))
    job = task(family.isotropic(1e4), family.zeros())
    _, released, info = solvers.glm(family, model).update(keys(0), (), job, shard)
    assert info["residual"] < 100.0
    assert all(np.isfinite(leaf).all() for leaf in released.value.values())


@pytest.mark.parametrize("kind", FAMILIES)
def test_gradient_finds_the_optimum_of_glm(kind):
    family, model = getattr(expfam, kind)(3), models.logistic(NAMES)
    _, _, shard = problem(7, kind="logistic")
    job = task(family.isotropic(2.5), family.zeros())
    exact = solvers.glm(family, model).update(keys(0), (), job, shard)[1].value
    found = solvers.gradient(family, model).update(keys(1), (), job, shard)[1].value
    # Monte Carlo error with the default steps and draws: 0.02 nats here at the most of 5 seeds.
    assert family.kl(GaussianEta(**found), GaussianEta(**exact)) < 0.05


@pytest.mark.nightly(
    only=("full_gaussian-dp_optimisation", "full_gaussian-glm", "diagonal_gaussian-dp_optimisation")
)
@pytest.mark.parametrize("name", ["exact", "glm", "gradient", "dp_optimisation"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_padding_holds_no_information(name, kind):
    family, model = getattr(expfam, kind)(3), models.linear(NAMES)
    _, _, shard = problem(8)
    garbage = {
        key: np.where(shard.mask.reshape(-1, *[1] * (a.ndim - 1)), a, 7.0)
        for key, a in shard.records.items()
    }
    job = task(family.isotropic(1.0), family.zeros())
    solver = make(name, family, model, steps=20)
    clean = solver.update(keys(2), (), job, shard)[1].value
    dirty = solver.update(keys(2), (), job, Shard(garbage, shard.mask))[1].value
    assert all(np.array_equal(clean[key], dirty[key]) for key in clean)


def make(name, family, model, steps=20, noise_multiplier=1.0, clip_norm=1.0, **arguments):
    factory = getattr(solvers, name)
    if name == "gradient":
        return factory(family, model, steps=steps)
    if name != "dp_optimisation":
        return factory(family, model)
    arguments.setdefault("sampler", sampling.full(64))
    mechanism = mechanisms.gaussian(noise_multiplier)
    return factory(
        family, model, mechanism=mechanism, steps=steps, clip_norm=clip_norm, **arguments
    )


@pytest.mark.nightly(but=("diagonal_gaussian",))
@pytest.mark.parametrize("kind", FAMILIES)
def test_dp_optimisation_without_noise_or_clipping_finds_the_optimum(kind):
    family, model = getattr(expfam, kind)(3), models.linear(NAMES)
    _, _, shard = problem(9)
    job = task(family.isotropic(1.0), family.zeros())
    solver = make(
        "dp_optimisation",
        family,
        model,
        steps=1500,
        noise_multiplier=0.0,
        clip_norm=float("inf"),
        draws=16,
    )
    exact = solvers.exact(family, model).update(keys(0), (), job, shard)[1].value
    _, released, _ = solver.update(keys(3), (), job, shard)
    found = tree.add(solver.finish(released.value, job).delta, job.posterior)
    # Monte Carlo error of 16 draws with a falling learning rate: 0.01 nats at the most of 5 seeds.
    assert family.kl(found, GaussianEta(**exact)) < 0.03


def test_dp_optimisation_releases_the_event_that_it_reserved():
    family, model = expfam.diagonal_gaussian(3), models.logistic(NAMES)
    sampler = sampling.poisson(0.2, 64)
    solver = make("dp_optimisation", family, model, steps=7, noise_multiplier=2.0, sampler=sampler)
    _, _, shard = problem(10, kind="logistic")
    job = task(family.isotropic(1.0), family.zeros())
    _, released, _ = solver.update(keys(4), (), job, shard)
    assert released.event == solver.cost
    (atom,) = events.counts(solver.cost)
    assert events.counts(solver.cost)[atom] == 7
    assert atom == events.PoissonSampled(
        sampler.rate, events.Gaussian(2.0, 1.0, 2.0), sampler.overflow
    )


@pytest.mark.nightly(but=("1.0-diagonal_gaussian", "0.0-diagonal_gaussian"))
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0, 1e9, 1e15])
def test_dp_optimisation_answers_properly_however_large_noise_and_steps_are(kind, noise_multiplier):
    family, model = getattr(expfam, kind)(3), models.logistic(NAMES)
    solver = make(
        "dp_optimisation",
        family,
        model,
        noise_multiplier=noise_multiplier,
        learning_rate=10.0,
        steps=100,
    )
    _, _, shard = problem(11, kind="logistic")
    job = task(family.isotropic(2.5), family.zeros())
    _, released, _ = solver.update(keys(5), (), job, shard)
    assert all(np.isfinite(array).all() for array in released.value.values())
    optimum = tree.add(solver.finish(released.value, job).delta, job.posterior)
    family.check(optimum)
    assert family.is_proper(optimum)


def test_pure_noise_hardly_moves_the_posterior():
    """An empty shard: the only truth is that nothing was learnt."""
    family, model = expfam.full_gaussian(3), models.logistic(NAMES)
    solver = make(
        "dp_optimisation", family, model, noise_multiplier=50.0, learning_rate=0.1, steps=100
    )
    empty = Shard({"x": np.zeros((64, 3)), "y": np.zeros(64)}, np.zeros(64, bool))
    job = task(family.isotropic(2.5), family.zeros())
    _, released, _ = solver.update(keys(6), (), job, empty)
    optimum = tree.add(solver.finish(released.value, job).delta, job.posterior)
    # Adam alone, normalising the noise to full steps, fails this bound.
    assert family.kl(optimum, job.posterior) < 0.1


def test_dp_optimisation_begins_each_visit_with_a_new_optimiser():
    """Adam's moments kept from a visit before, in the state or beside it, would change the next one."""
    family, model = expfam.full_gaussian(3), models.logistic(NAMES)
    _, _, shard = problem(2, kind="logistic")
    prior = family.isotropic(2.5)

    def fresh():
        return make("dp_optimisation", family, model, noise_multiplier=0.5, learning_rate=0.1)

    used = fresh()
    state, released, _ = used.update(keys(0), used.init(prior), task(prior, prior), shard)
    moved = tree.add(used.finish(released.value, task(prior, prior)).delta, prior)
    assert family.kl(moved, prior) > 0.01
    later = task(moved, family.zeros())
    again = used.update(keys(1), state, later, shard)[1].value
    other = fresh()
    first = other.update(keys(1), other.init(prior), later, shard)[1].value
    for name in first:
        np.testing.assert_array_equal(again[name], first[name])


def test_no_key_is_used_twice():
    """Keys of sampling and noise differ over steps, visits, clients and purposes."""
    seen: dict[str, list[bytes]] = {"sampling": [], "noise": [], "asked": []}

    def record(purpose, key):
        jax.debug.callback(
            lambda words: seen[purpose].append(np.asarray(words).tobytes()),
            jax.random.key_data(key),
            ordered=True,
        )

    class Sampler(Full):
        def draw(self, key, valid):
            record("sampling", key)
            return super().draw(key, valid)

    class Mechanism(Gaussian):
        def perturb(self, key, total, clip_norm):
            record("noise", key)
            return super().perturb(key, total, clip_norm)

    family, model = expfam.diagonal_gaussian(3), models.logistic(NAMES)
    solver = solvers.dp_optimisation(family, model, Sampler(64), Mechanism(1.0), steps=5)
    _, _, shard = problem(13, kind="logistic")
    root = random.insecure_root(0)
    for client in ("north", "south"):
        for visit in range(2):
            job = task(family.isotropic(1.0), family.zeros(), client)

            def key_of(purpose, label=(client, f"{client}/{visit}#0")):
                key = root.key(*label, purpose)
                seen["asked"].append(np.asarray(jax.random.key_data(key)).tobytes())
                return key

            solver.update(key_of, (), job, shard)
    jax.effects_barrier()
    assert len(seen["noise"]) == len(seen["sampling"]) == 2 * 2 * 5
    assert len(seen["asked"]) == 2 * 2 * 3
    everything = [word for words in seen.values() for word in words]
    assert len(set(everything)) == len(everything)


@pytest.mark.nightly
def test_all_shards_of_one_capacity_share_one_compilation():
    family = expfam.full_gaussian(3)
    for name in solvers.__all__:
        traces = []

        class Counting(type(models.linear(NAMES))):
            def log_density(self, predictor, y, traces=traces):
                traces.append(1)
                return super().log_density(predictor, y)

            def derivatives(self, predictor, y, traces=traces):
                traces.append(1)
                return super().derivatives(predictor, y)

        base = models.linear(NAMES)
        model = Counting(base.names, base.prior_scales, base.response)
        known = inspect.signature(getattr(solvers, name)).parameters
        given = {"steps": 3} if "steps" in known else {}
        if "mechanism" in known:
            given |= {"sampler": sampling.full(50), "mechanism": mechanisms.rounded_gaussian(1.0)}
        solver = getattr(solvers, name)(family, model, **given)
        after = []
        for client in range(3):
            _, _, shard = problem(20 + client, count=40 + client, padding=10 - client)
            if "parts" in known:
                shard = shard._replace(
                    records=shard.records | {IDS: np.arange(50, dtype=np.uint64)}
                )
            job = task(random_eta(family, client), family.zeros())
            solver.update(keys(client), solver.init(job.posterior), job, shard)
            after.append(len(traces))
        assert after[1:] == after[:1] * 2, name
        # These two have closed forms of their own.
        assert after[0] or name in ("exact", "vips"), name


class Other:
    """A model that is no generalised linear one."""

    size, names = 3, NAMES

    def log_prior(self, theta):
        return -0.5 * (theta * theta).sum()

    def log_likelihood(self, theta, record):
        return -((record["y"] - theta.sum()) ** 4)

    def constrain(self, theta):
        return {"theta": theta}


def test_a_solver_refuses_a_model_it_cannot_solve():
    family = expfam.full_gaussian(3)
    with pytest.raises(errors.SolverError, match="known noise"):
        solvers.exact(family, models.logistic(NAMES))
    with pytest.raises(errors.SolverError, match="generalised linear model"):
        solvers.glm(family, Other())
    with pytest.raises(errors.SolverError, match="steps is 0"):
        make("dp_optimisation", family, models.logistic(NAMES), steps=0)


def test_solvers_leave_the_global_precision_alone():
    family, model = expfam.full_gaussian(3), models.linear(NAMES)
    _, _, shard = problem(12)
    job = task(family.isotropic(1.0), family.zeros())
    solvers.glm(family, model).update(keys(0), (), job, shard)
    assert not jax.config.jax_enable_x64


def test_the_keys_of_steps_are_those_that_split_gives():
    for key in (keys(0)("noise"), jax.random.key(3)):
        expected = jax.random.key_data(jax.random.split(key, 7))
        found = jax.random.key_data(_split(key, 7))
        np.testing.assert_array_equal(found, expected)


def test_no_step_of_adam_is_longer_than_is_said():
    # Against the recursion of Kingma and Ba, for the gradients that make the step of time t longest.
    b1, b2 = 0.9, 0.95
    for t in range(1, 400):
        gradients = (b1 / b2) ** np.arange(t)[::-1]
        first = second = 0.0
        for gradient in gradients:
            first = b1 * first + (1.0 - b1) * gradient
            second = b2 * second + (1.0 - b2) * gradient**2
        step = first / (1.0 - b1**t) / np.sqrt(second / (1.0 - b2**t))
        assert step < optimiser.LONGEST_STEP
    assert step > 1.16
