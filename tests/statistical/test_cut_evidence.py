"""The cut version of all evidence runs: `make evidence QUICK=1`, in some ten minutes on two cores."""

import re
from pathlib import Path

import pytest

from evidence import __main__ as command
from evidence import base, claims


@pytest.mark.nightly
def test_every_claim_whose_table_is_here_runs_cut(shared: Path, tmp_path: Path) -> None:
    """As a command of its own would: two claims at a time, each in a process that another one had."""
    given = ["--quick", "--jobs", "2", "--build", f"{tmp_path}", "--data", f"{shared / 'data'}"]
    assert command.main(given) == 0
    made = (tmp_path / "evidence.md").read_text(encoding="utf-8")
    here = [name for name in claims.ALL if not base.load(name).absent(shared / "data")]
    assert len(here) > 20
    for name in here:
        claim, result = base.load(name), base.read(tmp_path / "quick" / f"{name}.json")
        assert result is not None
        assert result.rows
        assert f"### {claim.title}" in made
        assert (tmp_path / "evidence" / f"{name}.svg").is_file()
    assert not re.search(r"\{\w+\}", made)
