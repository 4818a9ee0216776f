"""`fedvi audit` as a user runs it."""

import json
from pathlib import Path

from click.testing import CliRunner

from fedvi.cli.audit import audit

STUDY = """
[study]
name = "open"
seed = 1
[model]
kind = "linear"
formula = "y ~ x"
[family]
kind = "full_gaussian"
[solver]
kind = "exact"
[schedule]
kind = "sequential"
rounds = 1
[privacy]
protection = "none"
[data.schema]
y = { type = "number", bounds = [0, 1], center = 0, scale = 1 }
x = { type = "number", bounds = [0, 1], center = 0, scale = 1 }
[[clients]]
name = "a"
[[clients]]
name = "b"
"""


def test_a_study_without_protection_has_nothing_to_audit(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    shown = CliRunner().invoke(audit, [str(path)])
    assert shown.exit_code == 0
    assert "nothing to audit" in shown.output
    listed = CliRunner().invoke(audit, [str(path), "--json"])
    assert json.loads(listed.output)["findings"] == []


def test_the_help_says_what_each_layer_asks() -> None:
    text = CliRunner().invoke(audit, ["--help"]).output
    assert all(word in text for word in ("replay", "sampler", "profile", "canaries", "Exit codes"))
