"""What is computed from the key alone, for many steps at once, is what each step computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi.inference import presample, programs
from fedvi.privacy import random


def drawn(key, params, x):
    """Draws, local and shared, some of them in calls, with constants and a wide broadcast."""
    first, second = jax.random.split(key)
    noise = jax.random.normal(first, params["w"].shape) * jnp.arange(1.0, 4.0)
    own = jax.vmap(lambda place: jax.random.gamma(jax.random.fold_in(second, place), 2.0))(
        jnp.arange(x.shape[0])
    )
    wide = jnp.broadcast_to(noise, (1000, 3)).sum()
    return {"loss": ((x @ (params["w"] + noise)) * own).sum() + wide, "key": first}


def untouched(key, params, x):
    return (x @ params["w"]).sum()


def handed_on(key, params, x):
    return jax.random.key_data(key), x


ARGS = {"w": jnp.array([1.0, -2.0, 0.5])}, jnp.arange(12.0).reshape(4, 3) / 10.0


@pytest.mark.nightly(only=("chacha20-drawn", "threefry-drawn"))
@pytest.mark.parametrize("function", [drawn, untouched, handed_on])
@pytest.mark.parametrize("impl", ["threefry2x32", random.chacha20], ids=["threefry", "chacha20"])
def test_both_parts_make_the_whole(function, impl):
    root = jax.random.key(0) if impl == "threefry2x32" else random.insecure_root(0).key("x")
    keys = jax.random.split(root, 5)
    found = presample.split(function, keys[0], *ARGS)
    values = jax.vmap(found.ahead)(keys)
    for step, key in enumerate(keys):
        mine = found.after([value[step] for value in values], *ARGS)
        expected = function(key, *ARGS)
        assert jax.tree.structure(mine) == jax.tree.structure(expected)
        for one, two in zip(jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True):
            if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                one, two = jax.random.key_data(one), jax.random.key_data(two)
            np.testing.assert_allclose(one, two, rtol=1e-6)


def test_nothing_is_drawn_in_the_second_part_and_nothing_grows():
    key = jax.random.key(0)
    found = presample.split(drawn, key, *ARGS)
    values = found.ahead(key)
    assert not any("random" in name for name in primitives(found.after, values, *ARGS))
    assert any("random" in name for name in primitives(found.ahead, key))
    # Three of the shared draw, four of the records' own, and the key; not a thousand times three.
    assert found.size == 8
    assert presample.split(untouched, key, *ARGS).size == 0


@pytest.mark.nightly
def test_it_is_split_under_a_trace_too():
    def whole(key, params, x):
        found = presample.split(drawn, key, params, x)
        return found.after(found.ahead(key), params, x)["loss"]

    key = jax.random.key(1)
    np.testing.assert_allclose(jax.jit(whole)(key, *ARGS), drawn(key, *ARGS)["loss"], rtol=1e-6)


def primitives(function, *args):
    program, _ = programs.flat(function, *args)
    return {equation.primitive.name for equation in program.jaxpr.eqns}
