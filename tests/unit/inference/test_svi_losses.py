"""Losses that `DPSVI` releases, batches that it takes in parts, and what a review found."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO, autoguide

import fedvi
from fedvi import errors
from fedvi.inference import per_record
from fedvi.inference import svi_steps as descents
from fedvi.inference.svi import DPSVI
from tests.unit.inference.test_svi import STEPS, N, assert_same, logistic, nothing, private, table

pytestmark = pytest.mark.numpyro


def fit(plan, **options):
    guide = autoguide.AutoDiagonalNormal(logistic)
    return DPSVI(logistic, guide, numpyro.optim.Adam(0.05), Trace_ELBO(), plan, **options)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [{}, {"clip": "elbo"}, {"gradients": "aligned"}, {"microbatch_size": 7}],
    ids=["likelihood", "elbo", "aligned", "microbatches"],
)
def test_without_noise_and_clipping_losses_are_those_of_svi(options):
    theirs = SVI(
        logistic,
        autoguide.AutoDiagonalNormal(logistic),
        numpyro.optim.Adam(0.05),
        Trace_ELBO(),
    )
    expected = theirs.run(jax.random.key(1), STEPS, *table(), progress_bar=False)
    ours = fit(nothing(), loss_bound=1e4, **options)
    found = ours.run(jax.random.key(1), STEPS, *table(), progress_bar=False)
    assert_same(found.params, expected.params, rtol=1e-4)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
    again = fit(nothing(), loss_bound=1e4, **options)
    state = again.init(jax.random.key(1), *table())
    np.testing.assert_allclose(again.update(state, *table())[1], expected.losses[0], rtol=1e-4)


@pytest.mark.nightly
def test_a_released_loss_is_noised_and_costs_no_more():
    plan = private(insecure_seed=1)
    ours = fit(plan, loss_bound=2.0)
    result = ours.run(jax.random.key(1), 50, *table(), progress_bar=False)
    assert np.isfinite(result.losses).all()
    assert ours.ledger.header.planned == fit(plan).privacy.run
    # The noise of a loss has std 10 · 4 · 2 ÷ (6 / 24) = 320, and that of the batch is far below.
    assert 200 < np.std(result.losses) < 450
    other = fit(private(insecure_seed=2), loss_bound=2.0)
    assert not np.allclose(
        other.run(jax.random.key(1), 50, *table(), progress_bar=False).losses, result.losses
    )
    _, loss = jax.jit(ours.update)(result.state, *table())
    assert np.isnan(loss), "no step was left"


@pytest.mark.nightly
def test_batches_are_taken_in_parts_where_gradients_would_fill_the_memory(monkeypatch):
    ends, seen = [], []
    gradients = per_record.gradients

    def watched(loss, at, rows, places):
        seen.append(places.shape[0])
        return gradients(loss, at, rows, places)

    monkeypatch.setattr(per_record, "gradients", watched)
    for most in (2**26, 5 * 6):
        monkeypatch.setattr(descents, "_FORMED_TOGETHER", most)
        seen.clear()
        ours = fit(nothing())
        ends.append(ours.run(jax.random.key(1), STEPS, *table(), progress_bar=False).params)
        # All rows to see how many numbers a record has, then what is formed.
        assert set(seen) == ({N} if most == 2**26 else {N, 5})
    assert_same(ends[1], ends[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss_bound": 0.0}, r"loss_bound is 0\.0, expected a positive number"),
        ({"loss_bound": float("inf")}, "loss_bound is inf"),
        ({"microbatch_size": 0}, "microbatch_size is 0, expected an integer of at least 1"),
        ({"microbatch_size": True}, "microbatch_size is True"),
    ],
)
def test_a_bound_and_a_size_are_positive(options, said):
    with pytest.raises(errors.ConfigError, match=said):
        fit(nothing(), **options)


def own_latents(x):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(b, 1.0))
        numpyro.sample("x", dist.Normal(z, 0.1), obs=x)


def own_guide(x):
    mean = numpyro.param("mean", 0.0)
    scale = numpyro.param("scale", 1.0)
    numpyro.sample("b", dist.Normal(mean, 0.1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("z", dist.Normal(scale * x, 1.0))


@pytest.mark.nightly
def test_a_record_that_leaves_takes_nobody_s_draws_along():
    """Drawn by rows, the latents of all later records would change, and the sum by many clip norms."""
    rows = 40
    plan = fedvi.privacy.sgd(
        steps=3, max_records=rows, noise_multiplier=1.0, delta=1e-3, sampler="full",
        relation="add_remove", insecure_seed=1,
    )  # fmt: skip
    x = np.random.default_rng(0).normal(size=rows).astype(np.float32)
    ours = DPSVI(own_latents, own_guide, numpyro.optim.SGD(0.1), Trace_ELBO(), plan)
    state = ours.init(jax.random.key(0), x)
    assert ours._taken_apart.has_local
    params, columns = ours.optim.get_params(state.optim_state), [jnp.asarray(x)]
    batch, places, _ = ours._steps.drawn(state.noise_key[1], columns)
    assert len(np.unique(places)) == rows
    grid = plan.fitted(2).mechanism.grid(1.0)

    def moved(left_out, places_of_others):
        whole = ours._steps.bounded(params, state.rng_key, columns, batch, places)
        some = [columns[0][left_out]]
        fewer = ours._steps.batch(state.noise_key[0], some)
        others = jnp.append(places_of_others, places[3])
        less = ours._steps.bounded(params, state.rng_key, some, fewer, others)
        pairs = zip(jax.tree.leaves(whole.total), jax.tree.leaves(less.total), strict=True)
        return np.sqrt(sum(int(np.sum((a - b).astype(float) ** 2)) for a, b in pairs)) * grid.step

    stay = np.arange(rows) != 3
    # As the proof couples them: each record keeps its word.
    assert moved(stay, places[stay]) <= 1.0
    # Words of rows, as they once were: the test would see it.
    assert moved(stay, places[:-1]) > 2.0


@pytest.mark.nightly
def test_a_step_that_was_set_back_gets_no_noise_that_anybody_knows():
    ours = fit(private(insecure_seed=1))
    state = ours.run(jax.random.key(1), 10, *table(), progress_bar=False).state
    back = state._replace(step=jnp.asarray(3, jnp.int32))
    with pytest.raises(errors.PrivacyError, match="used before"):
        ours.update(back, *table())
    still, loss = jax.jit(ours.update)(back, *table())
    assert_same(ours.get_params(still), ours.get_params(state), rtol=0.0)
    assert np.isnan(loss)
    ours.update(state, *table())
    other = state._replace(noise_key=state.noise_key.at[0].set(state.noise_key[20]))
    with pytest.raises(errors.PrivacyError, match="used before"):
        ours.update(other, *table(1))


def test_one_state_serves_one_table():
    """On two at once the same noise could be taken off."""
    ours, tables = fit(private()), [table(seed)[0] for seed in (0, 1)]
    state, y = ours.init(jax.random.key(1), *table()), table()[1]
    with pytest.raises(errors.PrivacyError, match="constant of the function"):
        jax.vmap(lambda x: ours.update(state, x, y))(jnp.stack(tables))


@pytest.mark.nightly
def test_the_table_keeps_its_length():
    ours, (x, y) = fit(private(sampler="full", batch=None, runs=2)), table()
    state = ours.init(jax.random.key(1), x, y)
    for call in (
        lambda: ours.update(state, x[:-2], y[:-2]),
        lambda: ours.run(jax.random.key(1), 1, x[:-2], y[:-2], init_state=state),
        lambda: ours.run(jax.random.key(1), 1, x[:-2], y[:-2]),
    ):
        with pytest.raises(errors.ModelError, match="22 rows, expected those of `init`"):
            call()
    assert len(ours.ledger.entries) == 1
    ours.update(state, x, y)


@pytest.mark.nightly
def test_parts_are_computed_with_the_user_s_own_precision():
    ends = []
    with jax.enable_x64(True):
        for size in (None, 5):
            ours = fit(nothing(), microbatch_size=size, loss_bound=1e4)
            start = {"auto_loc": jnp.zeros(3, jnp.float32), "auto_scale": jnp.ones(3, jnp.float32)}
            ends.append(
                ours.run(
                    jax.random.key(1), 1, *table(), progress_bar=False, init_params=start
                ).params
            )
    assert_same(ends[1], ends[0], rtol=1e-5)


@pytest.mark.parametrize("clipping", ["automatic", "normalised"])
def test_gradients_are_scaled_to_something_finite(clipping):
    with pytest.raises(errors.ConfigError, match="clip_norm is inf"):
        fit(nothing(), clipping=clipping)
