"""Gradients through linear predictors are those of automatic differentiation, and depend on no row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import expfam, models
from fedvi.inference import whitened
from fedvi.inference.predictor import gradients, has_predictor
from fedvi.privacy import sampling
from fedvi.privacy.base import Batch, filled
from fedvi.updates.base import Task
from tests.studies import random_eta

SIZE, COUNT, DRAWS = 5, 21, 3
NAMES = [f"x{index}" for index in range(SIZE)]
FAMILIES = {"full": expfam.full_gaussian, "diagonal": expfam.diagonal_gaussian}
MODELS = {
    "linear": models.linear(NAMES, 0.7),
    "logistic": models.logistic(NAMES),
    "binomial": models.binomial(NAMES),
    "binomial with an offset": models.binomial(NAMES, offset=True),
    "negative_binomial": models.negative_binomial(NAMES, 2.0),
    "poisson with an offset": models.poisson(NAMES, offset=True),
}


def problem(kind, size=SIZE, count=COUNT, draws=DRAWS):
    """Returns a guide that is not the broadcast q, its frame, draws and records, float32."""
    family, generator = FAMILIES[kind](size), np.random.default_rng(0)
    eta = random_eta(family, 1)
    at = whitened.single(whitened.frame(family, Task("c/0", "c", 0, 0, eta, family.zeros(), 1.0)))
    raw = jnp.asarray(0.3 * generator.normal(size=at.root.shape), jnp.float32)
    centre = jnp.asarray(generator.normal(size=size), jnp.float32)
    noise = jnp.asarray(generator.normal(size=(draws, size)), jnp.float32)
    x = jnp.asarray(0.4 * generator.normal(size=(count, size)), jnp.float32)
    y = jnp.asarray(generator.integers(0, 2, count), jnp.float32)
    return (centre, raw), at, noise, {"x": x, "y": y}


@pytest.mark.nightly(only=("linear-full", "logistic-full", "linear-diagonal"))
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_automatic_differentiation(name, kind):
    model = MODELS[name]
    guide, at, noise, rows = problem(kind)
    if "binomial" in name and "negative" not in name:
        rows["y"] = jnp.stack([3.0 * rows["y"], 2.0 - rows["y"]], 1)
    if "offset" in name:
        shifts = jnp.linspace(-1.0, 1.0, COUNT, dtype=jnp.float32)
        rows["y"] = jnp.column_stack([rows["y"], shifts])

    def term(guide, record):
        centre, raw = guide
        z = whitened.draw((jnp.zeros_like(centre), raw), noise)
        thetas = whitened.to_theta(at._replace(mean=centre), z)
        return jax.vmap(model.log_likelihood, in_axes=(0, None))(thetas, record).mean()

    found = gradients(model, guide, at, noise, rows).formed()
    wanted = jax.vmap(jax.grad(term), in_axes=(None, 0))(guide, rows)
    for part, right in zip(found, wanted, strict=True):
        scale = float(jnp.abs(right).max())
        np.testing.assert_allclose(part, right, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_record_has_the_same_gradient_in_whichever_row_it_stands(kind):
    """Without the empty rows at the end, the last five of 133 have other last bits."""
    size, count = 20, 133
    guide, at, noise, records = problem(kind, size, count, draws=1)
    model = models.logistic([f"x{index}" for index in range(size)])

    @jax.jit
    def found(indices):
        batch = filled(Batch(indices, jnp.ones(count, bool), sampling.full(count)))
        rows = {name: column[batch.indices] for name, column in records.items()}
        made = gradients(model, guide, at, noise, rows)
        return (*made.formed(), made.norm())

    still = [np.asarray(part)[:count] for part in found(jnp.arange(count))]
    for shift in (1, 3, 5):
        order = np.roll(np.arange(count), shift)
        for part, moved in zip(still, found(jnp.asarray(order)), strict=True):
            np.testing.assert_array_equal(np.asarray(moved)[:count], part[order])


def test_empty_rows_count_for_nothing_and_fill_whole_blocks():
    batch = filled(Batch(jnp.arange(70), jnp.ones(70, bool), sampling.full(70)))
    assert batch.mask.shape == batch.indices.shape == (128,)
    assert int(batch.mask.sum()) == 70
    whole = Batch(jnp.arange(64), jnp.ones(64, bool), sampling.full(64))
    assert filled(whole).mask.shape == (64,)


def test_models_of_several_rows_or_no_predictor_have_none():
    assert has_predictor(MODELS["logistic"])
    assert not has_predictor(models.survival(["age"], [1.0, 2.0]))
    assert not has_predictor(models.multinomial(["age"], ["a", "b", "c"]))
