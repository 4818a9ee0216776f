"""What a conjugate model says of the signs and totals of its statistics holds for every record."""

import jax
import numpy as np
import pytest

from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.outcomes.bernoulli import Bernoulli
from fedvi.models.outcomes.binomial import Binomial
from fedvi.models.outcomes.counts import NegativeBinomial, Poisson
from fedvi.models.outcomes.normal import Normal
from fedvi.models.regression_statistics import KnownNoise, PolyaGamma
from fedvi.models.sbn import SigmoidBeliefNetwork
from fedvi.models.unknown_noise import UnknownNoise
from fedvi.updates.conjugate import Block

COLUMNS = ("a", "b", "c")
ROWS = 40
MODELS = {
    "mixture": GaussianMixture(COLUMNS, 2, (1.0, 1.5, 0.7), row_norm=1.7),
    "unknown noise": UnknownNoise(COLUMNS, (2.0, 1.0, 3.0), row_norm=1.7, outcome_scale=2.0),
    "factor analysis": FactorAnalysis(COLUMNS, 1, (1.0, 1.5, 0.7), row_norm=1.7),
    "principal components": FactorAnalysis(
        COLUMNS, 1, (1.0, 1.5, 0.7), row_norm=1.7, isotropic=True
    ),
    "hidden Markov": HiddenMarkov(3, 4, 5),
    "network": DiscreteNetwork(("rain", "wet"), (2, 3), ((), ("rain",))),
    "topics": LatentDirichlet(2, 9, 20.0, distinct=4),
    "belief network": SigmoidBeliefNetwork(3, 2),
    "linear": KnownNoise(COLUMNS, (1.0, 1.0, 1.0), row_norm=1.7),
    "logistic": PolyaGamma(COLUMNS, (1.0, 1.0, 1.0), row_norm=1.7),
}


def is_negative(block: Block, array: np.ndarray) -> bool:
    # Latents are of order 1, and float32 leaves a few 1e-7 of them.
    least = -1e-5 * max(1.0, float(np.abs(array).max()))
    values = np.linalg.eigvalsh(array) if block.symmetric else array
    return bool(values.min() < least)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_record_adds_has_the_signs_that_its_blocks_have(name):
    model = MODELS[name]
    made = model.made_up(ROWS, np.random.default_rng(0))
    records = {
        name: jax.numpy.asarray(column, "float32" if column.dtype.kind == "f" else "int32")
        for name, column in made.items()
    }
    messages = model.messages(model.start)
    local = jax.jit(model.expected)(messages, records)
    with jax.enable_x64(True):
        wide = (
            jax.tree.map(lambda a: a.astype("float64") if a.dtype.kind == "f" else a, part)
            for part in (messages, local, records)
        )
        wide = tuple(wide)
        each = [model.sums(*wide, jax.numpy.asarray(row)) for row in np.eye(ROWS)]
    assert any(block.positive for block in model.blocks)
    for block in model.blocks:
        arrays = [np.asarray(found[block.name]) for found in each]
        if block.positive:
            assert not any(is_negative(block, array) for array in arrays)
            if block.total is not None:
                assert max(array.sum() for array in arrays) <= block.total * (1.0 + 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("response", "y"),
    [
        (Bernoulli(), np.array([0.0, 1.0])),
        (Normal(0.5), np.array([-1e6, 0.0, 1e6])),
        (Poisson(), np.array([0.0, 1.0, 1e6])),
        (NegativeBinomial(0.3), np.array([0.0, 1.0, 1e6])),
        (Binomial(), np.array([[0.0, 3.0], [1e6, 0.0], [5.0, 5.0]])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_likelihood_that_says_it_is_concave_never_bends_up(response, y, dtype):
    assert response.concave is True
    with jax.enable_x64(dtype == "float64"):
        places = np.concatenate([np.linspace(-50.0, 50.0, 2001), [-1e4, 1e4, -1e30, 1e30]])
        for one in y:
            a = jax.numpy.asarray(places, dtype)
            outcome = jax.numpy.broadcast_to(
                jax.numpy.asarray(one, dtype), (len(places), *np.shape(one))
            )
            bend = np.asarray(response.derivatives(a, outcome)[2])
            assert (bend[np.isfinite(bend)] <= 0.0).all()
