"""Running means: what each answer weighs, and the noise that all of them leave."""

import numpy as np
import pytest

from fedvi.updates.running_means import (
    LEFT_OUT,
    OVER_STEPS,
    squares_with,
    step_of,
    weight_of_newest,
)


@pytest.mark.parametrize(
    ("visit", "averaging", "delay", "step"),
    [
        (0, 1.0, 1.0, 1.0),
        (3, 1.0, 1.0, 0.25),
        (9, 0.0, 1.0, 1.0),
        (3, 0.5, 1.0, 0.5),
        (0, 1.0, 4.0, 0.25),
    ],
)
def test_an_answer_weighs_less_the_more_there_were(visit, averaging, delay, step):
    assert step_of(visit, averaging, delay) == pytest.approx(step)


def test_the_weights_of_a_running_mean_grow_as_their_power():
    for emphasis in (0.0, 2.0, 3.0):
        weights = np.zeros(0)
        for visit in range(400):
            step = step_of(visit, 1.0, 1.0, emphasis)
            weights = np.append((1.0 - step) * weights, step)
        assert weights.sum() == pytest.approx(1.0)
        assert weights[399] / weights[199] == pytest.approx(2.0**emphasis, rel=0.02)
        spent = (1.0 + emphasis) ** 2 / (1.0 + 2.0 * emphasis) / 400
        assert (weights**2).sum() == pytest.approx(spent, rel=0.02)
    assert [step_of(visit, 0.6, 5.0) for visit in (0, 3)] == [5.0**-0.6, 8.0**-0.6]
    assert step_of(7, 0.0, 1.0, 2.0) == 1.0


def test_the_mean_of_steps_leaves_as_much_noise_as_its_weights_say():
    squares = 0.0
    for count in range(1, 401):
        squares = squares_with(weight_of_newest(count), squares)
    assert squares * (400 - LEFT_OUT) == pytest.approx(OVER_STEPS, rel=0.02)
    # The last step that is left out, and the first that is not, are the mean by themselves.
    assert [weight_of_newest(count) for count in (1, LEFT_OUT + 1)] == [1.0, 1.0]
    assert weight_of_newest(LEFT_OUT + 2) == pytest.approx(2.0 / 3.0)
