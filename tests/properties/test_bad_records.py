"""Records that cannot be right get a sentence on their site's own screen, in every kind that is drafted.

The space is every kind × what is wrong with a column × which sites are wrong × what is promised. Each file
is made from a good one, of which nothing may be said.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.commands import invoked, succeeded

SITES = {"a": 400, "b": 350, "c": 300}
# Of the numbers, one can be 0: in a larger unit, it is within its bounds.
COVARIATES = {"age": "number:18..100", "dose": "number:0..10", "arm": "binary:1/0"}
# Kind → the formula's left side and offset, the columns of the two, and keys of the model.
KINDS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "linear": ("sbp ~", {"sbp": "number:60..220"}, {}),
    "logistic": ("died ~", {"died": "binary:1/0"}, {}),
    "binomial": ("cbind(yes, no) ~", {"yes": "count:0..10", "no": "count:0..10"}, {}),
    "poisson": (
        "falls ~ offset(log(years)) +",
        {"falls": "count:0..40", "years": "number:0.5..3"},
        {},
    ),
    "negative_binomial": (
        "falls ~ offset(log(years)) +",
        {"falls": "count:0..40", "years": "number:0.5..3"},
        {"dispersion": "0.5"},
    ),
    "multinomial": ("stage ~", {"stage": "level:u,v,w"}, {}),
    "multivariate_linear": (
        "cbind(sbp, dbp) ~",
        {"sbp": "number:60..220", "dbp": "number:30..140"},
        {"noise_scale": "11,6"},
    ),
    "survival": (
        "Surv(days, event) ~",
        {"days": "number:1..3000", "event": "binary:1/0"},
        {"cuts": "800,1600"},
    ),
}
# Some records that are wrong are enough; all are worse.
SHARES = (0.3, 1.0)
Table = dict[str, Any]


class Bad(NamedTuple):
    """What is wrong with a column: ``how`` makes its cells from good ones, in this share of records."""

    column: str
    what: str
    how: Any
    share: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.column}-{self.what}-{self.share:g}"


def good(kind: str, random: np.random.Generator, count: int) -> Table:
    """Draws records of a kind, with effects of age and arm that medicine usually finds."""
    age, arm = random.normal(58, 12, count).clip(20, 95).round(), random.integers(0, 2, count)
    eta = 0.3 * (age - 60) / 10 - 0.4 * arm
    drawn: Table = {}
    if kind in ("linear", "multivariate_linear"):
        drawn["sbp"] = (128 + 8 * eta + random.normal(0, 11, count)).clip(60, 220).round(1)
        if kind != "linear":
            drawn["dbp"] = (0.5 * drawn["sbp"] + random.normal(16, 6, count)).clip(30, 140).round(1)
    elif kind == "logistic":
        drawn["died"] = (random.random(count) < 1 / (1 + np.exp(1 - eta))) * 1
    elif kind == "binomial":
        trials = random.integers(1, 11, count)
        drawn["yes"] = random.binomial(trials, 1 / (1 + np.exp(0.5 - eta)))
        drawn["no"] = trials - drawn["yes"]
    elif kind == "multinomial":
        drawn["stage"] = random.choice(list("uvw"), count, p=[0.5, 0.3, 0.2])
    elif kind == "survival":
        time, end = random.exponential(2600 * np.exp(-eta)), random.uniform(300, 2800, count)
        drawn |= {"days": np.minimum(time, end).clip(1).round(), "event": (time <= end) * 1}
    else:
        drawn["years"] = random.uniform(0.5, 3, count).round(2)
        frailty = random.gamma(2, 0.5, count) if kind == "negative_binomial" else 1.0
        drawn["falls"] = random.poisson(1.2 * np.exp(eta) * drawn["years"] * frailty).clip(0, 40)
    return drawn | {"age": age, "dose": random.uniform(0, 10, count).round(2), "arm": arm}


def wrongs(kind: str) -> Iterator[Bad]:
    """Yields everything that can be wrong with a kind's columns."""
    outcome = KINDS[kind][1]
    for name, declared in (outcome | COVARIATES).items():
        type_ = declared.partition(":")[0]
        if type_ == "number":
            yield Bad(name, "1000 times too large", lambda cells: cells * 1000)
            yield Bad(name, "1000 times too small", lambda cells: cells / 1000)
        if type_ == "count":
            yield from (Bad(name, "negative", lambda cells: -1 - cells, part) for part in SHARES)
        if name in ("years", "days"):
            yield from (Bad(name, "zero", lambda cells: cells * 0, part) for part in SHARES)
        if name in outcome and name != "years":
            # Of events, all of them is an honest outcome, and none of them is all censored.
            yield Bad(name, "constant", lambda cells: np.full_like(cells, min(cells)))


CASES = [(kind, bad) for kind in KINDS for bad in wrongs(kind)]


def draft(folder: Path, kind: str, protection: str) -> Path:
    """Drafts the study of a kind by the command, as a user would."""
    left, columns, setting = KINDS[kind]
    if (kind, protection) == ("linear", "none"):
        setting = {"noise_scale": "11"}  # nothing else learns it there
    given = [("--column", f"{name}={said}") for name, said in (columns | COVARIATES).items()]
    given += [("--setting", f"{key}={value}") for key, value in setting.items()]
    promise = ("--epsilon", 1, "--relation", "substitute") if protection == "dp" else ()
    succeeded(
        *("init", folder, "--yes", "--kind", kind, "--formula", f"{left} age + dose + arm"),
        *("--protection", protection, "--clients", ",".join(SITES), "--max-records", 400),
        *(*promise, *itertools.chain(*given)),
    )
    return folder / "study.toml"


def write(folder: Path, kind: str, bad: Bad | None = None, where: str = "abc") -> None:
    """Writes the sites' files, good but for one column of the sites that are named."""
    random = np.random.default_rng(11)
    for site, count in SITES.items():
        table = good(kind, random, count)
        if bad is not None and site in where:
            cells = table[bad.column]
            wrong = random.random(count) < bad.share
            table[bad.column] = np.where(wrong, bad.how(cells), cells)
        lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        (folder / f"{site}.csv").write_text("\n".join([",".join(table), *lines]) + "\n")


def warned(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_owner_of_a_file_is_told_what_cannot_be_right_and_nothing_of_a_good_one(
    kind: str, tmp_path: Path
) -> None:
    study = draft(tmp_path, kind, "dp")
    write(tmp_path, kind)
    for site in SITES:
        looked = succeeded("data", "inspect", study, "--data", tmp_path / f"{site}.csv")
        assert not warned(looked.output), looked.output
    for bad in wrongs(kind):
        write(tmp_path, kind, bad)
        looked = succeeded("data", "inspect", study, "--data", tmp_path / "a.csv")
        assert any(f"`{bad.column}`" in line for line in warned(looked.output)), bad.name
        # Bounds are the study's own; no number of the file is told.
        said = re.sub(r"\[[^]]*\]", "", " ".join(warned(looked.output)))
        assert not any(letter.isdigit() for letter in said), said


@pytest.mark.nightly(
    but=("logistic-died-constant-1-all-dp", "linear-sbp-1000 times too small-1-one-none")
)
@pytest.mark.parametrize("protection", ["none", "dp"])
@pytest.mark.parametrize("where", ["one", "all"])
@pytest.mark.parametrize(("kind", "bad"), CASES, ids=[f"{kind}-{bad.name}" for kind, bad in CASES])
def test_no_run_settles_on_records_that_cannot_be_right_without_a_word(
    kind: str, bad: Bad, where: str, protection: str, tmp_path: Path
) -> None:
    study = draft(tmp_path, kind, protection)
    sites = "b" if where == "one" else "abc"
    write(tmp_path, kind, bad, sites)
    done = invoked("simulate", study, "--quiet", "--out", tmp_path / "run")
    if done.exit_code and protection == "none":
        # Without a promise, a record may be refused by its number.
        assert done.exit_code == 2
        assert bad.column in done.stderr
        return
    assert done.exit_code == 0
    told = warned(done.stderr)
    for site in sites:
        mine = [line for line in told if line.startswith(f"warning: {site}: ")]
        assert any(f"`{bad.column}`" in line for line in mine), done.stderr
    for site in set(SITES) - set(sites):
        assert not any(line.startswith(f"warning: {site}: ") for line in told), done.stderr
    if (
        (where, protection) == ("all", "none")
        and "1000" in bad.what
        and bad.column in ("sbp", "dbp")
    ):
        # Whoever runs the server sees no site's screen.
        alarms = json.loads((tmp_path / "run" / "result.json").read_text())["verdict"]["alarms"]
        assert any("at an end of its bounds" in alarm for alarm in alarms), alarms
