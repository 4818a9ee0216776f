"""Claims about how far private steps of a site with effects are shortened: shares of signal, by block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import expfam, models
from fedvi.expfam import tree
from fedvi.inference import whitened
from fedvi.inference.local_latents import local_problem
from fedvi.inference.solvers.dp_optimisation import _signals
from fedvi.models.site_effects import site_effects
from fedvi.updates.base import Task

NAMES = ["(Intercept)", "age", "dose"]
KINDS = ["full_gaussian", "diagonal_gaussian"]
STD, STEPS = 3.0, 4000


def problem(kind, learnt):
    """A client's problem, and the frame of a broadcast q whose coordinates of θ are correlated."""
    model = site_effects(models.logistic(NAMES), ["(Intercept)", "dose"], scale=0.3, learnt=learnt)
    family = getattr(expfam, kind)(model.size)
    local = local_problem(family, model)
    root = np.random.default_rng(0).normal(size=(20, model.size))
    covariance = root.T @ root / 20
    mean = np.linspace(-1.0, 0.5, model.size)
    given = covariance if kind == "full_gaussian" else np.diagonal(covariance).copy()
    posterior = tree.to_numpy(family.from_moments(mean, given))
    task = Task("0", "c", 0, 0, posterior, tree.to_numpy(family.zeros()), 1.0)
    return local, whitened.single(whitened.frame(local.family, local.widen(task)))


def shares(local, at, location, raw):
    """The shares and running means after so many noised gradients, of which ``location`` and ``raw`` are
    the signal, in the coordinates of the steps."""

    def step(energy, key):
        one, other = jax.random.split(key)
        noise = (
            STD * jax.random.normal(one, at.mean.shape),
            STD * jax.random.normal(other, at.root.shape),
        )
        noised = whitened.pull_back(at, *local.without_scales(noise))
        slope = jax.tree.map(jnp.add, noised, (location, raw))
        found, energy = _signals(local.predicting, at, slope, STD, energy)
        return energy, (found, energy)

    keys = jax.random.split(jax.random.key(1), STEPS)
    _, told = jax.lax.scan(step, jnp.zeros(5), keys)
    return told


def row_squares(at):
    """The squared norm of each row of the frame's root."""
    root = np.asarray(at.root, np.float64)
    return (root**2).reshape(len(root), -1).sum(axis=1)


def taken_for_noise(local, at):
    """The mean square of noise in β's location and scale, and in the others', as shares count it."""
    squares, size = row_squares(at), local.predicting
    return STD**2 * np.array([squares[:size].mean(), 1.0, squares[size:].mean(), 1.0])


@pytest.mark.parametrize("learnt", [False, True], ids=["known", "learnt"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_records_tell_of_a_learnt_scale_directly_is_nothing_and_dropped(kind, learnt):
    local, at = problem(kind, learnt)
    generator = np.random.default_rng(2)
    rows = local.records({"x": generator.normal(size=(5, 3)), "y": np.array([0, 1, 1, 0, 1.0])})
    noise = jnp.asarray(generator.normal(size=(4, local.family.size)), jnp.float32)

    def fit(centre, raw):
        z = whitened.draw((jnp.zeros_like(centre), raw), noise)
        thetas = whitened.to_theta(at._replace(mean=centre), z)
        many = jax.vmap(jax.vmap(local.model.log_likelihood, (None, 0)), (0, None))
        return many(thetas, rows).mean()

    raw = 0.3 * jnp.asarray(generator.normal(size=at.root.shape), jnp.float32)
    found = jax.grad(fit, argnums=(0, 1))(at.mean, raw)
    kept = local.without_scales(found)
    for before, after in zip(found, kept, strict=True):
        assert np.array_equal(before, after)
    # Of noise, only log τ's places are gone, and what moves log τ is all in them.
    location, scale = local.without_scales((jnp.ones_like(at.mean), jnp.ones_like(at.root)))
    place = np.arange(local.family.size)
    is_scale = (place >= local.predicting) & (place < local.size)
    assert is_scale.sum() == (2 if learnt else 0)
    assert np.array_equal(np.asarray(location) == 0.0, is_scale)
    assert np.array_equal((np.asarray(scale) == 0.0).reshape(len(place), -1).all(axis=1), is_scale)
    assert np.asarray(scale)[~is_scale].all()


@pytest.mark.nightly(only=("full_gaussian-known",))
@pytest.mark.parametrize("learnt", [False, True], ids=["known", "learnt"])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_alone_has_at_most_the_energy_that_is_taken_for_it(kind, learnt):
    local, at = problem(kind, learnt)
    _, energy = shares(local, at, jnp.zeros_like(at.mean), jnp.zeros_like(at.root))
    found = np.asarray(energy[:, :4] / energy[:, 4:])[100:].mean(axis=0)
    root, size, squares = np.asarray(at.root), local.predicting, row_squares(at)
    taken = taken_for_noise(local, at)
    # Where log τ is learnt, its places hold no noise and count as if they did: shares of the rest are
    # then lower than they could be, and never higher.
    kept = np.ones_like(squares)
    kept[size : local.size] = 0.0
    entries = np.arange(1.0, len(root) + 1.0) if root.ndim == 2 else np.ones(len(root))
    blocks = slice(0, size), slice(size, None)
    part = [
        (kept * each)[block].sum() / each[block].sum()
        for block in blocks
        for each in (squares, entries)
    ]
    # A mean of 3,900 squares or more: its sd is 0.023 at most, so that one of 16 is off by 0.1 in fewer
    # than 1 of 1,000 seeds.
    assert np.allclose(found / taken, part, atol=0.1)
    assert max(part) == 1.0
    assert (min(part) < 1.0) == learnt


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", range(4))
def test_a_signal_in_one_block_lengthens_the_steps_of_that_block_alone(kind, block):
    local, at = problem(kind, learnt=True)
    size = local.predicting
    location, raw = jnp.zeros_like(at.mean), jnp.zeros_like(at.root)
    # The first coordinate of β, or the first of u.
    place, strong = (0, size)[block // 2], 100.0 * STD
    if block % 2:
        raw = raw.at[place].set(strong) if raw.ndim == 1 else raw.at[place, 0].set(strong)
    else:
        location = location.at[place].set(strong)
    found, energy = shares(local, at, location, raw)
    assert found[0].shape[1:] == at.mean.shape
    assert found[1].shape[1:] == at.root.shape
    each = [side[:, part] for part in (slice(0, size), slice(size, None)) for side in found]
    for number, told in enumerate(each):
        assert np.ptp(told.reshape(STEPS, -1), axis=1).max() == 0.0
        mean = np.asarray(told, np.float64).mean()
        assert mean > 0.99 if number == block else mean < 0.1
    # The share tells what was taken for noise, and that is what noise has.
    share = np.asarray(each[block], np.float64).reshape(STEPS, -1)[:, 0]
    noise = (1.0 - share) * np.asarray(energy[:, block] / energy[:, 4])
    assert np.allclose(noise, taken_for_noise(local, at)[block], rtol=0.02)
