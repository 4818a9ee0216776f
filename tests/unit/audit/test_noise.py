"""The law of noise: what is cut off far out, where a distribution function hardly moves, is found."""

import numpy as np
import pytest

from fedvi.audit import noise
from fedvi.audit.recording import Call, Layout

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


@pytest.mark.nightly
def test_tails_of_gaussian_noise_fail_no_more_often_than_they_say():
    chances = np.array([noise._tails(np.abs(drawn(seed))) for seed in range(400)])
    # Four sds above what is expected at most.
    for level in (0.01, 0.1):
        assert (chances < level).sum() <= 400 * level + 4.0 * np.sqrt(400 * level)


def test_a_number_that_is_none_is_found():
    assert noise._shape(np.array([0.0, np.nan])).passed is False


def test_an_array_of_one_number_shares_no_noise_by_chance():
    # Of two releases there are two products: is far from normal.
    failed = sum(
        noise._leaves(calls(seed, 2, (2, 1)), [1.0] * 2).numbers["p_value"] < 1e-4
        for seed in range(2000)
    )
    assert failed <= 2


def test_arrays_of_one_number_that_share_their_noise_are_found():
    drawn = [call._replace(output=call.output[[0, 0]]) for call in calls(0, 64, (1, 1))]
    assert noise._leaves(drawn, [1.0] * 64).passed is False


@pytest.mark.parametrize("numbers", [2, 3])
def test_many_short_releases_are_parallel_by_chance_and_that_is_no_finding(numbers: int):
    shown = [call.residual for call in calls(0, COUNT // numbers, (numbers,))]
    assert noise._reuse(shown).passed is True


def test_noise_of_four_numbers_that_comes_again_once_is_found():
    shown = [call.residual for call in calls(0, COUNT // 4, (4,))]
    assert noise._reuse(shown).passed is True
    shown[1700] = shown[3]
    assert noise._reuse(shown).passed is False


def calls(seed: int, count: int, sizes: tuple[int, ...]) -> list[Call]:
    """Releases of nothing but noise, on the grid that ships: 4,096 steps a std."""
    steps = 4096
    leaves = tuple((f"[{at}]", (size,), "int32") for at, size in enumerate(sizes))
    layout = Layout(leaves, 1.0, 1.0 / steps, steps**2, 1.0)
    draws = np.random.default_rng(seed).normal(scale=steps, size=(count, sum(sizes)))
    zeros = np.zeros(sum(sizes), np.int64)
    return [Call(layout, b"", zeros, np.rint(draw).astype(np.int64)) for draw in draws]
