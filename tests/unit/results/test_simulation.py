"""Claims about what `fedvi.simulate` and `fedvi.plan` return: they say what they are worth."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedvi
from fedvi.results.simulation import Simulation
from fedvi.run.simulate import Result
from fedvi.study.config import load_study
from tests.sites import study_file


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_file(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def result(study: Path) -> Simulation:
    return fedvi.simulate(load_study(study), study.parent)


def test_a_simulation_says_in_a_line_what_it_is(result: Simulation) -> None:
    assert isinstance(result, Result)
    said = repr(result)
    assert said.startswith("Simulation(test: ")
    assert "coefficients from 3 clients in 3 folds" in said
    assert "under substitute" in said
    # Its noise follows from a seed.
    assert said.endswith(f"MARKED: {result.assembly.mark})")
    assert len(said) < 240


def test_its_summary_opens_with_the_verdict_and_has_every_coefficient(result: Simulation) -> None:
    text = result.summary().text(80)
    lines = text.splitlines()
    assert lines[0] == "test, simulated"
    assert f"warning: {result.assembly.mark}" in text
    assert " out" in text[: text.index("95 % interval")]
    mean, sd = result.assembly.family.moments(result.posterior)
    for name, m, s in zip(result.assembly.model.names, mean, sd, strict=True):
        (row,) = (line for line in lines if line.split()[:1] == [name])
        assert f"{m:.3f}" in row
        assert f"{s:.3f}" in row
    for name in result.assembly.clients:
        assert any(line.startswith(name) for line in lines)
    assert max(map(len, lines)) <= 80
    assert "<table>" in result._repr_html_()


def test_it_carries_its_warnings(result: Simulation) -> None:
    assert result.warnings[0] == result.assembly.mark
    assert set(result.verdict.alarms) <= set(result.warnings)
    assert set(result.assembly.warnings) <= set(result.warnings)


def test_no_record_and_no_array_is_in_what_it_says(result: Simulation, study: Path) -> None:
    texts = [repr(result), str(result.summary()), result._repr_html_()]
    for client in json.loads(study.read_text())["clients"]:
        rows = np.genfromtxt(study.parent / client["data"], delimiter=",", skip_header=1)
        for text in texts:
            assert "array(" not in text
            # Six digits: what is printed of a posterior has fewer, and cannot agree by chance.
            assert not any(f"{value:.6g}" in text for value in np.abs(rows).ravel())


def test_a_plan_says_its_price_and_its_traffic(study: Path) -> None:
    plan = fedvi.plan(load_study(study))
    assert repr(plan).startswith("Plan(test: ε ≤ 4 at δ = 1e-05 for one record under substitute")
    text = str(plan.summary())
    assert (
        f"at most {plan.messages_per_client} messages of {plan.numbers_per_message} numbers" in text
    )
    assert all(f"warning: {line[:40]}" in text for line in plan.warnings)
    assert plan.digest[:16] in text


def test_a_plan_without_protection_says_so(tmp_path: Path) -> None:
    path = study_file(
        tmp_path, privacy={"protection": "none"}, solver={"kind": "exact"}, simulation={}
    )
    assert "no protection (ε = ∞)" in repr(fedvi.plan(load_study(path)))


def test_a_study_whose_files_are_elsewhere_says_what_to_pass(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedvi.FedviError, match=r"the working directory has no such file") as told:
        fedvi.simulate(load_study(study))
    assert 'simulate(study, "FOLDER")' in told.value.hint
