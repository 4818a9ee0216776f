"""Whatever unit a file counts in: with the same noise, the result is the same."""

from pathlib import Path

import numpy as np
import pytest

from evidence import zoo

# Powers of ten: how many of the unit that a column is drawn in make one of the file's.
LEAST, MOST = -3, 6
DRAWS = 4


def units(kind: str) -> list[dict[str, float]]:
    """Returns units of a kind's numbers: powers of ten, and one in which no bound is a short number."""
    numbers = [name for name, told in zoo.KINDS[kind].columns.items() if not isinstance(told, str)]
    names, random = [*zoo.NUMBERS, *numbers], np.random.default_rng(len(kind))
    powers = [[LEAST] * len(names), [MOST] * len(names)]
    powers += [random.integers(LEAST, MOST + 1, len(names)).tolist() for _ in range(DRAWS)]
    found = [{name: 10.0**p for name, p in zip(names, each, strict=True)} for each in powers]
    return [dict.fromkeys(names, zoo.DAYS), *found]


@pytest.mark.nightly(but=("logistic",))
@pytest.mark.parametrize("kind", zoo.KINDS)
def test_units_of_a_file_move_no_result(tmp_path: Path, kind: str) -> None:
    cell, found = zoo.Cell(kind, records=600, epsilon=4.0), []
    for index, per in enumerate([{}, *units(kind)]):
        raw = zoo.drafted(cell, tmp_path / f"study-{index}", per)
        found.append(zoo.run(cell, 7, 7, raw, tmp_path, per))
    apart = {
        f"{per}": found[0].apart(other) for per, other in zip(units(kind), found[1:], strict=True)
    }
    assert max(apart.values()) < zoo.same(kind), apart
