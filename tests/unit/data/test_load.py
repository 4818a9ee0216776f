"""Claims about reading tables and applying a schema; every bad input a study can meet is here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedvi.data import tables
from fedvi.data.cells import Numbers, Wanted, is_separator
from fedvi.data.formula import parse_formula
from fedvi.data.load import prepare_columns, prepared
from fedvi.data.schema import Schema, parse_schema
from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError, FedviError
from tests.tables import prepare, read_table

AGE = {"type": "number", "bounds": [18, 100], "center": 50, "scale": 10}
CP = {
    "type": "level",
    "levels": ["typical", "atypical"],
    "codes": {"1": "typical", "2": "atypical"},
}
SEX = {"type": "binary", "true": ["m", 1], "false": ["f", 0]}


def write(folder: Path, text: str) -> Path:
    path = folder / "north.csv"
    path.write_bytes(text.encode())
    return path


def columns_of(column: dict[str, Any], cells: list[str], *, private: bool = False) -> ArraySource:
    """One column called age, prepared."""
    schema = parse_schema({"age": column}, private=private)
    return prepare_columns({"age": cells}, schema, ["age"], private=private, where="north")


# Reading


def test_a_header_names_the_columns_and_blanks_are_taken_off(tmp_path: Path) -> None:
    path = write(tmp_path, ' age , sex,other\n 54,m ,x\n61, "f", y\n')
    assert read_table(path, names=["sex", "age"]) == {"sex": ["m", "f"], "age": ["54", "61"]}


def test_declared_columns_stand_for_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "54;m\n61;f\n")
    table = read_table(path, columns=["age", "sex"], separator=";", names=["age"])
    assert table == {"age": ["54", "61"]}


@pytest.mark.parametrize("separator", ["\t", " ", "|"])
def test_other_separators_are_one_character(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path, f"age{separator}sex\n54{separator}m\n")
    assert read_table(path, separator=separator, names=["sex"]) == {"sex": ["m"]}


@pytest.mark.parametrize(
    "text",
    [
        "age,sex\n54,m\n\n",
        "age,sex\r\n54,m\r\n",
        "\ufeffage,sex\n54,m",
        "\n \nage,sex\n\n54,m\n  \n",
    ],
    ids=["empty last line", "windows", "byte order mark", "blank lines"],
)
@pytest.mark.parametrize("private", [True, False])
def test_the_same_table_is_read_however_an_editor_saved_it(
    tmp_path: Path, text: str, private: bool
) -> None:
    table = read_table(write(tmp_path, text), names=["age", "sex"], private=private)
    assert table == {"age": ["54"], "sex": ["m"]}


def test_a_missing_column_is_named_with_the_file_and_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "age,sex,chol\n54,m,200\n")
    with pytest.raises(DataError) as error:
        read_table(path, names=["age", "chlo"])
    assert error.value.message == f"{path}: no column `chlo` in the first line"
    assert error.value.hint == "did you mean `chol`? known: `age`, `chol`, `sex`"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Age (years)", "age"),
        ("AGE", "age"),
        ("Blood pressure [mmHg]", "blood_pressure"),
        ("dose in mg", "dose"),
    ],
)
def test_a_column_that_the_file_calls_by_a_longer_name_is_found(
    tmp_path: Path, header: str, name: str
) -> None:
    path = write(tmp_path, f"{header},stage,overdose\n54,m,2\n")
    with pytest.raises(DataError, match=f"no column `{name}`") as error:
        read_table(path, names=[name, "stage"])
    # The name may be of a patient's column, or a flag's: not all are in the schema.
    assert error.value.hint == (
        f'if "{header}" is meant, write it so; in the schema, column = "{header}" '
        f"under [data.schema.{name}]"
    )
    # Where the first line may be a record, it is not shown.
    with pytest.raises(DataError, match=f"no column `{name}`") as error:
        read_table(path, names=[name, "sex", "bp"])
    assert header not in error.value.hint.replace('such as column = "Age (years)"', "")


def test_a_first_line_that_may_be_a_record_is_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "5417,m,20083\n6129,f,21011\n")
    with pytest.raises(DataError, match="no column `age`") as error:
        read_table(path, names=["age", "sex", "chol"])
    assert "5417" not in str(error.value)
    assert "`data.columns`" in error.value.hint


def test_a_column_missing_from_the_declared_ones_is_a_wrong_study(tmp_path: Path) -> None:
    path = write(tmp_path, "54,m\n")
    with pytest.raises(ConfigError, match=r"^data\.columns: no `chol`") as error:
        read_table(path, columns=["age", "cholesterol"], names=["chol"])
    assert "did you mean `cholesterol`?" in error.value.hint
    with pytest.raises(ConfigError, match=r"^data\.columns: `age` is there twice"):
        read_table(path, columns=["age", "age"], names=["age"])


@pytest.mark.parametrize(("line", "word"), [("61", "fewer"), ("61,f,7", "more")])
def test_a_ragged_line_is_named_by_its_number_alone(tmp_path: Path, line: str, word: str) -> None:
    path = write(tmp_path, f"age,sex\n54,m\n\n{line}\n")
    with pytest.raises(DataError) as error:
        read_table(path, names=["age"])
    assert error.value.message == f"{path}: line 4 has {word} cells than the 2 columns"
    assert "`data.separator`" in error.value.hint


def test_a_file_without_a_header_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file is empty, expected a line with the names") as e:
        read_table(write(tmp_path, ""), names=["age"])
    assert "right file" in e.value.hint


def test_a_file_without_records_is_a_table_of_no_records(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, "age\n"), names=["age"]) == {"age": []}
    assert read_table(write(tmp_path, ""), columns=["age"], names=["age"]) == {"age": []}


def test_a_quoted_blank_is_a_cell_of_a_table_with_one_column(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, 'age\n""\n\n54\n'), names=["age"]) == {"age": ["", "54"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'age,sex\n54,"m\n61,f\n', "line 2 or one after it is not CSV"),
        (b'age,sex\n54,"m"x\n', "line 2 or one after it is not CSV"),
        (b"\xff\xfea\0g\0e\0\n\0", "a text in UTF-16"),
        (b"age,age\n54,55\n", "two columns are called `age`"),
    ],
    ids=["open quote", "text after a quote", "utf-16", "column twice"],
)
def test_a_file_of_a_wrong_form_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_table(path, names=["age"])
    assert str(path) in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("private", [True, False])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, private: bool) -> None:
    with pytest.raises(DataError, match=r"absent\.csv: cannot be read \(No such file") as error:
        read_table(tmp_path / "absent.csv", names=["age"], private=private)
    assert "folder of the study file" in error.value.hint


def test_a_separator_is_one_character_that_no_cell_needs() -> None:
    assert [
        text for text in (",", ";", "\t", "", ", ", '"', "\n", "\r", "\0") if is_separator(text)
    ] == [*",;\t"]


# Reading for a private study


@pytest.mark.parametrize(
    "line",
    [b"61", b"61,f,7", b'61,"f', b'61,"f"x', b"61," + b"f" * 200_000],
    ids=["fewer cells", "more cells", "open quote", "text after a quote", "long cell"],
)
def test_a_line_that_cannot_be_read_counts_as_zero_and_takes_no_other_with_it(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes(b"age,sex\n54,m\n" + line + b'\n48,"f"\n')
    table = read_table(path, names=["age", "sex"], private=True)
    assert table == {"age": ["54", None, "48"], "sex": ["m", None, "f"]}
    schema = parse_schema({"age": {**AGE, "missing": {"impute": 60}}, "sex": SEX}, private=True)
    source = prepare_columns(table, schema, ["age", "sex"], private=True, where="north")
    np.testing.assert_array_equal(source.valid, [True, False, True])
    np.testing.assert_array_equal(source.records["age"], [0.4, 0.0, -0.2])
    with pytest.raises(DataError):
        read_table(path, names=["age", "sex"])


def test_a_private_study_still_refuses_what_is_public_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes("age,sex\n54,m\n".encode("utf-16"))
    with pytest.raises(DataError, match="a text in UTF-16") as e:
        read_table(path, names=["age"], private=True)
    assert "UTF-8" in e.value.hint
    with pytest.raises(DataError, match="no column `chol` in the first line"):
        read_table(write(tmp_path, "age,sex\n54,m\n"), names=["age", "chol"], private=True)
    with pytest.raises(DataError, match="the file is empty"):
        read_table(write(tmp_path, ""), names=["age"], private=True)


LINES = st.lists(
    st.one_of(
        st.sampled_from([b"54,m", b'61,"f"', b"?,f", b"1,2,3", b'"', b'5,"', b'"54', b"\xff,m"]),
        st.binary(min_size=1, max_size=6).filter(lambda line: not {10, 13} & set(line)),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("header", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, other=LINES, place=st.integers(0, 5))
@example(lines=[b'54,"', b"61,f", b'48,"'], other=[b"54,m"], place=0)
def test_replacing_one_line_changes_one_record_and_stops_no_private_study(
    tmp_path: Path, header: bool, lines: list[bytes], other: list[bytes], place: int
) -> None:
    schema = parse_schema({"age": AGE, "sex": SEX}, private=True)
    path = tmp_path / "north.csv"

    def prepared(content: list[bytes]) -> ArraySource:
        path.write_bytes(b"\n".join([*([b"age,sex"] if header else []), *content]))
        columns = None if header else ["age", "sex"]
        table = read_table(path, columns=columns, names=["age", "sex"], private=True)
        return prepare_columns(table, schema, ["age", "sex"], private=True, where="north")

    # A line of blanks is no record.
    lines, other = ([line for line in part if line.strip()] for part in (lines, other))
    if not lines or not other or any(not _is_record(line) for line in lines + other):
        return
    place = min(place, len(lines) - 1)
    changed = [*lines[:place], other[0], *lines[place + 1 :]]
    before, after = prepared(lines), prepared(changed)
    assert before.size == after.size == len(lines)
    for kept in range(len(lines)):
        if kept != place:
            assert before.valid[kept] == after.valid[kept]
            for name in ("age", "sex"):
                assert before.records[name][kept] == after.records[name][kept]


def _is_record(line: bytes) -> bool:
    """Whether a line holds more than blanks, as CSV reads it."""
    return line.decode(errors="replace").strip(' "\t\v\f\0\x1c\x1d\x1e\x1f\x85\xa0') != ""


# Numbers


def test_a_number_is_centred_and_scaled() -> None:
    np.testing.assert_array_equal(
        columns_of(AGE, ["50", "60.0", " 45 "]).records["age"], [0, 1, -0.5]
    )


def test_a_value_on_a_bound_is_inside() -> None:
    source = columns_of({**AGE, "outside": "refuse"}, ["18", "100"])
    np.testing.assert_array_equal(source.records["age"], [-3.2, 5.0])


def test_a_value_outside_its_bounds_is_clipped_as_declared() -> None:
    source = columns_of({**AGE, "outside": "clip"}, ["17.9", "130", "50"])
    np.testing.assert_array_equal(source.records["age"], [-3.2, 5.0, 0.0])
    assert source.valid.all()


@pytest.mark.parametrize("private", [True, False])
def test_a_value_outside_its_bounds_drops_the_record_as_declared(private: bool) -> None:
    source = columns_of({**AGE, "outside": "drop"}, ["17", "60"], private=private)
    np.testing.assert_array_equal(source.records["age"], [0, 1])
    np.testing.assert_array_equal(source.valid, [False, True])


def test_a_value_outside_its_bounds_is_refused_as_declared() -> None:
    with pytest.raises(DataError) as error:
        columns_of({**AGE, "outside": "refuse"}, ["54", "130"])
    assert error.value.message == (
        "north: record 2: column `age` holds '130', outside the bounds [18, 100]"
    )
    assert '"clip" or "drop"' in error.value.hint


@pytest.mark.parametrize("cell", ["nan", "NaN", "-inf", "Infinity", "1e999", "", "?", "NA", " ? "])
def test_nan_and_infinity_in_a_number_are_missing(cell: str) -> None:
    imputed = columns_of({**AGE, "missing": {"impute": 60}}, [cell])
    np.testing.assert_array_equal(imputed.records["age"], [1.0])
    dropped = columns_of({**AGE, "missing": "drop"}, [cell, "50"])
    np.testing.assert_array_equal(dropped.valid, [False, True])
    with pytest.raises(
        DataError, match=r"record 1: column `age` holds .*, which means missing"
    ) as e:
        columns_of(AGE, [cell])
    assert '{ impute = VALUE }, "indicator" or "drop"' in e.value.hint


@pytest.mark.parametrize("cell", ["0", "0.0", "-0", "0e5"])
def test_a_number_declared_as_missing_is_compared_as_a_number(cell: str) -> None:
    source = columns_of({**AGE, "missing": {"impute": 60}, "missing_values": [0]}, [cell])
    np.testing.assert_array_equal(source.records["age"], [1.0])


def test_an_indicator_puts_the_centre_and_tells_that_the_cell_was_missing() -> None:
    source = columns_of({**AGE, "missing": "indicator"}, ["60", "?"], private=True)
    np.testing.assert_array_equal(source.records["age"], [1.0, 0.0])
    np.testing.assert_array_equal(source.records["age_missing"], [0.0, 1.0])
    assert source.valid.all()


def test_text_in_a_number_is_refused_with_its_record_or_dropped() -> None:
    for missing in ({"impute": 60}, "drop", "indicator"):
        with pytest.raises(
            DataError, match="record 2: column `age` holds '5O', expected a num"
        ) as e:
            columns_of({**AGE, "missing": missing}, ["50", "5O"])
        assert "missing_values" in e.value.hint
    source = columns_of({**AGE, "missing": {"impute": 60}}, ["50", "5O"], private=True)
    np.testing.assert_array_equal(source.valid, [True, False])


# Levels and binary columns


def test_levels_become_their_index_and_codes_are_compared_as_numbers() -> None:
    source = columns_of(CP, ["1", "2.0", "1.0"])
    assert source.records["age"].dtype == np.int32
    np.testing.assert_array_equal(source.records["age"], [0, 1, 0])


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError) as error:
        columns_of(CP, ["1", "3"])
    assert error.value.message == (
        "north: record 2: column `age` holds '3', which is no declared level"
    )
    assert "known: `1`, `2`" in error.value.hint
    with pytest.raises(DataError, match="holds 'typcal'") as error:
        columns_of({"type": "level", "levels": ["typical", "none"]}, ["typcal"])
    assert "did you mean `typical`?" in error.value.hint


@pytest.mark.parametrize("column", [CP, SEX], ids=["level", "binary"])
def test_an_unknown_code_drops_the_record_as_declared(column: dict[str, Any]) -> None:
    source = columns_of({**column, "outside": "drop"}, ["1", "7"])
    np.testing.assert_array_equal(source.valid, [True, False])


def test_binary_codes_become_0_and_1() -> None:
    source = columns_of(SEX, ["m", "f", "1.0", "0"])
    assert source.records["age"].dtype == np.float64
    np.testing.assert_array_equal(source.records["age"], [1, 0, 1, 0])
    with pytest.raises(DataError, match="holds 'x', which is no declared value") as error:
        columns_of(SEX, ["x"])
    assert "`true` or `false`" in error.value.hint


@pytest.mark.parametrize(
    ("column", "impute", "value"), [(CP, "atypical", 1), (SEX, True, 1), (SEX, False, 0)]
)
def test_a_missing_code_is_imputed_marked_or_dropped(
    column: dict[str, Any], impute: object, value: float
) -> None:
    imputed = columns_of({**column, "missing": {"impute": impute}}, ["?"])
    np.testing.assert_array_equal(imputed.records["age"], [value])
    marked = columns_of({**column, "missing": "indicator"}, ["?", "1"])
    assert marked.records["age"][0] == 0
    np.testing.assert_array_equal(marked.records["age_missing"], [1, 0])
    dropped = columns_of({**column, "missing": "drop"}, ["?", "1"])
    np.testing.assert_array_equal(dropped.valid, [False, True])
    with pytest.raises(DataError, match="which means missing"):
        columns_of(column, ["?"])


# Whole tables


def heart(private: bool) -> Schema:
    return parse_schema(
        {
            "disease": {"type": "binary", "column": "num", "true": [1, 2], "false": [0]},
            "age": {**AGE, "missing": "indicator"},
            "cp": {**CP, "outside": "drop", "missing": "drop"},
        },
        private=private,
    )


def test_a_formula_gets_x_and_y_and_a_dropped_record_is_zero_everywhere() -> None:
    schema = heart(private=False)
    design = parse_formula("disease ~ age * cp", schema)
    table = {"num": ["0", "2", "1"], "age": ["60", "?", "45"], "cp": ["1", "2", "9"]}
    source = prepare(table, schema, design, private=False, where="north")
    assert design.names == (
        "(Intercept)",
        "age",
        "age[missing]",
        "cp[atypical]",
        "age:cp[atypical]",
    )
    np.testing.assert_array_equal(
        source.records["x"], [[1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(source.records["y"], [0, 1, 0])
    np.testing.assert_array_equal(source.valid, [True, True, False])
    assert {source.records[name].dtype for name in ("x", "y")} == {np.dtype(np.float64)}


def test_a_number_as_response_is_scaled_as_declared() -> None:
    schema = parse_schema({"age": AGE}, private=True)
    design = parse_formula("age ~ 1", schema)
    source = prepare({"age": ["60"]}, schema, design, private=True, where="north")
    np.testing.assert_array_equal(source.records["y"], [1.0])


def test_an_error_names_the_column_as_file_and_study_do() -> None:
    schema = heart(private=False)
    design = parse_formula("disease ~ 1", schema)
    with pytest.raises(DataError, match=r"column `num` \(`disease`\) holds '7'"):
        prepare({"num": ["7"]}, schema, design, private=False, where="north")
    with pytest.raises(DataError, match=r"^north: no column `num`, which `data\.schema\.disease`"):
        prepare({"nun": ["1"]}, schema, design, private=False, where="north")


def test_an_undeclared_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="`agee` is not declared") as error:
        prepare_columns({}, heart(True), ["agee"], private=True, where="north")
    assert "did you mean `age`?" in error.value.hint


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="differ in length"):
        prepare_columns(
            {"age": ["50"], "cp": []}, heart(True), ["age", "cp"], private=True, where="north"
        )


def test_an_empty_shard_is_refused_only_without_privacy() -> None:
    with pytest.raises(DataError, match=r"^north: the shard is empty, expected at least one") as e:
        columns_of(AGE, [])
    assert "take this client out" in e.value.hint
    source = columns_of(AGE, [], private=True)
    assert source.size == 0
    schema = heart(private=True)
    design = parse_formula("disease ~ age * cp", schema)
    empty = prepare({"num": [], "age": [], "cp": []}, schema, design, private=True, where="north")
    arrays, mask = empty.padded(3)
    assert arrays["x"].shape == (3, design.size)
    assert not mask.any()


def test_a_shard_whose_records_are_all_dropped_is_refused_only_without_privacy() -> None:
    with pytest.raises(DataError, match=r"^north: every record was dropped") as error:
        columns_of({**AGE, "missing": "drop"}, ["?", "?"])
    assert "[data.schema]" in error.value.hint
    assert not columns_of(AGE, ["?", "?"], private=True).valid.any()


@pytest.mark.parametrize("private", [True, False])
def test_one_record_is_enough(private: bool) -> None:
    schema = heart(private)
    design = parse_formula("disease ~ age", schema)
    table = {"num": ["1"], "age": ["50"]}
    source = prepare(table, schema, design, private=private, where="north")
    np.testing.assert_array_equal(source.records["x"], [[1, 0, 0]])


# Privacy

# Every cell carries this mark, which no error text has a reason to hold.
MARK = "8675309"
CELLS = st.one_of(
    st.text(max_size=8).map(lambda text: f"{text}{MARK}"),
    st.integers(-999, 999).map(lambda number: f"{number}{MARK}"),
    st.sampled_from([f"0.{MARK}", f"-{MARK}e300", f'"{MARK}', f"{MARK},{MARK}", f"{MARK}\n"]),
)
PRIVATE_TABLES = st.integers(0, 4).flatmap(
    lambda count: st.fixed_dictionaries(
        {
            name: st.lists(
                CELLS | st.sampled_from(["", "?", "nan", "1", "50"]), min_size=count, max_size=count
            )
            for name in ("num", "age", "cp")
        }
    )
)


@given(PRIVATE_TABLES)
@example({"num": ["x"], "age": ["\ud800"], "cp": ["\x00"]})
def test_no_content_of_a_record_stops_a_private_study(table: dict[str, list[str]]) -> None:
    schema = heart(private=True)
    design = parse_formula("disease ~ age * cp", schema)
    source = prepare(table, schema, design, private=True, where="north")
    assert source.size == len(table["num"])
    assert np.isfinite(source.records["x"]).all()


def test_a_schema_of_another_study_still_stops_no_private_one() -> None:
    schema = parse_schema({"age": {**AGE, "outside": "refuse"}}, private=False)
    source = prepare_columns({"age": ["7"]}, schema, ["age"], private=True, where="north")
    assert not source.valid.any()


def tables_of(lines: list[list[str]], header: bool) -> str:
    return ("num,age,cp\n" if header else "") + "".join(",".join(line) + "\n" for line in lines)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.lists(CELLS, min_size=1, max_size=5), min_size=1, max_size=4),
    header=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]),
    names=st.sampled_from([["num", "age", "cp"], ["num", "age", "absent"]]),
)
def test_no_error_of_reading_shows_a_cell(
    tmp_path: Path, lines: list[list[str]], header: bool, encoding: str, names: list[str]
) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes(tables_of(lines, header).encode(encoding, errors="replace"))
    error = error_of(lambda: read_table(path, names=names))
    if error is None:
        assert header
        return
    assert error.hint
    # Nor may the errors behind it: a log shows them all.
    assert error.__context__ is None
    assert MARK not in repr(error) + str(error)


def error_of(call: Callable[[], object]) -> FedviError | None:
    try:
        call()
    except FedviError as error:
        return error
    return None


@given(cells=st.lists(CELLS, min_size=1, max_size=9))
def test_no_error_of_padding_or_layout_shows_a_cell(cells: list[str]) -> None:
    source = columns_of({**AGE, "bounds": [-1e30, 1e30]}, cells, private=True)
    with pytest.raises(DataError) as error:
        source.padded(0, where="north")
    assert MARK not in str(error.value) + repr(source)
    schema = heart(private=True)
    with pytest.raises(DataError) as error:
        prepare_columns({"age": cells, "cp": []}, schema, ["age", "cp"], private=True, where="a")
    assert MARK not in str(error.value)


# What records are lost by


def told(raw: dict[str, Any], table: dict[str, list[str | None]]) -> list[str]:
    schema, said = parse_schema(raw, private=True), list[str]()
    parts = prepared(
        [table, table], schema, schema, None, private=True, where="north", tell=said.append
    )
    assert sum(part.size for part in parts) == 2 * len(table["sex"])
    return [line for line in said if "no record that counts has" not in line]


def test_the_rule_that_loses_records_is_told_without_a_number() -> None:
    raw = {"age": {**AGE, "outside": "drop"}, "sex": SEX, "cp": {**CP, "column": "pain"}}
    sound = {"age": ["30"] * 9, "sex": ["m"] * 9, "pain": ["1"] * 9}
    assert told(raw, sound) == []
    # Fewer than one in a hundred.
    long = {name: cells * 23 for name, cells in sound.items()}
    assert told(raw, {**long, "age": ["9", "9", *["30"] * 205]}) == []
    few = "at least one record in a hundred counts as zero, most of all because of the column"
    some = "more than half of the records count as zero, most of all because of the column"
    none = "no record counts, most of all because of the column"
    for name, cells, said in (
        ("age", ["30"] * 5 + ["9"] * 4, f"{few} `age`: numbers are outside the bounds"),
        ("age", ["30"] * 4 + ["9"] * 5, f"{some} `age`: numbers are outside the bounds"),
        ("age", ["3,5"] * 9, f"{none} `age`: cells have decimal commas"),
        ("age", ["old"] * 9, f"{none} `age`: cells are no numbers"),
        ("sex", ["M"] * 9, f"{none} `sex`: cells are none of those that the schema declares"),
        ("sex", ["?"] * 9, f'{none} `sex`: cells are missing, and missing = "drop"'),
        ("sex", [None] * 9, f"{none} `sex`: its line cannot be read"),
        ("pain", ["9"] * 9, f"{none} `pain` (data.schema.cp): cells are none of those"),
    ):  # fmt: skip
        (line,) = told(raw, {**sound, name: cells})
        assert line.startswith(f"north: {said}")
        assert not set(line) & set("0123456789")
    # Of two columns, that which lost more.
    (line,) = told(raw, {**sound, "age": ["9"] * 6 + ["30"] * 3, "sex": ["M"] * 8 + ["m"]})
    assert "`sex`" in line


def test_numbers_that_are_lost_are_told_as_texts_are() -> None:
    raw = {"sex": {"type": "count", "bounds": [0, 5], "outside": "drop"}}
    for value, said in ((np.nan, "missing"), (0.5, "no whole numbers"), (9.0, "outside")):
        lines = []
        for cells in (Numbers(np.array([value, value, 1.0])), [repr(value)] * 2 + ["1"]):
            schema = parse_schema(raw, private=True)
            list(
                prepared(
                    [{"sex": cells}],
                    schema,
                    schema,
                    None,
                    private=True,
                    where="n",
                    tell=lines.append,
                )
            )
        assert lines[0] == lines[1]
        assert said in lines[0]


def test_a_study_that_promises_nothing_names_the_column_that_dropped_every_record() -> None:
    raw = {"age": {**AGE, "missing": "drop"}}
    schema = parse_schema(raw, private=False)
    with pytest.raises(DataError, match=r"every record was dropped.*`age`: cells are missing"):
        list(prepared([{"age": ["?"]}], schema, schema, None, private=False, where="north"))


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
def test_a_first_record_that_begins_as_utf_16_does_stops_no_private_study(tmp_path, mark):
    path = tmp_path / "a.csv"
    path.write_bytes(mark + b"5,1\n6,2\n")
    wanted = Wanted(("a", "b"), columns=("a", "b"), private=True)
    (table,) = tables.chunks(path, wanted)
    assert table["b"] == ["1", "2"]
    for named in (wanted._replace(columns=None), wanted._replace(private=False)):
        with pytest.raises(DataError, match="UTF-16"):
            list(tables.chunks(path, named))


def test_levels_that_no_record_has_are_told_and_nothing_else_changes() -> None:
    schema = parse_schema({"cp": {**CP, "column": "pain"}, "sex": SEX}, private=True)
    table = {"pain": ["1", "x"], "sex": ["m", "m"]}
    said: list[str] = []
    list(prepared([table], schema, schema, None, private=True, where="north", tell=said.append))
    (line,) = [line for line in said if "no record that counts has" in line]
    assert line == "north: no record that counts has 'atypical' in `pain`: is it spelt otherwise?"
    empty = {"pain": ["x"], "sex": ["m"]}
    said.clear()
    list(prepared([empty], schema, schema, None, private=True, where="north", tell=said.append))
    assert not any("no record that counts" in line for line in said)
