"""Claims about `fedvi posterior`: files that other tools read, and what each of them says it cost."""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal

from fedvi.cli import _results
from fedvi.results import finished, run_folder
from fedvi.run import server_plan
from fedvi.server.core import protocol
from fedvi.study import build
from fedvi.study.config import parse_study
from tests import forward_models
from tests.commands import succeeded as fedvi
from tests.integration.test_report import run_server
from tests.joint_price import joint_epsilon
from tests.plug_ins import allowing
from tests.sites import assembled, study_file
from tests.studies import raw_study

pytestmark = pytest.mark.numpyro

NUMBER = {"type": "number", "bounds": [-100, 100], "center": 0, "scale": 1}


def ended(raw: dict[str, Any], folder: Path, seed: int = 0) -> tuple[Path, Any]:
    """A server's folder after a run that folded nothing: its posterior is the prior, or the start."""
    assembly = build.assemble(parse_study(raw))
    plan = server_plan.make(assembly)
    spec = server_plan.to_spec(plan)
    folder.mkdir()
    server_plan.keep(plan, folder)
    _results.write(plan, spec, protocol.initial_state(spec), folder)
    return folder, assembly


@pytest.fixture(autouse=True)
def of_ones_own() -> Iterator[None]:
    """Commands that are called here may name the model, as in a notebook that passes it."""
    with allowing(line=forward_models.line):
        yield


def own(family: str, folder: Path) -> tuple[Path, Any]:
    """A study of a NumPyro model of two sites, the later of them first in the alphabet."""
    raw = raw_study(["c0"], 2, family=family, solver={"kind": "gradient"})
    raw["model"]["kind"] = "line"
    del raw["prior"]
    return ended(raw, folder)


def mixture(folder: Path) -> tuple[Path, Any]:
    raw = {
        "study": {"name": "mixed"},
        "model": {"kind": "gaussian_mixture", "columns": ["a", "b"], "components": 2}
        | {"scales": [1.0, 1.0], "row_norm": 2.0},
        "solver": {"kind": "vips"},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"},
        "data": {"max_records": 64},
        "clients": [{"name": "north"}, {"name": "south"}],
    }
    return ended(raw, folder)


@pytest.fixture(scope="module")
def trauma(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trauma"
    fedvi("simulate", examples / "trauma" / "study.toml", "--quiet", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished private study of three sites, whose noise follows from a seed."""
    folder = tmp_path_factory.mktemp("private")
    fedvi("simulate", study_file(folder), "--quiet", "--out", folder / "run")
    return folder / "run"


@pytest.fixture
def copy(private: Path, tmp_path: Path) -> Path:
    """A copy of the private run, to be changed."""
    return Path(shutil.copytree(private, tmp_path / "copy"))


def changed(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the result of a run."""
    path = run / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    change(result)
    path.write_text(json.dumps(result), encoding="utf-8")


def read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return dict(zip(names, np.array(rows, float).T, strict=True))


def test_without_options_it_prints_the_table_and_what_it_cost(trauma: Path) -> None:
    text = fedvi("posterior", trauma).output
    assert "(Intercept)" in text
    assert "odds ratio" in text
    assert "no claim: what left the sites was not protected" in text
    rows = json.loads(fedvi("posterior", trauma, "--json").output)["coefficients"]
    with np.load(trauma / "posterior.npz") as kept:
        assert [row["mean"] for row in rows] == kept["mean"].tolist()


def test_draws_are_those_of_the_posterior_and_the_same_in_all_formats(
    trauma: Path, tmp_path: Path
) -> None:
    arviz = pytest.importorskip("arviz")
    paths = [tmp_path / f"draws{suffix}" for suffix in (".nc", ".npz", ".csv")]
    options = [part for path in paths for part in ("--to", path)]
    fedvi("posterior", trauma, *options, "--draws", 3000, "--seed", 5)
    with np.load(paths[1]) as file:
        draws = file["coefficients"]
    with np.load(trauma / "posterior.npz") as kept:
        names, mean, covariance = kept["names"].tolist(), kept["mean"], np.linalg.inv(kept["J"])
    assert draws.shape == (3000, 5)
    sd = np.sqrt(np.diag(covariance))
    # Five standard errors of 3,000 draws: false alarms below 1e-5.
    assert (np.abs(draws.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(3000)).all()
    apart = np.abs(np.cov(draws.T) - covariance) / np.outer(sd, sd)
    assert apart.max() < 5.0 * np.sqrt(2.0 / 3000)
    data = arviz.from_netcdf(paths[0])
    found = data.posterior["coefficients"]
    assert found.dims == ("chain", "draw", "coefficient")
    assert found.coords["coefficient"].values.tolist() == names
    np.testing.assert_array_equal(found.values[0], draws)
    assert np.isinf(data.posterior.attrs["privacy_epsilon"])
    table = read_csv(paths[2])
    assert list(table) == names
    np.testing.assert_array_equal(np.stack(list(table.values()), axis=1), draws)
    again, other = tmp_path / "again.npz", tmp_path / "other.npz"
    fedvi("posterior", trauma, "--to", again, "--draws", 3000, "--seed", 5)
    np.testing.assert_array_equal(np.load(again)["coefficients"], draws)
    fedvi("posterior", trauma, "--to", other, "--draws", 3000, "--seed", 6)
    assert not np.array_equal(np.load(other)["coefficients"], draws)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "guide"),
    [("full_gaussian", AutoMultivariateNormal), ("diagonal_gaussian", AutoDiagonalNormal)],
)
def test_numpyros_own_guide_takes_the_parameters_as_they_are(
    family: str, guide: Any, tmp_path: Path
) -> None:
    folder, assembly = own(family, tmp_path / "run")
    # A posterior that tells coordinates apart, in the place of the prior.
    mean = np.array([1.0, -2.0, 0.5])
    root = np.array([[0.1, 0.0, 0.0], [0.05, 0.2, 0.0], [-0.1, 0.1, 0.3]])
    full = family == "full_gaussian"
    covariance = root @ root.T if full else np.diag(np.diag(root) ** 2)
    spread = covariance if full else np.diag(covariance)
    eta = assembly.family.from_moments(mean, spread)
    kept = dict(np.load(folder / "result" / "posterior.npz"))
    np.savez(folder / "result" / "posterior.npz", **{**kept, "h": eta.h, "J": eta.J})
    assert kept["names"].tolist() == ["slopes[0]", "slopes[1]", "noise"]
    said = fedvi("posterior", folder, "--numpyro", tmp_path / "guide.npz").output
    assert f"parameters of {guide.__name__} written" in said
    params = dict(np.load(tmp_path / "guide.npz"))
    count = 20_000
    made = guide(forward_models.line)
    records = {"x": np.zeros((1, 2)), "y": np.zeros(1)}
    # What the note says, since "slopes" is drawn before "noise".
    assert "call the guide once by itself" in said
    with numpyro.handlers.seed(rng_seed=0):
        made(**records)
    draws = Predictive(made, params=params, num_samples=count)(jax.random.key(0), **records)
    theta = np.concatenate([draws["slopes"], np.log(draws["noise"])[:, None]], axis=1)
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(theta.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(count)).all()
    apart = np.abs(np.cov(theta.T) - covariance) / np.outer(sd, sd)
    assert apart.max() < 5.0 * np.sqrt(2.0 / count)
    # Draws are in the supports of the sites.
    fedvi("posterior", folder, "--to", tmp_path / "draws.csv", "--draws", 4000)
    table = read_csv(tmp_path / "draws.csv")
    assert list(table) == ["slopes[0]", "slopes[1]", "noise"]
    assert np.log(table["noise"]).mean() == pytest.approx(0.5, abs=5.0 * sd[2] / np.sqrt(4000))


def test_a_regressions_guide_needs_no_call_before(trauma: Path, tmp_path: Path) -> None:
    said = fedvi("posterior", trauma, "--numpyro", tmp_path / "guide.npz").output
    assert "call the guide" not in said
    params = dict(np.load(tmp_path / "guide.npz"))
    with np.load(trauma / "posterior.npz") as kept:
        mean, covariance = kept["mean"], np.linalg.inv(kept["J"])

    def model() -> None:
        numpyro.sample("coefficients", dist.Normal(0.0, 1.0).expand([5]).to_event(1))

    made = AutoMultivariateNormal(model)
    draws = Predictive(made, params=params, num_samples=20_000)(jax.random.key(0))["coefficients"]
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(20_000)).all()
    apart = np.abs(np.cov(draws.T) - covariance) / np.outer(sd, sd)
    assert apart.max() < 5.0 * np.sqrt(2.0 / 20_000)


@pytest.mark.nightly
def test_a_conjugate_model_has_its_parameters_by_name(tmp_path: Path) -> None:
    folder, _ = mixture(tmp_path / "run")
    paths = [tmp_path / "draws.npz", tmp_path / "draws.csv"]
    said = fedvi("posterior", folder, "--to", paths[0], "--to", paths[1], "--draws", 50).output
    assert "for one record, view message" in said
    with np.load(paths[0]) as file:
        shapes = {name: file[name].shape for name in file.files}
        weights = file["weights"]
    assert shapes == {"weights": (50, 2), "means": (50, 2, 2), "precisions": (50, 2, 2, 2)}
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-9)
    assert list(read_csv(paths[1]))[:4] == ["weights[1]", "weights[2]", "means[1,a]", "means[1,b]"]
    told = json.loads((tmp_path / "draws.npz.json").read_text())
    # A server states no claim of its own, and here it left no ledger: that of the plan, of both sites.
    prices = {claim["relation"]: claim["epsilon"] for claim in told["claims"]}
    assert prices["add_remove"] == pytest.approx(joint_epsilon(1.0, 1e-5, 2), rel=0.02)
    assert told["claims"][0]["delta"] == 1e-5
    assert told["claims"][0]["releases"] is None
    assert "the word of whoever ran it: no ledger is in its folder" in said
    assert "the word of whoever ran it: no ledger is in its folder" in told["basis"]
    text = fedvi("posterior", folder, "--numpyro", tmp_path / "guide.npz", code=2).output
    assert "the family is Product, expected a full or diagonal Gaussian" in text


def test_a_damaged_or_foreign_posterior_is_refused(tmp_path: Path) -> None:
    folder, _ = mixture(tmp_path / "run")
    path = folder / "result" / "posterior.npz"
    kept = dict(np.load(path))
    np.savez(path, **{**kept, "0.power": kept["0.power"] - 10.0})
    assert "improper" in fedvi("posterior", folder, code=2).output
    np.savez(path, **{name: value for name, value in kept.items() if name != "1.rate"})
    assert "no posterior of a Product can be read" in fedvi("posterior", folder, code=2).output
    np.savez(path, **{**kept, "names": np.array(["x", "y"])})
    assert "files of two runs" in fedvi("posterior", folder, code=2).output
    (folder / "result" / "result.json").write_text("[]")
    np.savez(path, **kept)
    assert "holds no result of a run" in fedvi("posterior", folder, code=2).output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "draws.txt"], "expected .csv, .nc, .npz"),
        (["--to", "nowhere/draws.csv"], "does the folder exist?"),
        (["--summary", "table.txt"], "expected '.csv'"),
        (["--numpyro", "guide.csv"], "expected '.npz'"),
    ],
)
def test_what_cannot_be_written_is_refused(
    options: list[str], said: str, trauma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in fedvi("posterior", trauma, *options, code=2).output
    assert list(tmp_path.iterdir()) == []


def test_a_nc_without_arviz_says_what_to_install(
    trauma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    text = fedvi("posterior", trauma, "--to", tmp_path / "draws.nc", code=2).output
    assert "pip install 'fedvi[report]'" in text
    assert list(tmp_path.iterdir()) == []


def test_a_claim_is_rounded_up(trauma: Path) -> None:
    run = finished.read(trauma)
    claim = {"epsilon": 1.23411, "delta": 1e-5, "relation": "substitute"}
    claim |= {"unit": "record", "view": "message", "accountant": "pld"}
    assert "epsilon 1.235 (substitute)" in run._replace(claims=(claim,)).claimed


def claim(run: Path, number: int, **values: object) -> None:
    changed(run, lambda result: result["consortium"][number].update(values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"epsilon": 0.01},
            "`consortium.0.epsilon` of the result says 0.01, and the ledgers of the",
        ),
        ({"epsilon": float("nan")}, "`consortium.0.epsilon` of the result says nan"),
        ({"delta": 1e-9}, "`consortium.0.delta` of the result says 1e-09"),
        ({"unit": "hospital"}, "`consortium.0.unit` of the result says 'hospital'"),
        ({"mark": ""}, "`consortium.0.mark` of the result says ''"),
        ({"releases": 1}, "`consortium.0.releases` of the result says 1, and the ledgers of"),
        ({"view": "aggregate"}, "says add_remove, view aggregate, and the ledgers of the run give"),
    ],
)
def test_a_claim_that_the_ledgers_do_not_bear_is_refused(
    values: dict[str, Any], said: str, copy: Path, tmp_path: Path
) -> None:
    claim(copy, 0, **values)
    for command in (
        ["posterior", copy, "--numpyro", tmp_path / "guide.npz"],
        ["report", copy, "--format", "json"],
    ):
        assert said in " ".join(fedvi(*command, code=5).output.split())
    assert not (tmp_path / "guide.npz").exists()


def test_what_is_exported_is_priced_anew_and_says_from_what(copy: Path, tmp_path: Path) -> None:
    # More than was spent is true as well, and is not what is told.
    claim(copy, 0, epsilon=1e6, delta=1e-4)
    fedvi("posterior", copy, "--to", tmp_path / "draws.npz", "--draws", 2)
    told = json.loads((tmp_path / "draws.npz.json").read_text(encoding="utf-8"))
    (added, substituted) = told["claims"]
    assert (added["relation"], substituted["relation"]) == ("add_remove", "substitute")
    # Three sites at ε = 4 that may hold the same record.
    assert added["epsilon"] < substituted["epsilon"]
    expected = joint_epsilon(4.0, substituted["delta"], 3)
    assert substituted["epsilon"] == pytest.approx(expected, rel=0.02)
    assert "priced anew from the ledgers" in told["basis"]
    changed(copy, lambda result: result["privacy"][1]["epsilon"].update(substitute=0.1))
    assert "the ledger of 'east' costs epsilon" in fedvi("posterior", copy, code=5).output


def test_a_result_of_another_study_or_of_another_shape_is_refused(copy: Path) -> None:
    changed(copy, lambda result: result.update(digest="0" * 64))
    assert "the result is of the study 0000000000000000…" in fedvi("posterior", copy, code=2).output
    digest = run_folder.study_of(copy)[0].digest
    changed(copy, lambda result: result.update(digest=digest))
    changed(copy, lambda result: result["consortium"][0].pop("view"))
    assert "consortium.0.view: field required" in fedvi("posterior", copy, code=2).output


def test_without_ledgers_the_plan_is_priced_and_said_to_be_somebodys_word(copy: Path) -> None:
    whole = finished.read(copy)
    (copy / "ledger" / "south.jsonl").unlink()
    assert "holds no ledger of client 'south'" in fedvi("posterior", copy, code=5).output
    shutil.rmtree(copy / "ledger")
    found = finished.read(copy)
    assert [row["epsilon"] for row in found.claims] == [row["epsilon"] for row in whole.claims]
    assert found.mark == whole.mark
    assert "no ledger is in its folder" in found.claimed
    assert "no ledger is in its folder" not in whole.claimed
    claim(copy, 1, epsilon=0.01)
    said = fedvi("posterior", copy, code=5).output
    assert "`consortium.1.epsilon` of the result says 0.01, and the plans of the run give" in said


def test_a_servers_folder_is_priced_from_its_own_ledgers(private: Path, tmp_path: Path) -> None:
    study = study_file(tmp_path)
    run_server(assembled(study), study, tmp_path / "state")
    found, simulated = finished.read(tmp_path / "state"), finished.read(private)
    assert found.claims == simulated.claims
    assert "priced anew from the ledgers" in found.basis
    path = tmp_path / "state" / "result" / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    result["clients"][0]["ledger"] = result["clients"][1]["ledger"]
    path.write_text(json.dumps(result), encoding="utf-8")
    said = fedvi("posterior", tmp_path / "state", code=5).output
    assert "one of them was changed, or is of another run" in said


def test_a_mark_of_the_ledgers_is_kept_whatever_the_posterior_says(copy: Path) -> None:
    kept = dict(np.load(copy / "posterior.npz"))
    np.savez(copy / "posterior.npz", **{**kept, "mark": np.array("")})
    assert "MARK: seeded noise: no guarantee" in fedvi("posterior", copy).output


@pytest.mark.parametrize("size", [0, 200, 1500, -30])
def test_a_posterior_that_was_cut_is_an_error(size: int, copy: Path, private: Path) -> None:
    path = copy / "posterior.npz"
    path.write_bytes(path.read_bytes()[:size])
    file = private.parent / "north.csv"
    for command in (
        ["posterior", copy],
        ["predict", copy, file, "--out", copy / "p.csv"],
        ["evaluate", copy, file],
        ["report", copy, "--public", file],
    ):
        assert "posterior" in (said := fedvi(*command, code=2).output)
        assert "can be read at" in said
