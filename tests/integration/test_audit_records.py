"""Records that an audit makes up: the corners of a schema, in all the ways that they may meet."""

from pathlib import Path

import numpy as np

from fedvi.cli._audit_records import corners
from fedvi.study import build
from fedvi.study.config import load_study
from tests.audited import study, written


def test_each_level_meets_both_outcomes(tmp_path: Path):
    # Of two levels and two outcomes in turn, each level would meet one outcome alone.
    text = study(model="logistic").replace('["a", "b", "rare"]', '["a", "b"]')
    found = corners(build.assemble(load_study(written(tmp_path, text))), seed=0)
    level, outcome = found["x"][:, -1], found["y"]
    assert {(bool(one), bool(other)) for one, other in zip(level, outcome, strict=True)} == {
        (one, other) for one in (False, True) for other in (False, True)
    }
    assert np.isfinite(found["x"]).all()
