"""The cache of compiled programs: found again by another process, whatever its secrets."""

import os
import stat
import subprocess
import sys

SCRIPT = """
import sys
import jax, numpy as np, numpyro
import numpyro.distributions as dist
from numpyro.infer import Trace_ELBO, autoguide
import fedvi

jax.numpy.ones(3) + 1  # something was compiled before
print(fedvi.compilation_cache(*sys.argv[1:]))

def model(x):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(b, 1.0), obs=x)

plan = fedvi.privacy.sgd(noise_multiplier=2.0, delta=1e-5, steps=5, batch=4, max_records=20)
svi = fedvi.DPSVI(model, autoguide.AutoNormal(model), numpyro.optim.SGD(0.1), Trace_ELBO(), plan)
x = np.arange(20, dtype=np.float32)
print(svi.run(jax.random.key(0), 5, x, progress_bar=False).params["b_auto_loc"])
"""


def fit(tmp_path, *args):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**kept, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "caches")},
    )
    return done.stdout.splitlines()


def test_another_process_compiles_nothing_anew(tmp_path):
    """Were a secret compiled in, its program would be another one."""
    folder = tmp_path / "some" / "where"
    said, first = fit(tmp_path, folder)
    assert said == str(folder)
    programs = {file.name for file in folder.iterdir() if not file.name.endswith("atime")}
    assert any("many_steps" in name for name in programs)
    _, second = fit(tmp_path, folder)
    assert first != second, "the noise is another one"
    assert {f.name for f in folder.iterdir() if not f.name.endswith("atime")} == programs


def test_it_stands_among_the_user_s_caches_and_is_for_nobody_else(tmp_path):
    folder = tmp_path / "caches" / "fedvi" / "jax"
    assert fit(tmp_path)[0] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
