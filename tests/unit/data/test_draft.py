"""Claims about a drafted schema: it does not run before a person has stated what may not come from data."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi.data.draft import Draft, Options, draft_schema, rounded_out, suggested, words_for_missing
from fedvi.data.guess import guess_columns
from fedvi.data.inspect import verdict
from fedvi.data.names import column_names
from fedvi.data.schema import parse_schema
from fedvi.errors import ConfigError

TEXT = "age,ISS score,sex,stage,died,note,falls\n" + "".join(
    f"{29 + i % 49},{i % 40}.5,{'mf'[i % 2]},{['III', 'II', 'I'][i % 3]},{i % 2},text {i},{i % 9}\n"
    for i in range(100)
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "north.csv"
    path.write_text(TEXT)
    return path


def drafted(path: Path, **options: Any) -> Draft:
    names = column_names(path)
    guesses = guess_columns(path, names.columns, columns=None, separator=names.separator)
    return draft_schema(guesses, Options(path.name, **options))


def test_no_bound_of_a_draft_comes_from_the_data(table: Path) -> None:
    found = drafted(table, response="died")
    assert found.open == (
        "data.schema.age.bounds",
        "data.schema.ISS_score.bounds",
        "data.schema.falls.bounds",
    )
    raw = tomllib.loads(found.text)["data"]["schema"]
    assert raw["age"] == {"type": "number", "bounds": []}
    assert raw["ISS_score"] == {"column": "ISS score", "type": "number", "bounds": []}
    # Neither as a value nor in a comment.
    for extreme in ("29", "77", "39.5"):
        assert extreme not in found.text
    with pytest.raises(ConfigError, match=r"data\.schema\.age\.bounds: \[\], expected") as error:
        parse_schema(raw, private=True)
    assert "without looking at the data" in str(error.value)


def test_a_draft_with_stated_bounds_is_a_schema(table: Path) -> None:
    bounds = {"age": (18.0, 100.0), "ISS score": (0.0, 75.0), "falls": (0.0, 20.0)}
    found = drafted(table, response="died", bounds=bounds)
    assert found.open == ()
    assert found.confirm == ("data.schema.sex.true", "data.schema.stage.levels")
    schema = parse_schema(tomllib.loads(found.text)["data"]["schema"], private=True)
    assert list(schema) == ["age", "ISS_score", "sex", "stage", "died", "falls"]
    assert schema["ISS_score"].column == "ISS score"
    assert schema["age"].bounds == (18.0, 100.0)  # type: ignore[union-attr]
    assert schema["stage"].levels == ("I", "II", "III")  # type: ignore[union-attr]
    assert schema["died"].missing == "drop"
    assert found.formula == "died ~ age + ISS_score + sex + stage + falls"


def test_text_is_no_covariate(table: Path) -> None:
    found = drafted(table)
    assert '# "note" holds text' in found.text
    assert "text 7" not in found.text
    assert found.formula is None


def test_bounds_from_data_are_wider_than_the_data_and_marked(table: Path) -> None:
    found = drafted(table, response="falls", from_data=True)
    raw = tomllib.loads(found.text)["data"]["schema"]
    assert raw["age"]["bounds"] == [20, 80]
    assert (raw["falls"]["type"], raw["falls"]["bounds"]) == ("count", [0, 8])
    parse_schema(raw, private=False)
    marked = [line for line in found.text.splitlines() if line.startswith("bounds")]
    assert len(marked) == 3
    assert all(line.endswith("# FROM THE DATA") for line in marked)
    assert "not private" in found.text


@pytest.mark.parametrize(
    ("low", "high"), [(29, 77), (-0.3, 0.31), (1e6, 5e6), (0.001, 0.002), (3, 3), (0, 1e-9)]
)
def test_rounding_out_holds_the_interval(low: float, high: float) -> None:
    least, largest = rounded_out(float(low), float(high))
    assert least <= low
    assert high <= largest
    assert largest - least <= 3 * max(high - low, 1.0 if low == high else 0.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"response": "dead"}, "--response names the column 'dead'"),
        ({"bounds": {"agee": (1.0, 2.0)}}, "--bounds names the column 'agee'"),
        ({"bounds": {"stage": (1.0, 2.0)}}, "of a column that holds text"),
    ],
)
def test_what_names_no_column_is_refused(options: dict[str, Any], said: str, table: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        drafted(table, **options)


def test_an_identifier_is_no_covariate_and_numbers_that_often_mean_missing_are_drafted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "Sample code,veil,nuclei,cost,died\n"
        + "".join(
            f"{7_000 + i // 2},p,{-9 if i % 9 == 3 else 1 + i % 10},{3 * i},{i % 2}\n"
            for i in range(180)
        )
    )
    found = drafted(path, response="died")
    assert '# "Sample code" identifies records or people, by its name' in found.text
    assert 'unit_column = "Sample code" under [data]' in found.text
    # One level is no level for a study.
    assert '# "veil" is the same in all records of this file' in found.text
    # Whole numbers that all differ may be amounts: they stay.
    assert found.formula == "died ~ nuclei + cost"
    assert "missing_values = [-9]   # CONFIRM: taken as missing" in found.text
    assert "data.schema.nuclei.missing_values" in found.confirm


def test_a_nan_among_levels_is_drafted_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("grade,sex\n" + "1,m\n2,f\n3,nan\nnan,m\n" * 5)
    raw = tomllib.loads(drafted(path).text)["data"]["schema"]
    assert raw["grade"]["missing_values"] == raw["sex"]["missing_values"] == ["nan"]
    schema = parse_schema(raw, private=True)
    assert all(verdict(column, "nan") == "missing" for column in schema.values())


def test_a_response_that_no_model_can_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("name,gone,y\n" + "".join(f"p{i},,{i % 2}\n" for i in range(9)))
    for name, said in (("name", "holds text of many kinds"), ("gone", "has no value")):
        with pytest.raises(ConfigError, match=said):
            drafted(path, response=name)


@pytest.mark.parametrize("name", ["2nd", "a b", "a-b", 'quo"te', "#", "é ü", "_x", "x[1]"])
def test_odd_names_of_columns_make_a_draft_that_reads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **{name: np.arange(30.0), "a_b": np.arange(30.0)})
    found = drafted(path, bounds={name: (0.0, 40.0), "a_b": (0.0, 40.0)})
    raw = tomllib.loads(found.text)["data"]["schema"]
    schema = parse_schema(raw, private=True)
    assert sorted(column.column for column in schema.values()) == sorted([name, "a_b"])


@pytest.mark.parametrize(
    ("false", "true"),
    [("False", "True"), ("FALSE", "TRUE"), ("no", "yes"), ("N", "Y"), ("F", "T"), ("nein", "ja"),
     ("Nein", "Ja"), ("n", "j"), ("off", "on"), ("No", "YES"), ("non", "oui")],
)  # fmt: skip
def test_words_for_true_and_false_are_drafted_the_right_way_round(
    false: str, true: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    for first, second in ((false, true), (true, false)):
        path.write_text("died,a\n" + f"{first},1\n{second},2\n{true},2\n" * 5)
        found = drafted(path)
        raw = tomllib.loads(found.text)["data"]["schema"]["died"]
        assert (raw["false"], raw["true"]) == ([false], [true])
        assert not any(key.startswith("data.schema.died") for key in found.confirm)


def test_numbers_with_decimal_commas_are_no_levels_and_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dose;age;y\n" + "0,5;41;0\n1,5;50,5;1\n0,5;3;1\n" * 9)
    found = drafted(path, response="y")
    assert list(tomllib.loads(found.text)["data"]["schema"]) == ["y"]
    assert found.text.count("numbers with decimal commas") == 2
    assert found.formula == "y ~ 1"
    with pytest.raises(ConfigError, match="'dose', which has decimal commas") as error:
        drafted(path, response="dose")
    assert "3.5 for 3,5" in error.value.hint


def test_few_decimal_commas_among_numbers_are_no_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dose;y\n" + "".join(f"{i}.5;1\n" for i in range(99)) + "3,5;0\n")
    (dose,) = guess_columns(path, ("dose",), columns=None, separator=";")
    assert (dose.commas, dose.odd) == (True, ())
    with pytest.raises(ConfigError, match="has decimal commas"):
        drafted(path, bounds={"dose": (0.0, 99.0)})


def test_a_few_words_among_numbers_leave_a_column_one_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "age,lactate,grade,dose\n"
        + "".join(f"{18 + i % 60},0.{i % 70},{i % 4},{i}\n" for i in range(95))
        + 'unknown,<0.5,none,refused by a Smith\n30,<0.5,1,5\n50,>20,2,3.5\n50,>20,2,"3,5"\n1,1,1,"3,5"\n'
    )
    (age, lactate, grade, dose) = guess_columns(
        path, column_names(path).columns, columns=None, separator=","
    )
    assert (age.kind, age.low, age.high, age.whole) == ("number", 1.0, 77.0, True)
    assert (age.odd, lactate.odd) == ((("unknown", 1),), (("<0.5", 2), (">20", 2)))
    # A grade of few whole numbers, and none, has levels.
    assert (grade.kind, grade.odd, dose.kind) == ("level", (), "number")
    found = drafted(path, bounds={"lactate": (0.0, 20.0), "age": (0.0, 99.0), "dose": (0.0, 99.0)})
    raw = tomllib.loads(found.text)["data"]["schema"]
    assert raw["age"]["missing_values"] == ["unknown"]
    assert raw["lactate"] == {
        "type": "number",
        "bounds": [0, 20],
        "missing_values": ["<0.5", ">20"],
    }
    assert raw["grade"]["levels"] == ["0", "1", "2", "3", "none"]
    assert found.confirm == (
        "data.schema.age.missing_values",
        "data.schema.lactate.missing_values",
        "data.schema.grade.levels",
    )
    # What one record alone says stays out, and a decimal comma is mended in the file.
    assert "missing_values" not in raw["dose"]
    assert "Smith" not in found.text
    assert found.text.count("More cells are no numbers") == 1
    schema = parse_schema(raw, private=True)
    assert [verdict(schema["lactate"], cell) for cell in ("<0.5", "3")] == ["missing", "fits"]


def test_a_column_with_more_words_than_one_in_ten_holds_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dose\n" + "".join(f"0.{i}\n" for i in range(88)) + "low\n" * 12)
    with pytest.raises(ConfigError, match="of a column that holds text") as error:
        drafted(path, bounds={"dose": (0.0, 1.0)})
    assert "nine in ten" in error.value.hint


@pytest.mark.parametrize(
    "levels",
    [
        ["I", "II", "III", "IV", "V", "IX", "X"],
        ["alpha", "beta", "gamma"],
        ["-1", "0.5", "2", "10"],
        ["T1", "T2", "T10"],
        ["Stage I", "Stage IIA", "Stage IIB", "Stage III", "Stage IV"],
        ["im", "iv", "po"],
        ["1", "2", "10", "unknown"],
    ],
)
def test_levels_come_in_the_order_of_what_they_say(levels: list[str], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("stage\n" + "\n".join(sorted(levels, key=lambda level: level[::-1]) * 3) + "\n")
    (stage,) = guess_columns(path, ("stage",), columns=None, separator=",")
    (found,) = draft_schema([stage._replace(kind="level")], Options("t.csv")).text.splitlines()[-1:]
    assert tomllib.loads(found)["levels"] == levels


@pytest.mark.parametrize("name", ["a\x7fb", "a\u202eb"])
def test_a_name_that_cannot_be_seen_is_left_out(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **{name: np.arange(30.0), "a": np.arange(30.0)})
    found = drafted(path, bounds={"a": (0.0, 40.0)}, response="a")
    assert list(tomllib.loads(found.text)["data"]["schema"]) == ["a"]
    assert "rename it in the file" in found.text
    assert name not in found.text
    assert found.formula == "a ~ 1"


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (["18.25", "93.5", "40.75"], None, "number"),  # never a bound
        (["1", "0"], None, "binary:1/0"),
        (["yes", "no"], None, "binary:yes/no"),
        (["m", "f"], None, "binary:m/f"),
        (["a/b", "c"], None, None),  # cannot be spelt
        (["III", "I", "II"], None, "level:I,II,III"),
        (["a,b", "c", "d"], None, "level"),
        (["1", "0"], "level", "level:0,1"),  # the model's type goes before the looks
        (["m", "f"], "number", "number"),
        (["NO", ">30", "<30"], "binary", None),  # which of them are true, nobody can guess
        (["4.5", "3.5", "1.5"], "binary", None),
        (["No"], None, "level"),  # one level is none: they are asked for
        (["3", "1", "2"], "number", "number"),
        ([f"text {i}" for i in range(40)], None, None),
    ],
)
def test_a_suggestion_is_what_a_column_looks_like_without_any_range(
    tmp_path: Path, cells: list[str], kind: str | None, expected: str | None
) -> None:
    path = tmp_path / "north.csv"
    twice = 1 if len(cells) > 9 else 3
    path.write_text("x;y\n" + "".join(f"{cell};1\n" for cell in cells * twice))
    (guess,) = guess_columns(path, ["x"], columns=None, separator=";")
    assert suggested(guess, kind) == expected


@pytest.mark.parametrize("rest", [["I", "II"], ["m"]])
def test_no_suggestion_has_a_level_of_one_record_alone(tmp_path: Path, rest: list[str]) -> None:
    path = tmp_path / "north.csv"
    path.write_text("x,y\n" + "".join(f"{cell},1\n" for cell in [*rest * 5, "rare"]))
    (guess,) = guess_columns(path, ["x"], columns=None, separator=",")
    assert "rare" not in (suggested(guess) or "")


def test_words_of_a_column_of_numbers_are_offered_as_missing_unless_one_record_alone_has_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "north.csv"
    path.write_text("x,y\n" + "".join(f"{i}.5,1\n" for i in range(90)) + "lost,1\n" * 2 + "Ann,1\n")
    (guess,) = guess_columns(path, ["x"], columns=None, separator=",")
    assert words_for_missing(guess, "number") == ["lost"]
    assert words_for_missing(guess, "level") == []
