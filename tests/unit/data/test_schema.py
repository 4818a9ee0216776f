"""Claims about what a study may declare of its columns."""

import dataclasses
import re
from typing import Any

import pytest

from fedvi.data.schema import Impute, as_code, as_number, parse_schema
from fedvi.data.unit_words import unit_of
from fedvi.errors import ConfigError

AGE = {"type": "number", "bounds": [18, 100]}
CP = {"type": "level", "levels": ["typical", "atypical", "none"]}
SEX = {"type": "binary", "true": ["male"], "false": ["female"]}


def parse_one(table: Any, *, private: bool = True) -> Any:
    return parse_schema({"age": table}, private=private)["age"]


def test_columns_keep_their_declared_order() -> None:
    schema = parse_schema({"z": AGE, "a": SEX, "m": CP}, private=True)
    assert list(schema) == ["z", "a", "m"]


def test_a_schema_cannot_be_changed_after_it_was_read() -> None:
    schema = parse_schema({"age": AGE}, private=True)
    with pytest.raises(TypeError):
        schema["age"] = schema["age"]  # type: ignore[index]


def test_a_number_is_centred_and_scaled_to_its_bounds_unless_declared() -> None:
    column = parse_one(AGE)
    assert (column.center, column.scale) == (59, 41)
    column = parse_one({**AGE, "center": 50, "scale": 10})
    assert (column.center, column.scale) == (50, 10)


@pytest.mark.parametrize("table", [AGE, CP, SEX], ids=["number", "level", "binary"])
def test_what_does_not_fit_is_refused_by_default_only_without_privacy(table: Any) -> None:
    assert parse_one(table, private=True).missing == "drop"
    assert parse_one(table, private=False).missing == "refuse"
    if table is AGE:
        assert parse_one(table, private=True).outside == "clip"
        assert parse_one(table, private=False).outside == "clip"
    else:
        assert parse_one(table, private=True).outside == "drop"
        assert parse_one(table, private=False).outside == "refuse"


@pytest.mark.parametrize("key", ["missing", "outside"])
@pytest.mark.parametrize("table", [AGE, CP, SEX], ids=["number", "level", "binary"])
def test_a_private_study_may_not_refuse_a_record(table: Any, key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf'^data\.schema\.age\.{key}: "refuse" in a private'
    ) as e:
        parse_one({**table, key: "refuse"}, private=True)
    assert "count as zero" in e.value.hint
    assert getattr(parse_one({**table, key: "refuse"}, private=False), key) == "refuse"


def test_a_unit_and_words_are_for_readers_alone() -> None:
    raw = {"age": {**AGE, "unit": "years"}, "sex": {**SEX, "words": ["male", "female"]}}
    spoken, plain = (
        parse_schema(raw, private=True),
        parse_schema({"age": AGE, "sex": SEX}, private=True),
    )
    assert unit_of(spoken["age"]) == "per 41 years from 59"
    assert unit_of(dataclasses.replace(spoken["age"], center=0.0, scale=1.0)) == "per 1 year"
    assert spoken["sex"].words == ("male", "female")
    assert dataclasses.replace(spoken["age"], unit="") == plain["age"]
    assert dataclasses.replace(spoken["sex"], words=None) == plain["sex"]


def test_declared_codes_for_missing_are_added_to_the_usual_ones() -> None:
    column = parse_one({**AGE, "missing_values": [0, "unknown"]})
    assert column.missing_values == {"", "?", "NA", 0.0, "unknown"}


def test_a_declared_level_wins_over_the_usual_codes_for_missing() -> None:
    column = parse_one({"type": "level", "levels": ["NL", "NA"]})  # two countries
    assert column.missing_values == {"", "?"}


def test_a_code_cannot_mean_missing_and_a_value() -> None:
    with pytest.raises(ConfigError, match=r"^data\.schema\.age\.missing_values: .*also declared"):
        parse_one({**SEX, "missing_values": ["male"]})


def test_codes_that_are_numbers_are_compared_as_numbers() -> None:
    column = parse_one({**CP, "codes": {"1.0": "typical", "2": "atypical", "3": "none"}})
    assert dict(column.codes)[as_code("1")] == 0
    with pytest.raises(ConfigError, match="declared twice"):
        parse_one({**CP, "codes": {"1.0": "typical", "1": "atypical", "3": "none"}})


def test_levels_without_codes_stand_for_themselves() -> None:
    assert dict(parse_one(CP).codes) == {"typical": 0, "atypical": 1, "none": 2}


def test_levels_may_be_numbers() -> None:
    column = parse_one({"type": "level", "levels": [1, 2], "missing": {"impute": 2}})
    assert column.levels == ("1", "2")
    assert column.missing == Impute("2")


def test_a_binary_column_is_0_or_1_unless_declared() -> None:
    column = parse_one({"type": "binary"})
    assert (column.true, column.false) == ({1.0}, {0.0})


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({}, 'age.type: missing, expected one of "binary", "count", "level", "number"', "add type"),
        ({"type": "numbr"}, 'age.type: "numbr", expected one of', "did you mean `number`?"),
        (4, "age: 4, expected a table", "[data.schema.age]"),
        ({**AGE, "bound": 1}, "age.bound: unknown key of a number", "did you mean `bounds`?"),
        ({**AGE, "levels": ["a"]}, "age.levels: unknown key of a number", "known: `bounds`"),
        ({"type": "number"}, "age.bounds: missing, expected [lowest, highest]", "known without"),
        ({**AGE, "bounds": [5, 5]}, "age.bounds: [5, 5], expected [lowest, highest]", "18, 100"),
        ({**AGE, "bounds": [1, float("inf")]}, "age.bounds: [1, inf], expected", "18, 100"),
        ({**AGE, "bounds": [False, True]}, "age.bounds: [False, True], expected", "18, 100"),
        ({**AGE, "bounds": [0, 5e-324]}, "bounds: [0, 5e-324], a width of 4.94066e-324", "unit"),
        ({**AGE, "bounds": [-1e308, 1e308]}, "a width of inf, expected a finite one", "ordinary"),
        ({**AGE, "scale": 0}, "age.scale: 0, expected a number above 0", "41"),
        ({**AGE, "center": "50"}, 'age.center: "50", expected a finite number', "59"),
        ({**AGE, "column": ""}, 'age.column: "", expected the column\'s name', "leave it out"),
        ({**AGE, "outside": "cilp"}, 'age.outside: "cilp", expected one of', "mean `clip`?"),
        ({**AGE, "missing": "drp"}, 'age.missing: "drp", expected a rule', "impute = VALUE"),
        ({**AGE, "missing": {}}, "age.missing: an empty table", "impute = VALUE"),
        ({**AGE, "missing": {"input": 1}}, "age.missing.input: unknown key", "mean `impute`?"),
        ({**AGE, "missing": {"impute": 5}}, "impute: 5, expected a number within", "constant"),
        ({**AGE, "missing_values": "?"}, 'missing_values: "?", expected a list', '["a", "b"]'),
        ({**AGE, "missing_values": [True]}, "missing_values: [True], expected a list", "["),
        ({"type": "level"}, "age.levels: missing, expected a list", "levels ="),
        ({**CP, "levels": ["a"]}, "age.levels: ['a'], expected two or more", "reference"),
        ({**CP, "levels": ["a", "a"]}, "age.levels: ['a', 'a'], expected two", "once"),
        ({**CP, "levels": ["a", ""]}, "age.levels: ['a', ''], expected two", "once"),
        ({**CP, "levels": [1, 1.0]}, 'age.codes: "1.0" is declared twice', "same"),
        ({**CP, "outside": "clip"}, 'age.outside: "clip", expected one of "drop"', "`drop`"),
        ({**CP, "codes": {"1": "typcal"}}, 'codes.1: "typcal", expected one of', "`typical`"),
        ({**CP, "codes": {"1": "typical"}}, 'no cell means the level "atypical"', "take the"),
        ({**CP, "codes": ["typical"]}, "age.codes: ['typical'], expected a table", "codes ="),
        ({**CP, "missing": {"impute": "x"}}, 'impute: "x", expected one of the', "known:"),
        ({**SEX, "true": []}, "age.true: an empty list", "true ="),
        ({"type": "binary", "true": ["m"]}, "age.false: missing, expected a list", "both"),
        ({**SEX, "false": ["male", "f"]}, "age.true: male is also in `data.schema.age.false`", "1"),
        ({**SEX, "missing": {"impute": 1}}, "impute: 1, expected true or false", "impute = false"),
        ({**SEX, "words": ["m"]}, "age.words: ['m'], expected two words", '["male", "female"]'),
        ({**SEX, "words": ["m", "m"]}, "age.words: ['m', 'm'], expected two words", "words ="),
        ({**SEX, "words": ["m", 2]}, "age.words: 2, expected 1 to 30 characters", "female"),
        ({**AGE, "words": ["a", "b"]}, "age.words: unknown key of a number", "known:"),
        ({**AGE, "unit": ""}, 'age.unit: "", expected 1 to 30 characters', "years"),
        ({**AGE, "unit": "y\x1b[31m"}, "age.unit: ", "write it with letters"),
        ({**CP, "unit": "mm"}, "age.unit: unknown key of a level", "known:"),
    ],
)
def test_a_wrong_declaration_is_named_by_its_path_with_a_hint(
    table: Any, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_one(table)
    assert error.value.message.startswith("data.schema.age")
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_level_called_missing_has_no_second_coefficient() -> None:
    table = {"type": "level", "levels": ["a", "missing"], "missing": "indicator"}
    with pytest.raises(ConfigError, match=r"age\.levels: .missing. would have the same"):
        parse_one(table)


def test_an_indicator_takes_no_other_column_s_name() -> None:
    raw = {"age": {**AGE, "missing": "indicator"}, "age_missing": SEX}
    with pytest.raises(ConfigError, match=r"^data\.schema\.age_missing: this name is taken"):
        parse_schema(raw, private=True)


@pytest.mark.parametrize("name", ["education-num", "2nd", "a b", "_x", ""])
def test_a_name_that_no_formula_can_hold_is_refused(name: str) -> None:
    message = re.escape(f"data.schema.{name}: ") + ".*cannot be written in a formula"
    with pytest.raises(ConfigError, match=message) as error:
        parse_schema({name: AGE}, private=True)
    assert "say so with `column`" in error.value.hint


@pytest.mark.parametrize("raw", [{}, None, ["age"]])
def test_a_study_without_a_schema_is_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"^data\.schema: .*expected a table for each column"):
        parse_schema(raw, private=True)


@pytest.mark.parametrize("text", ["1_000", "1,5", "0x10", "", "1 2", "٣", "e5", "."])
def test_text_that_only_looks_like_a_number_is_none(text: str) -> None:
    assert as_number(text) is None


@pytest.mark.parametrize("text", ["1", "-1.5", ".7", "2.", "1e-3", "+4E2"])
def test_decimal_numbers_are_read_as_python_reads_them(text: str) -> None:
    assert as_number(text) == float(text)


def test_a_long_cell_of_digits_is_read_in_linear_time() -> None:
    # A pattern that backtracks would need minutes for a cell as long as CSV allows.
    assert as_number("1" * 130_000 + "x") is None


STEERING = (
    "\x1b[31mred",
    "red\x07",
    "\u202ered",
    "\u2066red",
    "re\u200bd",
    "red\u2028blue",
    "red\uffff",
)


@pytest.mark.parametrize("text", STEERING)
def test_a_name_that_steers_a_terminal_is_refused_and_shown_escaped(text: str) -> None:
    tables = (
        ("levels", {"type": "level", "levels": ["blue", text]}),
        ("column", {**AGE, "column": text}),
    )
    for key, table in tables:
        with pytest.raises(ConfigError, match=rf"data\.schema\.age\.{key}") as caught:
            parse_one(table)
        said = caught.value.message + (caught.value.hint or "")
        assert said.isprintable()
        assert "\\" in caught.value.message
        assert "red" in (caught.value.hint or "")
    for raw in ({text: AGE}, {"age": {**AGE, text: 1}}, {"age": {**CP, "codes": {"1": text}}}):
        with pytest.raises(ConfigError) as caught:
            parse_schema(raw, private=True)
        assert caught.value.message.isprintable()


def test_other_scripts_and_their_blanks_are_names() -> None:
    levels = ["می\u200cخواهم", "Côte\u00a0d'Or", "naïve 😀", "क्\u200dष"]
    assert parse_one({"type": "level", "levels": levels}).levels == tuple(levels)
