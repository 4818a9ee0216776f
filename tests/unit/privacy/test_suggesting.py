"""Settings that are suggested follow from public numbers, meet the budget, and fit a table."""

import math

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors
from fedvi.privacy import accountants
from fedvi.privacy.suggesting import Falling, suggest

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


@pytest.mark.parametrize("records", [200, 20_000, 20_001, 1_000_000])
@pytest.mark.parametrize("latents", [1, 50])
def test_the_plan_keeps_the_promise_and_follows_the_rule(records, latents):
    plan, rate = suggest(max_records=records, latents=latents, **BUDGET)
    assert plan.clip_norm == math.sqrt(latents)
    assert (plan.steps, rate.steps) == (200, 200)
    assert plan.sampler.rate * records == pytest.approx(min(records, 20_000))
    price = accountants.pld("substitute").epsilon(plan.total, plan.delta)
    # 1e-3: the share of delta that is kept for the tables of the noise.
    assert 0.98 <= price <= 1.0
    assert (plan.epsilon, plan.delta) == (1.0, 1e-6)


def test_what_is_given_stands_in_place_of_the_rule():
    plan, rate = suggest(
        max_records=1_000, latents=4, steps=50, batch=100, clip_norm=0.5, runs=2, **BUDGET
    )
    assert (plan.steps, plan.clip_norm, plan.runs) == (50, 0.5, 2)
    assert plan.sampler.rate == 0.1
    assert rate == Falling(0.1, 50)


@pytest.mark.parametrize("latents", [0, -1, 2.0, True, "3"])
def test_latents_that_are_no_count_are_refused(latents):
    with pytest.raises(errors.ConfigError, match=r"latents is .* expected an integer"):
        suggest(max_records=100, latents=latents, **BUDGET)


def test_wrong_arguments_are_those_of_sgd():
    with pytest.raises(errors.ConfigError, match=r"max_records is 2\.5"):
        suggest(max_records=2.5, latents=3, **BUDGET)
    with pytest.raises(errors.ConfigError, match="clip_norm is -1"):
        suggest(max_records=100, latents=3, clip_norm=-1, **BUDGET)


@pytest.mark.numpyro
def test_a_regression_that_starts_far_away_is_found_under_the_promise():
    random = np.random.default_rng(0)
    x = random.normal(size=(4_000, 3)).astype(np.float32)
    truth = np.array([1.0, -0.5, 0.0])
    y = (x @ truth + random.normal(size=len(x))).astype(np.float32)

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    plan, rate = suggest(max_records=4_000, latents=3, insecure_seed=0, **BUDGET)
    guide = autoguide.AutoNormal(
        model, init_loc_fn=numpyro.infer.init_to_value(values={"b": np.full(3, -2.0, np.float32)})
    )
    svi = fedvi.DPSVI(
        model, guide, numpyro.optim.Adam(rate), Trace_ELBO(), plan, gradients="aligned"
    )
    params = svi.run(jax.random.key(0), plan.steps, x, y, progress_bar=False).params
    # The noise of a mean of 4,000 gradients is 0.1 a step, of which the last tens are averaged.
    np.testing.assert_allclose(params["b_auto_loc"], truth, atol=0.15)
