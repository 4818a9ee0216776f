"""Numbers that are hardly meant are warned of by name before anything runs."""

from typing import Any

import pytest

from fedvi.planning import advice
from tests.unit.planning.test_widths import planned, raw_plan


@pytest.mark.parametrize(
    ("section", "change", "key"),
    [
        ("data", {"max_records": 3}, "data.max_records is 3"),
        ("privacy", {"delta": 0.01}, "privacy.delta is 0.01"),
        ("schedule", {"rounds": 100_000}, "schedule.rounds is 100,000"),
        ("solver", {"clip_norm": 1e9}, "solver.clip_norm is 1e+09"),
    ],
)
def test_it_is_named(section: str, change: dict[str, Any], key: str) -> None:
    raw = raw_plan()
    raw[section] = raw[section] | change
    assert any(key in line for line in advice.doubts(planned(raw)))


def test_a_usual_study_is_not_warned_of() -> None:
    assert advice.doubts(planned(raw_plan())) == ()
