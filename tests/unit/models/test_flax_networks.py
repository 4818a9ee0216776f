"""Networks of Flax by NumPyro's own route: the model written by hand, or refused with a way out."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro.contrib.module import flax_module, random_flax_module, random_nnx_module
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

from fedvi import DPSVI, errors, privacy
from fedvi.inference import per_record
from fedvi.models import bnn, numpyro_model
from tests import flax_networks
from tests.forward_models import unconstrained
from tests.studies import raw_study, run_study, split

pytestmark = pytest.mark.numpyro

EXAMPLE = {"x": np.zeros(2), "y": np.zeros(())}
FLAX = pytest.mark.parametrize("function", [flax_networks.in_linen, flax_networks.in_nnx])


@pytest.mark.nightly
@FLAX
@pytest.mark.parametrize("x64", [False, True])
def test_a_network_of_flax_is_the_one_written_by_hand(function: Any, x64: bool) -> None:
    found = numpyro_model(function, EXAMPLE)
    expected = numpyro_model(flax_networks.by_hand, EXAMPLE)
    generator = np.random.default_rng(2)
    with jax.enable_x64(x64):
        theta = jnp.asarray(generator.normal(size=expected.size), float)
        record = {"x": jnp.asarray([0.3, -1.0], float), "y": jnp.asarray(0.7, float)}
        rtol = 1e-12 if x64 else 1e-5
        for term, arguments in (("log_prior", ()), ("log_likelihood", (record,))):
            value, gradient = jax.value_and_grad(getattr(found, term))(theta, *arguments)
            other, slope = jax.value_and_grad(getattr(expected, term))(theta, *arguments)
            np.testing.assert_allclose(value, other, rtol=rtol)
            np.testing.assert_allclose(gradient, slope, rtol=rtol, atol=rtol)
        values = unconstrained(found, found.constrain(theta))
        np.testing.assert_allclose(values, theta, rtol=1e-6)


def test_its_latents_are_named_after_the_layers() -> None:
    names = numpyro_model(flax_networks.in_linen, EXAMPLE).names
    assert names[0] == "net/Dense_0.bias[0]"
    assert names[4:7] == tuple(f"net/Dense_0.kernel[{at}]" for at in ("0,0", "0,1", "0,2"))
    assert numpyro_model(flax_networks.in_nnx, EXAMPLE).names[0] == "net/layer_0.bias[0]"


def test_initial_values_are_drawn_when_a_model_is_made_and_in_no_evaluation() -> None:
    model = numpyro_model(flax_networks.in_linen, EXAMPLE)
    program = jax.make_jaxpr(model.log_likelihood)(jnp.zeros(model.size), EXAMPLE)
    assert "random_bits" not in str(program)


@pytest.mark.nightly
def test_the_network_of_studies_is_a_module_of_flax() -> None:
    def own(x: Any, y: Any) -> None:
        width = (1, x.shape[-1])
        module = bnn.Network([4, 3], scale=1.5)
        net = random_flax_module("net", module, dist.Normal(0.0, 1.0), input_shape=width)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=net(x)), obs=y)

    given = numpyro_model(
        partial(bnn.classification, hidden=[4, 3], prior_scale=1.5), EXAMPLE, name="network"
    )
    model = numpyro_model(own, EXAMPLE)
    theta = jnp.asarray(np.random.default_rng(3).normal(size=given.size), float)
    # Flax has all biases first.
    values = {f"net/{name}": value for name, value in given.constrain(theta).items()}
    other = unconstrained(model, values)
    record = {"x": jnp.asarray([0.3, -1.0]), "y": jnp.ones(())}
    # Other orders of the same float32 additions.
    np.testing.assert_allclose(
        model.log_likelihood(other, record), given.log_likelihood(theta, record), rtol=1e-5
    )
    np.testing.assert_allclose(model.log_prior(other), given.log_prior(theta), rtol=1e-5)


# In a federation


def studied(kind: str) -> Any:
    x, y = flax_networks.curve(1, 60)
    raw = raw_study(["c0", "c1"], 1, family="diagonal_gaussian")
    raw["solver"] = {"kind": "gradient", "steps": 30, "draws": 2}
    raw["model"]["kind"] = f"tests.flax_networks:{kind}"
    raw["schedule"]["rounds"] = 2
    del raw["prior"]
    return run_study(raw, split(x, y, (x[:, 0] > 0.0).astype(int)))


@pytest.mark.nightly
def test_a_federation_learns_of_a_module_what_it_learns_of_the_model_by_hand() -> None:
    expected = studied("by_hand").posterior
    # Not the prior: weights of the last layer have J = 3 there.
    assert abs(np.asarray(expected.J)[-3:] - 3.0).min() > 1.0
    for kind in ("in_linen", "in_nnx"):
        found = studied(kind).posterior
        # Same draws and operations; 60 steps of Adam do not spread what rounding there is.
        np.testing.assert_allclose(found.h, expected.h, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.J, expected.J, rtol=1e-5, atol=1e-5)


# On one table


@pytest.mark.nightly
@FLAX
def test_aligned_gradients_of_its_layers_are_not_formed(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = []
    gradients = per_record.gradients

    def watched(*arguments: Any) -> Any:
        spared.append((found := gradients(*arguments)).spared)
        return found

    monkeypatch.setattr(per_record, "gradients", watched)
    x, y = (array.astype(np.float32) for array in flax_networks.curve(1, 20))
    plan = privacy.sgd(epsilon=4.0, delta=1e-5, steps=1, batch=5, max_records=len(x), clip_norm=1.0)
    svi = DPSVI(
        function,
        AutoDiagonalNormal(function),
        numpyro.optim.Adam(0.01),
        Trace_ELBO(),
        plan,
        gradients="aligned",
    )
    svi.run(jax.random.key(0), 1, x, y, progress_bar=False)
    # Weights 1 → 4 → 3 → 1, without biases.
    assert set(spared) == {4 + 12 + 3}


# What is refused


class Normalised(linen.Module):
    """Has running statistics."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1)(linen.BatchNorm(use_running_average=False)(x))[..., 0]


class Centred(linen.Module):
    """Uses the other records of a batch."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1)(x - x.mean(axis=0))[..., 0]


class Dropped(nnx.Module):
    """Has a key of its own."""

    def __init__(self) -> None:
        self.layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.layer(x))[..., 0]


def without_prior(x: Any, y: Any) -> None:
    numpyro.sample("b", dist.Normal(0.0, 1.0))
    flax_networks.observed(flax_module("net", linen.Dense(1), input_shape=(1, 2))(x)[..., 0], y)


def with_prior_of_some(x: Any, y: Any) -> None:
    prior = {"kernel": dist.Normal(0.0, 1.0)}
    net = random_flax_module("net", linen.Dense(1), prior, input_shape=(1, 2))
    flax_networks.observed(net(x)[..., 0], y)


def with_state(x: Any, y: Any) -> None:
    prior = dist.Normal(0.0, 1.0)
    net = random_flax_module(
        "net", Normalised(), prior, input_shape=(1, 2), mutable=["batch_stats"]
    )
    flax_networks.observed(net(x), y)


def with_key(x: Any, y: Any) -> None:
    flax_networks.observed(random_nnx_module("net", Dropped(), dist.Normal(0.0, 1.0))(x), y)


def with_other_records(x: Any, y: Any) -> None:
    net = random_flax_module("net", Centred(), dist.Normal(0.0, 1.0), input_shape=(1, 2))
    flax_networks.observed(net(x), y)


@pytest.mark.parametrize(
    ("function", "message", "hint"),
    [
        (without_prior, r"`net\$params` .* `bias` and 1 more have no prior", "random_flax_module"),
        (with_prior_of_some, r"`net\$params` .* its `bias` has no prior", "to every parameter"),
        (with_state, r"`net\$state` is a numpyro.mutable site", "no BatchNorm"),
        (with_key, r"`net\$state` is a numpyro.mutable site", "no Dropout"),
        (with_other_records, "two made-up records", "own row only"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_a_network_that_is_no_prior_times_records_is_refused(
    function: Any, message: str, hint: str
) -> None:
    with pytest.raises(errors.ModelError) as found:
        numpyro_model(function, EXAMPLE)
    assert re.search(message, found.value.message), found.value.message
    assert hint in found.value.hint
