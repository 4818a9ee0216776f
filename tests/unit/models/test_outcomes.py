"""Claims about outcomes: what one says of its mean, its scatter and its draws is of one law."""

import jax
import numpy as np
import pytest
import scipy.integrate

from fedvi import models
from fedvi.models.capabilities import HasOutcome
from fedvi.models.outcomes.accepted import ACCEPTED
from fedvi.models.outcomes.base import Columns, Draws, Predicts, Scatters, quantile
from fedvi.models.outcomes.bernoulli import Bernoulli
from fedvi.models.outcomes.binomial import Binomial
from fedvi.models.outcomes.counts import NegativeBinomial, Poisson
from fedvi.models.outcomes.normal import Normal

A = np.array([-0.5, 0.2, 1.0])
COUNT = 20_000
COLUMNS = Columns("y", ("s", "f"), ((0.0, 50.0),) * 2, (0.0,) * 2, (1.0,) * 2)
SCATTERS = [Normal(0.5), Poisson(), NegativeBinomial(0.5)]
MADE = {
    "binomial": models.binomial(["a"]),
    "linear": models.linear(["a"]),
    "logistic": models.logistic(["a"]),
    "multinomial": models.multinomial(["a"], ["u", "v"]),
    "multivariate_linear": models.multivariate_linear(["a"], ["y", "z"]),
    "negative_binomial": models.negative_binomial(["a"], 0.5),
    "poisson": models.poisson(["a"], offset=True),
    "survival": models.survival(["a"], [1.0]),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_models_outcome_says_what_its_kind_accepts(kind):
    assert isinstance(MADE[kind], HasOutcome)
    assert MADE[kind].outcome.accepts == ACCEPTED[kind]


@pytest.mark.parametrize("law", SCATTERS)
def test_a_distribution_function_is_the_sum_of_the_density(law):
    assert isinstance(law, Predicts)
    assert isinstance(law, Scatters)
    means = law.mean(A)
    for a, mean in zip(A, means, strict=True):

        def density(y, a=a):
            with jax.enable_x64(True):
                return float(np.exp(law.log_density(np.float64(a), np.float64(y))))

        end = 3.0
        if law.whole:
            total = sum(density(k) for k in range(int(end) + 1))
        else:
            total = scipy.integrate.quad(density, mean - 20.0, end)[0]
        found = law.cdf(np.array([end]), np.array([mean]))
        assert found[0] == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("law", [*SCATTERS, Bernoulli(), Binomial()])
def test_draws_have_the_mean_and_the_sd(law):
    assert isinstance(law, Draws)
    random = np.random.default_rng(0)
    own = [np.full(COUNT, 4.0), np.full(COUNT, 6.0)] if law.keeps_total else []
    means, trials = law.mean(A), 10.0 if own else 1.0
    bernoulli = np.sqrt((trials * means * (1.0 - means)).clip(0.0))
    sds = np.broadcast_to(law.sd(means) if isinstance(law, Scatters) else bernoulli, A.shape)
    for a, mean, sd in zip(A, trials * means, sds, strict=True):
        drawn = law.draw(np.full(COUNT, a), COLUMNS, random, own)[0]
        # Five standard errors of a mean, and of an sd whose law has a fourth moment below 20 sd⁴.
        assert drawn.mean() == pytest.approx(mean, abs=5.0 * sd / np.sqrt(COUNT))
        assert drawn.std() == pytest.approx(sd, rel=5.0 * np.sqrt(20.0 / 4.0 / COUNT))
        if own:
            assert (law.draw(np.full(COUNT, a), COLUMNS, random, own)[1] >= 0.0).all()


@pytest.mark.parametrize("law", SCATTERS)
def test_a_quantile_of_a_mixture_has_its_probability_below(law):
    means, weights = np.stack([law.mean(A), law.mean(A + 1.0)]), np.array([0.3, 0.7])
    for probability in (0.05, 0.5, 0.95):
        at = quantile(law, means, weights, probability)
        below = weights @ law.cdf(at, means)
        if law.whole:
            assert (below >= probability).all()
            assert (weights @ law.cdf(at - 1.0, means) < probability).all()
        else:
            np.testing.assert_allclose(below, probability, rtol=1e-9)
