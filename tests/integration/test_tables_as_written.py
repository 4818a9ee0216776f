"""What a file says is what is fitted: events at the end of follow-up, codes that only look like numbers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import invoked as fedvi


def fitted(folder: Path, model: dict[str, Any], schema: dict[str, Any]) -> dict[str, float]:
    """Returns the coefficients that `fedvi simulate` prints as JSON for the one site a.csv."""
    study = folder / "study.json"
    study.write_text(
        json.dumps(
            {
                "study": {"name": "table"},
                "model": model,
                "solver": {"kind": "glm"},
                "schedule": {"kind": "synchronous", "rounds": 4},
                "privacy": {"protection": "none"},
                "data": {"max_records": 5000, "schema": schema},
                "clients": [{"name": "a", "data": "a.csv"}],
            }
        )
    )
    done = fedvi("simulate", study, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["coefficients"]
    return {each["name"]: each["mean"] for each in found}


def test_an_event_at_the_last_visit_counts_and_one_after_it_does_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    years = 1 + np.floor(rng.exponential(4.0, 900)).astype(int)
    rows = zip(
        np.minimum(years, 6), years <= 6, strict=True
    )  # the bound is 5: the sixth is too late
    (tmp_path / "a.csv").write_text("years,died\n" + "".join(f"{t},{int(d)}\n" for t, d in rows))
    found = fitted(
        tmp_path,
        {"kind": "survival", "formula": "Surv(years, died) ~ 1", "cuts": [4]},
        {"years": {"type": "number", "bounds": [0.5, 5]}, "died": {"type": "binary"}},
    )
    late = years > 4
    hazard = (years == 5).sum() / (np.minimum(years[late], 5) - 4).sum()
    assert found["baseline (4, ∞)"] == pytest.approx(math.log(hazard), abs=0.01)


@pytest.mark.parametrize(
    "codes", [("3601", "0117", "117"), ("250", "250.00", "0250"), ("a", "1E3", "1000")]
)
def test_codes_that_are_written_alike_stay_apart(tmp_path: Path, codes: tuple[str, ...]) -> None:
    rng = np.random.default_rng(6)
    risks = dict(zip(codes, (0.3, 0.1, 0.7), strict=True))
    rows = [(code, int(rng.random() < risks[code])) for code in rng.choice(codes, 1500)]
    (tmp_path / "a.csv").write_text("code,died\n" + "".join(f"{c},{y}\n" for c, y in rows))
    found = fitted(
        tmp_path,
        {"kind": "logistic", "formula": "died ~ code"},
        {"died": {"type": "binary"}, "code": {"type": "level", "levels": list(codes)}},
    )

    def log_odds(code: str) -> float:
        share = np.mean([y for each, y in rows if each == code])
        return float(np.log(share / (1 - share)))

    for code in codes[1:]:
        # The prior of 2.5 shrinks an effect of 2 by some hundredths.
        expected = log_odds(code) - log_odds(codes[0])
        assert found[f"code[{code}]"] == pytest.approx(expected, abs=0.06)
    done = fedvi("data", "inspect", tmp_path / "study.json", "--data", tmp_path / "a.csv")
    assert "1500 rows, of which 1500 count" in done.stdout


def test_an_exposure_beyond_its_bound_is_left_out_and_one_that_would_be_clipped_is_told(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(7)
    pop, old = np.exp(rng.uniform(np.log(2e3), np.log(1e7), 300)).round(), rng.uniform(8, 30, 300)
    deaths = rng.poisson(pop * np.exp(-6 + 0.06 * (old - 20)))
    rows = zip(deaths, pop.astype(int), old.round(2), strict=True)
    done = fedvi(
        *(
            "init",
            tmp_path,
            "--yes",
            "--kind",
            "poisson",
            "--protection",
            "none",
            "--clients",
            "a,b",
        ),
        *("--formula", "deaths ~ old + offset(log(pop))", "--max-records", "1000"),
        *("--column", "deaths=count:0..100000", "--column", "pop=number:1..1000000"),
        *("--column", "old=number:5..35"),
    )
    assert done.exit_code == 0, done.output
    text = "deaths,pop,old\n" + "".join(f"{d},{p},{o}\n" for d, p, o in rows)
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(text)
    done = fedvi("simulate", tmp_path / "study.toml", "--json")
    said = "counts as zero, most of all because of the column `pop`: numbers are outside the bounds"
    assert said in done.stderr
    (effect,) = (e for e in json.loads(done.stdout)["coefficients"] if e["name"] == "old")
    # Of 15 years; clipped, it was 0.1.
    assert effect["mean"] == pytest.approx(0.9, abs=4 * effect["sd"])
    assert "is an exposure" not in fedvi("check", tmp_path / "study.toml").stderr
    draft = (tmp_path / "study.toml").read_text()
    assert draft.count('outside = "drop"') == 1
    (tmp_path / "clips.toml").write_text(draft.replace('outside = "drop"', 'outside = "clip"'))
    assert "data.schema.pop is an exposure" in fedvi("check", tmp_path / "clips.toml").stderr
