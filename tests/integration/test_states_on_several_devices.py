"""A used state of `DPSVI` is left as it was where several devices compute: an error would block the others.

JAX is told to count a processor as two devices.
"""

import json
import os
import subprocess
import sys

import pytest

STEPS = """
import json, warnings
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.infer import Trace_ELBO, autoguide
import fedvi

def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

plan = fedvi.privacy.sgd(
    steps=9, runs=2, max_records=8, noise_multiplier=9.0, delta=1e-3, sampler="full"
)
fit = fedvi.DPSVI(model, autoguide.AutoNormal(model), numpyro.optim.SGD(0.1), Trace_ELBO(), plan)
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d")))
here = NamedSharding(mesh, PartitionSpec())
state, other = (jax.device_put(fit.init(jax.random.key(run), x), here) for run in range(2))
step = jax.jit(fit.update)
told = {"devices": jax.device_count()}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    after, _ = jax.block_until_ready(step(state, x))
    still, loss = jax.block_until_ready(step(state, -x))
    told["steps"] = [int(after.step), int(still.step)]
    told["loss"] = bool(np.isnan(loss))
    told["same"] = all(
        bool((a == b).all())
        for a, b in zip(
            *(jax.tree.leaves(fit.get_params(one)) for one in (state, still)), strict=True
        )
    )
    each = jax.shard_map(
        lambda state, x: fit.update(state, x)[0].step[None],
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("d")),
        out_specs=PartitionSpec("d"),
        check_vma=False,
    )
    tables = jax.device_put(jnp.concatenate([x, -x]), NamedSharding(mesh, PartitionSpec("d")))
    told["one each"] = sorted(jax.jit(each)(other, tables).tolist())
told["said"] = sorted({str(w.message).splitlines()[0] for w in caught if "step" in str(w.message)})
print(json.dumps(told))
"""


@pytest.mark.nightly
def test_a_used_state_is_returned_as_it_was_and_no_device_waits():
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {
        "devices": 2,
        "steps": [1, 0],
        "loss": True,
        "same": True,
        "one each": [0, 1],
        "said": ["no step was taken: the state of step 0 was used before, and its noise with it"],
    }
