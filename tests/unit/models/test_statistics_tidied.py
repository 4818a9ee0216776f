"""What conjugate models make of noisy totals: done again, it changes nothing.

A ridge is no such map, since it lifts each time; nor are precisions that are learnt anew, or counts below
their noise, of which a part is believed each time. They are left out here.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedvi.expfam import tree
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.regression_statistics import KnownNoise, PolyaGamma
from fedvi.models.sbn import SigmoidBeliefNetwork
from fedvi.models.unknown_noise import UnknownNoise

NAMES = tuple("abcde")
ONES = (1.0,) * 5


class Case(NamedTuple):
    """A model, and the blocks that are to have no noise of their own."""

    model: Any
    sure: tuple[str, ...] = ()


CASES = {
    "logistic": Case(PolyaGamma(NAMES, ONES, 2.0, ridge=0.0)),
    "paired": Case(PolyaGamma(NAMES, ONES, 2.0, paired=True, ridge=0.0)),
    "linear": Case(KnownNoise(NAMES, ONES, 2.0, ridge=0.0)),
    "unknown noise": Case(UnknownNoise(NAMES, ONES, row_norm=2.0, ridge=0.0)),
    # Where a count is above its noise, or not above 0.
    "mixture": Case(GaussianMixture(NAMES, 3, ONES, row_norm=2.0, ridge=0.0), ("count",)),
    "factor analysis": Case(FactorAnalysis(NAMES, 2, ONES, row_norm=2.0, ridge=0.0)),
    "principal components": Case(
        FactorAnalysis(NAMES, 2, ONES, row_norm=2.0, ridge=0.0, isotropic=True)
    ),
    "hidden Markov": Case(HiddenMarkov(3, 4, 5)),
    "network": Case(DiscreteNetwork(("a", "b"), (2, 3), ((), ("a",)))),
    "topics, simplex": Case(LatentDirichlet(3, 20)),
    "topics, public mass": Case(LatentDirichlet(3, 20, mass=40.0)),
    "topics, relu": Case(LatentDirichlet(3, 20, tidy="relu")),
    "topics, threshold": Case(LatentDirichlet(3, 20, tidy="threshold")),
    "beliefs": Case(SigmoidBeliefNetwork(4, 3)),
}


@pytest.mark.parametrize("spread", [1.0, 30.0, 1e3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_was_processed_is_left_as_it_is(case, spread):
    model, changed = case.model, 0
    generator = np.random.default_rng(5)
    for _ in range(10):
        told, sums = {}, {}
        for block in model.blocks:
            told[block.name] = 0.0 if block.name in case.sure else spread
            noise = spread * generator.normal(size=block.shape)
            if block.symmetric:
                noise = (noise + noise.swapaxes(-1, -2)) / math.sqrt(2.0)
            sums[block.name] = 1.0 + noise
        total = model.factor(sums, model.start)
        once = model.posterior(total, told)
        processed = tree.subtract(once, model.prior)
        again = model.posterior(processed, told)
        changed += not _alike(processed, total)
        assert _alike(again, once)
    # Most of these totals are none that sums without noise can be.
    assert changed > 5


def _alike(left: Any, right: Any) -> bool:
    """Says whether all numbers are the same to 1e-7 of the largest of their array."""
    pairs = zip(tree.leaves(left), tree.leaves(right), strict=True)
    return all(np.abs(one - two).max() <= 1e-7 * np.abs(two).max() for one, two in pairs)
