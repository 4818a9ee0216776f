"""Claims about a first line of words: whether it is a record is told by the lines below it."""

from pathlib import Path

import pytest

from fedvi.data.guess import check_names, guess_columns
from fedvi.data.names import column_names
from fedvi.errors import DataError

NAMED = "outcome,stage,ward\n"
WORDS = "dead,II,north\nalive,I,south\nalive,II,east\n"


def judged(path: Path, text: str) -> None:
    path.write_text(text)
    names = column_names(path)
    check_names(path, names.columns, names.separator, "name them")
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
