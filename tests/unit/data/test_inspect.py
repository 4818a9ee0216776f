"""Claims about how a file is held against a schema, and how types are guessed; all of it is private."""

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data.guess import Guess, check_given, guess_columns
from fedvi.data.inspect import Fit, inspect_file, verdict
from fedvi.data.load import prepare_columns
from fedvi.data.names import column_names, separator_of
from fedvi.data.schema import parse_schema
from fedvi.errors import DataError

RAW: dict[str, Any] = {
    "died": {"type": "binary", "true": ["yes"], "false": ["no"]},
    "age": {"type": "number", "bounds": [18, 100], "missing": {"impute": 50}},
    "stay": {"type": "number", "bounds": [1, 60], "outside": "drop", "missing": "indicator"},
    "falls": {"type": "count", "bounds": [0, 5]},
    "stage": {"type": "level", "levels": ["I", "II"]},
}
SCHEMA = parse_schema(RAW, private=True)
TEXT = """died,age,stay,falls,stage,patient
yes,50,3,0,I,a
no,130,61,1,II,a
no,?,,2.5,III,b
maybe,17,5,6,I,b
no,old,5,7,I,
yes,50,3,0
yes,51,3,0,I,b
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "north.csv"
    path.write_text(TEXT)
    return path


def fit(path: Path, **options: Any) -> Fit:
    return inspect_file(path, SCHEMA, tuple(SCHEMA), private=True, **options)


def test_every_cell_gets_its_verdict_and_examples_are_shown(table: Path) -> None:
    found = {column.name: column for column in fit(table).columns}
    assert found["died"].counts == {"fits": 5, "unknown": 1, "unreadable": 1}
    assert found["died"].examples == {"unknown": [("maybe", 1)]}
    assert found["age"].counts == {
        "fits": 2,
        "outside": 2,
        "missing": 1,
        "unknown": 1,
        "unreadable": 1,
    }
    assert sorted(found["age"].examples["outside"]) == [("130", 1), ("17", 1)]
    assert (found["age"].clipped, found["age"].low, found["age"].high) == (2, 17.0, 130.0)
    assert found["stay"].counts["outside"] == found["stay"].dropped - 1 == 1
    assert found["stay"].clipped == 0
    # 2.5 is no count, 6 and 7 are clipped.
    assert found["falls"].counts == {"fits": 3, "outside": 2, "unknown": 1, "unreadable": 1}
    assert found["stage"].examples == {"unknown": [("III", 1)]}


def test_codes_for_missing_and_other_spellings_come_with_what_to_write(tmp_path: Path) -> None:
    schema = parse_schema(
        {
            "died": {"type": "binary", "true": ["yes"], "false": ["no"]},
            "age": {"type": "number", "bounds": [18, 100]},
            "stage": {"type": "level", "levels": ["low", "high"]},
            "grade": {
                "type": "level",
                "levels": ["I", "II"],
                "codes": {"1": "I", "2": "II"},
            },
        },
        private=True,
    )
    path = tmp_path / "north.csv"
    path.write_text(
        "died,age,stage,grade\nYES,50,Low,I\nno,999,unknown,ii\nmaybe,Unknown,HIGH,1\nno,120,mid,3\n"
    )
    found = inspect_file(path, schema, tuple(schema), private=True).columns
    assert {column.name: column.advice for column in found} == {
        "died": 'to read the spelling of this file, too: true = ["yes", "YES"]',
        "age": "if '999' or 'Unknown' means missing, add missing_values = [\"999\", \"Unknown\"]",
        "stage": "if 'unknown' means missing, add missing_values = [\"unknown\"]; to read the spelling of "
        'this file, too: codes = { low = "low", high = "high", HIGH = "high", Low = "low" }',
        # `codes` stand in the place of the levels' own names.
        "grade": "to read the spelling of this file, too: "
        'codes = { 1 = "I", 2 = "II", I = "I", ii = "II" }',
    }


def test_words_of_a_file_for_yes_and_no_are_advised_where_the_study_has_others(
    tmp_path: Path,
) -> None:
    schema = parse_schema({"died": {"type": "binary", "true": [1], "false": [0]}}, private=True)
    path = tmp_path / "north.csv"
    path.write_text("died\nNo\nYes\nNo\n")
    (found,) = inspect_file(path, schema, ("died",), private=True).columns
    advised = 'true = ["1", "Yes"] and false = ["0", "No"]'
    assert found.advice == f"to read the spelling of this file, too: {advised}"
    told = {"type": "binary", "true": ["1", "Yes"], "false": ["0", "No"]}
    (found,) = inspect_file(
        path, parse_schema({"died": told}, private=True), ("died",), private=True
    ).columns
    assert found.counts["fits"] == 3
    # Of a pair that is no yes and no, nothing is known.
    sexes = {"died": {"type": "binary", "true": ["m"], "false": ["f"]}}
    (found,) = inspect_file(
        path, parse_schema(sexes, private=True), ("died",), private=True
    ).columns
    assert not found.advice


def test_what_is_done_with_a_cell_is_said_in_words(table: Path) -> None:
    done = {column.name: column.done for column in fit(table).columns}
    assert done["age"]["missing"] == "taken as 50"
    assert done["age"]["outside"] == "clipped"
    assert done["stay"]["missing"] == "has a coefficient of its own"
    assert done["stay"]["outside"] == "record counts as zero"
    assert done["falls"]["unknown"] == "record counts as zero"
    public = inspect_file(
        table, parse_schema({"stage": RAW["stage"]}, private=False), ["stage"], private=False
    )
    assert public.columns[0].done["unknown"] == "refused"


def test_records_that_count_are_those_of_a_private_run(table: Path) -> None:
    found = fit(table)
    assert (found.rows, found.counting) == (7, 2)
    only_age = inspect_file(table, SCHEMA, ["age"], private=True)
    assert (only_age.rows, only_age.counting) == (7, 5)
    assert [column.used for column in only_age.columns] == [False, True, False, False, False]


def test_rows_of_a_patient_are_counted_and_what_is_left_out(table: Path) -> None:
    found = inspect_file(table, SCHEMA, ["stay"], private=True, unit_column="patient", most_rows=1)
    units = found.units
    assert units is not None
    assert (found.rows, found.counting) == (7, 2)
    # a: rows 1, and 2 which is dropped; b: rows 3, 4 and 7; nobody's: row 5, and 6 cannot be read.
    assert (units.units, units.without, units.left_out) == (2, 2, 2)
    assert units.rows == {1: 1, 3: 1}
    assert fit(table, unit_column="patient", most_rows=9).counting == 2


CELLS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            "",
            "?",
            "NA",
            "nan",
            "-inf",
            "1",
            "1.0",
            " 2 ",
            "18",
            "100",
            "101",
            "2.5",
            "yes",
            "no",
            "I",
            "x",
        ]
    ),
    st.integers(-200, 200).map(str),
)


@given(cells=st.lists(CELLS, min_size=1, max_size=20), name=st.sampled_from(list(RAW)))
def test_a_verdict_says_what_becomes_of_a_record(cells: list[str | None], name: str) -> None:
    column = SCHEMA[name]
    source = prepare_columns({name: cells}, SCHEMA, [name], private=True, where="north")
    for cell, valid in zip(cells, source.valid, strict=True):
        found = verdict(column, cell)
        lost = found in ("unknown", "unreadable")
        lost |= found == "missing" and column.missing == "drop"
        lost |= found == "outside" and column.outside == "drop"
        assert valid == (not lost)


def guessed(path: Path) -> dict[str, Guess]:
    names = column_names(path)
    found = guess_columns(path, names.columns, columns=None, separator=names.separator)
    return {guess.name: guess for guess in found}


def test_types_are_guessed_as_a_person_would(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = [
        f"{i:05d};p{i};{generator.normal():.3f};{generator.integers(18, 90)};{i % 2};{'mf'[i % 2]};"
        f"{'abc'[i % 3]};{i % 4};;{'1,5' if i else 'x'}"
        for i in range(200)
    ]
    path = tmp_path / "t.csv"
    path.write_text("id;name;z;age;died;sex;group;code;nothing;comma\n" + "\n".join(rows))
    found = guessed(path)
    assert {name: guess.kind for name, guess in found.items()} == {
        "id": "text",  # with zeros in front, a code
        "name": "text",
        "z": "number",
        "age": "number",
        "died": "binary",
        "sex": "binary",
        "group": "level",
        "code": "level",
        "nothing": "empty",
        "comma": "binary",
    }
    assert found["age"].whole
    assert not found["z"].whole
    assert found["nothing"].missing == 200
    assert dict(found["group"].values) == {"a": 67, "b": 67, "c": 66}


def test_spellings_of_a_number_are_one_value_and_unreadable_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"x,y\n1,a\n1.0,a\n01,b\nNA,c\nnan,c\n\xff,d\n2,d,e\n")
    found = guessed(path)["x"]
    # 01 may be a code, and another one than 1; the byte is a letter of Windows-1252.
    assert (found.different, found.missing, found.unreadable, found.cells) == (3, 2, 1, 7)


def test_the_same_columns_are_found_in_every_format(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    age, sex = np.array([30.0, 41.5, np.nan, 77.0]), np.array(["m", "f", "f", "m"])
    text = "age\tsex\n30\tm\n41.5\tf\n\tf\n77\tm\n"
    (tmp_path / "a.tsv").write_text(text)
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write(text.replace("\t", ","))
    np.savez(tmp_path / "a.npz", age=age, sex=sex)
    structured = np.zeros(4, [("age", "f8"), ("sex", "U1")])
    structured["age"], structured["sex"] = age, sex
    np.save(tmp_path / "a.npy", structured)
    table = pyarrow.table({"age": pyarrow.array(age, from_pandas=True), "sex": list(sex)})
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    parquet.write_table(table, tmp_path / "folder" / "part-0.parquet")
    found = [
        guessed(tmp_path / name)
        for name in ("a.tsv", "a.csv.gz", "a.npz", "a.npy", "a.parquet", "folder")
    ]
    assert all(each == found[0] for each in found)
    assert found[0]["age"][:6] == ("age", "number", 4, 1, 0, 3)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"1,2,3\n4,5,6\n", "does not begin with the names of its columns"),
        ("t.csv", b"a,a\n4,5\n", "each once"),
        ("t.csv", b"\n", "does not begin"),
        ("t.csv", b"", "the first line is empty"),
        ("t.csv", b"age," + b"x" * 200_000 + b"\n", "does not begin"),
        ("t.csv", "age,sex\n".encode("utf-16-le"), "no text in UTF-8"),
        ("t.csv", b"\xff\xfe", "no text in UTF-8"),
        ("t.csv.gz", b"no gzip", "cannot be read"),
        ("t.npz", b"no zip", "no file of arrays"),
        ("t.parquet", b"no parquet", "cannot be read as Parquet"),
    ],
)
def test_a_file_without_names_is_refused_and_not_shown(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as error:
        column_names(tmp_path / name)
    assert "4" not in str(error.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('"age, in years, or so";sex', ";"),
        ("1;2,5;3", ";"),
        ("1,2", ","),
        ("1\t2,5\t", "\t"),
        ("a|b", "|"),
        ("1", ","),
    ],
)
def test_the_separator_is_what_a_first_line_has_most(line: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "t.data").write_text(line + "\n1;;;;;;\n")
    assert separator_of(tmp_path / "t.data") == found


def test_lines_may_end_in_a_return_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"age,sex\r40,m\r50,f\r")
    assert column_names(tmp_path / "t.csv").columns == ("age", "sex")
    assert guessed(tmp_path / "t.csv")["age"].cells == 2


def test_a_folder_without_parts_is_said_so_and_what_is_hidden_is_no_part(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"no file in this folder ends in \.parquet"):
        column_names(tmp_path)
    for name, column in (("_index.parquet", "hidden"), ("b.parquet", "b"), ("a.parquet", "a")):
        parquet.write_table(pyarrow.table({column: [1]}), tmp_path / name)
    assert column_names(tmp_path).columns == ("a",)


def test_names_of_an_array_are_read_without_the_array(tmp_path: Path) -> None:
    path = tmp_path / "t.npy"
    kind = [("a", "f8"), ("b", "f8")]
    np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(4_000_000,)).flush()
    tracemalloc.start()
    try:
        assert column_names(path).columns == ("a", "b")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_long_numbers_that_differ_in_their_last_digit_are_two(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1234567890123456\n1234567890123457\n1.0\n1\n")
    assert guessed(tmp_path / "t.csv")["a"].values == (
        ("1", 2),
        ("1234567890123456", 1),
        ("1234567890123457", 1),
    )


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        column_names(tmp_path / "absent.csv")


def test_true_and_false_of_a_file_fit_as_the_study_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "north.npz"
    np.savez(path, died=np.array([True, False, True]))
    schema = parse_schema({"died": RAW["died"]}, private=True)
    found = inspect_file(path, schema, ("died",), private=True)
    assert found.columns[0].counts == {"fits": 3}
    assert (found.counting, found.lost) == (3, "")


def test_what_loses_most_records_is_said(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    path.write_text("died;age;stay;falls;stage\n" + "yes;50,5;3;0;I\n" * 9 + "maybe;50;3;0;I\n")
    found = fit(path, separator=";")
    assert (
        "no record counts, most of all because of the column `age`: cells have decimal"
        in found.lost
    )
    assert {column.name: column.commas for column in found.columns}["age"] == 9
    (_, age, *_) = guess_columns(path, column_names(path).columns, columns=None, separator=";")
    assert age.commas


BREAKS = 'age,note,died\n50,"fell,\nat home",yes\n60,well,no\n70,"a\r\nb",yes\n'


def test_a_cell_with_a_line_break_is_read_where_nothing_is_released_and_said_where_it_is_lost(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(BREAKS, newline="")
    names = ["age", "died"]
    schema = parse_schema({name: RAW[name] for name in names}, private=True)
    private = inspect_file(path, schema, names, private=True)
    assert (private.rows, private.counting) == (5, 1)
    assert "4 lines cannot be read: 2 records have a cell with a line break" in private.lost
    assert "save the table as Parquet" in private.lost
    # As the run of a study that promises nothing reads it, and a description of the file.
    public = inspect_file(path, schema, names, private=False)
    assert (public.rows, public.counting, public.lost) == (3, 3, "")
    ages = guess_columns(path, names, columns=None, separator=",")[0]
    assert (ages.cells, ages.unreadable, ages.high) == (3, 0, 70.0)
    # An open quote: nothing says where its record ends, so each line stands for itself.
    path.write_text(BREAKS + '80,"open,no\n90,x,yes\n', newline="")
    assert guess_columns(path, names, columns=None, separator=",")[0].unreadable == 5
    assert inspect_file(path, schema, names, private=False).rows == 7


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("1,2,x,4\n5,6,x,8\n", "R's write.table writes no name over the names of rows"),
        ("1,2,x,4,9\n5,6,x,8\n", "have more cells than there are columns"),
        ("1\n# a comment\n", "have fewer cells than there are columns"),
        ('1,"2,x\n5,"6,x\n', "have an open quote"),
    ],
)
def test_why_no_line_can_be_read_is_said(lines: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n" + lines)
    with pytest.raises(DataError) as error:
        guess_columns(path, ["a", "b", "c"], columns=None, separator=",")
    assert "no line after the first can be read" in error.value.message
    assert said in error.value.message
    schema = parse_schema({"a": {"type": "count", "bounds": [0, 9]}}, private=True)
    assert said in inspect_file(path, schema, ["a"], private=True).lost


def test_a_column_without_a_name_is_left_out_and_names_beside_a_header_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",dbp,sbp,sbp,died\n1,80,120,5,0\n2,90,140,6,1\n3,70,110,7,1\n")
    found = column_names(path)
    assert found.columns == ("dbp", "died")
    assert found.left_out == ("column 1 has no name", "2 columns are called 'sbp'")
    assert guess_columns(path, ["dbp"], columns=None, separator=",")[0].high == 90.0
    for names, said in (
        ("rpqst", "4 of them stand over numbers"),
        (("DBP", *"pqst"), "stand over"),
    ):
        with pytest.raises(DataError, match=said) as error:
            check_given(path, tuple(names), ",")
        assert "leave --columns out" in str(error.value.hint)
    path.write_text("dbp,sex\nhigh,m\nlow,f\n")
    with pytest.raises(DataError, match="1 of them are among yours"):
        check_given(path, ("pressure", "Sex"), ",")
    # Records alone, whose first one lacks a number.
    path.write_text("NA,m\n3,f\n4,f\n")
    check_given(path, ("age", "sex"), ",")
    path.write_text("m,,yes\n")
    with pytest.raises(DataError, match="a name is empty, or there twice"):
        column_names(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sep=;", "says what the separator is"),
        ("sep=,", "says what the separator is"),
        ("# made in 2024", "begins with #"),
    ],
)
def test_a_first_line_that_names_no_columns_is_refused_by_every_reader(
    line: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{line}\nage,sex\n50,m\n")
    schema = parse_schema({"age": RAW["age"]}, private=True)
    for read in (
        lambda: column_names(path),
        lambda: inspect_file(path, schema, ["age"], private=True),
    ):
        with pytest.raises(DataError, match=said) as error:
            read()
        assert "before the names" in str(error.value.hint)


def test_letters_that_nobody_sees_are_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('age\u00a0, "st\u200bay",\ufeffSEX\n50, "3",m\n', encoding="utf-8")
    assert column_names(path).columns == ("age", "stay", "SEX")
    schema = parse_schema({name: RAW[name] for name in ("age", "stay")}, private=True)
    assert inspect_file(path, schema, ["age", "stay"], private=True).counting == 1
    sex = {"type": "binary", "true": ["m"], "false": ["f"]}
    with pytest.raises(DataError, match="no column `sex`") as error:
        inspect_file(path, parse_schema({"sex": sex}, private=True), ["sex"], private=True)
    assert 'if "SEX" is meant' in str(error.value.hint)


@pytest.mark.parametrize(
    ("cells", "separator", "thousands", "commas"),
    [
        (["1.234", "987", "1.002", "450"], ";", True, False),
        (["1.234", "987"], ",", False, False),
        (["1.234", "98.7", "450"], ";", False, False),
        (["1.234", "4500"], ";", False, False),
        (["0.234", "987"], ";", False, False),
        (["1.555,3", "87,5", "2.024.901,0"], ";", False, True),
    ],
)
def test_points_that_may_stand_between_thousands_are_noticed(
    cells: list[str], separator: str, thousands: bool, commas: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"a{separator}b\n" + "".join(f"{cell}{separator}1\n" for cell in cells))
    (found, _) = guess_columns(path, ["a", "b"], columns=None, separator=separator)
    assert (found.thousands, found.commas) == (thousands, commas)


def test_names_between_blanks_are_known_for_those_of_r(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text('"age" "sex"\n"1" 50 "m"\n')
    with pytest.raises(DataError, match=r"blanks between the names") as error:
        column_names(path)
    assert "write.csv" in str(error.value.hint)
