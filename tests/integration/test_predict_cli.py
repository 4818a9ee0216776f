"""Claims about `fedvi predict`: a line for each record in its order, with what is known of it."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedvi.models.lda import document_topics
from fedvi.results import evaluation, finished, new_records
from tests import forward_models
from tests.commands import succeeded as fedvi
from tests.integration.test_posterior_cli import ended, mixture, own
from tests.plug_ins import allowing, declare
from tests.studies import raw_study

HEAD = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,who"
ANN = "63,1,1,145,233,1,2,150,0,2.3,ann"
EVE = "?,0,4,120,0,0,0,120,1,1,eve"


@pytest.fixture(autouse=True)
def of_ones_own() -> Iterator[None]:
    """Commands that are called here may name the model of `own`."""
    with allowing(line=forward_models.line):
        yield


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def runs(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("trauma", "heart-disease"):
        study = examples / name / "study.toml"
        fedvi("simulate", study, "--quiet", "--out", folder / name)
    return folder


@pytest.mark.nightly
def test_probabilities_are_averaged_over_the_posterior_line_by_line(
    runs: Path, examples: Path, tmp_path: Path
) -> None:
    file = examples / "trauma" / "data" / "hospital-3.csv"
    said = fedvi("predict", runs / "trauma", file, "--out", tmp_path / "p.csv").output
    assert "216 records predicted" in said
    assert "not private about the new records" in said
    rows = read(tmp_path / "p.csv")
    table = np.genfromtxt(file, delimiter=",", names=True)
    x = np.stack([np.ones(216), *(table[name] for name in ("sex", "age", "ISS", "GCS"))], axis=1)
    with np.load(runs / "trauma" / "posterior.npz") as kept:
        mean, covariance = kept["mean"], np.linalg.inv(kept["J"])
    theta = np.random.default_rng(0).multivariate_normal(mean, covariance, 50_000)
    p = scipy.special.expit(theta @ x.T)
    assert [int(row["row"]) for row in rows] == list(range(1, 217))
    # 50,000 draws: five standard errors of at most 0.5 / √50000.
    np.testing.assert_allclose([float(row["mean"]) for row in rows], p.mean(axis=0), atol=0.011)
    np.testing.assert_allclose([float(row["sd"]) for row in rows], p.std(axis=0), atol=0.005)
    low, high = np.quantile(p, [0.025, 0.975], axis=0)
    np.testing.assert_allclose([float(row["lower"]) for row in rows], low, atol=0.01)
    np.testing.assert_allclose([float(row["upper"]) for row in rows], high, atol=0.01)
    about = json.loads((tmp_path / "p.csv.json").read_text())
    assert (about["rows"], about["empty"], about["level"]) == (216, 0, 0.95)
    assert about["what"] == "probability that mortality is true"
    # What `evaluate` calls accurate is what these lines say.
    labels = table["mortality"] == 1
    found = json.loads(fedvi("evaluate", runs / "trauma", file, "--json").output)
    share = np.mean([(float(row["mean"]) > 0.5) == y for row, y in zip(rows, labels, strict=True)])
    assert found["classes"]["accuracy"] == pytest.approx(share, abs=1e-9)


def test_a_record_that_does_not_fit_leaves_an_empty_line_with_the_reason(
    runs: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    odd = ANN.replace("63,1,1", "63,7,1").replace("ann", "bob")
    lines = [HEAD, ANN, odd, "", EVE, "broken", 'a,"b', ANN.replace("ann", "zoë")]
    new.write_bytes(("\n".join(lines) + "\n").encode() + b"\xff,1\n")
    said = fedvi(
        "predict", runs / "heart-disease", new, "--out", tmp_path / "p.csv", "--id", "who"
    ).output
    rows = read(tmp_path / "p.csv")
    assert [row["who"] for row in rows] == ["ann", "bob", "eve", "", "", "zoë", ""]
    assert [row["row"] for row in rows] == list("1234567")
    reasons = [row["reason"] for row in rows]
    broken = "the line cannot be read"
    # The age that is missing is imputed, as the schema says.
    assert reasons == [
        "",
        "`sex` holds '7', which the schema drops",
        "",
        broken,
        broken,
        "",
        broken,
    ]
    for row in rows:
        assert all((row[name] == "") == bool(row["reason"]) for name in ("mean", "sd", "lower"))
    assert float(rows[0]["mean"]) == pytest.approx(float(rows[5]["mean"]), rel=1e-12)
    assert rows[0]["mean"] != rows[2]["mean"]
    assert "4 do not fit the schema" in said


def test_a_cell_with_a_line_break_is_part_of_one_record(runs: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    broken = ANN.removesuffix("ann") + '"ann\nlee"'
    new.write_text("\n".join([HEAD, broken, EVE]) + "\n")
    fedvi("predict", runs / "heart-disease", new, "--out", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    assert [(row["row"], row["reason"], bool(row["mean"])) for row in rows] == [
        ("1", "", True),
        ("2", "", True),
    ]


def test_a_clipped_cell_is_told_and_an_id_is_no_formula(runs: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    ids = ["=1+1", "+x", "-2", "@a", "ann", "a=1"]
    old = [ANN.replace("ann", name) for name in ids]
    # The schema's bounds are 18 to 100 for the age, and -4 to 8 for oldpeak.
    old[4] = old[4].replace("63,1,1", "400,1,1").replace(",2.3,", ",-50,")
    new.write_text("\n".join([HEAD, *old]) + "\n")
    options = ["--out", tmp_path / "p.csv", "--id", "who"]
    said = fedvi("predict", runs / "heart-disease", new, *options).output
    rows = read(tmp_path / "p.csv")
    assert [row["who"] for row in rows] == ["'=1+1", "'+x", "-2", "'@a", "ann", "a=1"]
    assert "1 have cells outside the schema's bounds" in said
    (note,) = filter(None, (row["note"] for row in rows))
    assert "`age` holds 400, clipped to" in note
    assert "`oldpeak` holds -50, clipped to" in note
    assert rows[4]["note"] == note
    assert rows[4]["mean"]
    assert json.loads((tmp_path / "p.csv.json").read_text())["clipped"] == 1


@pytest.mark.parametrize("suffix", [".parquet", ".tsv", ".csv.gz", ".csv"])
def test_what_evaluate_reads_is_predicted(
    suffix: str, runs: Path, examples: Path, tmp_path: Path
) -> None:
    file = examples / "trauma" / "data" / "hospital-1.csv"
    text, new = file.read_text(), tmp_path / f"new{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = np.genfromtxt(file, delimiter=",", names=True)
        columns = {name: table[name] for name in table.dtype.names}
        parquet.write_table(pyarrow.table(columns), new)
    elif suffix == ".csv.gz":
        new.write_bytes(gzip.compress(text.encode()))
    else:
        # The last has the line ends of old Macs.
        new.write_bytes(
            (text.replace(",", "\t") if suffix == ".tsv" else text.replace("\n", "\r")).encode()
        )
    for path, out in ((file, "a.csv"), (new, "b.csv")):
        fedvi("predict", runs / "trauma", path, "--out", tmp_path / out)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    whole, same = (
        json.loads(fedvi("evaluate", runs / "trauma", path, "--json").output)
        for path in (file, new)
    )
    assert whole == same


@pytest.mark.nightly
@pytest.mark.numpyro
def test_a_numpyro_law_without_a_mean_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = raw_study(["c0"], 1, solver={"kind": "gradient"})
    raw["model"]["kind"] = "heavy"
    del raw["prior"]
    declare(tmp_path, models={"heavy": "tests.forward_models:heavy"})
    monkeypatch.syspath_prepend(tmp_path)
    with allowing(heavy=forward_models.heavy):
        folder, _ = ended(raw, tmp_path / "run")
    (tmp_path / "new.csv").write_text("x0\n1\n2\n")
    new = (tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    found = fedvi("predict", folder, *new, "--allow-code", "heavy", code=2)
    assert "record 1 of new.csv: model `heavy`: the law of `y` has no" in found.output
    assert not (tmp_path / "p.csv").exists()
    text = " ".join(fedvi("predict", "--help").output.split())
    assert "The law needs a finite mean and variance" in text


@pytest.mark.numpyro
def test_outcomes_of_a_numpyro_law_have_an_interval_and_its_error(tmp_path: Path) -> None:
    folder, _ = own("full_gaussian", tmp_path / "run")
    (tmp_path / "new.csv").write_text("x0,x1\n1,0\n2,1\n1,0\n")
    options = ["--draws", 400, "--out", tmp_path / "p.csv"]
    said = fedvi("predict", folder, tmp_path / "new.csv", *options).output
    assert "intervals of a new outcome are made from 400 draws" in said
    rows = read(tmp_path / "p.csv")
    assert list(rows[0])[5:8] == ["outcome_lower", "outcome_upper", "outcome_error"]
    told = [
        {name: float(row[name]) for name in row if name not in ("row", "reason", "note")}
        for row in rows
    ]
    # What is told of a record depends on nothing else in the file.
    assert told[0] == told[2] != told[1]
    for row in told:
        assert row["outcome_lower"] < row["lower"] < row["upper"] < row["outcome_upper"]
        assert 0.0 < row["outcome_error"] < 0.2 * (row["outcome_upper"] - row["outcome_lower"])


def test_a_file_is_read_a_part_at_a_time_and_says_the_same(runs: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("\n".join([HEAD, *[ANN, EVE] * 5]) + "\n")
    run = finished.read(runs / "heart-disease")
    study, schema = run.assembly.study, run.assembly.schema
    names = [name for name in run.assembly.design.columns if name != "disease"]
    (whole,) = new_records.chunks(study, schema, names, new)
    cut = list(new_records.chunks(study, schema, names, new, rows=3))
    assert [part.first for part in cut] == [1, 4, 7, 10]
    for name, column in whole.columns.items():
        joined = np.concatenate([part.columns[name] for part in cut])
        np.testing.assert_array_equal(joined, column)


def test_a_file_without_header_has_the_columns_of_the_study(
    runs: Path, examples: Path, tmp_path: Path
) -> None:
    file = examples / "heart-disease" / "data" / "processed.cleveland.data"
    fedvi("predict", runs / "heart-disease", file, "--out", tmp_path / "p.csv", "--level", 0.5)
    rows = read(tmp_path / "p.csv")
    assert len(rows) == 303
    run = evaluation.read_run(runs / "heart-disease")
    source = evaluation.read_records(run.assembly, file)
    x = source.records["x"]
    spread = np.sqrt(np.einsum("nd,de,ne->n", x, np.linalg.inv(run.posterior.J), x))
    centre = x @ np.linalg.solve(run.posterior.J, run.posterior.h)
    # The quartiles of a normal law.
    upper = scipy.special.expit(centre + 0.6744897501960817 * spread)
    np.testing.assert_allclose([float(row["upper"]) for row in rows], upper, rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,b\n1,2\n", [], "no column"),
        ("", [], "the file is empty"),
        (f"{HEAD}\n", [], "has no record"),
        (f"{HEAD}\n{ANN}\n", ["--id", "nobody"], "no column `nobody` in the first line"),
        (f"{HEAD},row\n{ANN},7\n", ["--id", "row"], "a column of that name"),
    ],
)
def test_a_file_that_cannot_be_predicted_leaves_nothing_behind(
    text: str, options: list[str], said: str, runs: Path, examples: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    new.write_text(text)
    # The trauma study has no list of columns: the first line must have their names.
    name = "heart-disease" if text.startswith(HEAD) else "trauma"
    found = fedvi("predict", runs / name, new, "--out", tmp_path / "p.csv", *options, code=2)
    assert said in found.output
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.nightly
def test_components_and_topics_of_new_records_are_told(tmp_path: Path) -> None:
    folder, assembly = mixture(tmp_path / "mixture")
    x = np.array([[0.0, 1.0], [np.nan, 0.0], [3.0, -3.0]])
    np.savez(tmp_path / "x.npz", x=x)
    fedvi("predict", folder, tmp_path / "x.npz", "--out", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    posterior = finished.read(folder).posterior
    expected = assembly.model.responsibilities(posterior, x[[0, 2]])
    assert rows[1]["reason"] == "it is no record that the model knows"
    assert rows[1]["component 1"] == ""
    found = [[float(rows[i][f"component {k}"]) for k in (1, 2)] for i in (0, 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    raw = {
        "study": {"name": "topics"},
        "model": {"kind": "latent_dirichlet", "topics": 2, "vocabulary": 9, "distinct": 4},
        "solver": {"kind": "vips", "noise_multiplier": 0.0},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"protection": "none"},
        "data": {"max_records": 4},
        "clients": [{"name": "north"}],
    }
    folder, assembly = ended(raw, tmp_path / "topics")
    records = assembly.model.made_up(6, np.random.default_rng(0))
    np.savez(tmp_path / "d.npz", **records)
    fedvi("predict", folder, tmp_path / "d.npz", "--out", tmp_path / "t.csv")
    posterior = finished.read(folder).posterior
    shares = document_topics(assembly.model, posterior, records)
    found = [[float(row[f"topic {k}"]) for k in (1, 2)] for row in read(tmp_path / "t.csv")]
    np.testing.assert_allclose(found, shares, rtol=1e-6)
    # `evaluate` knows a measure of both kinds.
    said = json.loads(fedvi("evaluate", folder, tmp_path / "d.npz", "--json").output)
    assert said["measure"] == "completion perplexity"
    assert (said["rows"], said["private"]) == (6, False)
    np.savez(tmp_path / "y.npz", x=np.zeros((3, 2)))
    said_so = fedvi("evaluate", tmp_path / "mixture", tmp_path / "y.npz").output
    assert "mean log-likelihood" in said_so
    assert "not private" in said_so


def unknown_noise(folder: Path) -> tuple[Path, Any]:
    """A run of a line with unknown noise, whose posterior is its prior."""
    raw = {
        "study": {"name": "line"},
        "model": {"kind": "linear_unknown_noise", "coefficients": ["one", "age"]}
        | {"prior_scales": [1.0, 1.0], "row_norm": 1.4, "noise_shape": 3.0},
        "solver": {"kind": "vips"},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"},
        "data": {"max_records": 64},
        "clients": [{"name": "north"}, {"name": "south"}],
    }
    return ended(raw, folder)


@pytest.mark.nightly
def test_a_line_of_unknown_noise_is_predicted_drawn_and_measured(tmp_path: Path) -> None:
    folder, assembly = unknown_noise(tmp_path / "line")
    x = np.column_stack([np.ones(20_000), np.tile([0.0, 1.0], 10_000)])
    x[3, 1] = np.nan
    np.savez(tmp_path / "x.npz", x=x)
    said = fedvi("predict", folder, tmp_path / "x.npz", "--out", tmp_path / "p.csv").output
    assert "20000 records predicted" in said
    rows = read(tmp_path / "p.csv")
    # More than are written at a time.
    assert [int(row["row"]) for row in rows] == list(range(1, 20_001))
    assert (rows[3]["mean"], rows[3]["reason"]) == ("", "it is no record that the model knows")
    m, scale, shape, rate = assembly.model.family.parameters(finished.read(folder).posterior)
    for row, at in zip(rows[:2], x[:2], strict=True):
        spread = at @ np.linalg.inv(scale[0]) @ at
        law = scipy.stats.t(2.0 * shape[0], at @ m[0, 0], np.sqrt(rate[0] / shape[0] * spread))
        new = scipy.stats.t(
            2.0 * shape[0], at @ m[0, 0], np.sqrt(rate[0] / shape[0] * (1.0 + spread))
        )
        found = [float(row[name]) for name in ("sd", "upper", "outcome_lower", "outcome_upper")]
        expected = [law.std(), law.ppf(0.975), new.ppf(0.025), new.ppf(0.975)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    # Outcomes are drawn for a public x, one (w, τ) for each set, and scored.
    x[3, 1] = 0.0
    np.savez(tmp_path / "x.npz", x=x)
    options = ["--given", tmp_path / "x.npz", "--sets", 40, "--out", tmp_path / "s.npz"]
    fedvi("synthesise", folder, *options)
    sets = []
    for number in range(1, 41):
        with np.load(tmp_path / f"s-{number}.npz") as made:
            np.testing.assert_array_equal(made["x"], x)
            sets.append(made["y"])
    # Each set knows its w and τ to 1 %; over sets log τ scatters as log Gamma(3) does, sd 0.63.
    sds = [y[::2].std() for y in sets]
    assert 0.2 < np.std(np.log(sds)) < 0.5
    np.savez(tmp_path / "xy.npz", x=x, y=sets[0])
    told = json.loads(fedvi("evaluate", folder, tmp_path / "xy.npz", "--json").output)
    assert (told["measure"], told["draws"]) == ("mean log-likelihood", 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["predict", "x.csv"], "x.csv is no .npz, expected one with x"),
        (["predict", "x.npz", "--id", "who"], "--id is given beside a .npz"),
        (["predict", "none.npz"], "none.npz has no record"),
        (["synthesise"], "no file gives these"),
        (["synthesise", "--given", "x.csv"], "x.csv is no .npz, expected one with x"),
        (["synthesise", "--given", "none.npz"], "none.npz has no record"),
        (["synthesise", "--given", "x.npz"], "record 2: a number of it is not finite"),
    ],
)
def test_what_a_line_of_unknown_noise_cannot_read_leaves_no_file(
    command: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = unknown_noise(tmp_path / "line")
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("one,age\n1,2\n")
    np.savez("x.npz", x=np.array([[1.0, 0.0], [1.0, np.inf]]))
    np.savez("none.npz", x=np.zeros((0, 2)))
    name, *rest = command
    found = fedvi(
        name, folder, *rest, "--out", "made.npz" if name == "synthesise" else "p.csv", code=2
    )
    assert said in " ".join(found.output.split())
    assert not list(tmp_path.glob("made*"))
    assert not list(tmp_path.glob("p.csv*"))


@pytest.mark.nightly
def test_a_belief_network_is_measured_by_its_units(tmp_path: Path) -> None:
    raw = {
        "study": {"name": "beliefs"},
        "model": {"kind": "sigmoid_belief_network", "visible": 3, "hidden": 2},
        "solver": {"kind": "vips", "noise_multiplier": 0.0},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"protection": "none"},
        "data": {"max_records": 4},
        "clients": [{"name": "north"}],
    }
    folder, _ = ended(raw, tmp_path / "beliefs")
    np.savez(tmp_path / "y.npz", y=np.array([[0, 1, 1], [1, 1, 0], [1, 0, 0]]))
    said = " ".join(fedvi("evaluate", folder, tmp_path / "y.npz").output.split())
    assert "share of units reconstructed correctly" in said
    assert "the same for the best constant prediction 0.6667" in said
    told = json.loads(fedvi("evaluate", folder, tmp_path / "y.npz", "--json").output)
    assert told["draws"] == 200
    # Three units at about even odds each.
    assert told["beside"]["mean log-likelihood, at least"] == pytest.approx(-3 * np.log(2), abs=0.6)
