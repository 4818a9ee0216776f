"""The cache of compiled programs: found again by another process, whatever its secrets."""

import os
import stat
import subprocess
import sys

import pytest

from fedvi.run import compiled

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

plan = fedvi.privacy.sgd(noise_multiplier=2.0, delta=1e-5, steps=5, sampler="full", max_records=20)
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


@pytest.mark.nightly
def test_another_process_finds_the_program_whatever_its_secrets(tmp_path):
    """Were a secret compiled in, its program would be another one. Nobody else may read the folder."""
    folder = tmp_path / "caches" / "fedvi" / "jax"
    said, first = fit(tmp_path)
    assert said == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    said, second = fit(tmp_path, folder)
    assert said == str(folder)
    assert first != second, "the noise is another one"
    programs = [file for file in folder.glob("*many_steps*") if not file.name.endswith("atime")]
    assert len(programs) == 1


def test_the_programs_not_used_for_longest_go_first(tmp_path, monkeypatch):
    for age, name in enumerate(("new", "older", "oldest")):
        entry = tmp_path / f"{name}-cache"
        entry.write_bytes(bytes(40))
        os.utime(entry, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(compiled, "_MOST_BYTES", 119)
    compiled._forget_oldest(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new-cache", "older-cache"]


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        compiled.compilation_cache(tmp_path)


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_folder_that_others_can_replace_is_refused(tmp_path, monkeypatch, mode, refused):
    monkeypatch.setattr(compiled.jax.config, "update", lambda *setting: None)
    monkeypatch.setattr(compiled.jax_cache, "reset_cache", lambda: None)
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    if refused:
        with pytest.raises(PermissionError, match=r"others may write to .*above; "):
            compiled.compilation_cache(above / "programs")
    else:
        compiled.compilation_cache(above / "programs")
