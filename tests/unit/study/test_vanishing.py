"""Products of columns that a study says are 0 are 0, in every record that its schema allows."""

import numpy as np
import pytest

from fedvi.data.formula import parse_formula
from fedvi.data.schema import parse_schema
from fedvi.study.modelling import vanishing

SCHEMA = parse_schema(
    {
        "y": {"type": "binary"},
        "k": {"type": "level", "levels": ["p", "q", "r"], "missing": "indicator"},
        "g": {"type": "level", "levels": ["a", "b", "c", "d"]},
        "s": {"type": "binary"},
        "a": {"type": "number", "bounds": [0, 100]},
    },
    private=True,
)


@pytest.mark.parametrize(
    ("right", "count"),
    # Of 0 and 1: k[q], k[r], k[missing], s; apart: k[q] and k[r]. Then 3 levels and 3 pairs of g.
    [("a + s + k", 5), ("a + s + k + g", 11), ("k*s + a", 9), ("a", 0), ("0 + s + k", 0)],
)
def test_what_is_said_to_vanish_vanishes(right, count):
    design, random = parse_formula(f"y ~ {right}", SCHEMA), np.random.default_rng(0)
    n = 500
    columns = {
        "k": random.integers(0, 3, n),
        "g": random.integers(0, 4, n),
        "s": random.integers(0, 2, n),
        "a": random.normal(size=n),
        "k_missing": random.integers(0, 2, n),
    }
    columns |= {
        part.column: random.integers(0, 2, n)
        for parts in design.coefficients
        for part in parts
        if part.column not in columns
    }
    x = design.matrix(columns)
    found = vanishing(design, SCHEMA, design.names)
    assert len(found) >= count
    assert bool(found) == bool(count)
    for i, j, c in found:
        assert not (x[:, i] * (x[:, j] - (x[:, c] if c >= 0 else 0.0))).any()


def test_nothing_is_said_of_a_model_with_other_coefficients():
    design = parse_formula("y ~ s + k", SCHEMA)
    assert vanishing(design, SCHEMA, (*design.names, "scale")) == ()
    assert vanishing(None, SCHEMA, ("a",)) == ()
