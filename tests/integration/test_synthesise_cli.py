"""Claims about `fedvi synthesise`: sets that look like the model, and analyses of them that hold."""

import csv
import gzip
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from fedvi.report.combine import combine
from tests import forward_models
from tests.commands import succeeded as fedvi
from tests.integration.test_posterior_cli import ended, mixture
from tests.plug_ins import allowing

pytestmark = pytest.mark.numpyro


def read(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def write(path: Path, columns: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])


@pytest.mark.nightly
def test_sets_of_a_mixture_are_the_same_again_and_what_does_not_fit_leaves_nothing(
    tmp_path: Path,
) -> None:
    run, _ = mixture(tmp_path / "run")
    for name in ("one.csv", "two.csv"):
        options = ("--records", 20, "--sets", 2, "--seed", 4)
        fedvi("synthesise", run, *options, "--out", tmp_path / name)
    texts = [
        [(tmp_path / f"{name}-{k}.csv").read_text() for k in (1, 2)] for name in ("one", "two")
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 2
    assert {name: len(cells) for name, cells in read(tmp_path / "one-1.csv").items()} == {
        "a": 20,
        "b": 20,
    }
    wrong = tmp_path / "wrong.txt"
    said = fedvi("synthesise", run, "--records", 3, "--out", wrong, code=2).output
    assert "expected '.csv' or '.npz'" in said
    assert not wrong.exists()


CLUSTERS = """
[study]
name = "clusters"
seed = 1
[model]
kind = "my_lab.clusters"
[family]
kind = "diagonal_gaussian"
[solver]
kind = "gradient"
steps = 600
learning_rate = 0.05
[schedule]
kind = "sequential"
rounds = 1
[privacy]
protection = "none"
[data.schema.age]
type = "number"
bounds = [0, 120]
center = 60
scale = 20
[data.schema.smokes]
type = "binary"
true = ["yes"]
false = ["no"]
[data.schema.ward]
type = "level"
levels = ["a", "b", "c"]
[[clients]]
name = "north"
data = "north.csv"
"""


@pytest.fixture(scope="module")
def clustered(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """A run on 3,000 records of two kinds of people: young smokers of ward a, and old ones of c."""
    folder = tmp_path_factory.mktemp("clusters")
    generator = np.random.default_rng(0)
    old = generator.uniform(size=3000) < 0.6
    truth = {
        "age": np.round(np.where(old, 80.0, 35.0) + 10.0 * generator.normal(size=3000), 1),
        "smokes": generator.uniform(size=3000) < np.where(old, 0.1, 0.7),
        "ward": np.where(generator.uniform(size=3000) < 0.8, np.where(old, "c", "a"), "b"),
    }
    write(folder / "north.csv", {**truth, "smokes": np.where(truth["smokes"], "yes", "no")})
    (folder / "study.toml").write_text(CLUSTERS)
    with allowing(**{"my_lab.clusters": forward_models.clusters}):
        fedvi("simulate", folder / "study.toml", "--quiet", "--out", folder / "run")
        yield folder, truth


@pytest.mark.nightly
def test_whole_records_of_mixed_columns_have_the_tables_margins_and_dependence(
    clustered: tuple[Path, dict[str, np.ndarray]],
) -> None:
    folder, truth = clustered
    out = folder / "synthetic.csv"
    said = fedvi("synthesise", folder / "run", "--records", 6000, "--out", out).output
    assert "costs nothing further" in said
    assert "Analyse each set by itself" in said
    found = read(out)
    assert list(found) == ["age", "smokes", "ward"]
    assert {len(column) for column in found.values()} == {6000}
    age = np.array(found["age"], float)
    smokes = np.array([cell == "yes" for cell in found["smokes"]])
    ward = np.array(found["ward"])
    assert set(found["smokes"]) == {"yes", "no"}
    # Fitted to 3,000 records and seen in 6,000: a standard error of a share of 0.011, of a mean age of
    # 0.5; three of each, and a little for the fit.
    assert age.mean() == pytest.approx(truth["age"].mean(), abs=2.0)
    assert age.std() == pytest.approx(truth["age"].std(), rel=0.06)
    for level in "abc":
        assert (ward == level).mean() == pytest.approx((truth["ward"] == level).mean(), abs=0.04)
        for habit in (True, False):
            cell = ((ward == level) & (smokes == habit)).mean()
            expected = ((truth["ward"] == level) & (truth["smokes"] == habit)).mean()
            assert cell == pytest.approx(expected, abs=0.04)
    correlation = np.corrcoef(age, smokes)[0, 1]
    assert correlation == pytest.approx(np.corrcoef(truth["age"], truth["smokes"])[0, 1], abs=0.06)
    assert correlation < -0.4


@pytest.mark.nightly
def test_sets_are_several_each_its_own_and_the_same_again(
    clustered: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    run = clustered[0] / "run"
    for name in ("one.csv", "two.csv"):
        options = ("--records", 20, "--sets", 3, "--seed", 4)
        fedvi("synthesise", run, *options, "--out", tmp_path / name)
    texts = [
        [(tmp_path / f"{name}-{k}.csv").read_text() for k in (1, 2, 3)] for name in ("one", "two")
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    about = json.loads((tmp_path / "one.csv.json").read_text())
    assert about["files"] == ["one-1.csv", "one-2.csv", "one-3.csv"]
    assert (about["sets"], about["records"], about["seed"]) == (3, 20, 4)
    assert about["mark"] == ""
    assert "no claim" in about["claimed"]


@pytest.mark.nightly
def test_what_does_not_fit_the_model_is_refused_and_nothing_is_left(
    clustered: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    run, _ = mixture(tmp_path / "run")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "x.csv"
    for folder, options, said in (
        (run, ["--out", out], "how many records a set has is not said"),
        (run, ["--out", out, "--given", clustered[0] / "north.csv"], "draws whole records"),
        (run, ["--out", out.with_suffix(".txt"), "--records", 3], "expected '.csv' or '.npz'"),
        (
            clustered[0] / "run",
            ["--out", out.with_suffix(".npz"), "--records", 3],
            "are a table, expected a .csv",
        ),
    ):
        assert said in fedvi("synthesise", folder, *options, code=2).output
    assert list(out.parent.iterdir()) == []
    # Without a schema, a table has the model's own columns.
    fedvi("synthesise", run, "--records", 3, "--out", out)
    assert list(read(out)) == ["a", "b"]


@pytest.mark.nightly
def test_arrays_that_are_no_table_are_written_as_the_study_reads_them(tmp_path: Path) -> None:
    raw = {
        "study": {"name": "chain"},
        "model": {"kind": "hidden_markov", "states": 2, "symbols": 3, "length": 4},
        "solver": {"kind": "vips"},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"},
        "data": {"max_records": 64},
        "clients": [{"name": "north"}],
    }
    folder, assembly = ended(raw, tmp_path / "run")
    fedvi("synthesise", folder, "--records", 7, "--out", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as file:
        records = dict(file)
    assert {name: array.shape[1:] for name, array in records.items()} == dict(assembly.model.layout)
    assert assembly.model.sound(records).all()
    said = fedvi("synthesise", folder, "--records", 7, "--out", tmp_path / "s.csv", code=2).output
    assert "are no table but the arrays symbols, length" in said


# The Adult census: who earns more than 50,000 dollars, by a private network of four columns.

LEVELS = {
    "sex": ["Female", "Male"],
    "married": ["no", "yes"],
    "school": ["below", "some", "degree"],
    "income": ["<=50K", ">50K"],
}
PARENTS = [[], ["sex"], ["sex", "married"], ["sex", "married", "school"]]
SETS = 10


@pytest.fixture(scope="module")
def census(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run at ε = 1 on two halves of the training set, its synthetic sets, and the records themselves."""
    text = gzip.decompress((shared / "data" / "adult" / "adult.data.gz").read_bytes()).decode()
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if len(row) == 15]
    years = np.array([int(row[4]) for row in rows])
    table = {
        "sex": np.array([row[9] for row in rows]),
        "married": np.array(["yes" if row[5].startswith("Married") else "no" for row in rows]),
        "school": np.where(years >= 13, "degree", np.where(years > 9, "some", "below")),
        "income": np.array([row[14] for row in rows]),
    }
    folder = tmp_path_factory.mktemp("census")
    half = len(rows) // 2
    write(folder / "north.csv", {name: column[:half] for name, column in table.items()})
    write(folder / "south.csv", {name: column[half:] for name, column in table.items()})
    study = {
        "study": {"name": "census"},
        "model": {
            "kind": "discrete_network",
            "variables": list(LEVELS),
            "levels": [len(levels) for levels in LEVELS.values()],
            "parents": PARENTS,
        },
        "solver": {"kind": "vips"},
        "schedule": {"kind": "synchronous", "rounds": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "unit": "record"}
        | {"relation": "substitute", "disjoint": True},
        "data": {
            "max_records": 16384,
            "schema": {
                name: {"type": "level", "levels": levels} for name, levels in LEVELS.items()
            },
        },
        "clients": [{"name": name, "data": f"{name}.csv"} for name in ("north", "south")],
    }
    (folder / "study.json").write_text(json.dumps(study))
    fedvi("simulate", folder / "study.json", "--quiet", "--out", folder / "run")
    options = ("--records", len(rows), "--sets", SETS, "--out", folder / "synthetic.csv")
    fedvi("synthesise", folder / "run", *options)
    return folder, table


def fit(table: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression of income on all others by Newton's method: estimates and variances."""
    columns = [table["sex"] == "Male", table["married"] == "yes"]
    columns += [table["school"] == level for level in LEVELS["school"][1:]]
    x = np.stack([np.ones(len(columns[0])), *columns], axis=1).astype(float)
    y = (table["income"] == ">50K").astype(float)
    theta = np.zeros(x.shape[1])
    for _ in range(12):
        p = scipy.special.expit(x @ theta)
        information = (x * (p * (1.0 - p))[:, None]).T @ x
        theta = theta + np.linalg.solve(information, x.T @ (y - p))
    return theta, np.diag(np.linalg.inv(information))


@pytest.mark.nightly
def test_private_synthetic_records_have_the_joint_shares_of_the_census(
    census: tuple[Path, dict[str, Any]],
) -> None:
    folder, table = census
    synthetic = {
        name: np.array(column) for name, column in read(folder / "synthetic-1.csv").items()
    }
    assert {name: set(column) for name, column in synthetic.items()} == {
        name: set(levels) for name, levels in LEVELS.items()
    }
    # Pairs. 32,561 records, and as many synthetic ones from a θ that is known as well as they tell it:
    # 0.0028 each for a share of a half. Noise of ε = 1 on a cell is some tens of records. Five times that.
    for first, second in itertools.combinations(LEVELS, 2):
        for one, other in itertools.product(LEVELS[first], LEVELS[second]):
            share = ((synthetic[first] == one) & (synthetic[second] == other)).mean()
            real = ((table[first] == one) & (table[second] == other)).mean()
            assert share == pytest.approx(real, abs=0.02), (first, one, second, other)
    told = json.loads((folder / "synthetic.csv.json").read_text())
    prices = {claim["relation"]: claim["epsilon"] for claim in told["claims"]}
    assert 0.9 < prices["substitute"] <= 1.0


@pytest.mark.nightly
def test_an_analysis_of_all_sets_together_finds_what_the_records_say(
    census: tuple[Path, dict[str, Any]],
) -> None:
    folder, table = census
    answers = []
    for number in range(1, SETS + 1):
        columns = read(folder / f"synthetic-{number}.csv")
        answers.append(fit({name: np.array(column) for name, column in columns.items()}))
    found = combine([theta for theta, _ in answers], [variance for _, variance in answers])
    real, variances = fit(table)
    # Standard errors of the records' own fit are 0.04 to 0.05, and the network leaves nothing out. The
    # noise of ε = 1, and ten sets of as many records, add about as much: five times the whole.
    np.testing.assert_allclose(found.estimate, real, atol=0.3)
    assert (found.estimate[1:] > 0.0).all()
    assert (found.sd < 5.0 * np.sqrt(variances)).all()
