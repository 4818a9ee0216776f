"""The page docs/results.md: its commands and its Python run, and its R reads columns that are there."""

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi.cli.main import main

pytestmark = pytest.mark.numpyro

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def here(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command of the page was run, on the heart-disease study."""
    pytest.importorskip("arviz")
    folder = tmp_path_factory.mktemp("results")
    study = examples / "heart-disease" / "study.toml"
    records = (examples / "heart-disease" / "data" / "processed.cleveland.data").read_text()
    for name in ("new.csv", "public.csv"):
        (folder / name).write_text(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        commands = [f"fedvi simulate {study} --quiet --out run"]
        commands += [line[2:] for block in blocks("console") for line in block.splitlines()]
        for command in commands:
            program, *arguments = shlex.split(command)
            assert program == "fedvi"
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, (command, done.output)
    return folder


def test_every_python_block_runs_and_says_something(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    found = blocks("python")
    assert len(found) == 5
    names: dict[str, Any] = {}
    for block in found:
        names = {}
        exec(compile(block, "results.md", "exec"), names)
    told = capsys.readouterr().out
    with np.load(here / "run" / "posterior.npz") as kept:
        place = kept["names"].tolist().index("age")
        age, sd = float(kept["mean"][place]), float(kept["sd"][place])
    said = re.search(r"^(-?[\d.e-]+)$", told, re.MULTILINE)
    assert said, told
    # A mean of 4,000 draws: five standard errors.
    assert float(said[1]) == pytest.approx(age, abs=5.0 * sd / np.sqrt(4000))
    assert "epsilon" in told
    share = re.search(r"share of the ill: ([\d.]+), sd ([\d.]+)", told)
    assert share
    assert 0.0 < float(share[1]) < 1.0
    # What the last block made is a model whose columns are drawn in its order.
    assert callable(names["clusters"])


def test_the_columns_that_the_r_blocks_read_are_there(here: Path) -> None:
    def header(name: str) -> list[str]:
        with (here / name).open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file))

    first, second = blocks("r")
    assert {"name", "mean", "sd", "lower", "upper"} <= set(header("coefficients.csv"))
    assert "age" in header("posterior.csv")
    claims = json.loads((here / "posterior.csv.json").read_text(encoding="utf-8"))["claims"]
    assert len(claims) == 2
    assert all({"relation", "epsilon", "delta", "unit"} <= set(claim) for claim in claims)
    assert set(re.findall(r'read\.csv\("([^"]+)"', first)) == {"coefficients.csv", "posterior.csv"}
    read = set(re.findall(r"(?:predictions|fits)\$(\w+)", second))
    assert read == {"reason", "mean", "lower"}
    assert read <= set(header("predictions.csv"))


def test_a_run_costs_nothing_more_by_what_is_made_of_it(here: Path) -> None:
    result = json.loads((here / "run" / "result.json").read_text(encoding="utf-8"))
    for name in (
        "posterior.csv",
        "coefficients.csv",
        "guide.npz",
        "predictions.csv",
        "synthetic.csv",
    ):
        told = json.loads((here / f"{name}.json").read_text(encoding="utf-8"))
        assert told["claims"] == result["consortium"], name
        assert told["digest"] == result["digest"]
        assert "costs nothing further" in told["cost"]
