"""What the owner of a file is told depends on its records alone, and says no number of them."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

from fedvi.data.formula import parse_formula
from fedvi.data.load import prepared
from fedvi.data.schema import parse_schema

RAW: dict[str, Any] = {
    "days": {"type": "number", "bounds": [1, 100]},
    "dead": {"type": "binary"},
    "dose": {"type": "number", "bounds": [0, 10]},
    "visits": {"type": "count", "bounds": [0, 5]},
    "stage": {"type": "level", "levels": ["I", "II", "III"]},
}
SCHEMA = parse_schema(RAW, private=True)
SURVIVAL = parse_formula("Surv(days, dead) ~ dose + visits + stage", SCHEMA)
LINEAR = parse_formula("dose ~ days + visits + stage", SCHEMA)


def table(random: np.random.Generator, count: int, **wrong: Any) -> dict[str, list[Any]]:
    drawn: dict[str, Any] = {
        "days": random.integers(1, 101, count),
        "dead": random.integers(0, 2, count),
        "dose": random.uniform(0, 10, count).round(3),
        "visits": random.integers(0, 6, count),
        "stage": random.choice(["I", "II", "III"], count),
    }
    for name, change in wrong.items():
        drawn[name] = change(drawn[name])
    return {name: [str(cell) for cell in cells] for name, cells in drawn.items()}


def told(
    cells: dict[str, list[Any]], cuts: list[int], design: Any, noise: tuple[float, ...]
) -> Any:
    said: list[str] = []
    ends = [0, *sorted(cuts), len(cells["days"])]
    parts = [
        {name: column[low:high] for name, column in cells.items()}
        for low, high in itertools.pairwise(ends)
    ]
    chunks = prepared(
        parts,
        SCHEMA,
        design.columns,
        design,
        private=True,
        where="north",
        tell=said.append,
        noise=noise,
    )
    assert sum(chunk.size for chunk in chunks) == len(cells["days"])
    return said


def at_rows(count: int, value: float) -> Any:
    return lambda cells: np.concatenate([np.full(count, value), np.asarray(cells[count:], float)])


@pytest.mark.parametrize(
    ("design", "wrong", "parts"),
    [
        (SURVIVAL, {}, ()),
        # Of 200 records, 1 % are 2. Times after the end are censored; half of them are too many.
        (SURVIVAL, {"visits": at_rows(1, -1)}, ()),
        (SURVIVAL, {"visits": at_rows(2, -1)}, ("at least one number in a hundred in `visits`",)),
        (SURVIVAL, {"visits": at_rows(101, 9)}, ("more than half of the numbers in `visits`",)),
        (SURVIVAL, {"days": at_rows(99, 200)}, ()),
        (SURVIVAL, {"days": at_rows(101, 200)}, ("as the bound and censored there",)),
        (SURVIVAL, {"days": at_rows(2, 0)}, ("at least one number in a hundred in `days`",)),
        (SURVIVAL, {"dead": lambda cells: cells * 0}, ("no record that counts has the event",)),
        (SURVIVAL, {"dead": lambda cells: cells * 0 + 1}, ()),
        (SURVIVAL, {"dose": lambda cells: cells / 1000}, ("all numbers in `dose`",)),
        (SURVIVAL, {"dose": lambda cells: cells * 0 + 3}, ()),  # a site's own: nothing is wrong
        (SURVIVAL, {"stage": lambda cells: np.where(cells == "II", "I", cells)}, ("'II' in",)),
        (LINEAR, {"dose": lambda cells: cells * 0 + 3}, ("all records that count have the same",)),
        (LINEAR, {"dose": lambda cells: cells / 10}, ("half of model.noise_scale",)),
    ],
)
def test_what_is_told_does_not_depend_on_how_a_file_is_divided(
    design: Any, wrong: dict[str, Any], parts: tuple[str, ...]
) -> None:
    random = np.random.default_rng(4)
    cells = table(random, 200, **wrong)
    whole = told(cells, [], design, (0.5,) if design is LINEAR else ())
    assert len(whole) == len(parts)
    for part in parts:
        assert any(part in line for line in whole), whole
    for line in whole:
        # Bounds are the study's own.
        assert not re.search(r"\d", re.sub(r"\[.*?\]", "", line)), line
    for _ in range(5):
        cuts = random.integers(0, 201, 3).tolist()
        assert told(cells, cuts, design, (0.5,) if design is LINEAR else ()) == whole


def test_few_records_may_well_be_alike() -> None:
    random = np.random.default_rng(4)
    alike = {
        "dose": lambda cells: cells * 0 + 3,
        "days": lambda cells: np.arange(len(cells)) / 10 + 1,
    }
    for count, some in ((9, False), (10, True)):
        said = told(table(random, count, **alike), [], LINEAR, ())
        assert any("have the same" in line for line in said) == some
        assert any("all numbers in `days`" in line for line in said) == some
