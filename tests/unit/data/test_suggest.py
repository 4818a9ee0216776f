"""Claims about what is suggested of a column: no bound of the data, and no value of one record alone."""

from pathlib import Path

import pytest

from fedvi.data.guess import Guess, guess_columns
from fedvi.data.names import column_names
from fedvi.data.suggest import suggested, values_of, words_for_missing


def seen(path: Path) -> tuple[Guess, ...]:
    names = column_names(path)
    return guess_columns(path, names.columns, columns=None, separator=names.separator)


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (["18.25", "93.5", "40.75"], None, "number"),  # never a bound
        (["1", "0"], None, "binary:1/0"),
        (["yes", "no"], None, "binary:yes/no"),
        (["m", "f"], None, "binary:m/f"),
        (["a/b", "c"], None, None),  # cannot be spelt
        (["no", "unknown"], None, None),  # the other answer may be in another site's file
        (["III", "I", "II"], None, "level:I,II,III"),
        (["a,b", "c", "d"], None, 'level:"a,b",c,d'),
        (["a=b", "c", "d"], None, 'level:"a=b",c,d'),
        (['a"b', "c", "d"], None, "level"),  # cannot be spelt
        (["1", "0"], "level", "level:0,1"),  # the model's type goes before the looks
        (["m", "f"], "number", "number"),
        (["NO", ">30", "<30"], "binary", None),  # which of them are true, nobody can guess
        (["4.5", "3.5", "1.5"], "binary", None),
        (["No"], None, "level"),  # one level is none: they are asked for
        (["3", "1", "2"], "number", "number"),
        (["m", "M", "f"], None, "binary:M,m/f"),  # no two levels
        (["ja", "Ja", "nein"], "binary", "binary:Ja,ja/nein"),
        (["M", "m", "unknown"], None, "level:M,m,unknown"),
        (["low", "Low", "high", "medium"], None, "level:Low,low,medium,high"),
        (["3", "1", "2"], None, "level:1,2,3"),
        ([str(i) for i in range(7)], None, None),  # codes or numbers: only a person can tell
        ([str(i) for i in range(7)], "level", "level:0,1,2,3,4,5,6"),
        ([str(i) for i in range(7)], "count", "count"),
        ([str(i % 21) for i in range(42)], None, "number"),
        ([f"{i}.5" for i in range(7)], None, "number"),
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


@pytest.mark.parametrize(
    ("false", "true"),
    [("False", "True"), ("FALSE", "TRUE"), ("no", "yes"), ("N", "Y"), ("F", "T"), ("nein", "ja"),
     ("Nein", "Ja"), ("n", "j"), ("off", "on"), ("No", "YES"), ("non", "oui")],
)  # fmt: skip
def test_words_for_true_and_false_are_suggested_the_right_way_round(
    false: str, true: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    for first, second in ((false, true), (true, false)):
        path.write_text("died,a\n" + f"{first},1\n{second},2\n{true},2\n" * 5)
        assert suggested(seen(path)[0]) == f"binary:{true}/{false}"


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
        ["married", "single", "widowed", "unknown"],
        ["[0-10)", "[10-20)", "[20-30)", "[90-100)", "[100-110)"],
        ["<18", "18-44", "45-64", "65+", "not known"],
        ["under 5", "5 to 9", "10 to 14", "15 and over"],
        ["-10..0", "0..10", ">10"],
        ["jan", "feb", "mar", "dec"],
    ],
)
def test_levels_come_in_the_order_of_what_they_say(levels: list[str], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("stage\n" + "\n".join(sorted(levels, key=lambda level: level[::-1]) * 3) + "\n")
    assert list(values_of(seen(path)[0])) == levels


def test_a_few_words_among_numbers_leave_a_column_one_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "age,lactate,grade,dose\n"
        + "".join(f"{18 + i % 60},0.{i % 70},{i % 4},{i}\n" for i in range(95))
        + 'unknown,<0.5,none,refused by a Smith\n30,<0.5,1,5\n50,>20,2,3.5\n50,>20,2,"3,5"\n1,1,1,"3,5"\n'
    )
    age, lactate, grade, dose = seen(path)
    assert (age.kind, age.low, age.high, age.whole) == ("number", 1.0, 77.0, True)
    assert (age.odd, lactate.odd) == ((("unknown", 1),), (("<0.5", 2), (">20", 2)))
    # A grade of few whole numbers, and none, has levels.
    assert (grade.kind, grade.odd, dose.kind) == ("level", (), "number")
    assert words_for_missing(age, "number") == ["unknown"]
    assert words_for_missing(lactate, "number") == ["<0.5", ">20"]
    assert values_of(grade) == ("0", "1", "2", "3")
    # What one record alone says stays out, and a decimal comma is mended in the file.
    assert words_for_missing(dose, "number") == []


def test_a_nan_among_levels_is_offered_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("grade,sex\n" + "1,m\n2,f\n3,nan\nnan,m\n" * 5)
    grade, sex = seen(path)
    assert words_for_missing(grade, "level") == words_for_missing(sex, "binary") == ["nan"]


def test_decimal_commas_are_no_levels_and_no_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dose;age;y\n" + "0,5;41;0\n1,5;50,5;1\n0,5;3;1\n" * 9)
    dose, age, _ = seen(path)
    assert suggested(dose) is suggested(age) is None
    path.write_text("dose;y\n" + "".join(f"{i}.5;1\n" for i in range(99)) + "3,5;0\n")
    dose, _ = seen(path)
    assert (dose.commas, dose.odd) == (True, ())


def test_a_column_with_more_words_than_one_in_ten_holds_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dose\n" + "".join(f"0.{i}\n" for i in range(88)) + "low\n" * 12)
    assert seen(path)[0].kind == "text"
