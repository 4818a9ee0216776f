"""A study of correlated columns in the low-rank family: its pooled answer, and every command after it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi import expfam
from fedvi.cli.main import main
from fedvi.expfam.gaussian import GaussianEta
from tests.integration.test_report import fedvi, run_server, told
from tests.sites import assembled, study_file
from tests.studies import raw_study, run_study, split

SIZE, GROUPS = 48, 3
FAMILY = {"kind": "low_rank_gaussian", "groups": [SIZE // GROUPS] * GROUPS}


def correlated(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns in groups that share half of their variance, and outcomes of a logistic regression."""
    generator = np.random.default_rng(4)
    shared = np.repeat(generator.normal(size=(records, GROUPS)), SIZE // GROUPS, axis=1)
    x = np.sqrt(0.5) * (shared + generator.normal(size=(records, SIZE)))
    logits = x @ generator.normal(size=SIZE) / np.sqrt(SIZE)
    return x, (generator.uniform(size=records) < 1.0 / (1.0 + np.exp(-logits))).astype(float)


def fitted(family: dict[str, Any], x: np.ndarray, y: np.ndarray, **options: Any) -> Any:
    client = np.arange(len(y)) % 2
    solver = {"kind": "glm"} if family["kind"] == "full_gaussian" else {"kind": "gradient"}
    raw = raw_study(
        ["c0", "c1"],
        SIZE,
        kind="logistic",
        solver=solver if solver["kind"] == "glm" else {**solver, "steps": 500},
        schedule={"kind": "sequential", "rounds": 3},
    )
    return run_study({**raw, "family": family}, split(x, y, client), **options)


@pytest.mark.nightly
def test_named_groups_hold_what_a_diagonal_posterior_forgets() -> None:
    x, y = correlated(1500)
    full = fitted({"kind": "full_gaussian"}, x, y).posterior
    found = fitted(FAMILY, x, y, pooled=True)
    diagonal = fitted({"kind": "diagonal_gaussian"}, x, y).posterior
    family = found.assembly.family
    # Monte Carlo noise of 500 steps in each of 2 · 48 + 6 numbers, a few per cent of an sd: nats.
    assert family.kl(found.posterior, found.pooled) < 0.5
    eta = found.posterior
    low = GaussianEta(eta.h, np.diag(eta.d) + family.basis @ eta.K @ family.basis.T)
    dense = expfam.full_gaussian(SIZE)
    far = dense.kl(GaussianEta(diagonal.h, np.diag(diagonal.J)), full)
    near = dense.kl(low, full)
    # Of the sample's correlations what no group shares is left: 1500 records leave them at 1/√1500.
    assert near < 0.1 * far
    off = {
        name: np.abs(np.log(dense.moments(member)[1] / dense.moments(full)[1])).max()
        for name, member in (
            ("low", low),
            ("diagonal", GaussianEta(diagonal.h, np.diag(diagonal.J))),
        )
    }
    assert off["low"] < 0.15 < 0.25 < off["diagonal"]


def written(folder: Path, family: dict[str, Any], **sections: Any) -> Path:
    """A private study of two columns, and its clients' files."""
    path = study_file(folder, names=("north", "east"), **sections)
    raw = json.loads(path.read_text())
    raw["family"] = {"kind": "low_rank_gaussian", **family}
    path.write_text(json.dumps(raw))
    return path


@pytest.mark.nightly
def test_every_command_after_a_run_knows_the_family(tmp_path: Path) -> None:
    path = written(tmp_path, {"rank": 1})
    run, state = tmp_path / "run", tmp_path / "state"
    fedvi("check", path)
    said = fedvi("simulate", path, "--out", run).output
    assert "correlations along its directions alone" in " ".join(said.split())
    run_server(assembled(path), path, state)
    fedvi("posterior", run, "--to", run / "draws.npz")
    fedvi("posterior", state)
    for folder in (run, state):
        fedvi("report", folder, "--format", "json")
    report = told(run)
    assert report["coefficients"] == told(state)["coefficients"]
    assert all(row["share"] is not None for row in report["sites"])
    lines = ["x0,x1", *("0.5,-0.25" for _ in range(3))]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    fedvi("predict", run, tmp_path / "new.csv", "--out", tmp_path / "told.csv")
    (tmp_path / "test.csv").write_text("y,x0,x1\n0.5,0.5,-0.25\n-0.5,0.1,0.2\n")
    fedvi("evaluate", run, tmp_path / "test.csv")


def refused(path: Path) -> str:
    result = CliRunner().invoke(main, ["check", str(path)])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ({"groups": [1, 1]}, "at least one of two or more coordinates"),
        ({"groups": [2, 1]}, "with a sum of at most 2"),
        ({"groups": [0, 2]}, "expected whole numbers of at least 1"),
        ({"groups": [2], "directions": "smooth"}, "but groups already give them"),
        ({"groups": [2], "rank": 3}, "rank is 3, expected 1, one for each group of two or more"),
        ({"rank": 1, "directions": "rough"}, "expected one of random, smooth"),
        ({"rank": 2}, "rank is 2, expected 1 to 1"),
    ],
)
def test_directions_that_cannot_be_are_refused_when_a_study_is_read(
    family: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refused(written(tmp_path, family))


@pytest.mark.parametrize("solver", ["site_release", "perturbed_update", "virtual_clients"])
def test_a_solver_that_cannot_take_it_names_one_that_does(solver: str, tmp_path: Path) -> None:
    section = {"kind": solver, "clip_norm": 1.0}
    if solver == "virtual_clients":
        section["parts"] = 2
    path = written(tmp_path, {"rank": 1}, solver=section)
    if solver == "virtual_clients":
        raw = json.loads(path.read_text())
        raw["data"]["id_column"] = "number"
        path.write_text(json.dumps(raw))
    assert "`dp_optimisation`" in refused(path)
