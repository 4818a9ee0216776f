"""The page docs/guides/r-users.md: where there is R with jsonlite, its R is run from top to bottom."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "r-users.md"


def _r() -> str:
    """The program of R; skips where there is none with jsonlite."""
    program = shutil.which("Rscript")
    if (
        program is None
        or subprocess.run([program, "-e", "library(jsonlite)"], check=False).returncode
    ):
        pytest.skip("needs R with jsonlite")
    return program


@pytest.mark.nightly
def test_the_r_of_the_page_runs_and_reads_what_the_run_found(tmp_path: Path) -> None:
    program = _r()
    blocks = re.findall(r"```r\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "blocks.R").write_text("\n".join(blocks), encoding="utf-8")
    shutil.copytree(ROOT / "examples" / "r", tmp_path / "examples" / "r")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # A warning, such as of a column that is not a number, is an error.
    done = subprocess.run(
        [program, "-e", "options(warn = 2); source('blocks.R', echo = TRUE)"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(Intercept)" in done.stdout
    # The truth, 1.65 for ten years, is far inside of what 7,000 records and the noise leave open.
    low, middle, high = (
        float(value)
        for value in re.findall(r"97\.5%\s*\n\s*([\d.]+)\s+([\d.]+)\s+([\d.]+)", done.stdout)[-1]
    )
    assert 1.0 < low < middle < high < 2.6
    picture = (tmp_path / "effects.svg").read_text(encoding="utf-8")
    assert picture.startswith("<?xml")


@pytest.mark.nightly
def test_the_plot_shows_the_ratios_of_the_run(tmp_path: Path) -> None:
    program = _r()
    rows = [
        {"name": "(Intercept)", "unit": "", "mean": -1.0, "lower": -1.2, "upper": -0.8},
        {"name": "age", "unit": "per 10", "mean": 0.5, "lower": 0.1, "upper": 0.9},
        {"name": "a curve", "unit": "", "mean": 9.0, "lower": 8.0, "upper": 10.0},
    ]
    for row, ratio in zip(rows, (0.37, 1.65, None), strict=True):
        row["odds_ratio"] = ratio
    (tmp_path / "result.json").write_text(json.dumps({"coefficients": rows, "consortium": []}))
    line = (
        f"options(warn = 2); source('{ROOT}/examples/r/fedvi.R'); pdf('plot.pdf');"
        "print(fedvi_plot('.')); print(par('usr')); dev.off()"
    )
    done = subprocess.run(
        [program, "-e", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # The intercept is left out, and so is what has no ratio.
    table = done.stdout.splitlines()
    assert table[1].split() == ["1", "age", "1.105171", "1.648721", "2.459603"]
    left, right = (10 ** float(value) for value in table[2].split()[1:3])
    assert left < 1.105 < 2.459 < right
    assert (tmp_path / "plot.pdf").stat().st_size > 1000
