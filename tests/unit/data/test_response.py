"""Claims about what stands left of `~`, about offsets, and about counts in a schema."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data.cells import Cells, Numbers
from fedvi.data.formula import parse_formula
from fedvi.data.schema import Schema, parse_schema
from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError
from tests.tables import prepare

RAW: dict[str, Any] = {
    "days": {"type": "number", "bounds": [0.5, 1000], "center": 365, "scale": 30},
    "died": {"type": "binary", "true": ["dead"], "false": ["alive"]},
    "age": {"type": "number", "bounds": [20, 80], "center": 50, "scale": 10},
    "falls": {"type": "count", "bounds": [0, 20]},
    "years": {"type": "number", "bounds": [0.1, 10]},
    "shift": {"type": "number", "bounds": [-3, 3], "missing": "indicator"},
    "stage": {"type": "level", "levels": ["I", "II", "III"]},
    "sbp": {"type": "number", "bounds": [80, 220], "center": 130, "scale": 20},
    "dbp": {"type": "number", "bounds": [40, 140], "center": 80, "scale": 10},
    "entry": {"type": "number", "bounds": [0, 100]},
}
SCHEMA = parse_schema(RAW, private=True)


def prepared(
    text: str, table: Mapping[str, Cells], schema: Schema = SCHEMA, *, private: bool = True
) -> ArraySource:
    design = parse_formula(text, schema)
    source = prepare(table, schema, design, private=private, where="north")
    assert source.records["y"].shape[1:] == design.outcome_shape
    return source


def test_a_survival_time_is_in_the_unit_of_the_file_and_has_no_intercept() -> None:
    design = parse_formula("Surv(days, died) ~ age + stage", SCHEMA)
    assert design.response.text == "Surv(days, died)"
    assert design.columns == ("days", "died", "age", "stage")
    assert design.names == ("age", "stage[II]", "stage[III]")
    table = {"days": ["0.5", "90", "731"], "died": ["dead", "alive", "dead"]}
    source = prepared("Surv(days,died) ~ age", {**table, "age": ["60", "50", "50"]})
    # (value − 365) / 30 and back: rounding in float64.
    np.testing.assert_allclose(
        source.records["y"], [[0.5, 1.0], [90.0, 0.0], [731.0, 1.0]], rtol=1e-12
    )
    np.testing.assert_allclose(source.records["x"], [[1.0], [0.0], [0.0]])


@pytest.mark.parametrize("numbers", [False, True])
def test_what_came_after_the_follow_up_is_censored_and_an_event_at_its_end_counts(
    numbers: bool,
) -> None:
    cells = ["999", "1000", "1000.001", "1500", "-3"]
    days: Cells = Numbers(np.array(cells, np.float64)) if numbers else cells
    table = {"days": days, "died": ["dead"] * 5}
    y = prepared("Surv(days, died) ~ 1", table).records["y"]
    np.testing.assert_allclose(y[:, 0], [999.0, 1000.0, 1000.0, 1000.0, 0.5], rtol=1e-12)
    np.testing.assert_array_equal(y[:, 1], [1.0, 1.0, 0.0, 0.0, 1.0])


@given(bound=st.floats(0.6, 1e7), unit=st.sampled_from([1.0, 30.4375, 365.25]))
def test_no_bound_or_scale_moves_an_event_past_the_end_of_follow_up(
    bound: float, unit: float
) -> None:
    days = {"type": "number", "bounds": [0.5, bound], "center": bound / 3.0, "scale": unit}
    schema = parse_schema({**RAW, "days": days}, private=True)
    table = {"days": [repr(bound), repr(np.nextafter(bound, np.inf))], "died": ["dead"] * 2}
    y = prepared("Surv(days, died) ~ 1", table, schema).records["y"]
    np.testing.assert_array_equal(y[:, 1], [1.0, 0.0])


def test_a_survival_without_covariates_is_its_baseline() -> None:
    for text in ("Surv(days, died) ~ 1", "Surv(days, died) ~ 0"):
        design = parse_formula(text, SCHEMA)
        assert (design.names, design.size) == ((), 0)
    table = {"days": ["3", "7"], "died": ["dead", "alive"]}
    assert prepared("Surv(days, died) ~ 1", table).records["x"].shape == (2, 0)


def test_several_outcomes_stand_side_by_side_each_on_its_scale() -> None:
    table = {"sbp": ["150", "120"], "dbp": ["80", "90"], "age": ["50", "50"]}
    source = prepared("cbind(sbp, dbp) ~ age", table)
    np.testing.assert_allclose(source.records["y"], [[1.0, 0.0], [-0.5, 1.0]])


def test_counts_side_by_side_are_told_from_other_numbers() -> None:
    raw = {**RAW, "stays": {"type": "count", "bounds": [0, 50]}}
    schema = parse_schema(raw, private=True)
    assert parse_formula("cbind(falls, stays) ~ age", schema).response.type == "counts"
    assert parse_formula("cbind(falls, sbp) ~ age", schema).response.type == "several"
    table = {"falls": ["2", "1.5", "?", "1"], "stays": ["3", "4", "5", "-2"], "age": ["50"] * 4}
    source = prepared("cbind(falls, stays) ~ age", table, schema)
    # A fraction and a missing cell make the record count as zero; what is below 0 is clipped to it.
    assert source.valid.tolist() == [True, False, False, True]
    np.testing.assert_array_equal(source.records["y"], [[2, 3], [0, 0], [0, 0], [1, 0]])
    moved = prepared(
        "cbind(falls, stays) ~ age + offset(years)",
        {name: cells[:1] for name, cells in table.items()} | {"years": ["2"]},
        schema,
    )
    np.testing.assert_allclose(moved.records["y"], [[2.0, 3.0, 2.0]], rtol=1e-12)


def test_a_response_of_levels_is_an_index() -> None:
    source = prepared("stage ~ age", {"stage": ["III", "I"], "age": ["50", "50"]})
    np.testing.assert_array_equal(source.records["y"], [2.0, 0.0])
    assert parse_formula("stage ~ 1", SCHEMA).response.levels == ("I", "II", "III")


@pytest.mark.parametrize(
    "text",
    [
        "falls ~ age + offset(log(years))",
        "falls ~ offset( log(years) ) + age",
        "falls~age+offset(log(years))+age",
        "falls ~ 1 + offset(log(years)) + age",
    ],
)
def test_an_offset_is_no_coefficient_wherever_it_stands(text: str) -> None:
    design = parse_formula(text, SCHEMA)
    assert design.names == ("(Intercept)", "age")
    assert design.columns == ("falls", "years", "age")
    source = prepared(text, {"falls": ["3", "0"], "years": ["0.5", "2"], "age": ["50", "70"]})
    expected = [[3.0, np.log(0.5)], [0.0, np.log(2.0)]]
    np.testing.assert_allclose(source.records["y"], expected, rtol=1e-12)


def test_an_offset_alone_leaves_the_intercept_and_may_be_a_term_too() -> None:
    assert parse_formula("falls ~ offset(years)", SCHEMA).names == ("(Intercept)",)
    assert parse_formula("falls ~ years + offset(log(years)) - 1", SCHEMA).names == ("years",)
    source = prepared("falls ~ offset(years)", {"falls": ["3"], "years": ["0.5"]})
    np.testing.assert_allclose(source.records["y"], [[3.0, 0.5]], rtol=1e-12)


def test_a_record_that_does_not_stand_is_zeros_with_an_offset_too() -> None:
    source = prepared("falls ~ offset(log(years))", {"falls": ["?", "1"], "years": ["2", "1"]})
    np.testing.assert_array_equal(source.records["y"], [[0.0, 0.0], [1.0, 0.0]])
    assert source.valid.tolist() == [False, True]


def test_a_count_is_whole_and_within_its_bounds() -> None:
    table = {"falls": ["3", "2.5", "-1", "25", "4.0", "1e1", "x"]}
    source = prepared("falls ~ 1", table)
    assert source.valid.tolist() == [True, False, True, True, True, True, False]
    np.testing.assert_array_equal(source.records["y"], [3.0, 0.0, 0.0, 20.0, 4.0, 10.0, 0.0])


@pytest.mark.parametrize(
    ("cell", "message", "hint"),
    [
        ("2.5", "record 2: column `falls` holds '2.5', expected a whole number", "number"),
        ("-1", r"record 2: column `falls` holds '-1', outside the bounds \[0, 20\]", "clip"),
        ("many", "record 2: column `falls` holds 'many', expected a number", "missing"),
    ],
)
def test_where_nothing_is_promised_a_bad_count_is_refused(
    cell: str, message: str, hint: str
) -> None:
    schema = parse_schema({"falls": {**RAW["falls"], "outside": "refuse"}}, private=False)
    with pytest.raises(DataError, match=message) as error:
        prepared("falls ~ 1", {"falls": ["1", cell]}, schema, private=False)
    assert hint in error.value.hint


def test_a_count_that_is_not_whole_is_refused_even_where_others_are_clipped() -> None:
    schema = parse_schema({"falls": RAW["falls"]}, private=False)
    with pytest.raises(DataError, match="expected a whole number"):
        prepared("falls ~ 1", {"falls": ["1.5"]}, schema, private=False)


@pytest.mark.parametrize("bounds", [[-1, 5], [0, 5.5], [0.5, 3]])
def test_the_bounds_of_a_count_are_whole_and_not_negative(bounds: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"falls\.bounds: .*, expected whole numbers from 0 up"):
        parse_schema({"falls": {"type": "count", "bounds": bounds}}, private=True)


def test_a_count_has_no_scale() -> None:
    with pytest.raises(ConfigError, match=r"falls\.scale: unknown key of a count column"):
        parse_schema({"falls": {**RAW["falls"], "scale": 2}}, private=True)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("Surv(days) ~ age", "has 1 columns, expected a time and an event", "Surv(time, event)"),
        ("Surv(entry, days, died) ~ age", "has 3 columns", "times of entry"),
        ("Surv(died, died) ~ age", "`died` is twice in `Surv(died, died)`", "once"),
        ("Surv(died, days) ~ age", "the time `died` in", 'type = "number"'),
        ("Surv(days, age) ~ stage", "the event `age` in", 'type = "binary"'),
        ("Surv(entry, died) ~ age", "entry.bounds: the lowest is 0, expected a", "half a day"),
        ("Surv(days, dead) ~ age", "`dead` is not declared", "known:"),
        ("Surv(days, died) ~ days", "the response `days` is also on the right", "take it out"),
        ("Surv(days, died) ~ age + offset(years)", "an offset beside the response", "one number"),
        ("Surv(days died) ~ age", "`Surv(days died)` left of `~`", "Surv(time, event)"),
        ("Surv(days,, died) ~ age", "left of `~`", "Surv(time, event)"),
        ("Surv() ~ age", "left of `~`", "Surv(time, event)"),
        ("Surv(days, died ~ age", "left of `~`", "Surv(time, event)"),
        ("surv(days, died) ~ age", "the call `surv(...)`", "Surv and cbind"),
        ("cbind(falls, sbp - falls) ~ age", "expected cbind of declared", "cbind(events, non_ev"),
        ("cbind(sbp) ~ age", "has one column", "write `sbp ~"),
        ("cbind(sbp, died) ~ age", "`died` in `cbind(sbp, died)` is no number", "number"),
        ("falls ~ offset(log(entry))", "entry.bounds: the lowest is 0, expected", "one day"),
        ("sbp ~ age + offset(years)", "beside `sbp`, which is used in units of 20", "scale = 1"),
        ("falls ~ offset(stage)", "the offset `stage` is no number", 'type = "number"'),
        ("falls ~ offset(shift)", 'shift.missing: "indicator" for the offset', "impute"),
        ("falls ~ offset(falls)", "the response `falls` is also on the right", "take it out"),
        ("falls ~ offset(agee)", "`agee` is not declared", "did you mean `age`?"),
        ("falls ~ age - offset(years)", "the offset in", "offset(log(years))"),
        ("falls ~ age:offset(years)", "the offset in", "offset(log(years))"),
        ("falls ~ offset(years):age", "the offset in", "offset(log(years))"),
        ("falls ~ offset(log(years)", "the offset in", "offset(log(years))"),
        ("falls ~ offset(years + age)", "the offset in", "offset(log(years))"),
        ("falls ~ offset(2)", "the offset in", "offset(log(years))"),
        ("falls ~ offset(", "the offset in", "offset(log(years))"),
        ("falls ~ offset(exp(years))", "the offset in", "offset(log(years))"),
        ("falls ~ offset(years) + offset(age)", "has 2 offsets", "sum"),
        ("falls ~ Surv(days, died)", "the call `Surv(...)`", "left of `~`"),
    ],
)
def test_what_is_no_response_or_offset_is_refused_with_a_hint(
    text: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_formula(text, SCHEMA)
    assert message in error.value.message
    assert hint in error.value.hint


def test_neither_a_time_nor_an_event_is_made_up() -> None:
    raw = {**RAW, "died": {**RAW["died"], "missing": {"impute": False}}}
    with pytest.raises(ConfigError, match="the response `died` may not be made up"):
        parse_formula("Surv(days, died) ~ 1", parse_schema(raw, private=True))


def test_units_reach_the_coefficients_of_every_level_and_outcome() -> None:
    design = parse_formula("stage ~ age", SCHEMA)
    names = ("II: (Intercept)", "II: age", "III: age", "age", "baseline (0, 90]")
    assert design.units_of(names) == ("", *["per 10 from 50"] * 3, "")
