"""What `fedvi init` drafts, changed by nobody, on made-up tables of every outcome: is it right?

A run fails if a coefficient is more than 4 stated sds from the truth: with intervals that are right, 1 of
3,000 runs of five coefficients. The records are drawn with fixed seeds, and the noise by the operating
system. None of a test's 8 runs may fail, so that it fails by chance once in 400 times.
"""

import math
from pathlib import Path

import numpy as np
import pytest

import fedvi
from fedvi.results import outcome
from fedvi.study.config import load_study
from fedvi.study.drafts import drafting

RUNS = 8
AGE, ARM, GRADES = 0.15, -0.5, {"II": 0.4, "III": 0.8}
COVARIATES = {
    "age": {"type": "number", "bounds": [18, 100]},
    "arm": {"type": "binary", "true": [1], "false": [0]},
    "grade": {"type": "level", "levels": ["I", "II", "III"]},
}
RIGHT = " ~ age + arm + grade"


def covariates(random, count, rare):
    return {
        "age": random.normal(58.0, 12.0, count).clip(20, 95).round(),
        "arm": random.integers(0, 2, count),
        "grade": random.choice(["I", "II", "III"], count, p=[rare, 0.7 - rare, 0.3]),
    }


def effect(table):
    along = AGE * (table["age"] - 60.0) / 10.0 + ARM * table["arm"]
    return along + np.vectorize({"I": 0.0, **GRADES}.get)(table["grade"])


def linear(random, table):
    pressure = 128.0 + 8.0 * effect(table) + random.normal(0.0, 11.0, len(table["arm"]))
    return {"sbp": pressure.clip(60, 220).round(1)}


def logistic(random, table):
    return {"died": (random.random(len(table["arm"])) < 1 / (1 + np.exp(2.0 - effect(table)))) * 1}


def follow_up(random, table):
    """Person-time that ends at the event, in days."""
    time = random.exponential(1200.0 * np.exp(-effect(table)))
    return {"events": (time <= 1000.0) * 1, "days": np.clip(time, 1.0, 1000.0).round(2)}


def counts(random, table, dispersion=0.0):
    months = random.uniform(1.0, 12.0, len(table["arm"])).round(2)
    mean = 0.5 * months * np.exp(effect(table))
    if dispersion:
        mean = mean * random.gamma(1.0 / dispersion, dispersion, len(mean))
    return {"events": random.poisson(mean), "months": months}


def negative_binomial(random, table):
    return counts(random, table, 0.5)


def survival(random, table):
    time, end = (
        random.exponential(2600.0 * np.exp(-effect(table))),
        random.uniform(300.0, 2800.0, len(table["arm"])),
    )
    return {"days": np.minimum(time, end).clip(1.0).round(), "event": (time <= end) * 1}


EVENT = {"type": "binary", "true": [1], "false": [0]}
# Kind, left side and offset, the columns, the outcome, the effects' factor, and the constant at age 60.
KINDS = {
    "linear": (
        "linear", "sbp",
        {"sbp": {"type": "number", "bounds": [60, 220], "unit": "mmHg"}}, linear, 8.0, 128.0,
    ),
    "logistic": ("logistic", "died", {"died": EVENT}, logistic, 1.0, -2.0),
    "follow-up": (
        "poisson", "events",
        {"events": {"type": "count", "bounds": [0, 1]}, "days": {"type": "number", "bounds": [0.5, 1000]}},
        follow_up, 1.0, math.log(1 / 1200.0),
    ),
    "counts": (
        "poisson", "events",
        {"events": {"type": "count", "bounds": [0, 60]}, "months": {"type": "number", "bounds": [0.5, 12]}},
        counts, 1.0, math.log(0.5),
    ),
    "negative binomial": (
        "negative_binomial", "events",
        {"events": {"type": "count", "bounds": [0, 60]}, "months": {"type": "number", "bounds": [0.5, 12]}},
        negative_binomial, 1.0, math.log(0.5),
    ),
    "survival": (
        "survival", "Surv(days, event)",
        {"days": {"type": "number", "bounds": [0.5, 2800]}, "event": EVENT},
        survival, 1.0, math.log(1 / 2600.0),
    ),
}  # fmt: skip


def distances(folder: Path, kind: str, run: int, records: int, epsilon: float) -> dict[str, float]:
    """Simulates one drafted study; returns each coefficient's distance from the truth in stated sds."""
    model, left, columns, drawn, factor, constant = KINDS[kind]
    random = np.random.default_rng([run, records])
    for site, share in (("a", 0.4), ("b", 0.35), ("c", 0.25)):
        table = covariates(random, int(records * share), 0.1)
        table = {**drawn(random, table), **table}
        lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        (folder / f"{site}.csv").write_text("\n".join([",".join(table), *lines]) + "\n")
    exposure = next(
        (f" + offset(log({name}))" for name in ("days", "months") if name in columns), ""
    )
    answers = drafting.Answers(
        *("zoo", model, left + RIGHT + (exposure if model != "survival" else ""), ("a", "b", "c")),
        {**columns, **COVARIATES}, epsilon=epsilon, max_records=int(records * 0.45), clip_norm="auto",
    )  # fmt: skip
    (folder / "study.toml").write_text(drafting.draft(answers).text)
    result = fedvi.simulate(load_study(folder / "study.toml"), str(folder))
    found = {}
    for row in outcome.record(result).rows():
        name = row["name"]
        if name == "age":
            truth = factor * AGE * 4.1
        elif name.startswith("arm"):
            truth = factor * ARM
        elif name.startswith("grade"):
            truth = factor * GRADES["III" if "III" in name else "II"]
        else:
            truth = constant - factor * AGE * 0.1  # at age 59, the middle of its bounds
        found[name] = (row["mean"] - truth) / row["sd"]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(("records", "epsilon"), [(3400, 1.0), (3400, 4.0), (30_000, 2.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafted_answer_is_within_four_sds_of_the_truth(tmp_path, kind, records, epsilon):
    worst = [distances(tmp_path, kind, run, records, epsilon) for run in range(RUNS)]
    assert all(abs(value) < 4.0 for found in worst for value in found.values()), worst
