"""Times a million draws of each kind of noise, side by side, after compilation.

Threefry float normals are the measure: integer noise from ChaCha20 is to take at most 5 times as long.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedvi.privacy import mechanisms, random

DRAWS, REPEATS = 1_000_000, 15


def noise_of(mechanism: Any) -> Callable[[Any], Any]:
    """Returns a function from a key to the noise on ``DRAWS`` zeros."""
    zeros = jnp.zeros(DRAWS, jnp.int32)
    return jax.jit(lambda key: mechanism.perturb(key, zeros, 1.0))


def main() -> int:
    """Prints medians and ratios to threefry."""
    normal = jax.jit(lambda key: jax.random.normal(key, (DRAWS,)))
    threefry, chacha = jax.random.key(0), random.insecure_root(0).key("noise")
    cases = {
        "threefry float normal": (normal, threefry),
        "ChaCha20 float normal": (normal, chacha),
        "rounded Gaussian, ChaCha20": (noise_of(mechanisms.rounded_gaussian(1.0)), chacha),
        "discrete Gaussian, ChaCha20": (noise_of(mechanisms.discrete_gaussian(1.0)), chacha),
        "rounded Gaussian, fineness 256": (noise_of(mechanisms.rounded_gaussian(256.0)), chacha),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for function, key in cases.values():
        function(key).block_until_ready()
    for _ in range(REPEATS):
        for name, (function, key) in cases.items():
            start = time.perf_counter()
            function(key).block_until_ready()
            times[name].append(time.perf_counter() - start)
    base = statistics.median(times["threefry float normal"])
    print(f"{DRAWS:,} draws on {jax.devices()[0].platform}, median of {REPEATS} interleaved runs")
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name:32} {1e3 * middle:8.2f} ms  {middle / base:5.2f} × threefry")
    return 0


if __name__ == "__main__":
    sys.exit(main())
