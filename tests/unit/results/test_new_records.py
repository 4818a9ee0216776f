"""Claims about new records: which line is a header, and that no record is lost."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.results import new_records
from fedvi.study import build
from fedvi.study.config import parse_study
from tests.studies import raw_study

NUMBER = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}


def read(
    formula: str, columns: list[str] | None, path: Path, *also: str
) -> list[new_records.Chunk]:
    raw: dict[str, Any] = raw_study(["c0"], 1, solver={"kind": "glm"})
    raw["model"] = {"kind": "logistic", "formula": formula}
    raw["data"] = {"schema": {"y": {"type": "binary"}, "a": NUMBER}}
    if columns is not None:
        raw["data"]["columns"] = columns
    study = parse_study(raw)
    assembly = build.assemble(study)
    names = [] if formula == "y ~ 1" else ["a"]
    return list(new_records.chunks(study, assembly.schema, names, path, also))


@pytest.mark.parametrize(
    ("text", "columns", "count"),
    [
        ("1,2\n0,3\n", ["y", "a"], 2),
        ("y,a\n1,2\n0,3\n", ["y", "a"], 2),
        ("a\n2\n3\n", ["y", "a"], 2),
        ("y,a\n1,2\n0,3\n", None, 2),
    ],
)
def test_a_formula_without_columns_loses_no_record_to_a_header(
    text: str, columns: list[str] | None, count: int, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(text)
    (part,) = read("y ~ 1", columns, tmp_path / "new.csv")
    assert len(part.reasons) == count
    assert part.fits.all()


def test_a_line_that_is_broken_keeps_its_place_and_the_others_their_ids(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfa,id\r\n1,x\r\n\r\n2\x00,=1+1\r\n3\r\n"4,y\r\n1e999,z\r\n5,w'
    (tmp_path / "new.csv").write_bytes(content)
    (part,) = read("y ~ a", None, tmp_path / "new.csv", "id")
    assert list(part.cells["id"]) == ["x", "=1+1", None, None, "z", "w"]
    assert part.fits.tolist() == [True, False, False, False, False, True]


HEADED = "y,a,id\n1,2,007\n0,250,b\n?,x,c\n"


def written(folder: Path, suffix: str) -> Path:
    """The same three records in a format."""
    path = folder / f"new{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = {"y": ["1", "0", "?"], "a": ["2", "250", "x"], "id": ["007", "b", "c"]}
        parquet.write_table(pyarrow.table(table), path)
    elif suffix == ".npz":
        np.savez(path, y=["1", "0", "?"], a=["2", "250", "x"], id=["007", "b", "c"])
    elif suffix == ".csv.gz":
        path.write_bytes(gzip.compress(HEADED.encode()))
    elif suffix == ".tsv":
        path.write_text(HEADED.replace(",", "\t"))
    else:
        path.write_bytes(HEADED.replace("\n", "\r").encode())
    return path


@pytest.mark.parametrize("columns", [None, ["y", "a", "id"]])
@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".csv.gz", ".tsv", ".csv"])
def test_every_format_of_a_site_is_read_alike(
    suffix: str, columns: list[str] | None, tmp_path: Path
) -> None:
    (part,) = read("y ~ a", columns, written(tmp_path, suffix), "id")
    assert list(part.cells["id"]) == ["007", "b", "c"]
    assert list(part.reasons) == ["", "", "`a` holds 'x', which the schema drops"]
    assert list(part.notes) == ["", "`a` holds 250, clipped to 100", ""]
    assert part.columns["a"][:2].tolist() == [2.0, 100.0]


def test_numbers_of_a_file_are_copied_and_clipped_as_their_texts_would_be(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", a=[np.nan, -1e3, 100.0], id=np.array([2**53 + 1, 2, 3]))
    (part,) = read("y ~ a", None, tmp_path / "new.npz", "id")
    assert list(part.cells["id"]) == ["9007199254740993", "2", "3"]
    assert list(part.reasons) == ["`a` has no value, which the schema drops", "", ""]
    # What lies on a bound was not moved.
    assert list(part.notes) == ["", "`a` holds -1000, clipped to -100", ""]


def test_a_file_that_is_not_there_or_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match=r"cannot be read \(no such file\)"):
        read("y ~ a", None, tmp_path / "nowhere.csv")
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(HEADED.encode())[:-9])
    with pytest.raises(errors.DataError, match=r"no whole gzip file"):
        read("y ~ a", None, tmp_path / "new.csv.gz")
