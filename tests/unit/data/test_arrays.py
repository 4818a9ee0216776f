"""Claims about records that are arrays in a file of NumPy."""

import numpy as np
import pytest

from fedvi import data, errors

LAYOUT = {"words": (3,), "length": ()}


def sound(records):
    return (records["words"] >= 0).all(axis=1) & np.isfinite(records["length"])


def read(path, private=False):
    return data.read_arrays(path, LAYOUT, sound, private=private, where="north")


@pytest.fixture
def arrays():
    return {
        "words": np.array([[0, 1, 2], [2, 2, 2]], np.int16),
        "length": np.array([1.0, 2.0], np.float32),
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.npz"


def test_arrays_come_as_they_were_written(path, arrays):
    np.savez(path, **arrays, more=np.zeros(7))
    source = read(path)
    assert source.valid.all()
    assert {name: column.dtype for name, column in source.records.items()} == {
        "words": np.int64,
        "length": np.float64,
    }
    for name, column in arrays.items():
        np.testing.assert_array_equal(source.records[name], column)


def test_a_record_that_the_model_does_not_know_counts_as_zero_where_records_are_private(
    path, arrays
):
    arrays["length"][1] = np.nan
    np.savez(path, **arrays)
    source = read(path, private=True)
    assert source.valid.tolist() == [True, False]
    assert source.records["words"][1].tolist() == [0, 0, 0]
    with pytest.raises(errors.DataError, match=r"record 1, counted from 0, is none that the model"):
        read(path)


def test_an_empty_shard_is_private(path, arrays):
    np.savez(path, **{name: column[:0] for name, column in arrays.items()})
    assert read(path, private=True).size == 0
    with pytest.raises(errors.DataError, match=r"the shard is empty"):
        read(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"words": None}, r"no array `words` in"),
        (
            {"words": np.zeros((2, 4), int)},
            r"array `words` has records of shape \(4,\), expected \(3,\)",
        ),
        ({"length": np.zeros(())}, r"array `length` has records of shape"),
        ({"words": np.full((2, 3), "a")}, r"array `words` holds <U1, expected numbers"),
        ({"length": np.zeros(3)}, r"the arrays words, length differ in length"),
    ],
)
@pytest.mark.parametrize("private", [False, True])
def test_what_is_public_of_a_file_is_refused_in_words(path, arrays, changed, said, private):
    found = {name: array for name, array in (arrays | changed).items() if array is not None}
    np.savez(path, **found)
    with pytest.raises(errors.DataError, match=said):
        read(path, private)


def test_what_is_no_file_of_arrays_is_refused_in_words(path, arrays):
    with pytest.raises(errors.DataError, match=r"north: no file at"):
        read(path)
    path.write_text("age,sex\n1,2\n")
    with pytest.raises(errors.DataError, match=r"is no file of arrays that NumPy can read"):
        read(path)
    np.save(path.with_suffix(".npy"), arrays["words"])
    path.with_suffix(".npy").rename(path)
    with pytest.raises(errors.DataError, match=r"is no file of arrays that NumPy can read"):
        read(path)


def test_objects_are_not_unpickled(path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    np.savez(path, words=np.array([Trap()], dtype=object), length=np.zeros(1))
    with pytest.raises(errors.DataError, match=r"is no file of arrays that NumPy can read"):
        read(path)
