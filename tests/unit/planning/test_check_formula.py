"""Claims about what `fedvi check` says of a formula: its knots, and levels that the noise would drown."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fedvi.cli.main import main

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


def test_check_shows_the_formula_and_every_knot(tmp_path: Path) -> None:
    formula = "died ~ stage*bs(age, knots=[40, 60], lower_bound=18, upper_bound=100)"
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw(formula)))
    done = CliRunner().invoke(main, ["check", str(path)])
    shown = " ".join(done.stdout.split())
    assert f"formula {formula} " in shown
    curve = "bs(age, knots=[40, 60], lower_bound=18, upper_bound=100, degree=3)"
    assert f"curves {curve} coefficients" in shown
    plain = CliRunner().invoke(main, ["check", str(path), "--json"])
    assert json.loads(plain.stdout)["formula"] == formula
    path.write_text(json.dumps(raw("died ~ age")))
    assert " curves " not in CliRunner().invoke(main, ["check", str(path)]).stdout
