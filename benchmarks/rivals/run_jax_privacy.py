"""Steps of jax-privacy: run_jax_privacy.py CASE [MICROBATCH].

Batches of fixed size are drawn on the host by its own selection, for a whole turn, whose steps are then
one scan. The regression has a plain loss: its maximum a posteriori.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tables
import turns
from jax.example_libraries import stax
from jax_privacy import batch_selection, clipped_grad, noise_addition

ENCODE, DECODE = (
    stax.serial(
        stax.Dense(400),
        stax.Softplus,
        stax.FanOut(2),
        stax.parallel(stax.Dense(50), stax.Dense(50)),
    ),
    stax.serial(stax.Dense(400), stax.Softplus, stax.Dense(784)),
)


def autoencoder(params: Any, x: Any, key: Any) -> Any:
    """Returns the negative ELBO of 784 → 400 → 50 and back, from one draw."""
    mean, log_sd = ENCODE[1](params[0], x)
    noise = jax.random.normal(key, mean.shape)
    z = mean + noise * jnp.exp(log_sd)
    fit = optax.sigmoid_binary_cross_entropy(DECODE[1](params[1], z), x).sum()
    return fit + (0.5 * z**2 - 0.5 * noise**2 - log_sd).sum()


def regression(b: Any, x: Any, y: Any, key: Any) -> Any:
    """Returns the loss of one record and its share of a prior N(0, 2²)."""
    return (
        optax.sigmoid_binary_cross_entropy(x @ b, y).sum() + 0.5 * ((b / 2.0) ** 2).sum() / 50_000
    )


def main(name: str, microbatch: str = "") -> None:
    """Serves turns of one candidate."""
    table = tables.TABLES[name]()
    columns = [jnp.asarray(column) for column in table.columns]
    if name == "vae":
        keys, loss = jax.random.split(jax.random.key(1)), autoencoder
        params: Any = (ENCODE[0](keys[0], (1, 784))[1], DECODE[0](keys[1], (1, 50))[1])
    else:
        params, loss = jnp.zeros(100), regression
    gradient = clipped_grad(
        loss,
        l2_clip_norm=1.0,
        normalize_by=table.batch,
        batch_argnums=tuple(range(1, 1 + len(columns))),
        prng_argnum=1 + len(columns),
        microbatch_size=int(microbatch) if microbatch else None,
    )
    noise = noise_addition.gaussian_privatizer(
        stddev=table.noise * gradient.sensitivity(), prng_key=jax.random.key(2)
    )
    optimiser = optax.chain(noise, optax.adam(1e-3))

    @jax.jit
    def many(state: Any, key: Any, batches: Any, columns: Any) -> Any:
        def step(state: Any, drawn: Any) -> tuple[Any, None]:
            (params, optim), (rows, key) = state, drawn
            total = gradient(params, *(column[rows] for column in columns), key)
            updates, optim = optimiser.update(total, optim)
            return (optax.apply_updates(params, updates), optim), None

        return jax.lax.scan(step, state, (batches, jax.random.split(key, len(batches))))[0]

    random, held = np.random.default_rng(3), [(params, optimiser.init(params)), jax.random.key(4)]

    def take(steps: int) -> None:
        drawn = batch_selection.FixedBatchSampling(table.batch, steps)
        batches = np.stack(list(drawn.batch_iterator(len(columns[0]), random)))
        held[1], key = jax.random.split(held[1])
        held[0] = jax.block_until_ready(many(held[0], key, batches.astype(np.int32), columns))

    turns.serve(take)


if __name__ == "__main__":
    main(*sys.argv[1:])
