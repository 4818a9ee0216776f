"""A run whose steps stopped short of the optimum is told from one that noise alone moves."""

import functools

import numpy as np
import pytest

from fedvi.expfam import tree
from fedvi.expfam.gaussian import FullGaussian, GaussianEta
from fedvi.updates.base import Fold
from fedvi.updates.foretold import missed
from fedvi.updates.noise_aware import anew, of_sites

D, NOISE = 6, 4.0
WIDE = FullGaussian(D)
PRIOR = GaussianEta(np.zeros(D), 0.01 * np.eye(D))
STAND = functools.partial(of_sites, gradient_sd=NOISE, curvature_sd=NOISE, rate=1.0, floor=1.0)


def released(seed, bends, folds=12):
    """Returns the standing after gradients that bend ``bends`` times as much as curvatures say."""
    random, H, standing = np.random.default_rng(seed), 200.0 * np.eye(D), None
    for _ in range(folds):
        q = PRIOR if standing is None else standing.handed_out
        at = WIDE.moments(q)[0]
        noise = NOISE * random.normal(size=(D, D))
        seen = H + np.triu(noise) + np.triu(noise, 1).T
        gradient = bends * H @ (1.0 - at) + NOISE * random.normal(size=D)
        site = GaussianEta(gradient + seen @ at, seen)
        fold = Fold(PRIOR, PRIOR, tree.add(PRIOR, site), {"a": site}, {"a": q}, 1.0)
        standing = STAND(WIDE, fold, standing)
    return standing


def test_noise_alone_misses_nothing_in_19_of_20_runs():
    found = [missed(WIDE, STAND, PRIOR, released(seed, 1.0)) for seed in range(40)]
    assert sum(value > 0.0 for value in found) <= 2


def test_steps_that_are_a_tenth_of_the_way_are_seen():
    """Curvature ten times too large: each step is a tenth of the way, and 12 do not arrive."""
    for seed in range(5):
        standing = released(seed, 0.1)
        assert missed(WIDE, STAND, PRIOR, standing) > 0.3
        # Nothing is foretold without means, after a removal, or by a rule that states no noise.
        assert missed(WIDE, STAND, PRIOR, anew(standing, ("a",), 0.0)) == 0.0
        assert missed(WIDE, of_sites, PRIOR, standing) == 0.0


@pytest.mark.parametrize("folds", [1, 2, 3])
def test_before_means_are_formed_nothing_is_foretold(folds):
    assert missed(WIDE, STAND, PRIOR, released(0, 0.1, folds)) == 0.0
