"""Faults that are planted in memory: they fit the code, they are there, and they are gone again."""

import inspect

import pytest

from fedvi import errors
from fedvi.audit.faults import FAULTS, Fault, planted, planting
from fedvi.audit.faults.fault import NEEDS
from fedvi.cli._audited import LAYERS
from fedvi.privacy import sums
from fedvi.privacy.events import Gaussian
from fedvi.privacy.sums import Sums

NAMES = [fault.name for fault in FAULTS]


def test_there_are_thirty_faults_or_more_and_no_two_of_one_name():
    assert len(FAULTS) >= 30
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_fault_fits_the_function_that_it_is_of(fault: Fault):
    function = planting._function(fault)
    assert planting._changed(fault, function) != function.__code__
    assert set(fault.needs) <= set(NEEDS)
    assert fault.layer in LAYERS


def test_a_fault_is_in_a_function_that_others_hold_and_is_gone_again():
    held, name = sums.in_sum, "sums-priced-by-their-number-and-not-its-root"
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    clean = held(Gaussian(1.0), 7)
    with planted(fault):
        assert held(Gaussian(1.0), 7).noise_multiplier > clean.noise_multiplier
    assert held(Gaussian(1.0), 7) == clean


def test_a_fault_is_gone_where_its_search_was_interrupted():
    (fault,) = (fault for fault in FAULTS if fault.name == "sums-priced-without-colluders")

    def interrupted() -> None:
        with planted(fault):
            assert Sums(5, 2).honest == 5
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert Sums(5, 2).honest == 3


def test_a_fault_is_gone_where_what_was_compiled_cannot_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == "sums-priced-without-colluders")
    forgotten: list[int] = []

    def forget() -> None:
        forgotten.append(Sums(5, 2).honest)
        if len(forgotten) == 1:
            raise RuntimeError

    monkeypatch.setattr(planting, "_forget", forget)
    with pytest.raises(RuntimeError), planted(fault):
        pass
    assert forgotten == [5, 3]


def test_a_fault_that_no_longer_fits_is_refused():
    fault = FAULTS[0]._replace(right="what is not there")
    with pytest.raises(errors.ConfigError, match="0 times, expected once"), planted(fault):
        pass


def test_planting_writes_to_no_file():
    (fault,) = (fault for fault in FAULTS if fault.name == "sums-priced-without-colluders")
    before = inspect.getsource(Sums)
    with planted(fault):
        assert inspect.getsource(Sums) == before
