"""Claims about the likelihood of held-out records under conjugate models: sums done another way."""

import itertools

import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.experiment import draws, generative
from fedvi.experiment.held_out import measure
from tests.unit.experiment.test_generative import (
    BELIEFS,
    CHAIN,
    FACTORS,
    LINE,
    MIXTURE,
    NETWORK,
    TOPICS,
)

DRAWS = 20


def source(**records):
    count = len(next(iter(records.values())))
    return ArraySource(records, np.ones(count, bool))


def averaged(model, log_density):
    """The mean over records of the log of the mean over the same draws."""
    theta = draws.thetas(model.family, model.start, DRAWS, 0)
    found = generative.kind_of(model).parameters(model, theta)
    rows = [
        log_density({name: each.values[index] for name, each in found.items()})
        for index in range(DRAWS)
    ]
    return np.log(np.exp(rows).mean(axis=0)).mean()


def test_a_mixtures_density_is_that_of_its_components():
    x = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])

    def density(at):
        parts = [
            weight * scipy.stats.multivariate_normal(mean, np.linalg.inv(precision)).pdf(x)
            for weight, mean, precision in zip(
                at["weights"], at["means"], at["precisions"], strict=True
            )
        ]
        return np.log(np.sum(parts, axis=0))

    found = measure(MIXTURE, MIXTURE.start, source(x=x), DRAWS)
    assert found.value == pytest.approx(averaged(MIXTURE, density), rel=1e-9)
    assert (found.rows, found.measure, found.draws) == (3, "mean log-likelihood", DRAWS)


def test_factor_analysis_is_one_gaussian_at_each_draw():
    x = np.array([[0.0, 1.0, 0.3], [2.0, -1.0, 0.0]])

    def density(at):
        covariance = at["loadings"] @ at["loadings"].T + np.diag(1.0 / at["precisions"])
        return scipy.stats.multivariate_normal(at["centres"], covariance).logpdf(x)

    found = measure(FACTORS, FACTORS.start, source(x=x), DRAWS)
    assert found.value == pytest.approx(averaged(FACTORS, density), rel=1e-9)


def test_a_line_has_its_noise():
    x, y = np.array([[1.0, 0.5], [1.0, -2.0]]), np.array([0.1, 1.0])

    def density(at):
        sd = at["noise_precision"] ** -0.5
        return scipy.stats.norm(x @ at["coefficients"], sd).logpdf(y)

    found = measure(LINE, LINE.start, source(x=x, y=y), DRAWS)
    assert found.value == pytest.approx(averaged(LINE, density), rel=1e-9)


def test_a_chains_probability_is_a_sum_over_all_paths():
    symbols = np.array([[0, 2, 1, -1], [1, -1, 1, 2], [2, 2, 2, 2]])
    lengths = np.array([3, 4, 1])

    def density(at):
        logs = []
        for row, length in zip(symbols, lengths, strict=True):
            total = 0.0
            for path in itertools.product(range(2), repeat=int(length)):
                chance = at["start"][path[0]]
                for step, state in enumerate(path):
                    if step:
                        chance *= at["move"][path[step - 1], state]
                    if row[step] >= 0:
                        chance *= at["emit"][state, row[step]]
                total += chance
            logs.append(np.log(total))
        return np.array(logs)

    found = measure(CHAIN, CHAIN.start, source(symbols=symbols, length=lengths), DRAWS)
    assert found.value == pytest.approx(averaged(CHAIN, density), rel=1e-9)


def test_a_network_is_the_product_of_its_mean_tables_and_skips_what_is_missing():
    levels = np.array([[2, 1, 0], [0, 1, 1], [1, -1, 0]])
    wet, rain, cold = (NETWORK.tables(NETWORK.start)[name] for name in NETWORK.variables)
    whole = [
        cold[0, level[2]] * rain[level[2], level[1]] * wet[2 * level[1] + level[2], level[0]]
        for level in levels[:2]
    ]
    # Without rain, wet has no row of its table either.
    expected = np.mean(np.log([*whole, cold[0, 0]]))
    found = measure(NETWORK, NETWORK.start, source(levels=levels))
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.draws == 0


def test_documents_have_a_perplexity_below_that_of_any_word():
    records = {
        "words": np.tile(np.arange(5, dtype=np.int32), (9, 1)),
        "counts": np.full((9, 5), 3.0, np.float32),
    }
    found = measure(TOPICS, TOPICS.start, source(**records))
    assert found.measure == "completion perplexity"
    # All words alike: guessing has a perplexity of 5, and topics at random are a little worse.
    assert 5.0 <= found.value < 5.6


def test_what_has_no_likelihood_and_no_record_is_refused():
    with pytest.raises(errors.ConfigError, match=r"has no likelihood of a record"):
        measure(BELIEFS, BELIEFS.start, source(y=np.zeros((2, 3))))
    nothing = ArraySource({"x": np.zeros((2, 2))}, np.zeros(2, bool))
    with pytest.raises(errors.DataError, match=r"no record that counts"):
        measure(MIXTURE, MIXTURE.start, nothing)
