"""Claims about reading a file's header: names alone, and no cell of a record in any error."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from fedvi.data.names import column_names, doubt
from fedvi.errors import DataError

SECRET = "73.190283"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_names_and_separator_of_a_table(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f'died{separator}"Blood, pressure"\r\n1\r\n'.encode())
    assert column_names(path) == (("died", "Blood, pressure"), separator, ())
    path.write_text(f"died{separator} age \n1{separator}2\n")
    assert column_names(path) == (("died", "age"), separator, ())


def test_names_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"died": [1], "age": [float(SECRET)]}), path)
    assert column_names(path).columns == ("died", "age")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"1,{SECRET},m\n".encode(), "2 of 3 are numbers"),
        (f"\n{SECRET}\n".encode(), "the first line is empty"),
        (b"", "the first line is empty"),
        (b"age,age\n", "a name is empty, or there twice"),
        (f"age,{SECRET}\n".encode("utf-16"), "it is no text in UTF-8"),
        (SECRET.encode() * 20_000, "a name is empty, or there twice"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_header_is_refused_and_not_shown(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "a.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as error:
        column_names(path)
    assert said in error.value.message
    assert error.value.hint
    assert SECRET not in str(error.value)
    (tmp_path / "a.parquet").write_bytes(SECRET.encode())
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        column_names(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("line", "values", "words"),
    [
        ("age,sex,died,male,no", 0, 2),
        ("y,t,n,x1", 0, 0),
        ("smith,2024-01-31,II", 1, 0),
        ("smith,31.1.2024,TRUE", 2, 0),
        ("NA,m,yes", 1, 2),
        ('"3,5",a', 1, 0),
    ],
)
def test_a_line_of_words_is_judged_by_what_no_column_is_called(
    line: str, values: int, words: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(line + "\n")
    assert doubt(column_names(path).columns) == (values, words)


def test_the_flag_is_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,2\n")
    with pytest.raises(DataError, match=r"^--from .*a\.csv does not begin") as error:
        column_names(path, flag="--from")
    assert "--columns age,sex" in error.value.hint
