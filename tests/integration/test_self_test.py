"""`fedvi audit --self-test`: each planted fault is found by the audit of a study that can show it."""

import functools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.audit.faults import FAULTS, Fault
from fedvi.cli import _self_test
from fedvi.cli._audited import BROKE_OFF, Audited, Settings
from fedvi.cli.audit import audit
from fedvi.study import build
from fedvi.study.config import load_study
from tests.audited import STUDIES, written

SETTINGS = Settings(trials=20_000, one_table=True)
BY_NAME = {fault.name: fault for fault in FAULTS}
# The four that an audit of solvers alone, on the study's own columns, had missed; and one of each kind.
MISSED_ONCE = (
    "a-secret-for-two-releases",
    "sums-priced-without-colluders",
    "curvature-left-out-of-the-norm",
    "off-diagonal-curvature-doubled",
)
QUICK = (MISSED_ONCE[0], "ledger-that-was-cut-and-glued", "a-sum-of-one-answer-fewer")


@functools.cache
def loaded(name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return load_study(written(Path(folder), STUDIES[name]))


@functools.cache
def lacking(name: str) -> dict[str, str]:
    return _self_test.lacking(build.assemble(loaded(name)), SETTINGS)


def suitable(fault: Fault) -> Any:
    name = next(name for name in STUDIES if not lacking(name)[fault.name])
    return loaded(name)


@pytest.mark.checks_rows
@pytest.mark.nightly(only=tuple(name for name in BY_NAME if name not in QUICK))
@pytest.mark.parametrize("name", BY_NAME)
def test_a_planted_fault_is_found(name: str) -> None:
    fault = BY_NAME[name]
    (outcome,) = _self_test.self_test(suitable(fault), SETTINGS, [], [fault])
    assert outcome.found is True, outcome
    # By the layer that looks at what is wrong: a profile says of its sampler what it draws.
    layers = {fault.layer} | ({"sampler"} if fault.layer == "profile" else set())
    assert outcome.by.partition(":")[0] in layers


@pytest.mark.nightly
@pytest.mark.parametrize("name", STUDIES)
def test_nothing_is_found_where_nothing_was_planted(name: str) -> None:
    audited = Audited(build.assemble(loaded(name)), Settings(trials=400))
    layers = ("price", "client", "sums", "worst", "replay")
    found = list(audited.findings(layers))
    assert [finding for finding in found if finding.passed is not True] == []


@pytest.mark.nightly
def test_no_price_and_no_record_is_found_where_nothing_was_planted() -> None:
    audited = Audited(build.assemble(loaded("aggregate")), Settings())
    found = list(audited.findings(("price", "sums", "worst")))
    assert [finding for finding in found if finding.passed is not True] == []
    assert len(found) > 15


def test_what_a_study_cannot_show_is_said_and_not_planted() -> None:
    fault = BY_NAME["sums-priced-without-colluders"]
    (outcome,) = _self_test.self_test(loaded("site_release"), SETTINGS, [], [fault])
    assert outcome.found is None
    assert 'needs privacy.view = "aggregate"' in outcome.by
    assert outcome.seconds == 0.0


def test_without_time_no_fault_counts_as_found_or_missed() -> None:
    over = Settings(trials=400, until=time.monotonic() - 1.0)
    faults = [BY_NAME["budget-a-tenth-too-generous"]]
    (outcome,) = _self_test.self_test(loaded("site_release"), over, [], faults)
    assert outcome.found is None
    assert "no time was left" in outcome.by


def test_a_check_that_fails_anyway_finds_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fault, check = BY_NAME["budget-a-tenth-too-generous"], "a ledger stops at its budget"
    audited = Audited(build.assemble(loaded("site_release")), Settings(trials=400))
    (stops,) = (found for found in audited.findings(("price",)) if found.check == check)
    monkeypatch.setattr(_self_test, "LAYERS", ("price",))
    failing = [stops._replace(passed=False)]
    (outcome,) = _self_test.self_test(loaded("site_release"), Settings(), failing, [fault])
    assert outcome.found is False


def test_a_study_that_breaks_with_a_fault_is_no_find_of_the_audits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistyped name is an error of the change, and no check saw what the change does."""
    fault = BY_NAME["budget-a-tenth-too-generous"]._replace(wrong="if cost <= no_such_name:")
    monkeypatch.setattr(_self_test, "LAYERS", ("price",))
    (outcome,) = _self_test.self_test(loaded("site_release"), Settings(), [], [fault])
    assert outcome.found is None
    assert outcome.by == "the study does not run with it: NameError"


def test_a_solver_that_raises_fails_the_audit_and_the_other_layers_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audited = Audited(build.assemble(loaded("site_release")), Settings())

    def broken() -> Any:
        raise ValueError("row 7 of the file")

    monkeypatch.setattr(audited, "_client", broken)
    found = list(audited.findings(("client", "price")))
    assert (found[0].layer, found[0].check, found[0].passed) == (
        "client",
        f"client {BROKE_OFF}",
        False,
    )
    # A message of code that saw records may quote one.
    assert "row 7" not in str(found[0])
    assert {finding.layer for finding in found[1:]} == {"price"}


def test_where_no_fault_could_be_tried_the_command_says_that_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (BY_NAME["budget-a-tenth-too-generous"],)
    monkeypatch.setattr(_self_test, "FAULTS", faults)
    path = written(tmp_path, STUDIES["site_release"])
    shown = CliRunner().invoke(audit, [str(path), "--self-test", "--seconds", "0.001"])
    assert "NOT TRIED budget-a-tenth-too-generous: no time was left" in shown.output
    assert "no fault was tried: nothing is known" in shown.output


@pytest.mark.nightly
def test_the_command_prints_what_was_planted_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("sums-priced-without-colluders", "budget-a-tenth-too-generous")
    faults = tuple(BY_NAME[name] for name in names)
    monkeypatch.setattr(_self_test, "FAULTS", faults)
    path = written(tmp_path, STUDIES["site_release"])
    shown = CliRunner().invoke(audit, [str(path), "--self-test", "--trials", "400"])
    assert shown.exit_code == 0, shown.output
    assert "This study cannot show 1 of them" in shown.output
    assert "found budget-a-tenth-too-generous: price: a ledger stops at its budget" in shown.output
    assert "1 of 1 planted faults were found; 1 were not tried" in shown.output
    listed = CliRunner().invoke(audit, [str(path), "--self-test", "--trials", "400", "--json"])
    told = json.loads(listed.output)["self_test"]
    assert (told["found"], told["missed"]) == (1, [])
    assert told["not_shown"] == ["sums-priced-without-colluders"]
