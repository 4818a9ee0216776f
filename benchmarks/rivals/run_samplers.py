"""Draws of batches: run_samplers.py BATCH SAMPLER RECORDS.

SAMPLER is one of: poisson, feistel (fedvi's), d3p, opacus, numpy (the first of a whole permutation). Each
draws the numbers of records alone, with a key of its own for each batch.
"""

import functools
import sys
from collections.abc import Callable

import numpy as np
import turns


def fedvi(kind: str, batch: int, records: int) -> Callable[[int], None]:
    """Returns draws of fedvi's Poisson or fixed-size sampler, a scan of them."""
    import jax
    import jax.numpy as jnp

    from fedvi.privacy import random, sampling

    if kind == "poisson":
        sampler = sampling.poisson(batch / records, records)
    else:
        sampler = sampling.feistel(batch, records)

    @functools.partial(jax.jit, static_argnums=1)
    def many(key, count, everybody):
        def step(total, key):
            drawn = sampler.draw(key, everybody)
            return total + (drawn.indices * drawn.mask).sum(), None

        return jax.lax.scan(step, jnp.int32(0), jax.random.split(key, count))[0]

    secret, held, everybody = (
        random.insecure_root(0).secret("batches"),
        [0],
        jnp.ones(records, bool),
    )

    def take(count: int) -> None:
        held[0] += 1
        jax.block_until_ready(many(random.key(secret, "batches", held[0]), count, everybody))

    return take


def d3p(batch: int, records: int) -> Callable[[int], None]:
    """Returns draws of d3p's Feistel batches, of a table that has the numbers of its records alone."""
    import d3p.random
    import jax
    import jax.numpy as jnp
    from d3p.minibatch import subsample_batchify_data

    start, batch_of = subsample_batchify_data((jnp.arange(records),), batch)
    batches, held = start(d3p.random.PRNGKey(0))[1], [0]

    @jax.jit
    def many(first, last):
        return jax.lax.fori_loop(
            first, last, lambda number, total: total + batch_of(number, batches)[0].sum(), 0
        )

    def take(count: int) -> None:
        jax.block_until_ready(many(held[0], held[0] + count))
        held[0] += count

    return take


def opacus(batch: int, records: int) -> Callable[[int], None]:
    """Returns Opacus' Poisson batches."""
    import torch
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    torch.set_num_threads(1)

    def take(count: int) -> None:
        for _ in UniformWithReplacementSampler(
            num_samples=records, sample_rate=batch / records, steps=count
        ):
            pass

    return take


def numpy(batch: int, records: int) -> Callable[[int], None]:
    """Returns the first of a permutation of all records."""
    random = np.random.default_rng(0)

    def take(count: int) -> None:
        for _ in range(count):
            random.permutation(records)[:batch]

    return take


def main(batch: str, sampler: str, records: str) -> None:
    """Serves turns of one sampler."""
    sizes = int(batch), int(records)
    if sampler in ("poisson", "feistel"):
        turns.serve(fedvi(sampler, *sizes))
    else:
        turns.serve({"d3p": d3p, "opacus": opacus, "numpy": numpy}[sampler](*sizes))


if __name__ == "__main__":
    main(*sys.argv[1:])
