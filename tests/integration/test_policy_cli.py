"""Claims about policies at work: a site's own caps hold, whatever a study asks for."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import Result

from fedvi.privacy import ledger
from fedvi.store.life import folder_name
from fedvi.store.sqlite import read_ledger
from tests.commands import invoked as fedvi
from tests.plug_ins import declare

STUDY = """
[study]
name = "small"
[model]
kind = "{model}"
formula = "y ~ age"
[solver]
kind = "dp_optimisation"
steps = 2
[schedule]
kind = "synchronous"
rounds = 2
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
relation = "substitute"
[data]
max_records = 20
[data.schema.y]
type = "binary"
[data.schema.age]
type = "number"
bounds = [0, 100]
[[clients]]
name = "north"
data = "north.csv"
"""
POLICY = """
[run]
epsilon = {run}
delta = 1e-5
[life]
epsilon = {life}
delta = 1e-4
relation = "substitute"
"""


def write(folder: Path, run: float = 1.0, life: float = 3.0, model: str = "logistic") -> Path:
    (folder / "north.csv").write_text("y,age\n1,50\n0,20\n1,77\n")
    (folder / "policy.toml").write_text(POLICY.format(run=run, life=life))
    path = folder / "study.toml"
    path.write_text(STUDY.format(model=model))
    return path


def simulate(path: Path) -> Result:
    return fedvi("simulate", path, "--quiet", "--policy", f"north={path.parent / 'policy.toml'}")


def charged(life: Path) -> int:
    return ledger.reservations(read_ledger(life / folder_name("this site")))


@pytest.mark.nightly
def test_studies_are_charged_for_life_until_one_does_not_fit(tmp_path: Path, life: Path) -> None:
    path = write(tmp_path)
    first = simulate(path)
    assert first.exit_code == 0
    assert "of 3 spent for life" in first.output
    assert charged(life) == 2
    codes = [simulate(path).exit_code for _ in range(8)]
    assert codes[0] == 0
    assert codes[-1] == 5
    refused = simulate(path)
    assert "error: release" in refused.output
    before = charged(life)
    assert simulate(path).exit_code == 5
    assert charged(life) == before  # what was refused was not charged


def test_a_cap_on_one_study_refuses_it_before_anything_is_charged(
    tmp_path: Path, life: Path
) -> None:
    path = write(tmp_path, run=0.5)
    for done in (simulate(path), fedvi("check", path, "--policy", tmp_path / "policy.toml")):
        assert done.exit_code == 5
        assert "epsilon 0.99" in done.output or "epsilon 1" in done.output
        assert "expected at most 0.5" in done.output
    assert not life.exists()


def test_a_copied_policy_is_charged_to_the_same_cap(tmp_path: Path, life: Path) -> None:
    """What an attack did: 1.095 of a cap of 1.2 was spent, and a copy of the policy began at 0."""
    path, policy = write(tmp_path, life=1.2), tmp_path / "policy.toml"
    policy.write_text(policy.read_text().replace("1e-4", "1e-5"))
    first = simulate(path)
    assert first.exit_code == 0, first.output
    spent = re.search(r"ε ([\d.]+) of 1.2 spent for life", first.output)
    assert spent, first.output
    assert 1.0 < float(spent[1]) < 1.2
    assert f"ledgers for life: {life}\n" in first.output
    for name in ("copy.toml", "elsewhere/policy.toml"):
        copy = tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(policy, copy)
        again = fedvi("simulate", path, "--quiet", "--policy", f"north={copy}")
        assert again.exit_code == 5
        assert "error: release" in again.output
    assert charged(life) == 2
    assert not list(tmp_path.rglob("*.life"))


def test_the_pooled_fit_is_beyond_any_policy(tmp_path: Path) -> None:
    path = write(tmp_path)
    done = fedvi("simulate", path, "--pooled", "--policy", f"north={tmp_path / 'policy.toml'}")
    assert done.exit_code == 2
    assert "keeps to no policy" in done.output


def test_code_that_is_not_allowed_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray_models.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    declare(tmp_path, models={"stray": "stray_models:hospital"})
    path = write(tmp_path, model="stray")
    for done in (simulate(path), fedvi("check", path, "--policy", tmp_path / "policy.toml")):
        assert done.exit_code == 5
        assert "model.kind is 'stray', the installed plug-in stray_models:hospital" in done.output
        assert f"not in [[allow.custom]] of {tmp_path / 'policy.toml'}" in done.output
        assert "study.toml, line " in done.output
    assert "stray_models" not in sys.modules


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("north", "expected CLIENT=FILE"),
        ("nroth=policy.toml", "client 'nroth'"),
        ("north=missing.toml", "cannot read the policy"),
    ],
)
def test_a_wrong_policy_is_named(tmp_path: Path, given: str, words: str) -> None:
    done = fedvi("simulate", write(tmp_path), "--quiet", "--policy", given)
    assert done.exit_code == 2
    assert words in done.output


def test_check_says_that_a_policy_admits_a_study(tmp_path: Path) -> None:
    path = write(tmp_path)
    done = fedvi("check", path, "--policy", tmp_path / "policy.toml")
    assert done.exit_code == 0
    assert "admits this study" in done.output
