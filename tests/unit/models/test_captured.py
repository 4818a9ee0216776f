"""Tables that a model of `DPSVI` takes from a closure: refused where they can be seen."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors
from fedvi.inference.svi import DPSVI

pytestmark = pytest.mark.numpyro

N = 40
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
SAID = rf"uses an array of shape \[{N}(, 3)?\] from outside of its arguments"


def started(model, guide=None, **static):
    plan = fedvi.privacy.sgd(
        steps=3, max_records=N, noise_multiplier=4.0, delta=1e-3, sampler="full"
    )
    fit = DPSVI(
        model,
        guide or autoguide.AutoNormal(model),
        numpyro.optim.SGD(0.1),
        Trace_ELBO(),
        plan,
        **static,
    )
    fit.init(jax.random.key(0), X)
    return fit


def model_with(term):
    def model(x, **given):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        extra = term(b, **given)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(extra + b[0], 1.0), obs=x[:, 0])

    return model


def factor_of(table):
    def term(b):
        numpyro.factor("extra", -((table @ b) ** 2).sum())
        return 0.0

    return term


TAKEN_FROM_OUTSIDE = {
    "a factor over NumPy's": factor_of(X),
    "a factor over JAX's": factor_of(jnp.asarray(X)),
    "a mean in the program": lambda b: jnp.mean(X, axis=0) @ b,
    "inside a jit": lambda b: jax.jit(lambda b: (jnp.asarray(X) @ b).mean())(b),
    "inside a loop": lambda b: jax.lax.fori_loop(0, N, lambda i, t: t + jnp.asarray(X)[i] @ b, 0.0),
    "one column": lambda b: b[0] * jnp.asarray(X[:, 0]).sum(),
}


@pytest.mark.parametrize("kind", TAKEN_FROM_OUTSIDE)
def test_a_table_in_a_closure_is_refused(kind):
    with pytest.raises(errors.ModelError, match=SAID) as no:
        started(model_with(TAKEN_FROM_OUTSIDE[kind]))
    assert "pass records as arguments" in no.value.hint


def test_a_table_in_the_closure_of_a_guide_is_refused():
    def guide(x):
        loc = numpyro.param("loc", jnp.zeros(3))
        numpyro.sample("b", dist.Normal(loc + jnp.mean(X, axis=0), 1.0).to_event(1))

    with pytest.raises(errors.ModelError, match=SAID):
        started(model_with(lambda b: 0.0), guide)


def test_an_array_that_is_declared_public_is_taken():
    fit = started(
        model_with(lambda b, knots: (jnp.asarray(knots) @ b).mean()), knots=X[::-1].copy()
    )
    assert len(fit.ledger.entries) == 1


def test_arrays_of_other_lengths_are_taken():
    knots = np.linspace(0.0, 1.0, 7, dtype=np.float32)
    started(model_with(lambda b: (b[0] * knots).mean() + jnp.arange(N).mean() + jnp.ones(N).sum()))


def test_what_was_computed_before_is_not_seen():
    """A number has no mark of where it comes from: docs/sharp-edges.md says so."""
    mean = float(X.mean())
    started(model_with(lambda b: b[0] * mean))
