"""Claims about conjugate models run forwards: each draw is of the law that its parameters say."""

import itertools

import numpy as np
import pytest
import scipy.special

from fedvi import models
from fedvi.models.capabilities import Generates, Named, Parameter, Tabular, at_draw
from fedvi.results import draws

COUNT = 20_000
# Of COUNT draws: 4.9 standard errors of a proportion, false alarms below 1e-6 each.
WITHIN = 4.9 * 0.5 / np.sqrt(COUNT)

MIXTURE = models.gaussian_mixture(("a", "b"), 2, (1.0, 1.0), row_norm=2.0)
NETWORK = models.discrete_network(
    ("wet", "rain", "cold"), (3, 2, 2), (("rain", "cold"), ("cold",), ())
)
CHAIN = models.hidden_markov(states=2, symbols=3, length=4, typical_length=3.0)
FACTORS = models.factor_analysis(("a", "b", "c"), 1, (1.0, 1.0, 1.0), row_norm=1.7)
ROUND = models.factor_analysis(("a", "b", "c"), 1, (1.0,) * 3, row_norm=1.7, isotropic=True)
TOPICS = models.latent_dirichlet(topics=2, vocabulary=5, length=6.0, distinct=5)
BELIEFS = models.sigmoid_belief_network(visible=3, hidden=2)
LINE = models.linear_unknown_noise(("one", "age"), (1.0, 1.0), row_norm=1.4)
ALL = {
    "mixture": MIXTURE,
    "network": NETWORK,
    "chain": CHAIN,
    "factors": FACTORS,
    "round": ROUND,
    "topics": TOPICS,
    "beliefs": BELIEFS,
    "line": LINE,
}


def parameters(model, seed=3, count=1):
    theta = draws.thetas(model.family, model.start, count, seed)
    return theta, model.parameters(theta)


def made(model, seed=3):
    """The parameters of one draw, and many records at it."""
    at = at_draw(parameters(model, seed)[1], 0)
    return at, model.draw(at, COUNT, np.random.default_rng(seed))


def test_every_built_in_conjugate_model_is_known():
    kinds = {getattr(models, name) for name in models.CONJUGATE}
    assert {type(model) for model in ALL.values()} == kinds
    assert all(isinstance(model, Named) for model in ALL.values())


@pytest.mark.nightly(but=("topics", "beliefs"))
@pytest.mark.parametrize("name", ALL)
def test_parameters_are_draws_cut_up_with_a_label_for_each_number(name):
    model = ALL[name]
    theta, found = parameters(model, count=2000)
    flat = draws.flat(found)
    assert all(column.shape == (2000,) for column in flat.values())
    for values, axes in found.values():
        assert values.shape[1:] == tuple(len(labels) for _, labels in axes)
    # The means of the draws are those of the family, number by number, whatever their names.
    mean, sd = map(np.asarray, model.family.moments(model.start))
    seen = np.unique(np.round([column.mean() for column in flat.values()], 12))
    expected = np.unique(np.round(theta.mean(axis=0), 12))
    assert set(expected) <= set(seen)
    finite = np.isfinite(sd)
    # Heavy tails: an sd of 2,000 draws may itself be off by a third.
    off = np.abs(theta.mean(axis=0) - mean)[finite] / (sd[finite] / np.sqrt(2000))
    assert off.max() < 7.0


def test_names_of_a_mixtures_numbers_say_which_they_are():
    flat = draws.flat(
        {
            "means": Parameter(
                np.arange(4.0).reshape(1, 2, 2), (("component", ("1", "2")), ("column", ("a", "b")))
            )
        }
    )
    assert {name: float(value[0]) for name, value in flat.items()} == {
        "means[1,a]": 0.0,
        "means[1,b]": 1.0,
        "means[2,a]": 2.0,
        "means[2,b]": 3.0,
    }


@pytest.mark.nightly(but=("round", "beliefs"))
@pytest.mark.parametrize("name", [name for name in ALL if name != "line"])
def test_records_are_such_as_the_model_knows(name):
    model = ALL[name]
    _, records = made(model)
    assert {key: array.shape[1:] for key, array in records.items()} == dict(model.layout)
    assert model.sound(records).all()


def test_a_line_draws_its_outcome_for_what_it_is_given():
    at = {"coefficients": np.array([1.0, -2.0]), "noise_precision": np.array(4.0)}
    x = np.column_stack([np.ones(COUNT), np.arange(COUNT) % 2])
    assert not isinstance(LINE, Generates)
    y = LINE.draw_outcomes(at, {"x": x}, np.random.default_rng(0))["y"]
    for column, mean in ((0, 1.0), (1, -1.0)):
        mine = y[x[:, 1] == column]
        # Five standard errors of an sd of ½, and of its square.
        assert mine.mean() == pytest.approx(mean, abs=5.0 * 0.5 / np.sqrt(len(mine)))
        assert mine.var() == pytest.approx(0.25, rel=5.0 * np.sqrt(2.0 / len(mine)))


def test_a_mixtures_records_have_the_mean_and_covariance_of_each_component():
    covariances = np.array([[[1.0, 1.8], [1.8, 4.0]], [[9.0, -2.0], [-2.0, 1.0]]])
    at = {
        "weights": np.array([0.3, 0.7]),
        "means": np.array([[0.0, 1.0], [100.0, -1.0]]),
        "precisions": np.linalg.inv(covariances),
    }
    generator = np.random.default_rng(0)
    x = MIXTURE.draw(at, COUNT, generator)["x"]
    component = (x[:, 0] > 50.0).astype(int)
    for k in range(2):
        mine = x[component == k]
        assert len(mine) / COUNT == pytest.approx(at["weights"][k], abs=WITHIN)
        sd = np.sqrt(np.diag(covariances[k]))
        off = np.abs(mine.mean(axis=0) - at["means"][k])
        assert (off < 5.0 * sd / np.sqrt(len(mine))).all()
        error = 5.0 * np.sqrt(2.0 / len(mine)) * np.outer(sd, sd)
        assert (np.abs(np.cov(mine.T) - covariances[k]) < error).all()


@pytest.mark.nightly
def test_a_networks_records_have_its_joint_law():
    at, records = made(NETWORK)
    levels = records["levels"]
    for wet, rain, cold in itertools.product(range(3), range(2), range(2)):
        chance = at["cold"][0, cold] * at["rain"][cold, rain] * at["wet"][2 * rain + cold, wet]
        found = (levels == (wet, rain, cold)).all(axis=1).mean()
        assert found == pytest.approx(chance, abs=WITHIN)


def test_a_chains_symbols_have_its_joint_law():
    at, records = made(CHAIN)
    symbols = records["symbols"]
    assert (records["length"] == 3).all()
    assert (symbols[:, 3] == -1).all()
    for triple in itertools.product(range(3), repeat=3):
        forward = at["start"] * at["emit"][:, triple[0]]
        for symbol in triple[1:]:
            forward = (forward @ at["move"]) * at["emit"][:, symbol]
        found = (symbols[:, :3] == triple).all(axis=1).mean()
        assert found == pytest.approx(forward.sum(), abs=WITHIN)


@pytest.mark.nightly(but=("model1",))
@pytest.mark.parametrize("model", [FACTORS, ROUND])
def test_factor_analysis_has_its_covariance(model):
    at, records = made(model)
    covariance = at["loadings"] @ at["loadings"].T + np.diag(1.0 / at["precisions"])
    sd = np.sqrt(np.diag(covariance))
    error = 5.0 * np.sqrt(2.0 / COUNT) * np.outer(sd, sd)
    assert (np.abs(np.cov(records["x"].T) - covariance) < error).all()
    assert (np.abs(records["x"].mean(axis=0) - at["centres"]) < 5.0 * sd / np.sqrt(COUNT)).all()


def test_documents_have_the_words_of_their_topics():
    at, records = made(TOPICS)
    totals = np.zeros(5)
    np.add.at(totals, records["words"].ravel(), records["counts"].ravel())
    assert (records["counts"].sum(axis=1) == 6.0).all()
    # A document has few words, and rather of one topic: less sure than single words by its size at most.
    words = at["topics"]
    np.testing.assert_allclose(totals / totals.sum(), words.mean(axis=0), atol=WITHIN)
    # Pairs of words in a document agree as often as shares of topics, Dirichlet(α, α), say.
    alpha = TOPICS.alpha
    second = np.full((2, 2), alpha**2) + alpha * np.eye(2)
    second /= 2.0 * alpha * (2.0 * alpha + 1.0)
    alike = np.einsum("kl,kv,lv->", second, words, words)
    counts = records["counts"]
    found = (counts * (counts - 1.0)).sum(axis=1).mean() / (6.0 * 5.0)
    assert found == pytest.approx(alike, abs=WITHIN)


def test_a_belief_networks_units_have_its_joint_law():
    at, records = made(BELIEFS)
    lit = scipy.special.expit(at["hidden_biases"])
    for visible in itertools.product((0, 1), repeat=3):
        chance = 0.0
        for hidden in itertools.product((0, 1), repeat=2):
            on = scipy.special.expit(at["weights"] @ hidden + at["visible_biases"])
            chance += np.prod(np.where(hidden, lit, 1 - lit)) * np.prod(
                np.where(visible, on, 1 - on)
            )
        found = (records["y"] == visible).all(axis=1).mean()
        assert found == pytest.approx(chance, abs=WITHIN)


def test_a_regression_makes_no_records_by_itself():
    assert not isinstance(LINE, Generates | Tabular)
