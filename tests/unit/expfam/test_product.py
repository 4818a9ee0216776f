"""Products of families: blocks that know nothing of each other, and the tables of a study."""

import jax
import numpy as np
import pytest

from fedvi import errors, expfam
from tests.studies import random_eta


def test_equal_blocks_are_drawn_independently():
    family = expfam.product([expfam.normal_gamma(2)] * 2)
    block = random_eta(expfam.normal_gamma(2), 1)
    draws = np.asarray(family.sample(jax.random.key(0), (block, block), (2000,)))
    # All four coordinates are independent but for x given τ, which leaves them uncorrelated: six
    # correlations of 2,000 draws, each within 5 / √2000; false alarm below 1e-5, and the seed is fixed.
    correlations = np.corrcoef(draws.T) - np.eye(4)
    assert np.abs(correlations).max() < 5.0 / np.sqrt(2000)


def test_blocks_of_a_product_are_projected_one_by_one():
    family = expfam.product([expfam.gamma(2), expfam.full_gaussian(2)])
    eta, floor = random_eta(family, 1), random_eta(family, 2)
    wrong = (eta[0]._replace(rate=-eta[0].rate), eta[1])
    assert not family.is_proper(wrong)
    projected = family.project(wrong, floor)
    assert projected[1] is eta[1]
    assert family.is_proper(projected)


def test_a_product_is_built_from_the_tables_of_a_study():
    tables = [{"kind": "low_rank_gaussian", "size": 5, "rank": 2}, {"kind": "gamma", "size": 1}]
    made = expfam.product(tables)
    assert made == expfam.product([expfam.low_rank_gaussian(5, rank=2), expfam.gamma(1)])
    assert made.size == 6


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"kind": "gama", "size": 2}], "'gama', which is not in"),
        ([{"size": 2}], "kind is None"),
        ([{"kind": "gamma"}], "gamma cannot be made"),
        ([{"kind": "gamma", "size": 0}], "size is 0"),
        ([3], r"parts\[0\] is 3, expected an exponential family"),
    ],
)
def test_a_part_that_is_no_family_is_refused_by_name(parts, message):
    with pytest.raises(errors.FamilyError, match=message) as error:
        expfam.product(parts)
    assert error.value.hint or "size" in message
