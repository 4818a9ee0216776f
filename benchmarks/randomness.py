"""Times ChaCha20 against JAX's threefry, and the samplers over shards of growing size.

Everything runs side by side in one process, interleaved, after compilation, inside a compiled scan
of many draws with a fresh key each, as a training loop does it; one draw of a million numbers runs
alone. Prints medians and ratios. The samplers' keys are ChaCha20 keys.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedvi.privacy import random, sampling

REPEATS = 15
SIZES = (256, 4_096, 65_536, 1_000_000)
BATCH = 1_024
RECORDS = (100_000, 1_000_000, 10_000_000)


def repeated(draw: Callable[[Any], Any], key: Any, count: int) -> Callable[[], Any]:
    """Returns ``count`` draws in a scan, compiled, each with the key folded from what came before."""

    def step(secret: Any, _: Any) -> tuple[Any, None]:
        total = sum(jnp.sum(leaf).astype(jnp.int32) for leaf in jax.tree.leaves(draw(secret)))
        return jax.random.fold_in(secret, total), None

    run = jax.jit(lambda secret: jax.lax.scan(step, secret, None, length=count)[0])
    jax.block_until_ready(run(key))
    return lambda: jax.block_until_ready(run(key))


def timed(runs: dict[Any, tuple[Callable[[], Any], int]]) -> dict[Any, float]:
    """Returns the median microseconds a draw of each, all measured in turn."""
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, (run, count) in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: 1e6 * statistics.median(values) for name, values in seconds.items()}


def generators() -> None:
    """Prints bits and normals of both generators."""
    keys = {"threefry": jax.random.key(0), "chacha20": random.insecure_root(0).key()}
    kinds: dict[str, Callable[[Any, int], Any]] = {
        "bits": lambda key, size: jax.random.bits(key, (size,), jnp.uint32),
        "normals": lambda key, size: jax.random.normal(key, (size,)),
    }
    runs = {}
    for kind, draw in kinds.items():
        for size in SIZES:
            count = max(1, min(200, 200_000 // size))
            for name, key in keys.items():
                run = repeated(lambda key, draw=draw, size=size: draw(key, size), key, count)
                runs[kind, size, name] = run, count
    found = timed(runs)
    print(f"{'':22}{'threefry':>12}{'chacha20':>12}{'ratio':>8}")
    for kind in kinds:
        for size in SIZES:
            base, ours = (found[kind, size, name] for name in keys)
            print(f"{kind:8}{size:>12,}  {base:9.1f} us{ours:9.1f} us{ours / base:8.2f}")


def samplers() -> None:
    """Prints a draw of each sampler at each size, and its ratio to the smallest size."""
    key, runs = random.insecure_root(0).key(), {}
    for records in RECORDS:
        valid = jnp.ones(records, bool)
        rate = BATCH / records
        for name, sampler in {
            "poisson": sampling.poisson(rate, records),
            "feistel": sampling.feistel(BATCH, records),
        }.items():
            runs[name, records] = repeated(picked(sampler, valid), key, 100), 100
    few = jnp.ones(10_000, bool)
    runs["floyd", 10_000] = repeated(picked(sampling.feistel(128, 10_000), few), key, 100), 100
    found = timed(runs)
    print(
        f"\n{'':10}{'of records':>12}{'a draw':>14}{'/ smallest':>12}   batches of about {BATCH:,}"
    )
    for name, records in found:
        took, first = found[name, records], found.get((name, RECORDS[0]))
        ratio = f"{took / first:12.2f}" if first else f"{'':12}   a batch of 128, exact"
        print(f"{name:10}{records:>12,}{took:11.1f} us{ratio}")


def picked(sampler: Any, valid: Any) -> Callable[[Any], Any]:
    """Returns key → indices and mask of one batch."""

    def draw(key: Any) -> Any:
        batch = sampler.draw(key, valid)
        return batch.indices, batch.mask

    return draw


def main() -> int:
    """Prints the figures."""
    print(f"{jax.devices()[0].device_kind}; medians of {REPEATS}")
    generators()
    samplers()
    return 0


if __name__ == "__main__":
    sys.exit(main())
