"""What an accelerator must keep of a CPU's results; `make device` runs this with the benchmarks.

Skipped, with the reason, where JAX sees a CPU alone. ``FEDVI_DEVICE=cpu`` compares the CPU with itself, so
that the tests themselves can be tried anywhere.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi.privacy import mechanisms, random, sampling

PLATFORM = os.environ.get("FEDVI_DEVICE") or jax.default_backend()

pytestmark = pytest.mark.skipif(
    PLATFORM == "cpu" and "FEDVI_DEVICE" not in os.environ,
    reason="JAX sees no accelerator: `make device` on a machine that has one, with its JAX plugin",
)


def on_both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """What the accelerator computes, and what the CPU does, each compiled for itself."""
    found = []
    for platform in (PLATFORM, "cpu"):
        with jax.default_device(jax.devices(platform)[0]):
            found.append(jax.device_get(compute()))
        jax.clear_caches()
    return found[0], found[1]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("count", [1, 13, 100_000])
def test_random_words_are_those_of_the_cpu(count: int, wide: bool) -> None:
    with jax.enable_x64(wide):
        here, there = on_both(
            lambda: jax.random.bits(random.insecure_root(1).key("w"), (count,), jnp.uint32)
        )
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("noise_multiplier", [1.0, 200.0])  # one draw a number, and two
@pytest.mark.parametrize("name", ["rounded_gaussian", "discrete_gaussian"])
def test_integer_noise_is_that_of_the_cpu(name: str, noise_multiplier: float) -> None:
    """So many draws that some tie with their thresholds."""
    mechanism = getattr(mechanisms, name)(noise_multiplier)
    zeros = np.zeros(500_000, np.int32)

    def noised() -> Any:
        return jax.jit(lambda key: mechanism.perturb(key, zeros, 1.0))(
            random.insecure_root(2).key("noise")
        )

    here, there = on_both(noised)
    assert here.dtype == np.int32
    assert here.any()
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    "make", [lambda: sampling.poisson(0.01, 20_000), lambda: sampling.full(50)]
)
def test_batches_are_those_of_the_cpu(make: Callable[[], Any]) -> None:
    sampler = make()
    slots = 20_000 if sampler.rate < 1.0 else 50
    valid = np.arange(slots) % 7 > 0
    here, there = on_both(lambda: sampler.draw(random.insecure_root(3).key("b"), valid))
    for one, other in ((here.indices, there.indices), (here.mask, there.mask)):
        np.testing.assert_array_equal(one, other)


def an_autoencoder() -> Any:
    """Five private steps of an encoder and a decoder whose products a GPU would round to TF32."""
    generator = np.random.default_rng(0)
    records = (generator.random((500, 784)) < 0.2).astype(np.float32)

    def model(x: Any) -> None:
        weights = numpyro.param("weights", jnp.full((50, 784), 0.01))
        with numpyro.plate("records", 500, subsample_size=x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=z @ weights).to_event(1), obs=x)

    def guide(x: Any) -> None:
        start = np.random.default_rng(1).normal(0.0, 0.05, (784, 50)).astype(np.float32)
        weights = numpyro.param("inverse", jnp.asarray(start))
        with numpyro.plate("records", 500, subsample_size=x.shape[0]):
            numpyro.sample("z", dist.Normal(x @ weights, 0.5).to_event(1))

    plan = fedvi.privacy.sgd(
        noise_multiplier=2.0, delta=1e-5, steps=5, rate=0.2, max_records=500, insecure_seed=5
    )
    svi = fedvi.DPSVI(model, guide, numpyro.optim.SGD(0.01), Trace_ELBO(), plan)
    return svi.run(jax.random.key(0), 5, records, progress_bar=False).params


@pytest.mark.numpyro
def test_an_autoencoder_is_that_of_the_cpu_as_far_as_products_are_rounded() -> None:
    """It is also accepted: its terms are compared at made-up records, alone and together."""
    here, there = on_both(an_autoencoder)
    for name, found in here.items():
        np.testing.assert_allclose(found, there[name], rtol=0.05, atol=2e-3)


def a_fit(rows: int, columns: int, steps: int) -> Any:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, columns)).astype(np.float32)
    y = (generator.uniform(size=rows) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.float32)

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(columns), 1.0).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    plan = fedvi.privacy.sgd(
        noise_multiplier=2.0,
        delta=1e-5,
        steps=steps,
        rate=0.05,
        max_records=rows,
        insecure_seed=4,
    )
    guide = autoguide.AutoNormal(model)
    svi = fedvi.DPSVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(), plan)
    return svi.run(jax.random.key(0), steps, x, y, progress_bar=False).params


@pytest.mark.numpyro
def test_a_private_fit_is_that_of_the_cpu_to_single_precision() -> None:
    """Batches and noise are the same numbers; a rounded sum may differ by a step, 1/4096 of a clip norm."""
    here, there = on_both(lambda: a_fit(2_000, 20, 50))
    for name, found in here.items():
        np.testing.assert_allclose(found, there[name], rtol=1e-2, atol=1e-3)


@pytest.mark.numpyro
def test_a_step_needs_no_gradient_of_each_record_in_memory() -> None:
    """20,000 records × 2,000 columns, of which 1,000 a batch: 160 MB of records, and 16 MB of gradients."""
    device = jax.devices(PLATFORM)[0]
    if not (device.memory_stats() or {}).get("peak_bytes_in_use"):
        pytest.skip(f"{device.device_kind} does not say how much memory it used")
    a_fit(20_000, 2_000, 5)
    assert device.memory_stats()["peak_bytes_in_use"] < 2 * 2**30


def test_a_simulated_federation_comes_to_the_cpus_posterior(examples: Path) -> None:
    study = fedvi.load_study(examples / "trauma" / "study.toml")
    here, there = on_both(lambda: fedvi.simulate(study, examples / "trauma").posterior)
    # The solver stops within 1e-6 posterior sds, in float64.
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
