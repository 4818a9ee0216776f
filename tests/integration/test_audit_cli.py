"""`fedvi audit` as a user runs it."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

from fedvi.audit import profile
from fedvi.cli import _audit_profile, _audited
from fedvi.cli.audit import audit
from fedvi.cli.main import main
from fedvi.inference import solvers
from fedvi.privacy import calibrate, mechanisms, sampling
from fedvi.privacy.metrics import Public
from fedvi.study import build, noising
from fedvi.study.config import load_study
from fedvi.updates.base import LocalSolver
from tests.plug_ins import allowing

STUDY = """
[study]
name = "open"
seed = 1
[model]
kind = "linear"
formula = "y ~ x"
[family]
kind = "full_gaussian"
[solver]
kind = "exact"
[schedule]
kind = "sequential"
rounds = 1
[privacy]
protection = "none"
[data.schema]
y = { type = "number", bounds = [0, 1], center = 0, scale = 1 }
x = { type = "number", bounds = [0, 1], center = 0, scale = 1 }
[[clients]]
name = "a"
[[clients]]
name = "b"
"""


@pytest.fixture(autouse=True)
def few_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks of the noise that is refuted what a verdict needs: a factor is a composition more."""
    monkeypatch.setattr(profile, "_FACTORS", (1.0, _audit_profile.TELLING))


def test_a_study_without_protection_has_nothing_to_audit(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    shown = CliRunner().invoke(audit, [str(path)])
    assert shown.exit_code == 0
    assert "nothing to audit" in shown.output
    listed = CliRunner().invoke(audit, [str(path), "--json"])
    report = json.loads(listed.output)
    assert (report["findings"], report["passed"]) == ([], None)
    assert {"study", "fedvi", "digest", "trials", "seed"} <= report.keys()


def test_the_help_says_what_each_layer_asks() -> None:
    text = CliRunner().invoke(audit, ["--help"]).output
    assert all(word in text for word in ("replay", "sampler", "profile", "Exit codes"))


PRIVATE = STUDY.replace(
    'kind = "exact"', 'kind = "dp_optimisation"\nsteps = 10\ndraws = 2'
).replace(
    'protection = "none"',
    'epsilon = 2.0\ndelta = 1e-5\nunit = "record"\nrelation = "substitute"\n'
    'accountant = "pld"\ndisjoint = true\n[data]\nmax_records = 20',
)


class Halved:
    """Rounded Gaussian noise of half the std that its event says."""

    def __init__(self, noise_multiplier: float) -> None:
        self._inner = mechanisms.rounded_gaussian(noise_multiplier)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perturb(self, key: Any, total: Any, clip_norm: float) -> Any:
        def half(new: Any, old: Any) -> Any:
            return old + jnp.round((new - old).astype(jnp.float32) / 2.0).astype(new.dtype)

        return jax.tree.map(half, self._inner.perturb(key, total, clip_norm), total)


def halved(noise_multiplier: float) -> Any:
    return Halved(noise_multiplier)


def closed(family: Any, model: Any, noise: float) -> LocalSolver:
    """A solver that takes no mechanism from outside."""
    return solvers.dp_optimisation(
        family, model, sampling.full(20), mechanisms.rounded_gaussian(noise), steps=2, draws=2
    )


def findings(tmp_path: Path, study: str, exit_code: int, *options: str) -> dict[str, Any]:
    path = tmp_path / "study.toml"
    path.write_text(study)
    arguments = [str(path), "--json", "--trials", "4000", *options]
    shown = CliRunner().invoke(audit, arguments)
    assert shown.exit_code == exit_code, shown.output
    report: dict[str, Any] = json.loads(shown.output)
    return report


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in report["findings"]}


@pytest.mark.nightly
def test_a_private_study_passes(tmp_path: Path) -> None:
    report = findings(tmp_path, PRIVATE, 0, "--trials", "40000")
    assert report["passed"] is True
    assert set(verdicts(report).values()) == {"holds"}
    assert {finding["layer"] for finding in report["findings"]} == {
        "price",
        "programs",
        "client",
        "worst",
        "replay",
        "sampler",
        "profile",
    }


@pytest.mark.nightly
def test_trials_too_few_to_tell_anything_are_no_pass(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(PRIVATE)
    shown = CliRunner().invoke(audit, [str(path), "--trials", "400"])
    assert shown.exit_code == 0, shown.output
    assert "NOT CHECKED profile, nothing else: these trials tell nothing" in shown.output
    assert "this is no pass" in shown.output
    assert "nothing found" not in shown.output


@pytest.mark.nightly
def test_a_mechanism_with_half_its_noise_fails(tmp_path: Path) -> None:
    study = PRIVATE.replace("[privacy]", '[privacy]\nmechanism = "halved"')
    with allowing(halved=halved):
        report = findings(tmp_path, study, 1)
    assert not report["passed"]
    found = verdicts(report)
    assert found["noise scale"] == "FAILS"
    assert found["profile, nothing else"] == "FAILS"
    assert found["one record substituted"] == "holds"


def test_of_a_solver_without_a_mechanism_it_says_what_is_not_checked(tmp_path: Path) -> None:
    study = PRIVATE.replace(
        'kind = "dp_optimisation"\nsteps = 10\ndraws = 2',
        'kind = "closed"\nnoise = 8.0',
    )
    with allowing(closed=closed):
        report = findings(tmp_path, study, 0)
    found = verdicts(report)
    assert found["noise and sensitivity"] == "NOT CHECKED"
    # Nor does the audit know what a solver of the study's own should be charged.
    assert found["prices counted again"] == "NOT CHECKED"
    assert found["worst records"] == "NOT CHECKED"
    assert found["noise of two releases is independent"] == "NOT CHECKED"
    assert report["passed"] is None
    assert found["the plan is within its promise"] == "holds"
    (note,) = (part for part in report["findings"] if part["check"] == "noise and sensitivity")
    assert "takes no mechanism" in note["meaning"]


def test_layers_that_no_time_was_left_for_are_no_pass(tmp_path: Path) -> None:
    report = findings(tmp_path, PRIVATE, 0, "--seconds", "1e-9")
    assert report["passed"] is None
    assert set(verdicts(report).values()) == {"NOT CHECKED"}
    assert {finding["layer"] for finding in report["findings"]} == set(_audited.LAYERS)
    assert all("no time was left" in finding["meaning"] for finding in report["findings"])


def test_a_faulty_study_has_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(PRIVATE.replace("steps = 10", "steps = 0"))
    shown = CliRunner().invoke(main, ["audit", str(path)])
    assert shown.exit_code == 2
    assert "steps" in shown.output


SAMPLED = (
    PRIVATE.replace(
        "steps = 10\ndraws = 2",
        # Noise that is given: to calibrate it would take most of the test's time.
        'steps = 5\ndraws = 2\nnoise_multiplier = 3.0\nsampler = { kind = "poisson", rate = 0.2 }',
    )
    .replace("rounds = 1", "rounds = 3")
    .replace('"substitute"', '"add_remove"')
    .replace("max_records = 20", "max_records = 40")
)


@pytest.mark.nightly
def test_a_plan_of_several_visits_with_random_batches_passes(tmp_path: Path) -> None:
    report = findings(tmp_path, SAMPLED, 0, "--trials", "400")
    told = {finding["check"]: finding for finding in report["findings"]}
    assert [check for check, finding in told.items() if finding["passed"] is False] == []
    assert told["visits replayed"]["numbers"] == {"visits": 3, "planned": 3, "clients": 2}
    assert "40 of 40 slots" in told["records in batches"]["figure"]
    assert told["sampling keys"]["passed"] is True


@pytest.mark.nightly
def test_every_distinct_solver_of_a_study_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second client's solver counts its records in public, and adds a tenth of the noise."""

    def with_another(description: Any) -> Any:
        assembly = build.assemble(description)
        other = assembly.remake(lambda _: mechanisms.rounded_gaussian(0.1))

        def update(key_of: Any, state: Any, task: Any, shard: Any) -> Any:
            after, released, _ = other.update(key_of, state, task, shard)
            return after, released, {"records": Public(int(shard.mask.sum()))}

        solvers_of = {**assembly.solvers, "b": other._replace(update=update)}
        return dataclasses.replace(assembly, solvers=solvers_of)

    monkeypatch.setattr("fedvi.cli.audit.build", types.SimpleNamespace(**vars(build)))
    monkeypatch.setattr("fedvi.cli.audit.build.assemble", with_another)
    found = verdicts(findings(tmp_path, PRIVATE, 1, "--trials", "400"))
    assert found["metrics that may leave, a"] == "holds"
    assert found["metrics that may leave, b"] == "FAILS"
    assert found["noise scale, a"] == "holds"
    assert found["noise and sensitivity, b"] == "NOT CHECKED"


def test_a_plan_that_costs_more_than_was_promised_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that is calibrated for one visit of two."""

    def for_one_visit(total: Any, accountant: Any, epsilon: float, delta: float) -> float:
        def half(noise: float) -> Any:
            event = total(noise)
            return dataclasses.replace(event, count=event.count // 2)

        return calibrate.calibrate(half, accountant, epsilon, delta)

    changed = types.SimpleNamespace(**vars(calibrate) | {"calibrate": for_one_visit})
    monkeypatch.setattr(noising, "calibrate", changed)
    path = tmp_path / "study.toml"
    path.write_text(PRIVATE.replace("rounds = 1", "rounds = 2"))
    finding = _audited.promised(build.assemble(load_study(path)))
    assert finding.passed is False
    assert finding.numbers["epsilon"] > 2.5
    monkeypatch.undo()
    assert _audited.promised(build.assemble(load_study(path))).passed is True
