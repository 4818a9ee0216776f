"""The page docs/guides/r-users.md: where there is R with jsonlite, its R is run from top to bottom."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "r-users.md"


@pytest.mark.nightly
def test_the_r_of_the_page_runs_and_reads_what_the_run_found(tmp_path: Path) -> None:
    program = shutil.which("Rscript")
    if (
        program is None
        or subprocess.run([program, "-e", "library(jsonlite)"], check=False).returncode
    ):
        pytest.skip("needs R with jsonlite")
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
