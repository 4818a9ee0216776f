"""A state of `DPSVI` is used once, also in a caller's own `jit`, `scan` and `vmap`."""

import copy
import functools
import pickle  # noqa: TID251 - that it carries no steps away is what is tested
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors
from fedvi.inference import used_states
from fedvi.inference.svi import DPSVI

pytestmark = pytest.mark.numpyro

N = 8


def logistic(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def table(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(N, 3)).astype(np.float32)
    return x, (x.sum(axis=1) + random.normal(size=N) > 0).astype(np.float32)


def private(**settings):
    plan = {"steps": 9, "max_records": N, "noise_multiplier": 4.0, "delta": 1e-3, "batch": 4}
    return fedvi.privacy.sgd(**{**plan, **settings})


def descent(**settings):
    optim = numpyro.optim.SGD(0.1)
    return DPSVI(logistic, autoguide.AutoNormal(logistic), optim, Trace_ELBO(), private(**settings))


@functools.cache
def shared():
    """A fit with a run for each test: it is set up and checked once."""
    return descent(noise_multiplier=30.0, runs=60)


def locations(fit, state):
    return np.asarray(fit.get_params(state)["b_auto_loc"])


# What XLA says where a callback of a compiled program raises.
SAID = r"PrivacyError: the state of step 0 was used before"


def refused():
    return pytest.raises(jax.errors.JaxRuntimeError, match=SAID)


@pytest.mark.nightly(but=("jitted",))
@pytest.mark.parametrize("first", ["jitted", "plain", "run"])
def test_a_jitted_step_serves_one_table(first):
    fit, data = shared(), table()
    state, step = fit.init(jax.random.key(0), *data), jax.jit(fit.update)
    if first == "jitted":
        assert int(step(state, *data)[0].step) == 1
    elif first == "plain":
        fit.update(state, *data)
    else:
        fit.run(jax.random.key(0), 1, *data, init_state=state, progress_bar=False)
    with refused():
        jax.block_until_ready(step(state, *table(1)))
    with pytest.raises(errors.PrivacyError, match="the state of step 0 was used before"):
        fit.update(state, *table(1))


def test_what_a_jitted_step_used_no_plain_step_uses_and_the_next_state_goes_on():
    fit, data = shared(), table()
    state, step = fit.init(jax.random.key(0), *data), jax.jit(fit.update)
    after, _ = step(state, *data)
    with pytest.raises(errors.PrivacyError, match="the state of step 0 was used before"):
        fit.update(state, *table(1))
    with refused():
        jax.block_until_ready(step(state, *data))
    # A refusal breaks nothing for the states that follow.
    after, _ = step(after, *data)
    after, _ = fit.update(after, *data)
    assert int(after.step) == 3
    jax.effects_barrier()


@pytest.mark.nightly(but=("scan",))
@pytest.mark.parametrize("loop", ["scan", "fori_loop", "while_loop"])
def test_a_loop_of_one_s_own_serves_one_table(loop):
    fit, (x, y) = shared(), table()
    state = fit.init(jax.random.key(0), x, y)

    @jax.jit
    def several(state, x, y):
        if loop == "scan":
            return jax.lax.scan(lambda state, _: fit.update(state, x, y), state, length=3)[0]
        if loop == "fori_loop":
            return jax.lax.fori_loop(0, 3, lambda _, state: fit.update(state, x, y)[0], state)
        return jax.lax.while_loop(
            lambda state: state.step < 3, lambda state: fit.update(state, x, y)[0], state
        )

    end = several(state, x, y)
    assert int(end.step) == 3
    with refused():
        jax.block_until_ready(several(state, *table(1)))
    assert int(several(end, x, y).step) == (3 if loop == "while_loop" else 6)


@pytest.mark.nightly
def test_two_steps_of_one_compiled_function_from_one_state_are_refused():
    fit, (x, y) = shared(), table()
    state = fit.init(jax.random.key(0), x, y)

    @jax.jit
    def both(state, x, y):
        return fit.update(state, x, y)[0], fit.update(state, -x, y)[0]

    with refused():
        jax.block_until_ready(both(state, x, y))


@pytest.mark.nightly
def test_a_loss_alone_is_not_returned_for_a_used_state():
    fit, (x, y) = shared(), table()
    state = fit.init(jax.random.key(0), x, y)
    loss = jax.jit(lambda state, x, y: fit.update(state, x, y)[1])
    jax.block_until_ready(loss(state, x, y))
    with refused():
        jax.block_until_ready(loss(state, -x, y))


TABLES = {
    "vmap": lambda fit: jax.vmap(fit.update, (None, 0, None)),
    "vmap in jit": lambda fit: jax.jit(jax.vmap(fit.update, (None, 0, None))),
    "jit in vmap": lambda fit: jax.vmap(jax.jit(fit.update), (None, 0, None)),
    "scan in vmap": lambda fit: jax.jit(
        jax.vmap(
            lambda state, x, y: jax.lax.scan(
                lambda state, _: fit.update(state, x, y), state, length=2
            ),
            (None, 0, None),
        )
    ),
    "stable": lambda fit: jax.jit(jax.vmap(fit.stable_update, (None, 0, None))),
}


@pytest.mark.nightly(but=("vmap in jit",))
@pytest.mark.parametrize("kind", TABLES)
def test_a_map_over_tables_with_one_state_is_refused(kind):
    fit, (x, y) = shared(), table()
    state = fit.init(jax.random.key(0), x, y)
    with pytest.raises(errors.PrivacyError) as no:
        TABLES[kind](fit)(state, jnp.stack([x, -x]), y)
    assert no.value.hint
    if kind not in ("vmap",):
        assert "vmap takes 2 steps from one state, expected a state for each" in str(no.value)
    # Nothing was used.
    assert int(fit.update(state, x, y)[0].step) == 1


@pytest.mark.nightly
def test_a_map_over_other_parameters_or_keys_with_one_noise_is_refused():
    fit, (x, y) = shared(), table()
    state = fit.init(jax.random.key(0), x, y)
    keys = jax.random.split(state.rng_key, 2)

    def with_key(state, key):
        return fit.update(state._replace(rng_key=key), x, y)

    with pytest.raises(errors.PrivacyError, match="vmap takes 2 steps from one state"):
        jax.jit(jax.vmap(with_key, (None, 0)))(state, keys)
    optims = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state.optim_state)
    axes = state._replace(**dict.fromkeys(state._fields))._replace(optim_state=0)
    with pytest.raises(errors.PrivacyError, match="vmap takes 2 steps from one state"):
        jax.jit(jax.vmap(lambda state: fit.update(state, x, y), (axes,)))(
            state._replace(optim_state=optims)
        )


def test_a_map_over_states_takes_each_once():
    fit, (x, y) = shared(), table()
    starts = [fit.init(jax.random.key(run), x, y) for run in range(2)]
    several = jax.jit(jax.vmap(lambda state: fit.update(state, x, y)[0]))
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    ends = several(together)
    assert ends.step.tolist() == [1, 1]
    with refused():
        jax.block_until_ready(several(together))
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), ends)
    with pytest.raises(jax.errors.JaxRuntimeError, match="state of step 1 was used before"):
        jax.block_until_ready(several(twice))


def test_a_state_of_another_fit_is_refused_in_a_jit_too():
    free, paid = descent(), shared()
    paid.init(jax.random.key(0), *table())
    state = free.init(jax.random.key(0), *table())
    with pytest.raises(jax.errors.JaxRuntimeError, match="belongs to another fit"):
        jax.block_until_ready(jax.jit(paid.update)(state, *table()))


def test_a_compiled_step_is_refused_in_a_process_that_does_not_own_it(monkeypatch):
    fit, data = shared(), table()
    state, step = fit.init(jax.random.key(0), *data), jax.jit(fit.update)
    state, _ = jax.block_until_ready(step(state, *data))
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a process that was forked off"):
        jax.block_until_ready(step(state, *data))
    monkeypatch.undo()
    assert int(step(state, *data)[0].step) == 2


@pytest.mark.nightly
def test_where_no_step_is_left_a_compiled_one_returns_the_state():
    fit, data = descent(steps=1), table()
    end, _ = fit.update(fit.init(jax.random.key(0), *data), *data)
    for _ in range(2):
        still, loss = jax.jit(fit.update)(end, *data)
        assert np.isnan(loss)
        np.testing.assert_array_equal(locations(fit, still), locations(fit, end))


@pytest.mark.nightly
def test_compiled_steps_are_those_of_update():
    ends = []
    for compiled in (False, True):
        fit, data = descent(insecure_seed=1), table()
        step = jax.jit(fit.update) if compiled else fit.update
        state = fit.init(jax.random.key(0), *data)
        for _ in range(3):
            state, _ = step(state, *data)
        ends.append(locations(fit, state))
    np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-6)


def test_of_many_threads_with_one_state_one_gets_a_step():
    fit, data = shared(), table()
    state, step = fit.init(jax.random.key(0), *data), jax.jit(fit.update)
    step.lower(state, *data).compile()
    taken = []

    def take():
        try:
            jax.block_until_ready(step(state, *data))
            taken.append("taken")
        except jax.errors.JaxRuntimeError as error:
            taken.append("refused" if "used before" in str(error) else str(error))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == ["refused"] * 7 + ["taken"]


def test_without_protection_a_compiled_step_asks_nobody(monkeypatch):
    monkeypatch.setattr(used_states.UsedStates, "guarded", None)
    fit, data = (
        descent(noise_multiplier=0.0, clip_norm=float("inf"), delta=None),
        table(),
    )
    state = fit.init(jax.random.key(0), *data)
    assert int(jax.jit(fit.update)(state, *data)[0].step) == 1


@pytest.mark.parametrize("copied", ["pickle", "copy"])
def test_a_state_that_was_pickled_serves_its_own_fit_once_and_no_other(copied):
    """It holds keys of the noise to come, so it is nothing to keep or send; nor does it give steps away."""
    fit, other, data = shared(), descent(), table()
    state = fit.init(jax.random.key(0), *data)
    other.init(jax.random.key(0), *data)
    moved = pickle.loads(pickle.dumps(state)) if copied == "pickle" else copy.deepcopy(state)
    with pytest.raises(errors.PrivacyError, match="belongs to another fit"):
        other.update(moved, *data)
    fit.update(moved, *data)
    with pytest.raises(errors.PrivacyError, match="was used before"):
        fit.update(state, *table(1))
