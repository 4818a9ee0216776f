"""Claims about what is kept of a run: plain values, and the folder of ``--out``."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError
from fedvi.privacy import ledger
from fedvi.results import outcome
from fedvi.study.config import parse_study
from tests.studies import raw_study, run_study

FILES = ["ledger", "ledger/c0.jsonl", "ledger/c1.jsonl"]
FILES += ["posterior.json", "posterior.npz", "result.json", "study.json"]


def fitted(**options: Any) -> Any:
    """A conjugate study of two clients with one record each."""
    sources = {
        name: ArraySource({"x": np.array([[1.0]]), "y": np.array([y])}, np.ones(1, bool))
        for name, y in (("c0", 1.0), ("c1", 2.0))
    }
    return run_study(raw_study(["c0", "c1"], 1), sources, **options)


@pytest.fixture(scope="module")
def result() -> Any:
    return fitted()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Values


def test_the_posterior_is_that_of_two_records_by_hand(result: Any) -> None:
    # Prior N(0, 1), y = θ + N(0, 1), y = 1 and 2: precision 3, mean (1 + 2)/3.
    (row,) = outcome.record(result).rows()
    assert row["name"] == "x0"
    # float64 algebra on numbers near 1
    assert row["mean"] == pytest.approx(1.0, rel=1e-12)
    assert row["sd"] == pytest.approx(1 / math.sqrt(3), rel=1e-12)
    assert row["upper"] - row["lower"] == pytest.approx(2 * 1.959963984540054 / math.sqrt(3))
    assert "odds_ratio" not in row
    assert "pooled_mean" not in row


def test_the_pooled_fit_stands_beside_the_posterior_and_says_what_it_is() -> None:
    kept = outcome.as_dict(fitted(pooled=True))
    (row,) = kept["coefficients"]
    # The glm solver stops within 1e-8 posterior sds.
    assert row["pooled_mean"] == pytest.approx(1.0, abs=1e-6)
    assert row["pooled_sd"] == pytest.approx(1 / math.sqrt(3), abs=1e-6)
    assert "without privacy" in kept["pooled"]


def test_odds_ratios_are_exponentials_and_do_not_overflow(result: Any) -> None:
    study = parse_study(raw_study(["c0", "c1"], 1, kind="logistic"))
    logistic = dataclasses.replace(
        result, assembly=dataclasses.replace(result.assembly, study=study)
    )
    (row,) = outcome.record(logistic).rows()
    for odds, plain in [("odds_ratio", "mean"), ("odds_lower", "lower"), ("odds_upper", "upper")]:
        assert row[odds] == pytest.approx(math.exp(row[plain]), rel=1e-12)
    huge = dataclasses.replace(
        logistic, posterior=result.assembly.family.from_moments(np.array([1e6]), np.eye(1))
    )
    assert math.isfinite(outcome.record(huge).rows()[0]["odds_ratio"])


def test_without_protection_the_price_is_infinite_under_both_relations(result: Any) -> None:
    for row in outcome.privacy_rows(result):
        assert row["epsilon"] == {"add_remove": math.inf, "substitute": math.inf}
        assert (row["records"], row["delta"], row["releases"], row["numbers"]) == (None, None, 1, 2)


def test_json_holds_no_number_that_is_not_one(result: Any) -> None:
    update = result.history[-1]
    odd = type(update.gap)(math.inf, math.nan)
    strange = dataclasses.replace(result, history=(update._replace(gap=odd),))
    kept = json.loads(json.dumps(outcome.as_dict(strange), allow_nan=False))
    assert list(kept["history"][0]["gap"].values()) == ["inf", "nan", 0.0, 0.0]
    assert kept["privacy"][0]["epsilon"] == {"add_remove": "inf", "substitute": "inf"}


# Files


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_an_empty_folder_is_filled_completely(
    result: Any, tmp_path: Path, exists: bool
) -> None:
    target = tmp_path / "out"
    if exists:
        target.mkdir()
    inode = target.stat().st_ino if exists else None
    outcome.write(result, target)
    assert files(target) == FILES
    assert files(tmp_path) == ["out", *(f"out/{name}" for name in FILES)]
    # A mounted volume cannot be replaced: an empty folder stays the one that it was.
    assert inode in (None, target.stat().st_ino)


def test_the_current_folder_can_be_the_target(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome.check_target(Path())
    outcome.write(result, Path())
    assert files(tmp_path) == FILES


def test_the_posterior_file_holds_its_parts_without_a_pickle(result: Any, tmp_path: Path) -> None:
    outcome.write(result, tmp_path / "out")
    with np.load(tmp_path / "out" / "posterior.npz", allow_pickle=False) as file:
        kept = dict(file)
    assert sorted(kept) == ["J", "h", "mark", "mean", "names", "sd"]
    np.testing.assert_array_equal(kept["h"], result.posterior.h)
    np.testing.assert_array_equal(kept["J"], result.posterior.J)
    # float64 algebra
    np.testing.assert_allclose(kept["mean"], np.linalg.solve(kept["J"], kept["h"]), rtol=1e-12)
    assert kept["names"].tolist() == ["x0"]
    assert kept["mark"] == ""


def test_the_posterior_in_json_is_that_of_the_npz_to_the_last_bit(
    result: Any, tmp_path: Path
) -> None:
    outcome.write(result, tmp_path / "out")
    text = (tmp_path / "out" / "posterior.json").read_text(encoding="utf-8")
    kept = json.loads(text, parse_constant=pytest.fail)
    with np.load(tmp_path / "out" / "posterior.npz", allow_pickle=False) as file:
        assert sorted(kept) == sorted(file)
        for name in file:
            assert kept[name] == file[name].tolist()


def test_the_kept_study_and_ledgers_are_those_of_the_run(result: Any, tmp_path: Path) -> None:
    outcome.write(result, tmp_path / "out")
    study = parse_study(json.loads((tmp_path / "out" / "study.json").read_text()))
    assert study == result.assembly.study
    for name, book in result.ledgers.items():
        lines = (tmp_path / "out" / "ledger" / f"{name}.jsonl").read_text().splitlines()
        assert ledger.from_lines(lines) == book


def test_infinity_in_a_study_is_kept(tmp_path: Path) -> None:
    solver = {
        "kind": "dp_optimisation",
        "clip_norm": math.inf,
        "noise_multiplier": 0.0,
        "steps": 1,
    }
    sources = {"c": ArraySource({"x": np.ones((1, 1)), "y": np.ones(1)}, np.ones(1, bool))}
    raw = raw_study(["c"], 1, solver=solver)
    raw["data"]["max_records"] = 1
    result = run_study(raw, sources)
    outcome.write(result, tmp_path / "out")
    study = parse_study(json.loads((tmp_path / "out" / "study.json").read_text()))
    assert study.digest == result.assembly.study.digest


def test_a_write_that_fails_leaves_nothing(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(book: Any) -> list[str]:
        raise OSError("no space left")

    monkeypatch.setattr(ledger, "to_lines", fail)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(OSError, match="no space left"):
            outcome.write(result, tmp_path / name)
    assert files(tmp_path) == ["empty"]


def test_a_target_that_would_lose_something_is_refused(result: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    (tmp_path / "file").write_text("x")
    before = files(tmp_path)
    for name, words in [
        ("full", "exists and is not an empty folder"),
        ("file", "exists and is not an empty folder"),
        ("absent/out", "does not exist"),
        ("file/out", "does not exist"),
    ]:
        for refuse in (outcome.check_target, lambda path: outcome.write(result, path)):
            with pytest.raises(ConfigError, match=words) as error:
                refuse(tmp_path / name)
            assert error.value.hint
    assert files(tmp_path) == before
