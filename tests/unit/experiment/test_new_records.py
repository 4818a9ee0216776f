"""Claims about new records: which line is a header, and that no record is lost."""

from pathlib import Path
from typing import Any

import pytest

from fedvi.experiment import build, new_records
from fedvi.experiment.config import parse_study
from tests.studies import raw_study

NUMBER = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}


def read(formula: str, columns: list[str] | None, path: Path, *also: str) -> list[new_records.Part]:
    raw: dict[str, Any] = raw_study(["c0"], 1, solver={"kind": "glm"})
    raw["model"] = {"kind": "logistic", "formula": formula}
    raw["data"] = {"schema": {"y": {"type": "binary"}, "a": NUMBER}}
    if columns is not None:
        raw["data"]["columns"] = columns
    study = parse_study(raw)
    assembly = build.assemble(study)
    names = [] if formula == "y ~ 1" else ["a"]
    return list(new_records.parts(study, assembly.schema, names, path, also))


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
    content = b'\xef\xbb\xbfa,id\r\n1,x\r\n\r\n2\x00,=1+1\r\n3,\xff\r\n"4,y\r\n1e999,z\r\n5,w'
    (tmp_path / "new.csv").write_bytes(content)
    (part,) = read("y ~ a", None, tmp_path / "new.csv", "id")
    assert list(part.cells["id"]) == ["x", "=1+1", None, None, "z", "w"]
    assert part.fits.tolist() == [True, False, False, False, False, True]
