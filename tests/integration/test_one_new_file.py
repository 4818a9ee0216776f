"""A model in one new file goes all the way, as its guide prints it: no other line of fedvi knows of it."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.models.outcomes import base as outcomes
from fedvi.planning import advice, scenarios
from fedvi.run.simulate import simulate
from fedvi.study.build import assemble
from fedvi.study.config import load_study
from tests.plug_ins import declare

pytestmark = pytest.mark.numpyro

ADD = Path(__file__).parents[2] / "docs" / "add"
COUNT = 400


def fedvi(*arguments: object) -> str:
    allowed = ["--allow-code", "waiting", "--allow-code", "poisson_mixture"]
    result = CliRunner().invoke(main, [*allowed, *(str(argument) for argument in arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def read(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the guides' two modules, which can be imported until the test is over."""
    names = {"waiting": "model.md", "poisson_mixture": "conjugate-model.md"}
    for name, guide in names.items():
        blocks = re.findall(r"```python\n(.*?)```", (ADD / guide).read_text(), re.DOTALL)
        (text,) = (block for block in blocks if block.startswith(f"# {name}.py"))
        (tmp_path / f"{name}.py").write_text(text)
    declare(
        tmp_path,
        outcomes={"waiting": "waiting:Waiting"},
        models={"poisson_mixture": "poisson_mixture:PoissonMixture"},
    )
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in names:
        sys.modules.pop(name, None)


STUDY = """
[study]
name = "new"
seed = 1
[model]
{model}
[solver]
{solver}
[schedule]
kind = "synchronous"
rounds = {rounds}
[privacy]
{privacy}
[data]
max_records = 400
{schema}
[[clients]]
name = "north"
data = "north.{suffix}"
[[clients]]
name = "south"
data = "south.{suffix}"
"""
OPEN = 'protection = "none"'
PRIVATE = 'epsilon = 8.0\ndelta = 1e-5\nunit = "record"\nrelation = "substitute"\ndisjoint = true'
SCHEMA = """
[data.schema.wait]
type = "number"
bounds = [0.0, 60.0]
center = 0
scale = 2
[data.schema.age]
type = "number"
bounds = [-3, 3]
center = 0
scale = 1
"""
WAITING = 'kind = "waiting"\nformula = "wait ~ age"'
MIXTURE = 'kind = "poisson_mixture"\nkinds = 2\ntypical_count = 6.0'


def study(folder: Path, **parts: Any) -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY.format(**parts))
    return path


def waiting(folder: Path, privacy: str = OPEN, solver: str = 'kind = "glm"') -> Path:
    """A study of waiting times, in whose files E[wait] = 2 exp(0.5 + 0.8 age)."""
    random = np.random.default_rng(3)
    for client in ("north", "south", "test"):
        age = random.uniform(-1.5, 1.5, COUNT)
        wait = 2.0 * random.exponential(np.exp(0.5 + 0.8 * age))
        rows = zip(age.tolist(), wait.tolist(), strict=True)
        with (folder / f"{client}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("age", "wait"), *rows])
    parts = {"model": WAITING, "solver": solver, "rounds": 3, "privacy": privacy}
    return study(folder, **parts, schema=SCHEMA, suffix="csv")


def mixture(
    folder: Path, privacy: str = OPEN, solver: str = "clip_norm = inf\nnoise_multiplier = 0.0"
) -> Path:
    """A study of counts, of which 30 % have the mean 2 and the others 9."""
    random = np.random.default_rng(4)
    for client in ("north", "south", "test"):
        y = random.poisson(np.where(random.random(COUNT) < 0.3, 2.0, 9.0))
        np.savez(folder / f"{client}.npz", y=y.astype(float))
    parts = {"model": MIXTURE, "solver": f'kind = "vips"\n{solver}', "rounds": 15}
    return study(folder, **parts, privacy=privacy, schema="", suffix="npz")


def test_an_outcome_of_ones_own_is_fitted_predicted_evaluated_and_drawn(folder: Path) -> None:
    path, run = waiting(folder), folder / "run"
    assert "waiting" in fedvi("check", path)
    shown = fedvi("simulate", path, "--out", run)
    assert "time ratio" in shown
    assert "unconstrained" not in shown
    rows = json.loads((run / "result.json").read_text())["coefficients"]
    # From 800 records, whose coefficients have sds of 0.04.
    assert [row["mean"] for row in rows] == pytest.approx([0.5, 0.8], abs=0.17)
    assert rows[1]["time_ratio"] == pytest.approx(np.exp(rows[1]["mean"]))

    fedvi("predict", run, folder / "test.csv", "--out", folder / "told.csv", "--level", 0.9)
    told, test = read(folder / "told.csv"), read(folder / "test.csv")
    age, wait = (np.array(test[name], float) for name in ("age", "wait"))
    wait = np.minimum(wait, 60.0)  # as the schema clips it
    mean, low, high = (
        np.array(told[name], float) for name in ("mean", "outcome_lower", "outcome_upper")
    )
    np.testing.assert_allclose(mean, 2.0 * np.exp(0.5 + 0.8 * age), rtol=0.3)
    # Of 400 records 0.9 ± 0.015 to a standard error.
    assert ((low <= wait) & (wait <= high)).mean() == pytest.approx(0.9, abs=0.06)
    # Nearly a law at a point: quantiles are −log(1 − p) times the mean.
    np.testing.assert_allclose(high / mean, -np.log(0.05), rtol=0.02)

    figures = json.loads(fedvi("evaluate", run, folder / "test.csv", "--json"))
    numbers = figures["numbers"]
    assert numbers["coverage_95"] == pytest.approx(0.95, abs=0.05)
    assert numbers["rmse"] == pytest.approx(np.sqrt(((wait - mean) ** 2).mean()), rel=1e-6)
    assert figures["density_per"] == "file"
    density = -np.log(mean) - wait / mean
    assert figures["mean_log_likelihood"] == pytest.approx(density.mean(), abs=0.01)

    fedvi("synthesise", run, "--given", folder / "test.csv", "--out", folder / "made.csv")
    made = np.array(read(folder / "made.csv")["wait"], float)
    # Exponential to five standard errors, but for what the bounds clip.
    assert (made / mean).mean() == pytest.approx(1.0, abs=5.0 / np.sqrt(COUNT))

    fedvi("report", run, "--public", folder / "test.csv", "--format", "html")
    assert "time ratio" in (run / "report" / "report.html").read_text()


def test_a_run_of_an_outcome_of_which_no_records_can_be_made_up_gets_no_advice(
    folder: Path,
) -> None:
    """`fedvi simulate` ended with an error after its run, when the verdict asked what would have helped."""
    from waiting import Waiting

    path = waiting(folder, PRIVATE, SITE_RELEASE)
    assembly = assemble(load_study(path, {"waiting": Waiting}))
    with pytest.raises(errors.ConfigError, match="no width can be predicted"):
        scenarios.levers(assembly)
    assert advice.help_in_words(assembly, assembly.clients) == ""


@pytest.mark.nightly
def test_a_conjugate_model_of_ones_own_is_fitted_predicted_evaluated_and_drawn(
    folder: Path,
) -> None:
    path, run = mixture(folder), folder / "run"
    assert "poisson_mixture" in fedvi("check", path)
    fedvi("simulate", path, "--out", run)
    fedvi("posterior", run, "--to", folder / "draws.csv", "--draws", 50)
    draws = read(folder / "draws.csv")
    # 240 and 560 records: sds of 0.1 to 0.15, and the kinds overlap.
    assert np.mean(np.array(draws["rates[0]"], float)) == pytest.approx(2.0, abs=0.6)
    assert np.mean(np.array(draws["rates[1]"], float)) == pytest.approx(9.0, abs=0.6)

    fedvi("predict", run, folder / "test.npz", "--out", folder / "told.csv")
    told, y = read(folder / "told.csv"), np.load(folder / "test.npz")["y"]
    chance = np.array(told["kind 0"], float)
    assert chance[y == 0].min() > 0.95 > 0.05 > chance[y > 8].max()

    figures = json.loads(fedvi("evaluate", run, folder / "test.npz", "--json"))
    assert figures["measure"] == "mean log-likelihood"
    law = 0.3 * scipy.stats.poisson.pmf(y, 2.0) + 0.7 * scipy.stats.poisson.pmf(y, 9.0)
    # Of 400 records not seen, what 800 do not tell of three numbers costs 3/(2·800).
    assert figures["value"] == pytest.approx(np.log(law).mean(), abs=0.02)

    fedvi("synthesise", run, "--records", COUNT, "--out", folder / "made.npz")
    made = np.load(folder / "made.npz")["y"]
    assert made.mean() == pytest.approx(y.mean(), abs=1.2)
    told = fedvi("report", run, "--public", folder / "test.npz", "--format", "json,md")
    assert "mean log-likelihood" in told
    report = run / "report"
    assert r"poisson\_mixture" in (report / "report.md").read_text()
    assert "Predictions of public records" in (report / "report.md").read_text()
    written = json.loads((report / "report.json").read_text())["predictions"]
    assert written == {name: figures[name] for name in written}
    assert written["value"] == figures["value"]


def audited(path: Path) -> None:
    """Audits a study: nothing is found, though so few trials cannot tell all."""
    found = json.loads(fedvi("audit", path, "--trials", 1000, "--json"))["findings"]
    assert len(found) > 20
    assert {finding["check"] for finding in found if finding["passed"] is False} == set()


SITE_RELEASE = 'kind = "site_release"\nclip_norm = 1.0'


@pytest.mark.nightly
def test_an_outcome_of_ones_own_is_planned_priced_and_audited(folder: Path) -> None:
    path = waiting(folder, PRIVATE, SITE_RELEASE)
    shown = fedvi("privacy", path)
    assert "site_release" in shown
    assert "no regression that fedvi knows" not in shown
    fedvi("simulate", path, "--out", folder / "run")
    audited(path)


def test_the_page_s_outcome_loses_width_by_clipping_and_no_intercept(folder: Path) -> None:
    """The page leaves `steepest` out. Clipped slopes of a skewed outcome would average far below 0."""
    from waiting import Waiting

    private = PRIVATE.replace("8.0", "2.0")
    path = waiting(folder, private, SITE_RELEASE.replace("1.0", '"auto"'))
    study = load_study(path, {"waiting": Waiting})
    assembled = assemble(study)
    mean, sd = assembled.family.moments(simulate(study, folder).posterior)
    z = (mean - [0.5, 0.8]) / sd
    assert np.abs(z).max() < 4.5, z
    # The weights are those of `steepest` and `sharpest` written by hand.
    at = np.linspace(-3.0, 3.0, 7)
    np.testing.assert_allclose(outcomes.steepest(Waiting(), at, at), 3.0, rtol=1e-5)
    np.testing.assert_allclose(outcomes.sharpest(Waiting(), at, at), 4.0, rtol=1e-5)


def test_an_outcome_without_what_its_weights_follow_from_is_refused(folder: Path) -> None:
    from waiting import Waiting

    class Bare:
        conjugate, accepts = False, Waiting.accepts
        log_density, derivatives = Waiting.log_density, Waiting.derivatives

    path = waiting(folder, PRIVATE, SITE_RELEASE)
    with pytest.raises(errors.ModelError, match="outcome Bare has no `steepest`") as caught:
        assemble(load_study(path, {"waiting": Bare}))
    assert "steepest(self, linear_predictor, y)" in caught.value.hint
    # Solvers that do not weigh records take it.
    assemble(load_study(waiting(folder), {"waiting": Bare}))


@pytest.mark.nightly
def test_a_conjugate_model_of_ones_own_is_planned_priced_and_audited(folder: Path) -> None:
    path = mixture(folder, PRIVATE, "")
    fedvi("privacy", path)
    fedvi("simulate", path, "--out", folder / "run")
    audited(path)
