"""A `DPSVI` that other processes inherit is refused there, in other containers too, and nothing is charged.

The first process of each container has the number 1. Here the object's owner is number 1 of a namespace of
its own, and so is each process that inherits its memory: three are forked by Python, and three by the C
library behind Python's back. Run as a program, this file is the owner.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From linux/sched.h.
CLONE_NEWPID = 0x20000000


def _unshares():
    """Returns why this machine cannot give a process a namespace of its own; empty if it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip()


def test_processes_in_three_namespaces_are_refused_and_nothing_is_charged():
    reason = _unshares()
    if reason:
        pytest.skip(f"processes cannot be given namespaces of their own here: {reason}")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, __file__],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    *others, owner = map(json.loads, done.stdout.splitlines())
    own = owner.pop("namespace")
    assert owner == {"pid": 1, "went on": 1, "charged": 1}
    assert len(others) == 6
    for other in others:
        assert other["pid"] == 1
        assert other["namespace"] != own
        assert other["charged"] == 1
        assert set(other["refused"]) == {"init", "run", "update", "stable_update"}
        for said in other["refused"].values():
            assert said.startswith(
                "PrivacyError: a DPSVI was used by a process that was forked off"
            )


def _told(fit, state, data):
    """Returns what this process is refused."""
    import jax

    calls = {
        "init": lambda: fit.init(jax.random.key(0), *data),
        "run": lambda: fit.run(jax.random.key(0), 1, *data, progress_bar=False),
        "update": lambda: fit.update(state, *data),
        "stable_update": lambda: fit.stable_update(state, *data),
    }
    refused = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"
    return {
        "pid": os.getpid(),
        "namespace": os.readlink("/proc/self/ns/pid"),
        "charged": len(fit.ledger.entries),
        "refused": refused,
    }


def _write(told):
    os.write(1, (json.dumps(told) + "\n").encode())


def _in_a_namespace(fork, tell):
    """Has the first process of a new namespace tell; it inherits this one's memory."""
    library = ctypes.PyDLL(None, use_errno=True)
    middle = os.fork()
    if middle == 0:
        # The children of this process are in the new namespace, itself is not.
        if library.unshare(CLONE_NEWPID):
            os._exit(3)
        child = os.fork() if fork == "python" else library.fork()
        if child == 0:
            _write(tell())
            os._exit(0)
        os._exit(os.waitpid(child, 0)[1] and 4)
    assert os.waitpid(middle, 0)[1] == 0


def main():
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Trace_ELBO, autoguide

    import fedvi

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    plan = fedvi.privacy.sgd(
        steps=5, runs=3, max_records=8, noise_multiplier=9.0, delta=1e-3, sampler="full"
    )
    optim = numpyro.optim.SGD(0.1)
    fit = fedvi.DPSVI(model, autoguide.AutoNormal(model), optim, Trace_ELBO(), plan)
    data = (np.zeros(8, np.float32),)
    state = fit.init(jax.random.key(0), *data)
    # JAX has threads; the children compute nothing.
    warnings.simplefilter("ignore")
    for fork in ("python", "c"):
        for _ in range(3):
            _in_a_namespace(fork, lambda: _told(fit, state, data))
    after, _ = fit.update(state, *data)
    told = {
        "pid": os.getpid(),
        "namespace": os.readlink("/proc/self/ns/pid"),
        "went on": int(after.step),
        "charged": len(fit.ledger.entries),
    }
    _write(told)


if __name__ == "__main__":
    main()
