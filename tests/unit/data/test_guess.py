"""Claims about a first line of words: whether it is a record is told by the lines below it."""

from pathlib import Path

import pytest

from fedvi.data import guess as guess_module
from fedvi.data.guess import check_names, guess_columns, is_identifier, repeats
from fedvi.data.names import column_names
from fedvi.errors import DataError

NAMED = "outcome,stage,ward\n"
WORDS = "dead,II,north\nalive,I,south\nalive,II,east\n"


def judged(path: Path, text: str) -> None:
    path.write_text(text)
    names = column_names(path)
    check_names(path, names.columns, names.separator)
    guess_columns(path, names.columns, columns=None, separator=names.separator)


@pytest.mark.parametrize(
    "text",
    [
        WORDS * 4,
        # One column has a cell of its own in every record, so that its first one does not come again.
        "".join(f"{'dead' if i % 2 else 'alive'},{'I' * (1 + i % 3)},p{i}\n" for i in range(18)),
        # The header of a second file in the middle of the first.
        NAMED + WORDS * 4 + NAMED + WORDS,
        # One of two columns that repeat, of which the other began with its rarest cell.
        "seldom,m\n" + "often,f\nalways,m\n" * 9,
        # A column of numbers of which the first is missing.
        "dead,seldom,NA\n" + "alive,seldom,3.5\ndead,outcome,4\n" * 9,
    ],
)  # fmt: skip
def test_words_that_stand_again_in_their_own_columns_are_no_names(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(DataError, match=r"stand again further down") as error:
        judged(path, text)
    for cell in ("dead", "seldom", "outcome"):
        assert cell not in str(error.value)
    names = column_names(path).columns
    with pytest.raises(DataError, match=r"stand again") as error:
        guess_columns(path, names, columns=None, separator=",")
    assert "--columns age,sex" in error.value.hint
    # Named by flag, the first line is one record more.
    declared = [f"c{place}" for place in range(len(names))]
    (first, *_) = guess_columns(path, declared, columns=declared, separator=",")
    assert first.cells == len(text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        NAMED + WORDS * 4,
        # A word over numbers is a name, whatever stands elsewhere.
        "age,other\n" + "50,other\n60,none\n" * 9,
        # That is what sodium is called.
        "outcome,NA\n" + "dead,140\nalive,138\n" * 9,
        '"age",other\n' + '"50,5",other\n"60,1",none\n' * 9,
        # One of three is called like one of its cells.
        "stage,ward,other\n" + "I,north,other\nII,south,none\n" * 9,
        # In another column than its own.
        "north,dead\n" + "alive,north\ndead,south\n" * 9,
        # Nothing repeats: nobody can tell.
        "smith,a1\njones,b2\n",
    ],
)
def test_names_that_may_be_names_are_taken_for_them(text: str, tmp_path: Path) -> None:
    judged(tmp_path / "a.csv", text)


@pytest.mark.parametrize(
    ("name", "cells", "expected"),
    [
        ("patient_id", [f"P{i % 40}" for i in range(100)], True),  # repeats, with many values
        ("MRN", [str(100_000 + i % 30) for i in range(100)], True),
        ("PatientID", [f"P{i % 4}" for i in range(100)], True),
        ("row_id", [str(i) for i in range(100)], True),
        ("key", [f"a{i}" for i in range(100)], True),  # no such name, and no cell twice
        ("number", [str(7 * i) for i in range(100)], True),
        ("note", [f"text {i}" for i in range(97)] + ["none"] * 3, True),
        ("patient_nbr", [str(8_222_157 + i % 90) for i in range(100)], True),
        ("uniquepid", [f"002-{i % 60}" for i in range(100)], True),
        ("USUBJID", [f"S-{i % 20}" for i in range(100)], True),
        ("patientunitstayid", [str(141_764 + i % 95) for i in range(100)], True),
        ("admission_type_id", [str(i % 8) for i in range(100)], False),  # codes of a list: a level
        ("Sample code number", [str(1_000_025 + i % 90) for i in range(100)], True),
        ("Case No.", [str(i % 80) for i in range(100)], True),
        ("specimen_code", [str(i % 8) for i in range(100)], False),  # codes of a list
        ("case_count", [str(i % 80) for i in range(100)], False),
        ("site_id", [str(i % 80) for i in range(100)], True),
        ("covid", [str(i % 80) for i in range(100)], False),
        ("note", [f"text {i % 70}" for i in range(100)], False),
        ("hospital_id", [f"H{i % 4}" for i in range(100)], False),  # few values: a level
        ("crp", [f"{i}.5" for i in range(100)], False),  # measurements nearly all differ
        ("cost", [str(i // 2) for i in range(100)], False),
        ("key", ["a", "b", "c", "d"], False),  # too few to tell
        ("patient_id", [""] * 30, False),
    ],
)
def test_an_identifier_is_known_by_its_name_or_as_nearly_all_cells_differ(
    tmp_path: Path, name: str, cells: list[str], expected: bool
) -> None:
    path = tmp_path / "north.csv"
    path.write_text(f"{name},age\n" + "".join(f"{cell},{i % 9}\n" for i, cell in enumerate(cells)))
    (guess,) = guess_columns(path, [name], columns=None, separator=",")
    assert is_identifier(guess) == expected


def test_codes_of_a_list_are_levels_and_a_few_patients_are_not(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    rows = "".join(f"{i % 8},{i % 8},{i % 30}\n" for i in range(100))
    path.write_text(f"admission_type_id,visits,patient_id\n{rows}")
    names = ["admission_type_id", "visits", "patient_id"]
    guesses = guess_columns(path, names, columns=None, separator=",")
    assert [guess.kind for guess in guesses] == ["level", "number", "number"]


def test_identifiers_that_are_too_many_to_be_told_apart_do_not_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guess_module, "_KEPT", 50)
    path = tmp_path / "north.csv"
    path.write_text("id,of\n" + "".join(f"{i},{i // 2}\n" for i in range(100)))
    own, shared = guess_columns(path, ["id", "of"], columns=None, separator=",")
    assert not repeats(own)
    assert repeats(shared)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([*range(18, 90), 999, 999, -9, -9], [("-9", 2), ("999", 2)]),
        ([*range(18, 99), 99, 99], []),  # an age
        ([*range(20), 99, 99], [("99", 2)]),
        ([*range(-40, 40), -9, -9, -1, -1], []),  # a base excess
        ([*range(18, 90), 999], []),  # of one record alone
        ([*range(18, 90), 998, 998], []),  # no such code
        ([1.5, 2.25, 3.125, -1, -1], [("-1", 2)]),
        ([-1, -1, 99, 99], []),  # of nothing else
        ([*range(2000, 2020), 9999, 9999, 9999.0], [("9999", 3)]),
    ],
)
def test_numbers_far_beyond_all_others_may_mean_missing(
    values: list[float], found: list[tuple[str, int]], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("value,y\n" + "".join(f"{value},1\n" for value in values))
    (guess,) = guess_columns(path, ["value"], columns=None, separator=",")
    assert list(guess.stand_ins) == found
