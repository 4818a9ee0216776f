"""Steps of fedvi's `DPSVI`, or of the `SVI` of the NumPyro that it runs on: run_fedvi.py CASE OPTION…

Options: svi; float (noise; left out, integers); feistel (batches of fixed size, under substitution; left
out, Poisson ones, under addition and removal); aligned (gradients). `SVI` has the very same batches.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import models
import tables
import turns
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import Adam

import fedvi
from fedvi.privacy import random

# Room for ten turns; with many more, these noise multipliers would buy no protection at all.
MOST = {"vae": 1_000, "logistic": 20_000, "hierarchical": 1_000_000}


def main(name: str, *options: str) -> None:
    """Serves turns of one candidate."""
    table, (model, guide) = tables.TABLES[name](), models.MODELS[name]()
    data = tuple(jnp.asarray(column) for column in table.columns)
    is_fixed = "feistel" in options
    plan = fedvi.privacy.sgd(
        steps=MOST[name],
        max_records=len(data[0]),
        batch=table.batch,
        sampler="feistel" if is_fixed else "poisson",
        relation="substitute" if is_fixed else "add_remove",
        delta=0.5 / len(data[0]),
        noise_multiplier=table.noise,
        float_noise="float" in options,
    )
    if "svi" in options:
        serve_plain(SVI(model, guide, Adam(1e-3), Trace_ELBO()), plan, data, table.batch)
        return
    gradients = "aligned" if "aligned" in options else "full"
    svi = fedvi.DPSVI(model, guide, Adam(1e-3), Trace_ELBO(), plan, gradients=gradients)
    key = jax.random.key(0)
    held = [svi.init(key, *data)]

    def take(steps: int) -> None:
        result = svi.run(key, steps, *data, progress_bar=False, init_state=held[0])
        held[0] = jax.block_until_ready(result.state)

    turns.serve(take)


def serve_plain(svi: Any, plan: Any, data: Any, batch: int) -> None:
    """Serves turns of `SVI` on batches of the plan's sampler."""
    everybody = jnp.ones(len(data[0]), bool)

    @functools.partial(jax.jit, donate_argnums=0)
    def many(state: Any, keys: Any, data: Any) -> Any:
        def step(state: Any, key: Any) -> tuple[Any, None]:
            rows = plan.sampler.draw(key, everybody).indices
            return svi.update(state, *(column[rows] for column in data))[0], None

        return jax.lax.scan(step, state, keys)[0]

    start = svi.init(jax.random.key(0), *(column[:batch] for column in data))
    # Automatic guides keep the arrays that they start from.
    held = [jax.tree.map(jnp.copy, start), 0]
    secret = random.insecure_root(0).secret("batches")

    def take(steps: int) -> None:
        held[1] += 1
        keys = jax.random.split(random.key(secret, "batches", held[1]), steps)
        held[0] = jax.block_until_ready(many(held[0], keys, data))

    turns.serve(take)


if __name__ == "__main__":
    main(*sys.argv[1:])
