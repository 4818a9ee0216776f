"""Draws in ArviZ's own object: what they are, what is said beside them, and that a file keeps both."""

import sys
import types

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

import fedvi
from fedvi import errors
from fedvi.report.arviz import inference_data

pytestmark = pytest.mark.numpyro

N, DRAWS = 20, 2000


def model(x, y=None, *, scale):
    b = numpyro.sample("b", dist.Normal(0.0, scale).expand([2]).to_event(1))
    shift = numpyro.param("shift", 0.0)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b + shift, 1.0), obs=y)


def table():
    x = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
    return x, x.sum(axis=1)


def fitted(**settings):
    given = {"steps": 4, "max_records": N, "batch": 5, "noise_multiplier": 3.0, "delta": 1e-3}
    plan = fedvi.privacy.sgd(**{**given, **settings})
    guide = AutoDiagonalNormal(model)
    optim = numpyro.optim.Adam(0.05)
    svi = fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan, scale=3.0)
    return svi, svi.run(jax.random.key(0), 2, *table(), progress_bar=False).params


@pytest.fixture(scope="module")
def fit():
    return fitted()


@pytest.fixture(scope="module")
def data(fit):
    x, _ = table()
    return inference_data(jax.random.key(1), *fit, x, draws=DRAWS, prior=True, predictive=True)


@pytest.mark.nightly
def test_the_posterior_is_one_chain_of_draws_of_the_guide(fit, data):
    svi, params = fit
    draws = data["posterior"]["b"].values
    assert draws.shape == (1, DRAWS, 2)
    assert list(data["posterior"].data_vars) == ["b"]  # nothing of what the guide uses inside
    law = svi.guide.get_posterior(params)
    # Five standard errors of a mean, and of a standard deviation: false alarms below 1e-5.
    error = 5.0 * law.scale / np.sqrt(DRAWS)
    assert (np.abs(draws[0].mean(axis=0) - law.loc) < error).all()
    assert (np.abs(draws[0].std(axis=0) - law.scale) < error).all()


@pytest.mark.nightly
def test_draws_are_those_of_numpyros_predictive(fit, data):
    svi, params = fit
    key = jax.random.split(jax.random.key(1), 3)[0]
    alone = Predictive(svi.guide, params=params, num_samples=DRAWS)(key)["b"]
    np.testing.assert_array_equal(data["posterior"]["b"].values[0], alone)
    # A guide alone needs no records.
    short = inference_data(jax.random.key(1), svi, params, draws=3)
    assert short["posterior"]["b"].shape == (1, 3, 2)
    assert "prior" not in short.groups()


@pytest.mark.nightly
def test_prior_and_predictive_are_of_the_model_at_the_fitted_parameters(fit, data):
    _, params = fit
    x, _ = table()
    assert params["shift"] != 0.0
    assert data["posterior_predictive"]["y"].shape == (1, DRAWS, N)
    mean = data["posterior"]["b"].values[0] @ x.T + np.asarray(params["shift"])
    residuals = data["posterior_predictive"]["y"].values[0] - mean
    # Of 40,000 standard normal numbers: five standard errors.
    assert abs(residuals.mean()) < 5.0 / np.sqrt(DRAWS * N)
    assert abs(residuals.std() - 1.0) < 5.0 / np.sqrt(2 * DRAWS * N)
    spread = data["prior"]["b"].values.std()
    assert abs(spread - 3.0) < 5.0 * 3.0 / np.sqrt(4 * DRAWS)
    assert data["prior_predictive"]["y"].shape == (1, DRAWS, N)


def test_the_privacy_statement_is_beside_the_draws(fit, data):
    svi, _ = fit
    for found in (data.attrs, data["posterior"].attrs):
        # Calibration keeps a little of δ for tables, which the statement counts as they are.
        promised = svi.privacy.epsilon
        assert 0.999 * promised <= found["privacy_epsilon"] <= promised
        assert found["privacy_delta"] == 1e-3
        assert found["privacy_relation"] == "substitute"
        assert found["privacy_unit"] == "record"
        assert found["privacy_accountant"] == "pld"
        assert found["privacy_mark"] == ""
        assert found["privacy_statement"].startswith("Privacy statement")
        assert f"at delta {1e-3:g}" in found["privacy_statement"]
    for group in ("posterior_predictive", "prior_predictive"):
        assert "these records are not" in data[group].attrs["privacy_note"]


@pytest.mark.nightly
def test_draws_without_a_guarantee_say_so():
    svi, params = fitted(insecure_seed=1)
    attrs = inference_data(jax.random.key(1), svi, params, draws=2).attrs
    assert attrs["privacy_mark"] == "simulation: no guarantee"
    assert "MARK: simulation: no guarantee" in attrs["privacy_statement"]
    svi, params = fitted(noise_multiplier=0.0)
    attrs = inference_data(jax.random.key(1), svi, params, draws=2).attrs
    assert attrs["privacy_epsilon"] == np.inf
    assert attrs["privacy_statement"].startswith("No claim")


def test_the_tree_of_arviz_1_gets_the_same(fit, data, monkeypatch):
    """That version needs a newer Python than we start at; here stands what it is made of."""

    def from_dict(groups):
        return xarray.DataTree.from_dict(
            {
                group: xarray.Dataset({name: xarray.DataArray(value) for name, value in of.items()})
                for group, of in groups.items()
            }
        )

    xarray = pytest.importorskip("xarray")
    tree = types.SimpleNamespace(__version__="1.2.0", from_dict=from_dict)
    monkeypatch.setitem(sys.modules, "arviz", tree)
    found = inference_data(jax.random.key(1), *fit, table()[0], draws=DRAWS, predictive=True)
    for group, name in (("posterior", "b"), ("posterior_predictive", "y")):
        np.testing.assert_array_equal(found[group][name].values, data[group][name].values)
    assert found.attrs["privacy_statement"] == data.attrs["privacy_statement"]
    assert found["posterior"].attrs["privacy_epsilon"] == data.attrs["privacy_epsilon"]
    assert "these records are not" in found["posterior_predictive"].attrs["privacy_note"]


def test_a_file_keeps_draws_and_statement(data, tmp_path):
    pytest.importorskip("h5netcdf")
    path = tmp_path / "draws.nc"
    data.to_netcdf(str(path))
    again = sys.modules["arviz"].from_netcdf(str(path))
    np.testing.assert_array_equal(again["posterior"]["b"].values, data["posterior"]["b"].values)
    for name, value in data.attrs.items():
        assert again.attrs[name] == value


def test_arviz_can_summarise_it(data):
    table = sys.modules["arviz"].summary(data, kind="stats")
    mean = data["posterior"]["b"].values[0].mean(axis=0)
    np.testing.assert_allclose(table["mean"].to_numpy(), mean, atol=1e-3)


def test_without_arviz_it_says_what_to_install(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(errors.ConfigError, match=r"arviz, which is not installed") as raised:
        inference_data(jax.random.key(1), *fit)
    assert raised.value.hint == "pip install 'fedvi[report]'"


def test_no_draws_are_refused(fit):
    with pytest.raises(errors.ConfigError, match=r"draws is 0"):
        inference_data(jax.random.key(1), *fit, draws=0)
