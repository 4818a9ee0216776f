"""What a study says of a reference that few records are expected to have, held against widths."""

from typing import Any

import numpy as np
import pytest

from fedvi.planning import advice
from fedvi.planning.widths import widths
from tests.unit.planning.test_widths import planned, raw_plan


def staged(levels: str, shares: list[float], formula: str = "dead ~ stage + age") -> Any:
    raw = raw_plan()
    raw["model"]["formula"], raw["prior"] = formula, {"scale": 1.0}
    raw["data"]["schema"] = {name: raw["data"]["schema"][name] for name in ("dead", "age")}
    stage = {"type": "level", "levels": list(levels), "expected": {"shares": shares}}
    raw["data"]["schema"]["stage"] = stage
    return planned(raw)


def test_the_level_that_is_named_makes_intervals_narrower() -> None:
    rare = staged("abc", [0.02, 0.34, 0.64])
    (said,) = advice.doubts(rare)
    assert said == (
        "data.schema.stage.levels: about 2 % of the records are expected to have the reference 'a', with "
        "which all others are compared, so that all intervals of stage are wide. Put 'c' first, which "
        "about 64 % have"
    )
    assert rare.warnings == (said,)  # so that every command and report has it
    better = staged("cab", [0.64, 0.02, 0.34])
    assert advice.doubts(better) == ()

    def width(assembly: Any) -> float:
        found = [row.sd for row in widths(assembly, 1).rows if row.name.startswith("stage")]
        return float(np.mean(found))

    assert width(better) < 0.9 * width(rare)


@pytest.mark.parametrize(
    ("levels", "shares", "formula"),
    [
        ("ab", [0.02, 0.98], "dead ~ stage + age"),  # one interval, whichever is first
        ("abc", [0.06, 0.04, 0.9], "dead ~ stage + age"),
        ("abc", [0.02, 0.08, 0.9], "dead ~ 0 + stage + age"),  # each level by itself
    ],
)
def test_no_other_reference_would_do_better(levels: str, shares: list[float], formula: str) -> None:
    assert advice.doubts(staged(levels, shares, formula)) == ()
