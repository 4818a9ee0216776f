"""Times `DPSVI` beside NumPyro's own `SVI` on the same batches: a network, three regressions, a mixture.

    python benchmarks/dpsvi.py                    all cases
    python benchmarks/dpsvi.py --case vae         one of: vae, logistic, hierarchical, mixture, covariance
    python benchmarks/dpsvi.py --steps 500        that many steps a scan, where a step takes longer
    python benchmarks/dpsvi.py --memory 4096      peak memory of a step of the VAE on so large a batch
    python benchmarks/dpsvi.py --epoch            an epoch of the VAE on a GPU, beside vmap(grad)

Candidates take turns, a scan of steps each, after compilation. `SVI` draws its batches in the graph by
the very sampler of the private runs, so that what differs is clipping and noise. Two lines are the sampler
alone: a draw in every step, as for `SVI`, and the draws of all steps together, as for `DPSVI`.
"""

import argparse
import functools
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen
from numpyro.contrib.module import flax_module
from numpyro.infer import SVI, Trace_ELBO, autoguide

import fedvi
from fedvi.privacy import random as keys_of

ROUNDS = 7


class Case(NamedTuple):
    """A model, a guide, the table, how many records a batch has, and how many steps are timed.

    ``gradients`` is an option of DPSVI, ``noise`` the noise multiplier.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: tuple[Any, ...]
    batch: int
    steps: int
    gradients: str = "full"
    noise: float = 2.0
    optim: Any = numpyro.optim.Adam(1e-3)


class Encoder(linen.Module):
    """784 → 400 → 50 means and standard deviations."""

    @linen.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        """Returns both."""
        hidden = linen.softplus(linen.Dense(400)(x))
        return linen.Dense(50)(hidden), jnp.exp(linen.Dense(50)(hidden))


class Decoder(linen.Module):
    """50 → 400 → 784 logits."""

    @linen.compact
    def __call__(self, z: Any) -> Any:
        """Returns them."""
        return linen.Dense(784)(linen.softplus(linen.Dense(400)(z)))


def vae(batch: int = 128, rows: int = 60_000) -> Case:
    """The variational autoencoder of d3p's example, 688,884 parameters, on binary noise."""

    def model(x: Any) -> None:
        decoder = flax_module("decoder", Decoder(), input_shape=(1, 50))
        with numpyro.plate("records", rows, subsample_size=x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=x)

    def guide(x: Any) -> None:
        encoder = flax_module("encoder", Encoder(), input_shape=(1, 784))
        with numpyro.plate("records", rows, subsample_size=x.shape[0]):
            mean, sd = encoder(x)
            numpyro.sample("z", dist.Normal(mean, sd).to_event(1))

    x = (np.random.default_rng(0).random((rows, 784)) < 0.2).astype(np.float32)
    return Case(model, guide, (jnp.asarray(x),), batch, 30)


def logistic() -> Case:
    """50,000 records of 100 covariates; batches of 256."""
    random = np.random.default_rng(0)
    x = random.normal(size=(50_000, 100)).astype(np.float32)
    y = (random.random(50_000) < 1.0 / (1.0 + np.exp(-x[:, :10].sum(axis=1)))).astype(np.float32)

    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([100]).to_event(1))
        with numpyro.plate("records", 50_000, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

    data = jnp.asarray(x), jnp.asarray(y)
    guide = autoguide.AutoDiagonalNormal(model)
    return Case(model, guide, data, 256, 5_000, "aligned")


def hierarchical() -> Case:
    """500 records in 10 groups, 5 covariates, 3 characteristics of groups; batches of 50."""
    random = np.random.default_rng(0)
    group = random.integers(0, 10, 500)
    x = random.normal(size=(500, 5)).astype(np.float32)
    traits = random.normal(size=(10, 3)).astype(np.float32)
    level = traits.sum(axis=1)[group] + x.sum(axis=1)
    y = (random.random(500) < 1.0 / (1.0 + np.exp(-level))).astype(np.float32)

    def model(group: Any, x: Any, y: Any) -> None:
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
        effect = numpyro.sample("effect", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 10):
            own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", 500, subsample_size=x.shape[0]):
            logits = x @ slope + (traits @ effect + sd * own)[group]
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    data = jnp.asarray(group), jnp.asarray(x), jnp.asarray(y)
    return Case(model, autoguide.AutoDiagonalNormal(model), data, 50, 20_000, noise=40.0)


def mixture() -> Case:
    """2,000 points of five Gaussians in the plane, assignments summed out; batches of 6, as in papers."""
    random = np.random.default_rng(0)
    centres = 2.0 * np.array([[0, 0], [1, 1], [-1, -1], [-1, 1], [1, -1]])
    x = centres[random.integers(0, 5, 2_000)] + 0.7 * random.normal(size=(2_000, 2))

    def model(x: Any) -> None:
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(5)))
        with numpyro.plate("components", 5):
            centre = numpyro.sample("centre", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
            variance = numpyro.sample("variance", dist.InverseGamma(1.0, 1.0))
        parts = dist.Normal(centre, jnp.sqrt(variance)[:, None]).to_event(1)
        with numpyro.plate("records", 2_000, subsample_size=x.shape[0]):
            numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)

    data = (jnp.asarray(x, jnp.float32),)
    return Case(model, autoguide.AutoDiagonalNormal(model), data, 6, 5_000)


def covariance() -> Case:
    """5,000 records of 20 covariates, with a full covariance of the coefficients; batches of 256."""
    random = np.random.default_rng(0)
    x = random.normal(size=(5_000, 20)).astype(np.float32)
    y = (random.random(5_000) < 1.0 / (1.0 + np.exp(-x[:, :10].sum(axis=1)))).astype(np.float32)

    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([20]).to_event(1))
        with numpyro.plate("records", 5_000, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

    data = jnp.asarray(x), jnp.asarray(y)
    return Case(model, autoguide.AutoMultivariateNormal(model), data, 256, 500, noise=40.0)


CASES = {
    "vae": vae,
    "logistic": logistic,
    "hierarchical": hierarchical,
    "mixture": mixture,
    "covariance": covariance,
}


def plan(case: Case, **settings: Any) -> Any:
    """Returns a plan of Poisson batches with room for all that is timed."""
    usual = {
        "steps": case.steps * (ROUNDS + 2),
        "max_records": case.data[0].shape[0],
        "batch": case.batch,
        "relation": "add_remove",
        "delta": 1e-6,
        "noise_multiplier": case.noise,
    }
    return fedvi.privacy.sgd(**{**usual, **settings})


def scans(case: Case, privacy: Any) -> Callable[[], None]:
    """Returns what takes the next steps of a private descent."""
    svi = fedvi.DPSVI(
        case.model, case.guide, case.optim, Trace_ELBO(), privacy, gradients=case.gradients
    )
    held = [svi.init(jax.random.key(0), *case.data)]

    def take() -> None:
        result = svi.run(
            jax.random.key(0), case.steps, *case.data, progress_bar=False, init_state=held[0]
        )
        held[0] = jax.block_until_ready(result.state)

    return take


def plain(case: Case, privacy: Any) -> Callable[[], None]:
    """Returns what takes the next steps of NumPyro's SVI, on batches of the plan's sampler."""
    svi = SVI(case.model, case.guide, case.optim, Trace_ELBO())
    start = svi.init(jax.random.key(0), *(column[: case.batch] for column in case.data))
    start = jax.tree.map(jnp.copy, start)  # automatic guides keep the arrays that they start from
    everybody = jnp.ones(case.data[0].shape[0], bool)

    @functools.partial(jax.jit, donate_argnums=0)
    def many(state: Any, keys: Any, data: Any) -> Any:
        def body(state: Any, key: Any) -> tuple[Any, None]:
            rows = privacy.sampler.draw(key, everybody).indices
            return svi.update(state, *(column[rows] for column in data))[0], None

        return jax.lax.scan(body, state, keys)[0]

    return stepping(many, start, case)


def materialised(case: Case, privacy: Any) -> Callable[[], None]:
    """Returns what takes the next steps with a gradient of each record formed, and clipped to 1."""
    svi, loss = SVI(case.model, case.guide, case.optim, Trace_ELBO()), Trace_ELBO()
    start = svi.init(jax.random.key(0), *(column[:1] for column in case.data))
    everybody = jnp.ones(case.data[0].shape[0], bool)

    def of_one(params: Any, key: Any, record: Any) -> Any:
        alone = (column[None] for column in record)
        return loss.loss(key, svi.constrain_fn(params), svi.model, svi.guide, *alone)

    @functools.partial(jax.jit, donate_argnums=0)
    def many(state: Any, keys: Any, data: Any) -> Any:
        def body(carried: Any, key: Any) -> tuple[Any, None]:
            state, guide_key = carried
            batch = privacy.sampler.draw(key, everybody)
            records = tuple(column[batch.indices] for column in data)
            guide_key, draw_key = jax.random.split(guide_key)
            own = jax.random.split(draw_key, len(batch.indices))
            params = svi.optim.get_params(state)
            each = jax.vmap(jax.grad(of_one), (None, 0, 0))(params, own, records)
            squares = sum(
                (leaf**2).reshape(len(leaf), -1).sum(axis=1) for leaf in jax.tree.leaves(each)
            )
            kept = batch.mask / jnp.maximum(jnp.sqrt(squares), 1.0)
            summed = jax.tree.map(lambda leaf: jnp.tensordot(kept, leaf, 1), each)
            return (svi.optim.update(summed, state), guide_key), None

        return jax.lax.scan(body, state, keys)[0]

    return stepping(many, jax.tree.map(jnp.copy, (start.optim_state, start.rng_key)), case)


def drawn(case: Case, privacy: Any, together: bool) -> Callable[[], None]:
    """Returns what draws the batches of the next steps, and does nothing with them."""
    everybody = jnp.ones(case.data[0].shape[0], bool)

    def rows(key: Any) -> Any:
        return privacy.sampler.draw(key, everybody).indices

    @jax.jit
    def many(state: Any, keys: Any, data: Any) -> Any:
        if together:
            return state + jax.vmap(rows)(keys).sum(axis=0)
        return jax.lax.scan(lambda state, key: (state + rows(key), None), state, keys)[0]

    drawn_rows = jax.eval_shape(rows, keys_of.insecure_root(0).key("batches"))
    return stepping(many, jnp.zeros(drawn_rows.shape, jnp.int32), case)


def stepping(many: Callable[..., Any], start: Any, case: Case) -> Callable[[], None]:
    """Returns what takes the next steps from where it was, with keys that no step had before."""
    held = [start, keys_of.insecure_root(0).secret("batches"), 0]

    def take() -> None:
        held[2] += 1
        key = keys_of.key(held[1], "batches", held[2])
        keys = jax.random.split(key, case.steps)
        held[0] = jax.block_until_ready(many(held[0], keys, case.data))

    return take


def measure(name: str, case: Case, beside: bool = False) -> None:
    """Times all candidates of a case in turn, and prints medians and their ratios."""
    reference = plan(case)
    candidates = {
        "SVI of NumPyro, Poisson batches": plain(case, reference),
        "DPSVI, clipped, no noise": scans(case, plan(case, noise_multiplier=0.0)),
        "DPSVI, float noise": scans(case, plan(case, float_noise=True)),
        "DPSVI, integer noise": scans(case, reference),
        "batches alone, step by step": drawn(case, reference, together=False),
        "batches alone, all together": drawn(case, reference, together=True),
    }
    if beside:
        candidates["vmap(grad), clipped, no noise"] = materialised(case, reference)
    if case.batch == reference.sampler.capacity:
        raise AssertionError("Poisson batches have room to spare")
    for take in candidates.values():
        take()
    seconds: dict[str, list[float]] = {label: [] for label in candidates}
    for _ in range(ROUNDS):
        for label, take in candidates.items():
            began = time.perf_counter()
            take()
            seconds[label].append((time.perf_counter() - began) / case.steps)
    capacity = reference.sampler.capacity
    print(f"{name}: {case.batch} expected of {capacity} places a batch, {case.steps} steps a scan")
    base = statistics.median(seconds["SVI of NumPyro, Poisson batches"])
    for label, values in seconds.items():
        middle = statistics.median(values)
        print(
            f"  {label:32} {1e6 * middle:10.1f} us  {middle / base:6.2f} x"
            f"   {1e6 * min(values):.1f} to {1e6 * max(values):.1f}"
        )


def memory(batch: int) -> None:
    """Takes a few steps of the VAE and prints the most memory that the process had."""
    case = vae(batch, rows=60_000)._replace(steps=3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    take = scans(case, plan(case))
    take()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"vae, batch {batch}: peak {peak:.2f} GB, of which {before:.2f} before the first step")
    on_device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if on_device:
        print(f"  and {on_device / 1e9:.2f} GB on {jax.devices()[0].device_kind}")


def main() -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="one case alone")
    parser.add_argument("--steps", type=int, metavar="STEPS", help="as many steps a scan")
    parser.add_argument("--memory", type=int, metavar="BATCH", help="peak memory instead of times")
    parser.add_argument("--epoch", action="store_true", help="an epoch of the VAE, for a GPU")
    chosen = parser.parse_args()
    if chosen.memory:
        memory(chosen.memory)
        return 0
    if chosen.epoch:
        print(jax.devices()[0].device_kind)
        case = vae()
        whole = case.data[0].shape[0] // case.batch
        measure("vae", case._replace(steps=chosen.steps or whole), beside=True)
        print(f"  an epoch is {whole} steps")
        return 0
    for name in [chosen.case] if chosen.case else CASES:
        if chosen.case:
            case = CASES[name]()
            measure(name, case._replace(steps=chosen.steps or case.steps))
        else:  # a process each: what one has compiled and kept does not weigh on the next
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--case", name], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
