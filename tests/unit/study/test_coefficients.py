"""Claims about how exp(coefficient) is to be read: only what can change alone has a ratio."""

from typing import Any

import numpy as np
import pytest

from fedvi.study.config import Study, parse_study
from fedvi.study.spec.coefficients import (
    Reading,
    in_file_units,
    of_moments,
    outcome_unit,
    prior_words,
    readings,
    units_of,
)
from tests.studies import raw_study

SCHEMA = {
    "y": {"type": "binary"},
    "k": {"type": "level", "levels": ["none", "mild: or less", "severe"]},
    "n": {"type": "count", "bounds": [0, 9]},
    "m": {"type": "count", "bounds": [0, 9]},
    "t": {"type": "number", "bounds": [1, 99], "center": 0, "scale": 1},
    "a": {"type": "number", "bounds": [0, 100], "center": 50, "scale": 10},
    "b": {"type": "number", "bounds": [1, 100], "center": 50, "scale": 10},
    "s": {"type": "binary"},
    "g": {"type": "level", "levels": ["p", "q", "r: a"], "missing": "indicator"},
}
BS = "bs(b, knots=[40], degree=2, lower_bound=1, upper_bound=100)"
CURVE = Reading(False, "a part of the curve bs(b)")


def study(formula: str, kind: str = "logistic", **model: Any) -> Study:
    raw = raw_study(["north"], 1, kind=kind)
    raw["model"] = {"kind": kind, "formula": formula, **model}
    raw["data"]["schema"] = SCHEMA
    return parse_study(raw)


def read(formula: str, *names: str, kind: str = "logistic") -> list[Reading]:
    return list(readings(study(formula, kind), names))


def test_a_main_effect_alone_is_a_plain_ratio() -> None:
    names = ("(Intercept)", "a", "s", "g[q]", "g[missing]", "log(b)")
    assert read("y ~ a + s + g + log(b)", *names) == [Reading()] * 6


def test_a_main_effect_in_an_interaction_holds_where_the_other_is_zero() -> None:
    found = read("y ~ a*g + s", "(Intercept)", "a", "g[q]", "g[r: a]", "s", "a:g[q]")
    assert found == [
        Reading(),
        Reading(True, "where g is p"),
        Reading(True, "where a is 50"),
        Reading(True, "where a is 50"),
        Reading(),
        Reading(True, "a ratio of ratios"),
    ]


def test_an_interaction_of_two_in_one_of_three_holds_where_the_third_is_zero() -> None:
    found = read("y ~ a*s*log(b)", "a", "a:s", "s:log(b)", "a:s:log(b)")
    assert found == [
        Reading(True, "where s is false and log(b) is 0"),
        Reading(True, "a ratio of ratios, where log(b) is 0"),
        Reading(True, "a ratio of ratios, where a is 50"),
        Reading(True, "a ratio of ratios"),
    ]


@pytest.mark.parametrize("other", ["a", "g[q]"])
def test_a_part_of_a_curve_has_no_ratio_alone_or_in_an_interaction(other: str) -> None:
    column = other.partition("[")[0]
    found = read(f"y ~ {column}*{BS}", "bs(b)[1]", "bs(b)[3]", f"{other}:bs(b)[2]", other)
    assert found == [CURVE, CURVE, CURVE, Reading(True, "where bs(b) is 0")]


def test_powers_of_one_column_have_no_ratio() -> None:
    assert read("y ~ poly(a, 2, raw=True)", "poly(a)[1]") == [
        Reading(False, "a part of the curve poly(a)")
    ]
    assert read("y ~ a + I(a**2) + s", "a", "I(a**2)", "s") == [
        Reading(False, "I(a**2) changes with a"),
        Reading(False, "a changes with I(a**2)"),
        Reading(),
    ]
    # One column alone may change.
    assert read("y ~ poly(a, 1, raw=True) + I(b**2)", "poly(a)[1]", "I(b**2)") == [Reading()] * 2


def test_a_class_before_a_coefficient_changes_nothing() -> None:
    names = ("mild: or less: a", "severe: g[r: a]", "severe: a:g[q]", "severe: s")
    assert read("k ~ a*g + s", *names, kind="multinomial") == [
        Reading(True, "where g is p"),
        Reading(True, "where a is 50"),
        Reading(True, "a ratio of ratios"),
        Reading(),
    ]


@pytest.mark.parametrize(
    ("formula", "kind", "ratio"),
    [
        (f"n ~ s + {BS}", "poisson", "rate"),
        (f"n ~ s + {BS}", "negative_binomial", "rate"),
        (f"Surv(t, y) ~ s + {BS}", "survival", "hazard"),
        (f"y ~ s + {BS}", "logistic", "odds"),
        (f"cbind(n, m) ~ s + {BS}", "binomial", "odds"),
    ],
)
def test_rates_and_hazards_are_read_alike(formula: str, kind: str, ratio: str) -> None:
    names = ["s", "bs(b)[1]", "baseline (0, 9]", "log τ: s"]
    rows = of_moments(np.ones(4), np.ones(4), names, [""] * 4, study(formula, kind))
    assert rows[0][f"{ratio}_ratio"] == pytest.approx(np.e)
    assert rows[0][f"{ratio}_note"] == ""
    for row in rows[1:]:
        assert [row[f"{ratio}_{key}"] for key in ("ratio", "lower", "upper")] == [None] * 3
        assert row[f"{ratio}_note"]


def test_a_linear_model_has_neither_ratio_nor_note() -> None:
    (row,) = of_moments([1.0], [1.0], ["bs(b)[1]"], [""], study(f"a ~ {BS}", "linear"))
    assert set(row) == {"name", "unit", "mean", "sd", "lower", "upper"}


@pytest.mark.parametrize(
    ("formula", "names", "shift", "factor", "units"),
    [
        ("a ~ b", ("(Intercept)", "b"), (50.0, 0.0), (10.0, 10.0), ("units of a",) * 2),
        ("a ~ 0 + k + b", ("k[none]", "b"), (50.0, 0.0), (10.0, 10.0), ("units of a",) * 2),
        ("a ~ 0 + b", ("b",), (0.0,), (10.0,), ("units of a from 50",)),
        ("a ~ b", ("log τ: b",), (np.log(10.0),), (1.0,), ("units of a",)),
        ("n ~ b", ("(Intercept)", "b"), (0.0, 0.0), (1.0, 1.0), ("", "")),
    ],
)
def test_a_linear_outcome_is_told_in_the_unit_of_the_file(
    formula: str, names: tuple[str, ...], shift: Any, factor: Any, units: Any
) -> None:
    """``b`` is scaled too, so that its unit stands beside that of the outcome."""
    described = study(formula, "linear")
    told = in_file_units(described, names)
    np.testing.assert_allclose(told.shift, shift)
    np.testing.assert_allclose(told.factor, factor)
    said = units_of(described, names)
    scaled = [name.endswith("b") for name in names]
    assert said == tuple(
        f"{unit} per 10 from 50".strip() if own else unit
        for unit, own in zip(units, scaled, strict=True)
    )


def test_several_outcomes_have_their_own_units() -> None:
    described = study("cbind(a, t) ~ b", "multivariate_linear")
    told = in_file_units(described, ("a: (Intercept)", "t: (Intercept)", "a: b", "t: b"))
    assert told.shift.tolist() == [50.0, 0.0, 0.0, 0.0]
    assert told.factor.tolist() == [10.0, 1.0, 10.0, 1.0]
    assert prior_words(described) == "10 units of a, 1"
    assert outcome_unit(described) == ""


def test_log_hazards_and_log_rates_are_told_per_unit_of_time() -> None:
    names = ("baseline (0, 9]", "baseline (9, ∞)", "b")
    described = study("Surv(t, y) ~ b", "survival", cuts=[9])
    np.testing.assert_allclose(in_file_units(described, names).shift, [-np.log(99.0)] * 2 + [0.0])
    assert units_of(described, names) == ("per unit of t", "per unit of t", "per 10 from 50")
    for formula, names in (
        ("n ~ b + offset(log(t))", ("(Intercept)", "b")),
        ("n ~ 0 + k + b + offset(log(t))", ("k[none]", "b")),
    ):
        described = study(formula, "poisson")
        told = in_file_units(described, names)
        np.testing.assert_allclose(told.shift, [-np.log(99.0), 0.0])
        assert told.factor.tolist() == [1.0, 1.0]
        assert units_of(described, names) == ("per unit of t", "per 10 from 50")
    assert prior_words(described) == "1"


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        ("n ~ 0 + b + offset(log(t))", "poisson"),  # no constant to make up for it
        ("n ~ b + offset(t)", "poisson"),
        ("n ~ b + offset(log(t))", "overdispersed_counts"),  # y is its own
        ("y ~ b", "logistic"),
        ("a ~ b", "bnn_regression"),
    ],
)
def test_all_else_is_told_as_it_is_fitted(formula: str, kind: str) -> None:
    told = in_file_units(study(formula, kind), ("(Intercept)", "b"))
    assert (told.shift.tolist(), told.factor.tolist()) == ([0.0, 0.0], [1.0, 1.0])
