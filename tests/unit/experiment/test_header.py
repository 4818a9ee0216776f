"""Claims about reading a file's header: names alone, and no cell of a record in any error."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from fedvi.errors import DataError
from fedvi.experiment.header import read_header

SECRET = "73.190283"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_names_and_separator_of_a_table(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f'died{separator}"Blood, pressure"\r\n1\r\n'.encode())
    assert read_header(path) == (("died", "Blood, pressure"), separator)
    path.write_text(f"died{separator} age \n1{separator}2\n")
    assert read_header(path) == (("died", "age"), separator)


def test_names_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"died": [1], "age": [float(SECRET)]}), path)
    assert read_header(path).columns == ("died", "age")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"1,{SECRET},m\n".encode(), "2 of 3 cells of the first line are numbers"),
        (f"\n{SECRET}\n".encode(), "the first line is empty"),
        (b"", "the first line is empty"),
        (b"age,age\n", "a cell of the first line is empty, or there twice"),
        (f"age,{SECRET}\n".encode("utf-16"), "is no text in UTF-8"),
        (SECRET.encode() * 20_000, "the first line is none of a CSV file"),
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
        read_header(path)
    assert said in error.value.message
    assert error.value.hint
    assert SECRET not in str(error.value)
    (tmp_path / "a.parquet").write_bytes(SECRET.encode())
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        read_header(tmp_path / "a.parquet")
