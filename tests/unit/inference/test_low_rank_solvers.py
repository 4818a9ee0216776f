"""Low-rank posteriors by gradients: right in their own coordinates, never an array of D × D."""

import tracemalloc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.expfam.low_rank_gaussian import LowRankGaussian
from fedvi.inference import solvers, whitened
from fedvi.inference.local_latents import local_problem
from fedvi.inference.solvers.dp_optimisation import _climber as private_climber
from fedvi.inference.solvers.gradient import climber
from fedvi.models.site_effects import site_effects
from fedvi.privacy import mechanisms, random, sampling
from fedvi.study.priors import prior_of
from fedvi.updates.base import Shard, Task, finish_natural
from fedvi.updates.finish import to_low_rank
from tests.studies import random_eta


def task_of(family, seed=1):
    factor = tree.scale(random_eta(family, seed + 1), 0.3)
    return Task("c/0", "c", 0, 0, random_eta(family, seed), factor, 1.0)


def guide_of(family, seed=5):
    generator = np.random.default_rng(seed)
    count = family.size + family.rank * (family.rank + 1) // 2
    return generator.normal(size=family.size), 0.5 * generator.normal(size=count)


def test_the_zeros_are_the_broadcast_posterior():
    family = LowRankGaussian(30, 4)
    task = task_of(family)
    count = family.size + family.rank * (family.rank + 1) // 2
    found = to_low_rank(family, task, np.zeros(family.size), np.zeros(count))
    for leaf, expected in zip(found, task.posterior, strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-10, atol=1e-12)


def test_draws_and_the_term_without_data_are_those_of_the_member_that_is_sent():
    family = LowRankGaussian(12, 3)
    task = task_of(family)
    location, raw = guide_of(family)
    sent = to_low_rank(family, task, location, raw)
    assert family.is_proper(sent)
    with jax.enable_x64(True):
        at = type(frame := whitened.frame(family, task))(*map(jnp.asarray, frame))
        parameters = jnp.asarray(location), jnp.asarray(raw)
        rows = np.asarray(whitened.thetas(parameters, at, jnp.eye(family.size)))
        mean = np.asarray(whitened.thetas(parameters, at, jnp.zeros((1, family.size))))[0]
        terms = [float(whitened.public_term(p, at)) for p in (whitened.start(at), parameters)]
    precision = np.diag(sent.d) + family.basis @ sent.K @ family.basis.T
    root = (rows - mean).T
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(precision), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mean, family.moments(sent)[0], rtol=1e-9)
    without = tree.subtract(task.posterior, task.factor)
    exact = [
        family.log_partition(q) + family.inner(tree.subtract(without, q), family.mean(q))
        for q in (task.posterior, sent)
    ]
    assert terms[1] - terms[0] == pytest.approx(exact[1] - exact[0], rel=1e-9)


def test_noise_and_gradients_are_pulled_back_by_the_same_root():
    family = LowRankGaussian(12, 3)
    with jax.enable_x64(True):
        at = type(frame := whitened.frame(family, task_of(family)))(*map(jnp.asarray, frame))
        root = np.asarray(whitened.to_theta(at, jnp.eye(12)) - at.mean[None, :]).T
        gradient = jnp.arange(12.0)
        pulled = whitened.pull_back(at, gradient, jnp.zeros(18))[0]
        np.testing.assert_allclose(pulled, root.T @ np.arange(12.0), rtol=1e-9)
        expected = 4.0 * (root**2).sum() / 12
        assert float(whitened.noise_in_frame(at, 2.0)) == pytest.approx(expected, rel=1e-9)


def arrays_in(jaxpr):
    """Yields every intermediate of a program, those of its loops and calls as well."""
    for equation in jaxpr.eqns:
        yield from (variable.aval for variable in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr):
                    yield from arrays_in(inner.jaxpr)
                elif isinstance(inner, Jaxpr):
                    yield from arrays_in(inner)


def largest(program, *arguments):
    made = jax.make_jaxpr(program)(*arguments)
    return max(aval.size for aval in arrays_in(made.jaxpr) if hasattr(aval, "size"))


def of_many(size, records):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(records, size)).astype(np.float32)
    return {"x": x, "y": (generator.uniform(size=records) < 0.5).astype(np.float32)}


@pytest.mark.parametrize("kind", ["gradient", "dp_optimisation"])
def test_no_program_of_a_solver_holds_an_array_of_d_by_d(kind):
    size, rank, records = 2000, 4, 64
    family = LowRankGaussian(size, rank)
    model = models.logistic([f"x{index}" for index in range(size)])
    local = local_problem(family, model)
    at = whitened.single(whitened.frame(family, task_of(family)))
    shard, valid = of_many(size, records), jnp.ones(records, bool)
    if kind == "gradient":
        climb = climber(local, 3, 8, 0.1)
        found = largest(climb, jax.random.key(0), at, shard, valid)
        most = 8 * size
    else:
        sampler, mechanism = sampling.poisson(0.25, records), mechanisms.rounded_gaussian(1.0)
        climb = private_climber(local, sampler, mechanism, 1.0, 3, 0.1, 8)
        keys = tuple(jax.random.split(jax.random.key(index), 3) for index in range(3))
        found = largest(climb.at_once, keys, at, shard, valid)
        # Of every row of a batch, filled up to 64, its gradient along each draw.
        most = 64 * 8 * size
    assert size <= found <= most < size**2


@pytest.mark.nightly
def test_what_stands_around_the_programs_holds_none_either():
    family, limit = LowRankGaussian(20_000, 4), 64 << 20  # an array of D × D is 3.2 GB
    task = task_of(family)
    location, raw = guide_of(family)
    tracemalloc.start()
    try:
        whitened.frame(family, task)
        sent = to_low_rank(family, task, location, raw)
        finish_natural(sent._asdict(), task)
        family.along(sent, np.ones((3, family.size)))
        prior_of(family, models.logistic([f"x{index}" for index in range(family.size)]))
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def test_a_records_gradient_does_not_depend_on_the_row_it_stands_in():
    size, count = 40, 64
    family = LowRankGaussian(size, 3)
    model = models.logistic([f"x{index}" for index in range(size)])
    at = whitened.single(whitened.frame(family, task_of(family)))
    rows = of_many(size, count)
    guide = tuple(jnp.asarray(part, jnp.float32) for part in guide_of(family))
    noise = jax.random.normal(jax.random.key(1), (8, size))

    def term(parameters, record):
        thetas = whitened.around(parameters, at, noise)
        return jax.vmap(model.log_likelihood, in_axes=(0, None))(thetas, record).mean()

    each = jax.jit(jax.vmap(jax.grad(term), in_axes=(None, 0)))
    found = each(guide, rows)
    for shift in (1, 3, 17):
        order = np.roll(np.arange(count), shift)
        moved = each(guide, {name: column[order] for name, column in rows.items()})
        for part, other in zip(found, moved, strict=True):
            np.testing.assert_array_equal(np.asarray(part)[order], np.asarray(other))


@pytest.mark.nightly
def test_noise_leaves_every_answer_proper_and_within_bounds():
    size = 30
    family = LowRankGaussian(size, 4)
    model = models.logistic([f"x{index}" for index in range(size)])
    solver = solvers.dp_optimisation(
        family,
        model,
        sampler=sampling.poisson(0.5, 32),
        mechanism=mechanisms.rounded_gaussian(50.0),
        clip_norm=10.0,
        steps=60,
        learning_rate=2.0,
    )
    posterior = tree.to_numpy(family.isotropic(1.0))
    for seed in range(3):
        task = Task(f"c/{seed}", "c", seed, 0, posterior, family.zeros(), 1.0)
        keys = partial(random.insecure_root(seed).key, "c", task.task_id)
        released = solver.update(
            keys, solver.init(posterior), task, Shard(of_many(size, 32), np.ones(32, bool))
        )[1]
        posterior = tree.add(posterior, solver.finish(released.value, task).delta)
        family.check(posterior)
        assert family.is_proper(posterior)


def test_site_effects_are_refused_in_words():
    model = site_effects(models.linear(["a", "b", "c"]))
    with pytest.raises(
        errors.SolverError, match=r"`low_rank_gaussian` does not support site effects"
    ):
        solvers.gradient(expfam.low_rank_gaussian(3, rank=1), model)
