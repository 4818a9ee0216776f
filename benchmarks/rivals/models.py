"""The models and guides of the cases for NumPyro, old and new: fedvi, d3p and both SVI fit these."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.example_libraries import stax
from numpyro.infer.autoguide import AutoDiagonalNormal

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def vae() -> Pair:
    """Returns d3p's example network: 784 → 400 → 50 and back, softplus within, 688,884 parameters."""
    encode = stax.serial(
        stax.Dense(400),
        stax.Softplus,
        stax.FanOut(2),
        stax.parallel(stax.Dense(50), stax.serial(stax.Dense(50), stax.Exp)),
    )
    decode = stax.serial(stax.Dense(400), stax.Softplus, stax.Dense(784))

    def model(x: Any) -> None:
        decoder = numpyro.module("decoder", decode, (1, 50))
        with numpyro.plate("records", 60_000, subsample_size=x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=x)

    def guide(x: Any) -> None:
        encoder = numpyro.module("encoder", encode, (1, 784))
        with numpyro.plate("records", 60_000, subsample_size=x.shape[0]):
            mean, sd = encoder(x)
            numpyro.sample("z", dist.Normal(mean, sd).to_event(1))

    return model, guide


def logistic() -> Pair:
    """Returns a regression on 100 covariates and a mean-field guide."""

    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([100]).to_event(1))
        with numpyro.plate("records", 50_000, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

    return model, AutoDiagonalNormal(model)


def hierarchical() -> Pair:
    """Returns the hierarchical regression of the d3p paper with L = 3, K = 3, D = 5.

    M, D × K, is N(0, 4²); the slopes of group l, D of them, are N(M g_l, 1), where g_l are its K traits;
    y is Bernoulli with logit x · slopes. The guide is mean-field over M alone and leaves the slopes to
    the prior, as in the script that was published with the paper; traits are the unit vectors, as there.

    Source: Prediger, Loppi, Kaski and Honkela (2021), arXiv:2103.11648, and its experiments' script.
    """
    traits = jnp.eye(3)

    def model(x: Any, group: Any, y: Any) -> None:
        m = numpyro.sample("m", dist.Normal(0.0, 4.0).expand([5, 3]).to_event(2))
        with numpyro.plate("groups", 3):
            slopes = numpyro.sample("slopes", dist.Normal(traits @ m.T, 1.0).to_event(1))
        with numpyro.plate("records", 500, subsample_size=x.shape[0]):
            logits = (x * slopes[group]).sum(axis=-1)
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    def guide(x: Any, group: Any, y: Any) -> None:
        mean = numpyro.param("mean", jnp.zeros((5, 3)))
        log_sd = numpyro.param("log_sd", jnp.zeros((5, 3)))
        numpyro.sample("m", dist.Normal(mean, jnp.exp(log_sd)).to_event(2))

    return model, guide


MODELS = {"vae": vae, "logistic": logistic, "hierarchical": hierarchical}
