"""Claims about the likelihood of held-out records under conjugate models: sums done another way."""

import itertools

import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.expfam.gaussian import GaussianEta
from fedvi.results import draws
from fedvi.results.held_out import measure
from tests.unit.results.test_generative import (
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
    found = model.parameters(theta)
    rows = [
        log_density({name: each.values[index] for name, each in found.items()})
        for index in range(DRAWS)
    ]
    return np.log(np.exp(rows).mean(axis=0)).mean()


@pytest.mark.nightly
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


def test_a_line_has_the_law_that_draws_of_its_coefficients_and_its_noise_have():
    x, y = np.array([[1.0, 0.5], [1.0, -2.0]]), np.array([0.1, 1.0])
    generator = np.random.default_rng(0)
    m, scale = np.array([0.5, -1.0]), np.array([[4.0, 1.0], [1.0, 2.0]])
    posterior = LINE.family.from_parameters(
        m[None, None], scale[None], np.array([3.0]), np.array([2.0])
    )
    found = measure(LINE, posterior, source(x=x, y=y))
    assert found.draws == 0
    # q by hand: τ ~ Gamma(3, rate 2), w = m + L⁻ᵀ·noise / √τ.
    tau = generator.gamma(3.0, 0.5, 400_000)
    root = np.linalg.inv(np.linalg.cholesky(scale)).T
    w = m + generator.standard_normal((400_000, 2)) @ root.T / np.sqrt(tau)[:, None]
    density = scipy.stats.norm.pdf(y, w @ x.T, tau[:, None] ** -0.5)
    # 400,000 draws of densities below 2 leave a relative error of 0.002.
    assert found.value == pytest.approx(np.log(density.mean(axis=0)).mean(), abs=0.01)
    # And Student's t, from the covariance of (y, w) as it is told in textbooks.
    spread = np.array([each @ np.linalg.inv(scale) @ each for each in x])
    told = scipy.stats.t(6.0, x @ m, np.sqrt(2.0 / 3.0 * (1.0 + spread))).logpdf(y)
    assert found.value == pytest.approx(told.mean(), rel=1e-12)


def at_a_point(weights, visible, hidden):
    """A belief network's q that is all but a point."""
    sharp = 1e10
    rows = np.column_stack([weights, visible]).reshape(-1)
    return (
        GaussianEta(sharp * rows, np.full(len(rows), sharp)),
        GaussianEta(sharp * hidden, np.full(len(hidden), sharp)),
    )


@pytest.mark.nightly
def test_a_belief_network_reads_units_off_and_bounds_its_likelihood_from_below():
    generator = np.random.default_rng(2)
    weights, visible = 2.0 * generator.standard_normal((3, 2)), np.array([0.5, -1.0, 0.2])
    hidden = np.array([-0.3, 0.8])
    y = np.array(list(itertools.product([0, 1], repeat=3)))
    found = measure(BELIEFS, at_a_point(weights, visible, hidden), source(y=y), 4000)
    assert found.measure == "share of units reconstructed correctly"
    # Exact: the sum over all states of the hidden units.
    total = np.zeros(len(y))
    for z in itertools.product([0, 1], repeat=2):
        chance = scipy.special.expit(weights @ z + visible)
        prior = scipy.stats.bernoulli(scipy.special.expit(hidden)).pmf(z).prod()
        total += prior * np.where(y == 1, chance, 1.0 - chance).prod(axis=1)
    assert total.sum() == pytest.approx(1.0)
    beside = dict(found.beside)
    least = beside["mean log-likelihood, at least"]
    # 4,000 draws leave an error of the log of a hundredth, and a bias of its square.
    assert least == pytest.approx(np.log(total).mean(), abs=0.02)
    often = source(y=np.tile(y, (2000, 1)))
    few = dict(measure(BELIEFS, at_a_point(weights, visible, hidden), often, 1).beside)
    assert few["mean log-likelihood, at least"] < np.log(total).mean() - 0.01
    # Of all records each unit is on in half: a constant is right half of the time.
    assert beside["the same for the best constant prediction"] == 0.5
    chance = BELIEFS.reconstructed(at_a_point(weights, visible, hidden), y)
    assert found.value == pytest.approx(((chance > 0.5) == y).mean())
    assert found.value > 0.5


@pytest.mark.nightly
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
    class Other(type(MIXTURE)):
        """A model that says nothing of a record's likelihood."""

        log_density = None

    other = Other(("a", "b"), 2, (1.0, 1.0), row_norm=2.0)
    with pytest.raises(errors.ConfigError, match=r"Other has no likelihood of a record"):
        measure(other, other.start, source(x=np.zeros((2, 2))))
    nothing = ArraySource({"x": np.zeros((2, 2))}, np.zeros(2, bool))
    with pytest.raises(errors.DataError, match=r"no record that counts"):
        measure(MIXTURE, MIXTURE.start, nothing)
