"""What conjugate models say of memory: no array of statistics, one for each record, is ever formed."""

import dataclasses
import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi.inference.blocks import single_precision
from fedvi.inference.parallel_parts import PARTS, striped
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.regression_statistics import KnownNoise, PolyaGamma
from fedvi.models.sbn import SigmoidBeliefNetwork
from fedvi.models.unknown_noise import UnknownNoise
from fedvi.privacy import mechanisms, sampling
from fedvi.updates.conjugate import Ragged

# The function of the same name hides the module as an attribute of its package.
module = importlib.import_module("fedvi.inference.solvers.vips")

BATCH, SIZE = 4096, 64
NAMES = tuple(f"x{index}" for index in range(SIZE))
ONES = (1.0,) * SIZE

MODELS: dict[str, Any] = {
    "logistic": PolyaGamma(NAMES, ONES, 8.0),
    "centred": PolyaGamma(NAMES, ONES, 8.0, centred=True),
    "paired": PolyaGamma(NAMES, ONES, 8.0, trials=3.0, paired=True),
    "linear": KnownNoise(NAMES, ONES, 8.0),
    "unknown noise": UnknownNoise(NAMES, ONES, row_norm=8.0),
    "mixture": GaussianMixture(NAMES[:32], 8, ONES[:32], row_norm=6.0),
    "factor analysis": FactorAnalysis(NAMES, 31, ONES, row_norm=8.0),
    "principal components": FactorAnalysis(NAMES, 31, ONES, row_norm=8.0, isotropic=True),
    "hidden Markov": HiddenMarkov(8, 2000, 16),
    "network": DiscreteNetwork(("a", "b", "c"), (32, 32, 32), ((), ("a",), ("a", "b"))),
    "topics": LatentDirichlet(32, 2000, distinct=16, iterations=5),
    "beliefs": SigmoidBeliefNetwork(SIZE, 63),
}


def temporaries(model: Any) -> int:
    """Bytes that the program of a visit takes beside its arguments: E step, norms, clipped sums, noise.

    Of topics those of all parts' programs together, which do not noise.
    """
    weights = tuple(module._weights(model, None, None).items())
    whole, mechanism = sampling.full(BATCH), mechanisms.rounded_gaussian(100.0)
    summed = module._compiled(model, whole, mechanism, 1.0, weights, BATCH)
    records = single_precision(model.made_up(BATCH, np.random.default_rng(0)))
    keys = (jax.random.key(0), jax.random.key(1))
    valid = jnp.ones(BATCH, bool)
    messages = model.messages(model.start)
    if isinstance(model, Ragged):
        # As many parts at a time as there may be processors; what they are told of rows is small.
        rows, stands = striped(np.arange(BATCH, dtype=np.int32), np.ones(BATCH, bool), PARTS)[0]
        lowered = summed.of_rows.lower(messages, records, rows, stands, limit=1.0)
        return PARTS * lowered.compile().memory_analysis().temp_size_in_bytes
    lowered = summed.in_memory.lower(keys, messages, records, valid)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def of_statistics(model: Any) -> int:
    """Bytes of the statistics of all records, side by side in float64."""
    return 8 * BATCH * sum(math.prod(block.shape) for block in model.blocks)


@pytest.mark.nightly(but=("unknown noise", "linear"))
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_statistics_of_records_are_never_formed(model):
    assert temporaries(model) < of_statistics(model) / 10


@dataclasses.dataclass(frozen=True)
class Formed(KnownNoise):
    """Forms the statistic of each record before it adds them up."""

    def sums(self, messages, local, records, weights):
        x = records["x"]
        outer = jax.lax.optimization_barrier(x[:, :, None] * x[:, None, :])
        found = super().sums(messages, local, records, weights)
        return found | {"J": jnp.tensordot(weights * local["bend"], outer, axes=1)}


def test_statistics_that_are_formed_would_be_seen():
    model = Formed(NAMES, ONES, 8.0)
    assert temporaries(model) > 0.9 * 8 * BATCH * SIZE**2
