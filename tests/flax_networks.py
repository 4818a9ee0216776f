"""Networks in Flax that studies in tests name, and the same one written by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen, nnx
from numpyro.contrib.module import random_flax_module, random_nnx_module

HIDDEN = (4, 3)


class Layers(linen.Module):
    """Layers of tanh units, and one output."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        for units in HIDDEN:
            x = jnp.tanh(linen.Dense(units)(x))
        return linen.Dense(1)(x)[..., 0]


class Objects(nnx.Module):
    """The same layers as objects, which know the width of their input."""

    def __init__(self, columns: int) -> None:
        first, second = HIDDEN
        keys = nnx.Rngs(0)
        self.layer_0 = nnx.Linear(columns, first, rngs=keys)
        self.layer_1 = nnx.Linear(first, second, rngs=keys)
        self.layer_2 = nnx.Linear(second, 1, rngs=keys)

    def __call__(self, x: Any) -> Any:
        x = jnp.tanh(self.layer_1(jnp.tanh(self.layer_0(x))))
        return self.layer_2(x)[..., 0]


def prior(name: str, shape: tuple[int, ...]) -> Any:
    """Weights as large as the number of units before allows, biases near 1."""
    return dist.Normal(0.0, 1.0 if name.endswith("bias") else shape[0] ** -0.5)


def in_linen(x: Any, y: Any) -> None:
    """Regression by a module of Flax, by NumPyro's own route."""
    net = random_flax_module("net", Layers(), prior, input_shape=(1, x.shape[-1]))
    observed(net(x), y)


def in_nnx(x: Any, y: Any) -> None:
    """The same with the newer modules."""
    observed(random_nnx_module("net", Objects(x.shape[-1]), prior)(x), y)


def by_hand(x: Any, y: Any) -> None:
    """The same in products of matrices, with latents in the order of Flax's names."""
    widths = [x.shape[-1], *HIDDEN, 1]
    for layer, after in enumerate(widths[1:]):
        before = widths[layer]
        biases = numpyro.sample(f"b{layer}", dist.Normal(0.0, 1.0).expand([after]).to_event(1))
        law = dist.Normal(0.0, before**-0.5).expand([before, after]).to_event(2)
        x = x @ numpyro.sample(f"w{layer}", law) + biases
        x = jnp.tanh(x) if layer < len(HIDDEN) else x
    observed(x[..., 0], y)


def observed(output: Any, y: Any) -> None:
    """The outcomes of records, around the output by 0.3."""
    with numpyro.plate("records", output.shape[0]):
        numpyro.sample("y", dist.Normal(output, 0.3), obs=y)


def curve(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns records x [n, 1] and y [n] of a parabola, of which a line says nothing."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2.0, 2.0, size=(count, 1))
    return x, x[:, 0] ** 2 - 1.0 + 0.2 * generator.normal(size=count)
