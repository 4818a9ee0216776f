"""Claims about studies whose sites have effects of their own: from a file to tables and predictions."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.data.source import ArraySource
from fedvi.expfam.gaussian import FullGaussian
from fedvi.planning import advice, plan
from fedvi.results import evaluation, run_record
from fedvi.run import server_plan
from fedvi.server.core import protocol
from fedvi.study import build, site_effects
from fedvi.study.build import Assembly
from fedvi.study.config import parse_study
from tests.studies import raw_study

SITES = [f"c{index}" for index in range(5)]
EFFECTS = {"site_effect": "intercept", "site_scale": 0.8}
LEARNT = {"site_effect": "intercept", "site_scale": {"learn": True, "prior": 0.8}}


def study(effects: dict[str, Any], solver: str = "glm", **sections: Any) -> dict[str, Any]:
    raw = raw_study(
        SITES,
        1,
        kind="logistic",
        solver={"kind": solver},
        schedule={"kind": "sequential", "rounds": 5},
        **sections,
    )
    raw["model"] = {"kind": "logistic", "formula": "y ~ x0", **effects}
    return raw


def private(effects: dict[str, Any], **solver: Any) -> dict[str, Any]:
    raw = study(
        effects,
        privacy={"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
        simulation={"insecure_seed": 3},
    )
    raw["solver"] = {"kind": "dp_optimisation", "steps": 4, **solver}
    raw["schedule"] = {"kind": "synchronous", "rounds": 2}
    raw["data"]["max_records"] = 64
    return raw


def written(folder: Path, raw: dict[str, Any]) -> Path:
    """Writes a study and its sites' files; their levels differ by 0.8."""
    generator = np.random.default_rng(8)
    for client in raw["clients"]:
        level, x = 0.8 * generator.normal(), generator.normal(size=60)
        y = generator.uniform(size=60) < scipy.special.expit(0.2 + level + 0.9 * x)
        client["data"] = f"{client['name']}.csv"
        lines = ["y,x0", *(f"{int(a)},{float(b)!r}" for a, b in zip(y, x, strict=True))]
        (folder / client["data"]).write_text("\n".join(lines) + "\n")
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return path


def fedvi(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.stderr
    return done.stdout


def assembled(effects: dict[str, Any], **options: Any) -> Assembly:
    return build.assemble(parse_study(study(effects, **options)))


@pytest.mark.nightly
@pytest.mark.parametrize("effects", [EFFECTS, LEARNT], ids=["known", "learnt"])
def test_a_study_comes_to_the_pooled_answer_and_says_what_its_coefficients_mean(
    tmp_path: Path, effects: dict[str, Any]
) -> None:
    path = written(tmp_path, study(effects))
    told, out = tmp_path / "told", tmp_path / "out"
    printed = fedvi(
        "simulate", path, "--quiet", "--pooled", "--out", out, "--private-metrics", told
    )
    words = "coefficients are those at a given site, whose own effect on (Intercept) is 0"
    assert words in printed
    content = json.loads((out / "result.json").read_text())
    assert content["remark"].startswith(words)
    for row in content["coefficients"]:
        assert abs(row["mean"] - row["pooled_mean"]) < 0.01 * row["pooled_sd"]
        assert row["sd"] == pytest.approx(row["pooled_sd"], rel=0.01)
    *ordinary, last = content["coefficients"]
    if effects is LEARNT:
        assert last["name"] == "log τ: (Intercept)"
        assert last["odds_ratio"] is None
        assert last["scale"] == pytest.approx(np.exp(last["mean"]))
        assert f"τ = {last['scale']:.3g} (" in printed
    else:
        assert "τ = 0.8 (sd, declared)" in printed
        assert last["odds_ratio"] == pytest.approx(np.exp(last["mean"]))
    assert all(row["odds_ratio"] is not None for row in ordinary)
    fedvi("posterior", out, "--summary", tmp_path / "summary.csv")
    with (tmp_path / "summary.csv").open(newline="") as file:
        head, *cells = csv.reader(file)
    assert {len(row) for row in cells} == {len(head)}
    assert ("scale_upper" in head) == (effects is LEARNT)
    if effects is LEARNT:
        scales = [row[head.index("scale")] for row in cells]
        assert scales == [*("" for _ in ordinary), repr(last["scale"])]
    # What the site knows of its own effect: in its own file, and in none that the server leaves.
    line = json.loads((told / "c0.jsonl").read_text().splitlines()[-1])["private"]
    assert 0.1 < line["site_effect_sds"][0] < 0.8
    assert "site_effects" not in (out / "result.json").read_text()


def test_gradients_are_told_to_their_owner_in_a_file(tmp_path: Path) -> None:
    """Arrays too, such as the objective's course."""
    raw = study(EFFECTS)
    raw["solver"] = {"kind": "gradient", "steps": 5}
    raw["schedule"]["rounds"] = 1
    fedvi("simulate", written(tmp_path, raw), "--quiet", "--private-metrics", tmp_path / "told")
    line = json.loads((tmp_path / "told" / "c1.jsonl").read_text())["private"]
    assert len(line["objective"]) == 5


def test_a_private_study_pays_for_the_noise_of_all_that_is_noised(tmp_path: Path) -> None:
    path = written(tmp_path, private(EFFECTS))
    out = tmp_path / "out"
    printed = fedvi("simulate", path, "--quiet", "--out", out)
    assert "coefficients are those at a given site" in printed
    with np.load(out / "posterior.npz") as kept:
        assert kept["J"].shape == (2, 2)
    with_effects, plain = (build.assemble(parse_study(private(given))) for given in (EFFECTS, {}))
    solver = with_effects.solvers["c0"]
    assert solver.number_count == plain.solvers["c0"].number_count == 5
    # θ and one effect: 3 + 6 numbers are noised, not 2 + 3.
    assert plain.table_distance > 0.0
    assert with_effects.table_distance / plain.table_distance == pytest.approx(9 / 5)
    assert with_effects.header("c0").table_distance == with_effects.table_distance


def test_a_patient_of_several_rows_is_one_record_beside_effects(tmp_path: Path) -> None:
    raw = private(EFFECTS)
    raw["privacy"]["unit"] = "patient"
    raw["data"].update(unit_column="who", max_rows_per_unit=3)
    path = written(tmp_path, raw)
    for client in raw["clients"]:
        lines = (tmp_path / client["data"]).read_text().splitlines()
        rows = [f"{line},{index // 2}" for index, line in enumerate(lines[1:])]
        (tmp_path / client["data"]).write_text("\n".join([lines[0] + ",who", *rows]) + "\n")
    assert "at a given site" in fedvi("simulate", path, "--quiet")


def test_a_record_of_a_new_site_is_predicted_with_an_effect_that_nobody_knows() -> None:
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(40, 1)), generator.integers(0, 2, 40).astype(float)
    records = ArraySource({"x": np.c_[np.ones(40), x], "y": y}, np.ones(40, bool))
    mean, covariance = np.array([0.3, -0.7, -0.4]), np.diag([0.2, 0.3, 0.4]) ** 2
    draws = generator.multivariate_normal(mean, covariance, 40_000)
    v = generator.normal(size=40_000)
    for effects, size in ((EFFECTS, 2), (LEARNT, 3)):
        assembly = assembled(effects)
        posterior = FullGaussian(size).from_moments(mean[:size], covariance[:size, :size])
        u = v * (0.8 if size == 2 else np.exp(draws[:, 2]))
        logits = draws[:, :2] @ records.records["x"].T + u[:, None]
        p = scipy.special.expit(logits).mean(axis=0)
        expected = np.where(y == 1.0, np.log(p), np.log1p(-p)).mean()
        found = evaluation.evaluate(assembly, posterior, records, draws=4000)
        # Seeds are fixed; drawing is off by about 1e-3, and by 3e-3 with the 4,000 draws for a learnt τ.
        assert found.mean_log_likelihood == pytest.approx(expected, abs=4e-3)
        assert found.classes is not None
        without = scipy.special.expit(draws[:, :2] @ records.records["x"].T).mean(axis=0)
        far = np.where(y == 1.0, np.log(without), np.log1p(-without)).mean()
        assert abs(far - expected) > 8e-3


def test_a_server_without_jax_says_the_same_of_its_coefficients() -> None:
    assembly = assembled(LEARNT)
    kept = server_plan.make(assembly)
    assert kept.names == ("(Intercept)", "x0", "log τ: (Intercept)")
    spec = server_plan.to_spec(kept)
    assert spec.prior.h[2] == pytest.approx(np.log(0.8))
    run = run_record.of_server(kept, spec, protocol.initial_state(spec))
    said = site_effects.remark(kept.study, run.rows())
    assert "τ = 0.8 (0.11 to 5.68) for (Intercept) (sd, learnt: median and 95 %)" in said


def test_a_plan_names_the_effects_and_recommends_what_can_infer_them() -> None:
    assembly = build.assemble(parse_study(private(EFFECTS)))
    assert plan.plan(assembly).model == "logistic, D = 2, site effects on (Intercept)"
    outlook = advice.outlook(assembly)
    assert outlook is not None
    assert outlook.recommended == "dp_optimisation"
    notes = {mode.solver: mode.note for mode in outlook.modes}
    assert "separately" in notes["site_release"]
    assert "no regression" not in outlook.reason


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ({"site_effect": "intercept"}, r"model\.site_scale is missing"),
        ({"site_scale": 1.0}, r"model\.site_effect is missing"),
        ({"site_effect": ["x1"], "site_scale": 1.0}, r"site effects on 'x1'"),
        ({"site_effect": [], "site_scale": 1.0}, r"model\.site_effect is \[\]"),
        ({"site_effect": True, "site_scale": 1.0}, r"model\.site_effect is True"),
        ({"site_effect": ["x0", "x0"], "site_scale": 1.0}, r"different columns"),
        ({"site_effect": "intercept", "site_scale": 0.0}, r"model\.site_scale is 0\.0"),
        ({"site_effect": "intercept", "site_scale": -1}, r"model\.site_scale is -1"),
        ({"site_effect": "intercept", "site_scale": "1"}, r"model\.site_scale is '1'"),
        ({"site_effect": "intercept", "site_scale": [1.0, 1.0]}, r"2 numbers, expected 1"),
        ({"site_effect": "intercept", "site_scale": {"learn": False}}, r"learn is False"),
        ({"site_effect": "intercept", "site_scale": {"learn": True, "prior": 0}}, r"prior is 0"),
        ({"site_effect": "intercept", "site_scale": {"lern": True}}, r"site_scale\.lern: unknown"),
    ],
)
def test_effects_that_make_no_sense_are_refused(effects: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words) as refusal:
        assembled(effects)
    assert refusal.value.hint


def test_a_column_is_suggested_for_a_misspelt_one() -> None:
    with pytest.raises(errors.ConfigError) as refusal:
        assembled({"site_effect": ["x0 "], "site_scale": 1.0})
    assert "x0" in str(refusal.value.hint)


@pytest.mark.parametrize("kind", ["site_release", "local_averaging", "virtual_clients"])
def test_a_study_with_a_solver_that_cannot_is_refused_in_words(kind: str) -> None:
    raw = private(EFFECTS)
    raw["solver"] = {"kind": kind}
    if kind != "site_release":
        raw["data"]["id_column"] = "who"
    with pytest.raises(errors.ConfigError, match=r"all records of a site share") as refusal:
        build.assemble(parse_study(raw))
    assert "dp_optimisation" in str(refusal.value.hint)


def test_a_study_with_an_exact_solver_and_a_learnt_scale_is_refused() -> None:
    raw = raw_study(SITES, 1)
    raw["model"] |= LEARNT
    with pytest.raises(errors.ConfigError, match="a known site_scale"):
        build.assemble(parse_study(raw))


def test_a_model_of_one_s_own_states_its_effects_itself() -> None:
    raw = study(EFFECTS)
    raw["model"]["kind"] = "bnn_regression"
    del raw["prior"]
    with pytest.raises(errors.ConfigError, match=r"model\.site_effect: unknown key"):
        build.assemble(parse_study(raw))


def test_a_scale_that_is_learnt_from_a_few_sites_is_warned_of() -> None:
    assert "learnt from 5 sites" in "".join(assembled(LEARNT).warnings)
    many = study(LEARNT)
    many["clients"] = [{"name": f"c{index}"} for index in range(15)]
    assert not build.assemble(parse_study(many)).warnings
    assert not assembled(EFFECTS).warnings
