"""Claims about what `fedvi check` says of a formula: its knots, and levels that the noise would drown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.experiment.build import assemble
from fedvi.experiment.config import parse_study
from fedvi.experiment.plans.planning import outlook

COLUMNS = {
    "died": {"type": "binary"},
    "age": {"type": "number", "bounds": [18, 100]},
    "stage": {"type": "level", "levels": ["I", "II", "III"]},
}


def raw(formula: str, **changes: Any) -> dict[str, Any]:
    promise = {"epsilon": 1.0, "delta": 1e-6, "unit": "record", "relation": "substitute"}
    study = {
        "study": {"name": "t"},
        "model": {"kind": "logistic", "formula": formula},
        "prior": {"scale": 2.5},
        "solver": {"kind": "site_release", "clip_norm": 2.0, "sampler": "full"},
        "schedule": {"kind": "synchronous", "rounds": 20},
        "privacy": promise,
        "data": {"max_records": 2_000, "schema": COLUMNS},
        "clients": [{"name": "north"}, {"name": "south"}],
    }
    return study | changes


def of_levels(study: dict[str, Any]) -> list[str]:
    found = outlook(assemble(parse_study(study)))
    assert found is not None
    return [line for line in found.warnings if "too small an sd" in line]


def test_check_shows_the_formula_and_every_knot(tmp_path: Path) -> None:
    formula = "died ~ stage*bs(age, knots=[40, 60], lower_bound=18, upper_bound=100)"
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw(formula)))
    done = CliRunner().invoke(main, ["check", str(path)])
    shown = " ".join(done.stdout.split())
    assert f"formula {formula} " in shown
    curve = "bs(age, knots=[40, 60], lower_bound=18, upper_bound=100, degree=3)"
    assert f"curves {curve} coefficients" in shown
    assert "warning: coefficients of levels (stage)" in shown
    plain = CliRunner().invoke(main, ["check", str(path), "--json"])
    assert json.loads(plain.stdout)["formula"] == formula
    path.write_text(json.dumps(raw("died ~ age")))
    assert " curves " not in CliRunner().invoke(main, ["check", str(path)]).stdout


@pytest.mark.parametrize("formula", ["died ~ age + stage", "died ~ age:stage"])
def test_levels_that_the_noise_drowns_are_warned_of_by_their_share(formula: str) -> None:
    shares = []
    for most in (4_000, 16_000, 1_000_000):
        study = raw(formula, data={"max_records": most, "schema": COLUMNS})
        (line,) = of_levels(study) or [""]
        found = re.search(r"fewer than about (\d+)% of the records", line)
        shares.append(int(found[1]) if found else 0)
    # Four times the records, a quarter of the share; and of a million records none is too few.
    assert shares[0] == pytest.approx(4 * shares[1], abs=4)
    assert shares[1] >= 2
    assert shares[2] == 0


def test_only_levels_and_only_where_a_mean_stands_in_for_hidden_curvatures() -> None:
    assert of_levels(raw("died ~ stage"))
    assert not of_levels(raw("died ~ age"))
    assert not of_levels(raw("died ~ stage", solver={"kind": "dp_optimisation", "clip_norm": 1.0}))
