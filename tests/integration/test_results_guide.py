"""The page docs/results.md: its commands, its Python and, where there is R, its R are run."""

import csv
import json
import re
import shlex
import shutil
import subprocess
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
    shutil.copytree(examples / "heart-disease", folder / "examples" / "heart-disease")
    # No site's file, since it differs in its bytes: the records of one site in another order.
    records = (examples / "heart-disease" / "data" / "processed.cleveland.data").read_text()
    (folder / "public.csv").write_text("".join(reversed(records.splitlines(keepends=True))))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (line[2:] for block in blocks("console") for line in block.splitlines()):
            program, *arguments = shlex.split(command)
            if program == "fedvi":
                done = CliRunner().invoke(main, arguments)
                assert done.exit_code == 0, (command, done.output)
            else:
                subprocess.run(["bash", "-ec", command], check=True, stdout=subprocess.DEVNULL)
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


def test_the_r_blocks_run_and_say_what_the_draws_say(here: Path) -> None:
    program = shutil.which("Rscript")
    if (
        program is None
        or subprocess.run([program, "-e", "library(jsonlite)"], check=False).returncode
    ):
        pytest.skip("needs R with jsonlite")
    (here / "blocks.R").write_text("\n".join(blocks("r")), encoding="utf-8")
    # A warning, such as of a column that is not a number, is an error.
    command = [program, "-e", "options(warn = 2); source('blocks.R', echo = TRUE)"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (here / "posterior.csv").open(encoding="utf-8", newline="") as file:
        age = np.array([float(row["age"]) for row in csv.DictReader(file)])
    said = re.search(r"mean\(draws.*\n\[1\] ([\d.]+)", done.stdout)
    assert said, done.stdout
    assert float(said[1]) == pytest.approx((age > 0.0).mean(), abs=1e-6)
    quantiles = re.search(r"97\.5%\s*\n\s*([\d.]+)\s+([\d.]+)\s+([\d.]+)", done.stdout)
    assert quantiles, done.stdout
    known = np.quantile(np.exp(age), [0.025, 0.5, 0.975])
    np.testing.assert_allclose([float(value) for value in quantiles.groups()], known, rtol=1e-5)
    result = json.loads((here / "run" / "result.json").read_text(encoding="utf-8"))
    for claim in result["consortium"]:
        assert claim["relation"] in done.stdout


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
