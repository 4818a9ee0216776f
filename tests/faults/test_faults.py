"""The fast tier finds every planted fault; the catalogue fits the code."""

import ast
import dataclasses

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.planting import ROOT, changed, environment, look_for, plant
from tests.tiers import FAST

NAMES = [fault.name for fault in FAULTS]


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_the_fast_tier_finds_it(fault, tmp_path):
    plant(fault, tmp_path)
    search = look_for(fault.tests, tmp_path, FAST)
    assert search.verdict == "found", search.by


@pytest.mark.nightly
def test_where_nothing_is_planted_nothing_is_found(tmp_path):
    plant(None, tmp_path)
    search = look_for(sorted({test for fault in FAULTS for test in fault.tests}), tmp_path, FAST)
    assert search.verdict == "missed", search.by


@pytest.mark.nightly
def test_a_fault_that_lets_nothing_run_is_none(tmp_path):
    fault = next(fault for fault in FAULTS if fault.name == "budget-a-tenth-too-generous")
    plant(dataclasses.replace(fault, wrong="("), tmp_path)
    assert look_for(fault.tests, tmp_path, FAST).verdict == "broken"


def test_there_are_thirty_and_each_can_be_planted():
    assert len(FAULTS) >= 30
    assert len(set(NAMES)) == len(NAMES)
    for fault in FAULTS:
        ast.parse(changed(fault))
        assert all((ROOT / test.split("::")[0]).exists() for test in fault.tests), fault.name


def test_a_fault_whose_code_is_gone_says_so():
    with pytest.raises(ValueError, match=r"has 'no such line' 0 times, expected once"):
        changed(dataclasses.replace(FAULTS[0], right="no such line"))


def test_faults_are_looked_for_with_no_more_examples_than_the_fast_tier_tries(
    monkeypatch, tmp_path
):
    for name in ("HYPOTHESIS_PROFILE", "CI", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "nightly")
    found = environment(tmp_path)
    assert found["PYTHONPATH"] == str(tmp_path)
    assert not {"HYPOTHESIS_PROFILE", "CI", "PYTEST_ADDOPTS"} & set(found)
