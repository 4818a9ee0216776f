"""Claims about records in memory and their padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data.source import ArraySource, concatenate
from fedvi.data.stored import store
from fedvi.errors import DataError


def source_of(values: list[float], valid: list[bool]) -> ArraySource:
    y = np.array(values)
    return ArraySource({"y": y, "x": np.stack([y, -y], axis=1)}, np.array(valid, dtype=bool))


def test_an_invalid_record_leaves_nothing_behind() -> None:
    source = source_of([1.0, 666.0, np.nan], [True, False, False])
    np.testing.assert_array_equal(source.records["y"], [1, 0, 0])
    np.testing.assert_array_equal(source.records["x"], [[1, -1], [0, 0], [0, 0]])
    arrays, _ = source.padded(5)
    assert not arrays["x"][1:].any()


def test_padding_adds_masked_zeros_up_to_the_capacity() -> None:
    arrays, mask = source_of([1.0, 2.0, 3.0], [True, False, True]).padded(4)
    np.testing.assert_array_equal(arrays["y"], [1, 0, 3, 0])
    np.testing.assert_array_equal(arrays["x"], [[1, -1], [0, 0], [3, -3], [0, 0]])
    np.testing.assert_array_equal(mask, [True, False, True, False])


def test_padding_keeps_the_type_of_each_column() -> None:
    source = ArraySource({"cp": np.array([2], dtype=np.int32)}, np.array([True]))
    arrays, mask = source.padded(2)
    assert (arrays["cp"].dtype, mask.dtype) == (np.int32, np.bool_)


def test_too_many_records_are_refused_without_telling_how_many() -> None:
    source = source_of([0.5] * 137, [True] * 137)
    with pytest.raises(DataError) as error:
        source.padded(8, where="north")
    assert error.value.message == (
        "north: more records than the study declares with `data.max_records` = 8"
    )
    assert "137" not in str(error.value)
    assert "larger public bound" in error.value.hint


def test_the_first_records_are_kept_as_they_are() -> None:
    source = source_of([1.0, 2.0, 3.0], [True, False, True])
    assert source.first(3) is source
    shorter = source.first(2)
    np.testing.assert_array_equal(shorter.records["y"], [1.0, 0.0])
    np.testing.assert_array_equal(shorter.valid, [True, False])


@given(
    chunks=st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=4),
    count=st.integers(0, 22),
    more=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_a_stored_source_is_cut_and_padded_as_one_in_memory(
    chunks: list[list[bool]], count: int, more: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        ArraySource(
            {"x": rng.normal(size=(len(v), 2)), "y": rng.normal(size=len(v))}, np.array(v, bool)
        )
        for v in chunks
    ]
    here, there = (
        source.first(count) for source in (concatenate(parts), store(iter(parts), None, "north"))
    )
    (records, mask), (stored, kept) = (s.padded(count + more) for s in (here, there))
    np.testing.assert_array_equal(mask, kept)
    drawn = rng.integers(0, max(1, count + more), size=7 if count + more else 0)
    for name, column in records.items():
        np.testing.assert_array_equal(np.asarray(stored[name]), column)
        np.testing.assert_array_equal(stored[name][drawn], column[drawn])
        np.testing.assert_array_equal(stored[name][1 : count + 1], column[1 : count + 1])


def test_a_source_of_single_rows_is_flat() -> None:
    source = source_of([1.0], [True])
    assert source.flat() is source


def test_an_empty_source_pads_to_zeros() -> None:
    arrays, mask = source_of([], []).padded(2)
    assert arrays["x"].shape == (2, 2)
    assert not mask.any()


def test_the_arrays_are_copies_that_cannot_be_written() -> None:
    y, valid = np.array([1.0]), np.array([True])
    source = ArraySource({"y": y}, valid)
    y[0], valid[0] = 9.0, False
    assert source.records["y"][0] == 1.0
    assert source.valid[0]
    with pytest.raises(ValueError, match="read-only"):
        source.records["y"][0] = 2.0


@pytest.mark.parametrize("valid", [[True, True], [True, False]], ids=["whole", "cut"])
def test_no_array_of_a_source_can_be_made_writable_again(valid: list[bool]) -> None:
    source = source_of([1.0, 2.0], valid)
    for array in (*source.records.values(), source.valid):
        held: object = array
        while isinstance(held, np.ndarray):
            with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
                held.setflags(write=True)
            held = held.base
        assert isinstance(held, bytes)


def test_objects_are_no_records() -> None:
    with pytest.raises(DataError, match=r"records\['y'\]: Python objects, expected numbers"):
        ArraySource({"y": np.array([1.0, "none"], dtype=object)}, np.array([True, True]))


@pytest.mark.parametrize("capacity", [2, 3])
def test_padded_records_are_read_only_and_copied_only_where_rows_are_added(capacity: int) -> None:
    source = source_of([1.0, 2.0], [True, False])
    arrays, mask = source.padded(capacity)
    for found, own in ((arrays["x"], source.records["x"]), (mask, source.valid)):
        assert not found.flags.writeable
        assert np.shares_memory(found, own) == (capacity == source.size)


def test_taking_records_keeps_their_order_and_repeats_them() -> None:
    taken = source_of([1.0, 2.0, 3.0], [True] * 3).take([2, 0, 2])
    np.testing.assert_array_equal(taken["y"], [3, 1, 3])
    np.testing.assert_array_equal(taken["x"], [[3, -3], [1, -1], [3, -3]])


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_chunks_join_to_the_whole(rows: int) -> None:
    source = source_of([1.0, 2.0, 3.0], [True, False, True])
    chunks = list(source.chunks(rows))
    assert all(chunk.size <= rows for chunk in chunks)
    joined = concatenate(chunks)
    np.testing.assert_array_equal(joined.records["x"], source.records["x"])
    np.testing.assert_array_equal(joined.valid, source.valid)


def test_chunks_need_at_least_one_row() -> None:
    with pytest.raises(DataError, match="rows: 0, expected 1 or more"):
        list(source_of([1.0], [True]).chunks(0))


def test_only_sources_of_one_layout_are_joined() -> None:
    with pytest.raises(DataError, match=r"ArraySource\(z\) does not fit ArraySource\(y, x\)"):
        concatenate([source_of([1.0], [True]), ArraySource({"z": np.zeros(1)}, np.array([True]))])
    with pytest.raises(DataError, match="no sources"):
        concatenate([])


def test_every_array_has_one_row_for_each_record() -> None:
    with pytest.raises(DataError, match="leading axis") as error:
        ArraySource({"y": np.zeros(137)}, np.ones(136, dtype=bool))
    assert "13" not in str(error.value)


def test_a_repr_shows_no_value_and_no_count() -> None:
    assert repr(source_of([42.5, 1.0], [True, True])) == "ArraySource(y, x)"
