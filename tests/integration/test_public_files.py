"""Claims about files that are read as public: a site's own records are refused, and say why."""

import json
import shutil
from pathlib import Path

import pytest

from fedvi.results import public_files
from fedvi.study.config import Study, load_study, parse_study
from tests.commands import succeeded as fedvi
from tests.sites import study_file
from tests.studies import raw_study

pytest.importorskip("arviz")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a private study with its sites' files, and its run beside them."""
    folder = tmp_path_factory.mktemp("sites")
    fedvi("simulate", study_file(folder), "--quiet", "--out", folder / "run")
    return folder


def commands(run: Path, file: Path) -> list[list[object]]:
    return [
        ["report", run, "--format", "json", "--public", file],
        ["evaluate", run, file],
        ["synthesise", run, "--given", file, "--out", file.parent / "s.csv"],
    ]


@pytest.mark.parametrize("copied", [False, True])
def test_a_sites_file_and_a_copy_of_it_are_refused(
    copied: bool, base: Path, tmp_path: Path
) -> None:
    file = base / "north.csv"
    why = "which is the file of 'north': `[[clients]].data` of the study names it"
    if copied:
        file = Path(shutil.copy(file, tmp_path / "public.csv"))
        why = "which has the same bytes as the file of 'north'"
    for command in commands(base / "run", file):
        said = " ".join(fedvi(*command, code=2).output.split())
        assert why in said
        assert "The run protects these records" in said
    assert not (base / "s.csv").exists()


def test_another_file_is_read(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "north.csv"
    file.write_text("y,x0,x1\n0.5,1,2\n1.5,0,1\n")
    for command in commands(base / "run", file):
        fedvi(*command)


def test_a_file_is_known_where_the_run_was_moved_away_from_it(base: Path, tmp_path: Path) -> None:
    run = shutil.copytree(base / "run", tmp_path / "run")
    assert "the file of 'south'" in fedvi("evaluate", run, base / "south.csv", code=2).output
    link = tmp_path / "link.csv"
    link.symlink_to(base / "south.csv")
    assert "the file of 'south'" in fedvi("evaluate", run, link, code=2).output


def study(data: str, protection: bool = True) -> Study:
    raw = raw_study(["c0"], 1, solver={"kind": "site_release", "clip_norm": 1.0})
    raw["privacy"] = {"protection": "none"}
    if protection:
        promise = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
        raw["privacy"], raw["data"]["max_records"] = promise, 30
    raw["clients"][0]["data"] = data
    return parse_study(raw)


def test_a_part_of_a_sites_folder_is_its_own_and_what_lies_elsewhere_is_not(
    tmp_path: Path,
) -> None:
    run, folder = tmp_path / "run", tmp_path / "parts"
    run.mkdir()
    folder.mkdir()
    for name in ("a.parquet", "b.parquet"):
        (folder / name).write_text(name)
    (tmp_path / "public.parquet").write_text("other")
    for name in ("a.parquet", "b.parquet"):
        with pytest.raises(public_files.errors.ConfigError, match=r"the file of 'c0'"):
            public_files.check(study("parts"), run, folder / name, "--public")
    public_files.check(study("parts"), run, tmp_path / "public.parquet", "--public")
    public_files.check(study("parts", protection=False), run, folder / "a.parquet", "--public")


def test_without_protection_any_file_may_be_shown(tmp_path: Path) -> None:
    path = study_file(
        tmp_path, privacy={"protection": "none"}, solver={"kind": "exact"}, simulation={}
    )
    fedvi("simulate", path, "--quiet", "--out", tmp_path / "run")
    assert not load_study(path).privacy.private
    found = json.loads(fedvi("evaluate", tmp_path / "run", tmp_path / "north.csv", "--json").output)
    assert found["rows"] == 20
