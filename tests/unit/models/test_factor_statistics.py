"""Claims about factor analysis and probabilistic PCA."""

import json

import numpy as np
import pytest

from fedvi import VIPS, errors, privacy
from fedvi.inference.solvers.vips import vips
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.privacy import mechanisms, sampling
from tests.vips import federate, shard_of

COLUMNS = tuple("abcde")


@pytest.fixture(scope="module")
def reference(references):
    return json.loads((references / "scikit_learn_latents.json").read_text())["factor_analysis"]


def fitted(model, x, rounds):
    solver = vips(
        model.family, model, sampling.full(len(x)), mechanisms.gaussian(0.0), clip_norm=np.inf
    )
    return federate(solver, [shard_of({"x": x})], rounds)[-1].handed_out


def score_of(x, covariance) -> float:
    """The mean log density of rows under a Gaussian with their own mean."""
    apart = x - x.mean(axis=0)
    square = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(covariance), apart)
    constant = x.shape[1] * np.log(2.0 * np.pi) + np.linalg.slogdet(covariance)[1]
    return -0.5 * (constant + square.mean())


def covariance(model, posterior):
    """The covariance of x at the means of q: W Wᵀ + diag(1/E[τ])."""
    m, _, shape, rate = model.family.parameters(posterior)
    loadings = m.reshape(len(model.columns), -1)[:, :-1]
    return loadings @ loadings.T + np.diag(np.broadcast_to(rate / shape, len(model.columns)))


def test_of_many_records_it_is_the_factor_analysis_of_scikit_learn(reference):
    # The same records 10 times: the likelihood's best is where it was, and the prior matters little.
    x = np.tile(np.array(reference["x"]), (10, 1))
    model = FactorAnalysis(COLUMNS, 2, (1.0,) * 5, row_norm=2.5)
    q = fitted(model, x, 150)
    expected = np.array(reference["covariance"])
    # The prior's part is of order 1 in 1,500 records, and more in the column that is nearly all factor.
    assert np.abs(covariance(model, q) - expected).max() < 0.01 * np.abs(expected).max()
    assert reference["score"] - 2e-3 < score_of(x, covariance(model, q)) <= reference["score"]


def test_with_one_noise_for_all_it_is_probabilistic_pca_in_closed_form(reference):
    x = np.tile(np.array(reference["x"]), (10, 1))
    model = FactorAnalysis(COLUMNS, 2, (1.0,) * 5, row_norm=2.5, isotropic=True)
    found = covariance(model, fitted(model, x, 100))
    # Tipping and Bishop (1999), equations 7 and 8.
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    noise = values[:3].mean()
    expected = (vectors * np.r_[[noise] * 3, values[3:]]) @ vectors.T
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


def test_the_covariance_of_factors_comes_in_at_the_server_as_often_as_there_are_records():
    model = FactorAnalysis(COLUMNS, 2, (1.0,) * 5, row_norm=2.5)
    q = model.start
    z = np.c_[np.random.default_rng(0).normal(size=(7, 2)), np.ones(7)]
    sums = {"factors": z.T @ z, "products": np.zeros((5, 3)), "squares": np.zeros(5)}
    m, scale, shape, rate = model.family.parameters(q)
    precision = np.eye(2)
    for column in range(5):
        w = m[column, 0, :2]
        precision += np.linalg.inv(scale[column])[:2, :2] + shape[column] / rate[column] * np.outer(
            w, w
        )
    expected = z.T @ z
    expected[:2, :2] += 7.0 * np.linalg.inv(precision)
    found = model.factor(sums, q)
    np.testing.assert_allclose(found.J, np.tile(expected, (5, 1, 1)), rtol=1e-12)
    np.testing.assert_allclose(found.power, 3.5)


def test_a_column_that_noise_makes_look_explained_keeps_noise_of_its_own():
    model = FactorAnalysis(("a", "b"), 1, (1.0, 3.0), row_norm=2.0, smallest_noise=0.1)
    sums = {
        "factors": np.array([[100.0, 0.0], [0.0, 100.0]]),
        "products": np.array([[90.0, 0.0], [250.0, 0.0]]),
        "squares": np.array([-20.0, -20.0]),
    }
    total = model.factor(sums, model.start)
    _, _, shape, rate = model.family.parameters(model.posterior(total, {"factors": 1.0}))
    assert (np.sqrt(rate / shape) >= [0.0999, 0.2999]).all()


def test_private_factors_explain_what_the_data_has():
    generator = np.random.default_rng(4)
    w = np.array([[1.0, 0.8, -0.5, 0.9, 0.3]])
    x = generator.normal(size=(6000, 1)) @ w + 0.6 * generator.normal(size=(6000, 5))
    model = FactorAnalysis(COLUMNS, 1, (1.0,) * 5, row_norm=4.0)
    plan = privacy.sgd(
        epsilon=2.0, delta=1e-5, steps=25, max_records=6000, sampler="full", insecure_seed=1
    )
    found = VIPS(model, plan, averaging=0.7).run({"x": x}, progress_bar=False)
    expected = w.T @ w + 0.36 * np.eye(5)
    # A fifth of the records is clipped, which makes variances smaller, and 25 rounds are few.
    assert np.abs(covariance(model, found.posterior) - expected).max() < 0.45
    scores = model.scores(found.posterior, x)[:, 0]
    assert abs(np.corrcoef(scores, x @ w[0])[0, 1]) > 0.99


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": 5}, "factors is 5, expected from 1 to 4: fewer than the 5 columns"),
        ({"factors": 0}, "factors is 0, expected from 1 to 4"),
        ({"scales": (1.0,)}, "5 columns and 1 scales"),
        ({"precision": 0.0}, "precision is"),
        ({"ridge": -1.0}, "ridge is -1.0"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"columns": COLUMNS, "factors": 2, "scales": (1.0,) * 5, "row_norm": 1.0}
    with pytest.raises(errors.ModelError, match=message):
        FactorAnalysis(**(arguments | change))
