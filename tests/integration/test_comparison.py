"""The comparison behind two claims: it runs, and ranks the modes as their theory does."""

import math

import pytest

from evidence import comparison

LINE = comparison.PROBLEMS[0]


@pytest.fixture(scope="module")
def cells() -> list[comparison.Cell]:
    modes = tuple(
        mode for mode in comparison.MODES if mode.kind in ("perturbed_update", "site_release")
    )
    return comparison.compare(LINE, modes, (4.0,), seeds=1)


@pytest.mark.nightly
def test_every_mode_is_run_under_every_schedule_at_the_promised_price(
    cells: list[comparison.Cell],
) -> None:
    assert [(cell.mode.kind, cell.epsilon) for cell in cells] == [
        (None, math.inf),
        ("perturbed_update", 4.0),
        ("site_release", 4.0),
    ]
    for cell in cells:
        assert set(cell.outcomes) == set(comparison.SCHEDULES)
        assert all(found.shape == (1, 3) for found in cell.outcomes.values())
    # One record decides on a whole message, so both relations cost the same; a calibrated price is
    # within 1 % of the promise. A gradient that is added moves a sum half as far as a substituted one.
    assert 3.96 < cells[1].add_remove <= 4.0
    assert 1.0 < cells[2].add_remove < 2.0


@pytest.mark.nightly
def test_without_noise_all_schedules_are_at_the_pooled_posterior(
    cells: list[comparison.Cell],
) -> None:
    for schedule in comparison.SCHEDULES:
        _, divergence, error = cells[0].outcomes[schedule][0]
        # Conjugate and one-dimensional: the float64 algebra of 30 visits.
        assert abs(divergence) < 1e-8, schedule
        # A coefficient's error is standard normal: above 5 once in two million seeds.
        assert error < 5.0, schedule


@pytest.mark.nightly
def test_noise_on_each_data_point_costs_less_than_on_the_message(
    cells: list[comparison.Cell],
) -> None:
    _, message, point = cells
    for schedule in comparison.SCHEDULES:
        assert point.outcomes[schedule][0, 1] < 0.01 * message.outcomes[schedule][0, 1], schedule
