"""The law of noise: what is cut off far out, where a distribution function hardly moves, is found."""

import numpy as np
import pytest

from fedvi.audit import noise

COUNT = 8000


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=COUNT)


@pytest.mark.parametrize("cut", [2.0, 2.5, 3.0])
def test_noise_that_is_cut_off_is_found(cut: float):
    assert noise._shape(np.clip(drawn(0), -cut, cut)).passed is False


def test_noise_with_a_few_far_numbers_too_many_is_found():
    found = drawn(0)
    found[:12] = 5.0
    assert noise._shape(found).passed is False


def test_tails_of_gaussian_noise_fail_no_more_often_than_they_say():
    chances = np.array([noise._tails(np.abs(drawn(seed))) for seed in range(400)])
    # Four sds above what is expected at most.
    for level in (0.01, 0.1):
        assert (chances < level).sum() <= 400 * level + 4.0 * np.sqrt(400 * level)


def test_a_number_that_is_none_is_found():
    assert noise._shape(np.array([0.0, np.nan])).passed is False
