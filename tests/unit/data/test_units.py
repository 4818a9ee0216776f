"""Claims about grouping rows: what a unit keeps, what counts as zero, and whose slot a row moves."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data import by_unit
from fedvi.data.source import ArraySource, concatenate
from fedvi.data.units import check_identities, is_missing
from fedvi.errors import DataError
from fedvi.typing import ROWS

Row = tuple[str | None, float, bool]


def grouped(rows: list[Row], rows_per_unit: int = 3) -> ArraySource:
    """Rows of (identity, value, valid), grouped; each value stands in a scalar and a vector column."""
    y = np.array([value for _, value, _ in rows], dtype=float)
    valid = np.array([valid for _, _, valid in rows], dtype=bool)
    source = ArraySource({"y": y, "x": np.stack([y, -y], axis=-1)}, valid)
    return by_unit(source, [identity for identity, _, _ in rows], rows_per_unit)


def contents(source: ArraySource) -> list[tuple[float, ...]]:
    """What each slot holds, in the order of slots."""
    return [
        tuple(y[stands])
        for y, stands in zip(source.records["y"], source.records[ROWS], strict=True)
    ]


def test_rows_of_a_unit_stand_side_by_side_in_the_order_of_the_file() -> None:
    source = grouped([("b", 1.0, True), ("a", 2.0, True), (" b ", 3.0, True)])
    assert contents(source) == [(1.0, 3.0), (2.0,)]
    assert source.records["x"].shape == (2, 3, 2)
    np.testing.assert_array_equal(source.records["x"][0], [[1, -1], [3, -3], [0, 0]])
    np.testing.assert_array_equal(source.valid, [True, True])


def test_an_identity_is_a_text_not_a_number() -> None:
    assert contents(grouped([("1", 1.0, True), ("1.0", 2.0, True), ("01", 3.0, True)])) == [
        (1.0,),
        (2.0,),
        (3.0,),
    ]


def test_rows_beyond_the_bound_are_left_out_first_come_first_kept() -> None:
    rows: list[Row] = [("a", float(value), value != 1) for value in range(6)]
    # The row that is not valid takes no place.
    assert contents(grouped(rows, 2)) == [(0.0, 2.0)]
    assert contents(grouped(rows, 1)) == [(0.0,)]


def test_a_unit_without_a_valid_row_keeps_its_slot_and_counts_as_zero() -> None:
    source = grouped([("a", 7.0, False), ("b", 1.0, True), ("a", 8.0, False)])
    assert contents(source) == [(), (1.0,)]
    np.testing.assert_array_equal(source.valid, [False, True])
    assert not source.records["y"][0].any()


@pytest.mark.parametrize("identity", ["", " ", "?", "NA", "nan", "NaN", "null", None])
def test_rows_of_strangers_are_no_unit(identity: str | None) -> None:
    assert is_missing(identity)
    assert contents(grouped([(identity, 1.0, True), ("a", 2.0, True)])) == [(2.0,)]


def test_without_protection_a_row_without_an_identity_is_refused() -> None:
    assert check_identities(["a", "b", "a"], "patient_id", "north") == 2
    with pytest.raises(DataError) as error:
        check_identities(["a", "?"], "patient_id", "north")
    assert error.value.message == ("north: record 2: column `patient_id` does not name its unit")
    assert "data.unit_column" in error.value.hint


def test_every_row_needs_an_identity() -> None:
    rows = ArraySource({"y": np.zeros(2)}, np.ones(2, bool))
    with pytest.raises(DataError, match="not as many as there are rows"):
        by_unit(rows, ["a"], 2)


def test_no_rows_are_no_units() -> None:
    source = grouped([])
    assert source.size == 0
    arrays, mask = source.padded(2)
    assert arrays["x"].shape == (2, 3, 2)
    assert arrays[ROWS].shape == (2, 3)
    assert not mask.any()


def test_a_grouped_source_is_flat_again_for_a_fit_without_units() -> None:
    rows: list[Row] = [("a", 1.0, True), ("b", 2.0, True), ("a", 3.0, True), ("c", 9.0, False)]
    flat = grouped(rows).flat()
    assert set(flat.records) == {"x", "y"}
    assert sorted(flat.records["y"][flat.valid]) == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(
        flat.records["x"][flat.valid][:, 1], -flat.records["y"][flat.valid]
    )
    assert flat.flat() is flat
    assert concatenate([flat, flat]).valid.sum() == 6


ROWS_OF_UNITS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.floats(-9, 9), st.booleans()),
    max_size=12,
)


@pytest.mark.parametrize("most", [2, 99])
@given(rows=ROWS_OF_UNITS, others=ROWS_OF_UNITS, places=st.randoms(use_true_random=False))
def test_replacing_one_unit_changes_one_slot_up_to_their_order(
    most: int, rows: list[Row], others: list[Row], places: Any
) -> None:
    # The rows of "a" are replaced by those of "new", wherever in the file they may stand; and where
    # a file has more units than are used, the first ones are.
    changed = [row for row in rows if row[0] != "a"]
    for _, value, valid in others:
        changed.insert(places.randint(0, len(changed)), ("new", value, valid))
    before = contents(grouped(rows).first(most))
    left = contents(grouped(changed).first(most))
    gone = 0
    for slot in before:
        if slot in left:
            left.remove(slot)
        else:
            gone += 1
    assert max(gone, len(left)) <= 1
