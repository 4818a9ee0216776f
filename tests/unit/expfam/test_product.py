"""Products of families: blocks that know nothing of each other."""

import jax
import numpy as np
import pytest

from fedvi import errors, expfam
from tests.studies import random_eta


def test_equal_blocks_are_drawn_independently():
    part = expfam.normal_gamma_rows(1, 1, 1)
    family, block = expfam.product([part, part]), random_eta(part, 1)
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


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "parts is empty"),
        ([3], r"parts\[0\] is 3, expected an exponential family"),
    ],
)
def test_a_part_that_is_no_family_is_refused_by_name(parts, message):
    with pytest.raises(errors.FamilyError, match=message) as error:
        expfam.product(parts)
    assert error.value.hint or not parts
