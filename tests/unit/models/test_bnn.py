"""Bayesian neural networks: against the same network in NumPy, and in a study from its file."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpyro import optim
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

from fedvi.errors import ModelError
from fedvi.models import bnn, numpyro_model
from fedvi.models.base import gaussian_prior
from fedvi.privacy import accountants, events
from tests.flax_networks import curve
from tests.studies import raw_study, run_study, split

pytestmark = pytest.mark.numpyro


def made(function: Any, **arguments: Any) -> Any:
    example = {"x": np.zeros(3), "y": np.zeros(())}
    return numpyro_model(partial(function, **arguments), example, name="network")


def output(model: Any, theta: np.ndarray, x: np.ndarray, scale: float) -> np.ndarray:
    """The network written in NumPy, with the weights where the model's names say they are."""
    at = dict(zip(model.names, theta, strict=True))
    layers = 1 + max(int(name[8]) for name in at if name.startswith("weights_"))
    for layer in range(layers):
        biases = np.array([v for name, v in at.items() if name.startswith(f"biases_{layer}[")])
        weights = np.array([v for name, v in at.items() if name.startswith(f"weights_{layer}[")])
        weights = weights.reshape(-1, len(biases))
        x = scale * (x @ weights / np.sqrt(len(weights)) + biases)
        x = np.tanh(x) if layer < layers - 1 else x
    return x[:, 0]


@pytest.mark.nightly
@pytest.mark.parametrize("hidden", [[4], [4, 2]])
def test_a_network_is_the_one_that_numpy_computes(hidden: list[int]) -> None:
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(5, 3)), generator.normal(size=5)
    number = made(bnn.regression, hidden=hidden, prior_scale=1.5)
    binary = made(bnn.classification, hidden=hidden)
    with jax.enable_x64(True):
        theta = generator.normal(size=number.size)
        evaluate = jax.vmap(number.log_likelihood, in_axes=(None, 0))
        found = evaluate(jnp.asarray(theta), {"x": jnp.asarray(x), "y": jnp.asarray(y)})
        expected = scipy.stats.norm.logpdf(y, output(number, theta, x, 1.5), np.exp(theta[-1]))
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        theta, y = theta[: binary.size], (y > 0.0).astype(float)
        evaluate = jax.vmap(binary.log_likelihood, in_axes=(None, 0))
        found = evaluate(jnp.asarray(theta), {"x": jnp.asarray(x), "y": jnp.asarray(y)})
        logits = output(binary, theta, x, 1.0)
        expected = scipy.special.log_expit(np.where(y > 0.0, logits, -logits))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_prior_is_gaussian_and_wider_networks_have_no_larger_outputs() -> None:
    model = made(bnn.regression)
    assert model.size == 3 * 50 + 50 + 50 + 1 + 1
    h, precision = gaussian_prior(model)
    expected = np.ones(model.size)
    expected[-1] = 0.7**-2
    np.testing.assert_allclose(precision, np.diag(expected), rtol=1e-9, atol=1e-12)
    # log noise alone is not centred at 0.
    np.testing.assert_allclose(h[:-1], 0.0, atol=1e-12)
    assert h[-1] == pytest.approx(np.log(0.3) / 0.49, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"hidden": []}, "hidden is empty, expected the units", "linear"),
        ({"hidden": [50, 0]}, "hidden holds 0, expected whole numbers", r"hidden = \[50\]"),
        ({"prior_scale": 0}, "prior_scale is 0, expected a positive", "2.5"),
        ({"noise_centre": -1.0}, "noise_centre is -1.0, expected a positive", "median"),
    ],
)
def test_what_is_no_network_is_refused(arguments: Any, message: str, hint: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        bnn.regression(jnp.zeros((2, 3)), jnp.zeros(2), **arguments)
    assert hint.replace("\\", "") in error.value.hint


@pytest.mark.nightly
def test_a_federation_learns_a_curve_that_no_line_follows() -> None:
    generator = np.random.default_rng(4)
    x = generator.uniform(-2.0, 2.0, size=(120, 1))
    y = np.sin(2.0 * x[:, 0]) + 0.1 * generator.normal(size=120)
    # Each client saw another half of the range: neither knows the curve alone.
    sources = split(x, y, (x[:, 0] > 0.0).astype(int))
    raw = raw_study(["c0", "c1"], 1, family="diagonal_gaussian", solver={"kind": "gradient"})
    del raw["prior"]
    raw["model"] |= {"kind": "bnn_regression", "hidden": [20], "prior_scale": 2}
    raw["schedule"]["rounds"] = 10
    result = run_study(raw, sources)
    model = result.assembly.model
    mean, sd = result.assembly.family.moments(result.posterior)
    draws = mean + sd * generator.normal(size=(200, model.size))
    grid = np.linspace(-1.9, 1.9, 77)[:, None]
    predicted = np.mean([output(model, draw, grid, 2.0) for draw in draws], axis=0)
    error = np.sqrt(np.mean((predicted - np.sin(2.0 * grid[:, 0])) ** 2))
    # 0.065 and 0.076 with two seeds, and this one is fixed; the best line's error is 0.69.
    assert error < 0.15


# Two hidden layers, 1 → 12 → 8 → 1

DEEP = {"hidden": [12, 8], "noise_centre": 0.2, "noise_spread": 0.2}


def deep_study(solver: dict[str, Any], rounds: int, **sections: Any) -> dict[str, Any]:
    raw = raw_study(["c0", "c1"], 1, family="diagonal_gaussian", solver=solver, **sections)
    del raw["prior"]
    raw["model"] |= {"kind": "bnn_regression", **DEEP}
    raw["schedule"]["rounds"] = rounds
    return raw


def halves(count: int) -> dict[str, Any]:
    """Each client saw another half of the range: neither knows the curve alone."""
    x, y = curve(4, count)
    return split(x, y, (x[:, 0] > 0.0).astype(int))


def log_density(family: Any, eta: Any, model: Any) -> float:
    """The mean log predictive density of 500 records that nobody was fitted to."""
    x, y = curve(5, 500)
    mean, sd = family.moments(eta)
    draws = mean + sd * np.random.default_rng(1).normal(size=(300, model.size))
    terms = [scipy.stats.norm.logpdf(y, output(model, t, x, 1.0), np.exp(t[-1])) for t in draws]
    return float(np.mean(scipy.special.logsumexp(terms, axis=0)) - np.log(len(draws)))


@pytest.mark.nightly
def test_a_federation_trains_a_deeper_network_nearly_as_well_as_numpyro_alone() -> None:
    result = run_study(
        deep_study({"kind": "gradient", "steps": 300, "learning_rate": 0.05}, 6), halves(400)
    )
    family, model = result.assembly.family, result.assembly.model
    found = log_density(family, result.posterior, model)

    x, y = curve(4, 400)
    network = partial(bnn.regression, **DEEP)
    guide = AutoDiagonalNormal(network)
    svi = SVI(network, guide, optim.Adam(0.01), Trace_ELBO(num_particles=4))
    records = jnp.asarray(x, float), jnp.asarray(y, float)
    params = svi.run(jax.random.key(1), 4000, *records, progress_bar=False).params
    alone = family.from_moments(
        np.asarray(params["auto_loc"], np.float64),
        np.asarray(params["auto_scale"], np.float64) ** 2,
    )
    # In nats a record: 0.03 with two seeds here, 0.08 and 0.11 by SVI; the best line has −1.6.
    assert found > log_density(family, alone, model) - 0.15
    assert found > -0.1


@pytest.mark.nightly
def test_a_private_round_trains_a_deeper_network_at_its_price() -> None:
    generator = np.random.default_rng(4)
    x = generator.uniform(-2.0, 2.0, size=(6500, 1))
    y = (generator.uniform(size=6500) < scipy.special.expit(4.0 * x[:, 0])).astype(float)
    solver = {
        "kind": "dp_optimisation",
        "steps": 20,
        "clip_norm": 1.0,
        "learning_rate": 0.2,
        "draws": 2,
    }
    promise = {"epsilon": 20.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"}
    raw = deep_study(
        solver, 1, privacy={**promise, "disjoint": True}, simulation={"insecure_seed": 3}
    )
    raw["model"] = {**raw["model"], "kind": "bnn_classification"}
    del raw["model"]["noise_centre"], raw["model"]["noise_spread"]
    raw["data"]["schema"]["y"] = {"type": "binary", "true": ["1"], "false": ["0"]}
    raw["data"]["max_records"] = 6000
    result = run_study(raw, split(x[:6000], y[:6000], generator.integers(0, 2, 6000)))
    model, family = result.assembly.model, result.assembly.family
    assert model.size == 24 + 12 * 8 + 8 + 8 + 1

    # Twenty sums at the noise that was planned, whatever the layers; its tables cost what is above.
    (sums,) = events.counts(result.assembly.planned)
    price = accountants.pld("add_remove").epsilon(events.repeat(sums, 20), 1e-5)
    assert 19.0 < price <= result.consortium[0].epsilon <= 20.0

    def log_likelihood(eta: Any) -> float:
        mean, sd = family.moments(eta)
        draws = mean + sd * np.random.default_rng(1).normal(size=(300, model.size))
        signs = np.where(y[6000:] > 0.0, 1.0, -1.0)
        terms = [scipy.special.log_expit(signs * output(model, t, x[6000:], 1.0)) for t in draws]
        return float(np.mean(scipy.special.logsumexp(terms, axis=0)) - np.log(len(draws)))

    # −0.26 with this noise, and with 12,000 records −0.27; a coin has −0.69, as the prior nearly has.
    assert log_likelihood(result.assembly.prior) < -0.6
    assert log_likelihood(result.posterior) > -0.4
