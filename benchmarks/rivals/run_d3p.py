"""Steps of d3p's `DPSVI`, or of the `SVI` of the NumPyro that it runs on: run_d3p.py CASE [svi].

Batches are d3p's own, of fixed size, and so is the ChaCha20 of batches and noise; all steps of a turn
are one `fori_loop`, as d3p advises.
"""

import sys
from typing import Any

import d3p.random
import jax
import models
import tables
import turns
from d3p.minibatch import subsample_batchify_data
from d3p.svi import DPSVI
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import Adam


def main(name: str, *options: str) -> None:
    """Serves turns of one candidate."""
    table, (model, guide) = tables.TABLES[name](), models.MODELS[name]()
    columns = tuple(jax.numpy.asarray(column) for column in table.columns)
    start, batch_of = subsample_batchify_data(columns, table.batch)
    batch_key, key = d3p.random.split(d3p.random.PRNGKey(0), 2)
    batches = start(batch_key)[1]
    if "svi" in options:
        svi = SVI(model, guide, Adam(1e-3), Trace_ELBO())
        key = jax.random.PRNGKey(0)
    else:
        svi = DPSVI(model, guide, Adam(1e-3), Trace_ELBO(), 1.0, table.noise)

    @jax.jit
    def many(state: Any, first: Any, last: Any) -> Any:
        def step(number: Any, state: Any) -> Any:
            return svi.update(state, *batch_of(number, batches))[0]

        return jax.lax.fori_loop(first, last, step, state)

    held = [svi.init(key, *batch_of(0, batches)), 0]

    def take(steps: int) -> None:
        held[0] = jax.block_until_ready(many(held[0], held[1], held[1] + steps))
        held[1] += steps

    turns.serve(take)


if __name__ == "__main__":
    main(*sys.argv[1:])
